"""fastsample_dist.partition_graph of DGL's and PyG's graphs as they are: the same bytes as from their arrays."""

import logging

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.graph.storage import load_part, load_topology, read_manifest
from tests.forked import run_code
from tests.graph.inputs.layouts import (
    TYPED,
    dgl_graph,
    dgl_heterograph,
    draw_graph,
    flat,
    pyg_attributes,
    pyg_stores,
)
from tests.grids import grid
from tests.test_partition.test_api import contents

GRAPH = draw_graph(weighted=True)
ARRAYS = {"features": GRAPH.features, "labels": GRAPH.labels, "splits": GRAPH.splits}
HOW = {"num_parts": 2, "method": "random", "seed": 4, "name": "mine"}


def make_dgl(feature: str = "feat", label: str = "label"):
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    return dgl_graph(dgl, GRAPH, feature, label)


def make_pyg():
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    return data.Data(**pyg_attributes(GRAPH))


@pytest.fixture(params=["dgl", "pyg"])
def given(request):
    """A graph of either library with everything that a partition takes."""
    return make_dgl() if request.param == "dgl" else make_pyg()


def cut(graph, output, **options):
    fsd.partition_graph(graph, output=output, **{**HOW, **options})
    return contents(output)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    path = tmp_path_factory.mktemp("wanted") / "parts"
    return cut(GRAPH.edges, path, **ARRAYS, num_nodes=GRAPH.num_nodes, edge_weight=GRAPH.weights)


def test_same_bytes_as_from_its_arrays(given, wanted, tmp_path):
    assert cut(given, tmp_path / "parts") == wanted


@pytest.mark.parametrize(("feature", "label"), [("x", "y"), ("feature", "labels"), ("features", "y")])
def test_other_usual_names_of_dgls_data(feature, label, wanted, tmp_path):
    assert cut(make_dgl(feature, label), tmp_path / "parts") == wanted


def test_both_directions_are_added_where_asked(given, tmp_path):
    found = cut(given, tmp_path / "parts", undirected=True)
    arrays = {**ARRAYS, "num_nodes": GRAPH.num_nodes, "edge_weight": GRAPH.weights, "undirected": True}
    assert found == cut(GRAPH.edges, tmp_path / "arrays", **arrays)


OTHER = {
    "features": np.arange(60, dtype=np.float32).reshape(30, 2),
    "labels": np.arange(30) % 4,
    "splits": {"train": np.arange(5), "test": np.arange(20, 30)},
}


@pytest.mark.parametrize("names", [["features"], ["labels"], ["splits"], ["features", "labels", "splits"]])
def test_what_is_passed_takes_the_place_of_the_graphs_own(given, names, tmp_path):
    passed = {name: OTHER[name] for name in names}
    arrays = {**ARRAYS, **passed, "num_nodes": GRAPH.num_nodes, "edge_weight": GRAPH.weights}
    assert cut(given, tmp_path / "parts", **passed) == cut(GRAPH.edges, tmp_path / "arrays", **arrays)


def test_weights_and_facts_that_are_passed_win(given, tmp_path):
    facts = {"edge_weight": np.ones(GRAPH.edges.shape[1], dtype=np.float32), "num_classes": 9}
    facts["node_type"] = np.arange(30) % 2
    found = cut(given, tmp_path / "parts", **facts)
    assert found == cut(GRAPH.edges, tmp_path / "arrays", **ARRAYS, **facts, num_nodes=GRAPH.num_nodes)
    assert read_manifest(tmp_path / "parts").num_classes == 9


def test_a_data_of_edges_alone_has_as_many_nodes_as_what_is_passed(tmp_path):
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    edges = torch.tensor([[0, 1], [1, 2]])
    cut(data.Data(edge_index=edges), tmp_path / "features", features=np.ones((7, 2), dtype=np.float32))
    cut(data.Data(edge_index=edges), tmp_path / "number", num_nodes=9)
    assert [read_manifest(tmp_path / name).num_nodes for name in ("features", "number")] == [7, 9]


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_labels_of_other_tasks_are_targets(library, tmp_path):
    values = np.linspace(-1, 1, 30, dtype=np.float32)[:, None]
    given = make_dgl() if library == "dgl" else make_pyg()
    if library == "dgl":
        given.ndata["label"] = torch.from_numpy(values)
    else:
        given.y = torch.from_numpy(values)
    found = cut(given, tmp_path / "parts", task="regression")
    arrays = {**ARRAYS, "labels": values, "num_nodes": GRAPH.num_nodes, "edge_weight": GRAPH.weights}
    assert found == cut(GRAPH.edges, tmp_path / "arrays", **arrays, task="regression")
    assert read_manifest(tmp_path / "parts").task == "regression"


def make_typed(library: str):
    if library == "pyg":
        made = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed").HeteroData()
        for key, store in pyg_stores(TYPED).items():
            if key != "_global_store":
                for name, value in store.items():
                    made[key][name] = value
        return made
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    return dgl_heterograph(dgl, TYPED)


