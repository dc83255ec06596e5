"""Exact laws of one row's draw: what can be picked, means, covariances, and every outcome with its probability.

`RowLaw` is what testing.check_sampler holds a sampler against. The three here are shared: by the methods (uniform.py,
weighted.py, labor.py have their own besides) and by users who check a sampler of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Protocol

import torch
from torch import Tensor

TAKE_ALL = -1
Outcomes = dict[tuple[int, ...], float]  # probability of every outcome, an ascending tuple of positions


MAX_DEGREE = 1024  # of rows whose moments, degree * degree numbers, are affordable


class RowLaw(Protocol):
    """The law of the picks of one row of `degree` edges, by position in the row.

    Attributes:
      max_degree: of rows whose moments are affordable.
    """

    max_degree: int

    @property
    def possible(self) -> list[bool]:
        """[degree]; whether a position can be picked at all."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether a position can be picked more than once."""
        ...

    @property
    def num_picks(self) -> tuple[int, int]:
        """(fewest, most) picks of the row, repeats counted."""
        ...

    @property
    def num_outcomes(self) -> int:
        """Outcomes that `outcomes` would list, or more."""
        ...

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean float64 [degree] and covariance float64 [degree, degree] of how often each position is picked."""
        ...

    def outcomes(self) -> Outcomes:
        """Probability of every outcome. Cost: as many steps as there are outcomes."""
        ...


@dataclass(frozen=True)
class Certain:
    """Every possible position is picked once.

    Attributes:
      possible: bool [degree].
    """

    possible: list[bool]
    repeats, max_degree = False, MAX_DEGREE
    num_outcomes = 1

    @property
    def num_picks(self) -> tuple[int, int]:
        """See RowLaw."""
        return sum(self.possible), sum(self.possible)

    def moments(self) -> tuple[Tensor, Tensor]:
        """See RowLaw."""
        degree = len(self.possible)
        return torch.tensor(self.possible, dtype=torch.float64), torch.zeros(degree, degree, dtype=torch.float64)

    def outcomes(self) -> Outcomes:
        """See RowLaw."""
        return {tuple(position for position, is_possible in enumerate(self.possible) if is_possible): 1.0}


@dataclass(frozen=True)
class Independent:
    """Every position is picked with its own probability, positions of one group together (Poisson sampling).

    Attributes:
      probabilities: [degree]; 0 .. 1, equal within a group.
      groups: [degree]; positions of the same value are picked together; None: each for itself.
    """

    probabilities: Sequence[float]
    groups: Sequence[int] | None = None
    repeats, max_degree = False, MAX_DEGREE

    @property
    def possible(self) -> list[bool]:
        """See RowLaw."""
        return [probability > 0.0 for probability in self.probabilities]

    @property
    def num_picks(self) -> tuple[int, int]:
        """See RowLaw."""
        return sum(probability >= 1.0 for probability in self.probabilities), sum(self.possible)

    @property
    def num_outcomes(self) -> int:
        """See RowLaw."""
        return 2 ** len(self._positions_of_group())

    def moments(self) -> tuple[Tensor, Tensor]:
        """See RowLaw."""
        mean = torch.tensor(self.probabilities, dtype=torch.float64)
        together = torch.zeros(mean.numel(), mean.numel(), dtype=torch.float64)
        for positions in self._positions_of_group():
            together[torch.tensor(positions)[:, None], torch.tensor(positions)] = 1.0
        return mean, together * torch.outer(mean, 1.0 - mean)

    def outcomes(self) -> Outcomes:
        """See RowLaw."""
        outcomes: Outcomes = {(): 1.0}
        for positions in self._positions_of_group():
            probability = self.probabilities[positions[0]]
            taken = {(*outcome, *positions): p * probability for outcome, p in outcomes.items()}
            outcomes = {outcome: p * (1.0 - probability) for outcome, p in outcomes.items()} | taken
        return {tuple(sorted(outcome)): p for outcome, p in outcomes.items()}

    def _positions_of_group(self) -> list[list[int]]:
        groups = defaultdict(list)
        for position in range(len(self.probabilities)):
            groups[position if self.groups is None else self.groups[position]].append(position)
        return list(groups.values())


@dataclass(frozen=True)
class Replaced:
    """A number of draws with replacement, each by the same shares (a multinomial).

    Attributes:
      shares: [degree]; 0 or more, proportional to each position's probability in a draw; all 0: nothing is picked.
      draws: number of them.
    """

    shares: Sequence[float]
    draws: int
    repeats, max_degree = True, MAX_DEGREE

    @property
    def possible(self) -> list[bool]:
        """See RowLaw."""
        return [share > 0.0 for share in self.shares]

    @property
    def num_picks(self) -> tuple[int, int]:
        """See RowLaw."""
        count = self.draws if any(self.possible) else 0
        return count, count

    @property
    def num_outcomes(self) -> int:
        """See RowLaw."""
        return math.comb(max(sum(self.possible), 1) + self.draws - 1, self.draws)

    def moments(self) -> tuple[Tensor, Tensor]:
        """See RowLaw."""
        share = torch.tensor(self._probabilities(), dtype=torch.float64)
        return self.draws * share, self.draws * (torch.diag(share) - torch.outer(share, share))

    def outcomes(self) -> Outcomes:
        """See RowLaw."""
        drawn, positions = self._probabilities(), [place for place, can in enumerate(self.possible) if can]
        if not positions:
            return {(): 1.0}
        return {
            outcome: _multinomial(outcome) * math.prod(drawn[position] for position in outcome)
            for outcome in combinations_with_replacement(positions, self.draws)
        }

    def _probabilities(self) -> list[float]:
        total = math.fsum(self.shares)
        return [share / total if total else 0.0 for share in self.shares]


def _multinomial(outcome: tuple[int, ...]) -> int:
    """In how many orders the multiset can be drawn."""
    orders = math.factorial(len(outcome))
    for position in set(outcome):
        orders //= math.factorial(outcome.count(position))
    return orders
