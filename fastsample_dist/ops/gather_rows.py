"""gather_rows: rows of a table by id (CPU and CUDA); merge_rows: own and fetched rows in one pass."""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library

cuda.declare(fs_cuda_gather_rows=(c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int64, c_void_p, c_void_p, c_void_p))

MERGE_OUT_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def gather_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table by id: out[i] = rows[ids[i]].

    Args:
      rows: [num_rows, ...] of any dtype, contiguous (a memory-mapped tensor stays on disk but for the rows asked).
      ids: int32 | int64 [n].
    Returns:
      [n, ...] of rows' dtype.
    Raises:
      ValueError: an id outside 0 .. num_rows - 1.
    Cost: O(n * row bytes). Deterministic: yes.
    """
    return torch.ops.fastsample.gather_rows(rows, ids)


def merge_rows(own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Rows from two tables: out[i] = own[places[i]] if places[i] >= 0, else fetched[-1 - places[i]].

    Args:
      own: [num_own, width] float or small integer; the rows this rank holds.
      fetched: [num_fetched, width] of the same dtype, or of the result's: the rows other ranks sent.
      places: int64 [n].
      dtype: of the result: None keeps it; float32, float64 and bfloat16 are converted to on the way.
    Returns:
      [n, width].
    Raises:
      ValueError: a place outside both tables, widths or dtypes that differ, a conversion that does not exist.
    Cost: O(n * width), each row read once and written once. Deterministic: yes.
    """
    return torch.ops.fastsample.merge_rows(own, fetched, places, own.dtype if dtype is None else dtype)


def _row_bytes(rows: Tensor) -> int:
    elements = 1
    for size in rows.shape[1:]:
        elements *= size
    return elements * rows.element_size()


def _check_gather(rows: Tensor, ids: Tensor) -> Tensor:
    checks.require(rows.dim() >= 1, "rows has no dimension; expected [num_rows, ...].")
    checks.require(rows.is_contiguous(), "rows must be contiguous; call .contiguous() on it once, before.")
    return checks.vector("ids", ids, checks.ID_DTYPES)


def _gather_rows_cpu(rows: Tensor, ids: Tensor) -> Tensor:
    ids = _check_gather(rows, ids)
    out = torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype)
    library.call(
        library.core().fs_gather_rows,
        rows.data_ptr(), rows.shape[0], _row_bytes(rows), library.type_code(ids), ids.data_ptr(), ids.numel(),
        out.data_ptr(), library.num_threads(),
    )  # fmt: skip
    return out


def _gather_rows_cuda(rows: Tensor, ids: Tensor) -> Tensor:
    ids = _check_gather(rows, ids)
    checks.require(
        rows.device == ids.device, f"rows is on {rows.device} and ids on {ids.device}; they must be on one device."
    )
    out = torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    bad_id = torch.zeros(2, dtype=torch.int64, device=rows.device)  # {was there one, which}
    cuda.call(
        "fs_cuda_gather_rows", rows,
        rows.data_ptr(), rows.shape[0], _row_bytes(rows), library.type_code(ids), ids.data_ptr(), ids.numel(),
        out.data_ptr(), bad_id.data_ptr(),
    )  # fmt: skip
    is_bad, found = bad_id.tolist()
    checks.require(is_bad == 0, f"gather_rows: id {found}; expected 0 to {rows.shape[0] - 1}")
    return out


def _merge_rows_cpu(own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    for name, table in (("own", own), ("fetched", fetched)):
        checks.require(
            table.dim() == 2 and table.is_contiguous(),
            f"{name} has shape {tuple(table.shape)}; expected [n, width], contiguous.",
        )
    checks.require(
        own.shape[1] == fetched.shape[1] and fetched.dtype in (own.dtype, dtype),
        f"own is {own.dtype} of width {own.shape[1]}, fetched {fetched.dtype} of width {fetched.shape[1]}; "
        f"expected one width, and fetched of own's dtype or {dtype}.",
    )
    checks.require(
        dtype == own.dtype or dtype in MERGE_OUT_DTYPES,
        f"merge_rows cannot convert {own.dtype} to {dtype}; expected float32, float64 or bfloat16.",
    )
    places = checks.vector("places", places, (torch.int64,))
    out = torch.empty((places.numel(), own.shape[1]), dtype=dtype)
    pair = library.RowPair(
        own.data_ptr(), fetched.data_ptr(), own.shape[0], fetched.shape[0], own.shape[1],
        library.type_code(own), library.type_code(fetched),
    )  # fmt: skip
    library.call(
        library.core().fs_merge_rows,
        pair, places.data_ptr(), places.numel(), library.type_code(out), out.data_ptr(), library.num_threads(),
    )  # fmt: skip
    return out


SCHEMAS = {
    "gather_rows": ("(Tensor rows, Tensor ids) -> Tensor", _gather_rows_cpu),
    "merge_rows": (
        "(Tensor own, Tensor fetched, Tensor places, ScalarType dtype) -> Tensor",
        _merge_rows_cpu,
    ),
}
CUDA_KERNELS = {"gather_rows": _gather_rows_cuda}
