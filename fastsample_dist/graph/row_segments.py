"""Feature rows that lie in several files, or nowhere: one column without copying it into one array.

Inputs with a file per node type or per chunk are read through it. It offers what the checks and the writer use of an
array (shape, dtype, slices, lists of rows), and nothing that would bring it into memory whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages


class RowSegments:
    """Several [n, dim] arrays, one below the other.

    Args:
      segments: [n, dim] arrays of one type and width, mapped ones stay mapped; a number n stands for n rows of zeros.
    Attributes:
      shape, dtype, ndim, itemsize, size: as of the array they form.
      segments: the arrays and numbers given.
      offsets: int64 [len(segments) + 1]; first row of each segment.
    Raises:
      ValueError: no array, or arrays of different type or width.
    """

    def __init__(self, segments: Sequence[np.ndarray | int]) -> None:
        arrays = [segment for segment in segments if isinstance(segment, np.ndarray)]
        if not arrays:
            raise ValueError("there is no segment with rows; expected at least one array.")
        for array in arrays:
            if array.ndim != 2 or array.shape[1] != arrays[0].shape[1] or array.dtype != arrays[0].dtype:
                raise ValueError(
                    f"rows of shape {array.shape}, {array.dtype}, stand beside rows of shape {arrays[0].shape}, "
                    f"{arrays[0].dtype}; expected one width and one type."
                )
        self.segments = list(segments)
        counts = [segment if isinstance(segment, int) else len(segment) for segment in self.segments]
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        self.dtype, self.ndim = arrays[0].dtype, 2
        self.shape = (int(self.offsets[-1]), arrays[0].shape[1])
        self.itemsize, self.size = self.dtype.itemsize, self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Rows of a slice without a step, or of integer positions [n]: a new array [n, dim]."""
        if isinstance(rows, slice):
            lo, hi, step = rows.indices(len(self))
            assert step == 1, "RowSegments takes slices without a step"
            return self._slice(lo, max(lo, hi))
        rows = np.asarray(rows)
        out = np.zeros((len(rows), self.shape[1]), dtype=self.dtype)
        owners = np.searchsorted(self.offsets, rows, side="right") - 1
        for number in np.unique(owners):
            segment, chosen = self.segments[number], owners == number
            if not isinstance(segment, int):
                out[chosen] = segment[rows[chosen] - self.offsets[number]]
        return out

    def drop_pages(self) -> None:
        """Take the pages of mapped segments out of memory."""
        for segment in self.segments:
            if not isinstance(segment, int):
                drop_pages(segment)

    def _slice(self, lo: int, hi: int) -> np.ndarray:
        out = np.zeros((hi - lo, self.shape[1]), dtype=self.dtype)
        for number, segment in enumerate(self.segments):
            first, last = max(lo, int(self.offsets[number])), min(hi, int(self.offsets[number + 1]))
            if first < last and not isinstance(segment, int):
                start = int(self.offsets[number])
                out[first - lo : last - lo] = segment[first - start : last - start]
        return out
