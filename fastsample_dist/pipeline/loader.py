"""DistLoader: an epoch of mini-batches, the same number of steps on every rank.

Each rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, rank) and cuts them into batches.
The rank with the most seeds sets the number of steps; the others finish with empty batches of weight 0. Steps are
numbered through all epochs, because the step is part of every draw's key. Where a run stands can be told and taken up
again, by as many ranks or by another number of them (position.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.placement import Placement
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.pipeline.data import DistData, agree
from fastsample_dist.pipeline.executor import BatchMaker, MakerOptions
from fastsample_dist.pipeline.position import PURPOSE, EpochPlan, LoaderPosition, gather_in_turn, pick_own
from fastsample_dist.pipeline.prefetch import Prefetcher
from fastsample_dist.pipeline.streams import Lane, lane_of
from fastsample_dist.sampling.base import MiniBatch


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a DistLoader may be told beside its data, fanouts and batch size.

    Attributes:
      split: "train", "val" or "test".
      scheme: "hybrid" or "vanilla"; both give the same batches.
      rng_seed: key of sampling and shuffling, 0 .. 2**63 - 1.
      prefetch: batches made ahead in a background thread; 0 makes each batch when it is asked for.
      shuffle: permute the seeds anew every epoch.
      feature_dtype: convert features to this dtype on arrival (float32, float64, bfloat16); None: float32 for
        features stored as 16-bit floats or integers, else as stored.
      method, replace, layer_dependency: how neighbours are drawn, see `SampleSpec`. "weighted" builds alias tables in
        every rank: 8 bytes per edge of the graph (hybrid) or of the rank's own rows (vanilla).
      device: where batches are made and handed over; None: the context's.
      kernel: of a GPU, for sampling: "auto", "per_hop" or "persistent". Never changes a batch.
      placement: for a GPU, of topology and features: "auto", "device" or "pinned" (graph/placement.py).
    Raises:
      ValueError: an unknown scheme, method, kernel or placement, a negative prefetch.
    """

    split: str = "train"
    scheme: str = "hybrid"
    rng_seed: int = 0
    prefetch: int = 0
    shuffle: bool = True
    feature_dtype: torch.dtype | None = None
    method: str = "uniform"
    replace: bool = False
    layer_dependency: bool = False
    device: torch.device | str | None = None
    kernel: str = "auto"
    placement: str = "auto"

    def __post_init__(self) -> None:
        if self.prefetch < 0:
            raise ValueError(f"prefetch is {self.prefetch}; expected 0 (off) or the number of batches to make ahead.")
        self.making(self.feature_dtype)

    def making(self, feature_dtype: torch.dtype | None) -> MakerOptions:
        """How a loader with these options makes its batches."""
        return MakerOptions(
            scheme=self.scheme, feature_dtype=feature_dtype, device=self.device, kernel=self.kernel,
            placement=self.placement,
        )  # fmt: skip

    def spec(self, fanouts: Sequence[int]) -> SampleSpec:
        """How a loader with these options draws.

        Raises:
          ValueError: no fanout, or a value that SampleSpec refuses.
        """
        if len(fanouts) == 0:
            raise ValueError("fanouts is empty; pass one fanout per model layer, such as [15, 10, 5].")
        return SampleSpec(
            fanouts=tuple(fanouts), method=self.method, replace=self.replace, rng_seed=self.rng_seed,
            layer_dependency=self.layer_dependency,
        )  # fmt: skip


