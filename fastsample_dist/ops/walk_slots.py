"""walk_slots: alias tables that hold ids, so that a step of a walk by weight reads one place instead of two.

A slot has a threshold, its own id and another id: the draw and its thresholds are those of `alias_tables`, and the pick
is the id that lies at the drawn position of the row. The slots of a row whose weights are all 0 have no ids: nothing is
picked there. A pick of an int32 id reads a word of 8 bytes, and seldom the threshold's lower bits besides.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.alias_tables import WEIGHT_DTYPES

WORD_BYTES = 8
_SLOT_BYTES = {torch.int32: WORD_BYTES + 4, torch.int64: 24}
_READ_BYTES = {torch.int32: WORD_BYTES, torch.int64: 24}
library.DECLARED.values(FS_SLOT_WORD_BYTES=WORD_BYTES)
library.DECLARED.functions(
    fs_walk_slots=(
        ctypes.POINTER(library.WeightedEdges),
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
)


@dataclass(frozen=True, eq=False)
class WalkSlots:
    """What picks by weight read.

    Attributes:
      slots: uint8 [num_edges * slot_bytes], as csrc/core/walk_slot.h has them. None where they were not asked for.
      totals: float64 [num_rows]; sum of each row's weights, left to right. None where not asked for.
      maxima: float64 [num_rows]; largest weight of each row, 0 of an empty one. None where not asked for.
    """

    slots: Tensor | None
    totals: Tensor | None
    maxima: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Memory of the tables, in bytes."""
        return sum(tensor.nbytes for tensor in (self.slots, self.totals, self.maxima) if tensor is not None)


def slot_bytes(dtype: torch.dtype) -> int:
    """Bytes of an edge's slot for ids of this dtype."""
    return _SLOT_BYTES[dtype]


def read_bytes(dtype: torch.dtype) -> int:
    """Bytes of an edge's slot that picks read, but for few of them."""
    return _READ_BYTES[dtype]


def walk_slots(
    indptr: Tensor,
    indices: Tensor,
    weights: Tensor,
    *,
    slots: bool = True,
    totals: bool = False,
    maxima: bool = False,
    num_threads: int | None = None,
) -> WalkSlots:
    """Build the walk slots of every row, or only the sums, in huge pages where the system has them.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; ids of the sources.
      weights: float32 | float64 [num_edges]; finite and not negative.
      slots: whether to build the slots: 12 bytes per edge of int32 ids, 24 of int64.
      totals: whether to return the rows' sums.
      maxima: whether to return the rows' largest weights.
      num_threads: threads that share the rows; None takes torch's setting. Results never depend on it.
    Raises:
      ValueError: as of `alias_tables`; with slots, a source that is no row.
    Source: Walker (1977); Vose, IEEE Trans. Software Engineering (1991). Cost: O(num_rows + num_edges); scratch of 20
    bytes per edge of the longest row and thread. Deterministic: yes.
    """
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected at least one offset.")
    indices = checks.vector("indices", indices, checks.ID_DTYPES, int(indptr[-1]))
    weights = checks.vector("weights", weights, WEIGHT_DTYPES, int(indptr[-1]))
    num_rows, num_edges = indptr.numel() - 1, weights.numel()
    built = WalkSlots(
        _huge(num_edges * slot_bytes(indices.dtype), torch.uint8) if slots else None,
        _huge(num_rows, torch.float64) if totals else None,
        _huge(num_rows, torch.float64) if maxima else None,
    )
    edges = library.WeightedEdges(
        indptr.data_ptr(), weights.data_ptr(), num_rows, num_edges, library.type_code(weights),
        library.num_threads(num_threads),
    )  # fmt: skip
    library.call(
        library.core().fs_walk_slots,
        ctypes.byref(edges), indices.data_ptr(), library.type_code(indices), library.address(built.slots),
        library.address(built.totals), library.address(built.maxima),
    )  # fmt: skip
    return built


def _huge(size: int, dtype: torch.dtype) -> Tensor:
    """Memory that is read at random."""
    tensor = torch.empty(size, dtype=dtype)
    library.advise_huge_pages(tensor)
    return tensor
