"""Requests for the tests of partitioning methods: drawn graphs, and graphs that are awkward to cut."""

import numpy as np

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.methods import METHODS, PartitionRequest
from tests.test_partition.inputs import draw_raw

METIS_FREE = ["ldg", "fennel", "random", "range"]
GRAPH_METHODS = ["metis", "kaminpar", "stream", "ldg", "fennel"]


def request_of(raw: RawGraph, num_parts: int, seed: int = 0, **fields: object) -> PartitionRequest:
    return PartitionRequest(
        graph=raw.to_csc(), undirected=raw.undirected, num_parts=num_parts, seed=seed, splits=raw.splits, **fields
    )


def drawn(num_parts: int = 4, *, undirected: bool = True, num_nodes: int = 400, num_train: int = 120, seed: int = 0):
    raw = draw_raw(undirected=undirected, num_nodes=num_nodes, num_train=num_train)
    return request_of(raw, num_parts, seed)


def graph_of(num_nodes: int, edges: list[tuple[int, int]], train: list[int] = (), undirected: bool = True) -> RawGraph:
    edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    splits = {"train": np.array(train, dtype=np.int64)} if len(train) else {}
    return RawGraph(name="made", num_nodes=num_nodes, undirected=undirected, edge_index=edge_index, splits=splits)


def star(num_nodes: int) -> RawGraph:
    """Node 0 is everybody's only neighbour."""
    return graph_of(num_nodes, [(0, node) for node in range(1, num_nodes)], list(range(0, num_nodes, 3)))


def islands(count: int, size: int) -> RawGraph:
    """Cliques without an edge between them."""
    edges = [
        (first * size + a, first * size + b) for first in range(count) for a in range(size) for b in range(a + 1, size)
    ]
    return graph_of(count * size, edges, list(range(count * size)))


def assigned(name: str, request: PartitionRequest) -> np.ndarray:
    return METHODS[name].assign(request)


def stored_cut(request: PartitionRequest, parts: np.ndarray) -> float:
    """Share of the stored edges between different parts."""
    dst = np.repeat(np.arange(request.num_nodes), request.in_degrees)
    return float((parts[dst] != parts[request.graph.indices.numpy()]).mean())
