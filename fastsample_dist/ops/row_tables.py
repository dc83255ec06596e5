"""Tables of rows: with scales, with a cache of some rows on a GPU, and how an id outside them is handled there.

A kernel never reads outside its tables: a bad id gives a row of zeros. A caller that must know at once waits for the
kernel (`checked`). Ids that come from the library's own sampler are in range by construction, and checking them would
cost a wait per training step; for them the kernel leaves a note in pinned host memory, which the next call finds
without waiting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from ctypes import Structure, c_int32, c_int64, c_void_p, pointer
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library
from fastsample_dist.ops.library import Refusal

SCALE_BYTES = 4
library.DECLARED.values(FS_SCALE_BYTES=SCALE_BYTES)
GATHER_ROWS, MERGE_ROWS = 1, 2  # FsCudaRowOperation
_REFUSALS = {GATHER_ROWS: ("gather_rows", Refusal.ID), MERGE_ROWS: ("merge_rows", Refusal.PLACE)}
_MAILBOX_WORDS, _MAILBOX_TAKEN = 5, -1  # the first word: empty 0, being written -1, else a row operation
cuda.DECLARED.values(
    FS_CUDA_GATHER_ROWS=GATHER_ROWS, FS_CUDA_MERGE_ROWS=MERGE_ROWS,
    FS_CUDA_MAILBOX_WORDS=_MAILBOX_WORDS, FS_CUDA_MAILBOX_TAKEN=_MAILBOX_TAKEN,
)  # fmt: skip


@cuda.DECLARED.mirror("FsCudaRowCache")
class CacheArguments(Structure):
    """FsCudaRowCache."""

    _fields_ = (("rows", c_void_p), ("places", c_void_p), ("num_rows", c_int64), ("place_type", c_int32))


@cuda.DECLARED.mirror("FsCudaBadPlace")
class BadPlace(Structure):
    """FsCudaBadPlace."""

    _fields_ = (("first", c_void_p), ("mailbox", c_void_p), ("order", c_void_p))


@dataclass(frozen=True, eq=False)
class RowTable:
    """A table's rows; int8 rows may have a float32 scale each, and then a value is number * scale in float32.

    Where a scaled row stands alone (it travels, or a cache holds it) it is packed: dim numbers, then the scale's 4
    bytes. int8 rows without scales are plain integers.

    Attributes:
      rows: [num_rows, dim], contiguous; of scaled rows int8, the numbers, any number of bytes from row to row.
      scales: of scaled rows float32 [num_rows], or the bytes of packed rows that hold them, int8 [num_rows, 4].
    Raises:
      ValueError: scales that do not fit the rows.
    """

    rows: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        rows, scales = self.rows, self.scales
        if scales is None:
            return
        expected = (rows.shape[0],) if scales.dtype == torch.float32 else (rows.shape[0], SCALE_BYTES)
        checks.require(
            rows.dim() == 2
            and rows.dtype == torch.int8
            and scales.dtype in (torch.float32, torch.int8)
            and scales.shape == expected,
            f"rows are {rows.dtype} {tuple(rows.shape)} and scales {scales.dtype} {tuple(scales.shape)}; expected int8 "
            "rows and one float32 scale for each.",
        )

    @classmethod
    def of(cls, table: Tensor | RowTable) -> RowTable:
        """The table itself, or rows without scales as a table."""
        return table if isinstance(table, RowTable) else cls(table)

    @classmethod
    def packed(cls, rows: Tensor) -> RowTable:
        """Packed rows, int8 [n, dim + 4], read where they lie."""
        return cls(rows[:, :-SCALE_BYTES], rows[:, -SCALE_BYTES:])

    @classmethod
    def joined(cls, tables: Sequence[RowTable]) -> RowTable:
        """Several tables as one: without a copy when there is one."""
        if len(tables) == 1:
            return tables[0]
        scales = [table.scale_bytes() for table in tables] if tables[0].is_scaled else None
        return cls(torch.cat([table.rows for table in tables]), None if scales is None else torch.cat(scales))

    @property
    def num_rows(self) -> int:
        """Rows."""
        return self.rows.shape[0]

    @property
    def dim(self) -> int:
        """Columns of a row's values."""
        return self.rows.shape[1]

    @property
    def is_scaled(self) -> bool:
        """Whether rows are numbers with a scale each."""
        return self.scales is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of the values: float32 of scaled rows, else that of the rows."""
        return torch.float32 if self.is_scaled else self.rows.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that travels or is cached, its scale included."""
        return self.dim * self.rows.element_size() + (SCALE_BYTES if self.is_scaled else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and scales."""
        return self.num_rows * self.row_bytes

    def scale_bytes(self) -> Tensor:
        """The scales of scaled rows as int8 [num_rows, 4], without a copy."""
        assert self.scales is not None, "rows without scales"
        return self.scales if self.scales.dtype == torch.int8 else self.scales[:, None].view(torch.int8)

    def moved(self, put: Callable[[Tensor], Tensor]) -> RowTable:
        """The same table elsewhere: `put` copies a tensor there."""
        return RowTable(put(self.rows), None if self.scales is None else put(self.scales))

    def take(self, rows: Tensor) -> Tensor:
        """Rows by number (int64, on the table's device) as they travel: packed where they are scaled."""
        if not self.is_scaled:
            return self.rows[rows]
        return torch.cat([self.rows[rows], self.scale_bytes()[rows]], dim=1)

    def values(self, rows: Tensor) -> Tensor:
        """Values of rows by number (int64, on the table's device), in `dtype`."""
        if not self.is_scaled:
            return self.rows[rows]
        scales = self.scale_bytes()[rows].contiguous().view(torch.float32)
        return self.rows[rows].float() * scales

    def no_rows(self) -> Tensor:
        """[0, columns of a row that travels], in the dtype that travels."""
        return self.rows.new_empty((0, self.row_bytes if self.is_scaled else self.dim))


@dataclass(frozen=True, eq=False)
class RowCache:
    """Copies of some rows of a table, in device memory; the table may then be in pinned host memory.

    Attributes:
      rows: [num_cached, ...]; copies, packed where the table's rows are scaled.
      places: int32 | int64 [num_rows of the table]; >= 0 the copy's row number, < 0 the row has no copy.
    """

    rows: Tensor
    places: Tensor

    @classmethod
    def of(cls, table: Tensor | RowTable, ids: Tensor, device: torch.device | str) -> RowCache:
        """A cache of the rows `ids` (unique) of a table, on `device`.

        Raises:
          ValueError, IndexError: an id twice, or outside the table.
        """
        ids = ids.to(torch.int64).cpu()
        checks.require(ids.unique().numel() == ids.numel(), "the ids to be cached repeat; expected each of them once.")
        rows = table.rows if isinstance(table, RowTable) else table
        places = torch.full((rows.shape[0],), -1, dtype=torch.int32)
        places[ids] = torch.arange(ids.numel(), dtype=torch.int32)
        ids = ids.to(rows.device)
        copies = table.take(ids) if isinstance(table, RowTable) else table[ids]
        return cls(copies.to(device), places.to(device))

    @property
    def num_bytes(self) -> int:
        """Device memory of the copies and the places."""
        return self.rows.nbytes + self.places.nbytes


def check_table(name: str, rows: Tensor, device: torch.device) -> None:
    """Refuse a table that kernels of `device` cannot read."""
    checks.require(
        cuda.can_read(rows, device),
        f"{name} is on {rows.device} and the ids on {device}; place it on {device} or in pinned host memory.",
    )


def check_cache(
    table: Tensor, cached: Tensor | None, places: Tensor | None, row_shape: tuple[int, ...] | None = None
) -> None:
    """Refuse a cache that does not fit its table, or whose rows do not have another shape that is given."""
    row_shape = tuple(table.shape[1:]) if row_shape is None else row_shape
    if cached is None or places is None:
        checks.require(cached is None and places is None, "a cache has rows and places; one of them is missing.")
        return
    checks.require(
        cached.dtype == table.dtype and cached.shape[1:] == row_shape and cached.is_contiguous(),
        f"the cache holds {cached.dtype} rows of shape {tuple(cached.shape[1:])}; expected contiguous {table.dtype} "
        f"rows of shape {row_shape}.",
    )
    checks.require(
        places.dtype in checks.ID_DTYPES and places.shape == table.shape[:1] and places.is_contiguous(),
        f"the cache's places are {places.dtype} of shape {tuple(places.shape)}; expected int32 or int64 of "
        f"({table.shape[0]},).",
    )


def cache_arguments(cached: Tensor | None, places: Tensor | None, device: torch.device) -> object:
    """The cache as an entry point takes it; None without one."""
    if cached is None or places is None:
        return None
    for name, tensor in (("the cache's rows", cached), ("the cache's places", places)):
        checks.require(tensor.device == device, f"{name} are on {tensor.device}; expected {device}.")
    return pointer(
        CacheArguments(cached.data_ptr(), places.data_ptr(), cached.shape[0], library.type_code(places)),
    )


class BadPlaceReport:
    """Where a kernel reports bad places, and when they are raised.

    Args:
      device: whose kernel reports.
      checked: find out by `refuse`, which waits for the kernel; else leave it to a later call.
      order: int64 [rows] on the device: the positions to report where the kernel has the rows in another order.
    Raises:
      ValueError: an earlier call that was not checked has left a note.
    """

    def __init__(self, device: torch.device, checked: bool, order: Tensor | None = None) -> None:
        self._first = None
        if checked:
            self._first = torch.full((1,), -1, dtype=torch.int64, device=device)
            self.arguments = BadPlace(self._first.data_ptr(), None, library.address(order))
        else:
            raise_deferred_errors(device)
            self.arguments = BadPlace(None, _mailbox(device).data_ptr(), library.address(order))

    def refuse(self, operation: int, places: Tensor, bounds: Callable[[int], tuple[int, int]]) -> None:
        """Raise ValueError where the kernel found a bad place; bounds(place) is the least and the largest one."""
        if self._first is None:
            return
        position = int(self._first)
        if position >= 0:
            place = int(places[position])
            _refuse(operation, place, position, *bounds(place))


def raise_deferred_errors(device: torch.device) -> None:
    """Raise what kernels of unchecked calls have found so far; does not wait for those that still run.

    Raises:
      ValueError: an id or a place was outside its table; its row was filled with zeros.
    """
    words = _mailbox(device)
    if int(words[0]) in (0, _MAILBOX_TAKEN):
        return
    operation, *values = words.tolist()
    words[0] = 0  # alone: a kernel that still runs may take the mailbox at once
    try:
        _refuse(operation, *values)
    except ValueError as refused:
        raise ValueError(f"{refused} (in an earlier call on {device}, which gave zeros)") from None


@functools.cache
def _mailbox(device: torch.device) -> Tensor:
    return torch.zeros(_MAILBOX_WORDS, dtype=torch.int64, pin_memory=device.type == "cuda")


def _refuse(operation: int, place: int, position: int, least: int, largest: int) -> NoReturn:
    name, refusal = _REFUSALS[operation]
    library.refuse(refusal, name, place, position, least, largest)
