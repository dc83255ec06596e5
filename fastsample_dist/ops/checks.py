"""Checks on operator arguments, written once. Each states what was found, what was expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_THREADS = 1024
"""Of one call: as check_threads in csrc/core/requests.h. Far above it the OpenMP library ends the process."""
MOST_LAYERS = 1 << 16
"""Of a mini-batch: every layer is work and memory, and no model has as many."""
LARGEST = 2**63 - 1
ID_DTYPES = (torch.int32, torch.int64)
UNSIGNED_DTYPES = (torch.uint16, torch.uint32, torch.uint64)
"""That torch stores and does not compute with."""
REAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds.

    The message is made in either case: where every call of an operator asks, it is raised by an `if` of its own.
    """
    if not condition:
        raise ValueError(message)


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as a Python integer; anything else is refused rather than rounded."""
    number = as_integer(value)
    if number is None or number < least or (most is not None and number > most):
        expected = f">= {least}" if most is None else f"from {least} to {'2**63 - 1' if most == LARGEST else most}"
        raise ValueError(f"{name} is {value!r}; expected an integer {expected}.")
    return number


def as_integer(value: object) -> int | None:
    """The integer that a value is, NumPy's and torch's too; None of anything else, truth values among it."""
    # older releases of NumPy take their truth values for integers; the compiler of torch 2.4 traces no union of types
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_tensor(given: object) -> Tensor:
    """`torch.as_tensor`, of an array that cannot be written too: pandas and numpy.load(mmap_mode="r") return such.

    torch wraps them with a warning of undefined behaviour; nothing here writes into what a user passes.
    """
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        given = np.asarray(_Writable(given))
    return torch.as_tensor(given)


class _Writable:
    """What NumPy takes for an array that can be written, in the memory of one that it keeps."""

    def __init__(self, array: np.ndarray) -> None:
        self.kept = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def positive(name: str, value: object) -> None:
    """Refuse what is no finite number above 0; truth values are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a positive number.")


def plain(value: Any) -> Any:
    """A number or truth value of NumPy's or torch's as Python's own; anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray | Tensor) and value.ndim == 0):
        return value.item()
    return value


def make_plain(options: Any) -> None:
    """Store `plain` of every field of a dataclass, frozen or not, so that ranks compare and files hold its values."""
    for field in fields(options):
        object.__setattr__(options, field.name, plain(getattr(options, field.name)))


def flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    require(isinstance(value, bool), f"{name} is {value!r}; expected True or False.")


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse what is none of the names known."""
    known = [*known]
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {value!r}; expected {quoted(known)}.")


def quoted(names: Iterable[str]) -> str:
    """Names for a message: 'a', 'b' or 'c'; one at least."""
    *others, last = [repr(name) for name in names]
    return f"{', '.join(others)} or {last}" if others else last


def tensors(**given: object) -> None:
    """Refuse what is no tensor."""
    for name, value in given.items():
        require(isinstance(value, Tensor), f"{name} is a {type(value).__name__}; expected a tensor.")


def signed(name: str, ids: Tensor) -> Tensor:
    """The ids; those of a type that torch does not compute with as int64. Refused where int64 does not hold them."""
    if ids.dtype not in UNSIGNED_DTYPES:
        return ids
    wide = ids.to(torch.int64)
    if ids.dtype == torch.uint64 and bool((wide < 0).any()):
        raise ValueError(f"{name}: an id is above 2**63 - 1; expected ids that fit into int64.")
    return wide


def vector(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], length: int | None = None) -> Tensor:
    """The tensor, contiguous; refused unless it is one-dimensional, of one of `dtypes`, and `length` long."""
    if tensor.dim() != 1 or tensor.dtype not in dtypes:
        raise ValueError(f"{_found(name, tensor)}; expected one dimension of {_names(dtypes)}.")
    if length is not None and tensor.numel() != length:
        raise ValueError(f"{name} has {tensor.numel()} entries; expected {length}.")
    return tensor.contiguous()


def matrix(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], rows: int | None = None) -> Tensor:
    """The tensor, contiguous; refused unless it is two-dimensional, of one of `dtypes`, with `rows` rows."""
    if tensor.dim() != 2 or tensor.dtype not in dtypes:
        raise ValueError(f"{_found(name, tensor)}; expected two dimensions of {_names(dtypes)}.")
    if rows is not None and tensor.shape[0] != rows:
        raise ValueError(f"{name} has {tensor.shape[0]} rows; expected {rows}.")
    return tensor.contiguous()


def _found(name: str, tensor: Tensor) -> str:
    return f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}"


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def one_device(**tensors: Tensor | None) -> None:
    """Refuse tensors that are on several devices; None is on every one."""
    first = device = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if device is None:
            first, device = name, tensor.device
        elif tensor.device != device:
            raise ValueError(f"{first} is on {device} and {name} on {tensor.device}; they must be on one device.")


def on_host(**tensors: Tensor | None) -> None:
    """Refuse what is no tensor in host memory; None passes."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}; expected a tensor.")
        if tensor is not None and not tensor.is_cpu:
            raise ValueError(f"{name} is on {tensor.device}; expected host memory: pass {name}.cpu().")
