"""gather_rows: rows of a table by id (CPU and CUDA); merge_rows: own, near and fetched rows in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import bus_order, checks, cuda, library
from fastsample_dist.ops.row_tables import (
    GATHER_ROWS,
    MERGE_ROWS,
    SCALE_BYTES,
    BadPlace,
    BadPlaceReport,
    CacheArguments,
    RowCache,
    RowTable,
    cache_arguments,
    check_cache,
    check_table,
)

_ROW_BITS, _MOST_TABLES = 48, 64
library.DECLARED.values(FS_ROW_BITS=_ROW_BITS, FS_MOST_TABLES=_MOST_TABLES)
MERGE_OUT_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@cuda.DECLARED.mirror("FsCudaRows")
class _Rows(Structure):
    """FsCudaRows."""

    _fields_ = (
        ("rows", c_void_p),
        ("num_rows", c_int64),
        ("row_bytes", c_int64),
        ("cache", POINTER(CacheArguments)),
    )


cuda.DECLARED.functions(
    fs_cuda_gather_rows=(POINTER(_Rows), c_int32, c_void_p, c_int64, c_void_p, POINTER(BadPlace), c_void_p),
    fs_cuda_merge_rows=(
        POINTER(library.RowTables), POINTER(CacheArguments), c_void_p, c_int64, c_int32, c_void_p, POINTER(BadPlace),
        c_void_p,
    ),
)  # fmt: skip


def gather_rows(rows: Tensor, ids: Tensor, cache: RowCache | None = None, *, checked: bool = True) -> Tensor:
    """Rows of a table by id: out[i] = rows[ids[i]].

    Args:
      rows: [num_rows, ...] of any dtype, contiguous (a memory-mapped tensor stays on disk except for the rows
        requested). For ids on a GPU: on that GPU, or in pinned host memory that it reads over the bus. It has no
        gradient: a table that is trained is indexed with torch, rows[ids].
      ids: int32 | int64 [n].
      cache: copies of some rows on the ids' GPU, read in place of the table's; the CPU reads the table.
      checked: False on a GPU: do not wait to find out whether an id is bad. Its row is zeros, and a later call on the
        device, or `ops.raise_deferred_errors`, raises. For ids that are in range by construction.
    Returns:
      [n, ...] of rows' dtype, on the ids' device.
    Raises:
      ValueError: an id outside 0 .. num_rows - 1; rows that require a gradient, unless gradients are off.
    Cost: O(n * row bytes). Deterministic: yes.
    """
    checks.tensors(rows=rows, ids=ids)
    _check_not_trained("gather_rows", rows=rows)
    cached, places = (None, None) if cache is None else (cache.rows, cache.places)
    return torch.ops.fastsample.gather_rows(rows, ids, cached, places, checked)


def merge_rows(
    own: Tensor | RowTable,
    fetched: Tensor,
    places: Tensor,
    dtype: torch.dtype | None = None,
    cache: RowCache | None = None,
    *,
    near: Sequence[Tensor | RowTable] = (),
    checked: bool = True,
) -> Tensor:
    """Rows of several tables by place: own[place] for 0 <= place < 2**48, fetched[-1 - place] for place < 0.

    `place_in` gives the places of near tables.

    Args:
      own: [num_own, width] float or small integer; the rows this rank holds; for a GPU as in `gather_rows`.
      fetched: [num_fetched, width] of the same dtype, or of the result's: the rows other ranks sent. Where own rows are
        scaled: packed rows, int8 [num_fetched, width + 4].
      places: int64 [n].
      dtype: of the result: None keeps it (scaled rows come out packed); float32, float64 and bfloat16 are converted
        to on the way.
      cache: of own rows, as in `gather_rows`.
      near: further tables like `own`, at most 63, read where they lie; all scaled or none.
      checked: as in `gather_rows`.
    Returns:
      [n, width] on the places' device; [n, width + 4] for packed rows.
    Raises:
      ValueError: a place outside the tables, widths or dtypes that differ, a conversion that does not exist, rows that
        require a gradient, as in `gather_rows`.
    Cost: O(n * width), each row read once and written once. Deterministic: yes.
    """
    cached, slots = (None, None) if cache is None else (cache.rows, cache.places)
    tables = [RowTable.of(table) for table in (own, *near)]
    scaled = [table.scale_bytes() for table in tables if table.is_scaled]
    checks.require(
        len(scaled) in (0, len(tables)),
        f"{len(scaled)} of {len(tables)} tables have scales; expected all of them or none.",
    )
    rows, *others = (table.rows for table in tables)
    _check_not_trained("merge_rows", own=rows, fetched=fetched)
    dtype = rows.dtype if dtype is None else dtype
    return torch.ops.fastsample.merge_rows(
        rows, fetched, places, dtype, cached, slots, checked, others or None, scaled or None
    )


def place_in(table: int | Tensor, rows: Tensor) -> Tensor:
    """Places of rows (int64) of a table, or of one table per row: 0 is `own` of `merge_rows`, k its near[k - 1]."""
    return rows + (table << _ROW_BITS)


def row_in(table: int, places: Tensor) -> Tensor:
    """Rows of those places that are in a table, int64; see `place_in`."""
    first = table << _ROW_BITS
    return places[(places >= first) & (places < first + (1 << _ROW_BITS))] - first


def _row_bytes(rows: Tensor) -> int:
    elements = 1
    for size in rows.shape[1:]:
        elements *= size
    return elements * rows.element_size()


def _check_not_trained(operator: str, **tables: Tensor) -> None:
    if not torch.is_grad_enabled():
        return
    for name, rows in tables.items():
        if rows.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, which {operator} does not have; pass {name}.detach(), or index the table "
                "with torch (table[ids]) to train it."
            )


def _check_gather(rows: Tensor, ids: Tensor) -> Tensor:
    checks.require(rows.dim() >= 1, "rows has no dimension; expected [num_rows, ...].")
    checks.require(rows.is_contiguous(), "rows must be contiguous; call .contiguous() on it once, before.")
    return checks.vector("ids", ids, checks.ID_DTYPES)


def _gather_rows_cpu(
    rows: Tensor, ids: Tensor, cached: Tensor | None = None, places: Tensor | None = None, _checked: bool = True
) -> Tensor:
    ids = _check_gather(rows, ids)
    check_cache(rows, cached, places)
    out = torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype)
    library.call(
        library.core().fs_gather_rows,
        rows.data_ptr(), rows.shape[0], _row_bytes(rows), library.type_code(ids), ids.data_ptr(), ids.numel(),
        out.data_ptr(), library.num_threads(),
    )  # fmt: skip
    return out


def _gather_rows_cuda(
    rows: Tensor, ids: Tensor, cached: Tensor | None = None, places: Tensor | None = None, checked: bool = True
) -> Tensor:
    ids = _check_gather(rows, ids)
    check_table("rows", rows, ids.device)
    check_cache(rows, cached, places)
    asked, order = bus_order.by_row(ids, (rows,))
    out = torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype, device=ids.device)
    report = BadPlaceReport(ids.device, checked, order)
    table = _Rows(rows.data_ptr(), rows.shape[0], _row_bytes(rows), cache_arguments(cached, places, ids.device))
    cuda.call(
        "fs_cuda_gather_rows", ids,
        table, library.type_code(asked), asked.data_ptr(), asked.numel(), out.data_ptr(), report.arguments,
    )  # fmt: skip
    report.refuse(GATHER_ROWS, ids, lambda _: (0, rows.shape[0] - 1))
    return bus_order.put_back(out, order)


@dataclass(frozen=True, eq=False)
class _Merge:
    """The tables of one merge_rows.

    Attributes:
      tables: own rows, then the near tables'.
      scales: int8 [rows, 4] of each of them where rows are scaled, else empty.
    """

    tables: Sequence[Tensor]
    fetched: Tensor
    dtype: torch.dtype
    scales: Sequence[Tensor]

    @property
    def fetched_width(self) -> int:
        """Columns of a fetched or cached row."""
        return self.tables[0].shape[1] + (SCALE_BYTES if self.scales else 0)

    @property
    def out_width(self) -> int:
        """Columns of the result."""
        return self.fetched_width if self.dtype == torch.int8 else self.tables[0].shape[1]

    def check(self) -> None:
        """Refuse shapes, dtypes and conversions that do not fit."""
        own, fetched, dtype = self.tables[0], self.fetched, self.dtype
        names = ("own", *("a near table" for _ in self.tables[1:]))
        for name, table in (*zip(names, self.tables, strict=True), ("fetched", fetched)):
            rows_fit = table.stride(1) == 1 if self.scales and table is not fetched else table.is_contiguous()
            checks.require(
                table.dim() == 2 and rows_fit,
                f"{name} has shape {tuple(table.shape)}; expected [n, width], contiguous.",
            )
        checks.require(
            self.fetched_width == fetched.shape[1] and fetched.dtype in (own.dtype, dtype),
            f"own is {own.dtype} of width {own.shape[1]}, fetched {fetched.dtype} of width {fetched.shape[1]}; "
            f"expected one width, and fetched of own's dtype or {dtype}.",
        )
        for table in self.tables[1:]:
            checks.require(
                table.dtype == own.dtype and table.shape[1] == own.shape[1],
                f"a near table is {table.dtype} of width {table.shape[1]}; expected own's {own.dtype} and "
                f"{own.shape[1]}.",
            )
        checks.require(
            dtype == own.dtype or dtype in MERGE_OUT_DTYPES,
            f"merge_rows cannot convert {own.dtype} to {dtype}; expected float32, float64 or bfloat16.",
        )
        if self.scales:
            self._check_scales()

    def _check_scales(self) -> None:
        own, shapes = self.tables[0], [(table.shape[0], SCALE_BYTES) for table in self.tables]
        fit = [scale.shape == shape for scale, shape in zip(self.scales, shapes, strict=False)]
        checks.require(
            own.dtype == self.fetched.dtype == torch.int8 and len(self.scales) == len(shapes) and all(fit),
            f"scaled rows are {own.dtype} with scales of shapes {[tuple(scale.shape) for scale in self.scales]}; "
            f"expected torch.int8 and {shapes}.",
        )

    def arguments(self) -> library.RowTables:
        """FsRowTables."""
        scales = self.scales or (None,) * len(self.tables)
        tables = [_table(rows, scale) for rows, scale in zip(self.tables, scales, strict=True)]
        return library.RowTables(
            (library.RowTable * len(tables))(*tables), self.fetched.data_ptr(), self.fetched.shape[0],
            self.tables[0].shape[1], len(tables), library.type_code(self.tables[0]), library.type_code(self.fetched),
            bool(self.scales),
        )  # fmt: skip


def _table(rows: Tensor, scales: Tensor | None) -> library.RowTable:
    if scales is None:
        return library.RowTable(rows.data_ptr(), rows.shape[0], None, 0, 0)
    return library.RowTable(rows.data_ptr(), rows.shape[0], scales.data_ptr(), _row_stride(rows), _row_stride(scales))


def _row_stride(rows: Tensor) -> int:
    """Bytes from row to row; of a row alone torch's stride may be anything."""
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[1]


