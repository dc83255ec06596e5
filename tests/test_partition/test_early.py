"""What sizes and names alone show to be impossible is refused before any of the data are read."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, least_sizes
from fastsample_dist.graph.inputs.text_edges import TextEdges
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.memory_sizes import resident_bytes
from fastsample_dist.partition import api, cli
from fastsample_dist.partition.write import build, checks
from fastsample_dist.partition.write import disk_space as disk
from fastsample_dist.partition.write.build import PartitionOptions
from tests.graph.inputs.layouts import draw_graph, write_chunked, write_graphbolt, write_npy, write_ogb, write_pyg
from tests.test_partition.inputs import draw_raw, write_input

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

META = {"name": "many", "num_nodes": 50_000_000, "undirected": False}
ENOUGH = 2_500_000  # edges with which so high an id is no gap


def write_npy_huge(path: Path) -> Path:
    """50 million nodes by meta.json, 4 edges."""
    path.mkdir()
    (path / "meta.json").write_text(json.dumps(META))
    np.save(path / "edge_index.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 0]]))
    return path


def write_list_with_meta(path: Path) -> Path:
    path.mkdir()
    (path / "meta.json").write_text(json.dumps(META))
    (path / "edges.csv").write_text("0,1\n1,2\n")
    return path


def write_list(path: Path) -> Path:
    path = path.with_suffix(".txt")
    path.write_text("49999999 2\n" + "0 1\n" * (ENOUGH + ENOUGH // 10))  # they are estimated
    return path


def write_parquet(path: Path) -> Path:
    path.mkdir()
    (path / "meta.json").write_text(json.dumps(META))
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 2]}), path / "edges.parquet")
    return path


def write_parquet_alone(path: Path) -> Path:
    """Its footer has the highest id."""
    source = np.zeros(ENOUGH, dtype=np.int64)
    source[1] = 49_999_999
    pq.write_table(pa.table({"src": source, "dst": np.ones(ENOUGH, dtype=np.int64)}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_names_with_meta(path: Path) -> Path:
    path = write_list_with_meta(path)
    (path / "edges.csv").write_text("ann,bob\nbob,eve\n")
    return path


def write_huge_columns(path: Path) -> Path:
    """Features for 50 million nodes, most of them a hole in the file."""
    path.mkdir()
    with (path / "features.npy").open("wb") as file:
        header = {"descr": "|i1", "fortran_order": False, "shape": (META["num_nodes"], 1)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + META["num_nodes"])
    return path


def write_names_beside_features(path: Path) -> Path:
    (write_huge_columns(path) / "edges.csv").write_text("ann,bob\nbob,eve\n")
    return path


def write_named_parquet_beside_features(path: Path) -> Path:
    pq.write_table(pa.table({"src": ["ann", "bob"], "dst": ["bob", "eve"]}), write_huge_columns(path) / "e.parquet")
    return path


def write_pickle(path: Path) -> Path:
    """A Data that states its nodes."""
    return save_data(path, num_nodes=META["num_nodes"])


def write_pickle_with_features(path: Path) -> Path:
    """One whose features count them; the file is read by shapes alone."""
    return save_data(path, x=torch.zeros(1, dtype=torch.int8).expand(META["num_nodes"], 1))


def save_data(path: Path, **columns: object) -> Path:
    path = path.with_suffix(".pt")
    torch.save({"edge_index": torch.tensor([[0, 1], [1, 2]]), **columns}, path)
    return path


def write_chunked_huge(path: Path) -> Path:
    file = write_chunked(path, draw_graph()) / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_nodes_per_type": [META["num_nodes"]]}))
    return path


def write_graphbolt_huge(path: Path) -> Path:
    yaml = pytest.importorskip("yaml", reason="GraphBolt's metadata are read with pyyaml, which is not installed")
    file = write_graphbolt(path, draw_graph()) / "metadata.yaml"
    meta = yaml.safe_load(file.read_text())
    meta["graph"]["nodes"][0]["num"] = META["num_nodes"]
    file.write_text(yaml.safe_dump(meta))
    return path


def write_dgl_huge(path: Path) -> Path:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    dgl.save_graphs(str(path.with_suffix(".bin")), [dgl_huge()])
    return path.with_suffix(".bin")


def dgl_huge(num_nodes: int = META["num_nodes"], edges: np.ndarray | None = None) -> object:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    ends = np.array([[0, 1], [1, 2]]) if edges is None else edges
    return dgl.graph(tuple(torch.from_numpy(ends)), num_nodes=num_nodes)


def pyg_huge(num_nodes: int | None = META["num_nodes"], edges: np.ndarray | None = None) -> object:
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    ends = np.array([[0, 1], [1, 2]]) if edges is None else edges
    return data.Data(edge_index=torch.from_numpy(ends), num_nodes=num_nodes)


def pyg_typed_huge() -> object:
    """A quarter by the features of one type, the rest stated."""
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed").HeteroData()
    quarter = META["num_nodes"] // 4
    data["a"].x = torch.zeros(1, dtype=torch.int8).expand(quarter, 1)
    data["b"].num_nodes = 3 * quarter
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


NAMED = [write_names_with_meta, write_names_beside_features, write_named_parquet_beside_features]  # to be relabelled
HUGE = [write_parquet_alone, write_pickle, write_pickle_with_features, write_dgl_huge, *NAMED]
HUGE += [write_chunked_huge, write_graphbolt_huge, write_npy_huge, write_list_with_meta, write_list, write_parquet]
FORMATS = [write_input, lambda path: write_ogb(path, draw_graph()), lambda path: write_chunked(path, draw_graph())]
FORMATS.append(lambda path: write_pyg(path.with_suffix(".pt"), draw_graph()))


WIDE = [write_npy, lambda path, graph: write_pyg(path.with_suffix(".pt"), graph)]
WIDE_GRAPH = dataclasses.replace(draw_graph(), features=draw_graph().features.astype("int64"))
WIDE_REFUSED = "are int64, of which no batch can be made; pass --feature-dtype float32"


@pytest.fixture
def unread(monkeypatch):
    """Reading an input fails the test."""
    monkeypatch.setattr(cli, "read_graph", lambda *given: pytest.fail("the input was read"))


def refused(capsys, *argv: object) -> str:
    assert cli.main([str(item) for item in argv]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def arguments(graph: Path, output: Path, *more: object) -> list[object]:
    return ["--input", graph, "--num-parts", 3, "--output", output, "--method", "random", *more]


@pytest.mark.parametrize("write", HUGE)
def test_limit_too_low_for_the_nodes_is_refused_unread(tmp_path, capsys, unread, write):
    graph = write(tmp_path / "graph")
    options = ["--memory-limit", "1GB", *(["--relabel"] if write in NAMED else [])]
    line = refused(capsys, *arguments(graph, tmp_path / "parts", *options))
    nodes = int(re.search(r"the memory limit is 1GB but (\d+) nodes take at least", line)[1])
    assert 0.99 * 50_000_000 <= nodes <= 50_000_000
    assert "pass --memory-limit " in line
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("name, name_bytes", [("n" * 60, 60), ('"1234567890123"', 8)])
def test_names_that_do_not_fit_are_refused_unread(tmp_path, capsys, unread, name, name_bytes):
    graph, num_names = tmp_path / "graph", META["num_nodes"]
    graph.mkdir()
    (graph / "edges.txt").write_text(f"{name} 7\n")
    (graph / "meta.json").write_text(json.dumps(META))
    limit = f"{resident_bytes() // 10**6 + 1050}MB"  # enough for the arrays with an entry per node
    line = refused(capsys, *arguments(graph, tmp_path / "parts", "--relabel", "--memory-limit", limit))
    assert f"--relabel sorts {num_names} names of {name_bytes} bytes or more" in line
    assert "pass --memory-limit " in line and list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("write", FORMATS)
def test_limit_below_the_program_itself_is_refused_unread_in_any_format(tmp_path, capsys, unread, write):
    graph = write(tmp_path / "graph")
    assert "the memory limit is 5MB but" in refused(
        capsys, *arguments(graph, tmp_path / "parts", "--memory-limit", "5MB")
    )
    assert list(tmp_path.iterdir()) == [graph]


def test_a_method_that_holds_the_graph_is_refused_unread(tmp_path, capsys, unread):
    graph = write_npy_huge(tmp_path / "graph")
    argv = arguments(graph, tmp_path / "parts", "--memory-limit", "1GB", "--method", "metis")
    assert "method metis holds the whole graph in memory" in refused(capsys, *argv)


NUM_EDGES = 300_000  # 2.4 MB of topology at least


@pytest.mark.parametrize("write", WIDE, ids=["npy", "pyg"])
def test_features_of_which_no_batch_can_be_made_are_refused_unread(tmp_path, capsys, unread, write):
    path = write(tmp_path / "graph", WIDE_GRAPH)
    for argv in (arguments(path, tmp_path / "parts"), ["--plan", "--input", path, "--num-parts", 2]):
        assert WIDE_REFUSED in refused(capsys, *argv)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [write_chunked, write_graphbolt])
def test_features_of_which_no_batch_can_be_made_are_refused_uncut(tmp_path, capsys, monkeypatch, write):
    if write is write_graphbolt:
        pytest.importorskip("yaml", reason="GraphBolt's metadata are read with pyyaml, which is not installed")
    monkeypatch.setattr(RawGraph, "to_csc", lambda *given, **options: pytest.fail("the graph was cut"))
    path = write(tmp_path / "graph", WIDE_GRAPH)
    assert WIDE_REFUSED in refused(capsys, *arguments(path, tmp_path / "parts"))
    assert list(tmp_path.iterdir()) == [path]


def many_edges() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50, (2, NUM_EDGES))


def parquet_of_names(path: Path) -> Path:
    source, destination = many_edges().astype("U")
    pq.write_table(pa.table({"src": source, "dst": destination}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def text_of_names(path: Path) -> Path:
    lines = (f"n{source},n{destination}\n" for source, destination in many_edges().T.tolist())
    path.with_suffix(".csv").write_text("from,to\n" + "".join(lines))
    return path.with_suffix(".csv")


def dgl_of_edges(path: Path) -> Path:
    dgl = pytest.importorskip("dgl", reason="dgl is not installed")
    dgl.save_graphs(str(path.with_suffix(".bin")), [dgl_huge(50, many_edges())])
    return path.with_suffix(".bin")


def pickle_of_edges(path: Path) -> Path:
    torch.save({"edge_index": torch.from_numpy(many_edges())}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


@pytest.mark.parametrize(
    ("write", "options", "least_bytes"),
    [
        (parquet_of_names, ["--relabel"], 4 * NUM_EDGES),
        (text_of_names, ["--relabel", "--header"], 2 * NUM_EDGES),  # the lines are estimated: half of them are certain
        (pickle_of_edges, [], 4 * NUM_EDGES),
        (dgl_of_edges, [], 4 * NUM_EDGES),
    ],
)
def test_edges_whose_nodes_are_not_counted_yet_need_a_disk_and_memory(
    tmp_path, capsys, unread, monkeypatch, write, options, least_bytes
):
    """What their number alone takes: of the output, and of a method that holds them."""
    graph = write(tmp_path / "graph")
    argv = arguments(graph, tmp_path / "parts", *options)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "free_bytes", lambda directory: 1000)
        needed = re.search(r"takes ([\d,]+) bytes of disk while it is made but 1,000 are free", refused(capsys, *argv))
        assert int(needed[1].replace(",", "")) >= least_bytes
    monkeypatch.setattr(checks, "resident_bytes", lambda: 0)
    line = refused(capsys, *argv, "--method", "metis", "--memory-limit", "40MB")
    assert "method metis holds the whole graph in memory" in line and "the memory limit is 40MB" in line
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize(
    ("names", "least"),
    [("7 07\n07 007\n", 1), ('"a" b\nb "b"\n', 2), ("1 2\n2 1\n", 2)],
    ids=["zeros", "quotes", "plain"],
)
def test_names_that_may_be_one_are_counted_once(tmp_path, names, least):
    """7 and 007 are one where all names are integers."""
    graph = tmp_path / "edges.txt"
    graph.write_text(names)
    assert least_sizes(graph, None, ReadOptions(edges=EdgeListOptions(relabel=True))).num_nodes == least
    argv = ["--input", graph, "--relabel", "--method", "random", "--num-parts", 1, "--output", tmp_path / "parts"]
    assert cli.main([str(item) for item in argv]) == 0
    assert read_manifest(tmp_path / "parts").num_nodes >= least


def test_a_saved_graph_whose_tensors_are_not_mapped_is_not_read_twice(tmp_path):
    edges = torch.tensor([[0, 1], [1, 2]])
    torch.save({"edge_index": edges, "num_nodes": 9}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"edge_index": edges, "num_nodes": 9, "text": "x" * (1 << 24)}, tmp_path / "long.pt")
    torch.save({"edge_index": edges, "num_nodes": 9}, tmp_path / "new.pt")
    nodes = [least_sizes(tmp_path / f"{name}.pt").num_nodes for name in ("old", "long", "new")]
    assert nodes == [1, 1, 9]


def test_columns_and_task_beside_an_edge_list_are_checked_before_it_is_read(tmp_path, capsys, monkeypatch):
    graph = write_list_with_meta(tmp_path / "graph")
    monkeypatch.setattr(TextEdges, "chunks", lambda edges: pytest.fail("the list was read"))
    (graph / "labels.npy").write_bytes(b"not an array at all")
    assert "labels.npy is not a readable .npy file" in refused(capsys, *arguments(graph, tmp_path / "parts"))
    (graph / "labels.npy").unlink()
    np.save(graph / "edge_weight.npy", np.ones(2))
    (graph / "edges.csv").write_text("0,1,5\n1,2,5\n")
    line = refused(capsys, *arguments(graph, tmp_path / "parts", "--weight-column", "3"))
    assert "has edge_weight.npy and a column weight in edges.csv; expected one of them" in line


def test_a_full_disk_is_refused_unread(tmp_path, capsys, unread, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda directory: 1000)
    graph = write_input(tmp_path / "graph")
    assert "but 1,000 are free in" in refused(capsys, *arguments(graph, tmp_path / "parts"))


NAMES = {
    "parts beyond nodes": (["--num-parts", 61], "num_parts is 61 but the graph has 60 nodes"),
    "parts beyond train nodes": (["--num-parts", 24], "num_parts is 24 but drawn has 23 train nodes"),
    "unknown method": (["--method", "spectral"], "invalid choice: 'spectral'"),
    "no assignment file": (["--method", "file", "--assignment", "nowhere.npy"], "nowhere.npy is missing"),
    "no assignment": (["--method", "file"], "method file and an assignment go together"),
    "a report that cannot be written": (["--json", "nowhere/report.json"], "--json nowhere/report.json"),
    "a limit that is none": (["--memory-limit", "much"], "is not a size"),
    "feature type": (["--feature-dtype", "int3"], "invalid choice: 'int3'"),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_and_numbers_are_checked_unread(tmp_path, capsys, unread, case):
    more, message = NAMES[case]
    graph = write_input(tmp_path / "graph")
    assert message in refused(capsys, *arguments(graph, tmp_path / "parts", *more))
    assert list(tmp_path.iterdir()) == [graph]


def test_an_output_that_exists_is_refused_unread(tmp_path, capsys, unread):
    graph = write_input(tmp_path / "graph")
    assert "exists; pass --overwrite" in refused(capsys, *arguments(graph, graph))


@pytest.mark.parametrize("method", ["metis", "kaminpar"])
def test_a_method_whose_package_is_missing_is_refused_unread(tmp_path, capsys, unread, monkeypatch, method):
    monkeypatch.setattr("fastsample_dist.partition.methods.libmetis.load", lambda: None)
    for package in ("pymetis", "kaminpar"):
        monkeypatch.setitem(sys.modules, package, None)
    graph = write_input(tmp_path / "graph")
    line = refused(capsys, *arguments(graph, tmp_path / "parts", "--method", method))
    assert f"method {method} needs" in line and "pip install" in line


def test_an_estimate_refuses_nothing_that_fits(tmp_path):
    """Few sampled lines: the estimated nodes are half as many again as there are."""
    (tmp_path / "edges.txt").write_text("0 2\n")
    assert cli.main([str(item) for item in arguments(tmp_path / "edges.txt", tmp_path / "parts")]) == 0


def test_a_graph_in_memory_is_refused_before_a_pass_over_it(tmp_path, monkeypatch):
    raw = dataclasses.replace(draw_raw(undirected=False), num_nodes=50_000_000, features=None, labels=None, splits={})
    monkeypatch.setattr(RawGraph, "to_csc", lambda graph: pytest.fail("the edges were read"))
    monkeypatch.setattr(build, "fingerprint", lambda array: pytest.fail("the edges were read"))
    for options, message in (
        ({"memory_limit": 10**9}, "the memory limit is 1GB but 50000000 nodes take at least"),
        ({"memory_limit": 10**9, "on_disk": True}, "the memory limit is 1GB but 50000000 nodes take at least"),
    ):
        with pytest.raises(ValueError, match=message):
            build.build_partition(raw, PartitionOptions(num_parts=2, method="random", **options), tmp_path / "parts")
    monkeypatch.setattr(disk, "free_bytes", lambda directory: 1000)
    for on_disk in (False, True):
        with pytest.raises(ValueError, match="but 1,000 are free"):
            options = PartitionOptions(num_parts=2, method="random", on_disk=on_disk)
            build.build_partition(raw, options, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("as_csc", [False, True])
def test_the_python_call_refuses_before_it_reads(tmp_path, monkeypatch, as_csc):
    raw = draw_raw(undirected=False)
    graph = raw.to_csc() if as_csc else raw.edge_index
    columns = {"features": raw.features, "labels": raw.labels, "splits": raw.splits}
    monkeypatch.setattr(api, "checked_graph", lambda *given, **named: pytest.fail("the arrays were read"))
    monkeypatch.setattr(CSCGraph, "in_degrees", lambda graph: pytest.fail("the graph was read"))
    (tmp_path / "there").mkdir()
    for more, message in (
        ({"num_parts": 61}, "num_parts is 61 but the graph has 60 nodes"),
        ({"num_parts": 24}, "num_parts is 24 but graph has 23 train nodes"),
        ({"memory_limit": "5MB"}, "the memory limit is 5MB but 60 nodes take at least"),
        ({"output": tmp_path / "there"}, "there exists"),
        ({"method": "file", "assignment": "nowhere.npy"}, "nowhere.npy is missing"),
    ):
        given = {"num_parts": 2, "method": "random", "output": tmp_path / "parts", **more}
        with pytest.raises(ValueError, match=message):
            fsd.partition_graph(graph, **columns, **given)


LIBRARY = [dgl_huge, pyg_huge, pyg_typed_huge]


@pytest.fixture
def unpassed(monkeypatch):
    """A pass over an object of another library fails the test."""
    monkeypatch.setattr(api, "_library_graph", lambda *given: pytest.fail("the graph was read"))


@pytest.mark.parametrize("make", LIBRARY)
def test_an_object_of_another_library_is_refused_before_a_pass_over_it(tmp_path, unpassed, monkeypatch, make):
    graph, how = make(), {"num_parts": 2, "method": "random", "output": tmp_path / "parts"}
    with pytest.raises(ValueError, match="the memory limit is 1GB but 50000000 nodes take at least"):
        fsd.partition_graph(graph, **how, memory_limit="1GB")
    with pytest.raises(ValueError, match="num_parts is 50000001 but the graph has 50000000 nodes"):
        fsd.partition_graph(graph, **{**how, "num_parts": 50_000_001})
    with pytest.raises(ValueError, match="num_parts is 3 but mine has 2 train nodes"):
        fsd.partition_graph(graph, **{**how, "num_parts": 3}, splits={"train": np.arange(2)}, name="mine")
    monkeypatch.setattr(disk, "free_bytes", lambda directory: 1000)
    with pytest.raises(ValueError, match="but 1,000 are free"):
        fsd.partition_graph(graph, **how)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [dgl_huge, pyg_huge])
def test_the_edges_of_an_object_of_another_library_need_memory(tmp_path, unpassed, monkeypatch, make):
    monkeypatch.setattr(checks, "resident_bytes", lambda: 0)
    how = {"method": "metis", "num_parts": 2, "memory_limit": "40MB", "output": tmp_path / "parts"}
    with pytest.raises(
        ValueError, match="method metis holds the whole graph in memory.* for 50 nodes and 300000 edges"
    ):
        fsd.partition_graph(make(50, many_edges()), **how)


def test_features_and_nodes_that_are_passed_beside_a_data_of_edges_count(tmp_path, unpassed):
    how = {"num_parts": 8, "method": "random", "output": tmp_path / "parts"}
    for given in ({"num_nodes": 7}, {"features": np.ones((7, 2), dtype=np.float32)}):
        with pytest.raises(ValueError, match="num_parts is 8 but the graph has 7 nodes"):
            fsd.partition_graph(pyg_huge(num_nodes=None), **how, **given)


def test_arrays_without_a_node_count_are_refused_by_the_limit(tmp_path):
    edges = np.array([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="the memory limit is 5MB but"):
        fsd.partition_graph(edges, num_parts=2, method="random", memory_limit="5MB", output=tmp_path / "parts")
