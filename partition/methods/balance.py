"""After a method: every part gets floor(T / P) or ceil(T / P) of the T train nodes, and its share of the rest.

A step of training is as slow as the rank with the most seeds, so a part must not exceed ceil, and none may fall below
floor. With `over` and `under` the train nodes above ceil and below floor, max(over, under) moves are needed and made:
while over > under a node may leave a part above ceil for any part with room below ceil, while under > over it may
come from any part above floor; else it goes from above ceil to below floor.

Greedy: the moves that raise the cut least come first. Moving v from a to b raises the cut by w(v, a) - w(v, b),
where w(v, p) is the weight of v's edges into part p; only v's neighbours see their w change. Moves are made
in batches of an eighth of what remains, with w brought up to date in between; the last ones are made singly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsample_dist.graph.csc import row_positions
from fastsample_dist.graph.npy_files import row_chunks
from fastsample_dist.partition.methods.adjacency import Adjacency, edge_chunks
from fastsample_dist.partition.methods.levelling import Loads, level_parts, unmet
from fastsample_dist.partition.methods.request import Method, PartitionRequest

BATCH_SHARE = 8
TOLERANCE = 0.05  # of nodes and in-edges per part
AIM = 0.045  # what levelling aims at, so that train nodes that move later do no harm


@dataclass(frozen=True)
class Balanced:
    """What was moved after a method had assigned the nodes.

    Attributes:
      train_moved: train nodes, so that every part has floor or ceil of its share.
      levelled: moves for the sake of nodes, in-edges and splits.
      notes: one line for each constraint outside TOLERANCE, and for an assignment of the user's that was changed.
    """

    train_moved: int
    levelled: int
    notes: tuple[str, ...]


def balance_parts(request: PartitionRequest, method: Method, parts: np.ndarray) -> Balanced:
    """Balance train nodes to within one node; nodes and in-edges within TOLERANCE where the method is to balance them.

    Args:
      request: what `parts` was made for.
      method: the one that made it.
      parts: int32 [num_nodes]; changed in place.
    """
    if request.num_parts == 1:
        return Balanced(0, 0, ())
    links = method.links_of(request)
    if not method.balances:
        moved = balance_train_nodes(parts, request.train, links, request.num_parts)
        noted = method.name == "file" and moved > 0
        note = f"{moved} of {len(request.train)} train nodes were moved, so that parts differ by one at most."
        return Balanced(moved, 0, (note,) if noted else ())
    constraints = request.constraints()
    settings = {"tolerance": AIM, "seed": request.seed}
    levelled = level_parts(parts, links, Loads.count(parts, constraints, request.num_parts), **settings)
    moved = balance_train_nodes(parts, request.train, links, request.num_parts)
    constraints.pop("train", None)
    loads = Loads.count(parts, constraints, request.num_parts)
    free = np.ones(len(parts), dtype=bool)
    free[request.train] = False
    levelled += level_parts(parts, links, loads, movable=free, **settings)
    return Balanced(moved, levelled, tuple(unmet(loads, TOLERANCE)))


def balance_train_nodes(parts: np.ndarray, train: np.ndarray, adjacency: Adjacency, num_parts: int) -> int:
    """Move train nodes between parts until their counts differ by one at most. Changes `parts` in place.

    Args:
      parts: int32 [num_nodes]; part of each node.
      train: int64 [T]; train node ids, ascending.
      adjacency: the cut is counted in its weights; with the rows of a directed graph, in their in-edges alone.
      num_parts: P.
    Returns:
      Number of nodes moved: the smallest number that balances. Deterministic: yes (ties: lowest node id, then
      lowest part).
    """
    moves_made = 0
    counts = np.bincount(parts[train], minlength=num_parts)
    quota = _Quota(counts, len(train))
    candidates = train[quota.source_limit[parts[train]] > 0]
    links = _links(candidates, parts, adjacency, num_parts)
    waiting = np.ones(len(candidates), dtype=bool)  # not moved yet
    while quota.remaining:
        rows, targets = _cheapest_moves(candidates, links, parts, waiting, quota)
        moved = candidates[rows]
        sources = parts[moved]
        waiting[rows] = False
        parts[moved] = targets
        if adjacency.symmetric:  # else the moved nodes' rows do not say whose neighbours they are
            _update_links(links, (candidates, waiting), moved, (sources, targets), adjacency)
        counts += np.bincount(targets, minlength=num_parts) - np.bincount(sources, minlength=num_parts)
        moves_made += len(moved)
        quota = _Quota(counts, len(train))
    return moves_made


class _Quota:
    """How many train nodes each part may give and take now.

    Attributes:
      remaining: moves still needed.
      source_limit, target_limit: int64 [P]; a part may give / take at most this many.
      source_need, target_need: int64 [P]; this many of these bring the part within floor .. ceil.
      free: how many moves may lack the need on one of their sides: |over - under|.
    """

    def __init__(self, counts: np.ndarray, num_train: int) -> None:
        floor = num_train // len(counts)
        ceil = -(-num_train // len(counts))
        self.source_need = np.maximum(counts - ceil, 0)
        self.target_need = np.maximum(floor - counts, 0)
        over, under = int(self.source_need.sum()), int(self.target_need.sum())
        self.remaining = max(over, under)
        self.free = abs(over - under)
        self.source_limit = np.maximum(counts - floor, 0) if under > over else self.source_need
        self.target_limit = np.maximum(ceil - counts, 0) if over > under else self.target_need


def _cheapest_moves(
    candidates: np.ndarray, links: np.ndarray, parts: np.ndarray, waiting: np.ndarray, quota: _Quota
) -> tuple[np.ndarray, np.ndarray]:
    """The next batch of moves (rows of the candidates, targets), cheapest first, within the quota; at least one."""
    rows = np.flatnonzero(waiting)
    rows = rows[quota.source_limit[parts[candidates[rows]]] > 0]
    sources = parts[candidates[rows]]
    open_targets = np.flatnonzero(quota.target_limit > 0)
    best, cost = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    for lo, hi in row_chunks(len(rows), links.itemsize * links.shape[1]):
        choices = links[np.ix_(rows[lo:hi], open_targets)]
        best[lo:hi] = choices.argmax(axis=1)
        cost[lo:hi] = links[rows[lo:hi], sources[lo:hi]] - choices[np.arange(hi - lo), best[lo:hi]]
    order = np.argsort(cost, kind="stable")
    sources, targets = sources[order], open_targets[best[order]].astype(parts.dtype)
    # A move counts against its parts even when it is turned down below: that only makes the batch smaller. The
    # first one is never turned down.
    source_rank, target_rank = _rank_within(sources), _rank_within(targets)
    allowed = (source_rank < quota.source_limit[sources]) & (target_rank < quota.target_limit[targets])
    free = (source_rank >= quota.source_need[sources]) | (target_rank >= quota.target_need[targets])
    allowed &= ~free | (np.cumsum(free) <= quota.free)
    batch = np.flatnonzero(allowed)[: max(1, quota.remaining // BATCH_SHARE)]
    return rows[order[batch]], targets[batch]


def _links(nodes: np.ndarray, parts: np.ndarray, adjacency: Adjacency, num_parts: int) -> np.ndarray:
    """int32 (int64 where one node has more edges) [len(nodes), P]: weight of each node's edges into each part."""
    links = np.zeros((len(nodes), num_parts), dtype=np.int32)
    degrees = adjacency.indptr[nodes + 1] - adjacency.indptr[nodes]
    for lo, hi in edge_chunks(np.maximum(degrees, num_parts)):
        positions, owner = row_positions(adjacency.indptr, nodes[lo:hi])
        keys = owner * num_parts + parts[adjacency.indices[positions]]
        weights = None if adjacency.weights is None else adjacency.weights[positions]
        found = np.bincount(keys, weights, minlength=(hi - lo) * num_parts).reshape(-1, num_parts)
        if found.sum(axis=1).max() > np.iinfo(links.dtype).max:
            links = links.astype(np.int64)
        links[lo:hi] = found
    return links


