"""DistLoader: an epoch of mini-batches, the same number of steps on every rank.

Each rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, rank) and cuts them into batches.
The rank with the most seeds sets the number of steps; the others finish with empty batches of weight 0. Steps are
numbered through all epochs, because the step is part of every draw's key. Where a run stands can be told and taken up
again, by as many ranks or by another number of them (position.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.device.placement import Placement
from fastsample_dist.device.streams import Lane, lane_of
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.executor import BatchMaker, MakerOptions
from fastsample_dist.pipeline.position import PURPOSE, EpochPlan, LoaderPosition, gather_in_turn, pick_own
from fastsample_dist.pipeline.prefetch import Prefetcher
from fastsample_dist.pipeline.seeds import Seeds, check_counts, check_full_batches, given_seeds, num_steps
from fastsample_dist.sampling.mfg import MiniBatch

RANKS_OWN = ("device", "kernel", "placement")  # options that never change a batch: every rank may have its own


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a DistLoader may be told beside its data, fanouts, batch size and own seeds.

    Attributes:
      split: "train", "val" or "test".
      scheme: "hybrid" or "vanilla"; both give the same batches.
      rng_seed: key of sampling and shuffling, 0 .. 2**63 - 1.
      prefetch: batches made ahead in a background thread; 0 makes each batch when it is asked for.
      shuffle: permute the seeds anew every epoch.
      drop_last: make only the steps in which every rank has a full batch; the other seeds of the epoch are left out.
      feature_dtype: convert features to this dtype on arrival (float32, float64, bfloat16); None: float32 for
        features stored as 16-bit floats or integers, else as stored.
      method, replace, layer_dependency: how neighbours are drawn, see `SampleSpec`. "weighted" builds alias tables in
        every rank: 8 bytes per edge of the graph (hybrid) or of the rank's own rows (vanilla).
      edge_ids: every MFG has `edge_ids`, the positions of its edges in the partition's edges (`data.graph.indices`).
        Under vanilla the replies to other ranks are then int64.
      edge_values: every MFG has `edge_values`, the stored weights of its edges; `edge_ids` come with them. None: where
        edge_ids is True and the partition has weights.
      transform: called with every batch after features and labels, in the prefetch thread where there is one; what it
        returns is what the iteration yields. With prefetching for a GPU that must be a MiniBatch, and tensors that are
        added to it must be attributes of it.
      device: where batches are made and handed over; None: the context's.
      kernel: of a GPU, for sampling: "auto", "per_hop" or "persistent". Never changes a batch.
      placement: for a GPU, of topology and features: "auto", "device" or "pinned" (device/placement.py).
    Raises:
      ValueError: an unknown scheme, method, kernel or placement, a negative prefetch.
    """

    split: str = "train"
    scheme: str = "hybrid"
    rng_seed: int = 0
    prefetch: int = 0
    shuffle: bool = True
    drop_last: bool = False
    feature_dtype: torch.dtype | None = None
    method: str = "uniform"
    replace: bool = False
    layer_dependency: bool = False
    edge_ids: bool = False
    edge_values: bool | None = None
    transform: Callable[[MiniBatch], Any] | None = None
    device: torch.device | str | None = None
    kernel: str = "auto"
    placement: str = "auto"

    def __post_init__(self) -> None:
        if self.prefetch < 0:
            raise ValueError(f"prefetch is {self.prefetch}; expected 0 (off) or the number of batches to make ahead.")
        self.making(self.feature_dtype)

    def facts(self) -> dict[str, object]:
        """What all ranks must have alike: everything but RANKS_OWN. An object stands for its class or name."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in RANKS_OWN}
        return {name: _fact(value) for name, value in named.items()}

    def making(self, feature_dtype: torch.dtype | None, *, has_weights: bool = False) -> MakerOptions:
        """How a loader with these options makes its batches, of a graph with or without stored weights."""
        edge_values = self.edge_ids and has_weights if self.edge_values is None else self.edge_values
        return MakerOptions(
            scheme=self.scheme, feature_dtype=feature_dtype, device=self.device, kernel=self.kernel,
            placement=self.placement, edge_values=edge_values, transform=self.transform,
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
            layer_dependency=self.layer_dependency, edge_ids=self.edge_ids or bool(self.edge_values),
        )  # fmt: skip


class DistLoader:
    """Iterates over mini-batches of a split's seeds, or of given ones; one iteration is one epoch.

    Constructing and iterating are collective: every rank must do both, with the same arguments but `seeds`.

    Args:
      data: the opened partition.
      fanouts: neighbours per node and hop, hop order from the seeds outwards; one per model layer.
      batch_size: seeds per rank and step, at least 1.
      split: "train", "val" or "test": its nodes are the seeds.
      seeds: this rank's seeds in place of a split's: own nodes (`data.own_range`), each once, by their ids in the
        partition. All ranks pass some or none do; a rank's may be empty. Labels are the stored ones of these nodes:
        -1 (NaN where the task is not classification) for a node without one, so leave such nodes out of training.
      scheme, rng_seed, prefetch, shuffle, drop_last, feature_dtype, method, replace, layer_dependency, edge_ids,
        edge_values, transform, device, kernel, placement: see LoaderOptions.
    Attributes:
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
      options: what was given.
    Raises:
      ValueError: an argument out of range; a train split that is empty on some rank; seeds that are refused on one
        rank, on all of them.
    """

    def __init__(
        self,
        data: DistData,
        fanouts: Sequence[int],
        batch_size: int,
        *,
        split: str = "train",
        seeds: Seeds | None = None,
        scheme: str = "hybrid",
        rng_seed: int = 0,
        prefetch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        feature_dtype: torch.dtype | None = None,
        method: str = "uniform",
        replace: bool = False,
        layer_dependency: bool = False,
        edge_ids: bool = False,
        edge_values: bool | None = None,
        transform: Callable[[MiniBatch], Any] | None = None,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        placement: str = "auto",
    ) -> None:
        self.data, self.batch_size, self.epoch = data, batch_size, 0

        def check() -> tuple[LoaderOptions, SampleSpec]:
            if batch_size < 1:
                raise ValueError(f"batch_size is {batch_size}; expected at least 1 seed per rank and step.")
            own = LoaderOptions(
                split=split, scheme=scheme, rng_seed=rng_seed, prefetch=prefetch, shuffle=shuffle,
                drop_last=drop_last, feature_dtype=feature_dtype, method=method, replace=replace,
                layer_dependency=layer_dependency, edge_ids=edge_ids, edge_values=edge_values, transform=transform,
                device=device, kernel=kernel, placement=placement,
            )  # fmt: skip
            return own, own.spec(fanouts)

        self.options, self._spec = agree(data.ctx, check)
        # before anything whose shape depends on them
        shared = {"fanouts": self.fanouts, "batch_size": batch_size, **self.options.facts()}
        agree_on(data.ctx.comm, "DistLoader", shared)
        self._seeds, self._seeds_per_rank = self._take_seeds(seeds)
        self._comm = data.ctx.comm.duplicate() if self.options.prefetch else data.ctx.comm
        dtype = self.options.feature_dtype or _compute_dtype(data)
        making = self.options.making(dtype, has_weights=data.graph.weights is not None)
        self._maker = agree(  # one rank's edges alone may hold a weight that is refused
            data.ctx, lambda: BatchMaker(data, self._spec, self._comm, making)
        )
        self._lane: Lane | None = None  # the prefetch thread's, made with the first one
        self._resumed: EpochPlan | None = None  # the epoch that `resume` took up
        self._plan: EpochPlan | None = None  # the last one that was made

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return num_steps(self._seeds_per_rank, self.batch_size, self.options.drop_last)

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
        """Batches of one epoch, transformed where that was asked for.

        Collective: every rank must iterate, and stop, at the same step.
        """
        inputs = list(self._plan_of(self.epoch).step_inputs())
        self.epoch += 1
        if not self.options.prefetch:
            for given in inputs:
                yield self._maker.make(given)
            return
        self._maker.forget()
        group = self._maker.group_size(self.options.prefetch)

        def make(number: int) -> MiniBatch:
            batch = self._maker.make(inputs[number], inputs[number : number + group])
            _check_handed_over(batch, self.device, inputs[number].step)
            return batch

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
                f"{sum(seeds_per_rank)} of them are in the {self._source}; resume on the partition of the run that is "
                "to be continued."
            )
        self._resumed = self._planned(position.epoch, position.step, own, seeds_per_rank)
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
        return self._planned(epoch, first_step, seeds, self._seeds_per_rank)

    def _planned(self, epoch: int, first_step: int, seeds: Tensor, seeds_per_rank: list[int]) -> EpochPlan:
        """A plan of these seeds; with drop_last, of those in the steps where every rank has a full batch."""
        if self.options.drop_last:
            used = num_steps(seeds_per_rank, self.batch_size, drop_last=True) * self.batch_size
            seeds, seeds_per_rank = seeds[:used], [used] * len(seeds_per_rank)
        return EpochPlan(epoch, first_step, seeds, seeds_per_rank, self.batch_size)

    @property
    def _source(self) -> str:
        """Where the seeds come from, for messages."""
        return "seeds given" if self._own_seeds else f"{self.options.split} split"

    def _take_seeds(self, seeds: Seeds | None) -> tuple[Tensor, list[int]]:
        """(this rank's seeds, how many every rank has). Collective: every rank must call this."""
        data, split, self._own_seeds = self.data, self.options.split, seeds is not None

        def check() -> Tensor:
            if seeds is None:
                return data.split(split)
            if split != "train":
                raise ValueError(f"split is {split!r} beside seeds, which take its place; pass one of them.")
            return given_seeds(data, seeds)

        own = agree(data.ctx, check)
        found = data.ctx.comm.all_gather_object((own.numel(), self._own_seeds), purpose="setup")
        per_rank, given = ([entry[i] for entry in found] for i in (0, 1))
        if len(set(given)) > 1:
            raise ValueError(
                f"seeds is given on rank {given.index(True)} but not on rank {given.index(False)}; pass it on all "
                "ranks (it may be empty) or on none."
            )
        check_counts("seeds" if self._own_seeds else split, per_rank, all_needed=split == "train" and seeds is None)
        if self.options.drop_last:
            check_full_batches(per_rank, self.batch_size)
        return own, per_rank


def epoch_permutation(num_seeds: int, rng_seed: int, epoch: int, rank: int) -> Tensor:
    """The order of a rank's seeds in one epoch, int64 [num_seeds]: a function of its arguments alone."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((rng_seed, epoch, rank))))
    return torch.from_numpy(generator.permutation(num_seeds))


def _fact(value: object) -> object:
    """An option as ranks compare it."""
    if value is None or isinstance(value, (str, int, float, tuple, list)):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _compute_dtype(data: DistData) -> torch.dtype | None:
    """float32 for features stored narrower than that; None (as stored) for float32 and float64."""
    if data.features is None or data.features.dtype in (torch.float32, torch.float64):
        return None
    return torch.float32


def _check_handed_over(batch: Any, device: torch.device, step: int) -> None:
    """Refuse what a prefetch thread cannot hand to another stream: the tensors of a MiniBatch are known."""
    if device.type == "cuda" and not isinstance(batch, MiniBatch):
        raise ValueError(
            f"step {step}: transform returned a {type(batch).__name__}; with prefetch on a GPU it must return a "
            "MiniBatch; convert in the loop, or pass prefetch=0."
        )
