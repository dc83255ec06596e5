"""partition_graph of a CSCGraph: the files that its unrolled and sorted edge list gives, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.write import build

NUM_NODES = 60  # the last 10 have no edge
EXACT = [name for name in METHODS if name != "kaminpar"]  # which is not repeatable
SPLITS = {"train": np.arange(0, 60, 2), "val": np.arange(1, 20, 2)}
COLUMNS = {"features": np.arange(180, dtype=np.float32).reshape(60, 3), "labels": np.arange(60) % 4, "splits": SPLITS}


def drawn(*, mirrored: bool = False, weighted: bool = False, ordered: bool = True) -> fsd.CSCGraph:
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, NUM_NODES - 10, (2, 500))  # some are parallel, some are self-loops
    if mirrored:
        keys = np.unique(np.concatenate([src * NUM_NODES + dst, dst * NUM_NODES + src]))
        dst, src = np.divmod(keys, NUM_NODES)
    weights = torch.from_numpy(rng.choice([0.5, 1.5, 2.0], len(src))) if weighted else None
    graph = fsd.CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), NUM_NODES, weights)
    if not ordered:
        lo, hi = graph.indptr[7:9].tolist()
        graph.indices[lo:hi] = graph.indices[lo:hi].flip(0)
    return graph


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def both_ways(graph: fsd.CSCGraph, directory: Path, **options) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of the graph as it is, and of its edges one after another."""
    dst = torch.repeat_interleave(torch.arange(NUM_NODES, dtype=graph.indices.dtype), graph.in_degrees())
    options = {"num_parts": 3, "method": "random", "seed": 4, **COLUMNS, **options}
    listed = {"num_nodes": NUM_NODES, "edge_weight": graph.weights, **options}
    fsd.partition_graph(graph, output=directory / "rows", **options)
    fsd.partition_graph(torch.stack([graph.indices, dst]), output=directory / "list", **listed)
    return contents(directory / "rows"), contents(directory / "list")


@pytest.mark.parametrize("mirrored", [False, True], ids=["directed", "undirected"])
@pytest.mark.parametrize("method", EXACT)
def test_every_method(method, mirrored, tmp_path):
    if METHODS[method].missing():
        pytest.skip(METHODS[method].missing())
    options = {"method": method, "undirected": mirrored}
    if method == "file":
        np.save(tmp_path / "mine.npy", np.arange(NUM_NODES) % 3)
        options["assignment"] = tmp_path / "mine.npy"
    rows, listed = both_ways(drawn(mirrored=mirrored), tmp_path, **options)
    assert rows == listed and "topology/indices.npy" in rows


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_weights_edge_map_and_order(ordered, mirrored, undirected, on_disk, tmp_path):
    graph = drawn(mirrored=mirrored, weighted=True, ordered=ordered)
    rows, listed = both_ways(graph, tmp_path, undirected=undirected, on_disk=on_disk, edge_map=True)
    assert rows == listed and {"topology/weights.npy", "topology/edge_map.npy"} <= rows.keys()


def test_rows_are_neither_unrolled_nor_sorted(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("an edge list was made or sorted")

    graph = drawn(mirrored=True, weighted=True)
    monkeypatch.setattr("fastsample_dist.graph.datasets.RawGraph.to_csc", refuse)
    monkeypatch.setattr(build, "build_stored", refuse)
    monkeypatch.setattr("fastsample_dist.partition.plan.memory.SMALL_EDGES", 10)  # a list of so many is sorted on disk
    for undirected in (False, True):
        fsd.partition_graph(
            graph, num_parts=2, method="random", undirected=undirected, output=tmp_path / f"{undirected}"
        )


def test_many_edges_without_reverses_are_sorted_on_disk(tmp_path, monkeypatch):
    sorted_on_disk, build_stored = [], build.build_stored
    monkeypatch.setattr("fastsample_dist.partition.plan.memory.SMALL_EDGES", 10)
    monkeypatch.setattr(
        build, "build_stored", lambda *args, **key: sorted_on_disk.append(1) or build_stored(*args, **key)
    )
    rows, listed = both_ways(drawn(), tmp_path, undirected=True)
    assert rows == listed and len(sorted_on_disk) == 2


@pytest.mark.parametrize(
    "indptr, message",
    [([0, 1, 2], "indices holds node ids from 1 to 2; expected 0 to 1"), ([0, 3, 2], "indptr decreases at node 1")],
)
def test_arrays_that_are_no_rows_are_refused(indptr, message, tmp_path):
    graph = fsd.CSCGraph(np.array(indptr), np.array([1, 2]))
    with pytest.raises(ValueError, match=message):
        fsd.partition_graph(graph, num_parts=1, method="range", output=tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []
