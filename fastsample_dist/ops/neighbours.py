"""A symmetric graph as the partitioning passes take it, on NumPy arrays that may be mapped from files."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from fastsample_dist.ops import checks, library

_ID_CODES = {np.dtype(np.int32): 0, np.dtype(np.int64): 1}
_WEIGHT_CODES = {np.dtype(np.uint8): 7, np.dtype(np.int32): 0}


@library.DECLARED.mirror("FsNeighbours")
class _Neighbours(Structure):
    """FsNeighbours."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("weights", c_void_p),
        ("order", c_void_p),
        ("num_nodes", c_int64),
        ("num_entries", c_int64),
        ("id_type", c_int32),
        ("weight_type", c_int32),
        ("rows_by_turn", c_int32),
    )


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Neighbour lists that hold every pair in both rows.

    Attributes:
      indptr: int64 [num_nodes + 1]; offsets of the rows.
      indices: int32 | int64 [num_entries].
      weights: uint8 | int32 [num_entries], >= 0; None: all 1.
      order: int64 [num_nodes], the nodes in the order of their turns, each once; None: ascending.
      rows_by_turn: `indptr` is that of rows in the order of the turns, else by node.
    Raises:
      ValueError: another dtype or length.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None
    order: np.ndarray | None = None
    rows_by_turn: bool = False

    def __post_init__(self) -> None:
        checks.require(len(self.indptr) >= 1, "indptr is empty; expected at least one offset.")
        array("indptr", self.indptr, (np.int64,))
        array("indices", self.indices, tuple(_ID_CODES))
        if self.weights is not None:
            array("weights", self.weights, tuple(_WEIGHT_CODES), len(self.indices))
        if self.order is not None:
            array("order", self.order, (np.int64,), self.num_nodes)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    def argument(self) -> _Neighbours:
        """The structure that the compiled passes take; it points into these arrays."""
        return _Neighbours(
            address(self.indptr), address(self.indices), address(self.weights), address(self.order),
            self.num_nodes, len(self.indices), _ID_CODES[self.indices.dtype],
            _WEIGHT_CODES[np.dtype(np.int32) if self.weights is None else self.weights.dtype], self.rows_by_turn,
        )  # fmt: skip


def array(name: str, given: np.ndarray, dtypes: tuple[object, ...], length: int | None = None) -> None:
    """Refuse an array that is not one-dimensional, contiguous, of one of these dtypes and `length` long."""
    wanted = [np.dtype(dtype) for dtype in dtypes]
    if given.ndim != 1 or given.dtype not in wanted or not given.flags.c_contiguous:
        names = " or ".join(dtype.name for dtype in wanted)
        raise ValueError(f"{name} is {given.dtype} of shape {given.shape}; expected one dimension of {names}.")
    checks.require(length in (None, len(given)), f"{name} has {len(given)} entries; expected {length}.")


def address(given: np.ndarray | None) -> int | None:
    """Where an array's memory begins; None for None."""
    return None if given is None else given.ctypes.data
