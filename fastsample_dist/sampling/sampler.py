"""The protocol of samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.sampling.mfg import MiniBatch


class Sampler(Protocol):
    """Seeds in, mini-batch out; the schemes differ in where the neighbour lists come from."""

    def sample(self, seeds: Tensor, step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`."""
        ...

    def sample_many(self, seeds: Sequence[Tensor], first_step: int = 0) -> list[MiniBatch]:
        """The batches of seeds[i] at step first_step + i."""
        ...

    def num_payload_exchanges(self) -> int:
        """Collectives with payload that one call of `sample` makes."""
        ...

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
        ...


def as_node_ids(seeds: Tensor | Sequence[int], dtype: torch.dtype, num_nodes: int) -> Tensor:
    """Seeds as a one-dimensional tensor of the graph's id dtype.

    Raises:
      ValueError: not integers, or an id outside 0 .. num_nodes - 1 (ids of `dtype` itself are left to the operator).
    """
    if isinstance(seeds, Tensor) and seeds.dtype == dtype and seeds.dim() == 1:
        return seeds
    ids = torch.as_tensor(seeds).reshape(-1)
    if ids.dtype == dtype:
        return ids
    if ids.numel() == 0:
        return torch.empty(0, dtype=dtype)
    if ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise ValueError(f"seeds is {ids.dtype}; expected integer node ids.")
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= num_nodes:
        raise ValueError(f"seeds holds node ids from {low} to {high}; expected 0 to {num_nodes - 1}.")
    return ids.to(dtype)