class DistLoader:
    """Iterates over the mini-batches of one split; one iteration is one epoch.

    Constructing and iterating are collective: every rank must do both, with the same arguments.

    Args:
      data: the opened partition.
      fanouts: neighbours per node and hop, hop order from the seeds outwards; one per model layer.
      batch_size: seeds per rank and step, at least 1.
      **options: split="train", scheme="hybrid", rng_seed=0, prefetch=0, shuffle=True, feature_dtype=None,
        method="uniform", replace=False, layer_dependency=False, device=None, kernel="auto", placement="auto": see
        LoaderOptions.
    Attributes:
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
      options: what was given.
    Raises:
      ValueError: an argument out of range; a train split that is empty on some rank.
    """

    def __init__(self, data: DistData, fanouts: Sequence[int], batch_size: int, **options: object) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected at least 1 seed per rank and step.")
        self.options = LoaderOptions(**options)  # type: ignore[arg-type]
        self.data, self.batch_size, self.epoch = data, batch_size, 0
        self._spec = self.options.spec(fanouts)
        self._seeds = data.split(self.options.split)
        comm = data.ctx.comm
        self._seeds_per_rank = comm.all_gather_object(self._seeds.numel(), purpose="setup")
        _check_seeds(self.options.split, self._seeds_per_rank)
        self._comm = comm.duplicate() if self.options.prefetch else comm
        making = self.options.making(self.options.feature_dtype or _compute_dtype(data))
        self._maker = agree(  # one rank's edges alone may hold a weight that is refused
            data.ctx, lambda: BatchMaker(data, self._spec, self._comm, making)
        )
        self._lane: Lane | None = None  # the prefetch thread's, made with the first one
        self._resumed: EpochPlan | None = None  # the epoch that `resume` took up
        self._plan: EpochPlan | None = None  # the last one that was made

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return -(-max(self._seeds_per_rank) // self.batch_size)

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop."""
        return self._spec.fanouts

    @property
    def device(self) -> torch.device:
        """Where the batches are."""
        return self._maker.device

    @property
    def places(self) -> tuple[Placement, ...]:
        """Where the tables are that this rank's batches are made from; str() of each is a line for a report."""
        return self._maker.places

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far on this rank, by kind of batch; empty on the CPU."""
        return self._maker.kernel_report()

    def num_steps(self, epoch: int) -> int:
        """Steps that an iteration of this epoch makes: fewer than len(loader) in the epoch that was resumed."""
        is_resumed = self._resumed is not None and epoch == self._resumed.epoch
        return self._resumed.num_steps if is_resumed else len(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes.

        Raises:
          ValueError: a negative epoch, or one before that in which the loader was resumed.
        """
        first = 0 if self._resumed is None else self._resumed.epoch
        if epoch < first:
            raise ValueError(f"epoch is {epoch}; expected {first} or more.")
        self.epoch = epoch

    def __iter__(self) -> Iterator[MiniBatch]:
        """Batches of one epoch. Collective: every rank must iterate, and stop, at the same step."""
        inputs = list(self._plan_of(self.epoch).step_inputs())
        self.epoch += 1
        if not self.options.prefetch:
            for given in inputs:
                yield self._maker.make(given)
            return
        self._maker.forget()
        group = self._maker.group_size(self.options.prefetch)

        def make(number: int) -> MiniBatch:
            return self._maker.make(inputs[number], inputs[number : number + group])

        self._lane = self._lane or lane_of(self.device)
        prefetcher = Prefetcher(make, range(len(inputs)), self.options.prefetch, self._comm.timeout_s, self._lane)
        try:
            yield from prefetcher
        finally:
            prefetcher.close()

    def position(self, epoch: int, step: int) -> LoaderPosition:
        """Where a run stands that has used all batches before `step`, whatever was made ahead.

        Collective: every rank must call this, with the same arguments. Purposes "counts" and "checkpoint".

        Args:
          epoch: the epoch under way.
          step: global step of the next batch; the one after the epoch's last when all of them are done.
        Returns:
          The position, complete on rank 0; the other ranks' lacks the remaining seeds.
        Raises:
          ValueError: the step is not in that epoch.
        """
        left = self._plan_of(epoch).seeds_from(step)
        return LoaderPosition(epoch, step, gather_in_turn(self.data.orig_ids(left), self.data.ctx.comm))

    def resume(self, position: LoaderPosition) -> None:
        """Go on from a position: the next iteration makes what is left of its epoch, under its step numbers.

        Collective: every rank must call this, with the whole position. The number of ranks and the batch size may
        differ from those of the run that told it.

        Raises:
          ValueError: on all ranks, when the remaining seeds are not all in the split.
        """
        own = self._seeds[pick_own(position.remaining, self.data.orig_ids(self._seeds))]
        seeds_per_rank = self.data.ctx.comm.all_gather_object(own.numel(), purpose=PURPOSE)
        if sum(seeds_per_rank) != position.remaining.numel():
            raise ValueError(
                f"{position.remaining.numel()} seeds of epoch {position.epoch} are still to come but "
                f"{sum(seeds_per_rank)} of them are in the {self.options.split} split; resume on the partition of "
                "the run that is to be continued."
            )
        self._resumed = EpochPlan(position.epoch, position.step, own, seeds_per_rank, self.batch_size)
        self._plan, self.epoch = self._resumed, position.epoch

    def close(self) -> None:
        """Release the loader's own communicator. Collective: every rank must call this; the context does it too."""
        if self._comm is not self.data.ctx.comm:
            self._comm.close()

    def _plan_of(self, epoch: int) -> EpochPlan:
        """The epoch's plan: what is left where the loader was resumed, else all seeds."""
        if self._plan is None or self._plan.epoch != epoch:
            self._plan = self._make_plan(epoch)
        return self._plan

    def _make_plan(self, epoch: int) -> EpochPlan:
        resumed = self._resumed
        if resumed is not None and epoch == resumed.epoch:
            return resumed
        base_epoch, base_step = (
            (0, 0) if resumed is None else (resumed.epoch + 1, resumed.first_step + resumed.num_steps)
        )
        seeds = self._seeds
        if self.options.shuffle:
            seeds = seeds[epoch_permutation(seeds.numel(), self.options.rng_seed, epoch, self.data.ctx.rank)]
        first_step = base_step + (epoch - base_epoch) * len(self)
        return EpochPlan(epoch, first_step, seeds, self._seeds_per_rank, self.batch_size)


def epoch_permutation(num_seeds: int, rng_seed: int, epoch: int, rank: int) -> Tensor:
    """The order of a rank's seeds in one epoch, int64 [num_seeds]: a function of its arguments alone."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((rng_seed, epoch, rank))))
    return torch.from_numpy(generator.permutation(num_seeds))


def _compute_dtype(data: DistData) -> torch.dtype | None:
    """float32 for features stored narrower than that; None (as stored) for float32 and float64."""
    if data.features is None or data.features.dtype in (torch.float32, torch.float64):
        return None
    return torch.float32


def _check_seeds(split: str, seeds_per_rank: list[int]) -> None:
    """Refuse a train split that leaves a rank without work, and any split that is empty everywhere."""
    empty = [rank for rank, count in enumerate(seeds_per_rank) if count == 0]
    if empty and (split == "train" or len(empty) == len(seeds_per_rank)):
        raise ValueError(
            f"the {split} split is empty on rank {empty[0]} (seeds per rank: {seeds_per_rank}); expected at least one "
            f"seed on every rank, partition into fewer parts or add {split} nodes."
        )