@pytest.mark.parametrize("library", ["dgl", "pyg"])
def test_several_node_types_become_one_id_space(library, tmp_path, caplog):
    cut(make_typed(library), tmp_path / "parts", num_parts=1, method="range")
    manifest, oracle = read_manifest(tmp_path / "parts"), flat(TYPED)
    graph, part = load_topology(tmp_path / "parts", manifest), load_part(tmp_path / "parts", manifest, 0)
    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    ends = graph.orig_ids[graph.indices.long()].tolist(), graph.orig_ids[dst].tolist()
    assert sorted(zip(*ends, strict=True)) == oracle["edges"]
    assert part.features[graph.orig_ids.argsort()].tolist() == oracle["features"]
    assert manifest.node_types == ("author", "paper", "venue")
    assert ("mine: 3 edge types are joined; partitions do not store edge types", logging.WARNING) in [
        (record.getMessage(), record.levelno) for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("graph", "names", "options", "message"),
    [
        (make_dgl, {"x": "feat"}, {}, "mine: nodes of type _N have feat and x, all usual names of features; keep one"),
        (
            make_dgl,
            {"y": "label"},
            {},
            "have label and y, all usual names of labels; keep one of them, or pass lab",
        ),
        (
            make_dgl,
            {"valid_mask": "val_mask"},
            {},
            "have val_mask and valid_mask, all usual names of val; .*pass splits",
        ),
        (make_pyg, {"valid_mask": "val_mask"}, {}, "mine: nodes have val_mask and valid_mask, all usual names of val"),
        (make_pyg, {}, {"num_nodes": 31}, "num_nodes is 31 but the graph has 30 nodes; leave num_nodes out"),
        (make_dgl, {}, {"labels": np.zeros(29, dtype=int)}, r"labels has shape \(29,\); expected \(30,\)"),
        (make_pyg, {}, {"splits": {"dev": np.arange(3)}}, "splits has 'dev'; expected train, val, test"),
        (
            lambda: make_typed("pyg"),
            {},
            {"node_type": np.zeros(10, dtype=int)},
            "node_type was passed beside a graph that",
        ),
    ],
)
def test_what_does_not_fit_is_refused(graph, names, options, message, tmp_path):
    made = graph()
    for name, source in names.items():
        data = made.ndata if hasattr(made, "ndata") else made
        data[name] = data[source]
    with pytest.raises(ValueError, match=message) as caught:
        fsd.partition_graph(made, output=tmp_path / "parts", **{**HOW, **options})
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


@pytest.mark.parametrize(
    ("attributes", "options", "message"),
    [
        ({"edge_index": EDGES, "y": torch.tensor(3)}, {}, r"mine: y has labels of shape \(\); expected one per node"),
        ({"edge_index": EDGES[0]}, {}, r"mine: edge_index has shape \(3,\); expected \(2, num_edges\)"),
        ({"edge_index": EDGES, "x": torch.ones(3)}, {}, r"mine: x has shape \(3,\); expected a row per node"),
        ({"edge_index": EDGES, "x": [1, 2, 3]}, {}, "mine: x is a list; expected a tensor"),
        ({"edge_index": EDGES}, {"splits": 5}, "splits is a int; expected a dict of train, val, test"),
        ({"edge_index": EDGES}, {"features": np.float32(3)}, "features is a float32; expected an array"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_in_one_line(attributes, options, message, tmp_path):
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    with pytest.raises(ValueError, match=message) as caught:
        fsd.partition_graph(data.Data(**attributes), output=tmp_path / "parts", **{**HOW, **options})
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_two_names_for_one_thing_do_not_matter_where_it_is_passed(tmp_path):
    made = make_dgl()
    made.ndata["x"] = made.ndata["feat"] * 2
    cut(made, tmp_path / "parts", features=OTHER["features"])
    manifest = read_manifest(tmp_path / "parts")
    assert manifest.feature_dim == 2


def test_an_object_of_a_library_that_is_no_graph_is_refused(tmp_path):
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    with pytest.raises(ValueError, match="graph is a TemporalData of torch_geometric; expected its Data or HeteroData"):
        fsd.partition_graph(data.TemporalData(), output=tmp_path / "parts", **HOW)


def test_a_block_is_refused(tmp_path):
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    block = dgl.create_block(([0, 1], [0, 0]), num_src_nodes=2, num_dst_nodes=1)
    with pytest.raises(ValueError, match="mine is a block of a mini-batch; pass the whole graph"):
        fsd.partition_graph(block, output=tmp_path / "parts", **HOW)


DROPS = """
import sys, torch, fastsample_dist as fsd
from torch_geometric.data import Data
edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
others = {"edge_type": torch.zeros(3), "pos": torch.ones(3, 2)}
data = Data(edge_index=edges, edge_attr=torch.ones(3, 4), x=torch.ones(3, 2), **others)
if sys.argv[1] == "data":
    fsd.partition_graph(data, output=sys.argv[2], num_parts=1, method="range")
else:
    fsd.interop.pyg.from_data(data)
"""


@pytest.mark.parametrize("way", grid(["data", "from_data"], gate=["data"]))
def test_what_is_left_out_reaches_a_user_who_set_up_no_logging(way, tmp_path):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    run = run_code(DROPS, way, tmp_path / "parts")
    assert run.returncode == 0, run.stderr
    name = "graph" if way == "data" else "data"
    lines = [line for line in run.stderr.splitlines() if "left out" in line]
    assert lines == [
        f"{name}: edge_type, pos left out; partitions do not store it",
        f"{name}: edge_attr of shape (3, 4) left out; partitions do not store it",
    ]


def test_attributes_of_edges_beside_their_weights_are_said_to_be_left_out(tmp_path, caplog):
    data = make_pyg()
    data.edge_weight = data.edge_attr[:, 0] * 2
    cut(data, tmp_path / "parts")
    assert "mine: edge_attr of shape (90, 1) left out; partitions do not store it" in caplog.messages


def test_neither_library_is_imported_by_arrays():
    found = run_code(
        "import sys, fastsample_dist.partition.api; print([m for m in ('dgl', 'torch_geometric') if m in sys.modules])"
    )
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found.stderr
