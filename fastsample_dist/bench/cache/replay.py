"""How many remote rows of a run each cache would have held: steps in their order, one cache, one rank.

A static cache holds the same rows throughout. The others replace rows after a step: at hand are the rows held and those
that the step has fetched, and of these as many as there are slots stay.

    lookahead  `policies.Lookahead`, as at run time: of an epoch's batches, the next ones are known
    belady     those that are used again soonest, the whole run known (Belady 1966): no cache that fetches only
               what is wanted has more hits. It starts with the rows that are used first
    lru        those that were used last; it starts empty
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.features.policies import Lookahead

Epochs = Sequence[Sequence[Tensor]]  # remote input nodes, int64, of each step of each epoch


def static_hits(visits: Tensor, order: Tensor, slots: int) -> int:
    """Hits of a cache of the first nodes of `order`.

    Args:
      visits: int64 [num_nodes]; steps of the run that want each node.
      order: int64; nodes that may be cached, hottest first.
      slots: rows held.
    """
    return int(visits[order[:slots]].sum())


def lookahead_hits(epochs: Epochs, order: Tensor, orig_ids: Tensor, slots: int, window: int) -> int:
    """Hits of a cache that knows the next `window` batches of the epoch under way."""
    if slots == 0:
        return 0
    cache, hits = Lookahead(order, orig_ids, slots, window), 0
    held = torch.zeros(len(orig_ids), dtype=torch.bool)
    held[cache.nodes[cache.nodes >= 0]] = True
    for steps in epochs:
        for number, wanted in enumerate(steps):
            found = held[wanted]
            hits += int(found.sum())
            fetched = wanted[~found]
            before = cache.nodes.clone()
            places, rows = cache.replace(fetched, steps[number + 1 : number + 1 + window])
            left = before[places]
            held[left[left >= 0]] = False
            held[fetched[rows]] = True
    return hits


def belady_hits(epochs: Epochs, num_nodes: int, slots: int) -> int:
    """Hits of a cache that knows the whole run."""
    steps = [wanted.numpy() for epoch in epochs for wanted in epoch]
    upcoming = np.full(num_nodes, len(steps), dtype=np.int64)  # next step that wants a node
    after = []  # per step: the next one that wants each of its nodes
    for number in reversed(range(len(steps))):
        after.append(upcoming[steps[number]])
        upcoming[steps[number]] = number
    first = np.flatnonzero(upcoming < len(steps))
    held, hits = first[np.argsort(upcoming[first], kind="stable")][:slots], 0
    for wanted, later in zip(steps, reversed(after), strict=True):
        held, found = _keep(held, wanted, slots, upcoming, later)
        hits += found
    return hits


def lru_hits(epochs: Epochs, num_nodes: int, slots: int) -> int:
    """Hits of a cache of the rows that were used last; of one step's the last ones in its order."""
    coldness = np.zeros(num_nodes, dtype=np.int64)  # falls with every use
    held, hits, used = np.empty(0, dtype=np.int64), 0, 0
    for epoch in epochs:
        for wanted in epoch:
            coldest = -used - np.arange(1, len(wanted) + 1)
            held, found = _keep(held, wanted.numpy(), slots, coldness, coldest)
            hits, used = hits + found, used + len(wanted)
    return hits


def _keep(
    held: np.ndarray, wanted: np.ndarray, slots: int, keys: np.ndarray, new_keys: np.ndarray
) -> tuple[np.ndarray, int]:
    """(what is held after a step: the smallest keys, of equal ones the smallest ids; its hits).

    `keys` get the step's new keys."""
    is_held = np.zeros(len(keys), dtype=bool)
    is_held[held] = True
    missing = wanted[~is_held[wanted]]
    keys[wanted] = new_keys
    at_hand = np.concatenate([held, missing])
    if len(at_hand) > slots:
        ranked = keys[at_hand] * len(keys) + at_hand
        at_hand = at_hand[np.argpartition(ranked, slots)[:slots]] if slots else at_hand[:0]
    return at_hand, len(wanted) - len(missing)
