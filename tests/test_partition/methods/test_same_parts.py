"""The parts after balancing are these, and it takes a few bytes per node: digests of whole assignments, and memory."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.methods import METHODS, PartitionRequest
from fastsample_dist.partition.methods.balance import balance_parts
from fastsample_dist.partition.methods.levelling import CANDIDATES
from tests.grids import grid
from tests.test_partition.methods.requests import request_of

LARGE = 3 * CANDIDATES  # the larger parts have more candidates than are looked at


def drawn(num_nodes: int, *, undirected: bool, splits: dict[str, int], seed: int) -> RawGraph:
    """A ring with far edges and a hub; the splits are strides of a shuffle."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes, 4 * num_nodes)
    near = (ends + rng.integers(1, 20, len(ends)) ** 2) % num_nodes
    ends[: num_nodes // 8] = 7
    shuffled, chosen, begin = rng.permutation(num_nodes), {}, 0
    for split, count in splits.items():
        chosen[split], begin = np.sort(shuffled[begin : begin + count]), begin + count
    edges = np.stack([near, ends])
    return RawGraph(name="ring", num_nodes=num_nodes, undirected=undirected, edge_index=edges, splits=chosen)


def skewed(num_parts: int, num_nodes: int) -> np.ndarray:
    """Runs of the ring; low parts own most."""
    return (np.sqrt(np.arange(num_nodes) / num_nodes) * num_parts).astype(np.int32)[::-1].copy()


CASES = {
    "rows, all splits, 8 parts": (
        ("ldg", 8, 6000, {"train": 900, "val": 300, "test": 1500}, False),
        (1, 2535, "500365ea47214a5f"),
    ),
    "rows, train nodes, 3 parts": (
        ("ldg", 3, 2000, {"train": 1100}, False),
        (10, 1073, "6ff1fac725c61d1f"),
    ),
    "adjacency with weights, 5 parts": (
        ("metis", 5, 3000, {"train": 400, "test": 100}, False),
        (3, 878, "b91542e0fb5a6717"),
    ),
    "adjacency without weights, 16 parts": (
        ("metis", 16, 6000, {"train": 700, "val": 500}, True),
        (0, 2157, "b4155dcb7c17dd32"),
    ),
    "no splits, 64 parts": (
        ("ldg", 64, 9000, {}, True),
        (0, 3980, "daeb11e551096c2a"),
    ),
    "candidates are drawn, 2 parts": (
        ("ldg", 2, LARGE, {"train": 5000, "val": 900}, False),
        (63, 81571, "c05faa98cf34ef11"),
    ),
    "train nodes alone, 7 parts": (
        ("range", 7, 4000, {"train": 1700}, True),
        (431, 0, "a44827edc66e1281"),
    ),
}


IN_GATE = [case for name, case in CASES.items() if name != "no splits, 64 parts"]


@pytest.mark.parametrize(("case", "expected"), grid(CASES.values(), gate=IN_GATE, several=True), ids=CASES)
def test_parts_are_these(case, expected):
    method, num_parts, num_nodes, splits, undirected = case
    request = request_of(drawn(num_nodes, undirected=undirected, splits=splits, seed=num_parts), num_parts, seed=3)
    parts = skewed(num_parts, num_nodes)
    balanced = balance_parts(request, METHODS[method], parts)
    digest = hashlib.sha256(parts.tobytes()).hexdigest()[:16]
    assert (balanced.train_moved, balanced.levelled, digest) == expected


def peak_of_balancing(num_nodes: int) -> int:
    """Bytes above the graph and the parts, of a ring with 2 in-edges a node and 1 % train nodes, in 2 uneven parts."""
    nodes = np.arange(num_nodes)
    indices = np.stack([(nodes + 1) % num_nodes, (nodes + 2) % num_nodes], axis=1).reshape(-1).astype(np.int32)
    graph = CSCGraph(2 * np.arange(num_nodes + 1), indices)
    request = PartitionRequest(graph=graph, undirected=False, num_parts=2, splits={"train": nodes[::100]})
    parts = (nodes > 0.55 * num_nodes).astype(np.int32)
    tracemalloc.start()
    try:
        balanced = balance_parts(request, METHODS["ldg"], parts)
        assert balanced.levelled and balanced.train_moved
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_balancing_takes_a_few_bytes_per_node():
    # A byte for the splits, one for what may move, and the ids of parts, 4 bytes each at most.
    small, large = 2 << 20, 6 << 20
    assert peak_of_balancing(large) - peak_of_balancing(small) < 6 * (large - small)
