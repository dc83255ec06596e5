"""Bringing what parts hold within a tolerance of the mean, for several constraints at once.

A part's load of a constraint is the sum of its nodes' weights over the mean part. What counts is how far loads lie
outside 1 - tolerance .. 1 + tolerance, squared; and, much less, how far they lie from 1, so that moves for the sake of
one constraint spend the slack of the others where there is most. A round takes the pair of parts whose loads pull
apart most, orders the nodes of one by the cut that moving them to the other costs per unit of improvement, and moves
the leading run of nodes after which the two are best. Rounds end when all loads are within the tolerance, or when no
pair improves any more: with a node that outweighs a part, for example.

Cost: a round reads the neighbours of at most CANDIDATES nodes, and goes through the ids of the two parts where it moves
some. Memory: the ids of the parts that nodes leave or join, 4 bytes per node at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fastsample_dist.graph.csc import row_positions
from fastsample_dist.partition.methods.adjacency import Adjacency, edge_chunks
from fastsample_dist.partition.methods.constraints import (
    NodeWeights,
    heaviest,
    node_chunks,
    node_dtype,
    part_counts,
    part_sums,
)

CANDIDATES = 1 << 16
NEARNESS = 0.05  # what a unit of distance from 1 weighs beside a unit outside the tolerance


class _Ranking(NamedTuple):
    """In which order nodes are moved."""

    key: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of (costs, gains): lowest first
    least_gain: float  # the share by which a round must improve its pair


# The cut decides until no pair improves much, as the small gains of nodes that would rather be elsewhere spoil other
# loads; then gains count for more, and in the end they alone count.
RANKINGS = (
    _Ranking(lambda costs, gains: costs / gains, 0.05),
    _Ranking(lambda costs, gains: np.where(costs > 0, costs / gains, costs * gains), 0.02),
    _Ranking(lambda costs, gains: -gains, 1e-4),
)


@dataclass(frozen=True, eq=False)
class Loads:
    """What each node weighs, in units of the mean part, and what the parts hold.

    Attributes:
      num_nodes: of the graph.
      names: of the constraints.
      weights: per constraint.
      means: float64 [num_constraints]; of the parts.
      held: float64 [num_constraints, num_parts]; 1: the mean.
    """

    num_nodes: int
    names: tuple[str, ...]
    weights: tuple[NodeWeights, ...]
    means: np.ndarray
    held: np.ndarray

    @classmethod
    def count(cls, parts: np.ndarray, constraints: Mapping[str, NodeWeights], num_parts: int) -> Loads:
        """Add up what the parts hold."""
        weights = tuple(constraints.values())
        sums = np.array([part_sums(parts, weight, num_parts) for weight in weights])
        means = sums.sum(axis=1) / num_parts
        return cls(len(parts), tuple(constraints), weights, means, sums / means[:, None])

    def of(self, nodes: np.ndarray) -> np.ndarray:
        """float64 [num_constraints, len(nodes)]; what these nodes add to a load."""
        return np.array([weight[nodes] for weight in self.weights]) / self.means[:, None]


class _Members:
    """The nodes of each part, listed from a part's first use on: 4 bytes per node where ids fit.

    Args:
      parts: int32 [num_nodes]; kept up to date.
      movable: bool [num_nodes], the nodes to be listed; None: all are.
      num_parts: number of parts.
    Attributes:
      counts: int64 [num_parts]; nodes of each part, those that are not listed too.
      changes: int64 [num_parts]; how often a part has changed.
    """

    def __init__(self, parts: np.ndarray, movable: np.ndarray | None, num_parts: int) -> None:
        self.counts, self.changes = part_counts(parts, num_parts), np.zeros(num_parts, dtype=np.int64)
        self._parts, self._movable = parts, movable
        self._dtype = node_dtype(len(parts))
        self._listed: dict[int, np.ndarray] = {}

    def of(self, part: int) -> np.ndarray:
        """int32 | int64 [members]; ascending ids of a part's movable nodes."""
        if part not in self._listed:
            listed, filled = np.empty(self.counts[part], dtype=self._dtype), 0
            for chunk in node_chunks(len(self._parts)):
                own = self._parts[chunk] == part
                if self._movable is not None:
                    own &= self._movable[chunk]
                found = np.flatnonzero(own)
                listed[filled : filled + len(found)] = found + chunk.start
                filled += len(found)
            self._listed[part] = listed[:filled]
        return self._listed[part]

    def move(self, nodes: np.ndarray, source: int, target: int) -> None:
        """Nodes of `of(source)` go to another part."""
        self._parts[nodes] = target
        moved = np.sort(nodes).astype(self._dtype)
        self._listed[source] = np.delete(self._listed[source], np.searchsorted(self._listed[source], moved))
        if target in self._listed:
            listed = self._listed[target]
            self._listed[target] = np.insert(listed, np.searchsorted(listed, moved), moved)
        self.counts[source] -= len(nodes)
        self.counts[target] += len(nodes)
        self.changes[[source, target]] += 1


