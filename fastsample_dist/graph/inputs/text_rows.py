"""Blocks of an edge list's lines as arrays, and the line of a block that is to blame.

pyarrow's parser takes half the time of NumPy's, so it reads the blocks that both read alike: without comments,
hexadecimal numbers, odd line ends or blanks. Whatever it refuses goes to NumPy's, and what that refuses is looked at
line by line, so the messages are the same with and without pyarrow. (3 million edges, 46 MB, five reads of each in
turn, one thread on two busy cores: medians 6.9 s with NumPy and 3.4 s with pyarrow for blanks, 6.4 s and 3.0 s for
commas.)
"""

from __future__ import annotations

import csv
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastsample_dist.graph.inputs.edge_options import (
    BLANKS,
    END_NAMES,
    MAX_NAME_BYTES,
    WEIGHT_NAME,
    EdgeListOptions,
    NotIntegersError,
)
from fastsample_dist.graph.inputs.packed import packing_in

logger = logging.getLogger(__name__)

_LOOK_BYTES = 4096  # where a file that is not text shows it
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_INSIDE_COMMENT = re.compile(rb"(?m)^[ \t]*[^#\s][^#\n]*#")
_BLANK_LINE = re.compile(rb"\n[^\S\n]+(?=\n|#|\Z)")  # or the blanks before a comment
_ONLY_NUMPYS = bytes([*range(0x1C, 0x20), *range(0x80, 0x100)])  # NumPy takes some as blanks, bytes.split none
_NO_BLANKS = bytes.maketrans(_ONLY_NUMPYS, b"?" * len(_ONLY_NUMPYS))


class RowLayout(NamedTuple):
    """Where the fields of a line are.

    Attributes:
      delimiter: between fields; BLANKS takes any blanks and tabs.
      width: fields of every line.
      ends: positions of source and destination.
      weight: position of the weight, or None.
      left_out: names of the columns that are not read, or their numbers from 1 where the list does not name them.
    """

    delimiter: str
    width: int = 2
    ends: tuple[int, int] = (0, 1)
    weight: int | None = None
    left_out: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """A line is source and destination, nothing else."""
        return (self.width, self.ends, self.weight) == (2, (0, 1), None)

    def split(self, line: bytes) -> list[bytes]:
        """Fields of a line."""
        if self.delimiter == BLANKS:
            return line.split()
        return [item.strip() for item in line.split(self.delimiter.encode())]

    def described(self) -> str:
        """What a line should be, in words."""
        if self.is_plain:
            return "two integers 'source destination'"
        kind = "blanks" if self.delimiter == BLANKS else repr(self.delimiter)
        source, destination = (position + 1 for position in self.ends)
        weight = "" if self.weight is None else f" and a weight, 0 or more, in column {self.weight + 1}"
        return f"{self.width} fields between {kind}, integers in columns {source} and {destination}{weight}"


def find_layout(where: str, first_line: bytes, options: EdgeListOptions) -> RowLayout:
    """Where the fields are, by a file's first line that is not a comment.

    Raises:
      ValueError: a column that does not exist.
    """
    delimiter = options.delimiter or ("," if b"," in first_line else BLANKS)
    layout = RowLayout(delimiter)
    if not (options.header or options.columns or options.weight_column):
        return layout
    fields = _quoted_fields(first_line, layout) if b'"' in first_line else layout.split(first_line)
    names = [field.decode("utf-8", errors="replace") for field in fields]
    weight = None if options.weight_column is None else _position(where, options.weight_column, names, options)
    if options.columns is None:
        ends = _usual_ends(where, names, weight, options.header)
    else:
        ends = tuple(_position(where, name, names, options) for name in options.columns)
    left_out = [
        name if options.header else str(column + 1)
        for column, name in enumerate(names)
        if column not in {*ends, weight}
    ]
    return RowLayout(delimiter, len(fields), ends, weight, tuple(left_out))


def _position(where: str, name: str, fields: list[str], options: EdgeListOptions) -> int:
    if options.header and name in fields:
        return _only_position(where, name, fields)
    if name.isdecimal() and 1 <= int(name) <= len(fields):
        return int(name) - 1
    known = f"the names {', '.join(fields)}" if options.header else f"{len(fields)} columns"
    hint = "" if options.header or name.isdecimal() else ", or pass --header if the first line has the names"
    raise ValueError(f"{where}: there is no column {name} but {known}; pass a number from 1 or a name{hint}.")


