"""EpochPlan: an epoch's steps, computed from how many seeds each virtual rank has and from nothing else.

A virtual rank is a list of seeds that is cut into batches, one per step. In plain training rank r executes virtual
rank r. The plan does not depend on that: one process may execute several virtual ranks one after another, or none, and
the batches are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks


@dataclass(frozen=True)
class StepInput:
    """What a virtual rank computes on in one step.

    Attributes:
      seeds: int64 [n] node ids; empty when it has run out of seeds.
      step: global step, the same for all.
      epoch: of the loader.
      num_global_seeds: seeds of this step over all virtual ranks.
    """

    seeds: Tensor
    step: int
    epoch: int
    num_global_seeds: int


@dataclass(frozen=True)
class EpochPlan:
    """The steps of one epoch, or of what is left of it.

    Attributes:
      epoch: its number.
      first_step: global step of its first batches.
      seeds_per_rank: how many each virtual rank has; all zero or empty: there is no step.
      batch_size: seeds per virtual rank and step.
      drop_last: only the steps in which every virtual rank has a full batch.
    """

    epoch: int
    first_step: int
    seeds_per_rank: Sequence[int]
    batch_size: int
    drop_last: bool = False

    @property
    def num_steps(self) -> int:
        """Steps, the same for all virtual ranks."""
        return num_steps(self.seeds_per_rank, self.batch_size, self.drop_last)

    def num_global_seeds(self, number: int) -> int:
        """Seeds over all virtual ranks in the epoch's step `number`, counted from 0."""
        return int(self._global_seeds[number])

    @cached_property
    def _global_seeds(self) -> np.ndarray:
        """Seeds over all virtual ranks in every step, int64 [num_steps]."""
        full, rest = np.divmod(np.asarray(self.seeds_per_rank, dtype=np.int64), self.batch_size)
        have_no_more = np.bincount(full, minlength=self.num_steps + 1).cumsum()  # full batches, of virtual ranks
        seeds = (len(full) - have_no_more) * self.batch_size
        np.add.at(seeds, full, rest)
        return seeds[: self.num_steps]

    def step_input(self, number: int, seeds: Tensor) -> StepInput:
        """The epoch's step `number`, counted from 0, of the virtual rank with these seeds; see `step_inputs`."""
        size = self.batch_size
        return StepInput(
            seeds=seeds[number * size : (number + 1) * size],
            step=self.first_step + number,
            epoch=self.epoch,
            num_global_seeds=self.num_global_seeds(number),
        )

    def step_inputs(self, seeds: Tensor) -> list[StepInput]:
        """Every step of the virtual rank with these seeds; without seeds where it has run out of them.

        Args:
          seeds: int64, in the order in which they are used.
        """
        return [self.step_input(number, seeds) for number in range(self.num_steps)]

    def seeds_from(self, step: int, seeds: Tensor) -> Tensor:
        """Which of a virtual rank's seeds `step` and the steps after it use.

        Args:
          step: global step.
          seeds: as for `step_inputs`.
        Raises:
          ValueError: the step is not in this plan, nor the one after its last.
        """
        if not 0 <= checks.whole("step", step, 0) - self.first_step <= self.num_steps:
            raise ValueError(
                f"step is {step}; expected {self.first_step} to {self.first_step + self.num_steps}, the steps of "
                f"epoch {self.epoch} and the one after."
            )
        return seeds[(step - self.first_step) * self.batch_size : self.num_steps * self.batch_size]


def num_steps(seeds_per_rank: Sequence[int], batch_size: int, drop_last: bool) -> int:
    """Steps of an epoch, the same for all virtual ranks: those of the one with the most seeds; with drop_last those in
    which every one has a full batch.
    """
    if drop_last:
        return min(seeds_per_rank, default=0) // batch_size
    return -(-max(seeds_per_rank, default=0) // batch_size)


def epoch_permutation(num_seeds: int, rng_seed: int, epoch: int, rank: int) -> Tensor:
    """The order of a virtual rank's seeds in one epoch, int64 [num_seeds]: a function of its arguments alone."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((rng_seed, epoch, rank))))
    return torch.from_numpy(generator.permutation(num_seeds))
