"""Reading one .npy file from front to back, with the SHA-256 of its bytes taken on the way.

One pass over the disk serves both those who look at the rows and those who compare the checksum, and memory holds
one chunk. (A map of the file, as `graph.npy_files.open_npy` gives it, is for random access.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastsample_dist.graph.npy_files import open_npy, row_chunks

_REST_BYTES = 1 << 16  # read at a time of what follows the array, which no sound file has


class NpyStream:
    """The rows of one .npy file, chunk by chunk.

    Args:
      path: the file.
    Attributes:
      dtype, shape: as the file's header states them.
      sha256: hexadecimal, of the whole file; empty until `chunks` has run to its end.
    Raises:
      ValueError: the file is missing, truncated, not an .npy file, or stored column by column.
    """

    def __init__(self, path: Path) -> None:
        header = open_npy(path)  # nothing but the header is read
        if not header.flags.c_contiguous:
            raise ValueError(f"{path} is stored column by column; expected row by row, write it again.")
        self.path, self.dtype, self.shape = path, header.dtype, header.shape
        self.sha256 = ""
        self._offset = header.offset

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first row, rows [n, *shape[1:]]) of about CHUNK_BYTES each, in order."""
        digest = hashlib.sha256()
        width = math.prod(self.shape[1:])
        with self.path.open("rb", buffering=0) as file:
            digest.update(file.read(self._offset))
            for lo, hi in row_chunks(self.shape[0], width * self.dtype.itemsize):
                rows = np.fromfile(file, self.dtype, (hi - lo) * width).reshape(hi - lo, *self.shape[1:])
                digest.update(rows.reshape(-1).view(np.uint8).data)
                yield lo, rows
            while rest := file.read(_REST_BYTES):
                digest.update(rest)
        self.sha256 = digest.hexdigest()
