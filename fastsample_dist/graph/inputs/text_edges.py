"""Edges from text, block by block: memory holds one block of lines, however long the list is.

A line is "source destination", with a comma between the ids when the first edge of its file has one, else blanks or
tabs; lines end with \n or \r\n. Empty lines and what follows a "#" are skipped, and so is the mark that some editors
put before UTF-8. NumPy's reader does the work; only when it refuses a block, or an id is out of range, are the block's
lines looked at one by one to name the line. Files whose name ends in .gz are unpacked on the way.
"""

from __future__ import annotations

import gzip
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

BLOCK_BYTES = 1 << 22  # of text read at a time; larger ones are no faster
MAX_LINE_BYTES = 1 << 20
GZIP_RATIO = 5  # edge lists pack to a third or a fifth
_UTF8_MARK, _GZIP_MARK = b"\xef\xbb\xbf", b"\x1f\x8b"
_LOOK_BYTES = 4096  # where a file that is no text shows it
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class TextEdges:
    """The edges in text files, read one after the other as one list.

    Args:
      files: names that end in .gz are unpacked.
      limit: ids are below it.
      on_bytes: called with how many more bytes of the files have been read.
    Attributes:
      total_bytes: of the files.
    """

    has_weights = False

    def __init__(self, files: Sequence[Path], limit: int, on_bytes: Callable[[int], None]) -> None:
        self._files, self._limit, self._on_bytes = files, limit, on_bytes
        self.total_bytes = sum(file.stat().st_size for file in files)

    def text_bytes(self) -> int:
        """Bytes of text in the files; of packed ones an estimate."""
        return sum(file.stat().st_size * (GZIP_RATIO if _is_packed(file) else 1) for file in self._files)

    def chunks(self) -> Iterator[np.ndarray]:
        """The edges, int64 [n, 2] at a time.

        Raises:
          ValueError: a line that is no edge or an id out of range, by its number; a damaged .gz. OSError: the system
            cannot read.
        """
        for file in self._files:
            with Lines(file, self._on_bytes) as lines:
                delimiter = None
                for block in lines.blocks():
                    delimiter = delimiter or _delimiter(block)
                    if delimiter is not None:  # nothing but comments so far
                        yield self._parsed(lines, block, delimiter)

    def _parsed(self, lines: Lines, block: bytes, delimiter: bytes) -> np.ndarray:
        try:
            edges = _parse(block, delimiter)
            if edges.shape[1] == 2 and (not edges.size or (edges.min() >= 0 and edges.max() < self._limit)):
                return edges
            cause = None
        except (ValueError, OverflowError, DeprecationWarning) as error:
            cause = error
        message = _explain(lines.file, lines.first_line, block, (delimiter, self._limit))
        lines.read_on()
        raise ValueError(message) from cause


class Lines:
    """Blocks of whole lines of a file; a context manager.

    Attributes:
      file: the file.
      first_line: number of the first line of the block that came last.
    """

    def __init__(self, file: Path, on_bytes: Callable[[int], None]) -> None:
        self.file, self.first_line = file, 1
        self._on_bytes, self._position = on_bytes, 0
        self._raw = file.open("rb")  # __exit__ closes it
        self._stream: BinaryIO = gzip.GzipFile(fileobj=self._raw) if _is_packed(file) else self._raw

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    def blocks(self) -> Iterator[bytes]:
        """The file's lines; the last may lack its end."""
        rest = b""
        data = self._read().removeprefix(_UTF8_MARK)
        while data:
            cut = data.rfind(b"\n") + 1
            if cut:
                block, rest = rest + data[:cut], data[cut:]
                yield block
                self.first_line += block.count(b"\n")
            else:
                rest += data
            if len(rest) > max(MAX_LINE_BYTES, BLOCK_BYTES):
                raise ValueError(
                    f"{self.file}, line {self.first_line}: found more than {len(rest) - 1} bytes, {_shown(rest)}...; "
                    "expected two integers 'source destination'; pass a text file with a line per edge."
                )
            data = self._read()
        if rest:
            yield rest

    def read_on(self) -> None:
        """Read a packed file to its end, where damage to it shows that also explains a strange line."""
        while self._stream is not self._raw and self._read():
            pass

    def _read(self) -> bytes:
        try:
            data = self._stream.read(BLOCK_BYTES)
        except _DAMAGED as error:
            raise ValueError(self._damage(error)) from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.file)) from error
        position = self._raw.tell()
        self._on_bytes(position - self._position)
        self._position = position
        return data

    def _damage(self, error: Exception) -> str:
        self._raw.seek(0)
        start = self._raw.read(len(_GZIP_MARK))
        if start != _GZIP_MARK:
            return f"{self.file} starts with {_shown(start)}; expected gzip data; take .gz off its name or pack it."
        reason = str(error).rstrip(".")
        return (
            f"{self.file}, after line {self.first_line} and byte {self._position} of {self.file.stat().st_size}: the "
            f"gzip data are damaged or cut short ({reason}); copy or make the file again."
        )


