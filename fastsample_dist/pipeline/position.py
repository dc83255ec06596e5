"""Where a loader stands in its sequence of batches, told so that another number of ranks can go on from there.

An epoch's plan is each rank's seeds in the order in which it uses them. What is left of it after some steps is told by
original node ids: the first seed left of every rank, then the second of every rank, and so on. Each rank of a resumed
run picks its own nodes out of that list. On the same number of ranks it gets back its old order; on another the order
mixes the old ranks' seeds evenly, so that half the ranks with twice the batch size make the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.pipeline.executor import StepInput

PURPOSE = "checkpoint"


@dataclass(frozen=True)
class LoaderPosition:
    """Between two batches.

    Attributes:
      epoch: the epoch under way.
      step: global step of the next batch.
      remaining: int64 original ids of this epoch's seeds still to come, over all ranks; empty when the epoch's last
        batch is done.
    """

    epoch: int
    step: int
    remaining: Tensor


@dataclass(frozen=True)
class EpochPlan:
    """What a rank does in one epoch, or in what is left of it.

    Attributes:
      epoch: its number.
      first_step: global step of its first batch.
      seeds: int64, own nodes in the order in which they are used.
      seeds_per_rank: how many each rank has.
      batch_size: seeds per rank and step.
    """

    epoch: int
    first_step: int
    seeds: Tensor
    seeds_per_rank: list[int]
    batch_size: int

    @property
    def num_steps(self) -> int:
        """Steps, the same on all ranks: those of the rank with the most seeds."""
        return -(-max(self.seeds_per_rank) // self.batch_size)

    def step_inputs(self) -> list[StepInput]:
        """Every step's seeds; empty ones where this rank has run out of them."""
        size = self.batch_size
        return [
            StepInput(
                seeds=self.seeds[i * size : (i + 1) * size],
                step=self.first_step + i,
                epoch=self.epoch,
                num_global_seeds=sum(min(max(count - i * size, 0), size) for count in self.seeds_per_rank),
            )
            for i in range(self.num_steps)
        ]

    def seeds_from(self, step: int) -> Tensor:
        """Own seeds of `step` and the steps after it.

        Raises:
          ValueError: the step is not in this plan, nor the one after its last.
        """
        if not 0 <= step - self.first_step <= self.num_steps:
            raise ValueError(
                f"step is {step}; expected {self.first_step} to {self.first_step + self.num_steps}, the steps of "
                f"epoch {self.epoch} and the one after."
            )
        return self.seeds[(step - self.first_step) * self.batch_size :]


def gather_in_turn(own: Tensor, comm: Communicator) -> Tensor:
    """On rank 0 the ranks' rows, one of each rank in turn; on the others an empty tensor. Purpose "checkpoint".

    Collective: every rank must call this.

    Args:
      own: int64 [n], n may differ between ranks.
      comm: the ranks' communicator.
    """
    rows, counts = comm.all_to_all_rows(own, [own.numel()] + [0] * (comm.world_size - 1), purpose=PURPOSE)
    turns = torch.cat([torch.arange(count) for count in counts])
    return rows[turns.argsort(stable=True)]


def pick_own(remaining: Tensor, own_orig_ids: Tensor) -> Tensor:
    """Places in `own_orig_ids` of the remaining ids that are there, in the order of `remaining`.

    Args:
      remaining: int64 [n].
      own_orig_ids: int64 [m], unique.
    Returns:
      int64 [number of ids in both].
    """
    if own_orig_ids.numel() == 0:
        return own_orig_ids.new_empty(0)
    ascending, places = own_orig_ids.sort()
    found = torch.searchsorted(ascending, remaining).clamp(max=ascending.numel() - 1)
    return places[found[ascending[found] == remaining]]
