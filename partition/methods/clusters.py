"""Clusters of a graph's nodes, and the graph between them: what `stream` makes small enough for a multilevel method.

A node weighs its share of the nodes, of the in-edges and of each split, added up, so that one bound limits a cluster in
all of them. Labels spread over the links in SWEEPS sweeps; nodes that are left alone then join others that lean towards
the same cluster, and nodes without links are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fastsample_dist import ops
from fastsample_dist.ops.cluster_nodes import MOST_BOUND
from fastsample_dist.partition.methods.adjacency import Adjacency

SWEEPS = 4
UNIT = 1 << 28  # a cluster's bound at first; it may grow to ops' MOST_BOUND
SHRINKS = 0.9  # clusters that become at most this share of them are worth another round
CALL_ENTRIES = 1 << 25  # entries of a call into the core: part of a second, between which Ctrl-C is seen
CHUNK_NODES = 1 << 22


@dataclass(frozen=True, eq=False)
class WeighedGraph:
    """Neighbour lists, and what every node weighs.

    Attributes:
      neighbours: the lists.
      weights: int32 [num_nodes], >= 1; in units of UNIT to a cluster.
      num_threads: that read its rows; None: torch's setting.
      on_read: called with how many bytes of them were read.
    """

    neighbours: ops.Neighbours
    weights: np.ndarray
    num_threads: int | None = None
    on_read: Callable[[int], None] = lambda count: None

    @classmethod
    def of(cls, adjacency: Adjacency, weights: np.ndarray, num_threads: int | None) -> WeighedGraph:
        """With the rows of an adjacency."""
        return cls(ops.Neighbours(adjacency.indptr, adjacency.indices, adjacency.weights), weights, num_threads)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.weights)

    def without_links(self) -> np.ndarray:
        """int64; the nodes without neighbours, ascending."""
        rows = np.flatnonzero(self.neighbours.indptr[1:] == self.neighbours.indptr[:-1])
        return np.sort(self.neighbours.order[rows]) if self.neighbours.rows_by_turn else rows

    def turns(self) -> Iterator[tuple[int, int]]:
        """All turns, in runs of about CALL_ENTRIES entries."""
        step = max(1, self.num_nodes * CALL_ENTRIES // max(1, len(self.neighbours.indices)))
        num_bytes = self.neighbours.indices.nbytes
        for first in range(0, self.num_nodes, step):
            last = min(first + step, self.num_nodes)
            yield first, last
            self.on_read(num_bytes * last // self.num_nodes - num_bytes * first // self.num_nodes)


def find_clusters(
    graph: WeighedGraph, bound: int, rng_seed: int, *, within: np.ndarray | None = None, packs: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of at most `bound`, but for heavier nodes, which stay alone.

    Args:
      graph: whose nodes.
      bound: UNIT .. ops' MOST_BOUND.
      rng_seed: decides between equals.
      within: int32 [num_nodes]; a cluster's nodes have the same number. None: all do.
      packs: whether nodes without links are put together; else each is a cluster.
    Returns:
      (cluster of each node, int32 [num_nodes]; what each cluster weighs, int32 [num_clusters]).
    """
    labels, loads = np.arange(graph.num_nodes, dtype=np.int32), graph.weights.copy()
    if packs:
        pack(graph.without_links(), labels, loads, bound, within)
    for sweep, name in enumerate(["heaviest"] * SWEEPS + ["alike"]):
        rule = ops.ClusterRule(
            rule=name, node_weights=graph.weights, bound=bound, within=within, rng_seed=rng_seed + sweep
        )
        opened = np.full(graph.num_nodes, -1, dtype=np.int32) if name == "alike" else None
        for turns in graph.turns():
            ops.cluster_nodes(
                graph.neighbours, rule, ops.Clusters(labels, loads, opened), turns, num_threads=graph.num_threads
            )
    return _number(labels, loads)