def _only_position(where: str, name: str, fields: list[str]) -> int:
    if fields.count(name) > 1:
        raise ValueError(
            f"{where}: {fields.count(name)} columns are called {name}; expected one; rename them, or pass --columns "
            "(--weight-column) with numbers from 1."
        )
    return fields.index(name)


def _usual_ends(where: str, names: list[str], weight: int | None, named: bool) -> tuple[int, int]:
    """Source and destination where their columns are not named."""
    lower = [name.lower() for name in names]
    pairs = [pair for pair in END_NAMES if named and set(pair) <= set(lower)]
    if len(pairs) == 1:
        source, destination = (_only_position(where, name, lower) for name in pairs[0])
        return source, destination
    others = [column for column in range(len(names)) if column != weight]
    if len(others) < 2 or (named and len(others) > 2):
        shown_names = ", ".join(names)
        raise ValueError(
            f"{where}: found the columns {shown_names}; pass source and destination, such as --columns 1,2."
        )
    return others[0], others[1]


def say_left_out(where: str, layout: RowLayout, *, named: bool) -> None:
    """Log which columns of a list are not read; `named`: its first line has their names."""
    logger.info("%s: columns left out: %s", where, ", ".join(layout.left_out))
    if named and any(name.lower() == WEIGHT_NAME for name in layout.left_out):
        logger.warning("%s: a column weight is left out; pass --weight-column weight to take it", where)


