"""RecordedEdges: what `App.edge_weights` gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsample_dist.sampling.transit.params import Params

SELF_EDGE = -1  # in place of an edge's position: an edge of I


@dataclass(frozen=True, eq=False)
class RecordedEdges:
    """The edges of one recorded step, as `App.edge_weights` gets them.

    Attributes:
      step: k.
      indptr: int64 [num_dst + 1]; CSC offsets by destination.
      dst, src: int64 [num_edges]; the ends of every edge, node ids.
      positions: int64 [num_edges]; of every edge in graph.indices, SELF_EDGE (-1) for an edge that self_edges added.
      values: float64 [num_edges]; the stored weight, 1.0 without weights and of a self edge.
      picks: int64 [sample_size]; of the step, NULLs in their places.
      columns: float64 [num_edges], the weight of the source in the race; None without a race.
      par: of `App.prepare`.
    """

    step: int
    indptr: np.ndarray
    dst: np.ndarray
    src: np.ndarray
    positions: np.ndarray
    values: np.ndarray
    picks: np.ndarray
    columns: np.ndarray | None
    par: Params

    def row_sums(self, values: np.ndarray) -> np.ndarray:
        """For every edge the sum of its row's values, added from the left, float64 [num_edges]."""
        rows = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return np.bincount(rows, values, len(self.indptr) - 1)[rows]

    def times_picked(self) -> np.ndarray:
        """How often every edge's source is among the picks, 1 at least, int64 [num_edges]."""
        nodes, counts = np.unique(self.picks, return_counts=True)
        if len(nodes) == 0:
            return np.ones(len(self.src), dtype=np.int64)
        at = np.minimum(np.searchsorted(nodes, self.src), len(nodes) - 1)
        return np.where(nodes[at] == self.src, counts[at], 1)
