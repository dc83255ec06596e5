"""Rows of a graph in the place of an edge list: the topology that unrolling and sorting them gives."""

import itertools

import numpy as np
import pytest
import torch

from fastsample_dist.graph import listed_rows
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.listed_rows import ListedRows

NUM_NODES = 40  # the last 5 have no edge


def drawn(seed: int, *, mirrored: bool, ordered: bool, ids=torch.int32, weights=None, num_edges: int = 300) -> CSCGraph:
    """A graph with self-loops; mirrored: each edge and its reverse once; else with parallel edges."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, NUM_NODES - 5, (2, num_edges))
    if mirrored:
        keys = np.unique(np.concatenate([src * NUM_NODES + dst, dst * NUM_NODES + src]))
        dst, src = np.divmod(keys, NUM_NODES)
    found = rng.choice([0.0, 0.5, 1.25], len(src)).astype(weights) if weights else None
    order = (
        np.argsort(dst, kind="stable")
        if ordered is False
        else np.lexsort((*([] if found is None else [found]), src, dst))
    )
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=NUM_NODES))])
    return CSCGraph(indptr, torch.from_numpy(src[order]).to(ids), None if found is None else found[order])


def raw_of(graph: CSCGraph, *, undirected: bool, unrolled: bool) -> RawGraph:
    edges = ListedRows(graph)
    if unrolled:
        destinations = np.repeat(np.arange(NUM_NODES), np.diff(graph.indptr.numpy()))
        edges = np.stack([graph.indices.numpy(), destinations.astype(graph.indices.numpy().dtype)])
    weights = None if graph.weights is None else graph.weights.numpy()
    return RawGraph(name="drawn", num_nodes=NUM_NODES, undirected=undirected, edge_index=edges, edge_weight=weights)


def equal(found: CSCGraph, expected: CSCGraph) -> bool:
    for name in ("indptr", "indices", "weights", "edge_map"):
        one, other = getattr(found, name), getattr(expected, name)
        if one is None or other is None:
            if one is not other:
                return False
        elif one.dtype != other.dtype or not torch.equal(one, other):
            return False
    return True


CASES = list(itertools.product([False, True], [False, True], [torch.int32, torch.int64], [None, "float32", "float64"]))


@pytest.mark.parametrize("edge_map", [False, True])
@pytest.mark.parametrize("ordered, mirrored, ids, weights", CASES)
def test_same_topology_as_of_the_unrolled_list(ordered, mirrored, ids, weights, edge_map, monkeypatch):
    monkeypatch.setattr("fastsample_dist.graph.npy_files.CHUNK_BYTES", 32 * 7)  # chunks end inside rows
    for seed in range(5):
        graph = drawn(seed, mirrored=mirrored, ordered=ordered, ids=ids, weights=weights)
        kept = [None if column is None else column.clone() for column in (graph.indices, graph.weights)]
        for undirected in (False, True):
            listed = raw_of(graph, undirected=undirected, unrolled=True).to_csc(edge_map=edge_map)
            given = raw_of(graph, undirected=undirected, unrolled=False)
            rows = given.rows_as_given(edge_map=edge_map)
            assert (rows is None) == (undirected and not mirrored)
            assert equal(rows or given.to_csc(edge_map=edge_map), listed)
        for before, after in zip(kept, (graph.indices, graph.weights), strict=True):
            assert before is None or torch.equal(before, after), "the graph that was given is changed"


def test_rows_in_order_are_the_very_arrays():
    graph = drawn(0, mirrored=True, ordered=True, weights="float32")
    for undirected in (False, True):
        rows = raw_of(graph, undirected=undirected, unrolled=False).rows_as_given()
        assert rows.indptr.data_ptr() == graph.indptr.data_ptr()
        assert rows.indices.data_ptr() == graph.indices.data_ptr()
        assert undirected or rows.weights.data_ptr() == graph.weights.data_ptr()


def test_rows_out_of_order_alone_are_sorted(monkeypatch):
    graph = drawn(1, mirrored=False, ordered=True)
    row = int(graph.in_degrees().argmax())
    lo, hi = graph.indptr[row : row + 2].tolist()
    graph.indices[lo:hi] = graph.indices[lo:hi].flip(0)
    sorted_rows, sort = [], listed_rows._with_sorted_rows
    monkeypatch.setattr(listed_rows, "_with_sorted_rows", lambda *args: sorted_rows.append(args[2]) or sort(*args))
    raw_of(graph, undirected=False, unrolled=False).rows_as_given()
    assert [rows.tolist() for rows in sorted_rows] == [[row]]


@pytest.mark.parametrize("undirected", [False, True])
def test_graphs_without_edges(undirected):
    graph = CSCGraph(np.zeros(NUM_NODES + 1, np.int64), np.empty(0, np.int32))
    given = raw_of(graph, undirected=undirected, unrolled=False)
    assert equal(given.rows_as_given(edge_map=True), given.to_csc(edge_map=True))


def test_a_list_is_no_rows():
    assert raw_of(drawn(0, mirrored=True, ordered=True), undirected=False, unrolled=True).rows_as_given() is None


def test_pieces_are_those_of_the_list():
    graph = drawn(3, mirrored=False, ordered=False)
    expected = raw_of(graph, undirected=False, unrolled=True).edge_index
    for row, listed in zip(ListedRows(graph), expected, strict=True):
        assert len(row) == len(listed) and np.array_equal(np.asarray(row), listed)
        for lo, hi in ((0, 1), (7, 7), (11, 200), (299, 300), (250, 999)):
            assert np.array_equal(row[lo:hi], listed[lo:hi]) and row[lo:hi].dtype == listed.dtype
