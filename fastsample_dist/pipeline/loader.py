"""DistLoader: an epoch of mini-batches, the same number of steps on every rank.

Each rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, rank) and cuts them into batches.
The rank with the most seeds sets the number of steps; the others finish with empty batches of weight 0
(epoch_plan.py). Steps are numbered through all epochs, because the step is part of every draw's key. A run's position
can be saved and resumed, by as many ranks or by another number of them (position.py). A batch is made by stages
(stages.py), ahead of its turn where that is asked for (lookahead.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.choice import numbered
from fastsample_dist.device.placement import Placement
from fastsample_dist.device.streams import Lane, lane_of
from fastsample_dist.features.cache import CacheReport, FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.keeping import KeepingFeatures
from fastsample_dist.features.rails import RailFeatures, has_rails, local_communicator
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.pipeline.caching import CacheTask, make_cache, shared_cache
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.epoch_plan import EpochPlan, epoch_permutation
from fastsample_dist.pipeline.exchange import COMBINED, PAIRED, resolve_exchange
from fastsample_dist.pipeline.fetch_record import FetchRecord
from fastsample_dist.pipeline.lookahead import epoch_stages, group_size, look_ahead
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.pipeline.position import PURPOSE, LoaderPosition, gather_in_turn, pick_own
from fastsample_dist.pipeline.schemes import REGISTRY, make_sampler
from fastsample_dist.pipeline.seeds import Seeds, check_counts, check_full_batches, given_seeds, warn_of_idle_ranks
from fastsample_dist.pipeline.stages import make_stages, run_stages
from fastsample_dist.pipeline.transport import SHARED, choose_transport, report_fallback
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.sampler import Sampler, kernel_report, payload_exchanges
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.app_sampler import AppSampler


class DistLoader:
    """Iterates over mini-batches of a split's seeds, or of given ones; one iteration is one epoch.

    Constructing and iterating are collective: every rank must do both, with the same arguments except `seeds`.

    Args:
      data: the opened partition.
      fanouts: neighbours per node and hop, hop order from the seeds outwards; one per model layer. Left out beside
        `sampler` and `app`.
      batch_size: seeds per rank and step, an integer >= 1.
      sampler: any object with `sample(seeds, step) -> MiniBatch`, in place of fanouts and of the options that say how
        the schemes draw.
      app: an application, such as transit.LADIES((512, 512)), in place of fanouts: the batch of a rank and step is one
        collective sample, whose sample id is the rank; of an individual application every seed is a sample, by its
        original id. See sampling/transit/app_sampler.py.
      split: "train", "val" or "test": its nodes are the seeds. A rank without any takes part with empty batches.
      seeds: this rank's seeds in place of a split's: own nodes (`data.own_range`), each once, by their ids in the
        partition. All ranks pass some or none do; a rank's may be empty. Labels are the stored ones of these nodes:
        -1 (NaN where the task is not classification) for a node without one, so leave such nodes out of training.
      scheme, rng_seed, prefetch, shuffle, drop_last, feature_dtype, method, replace, layer_dependency, edge_ids,
        edge_values, transform, device, kernel, placement, transport, exchange, rails, cache: see LoaderOptions.
    Attributes:
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
      options: what was given.
      device: where the batches are.
      places: where the tables are that this rank's batches are made from; str() of each is a line for a report.
      sharing: how rows of other ranks come here, and why; str() of it is a line for a report.
      exchange: how the ranks meet to make a batch: "combined" or "paired", or "none" where they need not.
      cache: of other ranks' feature rows; str() is a line for a report. None: there is none, or no features.
    Raises:
      ValueError: an argument out of range; a split that is empty on all ranks; seeds that are refused on one rank, on
        all of them.
    """

    def __init__(
        self,
        data: DistData,
        fanouts: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        sampler: Sampler | None = None,
        app: App | None = None,
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
        transport: str = "auto",
        exchange: str = "auto",
        rails: bool = True,
        cache: FeatureCache | MadeCache | None = None,
    ) -> None:
        self.data, self.epoch = data, 0

        def check() -> LoaderOptions:
            own = LoaderOptions(
                fanouts=fanouts, batch_size=batch_size, sampler=sampler, app=app, split=split, scheme=scheme,
                rng_seed=rng_seed, prefetch=prefetch, shuffle=shuffle, drop_last=drop_last, feature_dtype=feature_dtype,
                method=method, replace=replace, layer_dependency=layer_dependency, edge_ids=edge_ids,
                edge_values=edge_values, transform=transform, device=device, kernel=kernel, placement=placement,
                transport=transport, exchange=exchange, rails=rails, cache=cache,
            )  # fmt: skip
            _check_communicator(own, data.ctx.comm)
            self.device = numbered(data.ctx.device if device is None else device)
            return own

        self.options = agree(data.ctx, check)
        agree_on(data.ctx.comm, "DistLoader", self.options.facts())  # before anything whose shape depends on them
        self._seeds, self._seeds_per_rank = self._take_seeds(seeds)
        self._comm = data.ctx.comm.duplicate() if self.options.prefetch else data.ctx.comm
        self.sharing = choose_transport(data, transport, self.device)
        report_fallback(self.sharing, transport, data.ctx.rank)
        self._read_in_place = None
        if data.features is not None and self.transport == SHARED:
            self._read_in_place = data.features.reading(self.sharing.neighbours)
        # one rank's edges alone may hold a weight that is refused
        self._sampler, features = agree(data.ctx, self._prepare)
        features, self.cache = self._cached(features)
        self._local_comm: Communicator | None = None  # over the machine's ranks, where they fetch for each other
        self._features = self._on_rails(features)
        source: DistFeatures | KeepingFeatures | None = self._features
        keeps = self.cache is not None and self.cache.rule is not None
        if keeps:
            source = KeepingFeatures(self._features, self.cache.rule)
        asked = PAIRED if keeps else self.options.exchange
        self.exchange = resolve_exchange(asked, self._sampler, self._features, data.ctx.world_size)
        self._stages = make_stages(data, self.options, self._comm, self._sampler, source, self.device)
        self._fetched: FetchRecord | None = None
        if self._features is not None:
            self._fetched = FetchRecord(self._features, self.cache, len(self), self.options, data.graph.indices.dtype)
            self._stages = self._fetched.counting(self._stages)
        self._lane: Lane | None = None  # the prefetch thread's, made with the first one
        self._resumed: EpochPlan | None = None  # the epoch that `resume` took up
        self._resumed_seeds = self._seeds[:0]  # this rank's, in that epoch
        self._planned: tuple[EpochPlan, Tensor] | None = None  # the last plan that was made, and this rank's seeds

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return self._plan_of_all(0, 0).num_steps

    @property
    def batch_size(self) -> int:
        """Seeds per rank and step."""
        return self.options.batch_size

    @property
    def transport(self) -> str:
        """ "exchange" or "shared": how rows of other ranks come here."""
        return self.sharing.name

    @property
    def rows(self) -> FetchTally:
        """Feature rows of all batches made so far on this rank, by where they were read."""
        return FetchTally() if self._features is None else self._features.tally

    @property
    def rails(self) -> bool:
        """Whether the ranks of a machine fetch a row of another machine once, for all of them (features/rails.py)."""
        return self._local_comm is not None

    @property
    def fanouts(self) -> tuple[int, ...] | None:
        """Neighbours per node and hop; None where `sampler` or `app` was given."""
        return None if self.options.fanouts is None else self.options.spec.fanouts

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far on this rank, by kind of batch; empty on the CPU."""
        return kernel_report(self._sampler)

    def cache_report(self, epoch: int | None = None) -> CacheReport:
        """Where the feature rows of this rank's batches came from; `CacheReport.total` adds up several ranks'.

        Collective: every rank must call this; ranks that share a cache find out which rows would have been best.

        Args:
          epoch: whose batches, as far as they were made (prefetching makes some ahead); None: of all epochs so far.
        Raises:
          ValueError: no batch of that epoch was made; a partition without features.
        """
        if self._fetched is None:
            raise ValueError(f"{self.data.path} has no features, so there is no report of them.")
        return self._fetched.report(epoch)

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
        plan, seeds = self._plan_of(self.epoch)
        steps, depth = plan.step_inputs(seeds), self.options.prefetch
        if self._fetched is not None:
            self._fetched.begin(self.epoch)
        self.epoch += 1
        group = group_size(self._sampler, self.device, depth, self.options.spec.threads)
        stages = epoch_stages(self._stages, steps, group=group, combined=self.exchange == COMBINED)
        if depth == 0:
            for given in steps:
                yield run_stages(stages, self._comm, given)
            return
        self._lane = self._lane or lane_of(self.device)
        ahead = look_ahead(stages, self._comm, steps, depth=depth, lane=self._lane, device=self.device)
        with closing(ahead):
            yield from ahead

    def position(self, epoch: int, step: int) -> LoaderPosition:
        """The position of a run that has used all batches before `step`, whatever was made ahead.

        Collective: every rank must call this, with the same arguments. Purposes "counts" and "checkpoint".

        Args:
          epoch: the epoch under way.
          step: global step of the next batch; the one after the epoch's last when all of them are done.
        Returns:
          The position, complete on rank 0; the other ranks' lacks the remaining seeds.
        Raises:
          ValueError: the step is not in that epoch.
        """
        plan, seeds = self._plan_of(epoch)
        left = plan.seeds_from(step, seeds)
        return LoaderPosition(epoch, step, gather_in_turn(self.data.orig_ids(left), self.data.ctx.comm))

    def resume(self, position: LoaderPosition) -> None:
        """Resume at a position: the next iteration makes what is left of its epoch, under its step numbers.

        Collective: every rank must call this, with the whole position. The number of ranks and the batch size may
        differ from those of the run that saved it.

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
        self._resumed = self._plan_of_all(position.epoch, position.step, seeds_per_rank)
        self._resumed_seeds, self._planned, self.epoch = own, (self._resumed, own), position.epoch

    def close(self) -> None:
        """Release the loader's own communicators. Collective: every rank must call this; the context does it too."""
        if self._local_comm is not None:
            self._local_comm.close()
        if self._comm is not self.data.ctx.comm:
            self._comm.close()

    def _on_rails(self, features: DistFeatures | None) -> DistFeatures | None:
        """Features that the ranks of a machine fetch for each other, where there is reason to; else as given.

        Collective: every rank must call this.
        """
        machines = self.sharing.machines
        wanted = self.options.rails and self.transport == SHARED and has_rails(machines)
        if features is None or not features.exchanges or not wanted:
            return features
        self._local_comm = local_communicator(self._comm, machines)
        return RailFeatures(features.using(self._comm), machines, self._local_comm)

    def _prepare(self) -> tuple[Sampler, DistFeatures | None]:
        """Place the tables and make the sampler; features where the device reads them.

        Raises:
          ValueError: a kernel or a placement that the device does not have; tables that fit nowhere; missing weights.
        """
        data, options = self.data, self.options
        edge_values = options.wants_edge_values(data.graph.weights is not None)
        topology = REGISTRY[options.scheme].topology if options.sampler is None and options.app is None else None
        ranks = self.sharing.machines.of(data.ctx.rank)
        tables = data.placed_tables(
            self.device, topology, options.placement, weighted=options.spec.traits.weighted, valued=edge_values,
            ranks=ranks,
        )  # fmt: skip
        self.places: tuple[Placement, ...] = tables.places
        sampler = options.sampler
        if options.app is not None:
            sampler = AppSampler(data.graph, options.app, options.rng_seed, sample_id=data.ctx.rank)
        if sampler is None:
            sampler = make_sampler(
                data, options.scheme, options.spec, self._comm, tables=tables, kernel=options.kernel,
                edge_values=edge_values, ranks=ranks, exchanges=not self.sharing.reads_all,
            )  # fmt: skip
        return sampler, self._read_in_place or tables.features

    def _cached(self, features: DistFeatures | None) -> tuple[DistFeatures | None, MadeCache | None]:
        """Features over the stages' communicator, and their cache. Collective: every rank must call this."""
        given = self.options.cache
        if given is None or features is None:
            return (None if features is None else features.using(self._comm)), None
        task = CacheTask(
            data=self.data, options=self.options, sampler=self._sampler, seeds=self._seeds, num_steps=len(self),
            plan_of=self._shuffled, features=features,
            machines=self.sharing.machines if self.transport == SHARED else None,
        )  # fmt: skip
        cache = make_cache(given, task) if isinstance(given, FeatureCache) else shared_cache(given, task)
        return cache.features.using(self._comm), cache

    def _plan_of(self, epoch: int) -> tuple[EpochPlan, Tensor]:
        """The epoch's plan, and this rank's seeds in order: what is left where the loader was resumed, else all."""
        if self._planned is None or self._planned[0].epoch != epoch:
            self._planned = self._make_plan(epoch)
        return self._planned

    def _make_plan(self, epoch: int) -> tuple[EpochPlan, Tensor]:
        resumed = self._resumed
        if resumed is not None and epoch == resumed.epoch:
            return resumed, self._resumed_seeds
        base_epoch, base_step = (
            (0, 0) if resumed is None else (resumed.epoch + 1, resumed.first_step + resumed.num_steps)
        )
        return self._shuffled(epoch, base_step + (epoch - base_epoch) * len(self))

    def _shuffled(self, epoch: int, first_step: int) -> tuple[EpochPlan, Tensor]:
        """A whole epoch's plan, and this rank's seeds in its order."""
        seeds = self._seeds
        if self.options.shuffle:
            seeds = seeds[epoch_permutation(seeds.numel(), self.options.rng_seed, epoch, self.data.ctx.rank)]
        return self._plan_of_all(epoch, first_step), seeds

    def _plan_of_all(self, epoch: int, first_step: int, seeds_per_rank: Sequence[int] | None = None) -> EpochPlan:
        """The plan of as many seeds per rank, by default all of them."""
        counts = self._seeds_per_rank if seeds_per_rank is None else seeds_per_rank
        return EpochPlan(epoch, first_step, counts, self.batch_size, self.options.drop_last)

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
        check_counts("seeds" if self._own_seeds else split, per_rank)
        if split == "train" and not self._own_seeds and data.ctx.rank == 0:
            warn_of_idle_ranks(per_rank)
        if self.options.drop_last:
            check_full_batches(per_rank, self.batch_size)
        return own, per_rank


def _check_communicator(options: LoaderOptions, comm: Communicator) -> None:
    """Refuse a prefetch thread that would sample over the communicator of the training loop."""
    sampler = options.sampler
    if options.prefetch and payload_exchanges(sampler) > 0 and getattr(sampler, "comm", None) is comm:
        raise ValueError(
            f"prefetch is {options.prefetch}, but sampler exchanges over ctx.comm, which the training loop uses at the "
            "same time; make the sampler over ctx.comm.duplicate(), or pass prefetch=0."
        )
