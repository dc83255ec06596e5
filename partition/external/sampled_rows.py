"""Rows of the adjacency of some nodes, picked from the list of edges in the pass that counts it.

They tell before anything is sorted how large the graph is when it is compressed (methods/compressed.py): how many edges
are listed more than once or both ways, and how close a node's neighbours are.
"""

from __future__ import annotations

import numpy as np

from fastsample_dist.partition.methods.compressed import compressed_bytes

SAMPLED_ENTRIES = 1 << 18  # about so many are picked, at most twice as many kept
HASH_BITS = 24
_FACTOR = np.uint32(0x9E3779B1)  # ids are hashed: their low bits tell degrees of drawn graphs


class SampledRows:
    """Entries of the rows of nodes whose hash is below a threshold, which is halved when they become too many.

    Args:
      num_listed: edges in the list.
      undirected: parallel edges are merged, so that there are no weights.
    """

    def __init__(self, num_listed: int, *, undirected: bool) -> None:
        self._entries, self._weighted = 2 * num_listed, not undirected
        self._threshold = min(1 << HASH_BITS, -(-(SAMPLED_ENTRIES << HASH_BITS) // max(1, self._entries)))
        self._picked: list[tuple[np.ndarray, np.ndarray]] = []
        self._num_picked = 0

    def add(self, src: np.ndarray, dst: np.ndarray) -> None:
        """Pick from listed edges; integers [n]."""
        for nodes, others in ((src, dst), (dst, src)):
            self._pick(nodes, others)
        while self._num_picked > 2 * SAMPLED_ENTRIES:  # a hub's row, or few nodes in all
            self._threshold //= 2
            before, self._picked, self._num_picked = self._picked, [], 0
            for nodes, others in before:
                self._pick(nodes, others)

    def _pick(self, nodes: np.ndarray, others: np.ndarray) -> None:
        hashed = nodes.astype(np.uint32) * _FACTOR >> np.uint32(32 - HASH_BITS)
        chosen = np.flatnonzero(hashed < self._threshold)
        if len(chosen):
            self._picked.append((nodes[chosen].astype(np.int64), others[chosen].astype(np.int64)))
            self._num_picked += len(chosen)

    def compressed_bytes(self) -> int:
        """Of the whole graph, estimated from the rows that were picked; self-loops are left out.

        By their share of all entries or, where that is less (a hub's row was given up), by their share of the nodes.
        """
        if not self._picked:
            return 0
        nodes, others = (np.concatenate(columns) for columns in zip(*self._picked, strict=True))
        order = np.lexsort((others, nodes))
        nodes, others = nodes[order], others[order]
        first = np.concatenate([[True], (nodes[1:] != nodes[:-1]) | (others[1:] != others[:-1])])
        counts = np.diff(np.flatnonzero(first), append=len(nodes))
        kept = (nodes != others)[first]
        counts = counts[kept]
        weights = counts if self._weighted and len(counts) and counts.min() < counts.max() else None
        found = compressed_bytes(nodes[first][kept], others[first][kept], weights)
        return round(found * min(self._entries / len(nodes), (1 << HASH_BITS) / self._threshold))
