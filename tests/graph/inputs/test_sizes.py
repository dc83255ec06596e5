"""Sizes of inputs, read from headers and samples, against graphs that are known."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.generators import write_npy_graph
from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, input_sizes, least_sizes, read_graph
from fastsample_dist.graph.inputs.sizes import UNKNOWN, GraphSizes, NodesUnknownError, sizes_of
from tests.graph.inputs.layouts import TYPED, dgl_graph, dgl_heterograph, draw_graph

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


def read_bytes() -> int:
    """What this process has read so far, from files and elsewhere."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_an_npy_directory_tells_its_sizes(tmp_path):
    write_npy_graph(
        tmp_path / "g",
        (EDGES.astype(np.int32), 5),
        name="g",
        features=np.zeros((5, 7), np.float16),
        labels=np.zeros(5, np.int64),
        splits={"train": np.array([0, 3])},
        undirected=True,
        arrays={"edge_weight": np.ones(4, np.float32)},
    )
    assert input_sizes(tmp_path / "g") == GraphSizes(
        name="g",
        num_nodes=5,
        num_listed=4,
        undirected=True,
        id_dtype="int32",
        weight_dtype="float32",
        feature_dim=7,
        feature_dtype="float16",
        splits={"train": 2},
    )


def test_a_graph_of_hundreds_of_gigabytes_is_sized_without_reading_it(tmp_path):
    """The files are holes; mapping them to read them would take hours."""
    nodes, edges, dim = 10**8, 10**10, 256
    for name, dtype, shape in (("edge_index", "<i8", (2, edges)), ("features", "<f4", (nodes, dim))):
        with (tmp_path / f"{name}.npy").open("wb") as file:
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize)
    (tmp_path / "meta.json").write_text(json.dumps({"name": "huge", "num_nodes": nodes, "undirected": False}))
    before = read_bytes()
    sizes = input_sizes(tmp_path)
    assert read_bytes() - before < 100_000
    assert (sizes.num_nodes, sizes.num_edges, sizes.feature_dim) == (nodes, edges, dim)


def test_a_truncated_column_is_refused(tmp_path):
    write_npy_graph(tmp_path / "g", (EDGES, 5), name="g", features=np.zeros((5, 7), np.float32))
    file = tmp_path / "g" / "features.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"features.npy has 267 bytes; expected 268: it is truncated"):
        input_sizes(tmp_path / "g")


@pytest.mark.parametrize(
    "array", [np.array(["1"] * 4), np.array([b"1"] * 4), np.zeros(4, "M8[D]"), np.zeros(4, [("x", "f4")])]
)
@pytest.mark.parametrize("column", ["features", "edge_weight"])
def test_a_column_that_holds_no_numbers_is_refused_and_unknown(tmp_path, array, column):
    write_npy_graph(tmp_path / "g", (EDGES, 4), name="g")
    np.save(tmp_path / "g" / f"{column}.npy", array[:, None] if column == "features" else array)
    with pytest.raises(ValueError, match=f"{column}.npy is .*; expected numbers; convert it"):
        input_sizes(tmp_path / "g")
    assert least_sizes(tmp_path / "g") == UNKNOWN
    with pytest.raises(ValueError, match=f"{column}.npy is .*; expected "):
        read_graph(tmp_path / "g")


def test_a_split_of_no_dimension_is_refused_and_unknown(tmp_path):
    write_npy_graph(tmp_path / "g", (EDGES, 4), name="g")
    np.save(tmp_path / "g" / "train_idx.npy", np.array(3))
    with pytest.raises(ValueError, match="train_idx.npy is a single number; expected a list of node ids"):
        input_sizes(tmp_path / "g")
    assert least_sizes(tmp_path / "g") == UNKNOWN
    with pytest.raises(ValueError, match=r"train_idx.npy is int64 of shape \(\); expected a one-dimensional list"):
        read_graph(tmp_path / "g")


def test_a_file_that_is_no_array_is_refused(tmp_path):
    write_npy_graph(tmp_path / "g", (EDGES, 5), name="g")
    (tmp_path / "g" / "labels.npy").write_bytes(b"not an array at all")
    with pytest.raises(ValueError, match="labels.npy is not a readable .npy file"):
        input_sizes(tmp_path / "g")


def write_text(path: Path, num_edges: int, separator: str = " ") -> np.ndarray:
    edges = np.random.default_rng(0).integers(0, 100_000, (num_edges, 2))
    text = "# source destination\n" + "".join(f"{src}{separator}{dst}\n" for src, dst in edges.tolist())
    (gzip.open if path.suffix == ".gz" else open)(path, "wt").write(text)
    return edges


