"""Inclusion probabilities of one hop, edge by edge in plain Python.

`exp_negative` and `minus_log` are the operator's polynomials, so that results can be compared for equality; a test
holds them against `math`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

UNIT = 2.0**48
MOST_NATS = 32.0  # of one row
MOST_HAZARD = 2**61
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fefa0000p-1"), float.fromhex("0x1.cf79abc9e3b3ap-40")


def exp_negative(x: float) -> float:
    """exp(-x) for x >= 0."""
    x = min(x, 700.0)
    n = float(round(x * 1.4426950408889634))
    r = (n * LN2_HIGH - x) + n * LN2_LOW
    series = 1.0
    for term in range(13, 0, -1):
        series = 1 + series * (r * (1.0 / term))
    return math.ldexp(series, -int(n))


def minus_log(y: float) -> float:
    """-ln(y) for 0 < y <= 1."""
    m, exponent = math.frexp(y)
    if m < float.fromhex("0x1.6a09e667f3bcdp-1"):  # sqrt(1/2)
        m, exponent = 2 * m, exponent - 1
    z = (m - 1) / (m + 1)
    series = 0.0
    for term in range(11, -1, -1):
        series = series * (z * z) + 1.0 / (2 * term + 1)
    return -(2 * z * series + exponent * LN2_LOW) - exponent * LN2_HIGH


def hazard_of(chance: float) -> float:
    """-ln(1 - chance), at most MOST_NATS."""
    return min(minus_log(1 - chance), MOST_NATS) if chance < 1 else MOST_NATS


def chances(weights: Sequence[float] | None, degree: int, fanout: int, replace: bool) -> list[float] | None:
    """Probability that a row's destination picks each of its neighbours; None: it takes all that it may."""
    if weights is None:
        if fanout < 0 or degree <= (1 if replace else fanout):
            return None
        share = 1 / degree
        return [1 - exp_negative(fanout * hazard_of(share)) if replace else fanout * share] * degree
    shares = [weight / max(weights) if max(weights) > 0 else 0.0 for weight in weights]
    if not replace and (fanout < 0 or sum(share > 0 for share in shares) <= fanout):
        return None
    total = 0.0
    for share in shares:  # sum() compensates from Python 3.12 on
        total += share
    rate = 0.0 if replace else _rate(shares, total, fanout)
    return [
        (1 - exp_negative(fanout * hazard_of(share / total) if replace else rate * share)) if share > 0 else 0.0
        for share in shares
    ]


def inclusion_probabilities(
    indptr: Tensor,
    indices: Tensor,
    hazards: Tensor,
    fanout: int,
    *,
    weights: Tensor | None = None,
    replace: bool = False,
) -> Tensor:
    """See `ops.inclusion_probabilities`."""
    sums = [0] * len(hazards)
    for v, hazard in enumerate(hazards.tolist()):
        lo, hi = int(indptr[v]), int(indptr[v + 1])
        if hazard == 0 or fanout == 0:
            continue
        row = None if weights is None else weights[lo:hi].double().tolist()
        able = [True] * (hi - lo) if row is None else [weight / max(row) > 0 if weight > 0 else False for weight in row]
        picks = chances(row, hi - lo, fanout, replace)
        before = 1 - exp_negative(hazard / UNIT)
        for i, u in enumerate(indices[lo:hi].tolist()):
            if picks is not None:
                sums[u] += int(hazard_of(picks[i] * before) * UNIT + 0.5)
            elif able[i]:
                sums[u] += min(hazard, int(MOST_NATS * UNIT))
    return torch.tensor([min(total, MOST_HAZARD) for total in sums], dtype=torch.int64)


def _rate(shares: Sequence[float], total: float, fanout: int) -> float:
    """Newton's method from 0 for the rate at which 1 - exp(-rate * share) adds up to the fanout."""
    rate = fanout / total
    for _ in range(200):
        picked = slope = 0.0
        for share in shares:
            rest = exp_negative(rate * share)
            picked += 1 - rest
            slope += share * rest
        more = (fanout - picked) / slope if slope > 0 else math.inf
        if not more > rate * 1e-12 or not math.isfinite(rate + more):
            break
        rate += more
    return rate
