"""Tensors over memory that the compiled core gave and takes back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

_ANY_BYTES = ctypes.c_char * 2**40  # no array type per length: ctypes would make, and keep, each of them


class OwnedMemory:
    """Frees what the library returned when the last tensor over its memory is gone.

    Args:
      result: pointer to the struct that the library returned.
      free: the library's function that takes it back.
    """

    __slots__ = ("_free", "_result")

    def __init__(self, result: ctypes._Pointer, free: Callable[[ctypes._Pointer], object]) -> None:
        self._result, self._free = result, free

    def __del__(self) -> None:
        self._free(self._result)

    def tensor(self, pointer: int, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor over the library's memory, without a copy; it keeps this owner alive."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        memory = _ANY_BYTES.from_address(pointer)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype, count=count)