def _update_links(
    links: np.ndarray,
    rows_of: tuple[np.ndarray, np.ndarray],
    moved: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    adjacency: Adjacency,
) -> None:
    """Take the moved nodes' edges from their old part to their new one in the rows of their neighbours.

    Args:
      links: see `_links`; changed in place.
      rows_of: the candidates, ascending, and which of them wait; a row of `links` each.
      moved: node ids.
      ends: old and new part of each.
      adjacency: symmetric.
    """
    candidates, waiting = rows_of
    positions, owner = row_positions(adjacency.indptr, moved)
    neighbours = adjacency.indices[positions]
    rows = np.minimum(np.searchsorted(candidates, neighbours), len(candidates) - 1)
    seen = waiting[rows] & (candidates[rows] == neighbours)
    rows, owner, positions = rows[seen], owner[seen], positions[seen]
    weights = 1 if adjacency.weights is None else adjacency.weights[positions]
    np.subtract.at(links, (rows, ends[0][owner]), weights)
    np.add.at(links, (rows, ends[1][owner]), weights)


def _rank_within(groups: np.ndarray) -> np.ndarray:
    """Position of each entry among the entries of its own group: [7, 5, 7, 7] -> [0, 0, 1, 2]."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(starts, append=len(groups))
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return ranks