def _is_packed(file: Path) -> bool:
    return file.name.endswith(".gz")


def _parse(block: bytes, delimiter: bytes) -> np.ndarray:
    """All edges of a block, int64 [n, 2], if all is well."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data.*")
        warnings.filterwarnings("error", category=DeprecationWarning)  # older NumPy: 1.5 read as 1
        edges = np.loadtxt(
            io.BytesIO(block),
            dtype=np.int64,
            comments="#" if b"#" in block else None,
            delimiter="," if delimiter == b"," else None,
            ndmin=2,
            encoding="latin-1",
        )
    return edges if edges.size else np.empty((0, 2), dtype=np.int64)


def _delimiter(block: bytes) -> bytes | None:
    """What stands between the ids of the block's first edge: a comma, or blanks; None without an edge."""
    for _, text in _data_lines(block, 1):
        return b"," if b"," in text else b" "
    return None


def _data_lines(block: bytes, first_line: int) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is neither empty nor a comment."""
    for number, line in enumerate(io.BytesIO(block), start=first_line):
        text = line.split(b"#")[0].strip()
        if text:
            yield number, text


def _explain(file: Path, first_line: int, block: bytes, rules: tuple[bytes, int]) -> str:
    """The message for the first line of a block that is no edge with this delimiter between ids below this limit."""
    delimiter, limit = rules
    for number, text in _data_lines(block, first_line):
        where = f"{file}, line {number}"
        fields = text.split(None if delimiter == b" " else delimiter)
        fields = [item.strip() for item in fields]
        if len(fields) != 2 or not all(re.fullmatch(rb"[+-]?[0-9]+", item) for item in fields):
            return f"{where}: found {_shown(text)}; expected two integers 'source destination' {_advice(block, fields)}"
        for value in map(int, fields):
            if not 0 <= value < limit:
                return f"{where}: node id {value}; expected 0 to {limit - 1}; correct it or num_nodes."
    return f"{file}, from line {first_line} on, cannot be read as an edge list; expected two integers per line."


def _advice(block: bytes, fields: list[bytes]) -> str:
    """What to do about a line with these fields."""
    if block.startswith(_GZIP_MARK):
        return "in plain text; end the name of a gzip file with .gz."
    if _BINARY.search(b"".join(fields)) or _BINARY.search(block, 0, _LOOK_BYTES):
        return "in plain text (ASCII or UTF-8); convert the file."
    try:
        b"".join(fields).decode("utf-8")
    except UnicodeDecodeError:
        return "in ASCII or UTF-8; convert the file."
    if len(fields) > 2 and all(re.fullmatch(rb"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", item) for item in fields):
        return (
            f"and no further column; keep the first two of its {len(fields)} columns (weights go into edge_weight.npy "
            "beside the list in a directory, or into a .parquet file's column weight)."
        )
    return "separated like the first edge; correct the line, or put # before a header."


def _shown(text: bytes) -> str:
    return repr(text[:60].decode("utf-8", errors="replace"))
