"""alias_draws: draws from one alias table under the keys of pairs; random_rows: rows of uniform numbers by node."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

_REAL_DTYPES = (torch.float32, torch.float64)


@library.DECLARED.mirror("FsAliasDraws")
class _AliasDraws(Structure):
    """FsAliasDraws."""

    _fields_ = (
        ("alias_table", c_void_p),
        ("ids", c_void_p),
        ("numbers", c_void_p),
        ("num_slots", c_int64),
        ("num_pairs", c_int64),
        ("draws_per_pair", c_int64),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("num_threads", c_int32),
    )


@library.DECLARED.mirror("FsRandomRows")
class _RandomRows(Structure):
    """FsRandomRows."""

    _fields_ = (
        ("ids", c_void_p),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("rng_seed", c_uint64),
        ("bound", c_double),
        ("type", c_int32),
        ("num_threads", c_int32),
    )


library.DECLARED.functions(
    fs_alias_draws=(POINTER(_AliasDraws), c_void_p), fs_random_rows=(POINTER(_RandomRows), c_void_p)
)


def alias_draws(
    table: Tensor, ids: Tensor, numbers: Tensor, draws_per_pair: int, *, rng_seed: int, step: int
) -> Tensor:
    """Draw positions of one alias table; the draws of a pair depend on (rng_seed, step, its id, its number) alone.

    Args:
      table: int32 [num_slots, 2], one row of `alias_tables` with a positive total.
      ids: int64 [num_pairs]; such as the number of the walk that a pair is from.
      numbers: int64 [num_pairs], 0 .. 2^32 - 1; such as the pair's number in its walk.
      draws_per_pair: 0 or more, made one after the other from the pair's stream.
      rng_seed, step: 0 .. 2^63 - 1.
    Returns:
      int64 [num_pairs, draws_per_pair], positions 0 .. num_slots - 1.
    Raises:
      ValueError: an empty table, a number out of range, a shape or dtype mismatch.
    Cost: O(num_pairs * draws_per_pair). Deterministic: yes.
    """
    return torch.ops.fastsample.alias_draws(table, ids, numbers, draws_per_pair, [rng_seed, step])


def random_rows(
    ids: Tensor, width: int, *, rng_seed: int, bound: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Rows of numbers drawn uniformly from [-bound, bound), row i a function of (rng_seed, ids[i]) alone.

    Args:
      ids: int64 [num_rows]; original node ids.
      width: columns, at least 1.
      rng_seed: 0 .. 2^63 - 1.
      bound: of the values' size.
      dtype: float32 or float64.
    Returns:
      [num_rows, width].
    Raises:
      ValueError: another dtype, a shape mismatch.
    Cost: O(num_rows * width). Deterministic: yes.
    """
    return torch.ops.fastsample.random_rows(ids, width, rng_seed, bound, dtype)


def _alias_draws_cpu(table: Tensor, ids: Tensor, numbers: Tensor, draws_per_pair: int, key: list[int]) -> Tensor:
    table = checks.matrix("table", table, (torch.int32,))
    checks.require(table.shape[1] == 2, f"table has {table.shape[1]} columns; expected 2, threshold and alias.")
    ids = checks.vector("ids", ids, (torch.int64,))
    numbers = checks.vector("numbers", numbers, (torch.int64,), ids.numel())
    checks.require(draws_per_pair >= 0, f"draws_per_pair is {draws_per_pair}; expected 0 or more.")
    out = torch.empty(ids.numel(), draws_per_pair, dtype=torch.int64)
    request = _AliasDraws(
        table.data_ptr(), ids.data_ptr(), numbers.data_ptr(), table.shape[0], ids.numel(), draws_per_pair, *key,
        library.num_threads(),
    )  # fmt: skip
    library.call(library.core().fs_alias_draws, ctypes.byref(request), out.data_ptr())
    return out


def _random_rows_cpu(ids: Tensor, width: int, rng_seed: int, bound: float, dtype: torch.dtype) -> Tensor:
    ids = checks.vector("ids", ids, (torch.int64,))
    checks.require(dtype in _REAL_DTYPES, f"dtype is {dtype}; expected torch.float32 or torch.float64.")
    checks.require(width >= 1, f"width is {width}; expected at least 1.")
    out = torch.empty(ids.numel(), width, dtype=dtype)
    request = _RandomRows(
        ids.data_ptr(), ids.numel(), width, rng_seed, bound, library.type_code(out), library.num_threads()
    )
    library.call(library.core().fs_random_rows, ctypes.byref(request), out.data_ptr())
    return out


SCHEMAS = {
    "alias_draws": (
        "(Tensor table, Tensor ids, Tensor numbers, int draws_per_pair, int[] key) -> Tensor",
        _alias_draws_cpu,
    ),
    "random_rows": ("(Tensor ids, int width, int rng_seed, float bound, ScalarType dtype) -> Tensor", _random_rows_cpu),
}
