"""Method "weighted" by definition: alias draws, and successive sampling where they give up.

Without replacement the next neighbour is drawn with probability proportional to weight among those left. Two ways lead
to that law, and a test compares them: adding up over all orders of drawing (`Successive.outcomes`), and the exponential
race, in which neighbour i arrives at a time of rate weights[i] and the first `fanout` to arrive are taken
(`Successive.moments`; Efraimidis & Spirakis, 2006), any degree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops.reference.laws import TAKE_ALL, Certain, Outcomes, Replaced, RowLaw
from fastsample_dist.ops.reference.streams import below

if TYPE_CHECKING:
    from fastsample_dist.ops.reference.sampling import Row

ALIAS_DRAWS = 4  # per neighbour wanted: without replacement, the alias draws before the rest is drawn exactly
RACE_STEP = 0.125  # of the trapezoid rule in log time: errors below 1e-12; with twice the step up to 1e-8
MAX_RACE_DEGREE = 32  # the moments cost O(degree^3 * fanout)
RACE_LOST = 1e-17  # share of the integral left out before the first and after the last arrival


class AliasRow(NamedTuple):
    """One row's alias table: slot i stands for position i where a word is below thresholds[i], else for aliases[i]."""

    thresholds: list[int]
    aliases: list[int]


def draw(row: Row) -> list[int]:
    """Positions that a row's destination takes, in the order they are drawn."""
    return weighted_pick(row.words(), row.weights(), row.fanout, row.spec.replace)


def law(weights: Sequence[float], fanout: int, sources: Sequence[int] | None = None, *, replace: bool) -> RowLaw:
    """The law of `draw` for a row of these weights."""
    possible = [weight > 0.0 for weight in weights]
    if fanout == TAKE_ALL or (not replace and sum(possible) <= fanout):
        return Certain(possible)
    return Replaced(weights, fanout) if replace else Successive(weights, fanout)


@dataclass(frozen=True)
class Successive:
    """`fanout` draws, each by weight among what is left; fewer than there are positive weights."""

    weights: Sequence[float]
    fanout: int
    repeats, max_degree = False, MAX_RACE_DEGREE

    @property
    def possible(self) -> list[bool]:
        """See RowLaw."""
        return [weight > 0.0 for weight in self.weights]

    @property
    def num_picks(self) -> tuple[int, int]:
        """See RowLaw."""
        return self.fanout, self.fanout

    @property
    def num_outcomes(self) -> int:
        """See RowLaw."""
        return math.comb(sum(self.possible), self.fanout)

    def moments(self) -> tuple[Tensor, Tensor]:
        """See RowLaw. Cost: O(degree^3 * fanout)."""
        degree, positive = len(self.weights), [place for place, can in enumerate(self.possible) if can]
        mean, both = torch.zeros(degree, dtype=torch.float64), torch.zeros(degree, degree, dtype=torch.float64)
        if self.fanout:
            rates = np.array([self.weights[place] for place in positive]) / math.fsum(self.weights)
            alone, together = _race(rates, self.fanout)
            mean[positive] = torch.from_numpy(alone)
            both[torch.tensor(positive)[:, None], torch.tensor(positive)] = torch.from_numpy(together)
        return mean, both - torch.outer(mean, mean)

    def outcomes(self) -> Outcomes:
        """See RowLaw."""
        total = math.fsum(self.weights)
        shares = {place: weight / total for place, weight in enumerate(self.weights) if weight > 0.0}
        return _successive_distribution(shares, self.fanout)


def alias_row(weights: list[float]) -> AliasRow:
    """Alias table of one row (Vose, 1991). A row without positive weight has thresholds 0 and is never drawn from."""
    degree, total = len(weights), _sum_from_left(weights)
    thresholds, aliases = [0] * degree, list(range(degree))
    if total == 0.0:
        return AliasRow(thresholds, aliases)
    share = [weight * (degree / total) for weight in weights]
    small = [i for i in range(degree) if share[i] < 1.0]
    large = [i for i in range(degree) if not share[i] < 1.0]
    while small and large:
        poor, rich = small.pop(), large[-1]
        thresholds[poor] = min(int(share[poor] * 2.0**32), 2**32 - 1)
        aliases[poor] = rich
        share[rich] = (share[rich] + share[poor]) - 1.0
        if share[rich] < 1.0:
            small.append(large.pop())
    for left in small + large:
        if weights[left] > 0.0:
            thresholds[left] = 2**32 - 1
        else:
            aliases[left] = weights.index(max(weights))
    return AliasRow(thresholds, aliases)


