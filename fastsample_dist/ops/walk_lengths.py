"""Lengths of walks that end by chance, as the compiled core draws them (core/transit_draw.h, FS_NEXT_PPR)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def survival_thresholds(stop: float, most: int | None = None) -> np.ndarray:
    """floor((1 - stop)^k * 2^63) for k = 1, 2, ... while it is above 0, int64; by integers, the same everywhere.

    Args:
      stop: probability that a walk ends after a step, above 0, at most 1.
      most: entries at most; None: all.
    """
    keep = int((1 - Fraction(stop)) * 2**128)
    thresholds, power = [], keep
    while power >> 65 and len(thresholds) != most:
        thresholds.append(power >> 65)
        power = power * keep >> 128
    return np.array(thresholds, dtype=np.int64)
