r"""Edges from text, block by block: memory holds one block of lines, however long the list is.

A line is "source destination", with a comma between the ids when the first edge of its file has one, else blanks or
tabs; `EdgeListOptions` states what is different. Lines end with \n or \r\n. Empty lines and what follows a "#" are
skipped, and so is the mark that some editors put before UTF-8. Blocks are parsed whole (text_rows.py); only when one is
refused, or an id is out of range, are its lines looked at one by one to name the line. Files whose name ends in .gz,
.xz or .zst are unpacked on the way (packed.py).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from fastsample_dist.graph.inputs.edge_options import EdgeListOptions, NotIntegersError
from fastsample_dist.graph.inputs.packed import packing_of, text_bytes
from fastsample_dist.graph.inputs.text_rows import (
    RowLayout,
    are_weights,
    data_lines,
    explain,
    find_layout,
    has_trailing_comments,
    parse_rows,
    say_left_out,
    shown,
    split_integers,
    split_names,
    split_weights,
)

BLOCK_BYTES = 1 << 22  # of text read at a time; larger ones are no faster
MAX_LINE_BYTES = 1 << 20
FAST_BYTES = 1 << 20  # of text for which loading pyarrow (60 MB) is worth it
UTF8_MARK = b"\xef\xbb\xbf"
_NO_LIMIT = 2**63


class TextEdges:
    """The edges in text files, read one after the other as one list.

    Args:
      files: names that end in .gz, .xz or .zst are unpacked.
      limit: ids are below it; with `relabel` they may be any.
      on_bytes: called with how many more bytes of the files have been read.
      options: how a line is to be read.
    Attributes:
      total_bytes: of the files.
      has_weights: a column of weights is read.
      weight_dtype: of the weights.
    """

    weight_dtype = np.dtype(np.float64)

    def __init__(
        self,
        files: Sequence[Path],
        limit: int,
        on_bytes: Callable[[int], None],
        options: EdgeListOptions | None = None,
    ) -> None:
        self._files, self._limit, self._on_bytes = files, limit, on_bytes
        self._options = options or EdgeListOptions()
        self.has_weights = self._options.weight_column is not None
        self.total_bytes = sum(file.stat().st_size for file in files)
        self._fast = parses_fast(files)
        self._said: set[tuple[str, ...]] = {()}  # columns whose being left out is logged, once for all files and passes

    def text_bytes(self) -> int:
        """Bytes of text in the files; of packed ones an estimate."""
        return sum(map(text_bytes, self._files))

    def chunks(self) -> Iterator[np.ndarray]:
        """The edges, int64 [n, 2] at a time.

        Raises:
          ValueError: a line that is not an edge or an id out of range, by its number; a damaged file. OSError: it
            cannot be read.
        """
        for lines, block, layout in self._blocks():
            yield self._parsed(lines, block, layout)[0]

    def weights(self) -> Iterator[np.ndarray]:
        """The weights, float64 [n] at a time; a further pass over the files.

        Raises:
          ValueError: a line without a finite weight, 0 or more, by its number.
        """
        for lines, block, layout in self._blocks():
            if self._options.relabel:  # the ends may be text
                yield self._split(split_weights, lines, block, layout)
            else:
                yield self._parsed(lines, block, layout, weighted=True)[1]

    def names(self, *, as_text: bool) -> Iterator[np.ndarray]:
        """The ends of the edges as they are called, [n, 2] at a time: int64, or bytes (UTF-8) with `as_text`.

        Raises:
          NotIntegersError: a line whose ids are not integers that int64 holds. ValueError: one without two ids.
        """
        self._limit = _NO_LIMIT
        for lines, block, layout in self._blocks():
            if as_text:
                yield self._split(split_names, lines, block, layout)
                continue
            if has_trailing_comments(block):
                raise NotIntegersError(f"{lines.file}, from line {lines.first_line} on: found # behind an edge")
            try:
                ids, _ = self._parsed(lines, block, layout, refusal=NotIntegersError)
            except NotIntegersError:
                if b'"' not in block:
                    raise
                ids = self._split(split_integers, lines, block, layout)
            yield ids

    def _blocks(self) -> Iterator[tuple[Lines, bytes, RowLayout]]:
        """Blocks of lines with data, a header blanked out."""
        for file in self._files:
            with Lines(file, self._on_bytes) as lines:
                layout = None
                for block in lines.blocks():
                    if layout is None:
                        layout, block = self._begin(lines, block)
                    if layout is not None:  # else: nothing but comments so far
                        yield lines, block, layout

    def _begin(self, lines: Lines, block: bytes) -> tuple[RowLayout | None, bytes]:
        """The layout by the first line that is not a comment, and the block without it if it is the header."""
        number, text = next(data_lines(block, 0, whole=self._options.relabel), (0, b""))
        if not text:
            return None, block
        where = f"{lines.file}, line {lines.first_line + number}"
        layout = find_layout(where, text, self._options)
        if layout.left_out not in self._said:
            self._said.add(layout.left_out)
            say_left_out(where, layout, named=self._options.header)
        if self._options.header:
            before = [match.end() for match in re.finditer(b"\n", block)][: number + 1]
            begin = before[number - 1] if number else 0
            end = before[number] - 1 if number < len(before) else len(block)
            block = block[:begin] + block[end:]
        return layout, block

    def _split(self, split: Callable[..., np.ndarray], lines: Lines, block: bytes, layout: RowLayout) -> np.ndarray:
        try:
            return split(lines.file, lines.first_line, block, layout)
        except ValueError:
            lines.read_on()
            raise

    def _parsed(
        self,
        lines: Lines,
        block: bytes,
        layout: RowLayout,
        *,
        weighted: bool = False,
        refusal: type[ValueError] = ValueError,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        lowest = -_NO_LIMIT if self._options.relabel else 0
        try:
            edges, weights = _parse(block, layout if weighted else layout._replace(weight=None), self._fast)
            inside = not edges.size or (int(edges.min()) >= lowest and int(edges.max()) < self._limit)
            if inside and (weights is None or are_weights(weights)):
                return edges, weights
            cause = None
        except (ValueError, OverflowError, DeprecationWarning) as error:
            cause = error
        message = explain(lines.file, lines.first_line, block, layout, self._limit)
        lines.read_on()
        raise refusal(message) from cause


def parses_fast(files: Sequence[Path]) -> bool:
    """Whether text is parsed with pyarrow: it is installed, and there is enough text to load it for."""
    return sum(map(text_bytes, files)) >= FAST_BYTES and importlib.util.find_spec("pyarrow") is not None


def _parse(block: bytes, layout: RowLayout, fast: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """All edges of a block and their weights, if all is well."""
    return parse_rows(block, layout, fast=fast)


class Lines:
    """Blocks of whole lines of a file; a context manager.

    Attributes:
      file: the file.
      first_line: number of the first line of the block that came last.
    """

    def __init__(self, file: Path, on_bytes: Callable[[int], None]) -> None:
        self.file, self.first_line = file, 1
        self._on_bytes, self._position = on_bytes, 0
        self._packing = packing_of(file)
        self._raw = file.open("rb")  # __exit__ closes it
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    def blocks(self) -> Iterator[bytes]:
        """The file's lines; the last may lack its end."""
        rest = b""
        data = self._read().removeprefix(UTF8_MARK)
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
                    f"{self.file}, line {self.first_line}: found more than {len(rest) - 1} bytes, {shown(rest)}...; "
                    "expected two integers 'source destination'; pass a text file with a line per edge."
                )
            data = self._read()
        if rest:
            yield rest

    def read_on(self) -> None:
        """Read a packed file to its end, where damage to it shows that also explains a strange line."""
        while self._packing is not None and self._read():
            pass

    def _read(self) -> bytes:
        damage = () if self._packing is None else self._packing.damage
        try:
            data = self._unpacked().read(BLOCK_BYTES)
        except (*damage, OSError) as error:
            if isinstance(error, damage) and getattr(error, "errno", None) is None:  # else the system cannot read
                raise ValueError(self._damage(error)) from error
            raise OSError(error.errno, error.strerror, str(self.file)) from error
        position = self._raw.tell()
        self._on_bytes(position - self._position)
        self._position = position
        return data

    def _unpacked(self) -> BinaryIO:
        if self._stream is None:
            if self._packing is not None and not self.file.stat().st_size:
                raise ValueError(
                    f"{self.file} is empty (0 bytes); expected {self._packing.name} data; copy or make the file again."
                )
            self._stream = self._raw if self._packing is None else self._packing.unpack(self._raw)
        return self._stream

    def _damage(self, error: Exception) -> str:
        name, magic = self._packing.name, self._packing.magic
        self._raw.seek(0)
        start = self._raw.read(len(magic))
        if not magic.startswith(start):
            return (
                f"{self.file} starts with {shown(start)}; expected {name} data; take {self._packing.suffix} off its "
                "name or pack it."
            )
        return (
            f"{self.file}, after line {self.first_line} and byte {self._position} of {self.file.stat().st_size}: the "
            f"{name} data are damaged or cut short ({self._packing.reason(error)}); copy or make the file again."
        )