def alias_tables(indptr: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """All rows: int32 [num_edges, 2], the bits of (threshold, alias); int64 [num_rows], positive weights per row."""
    entries: list[tuple[int, int]] = []
    num_positive = []
    for start, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        row = weights[start:end].double().tolist()
        table = alias_row(row)
        entries += zip((_as_int32(threshold) for threshold in table.thresholds), table.aliases, strict=True)
        num_positive.append(sum(weight > 0.0 for weight in row))
    table = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).to(torch.int32)
    return table, torch.tensor(num_positive, dtype=torch.int64)


def weighted_pick(words: Iterator[int], weights: list[float], fanout: int, replace: bool) -> list[int]:
    """Positions drawn with probability proportional to weight, in the order they are drawn.

    Without replacement by successive sampling: alias draws while they last, then draws among what is left.
    """
    positive = [position for position, weight in enumerate(weights) if weight > 0.0]
    if fanout == TAKE_ALL or (not replace and len(positive) <= fanout):
        return positive
    if not positive:
        return []
    table = alias_row(weights)
    if replace:
        return [_alias_draw(words, table) for _ in range(fanout)]
    taken: list[int] = []
    draws = 0
    while len(taken) < fanout and draws < ALIAS_DRAWS * fanout:
        position = _alias_draw(words, table)
        draws += 1
        if position not in taken:
            taken.append(position)
    while len(taken) < fanout:
        left = [0.0 if position in taken else weight for position, weight in enumerate(weights)]
        taken.append(_tree_draw(words, left))
    return taken


def _alias_draw(words: Iterator[int], table: AliasRow) -> int:
    slot = below(words, len(table.thresholds))
    return slot if next(words) < table.thresholds[slot] else table.aliases[slot]


def _tree_draw(words: Iterator[int], weights: list[float]) -> int:
    """A position with probability proportional to its weight: a descent through a binary tree of sums."""
    size = 1
    while size < len(weights):
        size *= 2
    leaves = weights + [0.0] * (size - len(weights))
    low = next(words)
    variate = low | next(words) << 32
    x = (variate >> 11) * 2.0**-53 * _tree_sum(leaves)
    first = 0
    while size > 1:
        size //= 2
        left, right = _tree_sum(leaves[first : first + size]), _tree_sum(leaves[first + size : first + 2 * size])
        if left > 0.0 and (right == 0.0 or x < left):
            continue
        x -= left
        first += size
    return first


def _tree_sum(leaves: list[float]) -> float:
    half = len(leaves) // 2
    return leaves[0] if half == 0 else _tree_sum(leaves[:half]) + _tree_sum(leaves[half:])


def _sum_from_left(values: list[float]) -> float:
    """Rounded after every term; sum() of newer Pythons compensates the rounding."""
    return list(accumulate(values, initial=0.0))[-1]


def _as_int32(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def _successive_distribution(shares: dict[int, float], fanout: int) -> Outcomes:
    """Set by set: the last position drawn was drawn among those that the others had left."""
    outcomes: Outcomes = {(): 1.0}
    for _ in range(fanout):
        longer: Outcomes = defaultdict(float)
        for outcome, p in outcomes.items():
            left = {position: share for position, share in shares.items() if position not in outcome}
            total = math.fsum(left.values())
            for position, share in left.items():
                longer[tuple(sorted((*outcome, position)))] += p * (share / total)
        outcomes = dict(longer)
    return outcomes


def _race(rates: np.ndarray, fanout: int) -> tuple[np.ndarray, np.ndarray]:
    """Probability [n] that i is among the first `fanout` to arrive, and [n, n] that i and j both are.

    P(i) = integral of rate_i exp(-rate_i t) P(fewer than `fanout` others arrived by t) dt, and with j before i, fewer
    than fanout - 1 of the rest; by the trapezoid rule in log t, where the integrand is analytic and vanishes at both
    ends.
    Cost: O(n^3 * fanout).
    """
    count = rates.size
    begin = math.log(RACE_LOST / rates.sum())
    end = math.log(-math.log(RACE_LOST) / rates.min())
    time = np.exp(np.arange(begin, end, RACE_STEP))
    arrived = -np.expm1(-rates[:, None] * time)
    arriving = rates[:, None] * time * np.exp(-rates[:, None] * time) * RACE_STEP
    mean, later = np.zeros(count), np.zeros((count, count))
    for i in range(count):
        # others[j, c]: probability, by time, that c of all but i and j have arrived; others[i, c] leaves out i alone
        others = np.zeros((count, fanout, time.size))
        others[:, 0] = 1.0
        for j in range(count):
            if j != i:
                kept = others[j].copy()
                others[:, 1:] = others[:, 1:] * (1.0 - arrived[j]) + others[:, :-1] * arrived[j]
                others[:, 0] *= 1.0 - arrived[j]
                others[j] = kept
        mean[i] = np.sum(arriving[i] * others[i].sum(0))
        later[i] = np.sum(arriving[i] * arrived * others[:, : fanout - 1].sum(1), axis=1)
        later[i, i] = 0.0
    return mean, later + later.T + np.diag(mean)
