"""One row's picks over many trials, held against the exact law of its draw (ops/reference/laws.py)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastsample_dist.ops.reference import RowLaw
from fastsample_dist.testing.statistics import Evidence, correlation_p, pearson_p, quadratic_p, tail_bound

MAX_PAIRED = 64  # classes whose pairs are looked at
TRIALS_PER_OUTCOME = 10  # where there are more outcomes, most are too rare to be told apart


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the graph, its edges in classes that cannot be told apart in a batch.

    Attributes:
      node: the destination.
      class_of_position: int [degree].
      sources: source node of each class.
      laws: per hop, the law of its picks by position.
    """

    node: int
    class_of_position: np.ndarray
    sources: np.ndarray
    laws: tuple[RowLaw, ...]

    @property
    def degree(self) -> int:
        """In-edges, parallel ones each."""
        return self.class_of_position.size

    @property
    def num_classes(self) -> int:
        """Columns that the row's counts take."""
        return self.sources.size

    @property
    def is_tractable(self) -> bool:
        """Whether its exact laws are affordable."""
        return 0 < self.degree <= min(law.max_degree for law in self.laws)


class RowPicks:
    """How often one row took each class of its edges in one hop.

    Args:
      row: of the graph.
      hop: 0 at the seeds.
      fanout: of the hop.
      counts: int [trials, num_classes].
    """

    def __init__(self, row: Row, hop: int, fanout: int, counts: np.ndarray) -> None:
        self.row, self.hop, self.fanout, self.counts = row, hop, fanout, counts
        self.law = row.laws[hop]
        mean, covariance = self.law.moments()
        combine = np.zeros((row.num_classes, row.degree))
        combine[row.class_of_position, np.arange(row.degree)] = 1.0
        self.mean = combine @ mean.numpy()
        self.covariance = combine @ covariance.numpy() @ combine.T
        self.room = combine.sum(axis=1)

    @property
    def trials(self) -> int:
        """Batches."""
        return self.counts.shape[0]

    @property
    def is_random(self) -> bool:
        """False where everything is taken, which counting alone has checked."""
        return bool((self.covariance.diagonal() > 0.0).any())

    @cached_property
    def centred(self) -> np.ndarray:
        """Counts less their means."""
        return self.counts - self.mean

    def __str__(self) -> str:
        return f"hop {self.hop}, node {self.row.node} (degree {self.row.degree}, fanout {self.fanout})"

    def weigh(self, evidence: Evidence) -> None:
        """Edges, the row as a whole, pairs, sets, consecutive steps."""
        self._weigh_edges(evidence)
        total = self.counts.sum(axis=0)
        p_value = quadratic_p(total, self.trials, self.mean, self.covariance)
        evidence.add(p_value, lambda: f"{self}: its edges were taken {_short(total)} times in {self.trials} steps, "
                     f"expected {_short(self.trials * self.mean)}")  # fmt: skip
        self._weigh_pairs(evidence)
        self._weigh_outcomes(evidence)
        shifted = (self.centred[:-1], self.centred[1:])
        self._weigh_correlation(*shifted, self.covariance, "in the step after", evidence)

    def weigh_with(self, other: RowPicks, evidence: Evidence) -> None:
        """Independence of the picks at the same places of another row, or of the same row in another hop."""
        self._weigh_correlation(self.centred, other.centred, other.covariance, f"of {other}", evidence)

    def _weigh_correlation(
        self, left: np.ndarray, right: np.ndarray, covariance: np.ndarray, whose: str, evidence: Evidence
    ) -> None:
        p_value = correlation_p(left, right, (self.covariance, covariance))
        together = float(np.sum(left * right)) / left.shape[0]
        text = f"{self}: its picks are correlated with those {whose}: covariance {together:.4g}, expected 0"
        evidence.add(p_value, lambda: text)

    def _weigh_edges(self, evidence: Evidence) -> None:
        repeats, most = self.law.repeats, self.law.num_picks[1]
        draws = self.trials * most if repeats else self.trials
        room = np.full(self.room.size, most) if repeats else self.room
        for column, total in enumerate(self.counts.sum(axis=0).tolist()):
            mean = float(self.mean[column])
            share = total if repeats else total / room[column]
            p_value = tail_bound(share, draws, mean / room[column])
            evidence.add(p_value, lambda c=column, t=total, m=mean: f"{self}: the edge from node {self.row.sources[c]} "
                         f"was taken {t} times in {self.trials} steps, expected {self.trials * m:.1f}")  # fmt: skip

    def _weigh_pairs(self, evidence: Evidence) -> None:
        if self.law.repeats or self.row.num_classes > MAX_PAIRED:
            return
        single = np.nonzero(self.room == 1)[0]
        taken = self.counts[:, single].astype(np.float64)
        seen = taken.T @ taken
        expected = self.covariance + np.outer(self.mean, self.mean)
        for i, first in enumerate(single):
            for j, second in enumerate(single[:i]):
                mean = max(float(expected[first, second]), 0.0)
                p_value = tail_bound(seen[i, j], self.trials, mean)
                evidence.add(p_value, lambda a=first, b=second, t=seen[i, j], m=mean: (
                    f"{self}: the edges from nodes {self.row.sources[a]} and {self.row.sources[b]} were taken together "
                    f"{t:.0f} times in {self.trials} steps, expected {self.trials * m:.1f}"))  # fmt: skip

    def _weigh_outcomes(self, evidence: Evidence) -> None:
        if self.law.num_outcomes > self.trials // TRIALS_PER_OUTCOME:
            return
        law: dict[tuple[int, ...], float] = defaultdict(float)
        for positions, probability in self.law.outcomes().items():
            picked = np.bincount(self.row.class_of_position[list(positions)], minlength=self.row.num_classes)
            law[tuple(picked.tolist())] += probability
        seen, times = np.unique(self.counts, axis=0, return_counts=True)
        observed = dict.fromkeys(law, 0)
        for outcome, number in zip(map(tuple, seen.tolist()), times.tolist(), strict=True):
            if outcome not in law:
                evidence.add(0.0, lambda o=outcome, t=number: (
                    f"{self}: its edges were taken {_short(o)} times in {t} steps, which cannot happen"))  # fmt: skip
                return
            observed[outcome] = number
        expected = [self.trials * probability for probability in law.values()]
        p_value = pearson_p(list(observed.values()), expected)
        evidence.add(p_value, lambda: f"{self}: its {len(law)} possible sets of picks came "
                     f"{_short(observed.values())} times, expected {_short(expected)}")  # fmt: skip


def _short(values) -> str:
    """The first numbers of a list."""
    numbers = [f"{value:.0f}" for value in values]
    return ", ".join(numbers[:12]) + (", ..." if len(numbers) > 12 else "")
