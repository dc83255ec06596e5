"""What every measurement in one process shares: no garbage collection while it runs, and the spread of its figures."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """{"median", "p10", "p90"}."""
    low, high = np.percentile(values, (10, 90)).tolist()
    return {"median": statistics.median(values), "p10": low, "p90": high}


def spread(rates: Sequence[float]) -> dict:
    """{"median", "p10", "p90", "rates"}."""
    return {**quantiles(rates), "rates": list(rates)}


@contextmanager
def steady() -> Iterator[None]:
    """No garbage collection inside the block, except where it is called explicitly."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
