"""Edges from .parquet files, batch by batch, read through the `pyarrow` package (imported on use).

The two ends are the columns src and dst, source and target (or destination), u and v, or from and to, in capitals or
not; or, under other names, the only two integer columns. A column `weight` gives the edges' weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20  # of a column chunk read at a time
_ENDS = (("src", "dst"), ("source", "target"), ("source", "destination"), ("u", "v"), ("from", "to"))
_WEIGHT = "weight"


@dataclass(frozen=True)
class _Columns:
    """Names of the columns that are read; `weight` is None in a file without weights."""

    ends: tuple[str, str]
    weight: str | None
    weight_dtype: np.dtype | None


class ParquetEdges:
    """The edges in .parquet files, read one after the other as one list.

    Args:
      files: with the same columns.
      limit: ids are below it.
      on_bytes: called with how many more bytes of the files have been read.
    Attributes:
      total_bytes: of the files.
      num_edges: of all.
      has_weights: whether there is a column `weight`.
    Raises:
      ImportError: pyarrow is not installed. ValueError: a file is damaged, or has not the columns that it should.
    """

    def __init__(self, files: Sequence[Path], limit: int, on_bytes: Callable[[int], None]) -> None:
        self._files, self._limit, self._on_bytes = files, limit, on_bytes
        self._columns: list[_Columns] = []
        self.num_edges = 0
        for file in files:
            with _opened(file) as table:
                self._columns.append(_find_columns(file, table.schema_arrow))
                self.num_edges += table.metadata.num_rows
        self.total_bytes = sum(file.stat().st_size for file in files)
        self.has_weights = self._columns[0].weight is not None
        for file, columns in zip(files, self._columns, strict=True):
            if (columns.weight is not None) != self.has_weights:
                having, lacking = (files[0], file) if self.has_weights else (file, files[0])
                raise ValueError(f"{having} has a column weight but {lacking} has none; expected all or none to have.")
        self.weight_dtype = np.result_type(*(c.weight_dtype for c in self._columns)) if self.has_weights else None

    def text_bytes(self) -> int:
        """What the edges would take as text, about."""
        return self.num_edges * 2 * np.dtype(np.int64).itemsize

    def chunks(self) -> Iterator[np.ndarray]:
        """The edges, int64 [n, 2] at a time.

        Raises:
          ValueError: an id that is missing or out of range, by file, column and row; a damaged file.
        """
        for file, columns in zip(self._files, self._columns, strict=True):
            done = 0
            for row, last, batch in self._batches(file, list(columns.ends)):
                edges = np.empty((len(batch[0]), 2), dtype=np.int64)
                for end, (name, ids) in enumerate(zip(columns.ends, batch, strict=True)):
                    self._check_ids(f"{file}: column {name}", row, ids)
                    edges[:, end] = ids
                yield edges
                read = int(file.stat().st_size * last)
                self._on_bytes(read - done)
                done = read

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
                    if column.null_count:
                        position = row + int(column.is_null().to_numpy(zero_copy_only=False).argmax())
                        raise ValueError(
                            f"{file}: column {name} has no value in row {position} (of 0 to {num_rows - 1}); expected "
                            "one for every edge; drop or fill such rows."
                        )
                    values.append(column.to_numpy(zero_copy_only=False))
                yield row, (row + batch.num_rows) / num_rows, values
                row += batch.num_rows

    def _check_ids(self, where: str, row: int, ids: np.ndarray) -> None:
        if ids.size and not (ids.min() >= 0 and ids.max() < self._limit):
            position = int(((ids < 0) | (ids >= self._limit)).argmax())
            raise ValueError(
                f"{where}: node id {ids[position]} in row {row + position}, counted from 0; expected 0 to "
                f"{self._limit - 1}; correct it or num_nodes."
            )


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


def _find_columns(file: Path, schema: Any) -> _Columns:
    from pyarrow import types

    named = {name.lower(): name for name in schema.names}
    if len(named) != len(schema.names):
        raise ValueError(f"{file} has the columns {', '.join(schema.names)}; expected different names; rename them.")
    found = [(named[src], named[dst]) for src, dst in _ENDS if src in named and dst in named]
    integers = [field.name for field in schema if types.is_integer(field.type) and field.name != named.get(_WEIGHT)]
    if not found and len(integers) == 2:
        found = [(integers[0], integers[1])]
    if len(found) != 1:
        pairs = " or ".join(f"{src}, {dst}" for src, dst in found) or "no pair of ends"
        raise ValueError(
            f"{file} has the columns {', '.join(schema.names)}, with {pairs}; expected one pair: "
            f"{', '.join('/'.join(pair) for pair in _ENDS)}, or two integer columns only; rename the columns."
        )
    weight, ends = named.get(_WEIGHT), found[0]
    for name in ends:
        kind = schema.field(name).type
        if not types.is_integer(kind):
            raise ValueError(f"{file}: column {name} is {kind}; expected integer node ids 0 .. num_nodes - 1; cast it.")
    weight_dtype = None
    if weight is not None:
        kind = schema.field(weight).type
        if not (types.is_integer(kind) or types.is_floating(kind)):
            raise ValueError(f"{file}: column {weight} is {kind}; expected numbers; cast it.")
        weight_dtype = np.dtype(kind.to_pandas_dtype())
    others = [name for name in schema.names if name not in (*ends, weight)]
    if others:
        logger.info("%s: the columns %s are left out", file, ", ".join(others))
    return _Columns(ends, weight, weight_dtype)
