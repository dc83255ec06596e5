"""Rows rounded to int8 with a scale per row: x becomes q = round(x / s), and is read as q * s.

    s = max |x| / 127 over the row, in float32, so that |x - q s| <= s / 2: half a step of the row's largest value.

Ties go to the even number. A row of zeros has s = 0. A row whose largest value is so small that max / 127 would lose
bits (below the smallest normal float32) has that for its scale; one whose largest value is next to the largest float32
has the next smaller scale, so that q * s stays finite.
"""

from __future__ import annotations

import numpy as np

LARGEST = 127
SCALE_DTYPE = np.dtype(np.float32)
_SMALLEST_SCALE = np.finfo(np.float32).tiny
_BLOCK_BYTES = 1 << 20  # of float64 values in work at a time


def scaled_rows(rows: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 [n, dim] and float32 [n]: numbers and scales of rows.

    Args:
      rows: [n, dim]; any float or integer type.
      nodes: [n]; ids, for the error.
    Raises:
      ValueError: a value that is not finite, or too large for float32, by node and column.
    """
    numbers, scales = np.empty(rows.shape, dtype=np.int8), np.empty(len(rows), dtype=SCALE_DTYPE)
    step = max(1, _BLOCK_BYTES // max(1, 8 * rows.shape[1]))
    for lo in range(0, len(rows), step):
        values = rows[lo : lo + step].astype(np.float64)
        magnitudes = np.abs(values)
        fits = magnitudes <= np.finfo(np.float32).max
        if not fits.all():
            row, column = (int(place[0]) for place in np.nonzero(~fits))
            raise ValueError(
                f"feature {column} of node {nodes[lo + row]} is {values[row, column]:g}, expected finite float32 "
                "values for int8 with a scale; correct the input or pass --feature-dtype float32 or keep."
            )
        block = _scales_of(magnitudes.max(axis=1, initial=0.0))
        scales[lo : lo + step] = block
        np.divide(values, np.where(block > 0, block, 1).astype(np.float64)[:, None], out=values)
        numbers[lo : lo + step] = np.rint(values, out=values)
    return numbers, scales


def _scales_of(largest: np.ndarray) -> np.ndarray:
    """float32 [n] of the largest magnitudes, float64 [n]."""
    scales = np.maximum((largest / LARGEST).astype(SCALE_DTYPE), _SMALLEST_SCALE)
    with np.errstate(over="ignore"):
        overflows = ~np.isfinite(scales * SCALE_DTYPE.type(LARGEST))
    scales[overflows] = np.nextafter(scales[overflows], SCALE_DTYPE.type(0))
    return np.where(largest > 0, scales, SCALE_DTYPE.type(0))
