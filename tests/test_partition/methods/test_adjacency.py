"""The partitioner's view of a topology against pairs counted one by one."""

from collections import Counter

import numpy as np
import pytest

from fastsample_dist.graph.csc import row_positions
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.methods import adjacency
from fastsample_dist.partition.methods.adjacency import edge_chunks, estimate_neighbours, rows_of, symmetrise
from tests.optional import given, settings, st
from tests.test_partition.inputs import listed_edges

EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30)


def raw_graph(edges: list[tuple[int, int]], undirected: bool) -> RawGraph:
    edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return RawGraph(name="drawn", num_nodes=6, undirected=undirected, edge_index=edge_index)


@pytest.mark.parametrize("undirected", [False, True])
@settings(deadline=None, max_examples=50)
@given(edges=EDGES, chunk_edges=st.sampled_from([1, 3, 1 << 22]))
def test_pairs_and_their_weights(undirected, edges, chunk_edges):
    raw = raw_graph(edges, undirected)
    pairs = Counter()
    for src, dst in listed_edges(raw):
        if src != dst:
            pairs.update([(src, dst), (dst, src)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency, "CHUNK_EDGES", chunk_edges)
        found = symmetrise(raw.to_csc(), undirected=undirected)
    weights = np.ones(len(found.indices), dtype=int) if found.weights is None else found.weights
    rows = np.repeat(np.arange(6), np.diff(found.indptr))
    scale = 1 if found.weights is not None or not pairs else next(iter(pairs.values()))
    stored = list(zip(rows.tolist(), found.indices.tolist(), strict=True))
    assert len(set(stored)) == len(stored)
    assert dict(zip(stored, (weights * scale).tolist(), strict=True)) == dict(pairs)


def test_uneven_weights_are_kept():
    found = symmetrise(raw_graph([(0, 1), (1, 0), (0, 2)], False).to_csc(), undirected=False)
    assert found.weights.tolist() == [2, 1, 2, 1]  # rows 0: 1, 2; 1: 0; 2: 0


def test_undirected_without_loops_copies_nothing():
    graph = raw_graph([(0, 1), (1, 2)], True).to_csc()
    assert np.shares_memory(symmetrise(graph, undirected=True).indices, graph.indices.numpy())


def test_rows_are_the_stored_ones():
    graph = raw_graph([(0, 1), (1, 2), (2, 2)], False).to_csc()
    rows = rows_of(graph, undirected=False)
    assert not rows.symmetric and rows.num_nodes == 6
    assert np.shares_memory(rows.indices, graph.indices.numpy())
    assert rows.indices.tolist() == [0, 1, 2]


def test_row_positions_follow_the_rows_asked_for():
    positions, owner = row_positions(np.array([0, 2, 2, 5]), np.array([2, 1, 0, 2]))
    assert positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert owner.tolist() == [0, 0, 0, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("degrees", [[], [0], [0, 0, 0], [1, 9, 0, 0, 2, 3, 0], [4] * 10, [0, 25, 0]])
def test_edge_chunks_cover_all_rows_in_order(degrees, monkeypatch):
    monkeypatch.setattr(adjacency, "CHUNK_EDGES", 5)
    chunks = edge_chunks(np.array(degrees, dtype=np.int64))
    assert [row for lo, hi in chunks for row in range(lo, hi)] == list(range(len(degrees)))


def test_edge_chunks_are_small(monkeypatch):
    monkeypatch.setattr(adjacency, "CHUNK_EDGES", 5)
    degrees = np.random.default_rng(0).integers(0, 4, 200)
    assert max(degrees[lo:hi].sum() for lo, hi in edge_chunks(degrees)) <= 5 + degrees.max()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_neighbours_are_estimated_by_the_share_of_edges_listed_both_ways(share):
    """Ring edges in one direction; of some of them the reverse is listed too."""
    nodes = np.arange(5000)
    edges = np.stack([nodes, (nodes + 1) % len(nodes)])
    reversed_too = edges[::-1, np.random.default_rng(1).random(len(nodes)) < share]
    edge_index = np.concatenate([edges, reversed_too], axis=1)
    raw = RawGraph(name="ring", num_nodes=len(nodes), undirected=False, edge_index=edge_index)
    graph = raw.to_csc()
    exact = len(symmetrise(graph, undirected=False).indices)
    assert estimate_neighbours(graph, undirected=False) == pytest.approx(exact, rel=0.03 if share == 0.3 else 1e-9)
    assert estimate_neighbours(graph, undirected=True) == graph.num_edges


def test_a_graph_without_edges_has_no_neighbours():
    assert estimate_neighbours(raw_graph([], False).to_csc(), undirected=False) == 0
