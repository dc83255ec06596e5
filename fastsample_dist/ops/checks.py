"""Checks on operator arguments, written once. Each states what was found, what was expected."""

from __future__ import annotations

import torch
from torch import Tensor

ID_DTYPES = (torch.int32, torch.int64)
REAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


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
    (first, tensor), *others = ((name, tensor) for name, tensor in tensors.items() if tensor is not None)
    for name, other in others:
        require(
            other.device == tensor.device,
            f"{first} is on {tensor.device} and {name} on {other.device}; they must be on one device.",
        )
