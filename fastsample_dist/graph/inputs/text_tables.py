"""Tables of numbers as text (.csv, .txt, also .gz): parsed block by block into a binary file that is mapped.

A table has the same number of fields in every line, and a header only where the caller says so. NumPy's reader does
the work; what it refuses is looked through line by line, to name the line.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from fastsample_dist.graph.npy_files import open_npy

if TYPE_CHECKING:
    from fastsample_dist.graph.inputs import ReadOptions

BLOCK_CHARS = 1 << 22  # of text at a time; as Python's strings and numbers some 20 times that
_HEADER_BYTES = 128


class GrowingNpy:
    """Write a .npy file whose number of rows is known only at the end; a context manager.

    Args:
      path: the new file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows, self._dtype, self._width = 0, np.dtype(np.int64), 0

    def __enter__(self) -> GrowingNpy:
        self._file = self._path.open("xb")
        self._file.write(bytes(_HEADER_BYTES))
        return self

    def append(self, rows: np.ndarray) -> None:
        """Append rows [n, width], all of one type and width."""
        self._dtype, self._width = rows.dtype, rows.shape[1]
        self._rows += len(rows)
        self._file.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file as file:
            if kind is None:
                shape = (self._rows, self._width)
                header = repr({"descr": self._dtype.str, "fortran_order": False, "shape": shape}).encode()
                start = np.lib.format.magic(1, 0) + struct.pack("<H", _HEADER_BYTES - 10)
                file.seek(0)
                file.write(start + header.ljust(_HEADER_BYTES - 11) + b"\n")


def read_table(
    file: Path, options: ReadOptions, dtype: type[np.number], *, delimiter: str = ",", width: int | None = None
) -> np.ndarray:
    """Parse a table once and map the result.

    Args:
      file: the text; .gz is unpacked on the way.
      options: `scratch` gets the binary file, `on_bytes` is told the bytes of the file as they are read.
      dtype: of all fields.
      delimiter: between fields; " " takes any blanks and tabs.
      width: fields per line; None: those of the first line.
    Returns:
      [lines, fields] of dtype, mapped. Without a line: [0, width].
    Raises:
      ValueError: the file is missing, is no sound gzip, or has a line that does not fit, with its number.
    """
    name = "-".join(part for part in file.absolute().parts[-4:] if part.strip("/")) + ".npy"

    def make(path: Path) -> None:
        with open_text(file, options.on_bytes) as text, GrowingNpy(path) as out:
            first, columns = 1, width
            while lines := text.readlines(BLOCK_CHARS):
                rows = _parse(file, first, lines, (dtype, delimiter, columns))
                first, columns = first + len(lines), rows.shape[1] if len(rows) else columns
                if len(rows):
                    out.append(rows)

    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a table there, {_described(dtype)} separated by {delimiter!r}.")
    table = open_npy(options.scratch.made(name, [file], make))
    return table if len(table) else np.empty((0, width or 1), dtype=dtype)


def announce(files: Sequence[Path], options: ReadOptions) -> None:
    """Tell how many bytes of text are going to be read, if there are any."""
    if total := sum(file.stat().st_size for file in files if file.is_file()):
        options.on_total(total)


def read_lines(file: Path, delimiter: str = ",") -> list[list[str]]:
    """Fields of every line of a small text file; empty lines are left out.

    Raises:
      ValueError: the file is missing or is no sound gzip.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a text file there.")
    with open_text(file) as text:
        return [[field.strip() for field in line.split(delimiter)] for line in text if line.strip()]


@contextmanager
def open_text(file: Path, on_bytes: Callable[[int], None] = lambda count: None) -> Iterator[TextIO]:
    """Open a text file, .gz or not.

    Raises:
      ValueError: the gzip is not sound; also when that shows inside the block.
    """
    try:
        with file.open("rb") as raw:
            counted = io.BufferedReader(_Counted(raw, on_bytes), 1 << 18)
            unpacked = gzip.GzipFile(fileobj=counted) if file.suffix == ".gz" else counted
            yield io.TextIOWrapper(unpacked, encoding="utf-8", errors="replace")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not readable gzip ({error}); copy or download it again.") from error


class _Counted(io.RawIOBase):
    """A raw stream that tells how much is read."""

    def __init__(self, raw: io.BufferedReader, on_bytes: Callable[[int], None]) -> None:
        super().__init__()
        self._raw, self._on_bytes = raw, on_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._raw.seek(offset, whence)

    def readinto(self, buffer: memoryview) -> int:
        count = self._raw.readinto(buffer)
        self._on_bytes(count)
        return count


def _parse(file: Path, first: int, lines: list[str], expected: tuple[type[np.number], str, int | None]) -> np.ndarray:
    """Lines as an array; `first` is the number of the first one."""
    dtype, delimiter, width = expected
    if not any(line.strip() for line in lines):
        return np.empty((0, width or 0), dtype=dtype)
    try:
        rows = np.loadtxt(lines, dtype=dtype, delimiter=None if delimiter == " " else delimiter, ndmin=2, comments=None)
    except (ValueError, OverflowError) as error:
        raise ValueError(_explain(file, first, lines, expected) or f"{file}: {error}") from error
    if width is not None and rows.shape[1] != width:
        raise ValueError(_explain(file, first, lines, expected))
    return rows


def _explain(file: Path, first: int, lines: list[str], expected: tuple[type[np.number], str, int | None]) -> str | None:
    """The message for the first line that does not fit."""
    dtype, delimiter, width = expected
    convert = int if np.issubdtype(dtype, np.integer) else float
    for number, line in enumerate(lines, start=first):
        fields = line.split(None if delimiter == " " else delimiter)
        if not line.strip():
            continue
        width = len(fields) if width is None else width
        try:
            fits = len(fields) == width
            np.array([convert(field) for field in fields], dtype=dtype)
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            return (
                f"{file}, line {number}: found {line.strip()[:60]!r}; expected {width} {_described(dtype)} separated "
                f"by {delimiter!r}; correct the line."
            )
    return None


def _described(dtype: type[np.number]) -> str:
    return "integers" if np.issubdtype(dtype, np.integer) else "numbers"
