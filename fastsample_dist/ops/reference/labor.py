"""Method "labor" by definition: LABOR-0, one variate per source and hop (Balin & Catalyurek, NeurIPS 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastsample_dist.ops.reference.laws import TAKE_ALL, Certain, Independent, RowLaw
from fastsample_dist.ops.reference.streams import LAYER_SAMPLING, node_words, stage_key

if TYPE_CHECKING:
    from fastsample_dist.ops.reference.sampling import Row

WHOLE_STEP = 2**32 - 1  # the stage of the variates when all hops of a step share them


def draw(row: Row) -> list[int]:
    """Positions that a row's destination takes, in order."""
    stage = WHOLE_STEP if row.spec.layer_dependency else row.hop
    key = stage_key(row.spec.rng_seed, LAYER_SAMPLING, stage, row.step)
    return layer_pick([next(node_words(key, source)) for source in row.source_orig_ids()], row.fanout)


def layer_pick(variates: list[int], fanout: int) -> list[int]:
    """The positions whose source's 32-bit variate is below fanout / degree."""
    degree = len(variates)
    if fanout == TAKE_ALL or degree <= fanout:
        return list(range(degree))
    return [position for position, variate in enumerate(variates) if variate * degree < fanout * 2**32]


def law(weights: Sequence[float], fanout: int, sources: Sequence[int] | None = None, *, replace: bool) -> RowLaw:
    """The law of `draw` for a row of len(weights) edges from these sources; None: all of them differ."""
    degree = len(weights)
    if fanout == TAKE_ALL or degree <= fanout:
        return Certain([True] * degree)
    return Independent([math.ceil(fanout * 2**32 / degree) / 2**32] * degree, sources)
