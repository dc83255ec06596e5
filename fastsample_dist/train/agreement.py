"""What the ranks' models and optimizers must have in common, as facts for `agree_on`.

Values of parameters and buffers are left out: every rank gets those of rank 0. Settings that differ
between ranks would let their replicas diverge (a learning rate), or make their losses incomparable (dropout).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fastsample_dist.ops import checks
from fastsample_dist.ops.bytes import byte_view

Fact = str | int | float | bool | tuple | None

WHOLE_SETTINGS = ("torch", "fastsample_dist")  # packages whose modules hold nothing but settings in plain attributes


def trainer_facts(model: nn.Module, optimizer: torch.optim.Optimizer, precision: str) -> dict[str, Fact]:
    """Everything in which the replicas of a run must agree."""
    return {"precision": precision, **model_facts(model), **optimizer_facts(model, optimizer)}


def model_facts(model: nn.Module) -> dict[str, Fact]:
    """Classes, settings, and the names, shapes and types of parameters and buffers of a model.

    Every plain attribute of a module of torch or of this library is a setting. Of other classes only floats are taken
    for settings, because an integer or a string may legitimately differ between ranks.
    """
    facts: dict[str, Fact] = {}
    for name, module in model.named_modules():
        label = f"model.{name}" if name else "model"
        facts[label] = type(module).__qualname__
        facts |= {f"{label}.{key}": value for key, value in _settings(module)}
    tensors = (*model.named_parameters(), *model.named_buffers())
    for name, tensor in tensors:
        trained = "trained" if tensor.requires_grad else "fixed"
        facts[f"model.{name}"] = f"{tuple(tensor.shape)} {tensor.dtype} {trained}"
    return facts


def _settings(module: nn.Module) -> Iterator[tuple[str, Fact]]:
    is_known = type(module).__module__.split(".")[0] in WHOLE_SETTINGS
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, float | np.floating) or (is_known and _is_plain(value)):
            yield name, value


def optimizer_facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Fact]:
    """Class, hyperparameters and parameters of every group, and a hash of the optimizer's state."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    facts: dict[str, Fact] = {"optimizer": type(optimizer).__qualname__}
    groups = optimizer.param_groups
    for number, group in enumerate(groups):
        label = "optimizer" if len(groups) == 1 else f"optimizer.param_groups[{number}]"
        values = {key: value.item() if _is_number(value) else value for key, value in group.items()}
        facts |= {f"{label}.{key}": value for key, value in values.items() if _is_plain(value)}
        own = [names.get(parameter, "not the model's") for parameter in group["params"]]
        facts[f"{label}.params"] = f"{len(own)} with hash {hashlib.sha256(repr(own).encode()).hexdigest()[:12]}"
    facts["optimizer.state"] = _state_hash(optimizer)
    return facts


def task_facts(
    loss_fn: object | None, metrics: Mapping[str, object] | None, scheduler: LRScheduler | None
) -> dict[str, Fact]:
    """The names of the user's functions, and class and numbers of a learning-rate scheduler."""
    facts: dict[str, Fact] = {
        "loss_fn": None if loss_fn is None else getattr(loss_fn, "__qualname__", type(loss_fn).__qualname__),
        "metrics": None if metrics is None else tuple(metrics),
        "scheduler": None if scheduler is None else type(scheduler).__qualname__,
    }
    state = {} if scheduler is None else scheduler.state_dict()
    return facts | {f"scheduler.{key}": value for key, value in state.items() if _is_plain(value)}


def _state_hash(optimizer: torch.optim.Optimizer) -> str | None:
    """Of the moments and step counts that were loaded, None for a new optimizer."""
    state = optimizer.state_dict()["state"]
    if not state:
        return None
    digest = hashlib.sha256()
    for number in sorted(state):
        for key, value in sorted(state[number].items()):
            digest.update(f"{number} {key}".encode())
            digest.update(_tensor_bytes(value) if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def _tensor_bytes(tensor: Tensor) -> bytes:
    return byte_view(tensor.cpu().contiguous()).numpy().tobytes()


def _is_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _is_plain(value: object) -> bool:
    value = checks.plain(value)
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))