@pytest.mark.parametrize("name", ["edges.txt", "edges.csv", "edges.tsv.gz"])
@pytest.mark.parametrize("num_edges", [3, 400_000])
def test_an_edge_list_is_estimated_from_a_sample(tmp_path, name, num_edges):
    edges = write_text(tmp_path / name, num_edges, "," if ".csv" in name else " ")
    sizes = input_sizes(tmp_path / name, undirected=True)
    assert sizes.num_listed == pytest.approx(num_edges, rel=0.05 if num_edges > 3 else 0.4)
    assert sizes.num_nodes >= edges.max() * 0.99
    assert sizes.undirected and "of its lines" in sizes.estimated


def test_the_sample_of_an_edge_list_is_taken_as_the_reader_takes_lines(tmp_path):
    """A mark of UTF-8 at the beginning is no part of a name or an id, and # inside a name begins no comment."""
    mark = b"\xef\xbb\xbf"
    (tmp_path / "named.csv").write_bytes(mark + b"src,dst\n0,1\n1,7")
    named = EdgeListOptions(header=True, columns=("src", "dst"))
    sizes = input_sizes(tmp_path / "named.csv", edges=named)
    assert (sizes.num_listed, sizes.least_nodes) == (2, 8)
    (tmp_path / "bare.txt").write_bytes(mark + b"9 1\n1 7\n")
    sizes = input_sizes(tmp_path / "bare.txt")
    assert (sizes.num_listed, sizes.least_nodes) == (2, 10)
    (tmp_path / "names.csv").write_bytes(b"# a comment\na#1,b\na#2,c\n")
    with pytest.raises(NodesUnknownError) as unknown:
        input_sizes(tmp_path / "names.csv", edges=EdgeListOptions(relabel=True))
    assert unknown.value.least.num_nodes == 4


def test_meta_beside_an_edge_list_states_the_nodes(tmp_path):
    write_text(tmp_path / "edges.txt", 100)
    (tmp_path / "meta.json").write_text(json.dumps({"name": "g", "num_nodes": 123456, "undirected": True}))
    sizes = input_sizes(tmp_path, "edgelist")
    assert (sizes.num_nodes, sizes.undirected, sizes.name) == (123456, True, "g")


def test_parquet_beside_meta_tells_its_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files are read with pyarrow, which is not installed")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"source": EDGES[0], "destination": EDGES[1]}), tmp_path / "edges.parquet")
    with pytest.raises(ValueError, match="edges.parquet does not state the number of nodes; pass --num-nodes"):
        input_sizes(tmp_path / "edges.parquet")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "g", "num_nodes": 9, "undirected": False}))
    sizes = input_sizes(tmp_path, "edgelist")
    assert (sizes.num_nodes, sizes.num_edges, sizes.estimated) == (9, 4, "")


def write_columns(path: Path, num_nodes: int) -> None:
    np.save(path / "features.npy", np.zeros((num_nodes, 2), dtype=np.float32))
    np.save(path / "train_idx.npy", np.arange(num_nodes))


def test_columns_beside_an_edge_list_count_its_nodes(tmp_path):
    """More of them are train nodes than ids were seen in the sample."""
    (tmp_path / "edges.txt").write_text("0 1\n")
    write_columns(tmp_path, 5)
    sizes = input_sizes(tmp_path)
    assert (sizes.num_nodes, sizes.splits, sizes.least_nodes) == (5, {"train": 5}, None)
    assert sizes.estimated.startswith("edges of ")
    (tmp_path / "features.npy").unlink()
    sizes = input_sizes(tmp_path)
    assert (sizes.num_nodes, sizes.least_nodes) == (5, 5)
    assert sizes.estimated.startswith("edges and nodes of ")


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("num_edges", [0, 4])
def test_parquet_beside_meta_may_have_more_train_nodes_than_known_ids(tmp_path, relabel, num_edges):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files are read with pyarrow, which is not installed")
    from pyarrow import parquet

    ends = EDGES[:, :num_edges]
    parquet.write_table(pyarrow.table({"source": ends[0], "destination": ends[1]}), tmp_path / "edges.parquet")
    write_columns(tmp_path, 9)
    options = EdgeListOptions(relabel=relabel)
    with pytest.raises(NodesUnknownError, match="does not state the number of nodes") as unknown:
        input_sizes(tmp_path, edges=options)
    assert (unknown.value.least.num_nodes, unknown.value.least.splits) == (9, {"train": 9})
    (tmp_path / "meta.json").write_text(json.dumps({"name": "g", "num_nodes": 9, "undirected": False}))
    sizes = input_sizes(tmp_path, "edgelist", edges=options)
    assert (sizes.num_nodes, sizes.num_edges, sizes.splits) == (9, num_edges, {"train": 9})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_saved_data_tells_its_shapes(tmp_path, dtype):
    data = {"edge_index": torch.tensor(EDGES), "x": torch.zeros(5, 7, dtype=dtype), "y": torch.zeros(5, 3)}
    torch.save({**data, "edge_attr": torch.ones(4, 1)}, tmp_path / "g.pt")
    dim = {"feature_dim": 7, "feature_dtype": "float16" if dtype == torch.float16 else "float32", "num_targets": 3}
    expected = GraphSizes(name="g", num_nodes=5, num_listed=4, undirected=True, weight_dtype="float32", **dim)
    assert input_sizes(tmp_path / "g.pt", undirected=True) == expected
    found = sizes_of(read_graph(tmp_path / "g.pt", options=ReadOptions(undirected=True)))
    assert replace(found, num_classes=None) == expected