def grow_clusters(
    graph: WeighedGraph, bound: int, rng_seed: int, *, within: np.ndarray | None = None, whole: bool = True
) -> tuple[np.ndarray, np.ndarray, int]:
    """`find_clusters` with a bound that is doubled until there are fewer clusters than SHRINKS of the nodes.

    Args:
      graph, bound, rng_seed, within: as there.
      whole: whether a node without links has none; else they were left out, and such nodes are put together last.
    Returns:
      (clusters, what they weigh, the bound).
    """
    while True:
        packs = whole or bound == MOST_BOUND
        labels, weights = find_clusters(graph, bound, rng_seed, within=within, packs=packs)
        if len(weights) <= SHRINKS * graph.num_nodes or bound == MOST_BOUND:
            return labels, weights, bound
        bound *= 2


def pack(nodes: np.ndarray, labels: np.ndarray, loads: np.ndarray, bound: int, within: np.ndarray | None) -> None:
    """Put nodes that are alone together, in their order, as many as half of the bound takes, in place."""
    if within is not None:
        nodes = nodes[np.argsort(within[nodes], kind="stable")]
    weights = loads[nodes].astype(np.int64)
    light = weights <= bound // 2
    nodes, weights = nodes[light], weights[light]
    group = (np.cumsum(weights) - weights) // (bound // 2)
    if within is not None:
        group += within[nodes].astype(np.int64) << 40
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])) if len(nodes) else nodes
    sizes = np.diff(first, append=len(nodes))
    loads[nodes] = 0
    loads[nodes[first]] = np.add.reduceat(weights, first) if len(first) else 0
    labels[nodes] = np.repeat(labels[nodes[first]], sizes)


def _number(labels: np.ndarray, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the labels that have nodes 0, 1, ... in their order, in place: (labels, their loads)."""
    used = loads > 0
    weights = loads[used]
    numbers = np.cumsum(used, dtype=np.int32, out=loads)
    numbers -= 1
    rename(labels, numbers)
    return labels, weights


def spread(values: np.ndarray, labels: np.ndarray, num_clusters: int) -> np.ndarray:
    """The value that all nodes of a cluster have, for each cluster: [num_nodes] -> [num_clusters]."""
    of_clusters = np.empty(num_clusters, dtype=values.dtype)
    for lo in range(0, len(labels), CHUNK_NODES):
        of_clusters[labels[lo : lo + CHUNK_NODES]] = values[lo : lo + CHUNK_NODES]
    return of_clusters


def rename(labels: np.ndarray, names: np.ndarray) -> None:
    """labels = names[labels], in place and by chunks."""
    for lo in range(0, len(labels), CHUNK_NODES):
        labels[lo : lo + CHUNK_NODES] = names[labels[lo : lo + CHUNK_NODES]]


def contract(graph: WeighedGraph, labels: np.ndarray, num_clusters: int, most_pairs: int) -> tuple[Adjacency, bool]:
    """The graph between clusters.

    Args:
      graph: between nodes.
      labels: int32 [num_nodes]; cluster of each.
      num_clusters: how many there are.
      most_pairs: room for so many pairs of clusters; of more, the lightest are left out.
    Returns:
      (symmetric, int32 ids and weights; whether it has all links).
    """
    room = min(most_pairs, len(graph.neighbours.indices) // 2 + 1)
    table = ops.PairTable(room * 4 // 3 + 8)
    for turns in graph.turns():
        table.add(graph.neighbours, labels, turns, num_threads=graph.num_threads)
    left_out = table.left_out
    smaller, larger, weights = table.pairs()
    del table
    ends = np.concatenate([smaller, larger])
    order = np.argsort(ends, kind="stable")
    indptr = np.zeros(num_clusters + 1, dtype=np.int64)
    np.cumsum(np.bincount(ends, minlength=num_clusters), out=indptr[1:])
    del ends
    indices = np.concatenate([larger, smaller])[order]
    return Adjacency(indptr, indices, np.concatenate([weights, weights])[order]), left_out == 0
