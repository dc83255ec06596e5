"""Exact laws of one row's draw, by method: each is in the method's own module (uniform.py, weighted.py, labor.py).

A row is given by its weights (ones when the draw is uniform) and, for LABOR, its sources: edges of one source share a
variate.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from fastsample_dist.ops.reference.laws import Outcomes, RowLaw
from fastsample_dist.ops.sample_methods import METHODS


def oracle(method: str) -> ModuleType:
    """The module that defines a method: `draw(row)` and `law(weights, fanout, sources, replace=...)`."""
    return importlib.import_module(f"{__package__}.{METHODS[method].oracle or method}")


def row_law(
    weights: Sequence[float],
    fanout: int,
    sources: Sequence[int] | None = None,
    *,
    replace: bool = False,
    method: str = "uniform",
) -> RowLaw:
    """The law of one row's draw."""
    return oracle(method).law(weights, fanout, sources, replace=replace)


def pick_distribution(
    weights: Sequence[float],
    fanout: int,
    sources: Sequence[int] | None = None,
    *,
    replace: bool = False,
    method: str = "uniform",
) -> Outcomes:
    """Probability of every outcome, an ascending tuple of positions. Cost: as many steps as there are outcomes."""
    return row_law(weights, fanout, sources, replace=replace, method=method).outcomes()


def inclusion_moments(
    weights: Sequence[float],
    fanout: int,
    sources: Sequence[int] | None = None,
    *,
    replace: bool = False,
    method: str = "uniform",
) -> tuple[Tensor, Tensor]:
    """Mean float64 [degree] and covariance float64 [degree, degree] of how often each position is taken."""
    return row_law(weights, fanout, sources, replace=replace, method=method).moments()


def inclusion_probabilities(
    weights: Sequence[float], fanout: int, *, replace: bool = False, method: str = "uniform"
) -> Tensor:
    """float64 [degree]: probability that a position is taken; with replacement, how often it is on average."""
    return inclusion_moments(weights, fanout, replace=replace, method=method)[0]