def test_a_saved_hetero_data_adds_its_types_up(tmp_path):
    """A type without features, and one that its edges alone count."""
    edges = torch.tensor(EDGES[:, :3])
    stores = {"a": {"x": torch.zeros(4, 2)}, "b": {"num_nodes": 9}, ("a", "to", "b"): {"edge_index": edges}}
    torch.save({**stores, ("b", "to", "a"): {"edge_index": edges}}, tmp_path / "g.pt")
    sizes = input_sizes(tmp_path / "g.pt")
    assert (sizes.num_nodes, sizes.num_listed, sizes.feature_dim, sizes.weight_dtype) == (13, 6, 2, None)
    torch.save({**stores, ("a", "to", "c"): {"edge_index": edges}}, tmp_path / "g.pt")
    with pytest.raises(ValueError, match="number of nodes in .*g.pt is unknown before it is read; pass --num-nodes"):
        input_sizes(tmp_path / "g.pt")
    assert least_sizes(tmp_path / "g.pt").num_nodes == 13


def saved_by_dgl(path: Path, made: object, **options: object) -> Path:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    dgl.save_graphs(str(path), made, **options)
    return path


def make_dgl(typed: bool = False) -> object:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    return dgl_heterograph(dgl, TYPED) if typed else dgl_graph(dgl, draw_graph(weighted=True))


@pytest.mark.parametrize("formats", [None, "coo", "csc", ["coo", "csr", "csc"]], ids=["default", "coo", "csc", "all"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_a_file_of_dgl_tells_its_sizes(tmp_path, formats, dtype):
    """As they are when it has been read; labels of graphs stand before the graph."""
    graph = make_dgl().int() if dtype == torch.int32 else make_dgl()
    path = saved_by_dgl(tmp_path / "g.bin", [graph], formats=formats, labels={"of": torch.arange(4)})
    found = sizes_of(read_graph(path))
    assert input_sizes(path) == replace(found, splits={}, num_classes=None)


def test_a_file_of_dgl_with_several_types_adds_them_up(tmp_path):
    path = saved_by_dgl(tmp_path / "g.bin", [make_dgl(typed=True)])
    assert input_sizes(path) == replace(sizes_of(read_graph(path)), splits={}, num_classes=None)


def test_a_large_file_of_dgl_is_sized_by_its_headers(tmp_path):
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    graph = dgl.graph((torch.zeros(400_000, dtype=torch.int64), torch.arange(400_000)))
    graph.ndata["feat"] = torch.zeros(400_000, 8, dtype=torch.bfloat16)
    path = saved_by_dgl(tmp_path / "g.bin", [graph])
    before = read_bytes()
    sizes = input_sizes(path)
    assert read_bytes() - before < 200_000 < path.stat().st_size // 50
    assert (sizes.num_nodes, sizes.num_edges, sizes.feature_dim, sizes.feature_dtype) == (
        400_000,
        400_000,
        8,
        "float32",
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda held: b"x" + held[1:], "0xdd2e4ff046b4a178 for 0xdd2e4ff046b4a13f at byte 8"),
        (lambda held: held[:20], "its end at byte 20"),
        (lambda held: held[:5000], "expected what dgl.save_graphs of DGL 1.1.3 writes; pass --num-nodes"),
        (lambda held: held[:4096] + b"\xff" * 8 + held[4104:], "a jump to byte -1 of "),
        (lambda held: held[:24] + b"\2" + held[25:], "holds 2 graphs; expected one"),
    ],
    ids=["magic", "empty", "truncated", "place", "two"],
)
def test_a_file_that_dgl_does_not_write_is_refused_and_unknown(tmp_path, damage, message):
    path = saved_by_dgl(tmp_path / "g.bin", [make_dgl()])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        input_sizes(path)
    assert "\n" not in str(caught.value)
    assert least_sizes(path) == UNKNOWN


