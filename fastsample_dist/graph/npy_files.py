"""Reading and writing single .npy files: checked memory-mapped reads, streamed and hashed writes.

A reader gets a copy-on-write map (`mmap_mode="c"`): nothing is copied, the pages are shared by every process
of a machine, and torch can wrap the array because it counts as writable. A writer streams rows, so that a file
larger than memory can be made, and takes the SHA-256 of the bytes on their way to disk.
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

CHUNK_BYTES = 1 << 24  # large enough to hide call overhead, small enough to stay out of the way of real data


def open_npy(path: Path) -> np.ndarray:
    """Memory-map one .npy file, copy-on-write.

    Args:
      path: the file.
    Returns:
      The mapped array; pages are read when touched and never written back.
    Raises:
      ValueError: the file is missing, is not .npy, is truncated, or holds Python objects.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a .npy file there.")
    try:
        return np.lib.format.open_memmap(path, mode="c")
    except (ValueError, EOFError) as error:  # NumPy's word for a foreign, truncated or pickled file
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(f"{path} is not a readable .npy file ({reason}); write it again with numpy.save.") from error


class NpyHeader(NamedTuple):
    """Shape and type of an array that is not read."""

    shape: tuple[int, ...]
    dtype: np.dtype


def npy_header(path: Path) -> NpyHeader:
    """Read the header of one .npy file and compare it with the file's size. Nothing is mapped: a map of a file larger
    than the machine's memory may be refused.

    Raises:
      ValueError: the file is missing, is not .npy, or is truncated.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a .npy file there.")
    with path.open("rb") as file:
        try:
            header = read_npy_header(file)
        except (ValueError, EOFError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise ValueError(f"{path} is not a readable .npy file ({reason}); write it again.") from error
        expected = file.tell() + math.prod(header.shape) * header.dtype.itemsize
    if path.stat().st_size < expected:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes; expected {expected}: it is truncated, copy it again."
        )
    return header


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """Header at the beginning of a file, which may be a member of an archive."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return NpyHeader(shape, dtype)


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def row_chunks(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut 0 .. num_rows into ranges (lo, hi) of about CHUNK_BYTES each, at least one row."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for lo in range(0, num_rows, step):
        yield lo, min(num_rows, lo + step)


def drop_pages(array: np.ndarray) -> None:
    """Take a mapped file's pages out of this process's memory; they come back from the file when touched.

    What goes through a large file calls it after each chunk, so that resident memory stays at a chunk. Writes into a
    copy-on-write map are lost. A column of several arrays (row_segments.py) does it for each. Does nothing to others.
    """
    if hasattr(array, "drop_pages"):
        array.drop_pages()
        return
    mapped = getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (fsync of the directory itself)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class NpyWriter:
    """Write one .npy file in order, chunk by chunk; a context manager.

    Args:
      path: the new file; it must not exist.
      dtype: stored in little-endian byte order.
      shape: full shape of the array; rows are appended along the first axis.
    Attributes:
      record: {"bytes": int, "sha256": str} of the finished file; empty before the end.
    Raises:
      OSError: the file cannot be created or written.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.shape = shape
        self.record: dict[str, int | str] = {}
        self._digest = hashlib.sha256()
        self._bytes = self._rows = 0
        self._file = path.open("xb")  # __exit__ closes it

    def __enter__(self) -> NpyWriter:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        )
        self._put(header.getvalue())
        return self

    def append(self, rows: np.ndarray) -> None:
        """Append rows of shape [n, *shape[1:]] whose dtype is the file's."""
        assert rows.dtype.newbyteorder("<") == self.dtype, f"{rows.dtype} rows for a {self.dtype} file"
        assert rows.shape[1:] == self.shape[1:], f"rows of shape {rows.shape} for a file of shape {self.shape}"
        if rows.size:
            self._put(np.ascontiguousarray(rows, dtype=self.dtype).data.cast("B"))
        self._rows += len(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file as file:
            if kind is not None:
                return
            assert self._rows == self.shape[0], f"{self._rows} rows written, {self.shape[0]} announced"
            file.flush()
            os.fsync(file.fileno())
        self.record = {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)
