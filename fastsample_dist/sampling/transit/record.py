"""Edges that an application records, and the MFGs that they become; `Recorder` is the definition, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit.app import NULL
from fastsample_dist.sampling.transit.binding import STEP_RECORDS, BoundApp
from fastsample_dist.sampling.transit.recorded_edges import SELF_EDGE, RecordedEdges


def edge_values(bound: BoundApp, positions: np.ndarray) -> np.ndarray:
    """RecordedEdges.values of edges at these positions."""
    if not bound.weighted:
        return np.ones(len(positions))
    assert bound.graph.weights is not None
    stored = bound.graph.weights.numpy(force=True)
    return np.where(positions == SELF_EDGE, 1.0, stored[np.maximum(positions, 0)].astype(np.float64))


def own_weights(
    bound: BoundApp, k: int, hop: MFG, positions: Tensor, picks: Tensor, columns: Tensor | None
) -> Tensor | None:
    """What an application's own edge_weights makes of recorded step k of a sample, in host memory.

    Args:
      hop: its edges, on any device, as are the other tensors.
      positions: int64 [num_edges], of the edges in graph.indices, SELF_EDGE of a self edge.
      picks: int64 [picks of the step].
      columns: float64 [num_edges], the weight of every edge's source in the race, or None.
    """
    indptr, nodes = hop.indptr.numpy(force=True), hop.src_nodes.long().numpy(force=True)
    dst, places = np.repeat(nodes[: hop.num_dst], np.diff(indptr)), positions.numpy(force=True)
    edges = RecordedEdges(
        k, indptr, dst, nodes[hop.indices.numpy(force=True)], places, edge_values(bound, places),
        picks.numpy(force=True), None if columns is None else columns.numpy(force=True), bound.par,
    )  # fmt: skip
    return as_float(bound.app.edge_weights(edges))


def as_float(edge_weights: Tensor | None) -> Tensor | None:
    """An application's own edge weights as float32, which MFGs have."""
    return None if edge_weights is None else edge_weights.float()


class Recorder:
    """Records the edges of one sample, step after step.

    Attributes:
      steps: a hop per step is recorded.
      nodes: so far: the destinations of the next hop, which are the transits of the next recorded step.
    """

    def __init__(self, bound: BoundApp, draw: DrawKey) -> None:
        self.bound, self.draw = bound, draw
        self.steps = bound.collective and bound.app.record in STEP_RECORDS
        self.nodes: list[int] = []
        self._indptr, self._indices = bound.graph.indptr.tolist(), bound.graph.indices
        self._mfgs: list[MFG] = []

    def step(self, k: int, transits: Sequence[int], picks: Sequence[int], columns: Mapping[int, float] | None) -> None:
        """Record a step of "to_new" or "to_union"."""
        sources = {pick for pick in picks if pick != NULL}
        self._add(transits)
        if self.bound.app.record == "to_union":
            sources |= set(self.nodes)
        self._record(k, sources, picks, columns)

    def within(self, vertices: Sequence[int]) -> None:
        """Record the edges among the sample's vertices."""
        self._add([vertex for vertex in vertices if vertex != NULL])
        self._record(0, set(self.nodes), [], None)

    def mfgs(self) -> list[MFG]:
        """Of the sample, input side first."""
        return self._mfgs[::-1]

    def _add(self, nodes: Sequence[int]) -> None:
        self.nodes = list(dict.fromkeys([*self.nodes, *nodes]))

    def _record(self, k: int, sources: set[int], picks: Sequence[int], columns: Mapping[int, float] | None) -> None:
        destinations, edges = self.nodes, []
        for dst in destinations:
            own = [(dst, dst, SELF_EDGE)] if self.bound.app.self_edges and dst in sources else []
            span = range(*self._indptr[dst : dst + 2])
            row = [(dst, int(self._indices[at]), at) for at in span if int(self._indices[at]) in sources]
            edges.append(own + row)
        indptr = np.cumsum([0, *map(len, edges)], dtype=np.int64)
        dst, src, positions = np.array([edge for row in edges for edge in row], dtype=np.int64).reshape(-1, 3).T
        self._add(src.tolist())
        local = {node: i for i, node in enumerate(self.nodes)}
        recorded = RecordedEdges(
            k, indptr, dst, src, positions, edge_values(self.bound, positions), np.array(picks, dtype=np.int64),
            None if columns is None else np.array([columns.get(node, 0.0) for node in src.tolist()], dtype=np.float64),
            self.bound.par,
        )  # fmt: skip
        dtype = self.bound.graph.indices.dtype
        positions_kept = None if self.bound.app.self_edges else torch.from_numpy(positions.copy())
        self._mfgs.append(
            MFG(
                torch.from_numpy(indptr), torch.tensor([local[node] for node in src.tolist()], dtype=dtype),
                torch.tensor(self.nodes, dtype=dtype), len(destinations), self.bound.graph.orig_ids, self.draw,
                positions_kept, checked=True, edge_weights=as_float(self.bound.app.edge_weights(recorded)),
                includes_dst=self.bound.app.self_edges,
            )
        )  # fmt: skip