def test_any_damage_of_a_file_of_dgl_is_met_with_one_line_or_sizes(tmp_path):
    """Words of its headers one after the other."""
    path = saved_by_dgl(tmp_path / "g.bin", [make_dgl()])
    held = path.read_bytes()
    for place in [*range(0, 32, 8), *range(4096, 5600, 16)]:
        path.write_bytes(held[:place] + b"\xfe" * 8 + held[place + 8 :])
        try:
            input_sizes(path)
        except ValueError as error:
            assert str(path) in str(error) or "expected" in str(error)


def test_text_without_edges_is_refused(tmp_path):
    (tmp_path / "edges.txt").write_text("# nothing\n")
    with pytest.raises(ValueError, match="no line 'source destination' in what was sampled; pass --num-nodes"):
        input_sizes(tmp_path / "edges.txt")


def test_the_parts_of_a_list_are_added_up(tmp_path):
    for part in range(3):
        (tmp_path / f"part-0000{part}.csv").write_text(f"0,{part}\n1,{part}\n")
    assert input_sizes(tmp_path, "edgelist").num_listed == 6


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"0 1\n" * 1000, mtime=0)[:-20]])
def test_a_damaged_gzip_is_refused_by_name(tmp_path, content):
    (tmp_path / "edges.txt.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"edges.txt.gz.* (expected gzip data|the gzip data are damaged)"):
        input_sizes(tmp_path / "edges.txt.gz")


def ogb_directory(tmp_path: Path, name: str) -> Path:
    raw = tmp_path / name / "raw"
    raw.mkdir(parents=True)
    return raw


@pytest.mark.parametrize(("name", "directions"), [("ogbn_arxiv", 1), ("ogbn_products", 2)])
def test_a_raw_ogb_directory_tells_its_counts(tmp_path, name, directions):
    raw = ogb_directory(tmp_path, name)
    for file, text in (("num-node-list", "50\n"), ("num-edge-list", "80\n"), ("node-feat", "0.5,1,2\n" * 50)):
        with gzip.open(raw / f"{file}.csv.gz", "wt") as lines:
            lines.write(text)
    sizes = input_sizes(tmp_path / name)
    assert (sizes.num_nodes, sizes.num_edges, sizes.feature_dim) == (50, 80 * directions, 3)


def test_the_binary_ogb_layout_tells_its_headers(tmp_path):
    raw = ogb_directory(tmp_path, "ogbn_papers100M")
    np.savez(raw / "data.npz", edge_index=EDGES, node_feat=np.zeros((4, 9), np.float32), num_nodes_list=np.array([4]))
    sizes = input_sizes(tmp_path / "ogbn_papers100M")
    assert (sizes.num_nodes, sizes.num_edges, sizes.feature_dim, sizes.feature_dtype) == (4, 4, 9, "float32")


def test_damaged_ogb_files_are_refused_by_name(tmp_path):
    raw = ogb_directory(tmp_path, "ogbn_arxiv")
    for name in ("num-node-list", "num-edge-list"):
        (raw / f"{name}.csv.gz").write_bytes(b"50")
    with pytest.raises(ValueError, match=r"num-node-list.csv.gz starts with '50'; expected gzip data"):
        input_sizes(tmp_path / "ogbn_arxiv")
    (raw / "data.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"data.npz is not a readable .npz archive"):
        input_sizes(tmp_path / "ogbn_arxiv")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_nodes": 0}, "num_nodes is 0; expected at least 1"),
        ({"num_listed": -3}, "num_edges is -3; expected at least 0"),
        ({"feature_dim": -1}, "feature_dim is -1; expected at least 0"),
        ({"splits": {"train": 0}}, "the number of train nodes is 0; expected at least 1"),
        ({"splits": {"train": 11}}, "is 11 but the graph has 10 nodes"),
    ],
)
def test_sizes_that_no_graph_has_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        GraphSizes(**{"name": "g", "num_nodes": 10, "num_listed": 20, **given})
