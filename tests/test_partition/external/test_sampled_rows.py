"""Sampled rows: all of them give the exact size of the compressed graph, some of them about it."""

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.generators import rmat
from fastsample_dist.partition.external import sampled_rows
from fastsample_dist.partition.external.sampled_rows import SampledRows
from fastsample_dist.partition.methods.adjacency import symmetrise
from fastsample_dist.partition.methods.compressed import compressed_bytes


def exact(src: np.ndarray, dst: np.ndarray, num_nodes: int, *, undirected: bool) -> int:
    """Of the whole adjacency."""
    if undirected:
        pairs = np.unique(np.sort(np.stack([src, dst]), axis=0), axis=1)
        src, dst = pairs
    graph = CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), num_nodes)
    adjacency = symmetrise(graph, undirected=False)
    owners = np.repeat(np.arange(num_nodes), np.diff(adjacency.indptr))
    return compressed_bytes(owners, adjacency.indices.astype(np.int64), None if undirected else adjacency.weights)


def sampled(src: np.ndarray, dst: np.ndarray, *, undirected: bool) -> int:
    rows = SampledRows(len(src), undirected=undirected)
    for lo in range(0, len(src), 30_000):
        rows.add(src[lo : lo + 30_000], dst[lo : lo + 30_000])
    return rows.compressed_bytes()


def listed(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of an RMAT graph, some twice, some both ways, some loops."""
    graph = rmat(scale, 8, seed=1)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    src = graph.indices.numpy().astype(np.int64)
    loops = np.arange(100)
    src, dst = (
        np.concatenate([src, src[:5000], dst[:3000], loops]),
        np.concatenate([dst, dst[:5000], src[:3000], loops]),
    )
    order = np.random.default_rng(0).permutation(len(src))
    return src[order], dst[order]


@pytest.mark.parametrize("undirected", [False, True])
def test_all_rows_are_exact(undirected):
    src, dst = listed(12)
    assert sampled(src, dst, undirected=undirected) == exact(src, dst, 1 << 12, undirected=undirected)


@pytest.mark.parametrize("undirected", [False, True])
def test_some_rows_are_close(undirected, monkeypatch):
    monkeypatch.setattr(sampled_rows, "SAMPLED_ENTRIES", 1 << 15)
    src, dst = listed(16)
    assert sampled(src, dst, undirected=undirected) == pytest.approx(
        exact(src, dst, 1 << 16, undirected=undirected), rel=0.1
    )


def test_a_hub_takes_no_more_memory_than_other_rows_and_makes_the_graph_no_larger(monkeypatch):
    monkeypatch.setattr(sampled_rows, "SAMPLED_ENTRIES", 1 << 12)
    dst = np.arange(1, 200_000)
    src = np.zeros_like(dst)  # the hash of node 0 is below any threshold
    rows = SampledRows(len(src), undirected=True)
    rows.add(src, dst)
    assert sum(len(nodes) for nodes, _ in rows._picked) <= 2 << 12
    assert rows.compressed_bytes() <= exact(src, dst, 200_000, undirected=True)


def test_no_edges_take_nothing():
    assert SampledRows(0, undirected=False).compressed_bytes() == 0
