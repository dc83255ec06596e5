"""fastsample_dist.partition_graph: the same partition from arrays, tensors and a CSCGraph, and what it refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.graph.storage import load_part, load_topology, read_manifest
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import draw_raw

DRAWN = draw_raw(undirected=True)
RAW = dataclasses.replace(DRAWN, labels=np.maximum(DRAWN.labels, 0))  # a train node has a label
COLUMNS = {"features": RAW.features, "labels": RAW.labels, "splits": RAW.splits}


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("wanted") / "parts"
    build_partition(RAW, PartitionOptions(num_parts=3, method="random", seed=4), path)
    return contents(path)


def tensors(values: dict) -> dict:
    return {
        key: tensors(value) if isinstance(value, dict) else torch.from_numpy(value) for key, value in values.items()
    }


class Frame:
    """Rows and columns as pandas' DataFrame has them: without a type of all values."""

    ndim = 2

    def __init__(self, rows: np.ndarray) -> None:
        self._rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self._rows)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self._rows


def masks(splits: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {split: np.isin(np.arange(RAW.num_nodes), ids) for split, ids in splits.items()}


@pytest.mark.parametrize(
    "graph, columns",
    [
        (RAW.edge_index, COLUMNS),
        (Frame(RAW.edge_index), {**COLUMNS, "features": Frame(RAW.features)}),
        (torch.from_numpy(RAW.edge_index), tensors(COLUMNS)),
        (RAW.edge_index, {**COLUMNS, "splits": masks(RAW.splits)}),
    ],
    ids=["arrays", "data frames", "tensors", "masks"],
)
def test_same_bytes_as_from_an_input_directory(graph, columns, wanted, tmp_path):
    quality = fsd.partition_graph(
        graph, **columns, num_parts=3, method="random", seed=4, output=tmp_path / "parts", name="drawn", undirected=True
    )
    assert quality.manifest.num_parts == 3
    assert contents(tmp_path / "parts") == wanted


def test_raw_graph_brings_everything_with_it(wanted, tmp_path):
    fsd.partition_graph(RAW, num_parts=3, method="random", seed=4, output=tmp_path / "parts")
    assert contents(tmp_path / "parts") == wanted


def test_csc_graph_keeps_its_edges_and_weights(tmp_path):
    raw = draw_raw(undirected=False, weighted=True)
    graph = raw.to_csc()
    fsd.partition_graph(graph, num_parts=1, method="range", output=tmp_path / "parts", memory_limit="8GB")
    stored = load_topology(tmp_path / "parts", read_manifest(tmp_path / "parts"))
    assert torch.equal(stored.indptr, graph.indptr)
    assert torch.equal(stored.indices, graph.indices)
    assert torch.equal(stored.weights, graph.weights)


def test_bfloat16_features_are_kept(tmp_path):
    features = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    fsd.partition_graph(RAW.edge_index, features, num_parts=1, method="range", output=tmp_path / "parts")
    manifest = read_manifest(tmp_path / "parts")
    assert torch.equal(load_part(tmp_path / "parts", manifest, 0).features, features)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_features_of_which_no_batch_can_be_made_are_refused_unless_they_are_converted(dtype, tmp_path):
    rows = RAW.features.astype(dtype)
    message = f"features of .* are {dtype}, of which no batch can be made; pass --feature-dtype float32"
    for graph, given in (
        (RAW.edge_index, {"features": rows}),
        (RAW.edge_index, {"features": torch.from_numpy(rows)}),
        (dataclasses.replace(RAW, features=rows), {}),
    ):
        with pytest.raises(ValueError, match=message):
            fsd.partition_graph(graph, **given, num_parts=2, method="random", output=tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []
    for name, features in {"wide": rows, "wanted": RAW.features}.items():
        options = {"method": "random", "feature_dtype": "float32"}
        fsd.partition_graph(RAW.edge_index, features, num_parts=2, output=tmp_path / name, **options)
    assert contents(tmp_path / "wide") == contents(tmp_path / "wanted")


def test_nodes_are_counted_by_the_highest_id(tmp_path):
    quality = fsd.partition_graph(np.array([[0, 4], [1, 2]]), num_parts=2, method="range", output=tmp_path / "parts")
    assert quality.manifest.num_nodes == 5


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"splits": {"dev": np.arange(3)}}, "splits has 'dev'; expected train, val, test"),
        ({"splits": {"train": np.ones(3, dtype=bool)}}, r"the mask of train has shape \(3,\); expected \(60,\)"),
        ({"features": RAW.features[:-1], "num_nodes": 60}, r"features has shape \(59, 3\); expected \(60, dim\)"),
        ({"method": "spectral"}, "method is 'spectral'"),
        ({"memory_limit": "much"}, "'much' is not a size"),
        ({"graph": RAW.to_csc(), "num_nodes": 7}, "num_nodes is 7 but the graph has 60 nodes"),
        ({"graph": RAW.to_csc(), "edge_weight": np.ones(3)}, "edge_weight was passed beside a CSCGraph"),
        ({"graph": np.empty((2, 0), dtype=int), "num_nodes": None}, "there is no edge, feature or label"),
        ({"graph": np.array([[0, -1], [1, 2]])}, "the source of edge 1 is -1; expected 0 to 59"),
        ({"node_type": np.zeros(59, dtype=int)}, r"node_type has shape \(59,\); expected \(60,\), one type per node"),
        ({"node_types": ["paper"]}, "node_types names 1 types but there is no node_type"),
        ({"graph": RAW}, "num_nodes was passed beside a RawGraph, which has its own; leave it out"),
        ({"graph": RAW, "labels": RAW.labels}, "labels was passed beside a RawGraph"),
        ({"name": 5}, "name is 5; expected text"),
        ({"undirected": "no"}, "undirected is 'no'; expected True or False"),
        ({"undirected": 1}, "undirected is 1; expected True or False"),
        ({"num_classes": 5.0}, "num_classes is 5.0; expected an integer >= 0"),
        ({"num_nodes": 0}, "num_nodes is 0; expected an integer from 1 to"),
        ({"overwrite": "no"}, "overwrite is 'no'; expected True or False"),
        ({"output": None}, "output is None; expected the path of the directory to write"),
        ({"graph": None}, r"graph is a NoneType; expected edges \[2, num_edges\], a CSCGraph"),
        (
            {"graph": torch.eye(3).to_sparse()},
            r"graph is a sparse matrix \(Tensor\); pass edges .*coalesce\(\).indices",
        ),
        (
            {"features": torch.eye(60).to_sparse()},
            r"features is a sparse matrix \(Tensor\); pass features.to_dense\(\)",
        ),
        ({"features": "rows"}, "features is a str; expected an array"),
        ({"labels": [[1], [2, 3]]}, "labels cannot become an array .*; convert it"),
        ({"edge_weight": torch.ones(3).bfloat16()}, "edge_weight cannot become an array .*BFloat16.*; convert it"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message, tmp_path):
    values = {"graph": RAW.edge_index, "num_nodes": 60, "num_parts": 2, "output": tmp_path / "parts", **arguments}
    with pytest.raises(ValueError, match=message):
        fsd.partition_graph(**values)
    assert list(tmp_path.iterdir()) == []