def parse_rows(block: bytes, layout: RowLayout, *, fast: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """All edges of a block, if all is well: (int64 [n, 2], weights float64 [n] or None).

    Args:
      block: whole lines.
      layout: of each.
      fast: pyarrow is there and worth loading.
    Raises:
      ValueError, OverflowError, DeprecationWarning: some line does not fit.
    """
    if fast and _reads_alike(block, layout):
        rows = _parse_with_pyarrow(block, layout)
        if rows is not None:
            return rows
    return _parse_with_numpy(block, layout)


def _reads_alike(block: bytes, layout: RowLayout) -> bool:
    """Whether pyarrow and NumPy read a block alike, if both do. (One byte is found at memory speed, two are not.)"""
    hexadecimal = (b"x" in block and b"0x" in block) or (b"X" in block and b"0X" in block)
    lone_returns = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
    if b"#" in block or hexadecimal or lone_returns:
        return False
    return layout.delimiter != BLANKS or layout.is_plain or _has_single_blanks(block)


def _has_single_blanks(block: bytes) -> bool:
    """Whether fields have one blank, or one tab, between them everywhere: pyarrow takes a second one as an empty field.

    Where the field is a number it refuses that; a field that is left out may be empty.
    """
    blank = b"\t" if b"\t" in block else b" "
    if (blank == b"\t" and b" " in block) or b"\v" in block or b"\f" in block:
        return False
    text = np.frombuffer(block, dtype=np.uint8)
    blanks = text == ord(blank)
    ends = blanks | (text == ord("\n")) | (text == ord("\r"))
    beside = (blanks[1:] & ends[:-1]).any() or (blanks[:-1] & ends[1:]).any()
    return not (beside or blanks[:1].any() or blanks[-1:].any())


def _parse_with_pyarrow(block: bytes, layout: RowLayout) -> tuple[np.ndarray, np.ndarray | None] | None:
    """None: it refuses some line."""
    from fastsample_dist.graph.inputs.parquet_edges import parse_csv  # the home of pyarrow

    tabs = layout.delimiter == BLANKS and b"\t" in block[:_LOOK_BYTES]
    kinds = dict.fromkeys(layout.ends, "int64") | ({} if layout.weight is None else {layout.weight: "float64"})
    columns = parse_csv(block, "\t" if tabs else layout.delimiter, layout.width, kinds)
    if columns is None:
        return None
    edges = np.stack([columns[end] for end in layout.ends], axis=1)
    return edges, None if layout.weight is None else columns[layout.weight]


def _parse_with_numpy(block: bytes, layout: RowLayout) -> tuple[np.ndarray, np.ndarray | None]:
    in_blanks = layout.delimiter == BLANKS
    options = {
        "comments": "#" if b"#" in block else None,
        "delimiter": None if in_blanks else layout.delimiter,
        "encoding": "latin-1",
    }
    block = block.translate(_NO_BLANKS) if in_blanks else _BLANK_LINE.sub(b"\n", b"\n" + block)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data.*")
        warnings.filterwarnings("error", category=DeprecationWarning)  # older NumPy: 1.5 read as 1
        if layout.is_plain:
            edges = np.loadtxt(io.BytesIO(block), dtype=np.int64, ndmin=2, **options)
            if edges.size and edges.shape[1] != layout.width:
                raise ValueError(f"{edges.shape[1]} fields; expected {layout.width}")
            return (edges if edges.size else np.empty((0, 2), dtype=np.int64)), None
        kinds = ["S1"] * layout.width  # what is left out
        for end in layout.ends:
            kinds[end] = "i8"
        if layout.weight is not None:
            kinds[layout.weight] = "f8"
        dtype = np.dtype([(f"f{column}", kind) for column, kind in enumerate(kinds)])
        rows = np.loadtxt(io.BytesIO(block), dtype=dtype, ndmin=1, **options)
    edges = np.stack([rows[f"f{end}"] for end in layout.ends], axis=1) if rows.size else np.empty((0, 2), np.int64)
    return edges, None if layout.weight is None else rows[f"f{layout.weight}"].astype(np.float64)


def has_trailing_comments(block: bytes) -> bool:
    """Whether a "#" follows something else in a line."""
    return b"#" in block and _INSIDE_COMMENT.search(block) is not None


def split_names(where: Path, first_line: int, block: bytes, layout: RowLayout) -> np.ndarray:
    """Ends of a block's edges as text, bytes [n, 2]. A line that begins with "#" is a comment.

    Raises:
      ValueError: a line with another number of fields, an empty or overlong id, or what is not text.
    """
    ids: list[bytes] = []
    for number, text, fields in _split_lines(where, first_line, block, layout):
        ends = [fields[end] for end in layout.ends]
        if not all(0 < len(name) <= MAX_NAME_BYTES for name in ends):
            raise ValueError(
                f"{where}, line {number}: found {shown(text)}; expected ids of 1 to {MAX_NAME_BYTES} bytes; correct it."
            )
        ids += ends
    return np.array(ids, dtype="S").reshape(-1, 2) if ids else np.empty((0, 2), dtype="S1")


def split_integers(where: Path, first_line: int, block: bytes, layout: RowLayout) -> np.ndarray:
    """Ends of a block's edges as integers that may be quoted, int64 [n, 2].

    Raises:
      NotIntegersError: an id that is none, or that int64 does not hold. ValueError: as `split_names`.
    """
    names = split_names(where, first_line, block, layout)
    for name in names.reshape(-1).tolist():
        if not _INTEGER.fullmatch(name) or not -(2**63) <= int(name) < 2**63:
            raise NotIntegersError(f"{where}, from line {first_line} on: found {shown(name)}")
    return names.astype(np.int64)


def split_weights(where: Path, first_line: int, block: bytes, layout: RowLayout) -> np.ndarray:
    """Weights of a block's edges whose ends are text, float64 [n].

    Raises:
      ValueError: as `split_names`, or a value that is not a weight.
    """
    weights = []
    for number, _, fields in _split_lines(where, first_line, block, layout):
        if not _is_weight(fields[layout.weight]):
            raise ValueError(f"{where}, line {number}: {_no_weight(fields[layout.weight])}")
        weights.append(float(fields[layout.weight]))
    return np.array(weights, dtype=np.float64)


def _split_lines(where: Path, first_line: int, block: bytes, layout: RowLayout) -> Iterator[tuple[int, bytes, list]]:
    """(number, text, fields) of every line with data; fields may be quoted."""
    is_text = _is_utf8(block) and _BINARY.search(block) is None
    for number, text in data_lines(block, first_line, whole=True):
        if not is_text and (_BINARY.search(text) or not _is_utf8(text)):
            raise ValueError(f"{where}, line {number}: found {shown(text)}; expected text in UTF-8; convert the file.")
        fields = _quoted_fields(text, layout) if b'"' in text else layout.split(text)
        if len(fields) != layout.width:
            raise ValueError(
                f"{where}, line {number}: found {shown(text)}; expected {layout.width} fields; correct the line, or "
                "pass --delimiter, --columns or --header."
            )
        yield number, text, fields


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _quoted_fields(line: bytes, layout: RowLayout) -> list[bytes]:
    text = line.decode("utf-8", errors="surrogateescape")
    row = next(csv.reader([text], delimiter=layout.delimiter, skipinitialspace=True), [])
    return [field.strip().encode("utf-8", errors="surrogateescape") for field in row]


def data_lines(block: bytes, first_line: int, *, whole: bool = False) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is neither empty nor a comment.

    Args:
      block: the lines.
      first_line: number of the first.
      whole: only a line that begins with "#" is a comment; else what follows one is.
    """
    for number, line in enumerate(io.BytesIO(block), start=first_line):
        text = line.strip() if whole else line.split(b"#")[0].strip()
        if text and not text.startswith(b"#"):
            yield number, text


def explain(file: Path, first_line: int, block: bytes, layout: RowLayout, limit: int) -> str:
    """The message for the first line of a block that is not an edge, or has an id outside 0 .. limit - 1."""
    for number, text in data_lines(block, first_line):
        where = f"{file}, line {number}"
        fields = layout.split(text)
        ends = [fields[end] for end in layout.ends] if len(fields) == layout.width else []
        if not ends or not all(map(_INTEGER.fullmatch, ends)):
            return f"{where}: found {shown(text)}; expected {layout.described()} {_advice(block, fields, layout)}"
        if layout.weight is not None and not _is_weight(fields[layout.weight]):
            return f"{where}: {_no_weight(fields[layout.weight])}"
        for value in map(int, ends):
            if not 0 <= value < limit:
                return (
                    f"{where}: node id {value}; expected 0 to {limit - 1}; correct it or num_nodes, or pass --relabel "
                    "if ids have gaps."
                )
    return f"{file}, from line {first_line} on, cannot be read as an edge list; expected {layout.described()} per line."


def are_weights(values: np.ndarray) -> bool:
    """Whether edges can be drawn in proportion to all of these."""
    return bool((np.isfinite(values) & (values >= 0)).all())


def _is_weight(field: bytes) -> bool:
    try:
        value = math.nan if b"_" in field else float(field)  # Python alone reads 1_0, as 10
    except ValueError:
        return False
    return math.isfinite(value) and value >= 0


def _no_weight(field: bytes) -> str:
    return (
        f"the weight is {shown(field)}; expected a finite number, 0 or more (edges are drawn in proportion to it); "
        "correct it, or leave --weight-column out."
    )


def _advice(block: bytes, fields: Sequence[bytes], layout: RowLayout) -> str:
    """What to do about a line with these fields."""
    if packing := packing_in(block):
        return f"in plain text; end the name of a {packing.name} file with {packing.suffix}."
    if _BINARY.search(b"".join(fields)) or _BINARY.search(block, 0, _LOOK_BYTES):
        return "in plain text (ASCII or UTF-8); convert the file."
    if not _is_utf8(b"".join(fields)):
        return "in ASCII or UTF-8; convert the file."
    if not layout.is_plain:
        return "as in the first line; correct the line, or pass --header, --relabel or other columns."
    if len(fields) > 2 and all(re.fullmatch(rb"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", item) for item in fields):
        return (
            f"and no further column; keep the first two of its {len(fields)} columns, or pass --weight-column 3 or "
            "--columns 1,2 (weights go into edge_weight.npy beside the list in a directory, or into a .parquet file's "
            "column weight, too)."
        )
    return (
        "separated like the first edge; correct the line, or put # before a header (or pass --header), and pass "
        "--relabel if ids are names."
    )


def shown(text: bytes) -> str:
    """The beginning of a text, for messages."""
    return repr(text[:60].decode("utf-8", errors="replace"))
