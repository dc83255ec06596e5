"""p-values of counts whose law is known, and the decision over many of them.

Two tools, each under the null hypothesis that trials are independent and follow the stated law:
- `tail_bound`: Chernoff's bound (Hoeffding, 1963, theorem 1) of a sum of bounded variables. It holds for every number
  of trials and every probability, so rare edges are tested as well as common ones.
- chi-square: for a total T of n independent vectors with mean m and covariance S, (T - n m)' (n S)^+ (T - n m) is
  asymptotically chi-square distributed with rank(S) degrees of freedom. Pearson's statistic is the case of a
  multinomial, and uniform draws without replacement give Pearson's times (d - 1) / (d - k), because
  S = k (d - k) / (d - 1) (diag(1/d) - 1/d^2). The limit needs counts: cells expected below MIN_EXPECTED are put
  together, and directions of a variance below it are left out.

`Evidence` holds the null hypothesis of all statistics together against the false-alarm rate: Bonferroni's inequality
bounds the chance that any of `count` p-values falls below false_alarm / count by false_alarm, whatever their
dependence. What remains approximate is the far tail of the chi-square limit: a Poisson count of mean 100 exceeds the
limits that belong to 1e-9 with probability 7.7e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastsample_dist.ops import checks

MIN_EXPECTED = 100.0


@dataclass
class Evidence:
    """The smallest p-value seen, what it belongs to, and of how many.

    Raises:
      ValueError: false_alarm is no number above 0 and below 1, with which nothing, or everything, would be found.
    """

    false_alarm: float
    count: int = 0
    smallest_p_value: float = 1.0
    text: str = "no statistic"

    def __post_init__(self) -> None:
        rate = checks.plain(self.false_alarm)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise ValueError(f"false_alarm is {self.false_alarm!r}; expected a number above 0 and below 1.")
        self.false_alarm = float(rate)

    def add(self, p_value: float | None, describe: Callable[[], str]) -> None:
        """Take one statistic; None stands for one that had too few counts to be formed."""
        if p_value is None:
            return
        self.count += 1
        if p_value < self.smallest_p_value:
            self.smallest_p_value, self.text = p_value, describe()

    def decide(self) -> None:
        """Raise AssertionError when the smallest p-value is below its share of the false-alarm rate."""
        limit = self.false_alarm / max(self.count, 1)
        if self.smallest_p_value < limit:
            raise AssertionError(
                f"{self.text}; p-value {self.smallest_p_value:.1e}, expected at least {limit:.1e} (false-alarm rate "
                f"{self.false_alarm:g} over {self.count} statistics)."
            )


def chi_square_p(statistic: float, freedom: int) -> float:
    """Probability that a chi-square variable of `freedom` degrees exceeds `statistic`."""
    half = torch.tensor([freedom / 2.0, statistic / 2.0], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def tail_bound(total: float, trials: int, mean: float) -> float:
    """Bound of the two-sided p-value of a total over independent trials in [0, 1] with the given mean."""
    found, mean = total / trials, min(mean, 1.0)
    if math.isclose(found, mean, rel_tol=1e-12):
        return 1.0
    if mean in (0.0, 1.0):
        return 0.0
    divergence = 0.0
    if found > 0.0:
        divergence += found * math.log(found / mean)
    if found < 1.0:
        divergence += (1.0 - found) * math.log((1.0 - found) / (1.0 - mean))
    return min(1.0, 2.0 * math.exp(-trials * divergence))


def pearson_p(observed: Sequence[float], expected: Sequence[float]) -> float | None:
    """p-value of multinomial counts; rare cells count as one. None when fewer than two cells have counts enough."""
    groups = _lump(np.asarray(expected, dtype=np.float64))
    if len(groups) < 2:
        return None
    seen = np.array([np.sum(np.take(observed, group)) for group in groups])
    wanted = np.array([np.sum(np.take(expected, group)) for group in groups])
    return chi_square_p(float(np.sum((seen - wanted) ** 2 / wanted)), len(groups) - 1)


def quadratic_p(total: np.ndarray, trials: int, mean: np.ndarray, covariance: np.ndarray) -> float | None:
    """p-value of summed vectors of known mean and covariance; None when no direction varies enough."""
    groups = _lump(trials * mean)
    combine = np.zeros((len(groups), mean.size))
    for row, group in enumerate(groups):
        combine[row, group] = 1.0
    deviation = combine @ (total - trials * mean)
    variances, directions = np.linalg.eigh(trials * combine @ covariance @ combine.T)
    kept = variances >= MIN_EXPECTED / 2.0
    if not kept.any():
        return None
    along = directions.T[kept] @ deviation
    return chi_square_p(float(np.sum(along**2 / variances[kept])), int(kept.sum()))


def correlation_p(left: np.ndarray, right: np.ndarray, covariances: tuple[np.ndarray, np.ndarray]) -> float | None:
    """p-value of the independence of two vectors: their centred draws [trials, cells], multiplied and summed.

    The sum has mean 0 and variance trials * sum(left covariance * right covariance). None when it varies too little.
    """
    variance = left.shape[0] * float(np.sum(covariances[0] * covariances[1]))
    if variance < MIN_EXPECTED:
        return None
    return chi_square_p(float(np.sum(left * right)) ** 2 / variance, 1)


def _lump(expected: np.ndarray) -> list[np.ndarray]:
    """Cells of at least MIN_EXPECTED alone, rarer ones together, with the next larger one while that is not enough."""
    order = np.argsort(expected, kind="stable")
    first = int(np.searchsorted(expected[order], MIN_EXPECTED))
    rest = order[:first]
    alone = [order[i : i + 1] for i in range(first, order.size)]
    if rest.size == 0:
        return alone
    if expected[rest].sum() >= MIN_EXPECTED or not alone:
        return [rest, *alone]
    return [np.concatenate([rest, alone[0]]), *alone[1:]]
