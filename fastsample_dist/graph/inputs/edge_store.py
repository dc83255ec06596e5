"""Edges that come in chunks and whose number is known only at the end: in memory, or in an .npy file.

Both forms have shape [2, E] in column-major order, an edge's source beside its destination: so they can be written as
they come. Ids are int32 when all fit, else int64; a file widens in place when the first id that needs it comes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.npy_files import drop_pages, row_chunks

HEADER_BYTES = 128  # of an .npy file of two dimensions; NumPy fills up to a multiple of 64
_NARROW, _WIDE = np.dtype("<i4"), np.dtype("<i8")
_NARROW_END = np.iinfo(_NARROW).max + 1


def gather_edges(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Chunks int64 [n, 2] of (source, destination) as one array in memory, int32 | int64 [2, E]."""
    kept = [np.empty((0, 2), dtype=_NARROW), *(chunk.astype(_type_for(chunk), copy=False) for chunk in chunks)]
    return np.concatenate(kept).T


def write_edges(path: Path, chunks: Iterable[np.ndarray]) -> None:
    """Write chunks int64 [n, 2] of (source, destination) as an .npy file, int32 | int64 [2, E]; durable on return.

    Raises:
      OSError: the disk refuses the write; the error names the file.
    """
    with naming_file(path):
        _write(path, chunks)


def highest_id(edges: np.ndarray) -> int:
    """The highest id in [2, E], E >= 1, without leaving pages of a mapped file with the process."""
    highest = 0
    for lo, hi in row_chunks(edges.shape[1], 2 * edges.itemsize):
        highest = max(highest, int(edges[:, lo:hi].max()))
        drop_pages(edges)
    return highest


def _type_for(chunk: np.ndarray) -> np.dtype:
    return _NARROW if chunk.max(initial=0) < _NARROW_END else _WIDE


def _write(path: Path, chunks: Iterable[np.ndarray]) -> None:
    dtype, count = _NARROW, 0
    with path.open("w+b") as file:
        file.write(bytes(HEADER_BYTES))
        for chunk in chunks:
            if dtype == _NARROW and _type_for(chunk) == _WIDE:
                _widen(file, 2 * count)
                dtype = _WIDE
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
            count += len(chunk)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": True, "shape": (2, count)})
        assert header.tell() == HEADER_BYTES, f"NumPy wrote a header of {header.tell()} bytes"
        file.seek(0)
        file.write(header.getvalue())
        file.flush()
        os.fsync(file.fileno())


def _widen(file: BinaryIO, count: int) -> None:
    """Widen the `count` int32 values in the file to int64; from the end, so that none is overwritten unread."""
    for lo, hi in reversed(list(row_chunks(count, _WIDE.itemsize))):
        file.seek(HEADER_BYTES + lo * _NARROW.itemsize)
        values = np.frombuffer(file.read((hi - lo) * _NARROW.itemsize), dtype=_NARROW)
        file.seek(HEADER_BYTES + lo * _WIDE.itemsize)
        file.write(values.astype(_WIDE).data)
    file.seek(HEADER_BYTES + count * _WIDE.itemsize)
