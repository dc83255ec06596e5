"""What ranks with roles cannot share of a model: an epoch with roles refuses it, and roles "auto" are none for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Marks = dict[str, tuple[Tensor, int]]

NO_COLLECTIVES = (
    "with roles, what a collective in the model's forward or loss meets would depend on the ranks that train at the "
    "time; leave it out, or train with roles 'none'"
)
"""For Communicator.refusing, around a task's forward pass and loss."""


def buffer_marks(model: nn.Module) -> Marks:
    """What shows whether a buffer was changed, by its name: the tensor, and torch's count of writes to it."""
    return {name: (tensor, tensor._version) for name, tensor in model.named_buffers()}


def changed_buffer(model: nn.Module, marks: Marks) -> str | None:
    """Which buffer forward passes have changed, as those of BatchNorm do; None: none.

    Args:
      model: after them.
      marks: from before them.
    """
    for name, (tensor, version) in buffer_marks(model).items():
        before, written = marks.get(name, (None, 0))
        if tensor is not before or version != written:
            return (
                f"the model's forward changes its buffer {name}, which with roles would depend on the rank that trains "
                "a batch"
            )
    return None


def strange_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """How many parameters of the optimizer are not the model's; None: none.

    Args:
      model: that is trained.
      optimizer: over it.
    """
    known = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in known for parameter in given)
    if not strangers:
        return None
    return (
        f"{strangers} of the optimizer's {len(given)} parameters are not the model's, so ranks with roles do not share "
        "their gradients"
    )
