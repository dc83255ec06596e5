"""Edges from .parquet files, batch by batch, read through the `pyarrow` package (imported on use, here alone).

The two ends are the columns src and dst, source and target (or destination), u and v, or from and to, in upper or
lower case; or, under other names, the only two integer columns; or those that `EdgeListOptions` names. A column
`weight` gives the edges' weights. Floating-point ids are accepted where all are whole numbers (pandas turns integers
into them).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastsample_dist.graph.inputs.edge_options import (
    END_NAMES,
    MAX_NAME_BYTES,
    WEIGHT_NAME,
    EdgeListOptions,
    NotIntegersError,
)

logger = logging.getLogger(__name__)

BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20  # of a column chunk read at a time
_WHOLE_END = 2.0**53  # beyond, a float does not distinguish neighbouring integers


@dataclass(frozen=True)
class _Columns:
    """Names of the columns that are read, and of those that are not; `weight` is None in a file without weights."""

    ends: tuple[str, str]
    weight: str | None
    weight_dtype: np.dtype | None
    left_out: tuple[str, ...]


class ParquetEdges:
    """The edges in .parquet files, read one after the other as one list.

    Args:
      files: with the same columns.
      limit: ids are below it.
      on_bytes: called with how many more bytes of the files have been read.
      options: columns, weight_column and relabel; the others are for text.
    Attributes:
      total_bytes: of the files.
      num_edges: of all.
      has_weights: whether there is a column `weight`.
    Raises:
      ImportError: pyarrow is not installed. ValueError: a file is damaged, or does not have the columns that it should.
    """

    def __init__(
        self,
        files: Sequence[Path],
        limit: int,
        on_bytes: Callable[[int], None],
        options: EdgeListOptions | None = None,
    ) -> None:
        self._files, self._limit, self._on_bytes = files, limit, on_bytes
        options = options or EdgeListOptions()
        if options.header or options.delimiter:
            raise ValueError(f"{files[0]} names its columns itself; leave --header and --delimiter out.")
        self._columns: list[_Columns] = []
        self._said: set[tuple[str, ...]] = {()}  # columns whose being left out is logged, once for all files and passes
        self.num_edges = 0
        for file in files:
            with _opened(file) as table:
                self._columns.append(_find_columns(file, table.schema_arrow, options))
                self.num_edges += table.metadata.num_rows
        self.total_bytes = sum(file.stat().st_size for file in files)
        self.has_weights = self._columns[0].weight is not None
        for file, columns in zip(files, self._columns, strict=True):
            if (columns.weight is not None) != self.has_weights:
                having, lacking = (files[0], file) if self.has_weights else (file, files[0])
                raise ValueError(f"{having} has a column weight but {lacking} has none; expected one in all or none.")
        self.weight_dtype = np.result_type(*(c.weight_dtype for c in self._columns)) if self.has_weights else None

    def text_bytes(self) -> int:
        """What the edges would take as text, about."""
        return self.num_edges * 2 * np.dtype(np.int64).itemsize

    def least_highest_id(self) -> int:
        """The highest id that the files' statistics state, of columns that have some; -1 without. No rows are read."""
        highest = -1
        for file, columns in zip(self._files, self._columns, strict=True):
            with _opened(file) as table:
                for group in map(table.metadata.row_group, range(table.metadata.num_row_groups)):
                    chunks = [group.column(place) for place in range(group.num_columns)]
                    found = [chunk.statistics for chunk in chunks if chunk.path_in_schema in columns.ends]
                    highs = [each.max for each in found if each and each.has_min_max]  # float16: bytes
                    known = [high for high in highs if isinstance(high, int | float) and math.isfinite(high)]
                    highest = max([highest, *map(int, known)])
        return highest

    def chunks(self) -> Iterator[np.ndarray]:
        """The edges, int64 [n, 2] at a time.

        Raises:
          ValueError: an id that is missing or out of range, by file, column and row; a damaged file.
        """
        self._say_left_out()
        for file, columns in zip(self._files, self._columns, strict=True):
            done = 0
            for row, last, batch in self._batches(file, list(columns.ends)):
                edges = np.empty((len(batch[0]), 2), dtype=np.int64)
                for end, (name, ids) in enumerate(zip(columns.ends, batch, strict=True)):
                    ids = _whole_ids(f"{file}: column {name}", row, ids)
                    self._check_ids(f"{file}: column {name}", row, ids)
                    edges[:, end] = ids
                yield edges
                read = int(file.stat().st_size * last)
                self._on_bytes(read - done)
                done = read

    def names(self, *, as_text: bool) -> Iterator[np.ndarray]:
        """The ends of the edges as they are called, [n, 2] at a time: int64, or bytes (UTF-8) with `as_text`.

        Raises:
          NotIntegersError: a column that holds no integers, or one that int64 cannot hold. ValueError: an id that is
            missing, empty or overlong, by file, column and row.
        """
        self._say_left_out()
        for file, columns in zip(self._files, self._columns, strict=True):
            for row, _, batch in self._batches(file, list(columns.ends)):
                ends = []
                for name, ids in zip(columns.ends, batch, strict=True):
                    where = f"{file}: column {name}"
                    ids = ids if ids.dtype.kind == "O" else _whole_ids(where, row, ids)
                    ends.append(_as_text(where, row, ids) if as_text else _as_integers(where, ids))
                yield np.stack(ends, axis=1)

    def weights(self) -> Iterator[np.ndarray]:
        """The weights, [n] at a time, `weight_dtype`.

        Raises:
          ValueError: a weight is missing, or a damaged file.
        """
        for file, columns in zip(self._files, self._columns, strict=True):
            for _, _, (values,) in self._batches(file, [columns.weight]):
                yield values.astype(self.weight_dtype, copy=False)

    def _batches(self, file: Path, names: list[str]) -> Iterator[tuple[int, float, list[np.ndarray]]]:
        """(first row, share of the file that is read then, the columns) of each batch."""
        with _opened(file) as table:
            row, num_rows = 0, table.metadata.num_rows
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=names):
                values = []
                for name in names:
                    column = batch.column(batch.schema.get_field_index(name))
                    if hasattr(column, "dictionary_decode"):  # a column of categories
                        column = column.dictionary_decode()
                    if column.null_count:
                        position = row + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                        raise ValueError(
                            f"{file}: column {name} has no value in row {position} (of 0 to {num_rows - 1}); expected "
                            "one for every edge; drop or fill such rows."
                        )
                    values.append(column.to_numpy(zero_copy_only=False))
                yield row, (row + batch.num_rows) / num_rows, values
                row += batch.num_rows

    def _say_left_out(self) -> None:
        for file, columns in zip(self._files, self._columns, strict=True):
            if columns.left_out not in self._said:
                self._said.add(columns.left_out)
                logger.info("%s: columns left out: %s", file, ", ".join(columns.left_out))

    def _check_ids(self, where: str, row: int, ids: np.ndarray) -> None:
        if ids.size and not (ids.min() >= 0 and ids.max() < self._limit):
            position = int(((ids < 0) | (ids >= self._limit)).argmax())
            raise ValueError(
                f"{where}: node id {ids[position]} in row {row + position}, counted from 0; expected 0 to "
                f"{self._limit - 1}; correct it or num_nodes, or pass --relabel if ids have gaps."
            )


