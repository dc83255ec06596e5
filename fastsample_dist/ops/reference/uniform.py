"""Method "uniform" by definition: Floyd's selection, or bounded draws with replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.ops.reference.laws import MAX_DEGREE, TAKE_ALL, Certain, Outcomes, Replaced, RowLaw
from fastsample_dist.ops.reference.streams import below

if TYPE_CHECKING:
    from fastsample_dist.ops.reference.sampling import Row


def draw(row: Row) -> list[int]:
    """Positions that a row's destination takes, in the order they are drawn."""
    return pick(row.words(), row.degree, row.fanout, row.spec.replace)


def pick(words: Iterator[int], degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions taken out of 0 .. degree - 1, in the order they are drawn (Floyd's selection)."""
    if fanout == TAKE_ALL or (not replace and degree <= fanout):
        return list(range(degree))
    if replace:
        return [below(words, degree) for _ in range(fanout)] if degree else []
    taken: list[int] = []
    for last in range(degree - fanout, degree):
        drawn = below(words, last + 1)
        taken.append(last if drawn in taken else drawn)
    return taken


def law(weights: Sequence[float], fanout: int, sources: Sequence[int] | None = None, *, replace: bool) -> RowLaw:
    """The law of `draw` for a row of len(weights) edges."""
    degree = len(weights)
    if fanout == TAKE_ALL or (not replace and degree <= fanout):
        return Certain([True] * degree)
    return Replaced([1.0] * degree, fanout) if replace else Subset(degree, fanout)


@dataclass(frozen=True)
class Subset:
    """Every set of `fanout` positions has the same probability; fanout < degree."""

    degree: int
    fanout: int
    repeats, max_degree = False, MAX_DEGREE

    @property
    def possible(self) -> list[bool]:
        """See RowLaw."""
        return [True] * self.degree

    @property
    def num_picks(self) -> tuple[int, int]:
        """See RowLaw."""
        return self.fanout, self.fanout

    @property
    def num_outcomes(self) -> int:
        """See RowLaw."""
        return math.comb(self.degree, self.fanout)

    def moments(self) -> tuple[Tensor, Tensor]:
        """See RowLaw."""
        degree, share = self.degree, self.fanout / self.degree
        mean = torch.full((degree,), share, dtype=torch.float64)
        both = torch.full((degree, degree), share * ((self.fanout - 1) / max(degree - 1, 1)), dtype=torch.float64)
        both.fill_diagonal_(share)
        both = both if self.fanout else torch.zeros_like(both)
        return mean, both - torch.outer(mean, mean)

    def outcomes(self) -> Outcomes:
        """See RowLaw."""
        return dict.fromkeys(combinations(range(self.degree), self.fanout), 1.0 / self.num_outcomes)