def test_sparse_matrix_of_scipy_is_refused_with_what_to_pass(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(
        ValueError, match=r"graph is a sparse matrix \(csr_matrix\); pass .*np.vstack\(matrix.nonzero\(\)\)"
    ):
        fsd.partition_graph(sparse.csr_matrix(np.eye(3)), num_parts=1, output=tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("of", [np.int64, torch.tensor], ids=["numpy", "torch"])
def test_numbers_of_numpy_and_torch_are_taken_as_pythons(of, tmp_path):
    edges = RAW.edge_index
    plain = {"num_parts": 3, "seed": 4, "passes": 2, "num_nodes": 60, "num_classes": 9, "undirected": True}
    given = {name: of(value) for name, value in plain.items()} | {"undirected": np.bool_(True)}
    for name, options in {"plain": plain, "given": given}.items():
        fsd.partition_graph(edges, **COLUMNS, method="ldg", output=tmp_path / name, **options)
    assert contents(tmp_path / "given") == contents(tmp_path / "plain")


def test_option_that_there_is_not_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(TypeError) as caught:
        fsd.partition_graph(RAW.edge_index, num_parts=2, output=tmp_path / "parts", metod="random")
    options = "name, num_nodes, undirected, edge_weight, num_classes, node_type, node_types, method, seed, assignment, "
    assert str(caught.value).startswith(f"there is no option 'metod'; expected some of {options}")
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_partition_that_is_relabelled_is_refused(tmp_path):
    fsd.partition_graph(RAW.edge_index, num_parts=2, method="random", output=tmp_path / "parts")
    stored = load_topology(tmp_path / "parts", read_manifest(tmp_path / "parts"))
    with pytest.raises(ValueError, match="pass the graph with original ids"):
        fsd.partition_graph(stored, num_parts=2, output=tmp_path / "again")
