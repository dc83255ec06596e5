"""The protocol of samplers: `sample` alone. What else a sampler can do is asked for by the functions below.

A capability is a method or an attribute of the sampler; one that lacks it gets the answer of a sampler that reads
everything locally, one batch at a time. One more, `facts()`, says what ranks must have alike of it (str, numbers or
tuples of them); without it DistLoader compares the class alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fastsample_dist.ops import checks
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.sampling.mfg import MiniBatch


class Sampler(Protocol):
    """Seeds in, mini-batch out."""

    def sample(self, seeds: Tensor, step: int, /) -> MiniBatch:
        """Sample all hops for `seeds`. Both arguments are passed by place; a sampler may call them what it likes.

        Args:
          seeds: int64 [num_seeds], unique node ids; may be empty.
          step: global training step; with the sampler's own seed it keys every random choice.
        Returns:
          MiniBatch without features and labels; mfgs[0] is the input side.
        """
        ...


@runtime_checkable
class HopwiseSampler(Sampler, Protocol):
    """A sampler whose hops can be sampled apart, for inference layer by layer (train/inference.py).

    Attributes:
      num_layers: MFGs of a batch.
    """

    num_layers: int

    def hop(self, number: int) -> Sampler:
        """A sampler of one hop alone, 0 at the seeds: every node's row is the one that it has in a whole batch."""
        ...

    def facts(self) -> str:
        """See the top of this page."""
        ...


def can_sample_many(sampler: Sampler) -> bool:
    """Whether it has `sample_many(seeds, first_step)`: the batches of seeds[i] at step first_step + i, as a list."""
    return callable(getattr(sampler, "sample_many", None))


def payload_exchanges(sampler: Sampler) -> int:
    """Collectives with payload that one call of `sample` makes, by its `num_payload_exchanges()`; 0 without."""
    count = getattr(sampler, "num_payload_exchanges", None)
    return 0 if count is None else count()


def kernel_report(sampler: Sampler) -> list[KernelReport]:
    """What kernel "auto" has measured and chosen so far, by its `kernel_report()`; empty without."""
    report = getattr(sampler, "kernel_report", None)
    return [] if report is None else report()


def includes_dst(source: object) -> bool:
    """Whether every sampled row already holds an edge from the destination to itself, by the attribute
    `includes_dst` of a sampler or HopSource; False without. MFGs pass it on (`includes_dst`), and models add no
    edge of their own.
    """
    return bool(getattr(source, "includes_dst", False))


def integer_ids(seeds: Tensor | Sequence[int], name: str = "seeds", of: str = "node ids") -> Tensor:
    """Seeds as a one-dimensional integer tensor.

    Args:
      seeds: a tensor or what makes one.
      name: of the argument, for messages.
      of: what the integers are, for messages.
    Raises:
      ValueError: they are not integers, or do not fit into int64.
    """
    try:
        ids = checks.as_tensor(seeds).reshape(-1)
    except (TypeError, ValueError, RuntimeError):  # text, a set, rows of unequal length
        raise ValueError(f"{name} is a {type(seeds).__name__}; expected a tensor or list of integer {of}.") from None
    if ids.dtype.is_floating_point or ids.dtype == torch.bool:
        if ids.numel():
            mask = f"; of a mask pass {name}.nonzero()" if ids.dtype == torch.bool and of == "node ids" else ""
            raise ValueError(f"{name} is {ids.dtype}; expected integer {of}{mask}.")
        return ids.to(torch.int64)  # an empty list
    return checks.signed(name, ids)


def ids_within(nodes: Tensor | Sequence[int], num_nodes: int, name: str) -> Tensor:
    """Node ids as int64 [n], all of them of the graph.

    Raises:
      ValueError: not integers, or an id outside 0 .. num_nodes - 1; names the argument.
    """
    ids = integer_ids(nodes, name).long()
    if ids.numel():
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= num_nodes:
            raise ValueError(f"{name} holds node ids from {low} to {high}; expected 0 to {num_nodes - 1}.")
    return ids


def as_node_ids(seeds: Tensor | Sequence[int], dtype: torch.dtype, num_nodes: int) -> Tensor:
    """Seeds as a one-dimensional tensor of the graph's id dtype.

    Raises:
      ValueError: not integers, or an id outside 0 .. num_nodes - 1 (ids of `dtype` itself are left to the operator).
    """
    if isinstance(seeds, Tensor) and seeds.dtype == dtype and seeds.dim() == 1:
        return seeds
    ids = integer_ids(seeds)
    if ids.dtype != dtype and ids.numel():
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= num_nodes:
            raise ValueError(f"seeds holds node ids from {low} to {high}; expected 0 to {num_nodes - 1}.")
    return ids.to(dtype)
