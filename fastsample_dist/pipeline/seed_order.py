"""SeedOrder: which seeds virtual ranks use, epoch after epoch, and where a resumed run stands among them.

Each virtual rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, virtual rank). In plain
training a process knows the seeds of its own rank; with roles (tasks.py) those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fastsample_dist.ops import checks
from fastsample_dist.pipeline.epoch_plan import EpochPlan, epoch_permutation
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.pipeline.position import LoaderPosition, pick_own


class SeedOrder:
    """The seeds of virtual ranks in the order in which they are used.

    Args:
      seeds: of the virtual ranks that are known here, by their numbers; int64.
      seeds_per_rank: how many every virtual rank has.
      options: of the loader: batch_size, drop_last, shuffle, rng_seed.
    Attributes:
      seeds, seeds_per_rank: the same.
    """

    def __init__(self, seeds: Mapping[int, Tensor], seeds_per_rank: Sequence[int], options: LoaderOptions) -> None:
        self.seeds, self.seeds_per_rank, self._options = seeds, list(seeds_per_rank), options
        self._resumed: EpochPlan | None = None  # the epoch that `resume` took up
        self._left: dict[int, Tensor] = {}  # seeds of that epoch
        self._plan: EpochPlan | None = None  # the last one that was made
        self._ordered: dict[int, Tensor] = {}  # seeds of its epoch, those that were asked for

    @property
    def steps_per_epoch(self) -> int:
        """Of a whole epoch."""
        return self.whole(0, 0).num_steps

    def whole(self, epoch: int, first_step: int) -> EpochPlan:
        """The plan of a whole epoch."""
        return self._plan_of(epoch, first_step, self.seeds_per_rank)

    def plan(self, epoch: int) -> EpochPlan:
        """The epoch's plan: of what is left of it where the loader was resumed there."""
        if self._plan is None or self._plan.epoch != epoch:
            self._plan, self._ordered = self._make_plan(checks.whole("epoch", epoch, 0)), {}
        return self._plan

    def of(self, epoch: int, rank: int) -> Tensor:
        """A virtual rank's seeds in the order of `plan`; one that is known here."""
        if self.plan(epoch) is self._resumed:
            return self._left[rank]
        if rank not in self._ordered:
            self._ordered[rank] = self.shuffled(epoch, rank)
        return self._ordered[rank]

    def shuffled(self, epoch: int, rank: int) -> Tensor:
        """All seeds of a virtual rank that is known here, in the order of a whole epoch."""
        seeds = self.seeds[rank]
        if not self._options.shuffle:
            return seeds
        return seeds[epoch_permutation(seeds.numel(), self._options.rng_seed, epoch, rank)]

    def resume(
        self,
        position: LoaderPosition,
        orig_ids: Callable[[Tensor], Tensor],
        counts: Callable[[Mapping[int, int]], Sequence[int]],
        source: str,
    ) -> None:
        """Continue at a position.

        Args:
          position: of seeds, whole.
          orig_ids: original ids of nodes.
          counts: given the number of seeds left of the virtual ranks that are known here, that of all; may be
            collective.
          source: where the seeds come from, for messages.
        Raises:
          ValueError: the remaining seeds are not all among those of the virtual ranks.
        """
        left = {rank: own[pick_own(position.remaining, orig_ids(own))] for rank, own in self.seeds.items()}
        per_rank = counts({rank: own.numel() for rank, own in left.items()})
        if sum(per_rank) != position.remaining.numel():
            raise ValueError(
                f"{position.remaining.numel()} seeds of epoch {position.epoch} are still to come but "
                f"{sum(per_rank)} of them are in the {source}; resume on the partition of the run that is "
                "to be continued."
            )
        self._left = left
        self._resumed = self._plan = self._plan_of(position.epoch, position.step, per_rank)

    def _make_plan(self, epoch: int) -> EpochPlan:
        resumed = self._resumed
        if resumed is None:
            return self.whole(epoch, epoch * self.steps_per_epoch)
        if epoch == resumed.epoch:
            return resumed
        after = resumed.first_step + resumed.num_steps
        return self.whole(epoch, after + (epoch - resumed.epoch - 1) * self.steps_per_epoch)

    def _plan_of(self, epoch: int, first_step: int, seeds_per_rank: Sequence[int]) -> EpochPlan:
        return EpochPlan(epoch, first_step, seeds_per_rank, self._options.batch_size, self._options.drop_last)