def _merge_rows_cpu(
    own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype,
    cached: Tensor | None = None, slots: Tensor | None = None, _checked: bool = True,
    near: Sequence[Tensor] | None = None, scales: Sequence[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    merge = _Merge((own, *(near or ())), fetched, dtype, scales or ())
    merge.check()
    check_cache(own, cached, slots, (merge.fetched_width,))
    places = checks.vector("places", places, (torch.int64,))
    out = torch.empty((places.numel(), merge.out_width), dtype=dtype)
    library.call(
        library.core().fs_merge_rows,
        merge.arguments(), places.data_ptr(), places.numel(), library.type_code(out), out.data_ptr(),
        library.num_threads(),
    )  # fmt: skip
    return out


def _merge_rows_cuda(
    own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype,
    cached: Tensor | None = None, slots: Tensor | None = None, checked: bool = True,
    near: Sequence[Tensor] | None = None, scales: Sequence[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    near, scales = near or (), scales or ()
    merge = _Merge((own, *near), fetched, dtype, scales)
    merge.check()
    for name, tables in (("own", (own,)), ("fetched", (fetched,)), ("a near table", near), ("scales", scales)):
        for table in tables:
            check_table(name, table, places.device)
    check_cache(own, cached, slots, (merge.fetched_width,))
    places = checks.vector("places", places, (torch.int64,))
    asked, order = bus_order.by_row(places, merge.tables)
    out = torch.empty((places.numel(), merge.out_width), dtype=dtype, device=places.device)
    report = BadPlaceReport(places.device, checked, order)
    cuda.call(
        "fs_cuda_merge_rows", places,
        merge.arguments(), cache_arguments(cached, slots, places.device), asked.data_ptr(), asked.numel(),
        library.type_code(out), out.data_ptr(), report.arguments,
    )  # fmt: skip
    report.refuse(MERGE_ROWS, places, lambda place: (-fetched.shape[0], _largest_place(place, (own, *near))))
    return bus_order.put_back(out, order)


def _largest_place(place: int, tables: Sequence[Tensor]) -> int:
    """Of the table that a refused place names; see refused_table in csrc/core/row_place.h."""
    table = min(max(place, 0) >> _ROW_BITS, len(tables) - 1)
    return (table << _ROW_BITS) + tables[table].shape[0] - 1


_CACHE_SCHEMA = "Tensor? cached=None, Tensor? cache_places=None, bool checked=True"
SCHEMAS = {
    "gather_rows": (f"(Tensor rows, Tensor ids, {_CACHE_SCHEMA}) -> Tensor", _gather_rows_cpu),
    "merge_rows": (
        "(Tensor own, Tensor fetched, Tensor places, ScalarType dtype, "
        f"{_CACHE_SCHEMA}, Tensor[]? near=None, Tensor[]? scales=None) -> Tensor",
        _merge_rows_cpu,
    ),
}
CUDA_KERNELS = {"gather_rows": _gather_rows_cuda, "merge_rows": _merge_rows_cuda}