def level_parts(
    parts: np.ndarray,
    adjacency: Adjacency,
    loads: Loads,
    *,
    tolerance: float,
    movable: np.ndarray | None = None,
    seed: int = 0,
) -> int:
    """Move nodes until every part holds its share of every constraint, within a tolerance, or nothing helps.

    Args:
      parts: int32 [num_nodes]; changed in place.
      adjacency: what a cut is counted in.
      loads: of `parts`; kept up to date.
      tolerance: share of the mean.
      movable: bool [num_nodes]; others stay. None: all may move.
      seed: of the choice of candidates in parts of more than CANDIDATES nodes.
    Returns:
      Number of moves. Deterministic: yes. A part is never emptied.
    """
    return _Levelling(parts, adjacency, loads, tolerance, movable, seed).run()


class _Levelling:
    """One call of `level_parts`, whose arguments it takes."""

    def __init__(
        self,
        parts: np.ndarray,
        adjacency: Adjacency,
        loads: Loads,
        tolerance: float,
        movable: np.ndarray | None,
        seed: int,
    ) -> None:
        self._parts, self._adjacency, self._loads, self._tolerance = parts, adjacency, loads, tolerance
        self._members = _Members(parts, movable, loads.held.shape[1])
        self._rng = np.random.default_rng(seed)
        # Pairs that a ranking did not improve, with how often the two had changed: it would not now either.
        self._failed: dict[tuple[_Ranking, int, int], list[int]] = {}

    def run(self) -> int:
        loads, moves = self._loads, 0
        while _excess(loads.held, self._tolerance).any():
            for ranking, (source, target) in itertools.product(RANKINGS, _pairs(loads.held, self._tolerance)):
                nodes = self._best_run(source, target, ranking)
                if len(nodes):
                    break
            else:
                break
            self._members.move(nodes, source, target)
            delta = loads.of(nodes).sum(axis=1)
            loads.held[:, source] -= delta
            loads.held[:, target] += delta
            moves += len(nodes)
        return moves

    def _best_run(self, source: int, target: int, ranking: _Ranking) -> np.ndarray:
        """The nodes to move between two parts; none if that improves too little."""
        changes = self._members.changes[[source, target]].tolist()
        if self._failed.get((ranking, source, target)) == changes:
            return np.empty(0, dtype=np.int64)
        nodes, drawn = self._candidates(source)
        held, share = self._loads.held, self._loads.of(nodes)

        def left(moved: np.ndarray) -> np.ndarray:
            after = _badness(held[:, [source]] - moved, self._tolerance)
            return after + _badness(held[:, [target]] + moved, self._tolerance)

        before = float(left(np.zeros((len(share), 1)))[0])
        gain = before - left(share)  # of each node alone: one that is too heavy gains nothing
        helps = np.flatnonzero(gain > 0)
        nodes, share, gain = nodes[helps], share[:, helps], gain[helps]
        most = min(len(nodes), int(self._members.counts[source]) - 1)  # a node stays
        if most:
            costs = _cut_costs(nodes, self._parts, self._adjacency, (source, target))
            order = np.argsort(ranking.key(costs, gain), kind="stable")[:most]
            after = left(np.cumsum(share[:, order], axis=1))
            best = int(after.argmin())
            if after[best] < before * (1 - ranking.least_gain):
                return nodes[order[: best + 1]]
        if not drawn:
            self._failed[ranking, source, target] = changes
        return nodes[:0]

    def _candidates(self, part: int) -> tuple[np.ndarray, bool]:
        """int64 ids of nodes that may leave a part, ascending; and whether they were drawn from more."""
        nodes = self._members.of(part)
        drawn = len(nodes) > CANDIDATES
        if drawn:
            nodes = nodes[np.sort(self._rng.choice(len(nodes), CANDIDATES, replace=False))]
        return nodes.astype(np.int64), drawn


