"""Tables of numbers as text (.csv, .txt, also .gz): parsed block by block into a binary file that is mapped.

A table has the same number of fields in every line, and no header. NumPy's reader does the work; the lines of a block
that it refuses are looked at one by one, to name the line.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastsample_dist.graph.inputs.edge_store import HEADER_BYTES
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.text_edges import Lines
from fastsample_dist.graph.npy_files import open_npy


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
        self._file.write(bytes(HEADER_BYTES))
        return self

    def append(self, rows: np.ndarray) -> None:
        """Append rows [n, width], all of one type and width."""
        self._dtype, self._width = rows.dtype, rows.shape[1]
        self._rows += len(rows)
        self._file.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file as file:
            if kind is None:
                header = io.BytesIO()
                shape = (self._rows, self._width)
                np.lib.format.write_array_header_1_0(
                    header, {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
                )
                assert header.tell() == HEADER_BYTES, f"NumPy wrote a header of {header.tell()} bytes"
                file.seek(0)
                file.write(header.getvalue())


def read_table(
    file: Path, options: ReadOptions, dtype: type[np.number], *, delimiter: str = ",", width: int | None = None
) -> np.ndarray:
    """Parse a table once and map the result.

    Args:
      file: the text; .gz is unpacked on the way.
      options: `scratch` gets the binary file, `on_bytes` is called with the bytes of the file as they are read.
      dtype: of all fields.
      delimiter: between fields; " " takes any blanks and tabs.
      width: fields per line; None: those of the first line.
    Returns:
      [lines, fields] of dtype, mapped. Without a line: [0, width].
    Raises:
      ValueError: the file is missing, is not a sound gzip file, or has a line that does not fit, with its number.
    """

    def make(path: Path) -> None:
        with Lines(file, options.on_bytes) as lines, GrowingNpy(path) as out:
            columns = width
            for block in lines.blocks():
                rows = _parse(lines, block, (dtype, delimiter, columns))
                if len(rows):
                    out.append(rows)
                    columns = rows.shape[1]

    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a table there, {_described(dtype)} separated by {delimiter!r}.")
    table = open_npy(options.scratch.made(made_name(file), [file], make))
    return table if len(table) else np.empty((0, width or 1), dtype=dtype)


def made_name(file: Path) -> str:
    """Name in the scratch directory of what is made from a file."""
    return "-".join(part for part in file.absolute().parts[-4:] if part.strip("/")) + ".npy"


def announce(files: Sequence[Path], options: ReadOptions) -> None:
    """Report how many bytes of text will be read, if there are any."""
    if total := sum(file.stat().st_size for file in files if file.is_file()):
        options.on_total(total)


def read_lines(file: Path) -> list[list[str]]:
    """Fields, between commas, of every line of a small text file; empty lines are left out.

    Raises:
      ValueError: the file is missing or is not a sound gzip file.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a text file there.")
    with Lines(file, lambda count: None) as lines:
        text = b"".join(lines.blocks()).decode("utf-8", errors="replace")
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def _parse(lines: Lines, block: bytes, expected: tuple[type[np.number], str, int | None]) -> np.ndarray:
    """A block as an array [lines, fields]."""
    dtype, delimiter, width = expected
    if not block.strip():
        return np.empty((0, width or 0), dtype=dtype)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=DeprecationWarning)  # older NumPy: 1.5 read as 1
            rows = np.loadtxt(
                io.BytesIO(block),
                dtype=dtype,
                delimiter=None if delimiter == " " else delimiter,
                ndmin=2,
                comments=None,
                encoding="latin-1",
            )
        if width in (None, rows.shape[1]):
            return rows
        cause = None
    except (ValueError, OverflowError, DeprecationWarning) as error:
        cause = error
    message = _explain(lines, block, expected)
    lines.read_on()
    raise ValueError(message) from cause


def _explain(lines: Lines, block: bytes, expected: tuple[type[np.number], str, int | None]) -> str:
    """The message for the first line of a block that does not fit."""
    dtype, delimiter, width = expected
    convert = int if np.issubdtype(dtype, np.integer) else float
    for number, line in enumerate(io.BytesIO(block), start=lines.first_line):
        text = line.decode("utf-8", errors="replace").strip()
        if not text:
            continue
        fields = text.split(None if delimiter == " " else delimiter)
        width = len(fields) if width is None else width
        try:
            fits = len(fields) == width
            np.array([convert(field) for field in fields], dtype=dtype)
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            return (
                f"{lines.file}, line {number}: found {text[:60]!r}; expected {width} {_described(dtype)} separated "
                f"by {delimiter!r}; correct the line."
            )
    return f"{lines.file}, from line {lines.first_line} on, is not a table of {_described(dtype)}; make it again."


def _described(dtype: type[np.number]) -> str:
    return "integers" if np.issubdtype(dtype, np.integer) else "numbers"
