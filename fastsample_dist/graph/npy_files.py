"""Reading and writing single .npy files: checked memory-mapped reads, streamed and hashed writes.

A reader gets a copy-on-write map: nothing is copied, the pages are shared by every process of a machine, and torch can
wrap the array because it counts as writable. The system is asked not to set memory aside for writes that never come
(MAP_NORESERVE): else Linux refuses to map a file larger than memory and swap together. A writer streams rows, so
that a file larger than memory can be made, and takes the SHA-256 of the bytes on their way to disk.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from fastsample_dist.files import naming_file

_NORESERVE = 0x4000 if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64") else 0
_COPY_ON_WRITE = {
    "flags": mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _NORESERVE),
    "prot": mmap.PROT_READ | mmap.PROT_WRITE,
}
CHUNK_BYTES = 1 << 24  # large enough to hide call overhead, small enough to stay out of the way of real data


def map_array(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], *, offset: int = 0, fortran_order: bool = False
) -> np.memmap:
    """Map an array that lies in a file, copy-on-write.

    Args:
      path: the file.
      dtype, shape: of the array; a file without bytes cannot be mapped.
      offset: bytes before it.
      fortran_order: the first index varies fastest.
    Returns:
      As numpy.memmap(mode="c"), of files of any size.
    Raises:
      ValueError: the file is shorter. OSError: the system does not map it.
    """
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset - begin + math.prod(shape) * dtype.itemsize
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), length, offset=begin, **_COPY_ON_WRITE)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            text = f"{length} bytes cannot be mapped; set vm.overcommit_memory to 0 or 1, or raise ulimit -v"
            raise OSError(errno.ENOMEM, text, str(path)) from error
    order = "F" if fortran_order else "C"
    array = np.ndarray.__new__(np.memmap, shape, dtype=dtype, buffer=mapped, offset=offset - begin, order=order)
    array._mmap, array.offset, array.mode, array.filename = mapped, offset, "c", path.resolve()
    return array


def open_npy(path: Path) -> np.ndarray:
    """Memory-map one .npy file, copy-on-write.

    Args:
      path: the file.
    Returns:
      The mapped array; pages are read when touched and never written back.
    Raises:
      ValueError: the file is missing, is not .npy, is truncated, or holds Python objects.
    """
    header = npy_header(path)
    return map_array(path, header.dtype, header.shape, offset=header.offset, fortran_order=header.fortran_order)


class NpyHeader(NamedTuple):
    """What comes before an array in a file.

    Attributes:
      shape, dtype: of the array.
      fortran_order: the first index varies fastest.
      offset: bytes before the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool
    offset: int


def npy_header(path: Path) -> NpyHeader:
    """Read the header of one .npy file and compare it with the file's size.

    Raises:
      ValueError: the file is missing, is not .npy, is truncated, or holds Python objects.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a .npy file there.")
    with path.open("rb") as file:
        try:
            header = read_npy_header(file)
        except (ValueError, EOFError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise ValueError(
                f"{path} is not a readable .npy file ({reason}); write it again with numpy.save."
            ) from error
    expected = header.offset + math.prod(header.shape) * header.dtype.itemsize
    found = path.stat().st_size
    if found < expected:
        raise ValueError(f"{path} has {found} bytes; expected {expected}: it is truncated, copy or write it again.")
    return header


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """Header at a file's current position; `offset` is the position after it.

    Raises:
      ValueError, EOFError: there is none, or the array would hold Python objects.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return NpyHeader(shape, dtype, fortran_order, file.tell())


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

    Code that goes through a large file calls it after each chunk, so that resident memory stays at a chunk. Writes into
    a copy-on-write map are lost. A column of several arrays (row_segments.py) does it for each. Does nothing to others.
    """
    if hasattr(array, "drop_pages"):
        array.drop_pages()
        return
    mapped = getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class NpyWriter:
    """Write one .npy file in order, chunk by chunk; a context manager.

    Args:
      path: the new file; it must not exist.
      dtype: stored in little-endian byte order.
      shape: full shape of the array; rows are appended along the first axis.
    Attributes:
      record: {"bytes": int, "sha256": str} of the finished file; empty before the end.
    Raises:
      OSError: the file cannot be created or written; it names the file.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.shape = shape
        self._path = path
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
            self._put(np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8).data)
        self._rows += len(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):  # of what is still to be written: the error that ends the block is raised
                self._file.close()
            return
        with naming_file(self._path), self._file as file:
            assert self._rows == self.shape[0], f"{self._rows} rows written, {self.shape[0]} announced"
            file.flush()
            os.fsync(file.fileno())
        self.record = {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def _put(self, data: bytes | memoryview) -> None:
        with naming_file(self._path):
            self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)