def unmet(loads: Loads, tolerance: float) -> list[str]:
    """One line for each constraint that is outside the tolerance, with the reason where one node is the reason."""
    lines = []
    for name, weight, mean, held in zip(loads.names, loads.weights, loads.means, loads.held, strict=True):
        if abs(held - 1).max() <= tolerance + 1e-9:
            continue
        node, most = heaviest(weight, loads.num_nodes)
        reason = (
            f"node {node} alone has {most / mean:.2f} of a part's share"
            if most > tolerance * mean
            else "no moves were found that help"
        )
        lines.append(
            f"{name.replace('_', '-')} per part run from {held.min():.3f} to {held.max():.3f} of the mean, outside "
            f"{tolerance:.0%}: {reason}."
        )
    return lines


def _excess(held: np.ndarray, tolerance: float) -> np.ndarray:
    return np.maximum(np.abs(held - 1) - tolerance, 0)


def _badness(held: np.ndarray, tolerance: float) -> np.ndarray:
    """What a round reduces: [num_constraints, ...] -> [...]."""
    return (_excess(held, tolerance) ** 2 + NEARNESS * (held - 1) ** 2).sum(axis=0)


def _slope(held: np.ndarray, tolerance: float) -> np.ndarray:
    """Derivative of `_badness` by each load, halved."""
    return np.sign(held - 1) * _excess(held, tolerance) + NEARNESS * (held - 1)


def _pairs(held: np.ndarray, tolerance: float) -> list[tuple[int, int]]:
    """(source, target) parts, those whose loads pull apart most first; one of the two is outside the tolerance."""
    slope = _slope(held, tolerance)
    outside = _excess(held, tolerance).any(axis=0)
    pull = np.abs(slope[:, :, None] - slope[:, None, :]).max(axis=0)
    pull[~(outside[:, None] | outside[None, :])] = 0
    np.fill_diagonal(pull, 0)
    order = np.argsort(-pull, axis=None, kind="stable")[: 4 * held.shape[1]]
    return [divmod(int(pair), held.shape[1]) for pair in order if pull.flat[pair] > 0]


def _cut_costs(nodes: np.ndarray, parts: np.ndarray, adjacency: Adjacency, pair: tuple[int, int]) -> np.ndarray:
    """float64 [len(nodes)]; what moving each node from the one part to the other adds to the cut."""
    costs = np.empty(len(nodes))
    for lo, hi in edge_chunks(adjacency.indptr[nodes + 1] - adjacency.indptr[nodes]):
        positions, owner = row_positions(adjacency.indptr, nodes[lo:hi])
        ends = parts[adjacency.indices[positions]]
        change = (ends == pair[0]).astype(np.float64) - (ends == pair[1])
        if adjacency.weights is not None:
            change *= adjacency.weights[positions]
        costs[lo:hi] = np.bincount(owner, change, minlength=hi - lo)
    return costs