def load() -> None:
    """Load pyarrow's parser of text, so that from then on the process holds the memory it takes."""
    import pyarrow.csv  # noqa: F401


def parse_csv(block: bytes, delimiter: str, width: int, kinds: Mapping[int, str]) -> dict[int, np.ndarray] | None:
    """Chosen columns of lines of text; pyarrow must be installed.

    Args:
      block: whole lines, no header, no comments.
      delimiter: one character between fields.
      width: fields of every line.
      kinds: "int64" or "float64" of each column to read, by its position.
    Returns:
      {position: values [lines]}; None: a line does not fit.
    """
    import pyarrow
    from pyarrow import csv

    types = {str(column): pyarrow.type_for_alias(kind) for column, kind in kinds.items()}
    try:
        table = csv.read_csv(
            pyarrow.BufferReader(block),
            csv.ReadOptions(
                use_threads=False, column_names=[str(column) for column in range(width)], block_size=2 * len(block)
            ),
            csv.ParseOptions(delimiter=delimiter, quote_char=False),
            csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowException:
        return None
    if any(column.null_count for column in table.columns):
        return None
    return {column: table.column(str(column)).to_numpy() for column in kinds}


def open_zstd(raw: BinaryIO) -> BinaryIO:
    """Stream of the unpacked bytes of an open .zst file.

    Raises:
      ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            f"{raw.name} needs the pyarrow package, which is not there ({error}); "
            "pip install fastsample_dist[formats], or pack it as .gz or .xz."
        ) from error
    return pyarrow.CompressedInputStream(raw, "zstd")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile; what pyarrow says about a damaged file becomes a ValueError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{file} needs the pyarrow package, which is not there ({error}); pip install fastsample_dist[formats]."
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table:
            yield table
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{file} cannot be read as .parquet ({reason}); copy or make the file again.") from error


def _whole_ids(where: str, row: int, ids: np.ndarray) -> np.ndarray:
    """Ids as integers; floating-point ones must be whole."""
    if ids.dtype.kind != "f":
        return ids
    whole = (np.abs(ids) < _WHOLE_END) & (np.floor(ids) == ids)  # NaN is neither
    if not whole.all():
        position = int((~whole).argmax())
        raise ValueError(
            f"{where}: node id {ids[position]} in row {row + position}, counted from 0, is not a whole number below "
            "2**53; expected integer node ids 0 .. num_nodes - 1; correct it, or drop the row."
        )
    return ids.astype(np.int64)


def _as_integers(where: str, ids: np.ndarray) -> np.ndarray:
    if ids.dtype.kind == "O" or (ids.dtype == np.uint64 and ids.size and int(ids.max()) >= 2**63):
        raise NotIntegersError(f"{where} holds {'text' if ids.dtype.kind == 'O' else 'integers above 2**63'}")
    return ids.astype(np.int64)


def _as_text(where: str, row: int, ids: np.ndarray) -> np.ndarray:
    names = [item if isinstance(item, bytes) else str(item).encode() for item in ids.tolist()]
    for position, name in enumerate(names):
        if not 0 < len(name) <= MAX_NAME_BYTES or b"\0" in name:
            raise ValueError(
                f"{where}: the id in row {row + position}, counted from 0, has {len(name)} bytes; expected text of 1 "
                f"to {MAX_NAME_BYTES} bytes; correct it."
            )
    return np.array(names, dtype="S")


def _find_columns(file: Path, schema: Any, options: EdgeListOptions) -> _Columns:
    from pyarrow import array, types

    named = {name.lower(): name for name in schema.names}
    if len(named) != len(schema.names):
        raise ValueError(f"{file} has the columns {', '.join(schema.names)}; expected different names; rename them.")
    weight = named.get(WEIGHT_NAME) if options.weight_column is None else options.weight_column
    if options.weight_column is not None:
        _require_column(file, schema, options.weight_column)
    ends = _named_ends(file, schema, named, weight) if options.columns is None else options.columns
    for name in ends:
        _require_column(file, schema, name)
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind)) and not (options.relabel and _is_text(kind)):
            hint = ", or pass --relabel" if _is_text(kind) else ""
            raise ValueError(
                f"{file}: column {name} is {kind}; expected integer node ids 0 .. num_nodes - 1; cast it{hint}."
            )
    weight_dtype = None
    if weight is not None:
        kind = schema.field(weight).type
        if not (types.is_integer(kind) or types.is_floating(kind)):
            raise ValueError(f"{file}: column {weight} is {kind}; expected numbers; cast it.")
        weight_dtype = array([], kind).to_numpy().dtype  # up to pyarrow 25, to_pandas_dtype imports pandas
    left_out = tuple(name for name in schema.names if name not in (*ends, weight))
    return _Columns(tuple(ends), weight, weight_dtype, left_out)


def _named_ends(file: Path, schema: Any, named: dict[str, str], weight: str | None) -> tuple[str, str]:
    """The two ends by the columns' names, or as the only integer columns."""
    from pyarrow import types

    found = [(named[src], named[dst]) for src, dst in END_NAMES if src in named and dst in named]
    integers = [field.name for field in schema if types.is_integer(field.type) and field.name != weight]
    if not found and len(integers) == 2:
        found = [(integers[0], integers[1])]
    if len(found) != 1:
        pairs = " or ".join(f"{src}, {dst}" for src, dst in found) or "no pair of ends"
        raise ValueError(
            f"{file} has the columns {', '.join(schema.names)}, with {pairs}; expected one pair: "
            f"{', '.join('/'.join(pair) for pair in END_NAMES)}, or two integer columns only; rename the columns, or "
            "pass --columns with two names."
        )
    return found[0]


def _require_column(file: Path, schema: Any, name: str) -> None:
    if name not in schema.names:
        raise ValueError(f"{file} has no column {name}; expected one of {', '.join(schema.names)}.")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
