"""What is odd about a topology's edges, counted from its rows: parallel edges, self-loops, nodes without any edge.

A row holds equal sources side by side, so an edge that equals the one before it in its row is a further copy of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fastsample_dist.graph.csc import destinations
from fastsample_dist.graph.npy_files import drop_pages
from fastsample_dist.partition.methods.constraints import InDegrees, node_chunks

STEP_EDGES = 1 << 19  # looked at together: 4 MB of destinations


@dataclass(frozen=True, kw_only=True)
class EdgeCounts:
    """Figures of a topology's edges.

    Attributes:
      parallel_edges: stored edges that repeat another one (same source, same destination); 0 if undirected.
      self_loops: stored edges from a node to itself.
      isolated_nodes: nodes without an edge in or out: gaps in the ids, where these were counted by the highest.
      merged_duplicates: of an undirected graph: listed edges that repeated another in either direction and were merged
        with it; None: not known how many were listed.
    """

    parallel_edges: int
    self_loops: int
    isolated_nodes: int
    merged_duplicates: int | None

    def to_json(self) -> dict[str, int | None]:
        """The figures as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """One sentence for each kind of edge or node that there is."""
        lines = []
        if self.parallel_edges:
            lines.append(f"{self.parallel_edges:,} edges are duplicates of another; kept as parallel edges")
        if self.merged_duplicates:
            found = f"{self.merged_duplicates:,} listed edges were duplicates (in either direction)"
            lines.append(f"{found}; merged, the first listed counts")
        if self.self_loops:
            lines.append(f"{self.self_loops:,} edges are self-loops; kept")
        if self.isolated_nodes:
            lines.append(f"{self.isolated_nodes:,} nodes have no edge (gaps in the ids, or isolated); kept")
        return lines


class EdgeCounter:
    """Counts while the rows of a topology go by, front to back.

    Args:
      indptr: int64 [num_nodes + 1]; pages of a mapped file are dropped once they are read.
    """

    def __init__(self, indptr: np.ndarray) -> None:
        self._indptr, self._next = indptr, 0
        self._parallel = self._loops = 0
        self._before = (-1, -1)
        self._connected = np.empty(len(indptr) - 1, dtype=bool)
        degrees = InDegrees(indptr)
        for chunk in node_chunks(len(self._connected)):
            self._connected[chunk] = degrees[chunk] > 0
            drop_pages(indptr)

    def add(self, sources: np.ndarray) -> None:
        """Count the edges that follow those of the last call."""
        for lo in range(0, len(sources), STEP_EDGES):
            ids = sources[lo : lo + STEP_EDGES]
            rows = destinations(self._indptr, self._next, len(ids))
            self._next += len(ids)
            self._connected[ids] = True
            self._loops += int(np.count_nonzero(ids == rows))
            self._parallel += int(np.count_nonzero((ids[1:] == ids[:-1]) & (rows[1:] == rows[:-1])))
            self._parallel += self._before == (int(ids[0]), int(rows[0]))
            self._before = int(ids[-1]), int(rows[-1])
            drop_pages(self._indptr)

    def counts(self, *, undirected: bool, listed: int | None) -> EdgeCounts:
        """The figures, once all edges have gone by.

        Args:
          undirected: every edge is stored in both directions.
          listed: edges of the input as listed; None: not known.
        """
        pairs = (self._next + self._loops) // 2  # a self-loop is stored once
        return EdgeCounts(
            parallel_edges=self._parallel,
            self_loops=self._loops,
            isolated_nodes=int(np.count_nonzero(~self._connected)),
            merged_duplicates=listed - pairs if undirected and listed is not None else None,
        )
