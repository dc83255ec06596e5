"""Laws of applications: what probability a pick has, given what the sample holds. Tests compare samples with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from fastsample_dist.graph.csc import CSCGraph

Outcome = TypeVar("Outcome")
Law = Mapping[int, float]  # probability of each vertex (NULL among them) that can be picked
RootsLaw = Mapping[tuple[int, ...], float]  # probability of each tuple of roots


@dataclass(frozen=True)
class History:
    """What a sample holds before a pick.

    Attributes:
      step: of the pick.
      slot: of the pick in the step.
      path: of an individual application without step_transits: the vertices from the root to the transit; else ().
      vertices: the roots, then the picks of every earlier step, NULLs in their places.
      turn: of the pick among those of its transit; of a collective application the slot.
      picks: of the slots before it in the step.
    """

    step: int
    slot: int
    path: tuple[int, ...]
    vertices: tuple[tuple[int, ...], ...]
    turn: int = 0
    picks: tuple[int, ...] = ()

    @property
    def transit(self) -> int:
        """The transit that is picked for, where there is a path."""
        return self.path[-1]


def row_shares(graph: CSCGraph, node: int, weighted: bool) -> dict[int, float]:
    """Probability of each neighbour of a node when one edge is drawn by weight or uniformly; empty if none can be."""
    start, end = graph.indptr[node : node + 2].tolist()
    weights = graph.weights[start:end].double().numpy() if weighted else np.ones(end - start)
    total = weights.sum()
    shares: dict[int, float] = {}
    for neighbor, weight in zip(graph.indices[start:end].tolist(), weights.tolist(), strict=True):
        if weight > 0.0:
            shares[neighbor] = shares.get(neighbor, 0.0) + weight / total
    return shares


def squared_columns(graph: CSCGraph, nodes: Iterable[int], weighted: bool) -> dict[int, float]:
    """Of every column u the sum over some rows v of P(v, u)^2, P = D^-1 (A + I) the row-normalised adjacency."""
    columns: dict[int, float] = {}
    for v in nodes:
        start, end = graph.indptr[v : v + 2].tolist()
        weights = graph.weights[start:end].double().tolist() if weighted else [1.0] * (end - start)
        row = {v: 1.0}
        for source, weight in zip(graph.indices[start:end].tolist(), weights, strict=True):
            row[source] = row.get(source, 0.0) + weight
        for source, share in normalised(row).items():
            columns[source] = columns.get(source, 0.0) + share**2
    return columns


def normalised(shares: Mapping[Outcome, float]) -> dict[Outcome, float]:
    """The same proportions, adding up to 1."""
    total = sum(shares.values())
    return {node: share / total for node, share in shares.items()}
