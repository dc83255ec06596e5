"""Exact laws of one row's draw: every possible outcome with its probability, and means and covariances of the picks.

A row is given by its weights (ones when the draw is uniform) and, for LABOR, its sources: edges of one source share a
variate. Weighted drawing without replacement is successive sampling: the next neighbour is drawn with probability
proportional to weight among those left. Two ways lead to its law, and a test compares them: adding up over all orders
of drawing (`pick_distribution`), and the exponential race, in which neighbour i arrives at a time of rate weights[i]
and the first `fanout` to arrive are taken (`inclusion_moments`; Efraimidis & Spirakis, 2006), any degree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops.reference.sampling import TAKE_ALL

RACE_STEP = 0.125  # of the trapezoid rule in log time: errors below 1e-12; with twice the step up to 1e-8
RACE_LOST = 1e-17  # share of the integral left out before the first and after the last arrival


def pick_distribution(
    weights: Sequence[float],
    fanout: int,
    sources: Sequence[int] | None = None,
    *,
    replace: bool = False,
    method: str = "uniform",
) -> dict[tuple[int, ...], float]:
    """Probability of every outcome, an ascending tuple of positions. Cost: as many steps as there are outcomes."""
    positive = _drawn_from(weights, method)
    if _takes_all(positive, fanout, replace):
        return {tuple(positive): 1.0}
    if method == "labor":
        return _layer_distribution(_by_source(weights, sources), fanout / len(weights))
    shares = _shares(weights, positive, method)
    if not positive:
        return {(): 1.0}
    if replace:
        return {
            outcome: _multinomial(outcome) * math.prod(shares[position] for position in outcome)
            for outcome in combinations_with_replacement(positive, fanout)
        }
    if method == "uniform":
        count = math.comb(len(positive), fanout)
        return dict.fromkeys(combinations(positive, fanout), 1.0 / count)
    return _successive_distribution({position: shares[position] for position in positive}, fanout)


def inclusion_probabilities(
    weights: Sequence[float], fanout: int, *, replace: bool = False, method: str = "uniform"
) -> Tensor:
    """float64 [degree]: probability that a position is taken; with replacement, how often it is on average."""
    return inclusion_moments(weights, fanout, replace=replace, method=method)[0]


def inclusion_moments(
    weights: Sequence[float],
    fanout: int,
    sources: Sequence[int] | None = None,
    *,
    replace: bool = False,
    method: str = "uniform",
) -> tuple[Tensor, Tensor]:
    """Mean float64 [degree] and covariance float64 [degree, degree] of how often each position is taken."""
    degree, positive = len(weights), _drawn_from(weights, method)
    mean = torch.zeros(degree, dtype=torch.float64)
    if _takes_all(positive, fanout, replace):
        mean[positive] = 1.0
    if fanout == 0 or _takes_all(positive, fanout, replace):
        return mean, torch.zeros(degree, degree, dtype=torch.float64)
    if method == "labor":
        mean += math.ceil(fanout * 2**32 / degree) / 2**32
        shared = torch.zeros(degree, degree, dtype=torch.float64)
        for positions in _by_source(weights, sources):
            shared[torch.tensor(positions)[:, None], torch.tensor(positions)] = 1.0
        return mean, shared * torch.outer(mean, 1.0 - mean)
    share = torch.tensor(_shares(weights, positive, method), dtype=torch.float64)
    if replace:
        return fanout * share, fanout * (torch.diag(share) - torch.outer(share, share))
    if method == "uniform":
        mean += fanout / degree
        both = torch.full((degree, degree), fanout / degree * ((fanout - 1) / max(degree - 1, 1)), dtype=torch.float64)
        both.fill_diagonal_(fanout / degree)
    else:
        alone, together = _race(share[positive].numpy(), fanout)
        mean[positive] = torch.from_numpy(alone)
        both = torch.zeros(degree, degree, dtype=torch.float64)
        both[torch.tensor(positive)[:, None], torch.tensor(positive)] = torch.from_numpy(together)
    return mean, both - torch.outer(mean, mean)


def _drawn_from(weights: Sequence[float], method: str) -> list[int]:
    """Positions that can be taken."""
    return [position for position, weight in enumerate(weights) if method != "weighted" or weight > 0.0]


def _takes_all(positive: list[int], fanout: int, replace: bool) -> bool:
    return fanout == TAKE_ALL or (not replace and len(positive) <= fanout)


def _shares(weights: Sequence[float], positive: list[int], method: str) -> list[float]:
    """Probability of each position in a single draw."""
    weights = weights if method == "weighted" else [1.0] * len(weights)
    total = math.fsum(weights)
    return [weight / total for weight in weights] if positive else list(weights)


def _by_source(weights: Sequence[float], sources: Sequence[int] | None) -> list[list[int]]:
    """Positions grouped by source; every edge has its own when none are given."""
    groups = defaultdict(list)
    for position, source in enumerate(range(len(weights)) if sources is None else sources):
        groups[source].append(position)
    return list(groups.values())


def _layer_distribution(groups: list[list[int]], probability: float) -> dict[tuple[int, ...], float]:
    outcomes = {(): 1.0}
    for positions in groups:
        taken = {(*outcome, *positions): p * probability for outcome, p in outcomes.items()}
        outcomes = {outcome: p * (1.0 - probability) for outcome, p in outcomes.items()} | taken
    return {tuple(sorted(outcome)): p for outcome, p in outcomes.items()}


def _multinomial(outcome: tuple[int, ...]) -> int:
    """In how many orders the multiset can be drawn."""
    orders = math.factorial(len(outcome))
    for position in set(outcome):
        orders //= math.factorial(outcome.count(position))
    return orders


def _successive_distribution(shares: dict[int, float], fanout: int) -> dict[tuple[int, ...], float]:
    """Set by set: the last position drawn was drawn among those that the others had left."""
    outcomes = {(): 1.0}
    for _ in range(fanout):
        longer: dict[tuple[int, ...], float] = defaultdict(float)
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
    than fanout - 1 of the rest; by the trapezoid rule in log t, where the integrand is analytic and dies at both ends.
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
