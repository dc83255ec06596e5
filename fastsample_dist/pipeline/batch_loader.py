"""BatchLoader: what all loaders share that make mini-batches by stages (stages.py), whatever they sample.

That is where feature rows come from (tables placed on the device, rows of other ranks read in place or exchanged, for
a whole machine on rails, cached), what was fetched (fetch_record.py), and making batches ahead (lookahead.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.machine import Machines
from fastsample_dist.device.placement import Placement
from fastsample_dist.device.streams import Lane, lane_of
from fastsample_dist.features.cache import CacheReport, FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.keeping import KeepingFeatures
from fastsample_dist.features.policies import Workload
from fastsample_dist.features.rails import RailFeatures, has_rails, local_communicator
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.ops import checks
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.pipeline.batch_options import BatchOptions
from fastsample_dist.pipeline.caching import CacheTask, make_cache, shared_cache
from fastsample_dist.pipeline.data import DistData, check_feature_dtype
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.exchange import COMBINED, PAIRED, resolve_exchange
from fastsample_dist.pipeline.fetch_record import FetchRecord
from fastsample_dist.pipeline.hot_cache import HotUse, make_hot_rows
from fastsample_dist.pipeline.iterations import Iterations, agree_on_epoch
from fastsample_dist.pipeline.lookahead import epoch_stages, group_size, look_ahead
from fastsample_dist.pipeline.position import LoaderPosition
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.pipeline.stages import Features, Stage, run_stages
from fastsample_dist.pipeline.tasks import Executor
from fastsample_dist.pipeline.transport import SHARED, choose_transport, report_fallback
from fastsample_dist.sampling.sampler import Sampler, kernel_report


class BatchLoader(ABC):
    """Iterates over mini-batches; one iteration is one epoch, one at a time.

    Constructing and iterating are collective: every rank must do both. A loader that derives from this makes a sampler
    of its own, calls `_supply` with it, makes its stages of what that returns, and passes them to `_begin`.

    Args:
      data: the opened partition.
      options: of the loader, checked; the same on all ranks.
      device: where batches are made.
      rows_in: where feature rows are read; None: on `device`.
    Attributes:
      data, options, device: the same.
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
      places: where the tables are that this rank's batches are made from; str() of each is a line for a report.
      sharing: how rows of other ranks come here, and why; str() of it is a line for a report.
      exchange: how the ranks meet to make a batch: "combined" or "paired", or "none" where they need not.
      cache: of other ranks' feature rows; str() is a line for a report. None: there is none, or no features.
      roles: of the ranks; None: every rank does everything. "auto": not chosen yet.
      executor: runs the tasks of an epoch where the ranks have roles; None: they have none.
    Raises:
      ValueError: features of a type of which no batch can be made.
    """

    places: tuple[Placement, ...]
    exchange: str
    cache: MadeCache | None
    roles: Roles | str | None = None
    executor: Executor | None = None

    def __init__(
        self, data: DistData, options: BatchOptions, device: torch.device, rows_in: torch.device | None = None
    ) -> None:
        check_feature_dtype(data)
        self.data, self.options, self.device, self.epoch = data, options, device, 0
        self._comm = data.ctx.comm.duplicate() if options.prefetch else data.ctx.comm
        self.sharing = choose_transport(data, options.transport, rows_in or device)
        report_fallback(self.sharing, options.transport, data.ctx.rank)
        self._read_in_place: DistFeatures | None = None
        if data.features is not None and self.transport == SHARED:
            self._read_in_place = data.features.reading(self.sharing.neighbours)
        self._local_comm: Communicator | None = None  # over the machine's ranks, where they fetch for each other
        self._lane: Lane | None = None  # the prefetch thread's, made with the first one
        self._iterations = Iterations(type(self).__name__)
        self._first_epoch = 0  # the one in which the loader was resumed

    @abstractmethod
    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""

    @abstractmethod
    def num_steps(self, epoch: int) -> int:
        """Steps that an iteration of this epoch makes: fewer than len(loader) in the epoch that was resumed."""

    @abstractmethod
    def position(self, epoch: int, step: int) -> LoaderPosition:
        """The position of a run that has used all batches before `step`, whatever was made ahead.

        Collective: every rank must call this, with the same arguments. Purposes "counts" and "checkpoint".

        Args:
          epoch: the epoch under way.
          step: global step of the next batch; the one after the epoch's last when all of them are done.
        Returns:
          The position, complete on rank 0.
        Raises:
          ValueError: the step is not in that epoch.
        """

    @abstractmethod
    def resume(self, position: LoaderPosition) -> None:
        """Resume at a position: the next iteration makes what is left of its epoch, under its step numbers.

        Collective: every rank must call this, with the whole position. The number of ranks may differ from that of the
        run that saved it.

        Raises:
          ValueError: on all ranks, a position that is not one of this loader.
        """

    @abstractmethod
    def _steps_of(self, epoch: int) -> Sequence[StepInput]:
        """What an iteration of the epoch makes batches of, in order; as many on all ranks."""

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

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes.

        Raises:
          ValueError: a negative epoch, or one before that in which the loader was resumed.
        """
        self.epoch = checks.whole("epoch", epoch, self._first_epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Report the rows that are fetched from now on as that epoch's. Collective: every rank must call this."""
        if self._fetched is not None:
            self._fetched.begin(epoch)

    def left_out(self) -> AbstractContextManager[None]:
        """In the block one iteration may be begun, of which nothing is reported. Collective as `begin_epoch`."""
        return nullcontext() if self._fetched is None else self._fetched.left_out()

    def __iter__(self) -> Iterator[Any]:
        """Batches of one epoch: MiniBatch, or what `transform` makes of one.

        One iteration is under way at a time: the first step of another ends it, as leaving its loop would.

        Collective: every rank must iterate, and stop, at the same step. Purpose "setup": once, before the first batch.

        Raises:
          ValueError: on all ranks: they would make batches of other steps. Another batch was asked of an iteration that
            a later one has ended.
        """
        self._iterations.end()
        epoch, steps = self.epoch, self._steps_of(self.epoch)
        first_step = steps[0].step if steps else None
        agree_on_epoch(self.data.ctx.comm, type(self).__name__, epoch, first_step, len(steps))
        self.begin_epoch(epoch)
        self.epoch += 1
        batches = self._batches(steps)
        with self._iterations.under_way(epoch, batches) as check:
            for batch in batches:
                yield batch
                check()

    def _batches(self, steps: Sequence[StepInput]) -> Iterable[Any]:
        """The batches of these steps, in order, each made when it is asked for, or ahead."""
        depth = self.options.prefetch
        group = group_size(self._sampler, self.device, depth, torch.get_num_threads())
        stages = epoch_stages(self._stages, steps, group=group, combined=self.exchange == COMBINED)
        if depth == 0:
            return map(partial(run_stages, stages, self._comm), steps)
        self._lane = self._lane or lane_of(self.device)
        return look_ahead(stages, self._comm, steps, depth=depth, lane=self._lane, device=self.device)

    def close(self) -> None:
        """End an iteration under way and release the loader's own communicators; the context releases them too.

        Collective: every rank must call this.
        """
        self._iterations.end()
        if self._local_comm is not None:
            self._local_comm.close()
        if self._comm is not self.data.ctx.comm:
            self._comm.close()

    def _supply(
        self, sampler: Sampler, placed: DistFeatures | None, workload: Callable[[], Workload], *, meets: bool = True,
        hot: HotUse | None = None,
    ) -> Features | None:  # fmt: skip
        """What the stages fetch features from: made of where the rows are, a cache and rails.

        Collective: every rank must call this.

        Args:
          sampler: of the loader.
          placed: this rank's features where the device reads them; None without.
          workload: what a cache is made for, if there is one.
          meets: all ranks meet to fetch each batch; False: with roles they do not.
          hot: a GPU reads rows that stay in host memory, where all ranks share one machine; what this rank needs there.
        Returns:
          Features over the stages' communicator; None where the partition has none.
        Raises:
          ValueError: on all ranks, a cache that cannot be made, an exchange that the sampler rules out.
        """
        self._sampler = sampler
        features, self._hot_rows = self._read_in_place or placed, None
        if hot is not None and features is not None and self.sharing.reads_all:
            task = CacheTask(data=self.data, workload=workload(), features=features, machines=self._sharers)
            rows, self.cache = make_hot_rows(self.options.cache, task, hot)
            features = features.using(self._comm)
            self._hot_rows = rows.in_front_of(features)
        else:
            features, self.cache = self._cached(features, workload)
        self._features = self._on_rails(features) if meets else features
        keeps = self.cache is not None and self.cache.rule is not None
        asked = PAIRED if keeps or not meets else self.options.exchange
        self.exchange = resolve_exchange(asked, sampler, self._features, self.data.ctx.world_size)
        if self._hot_rows is not None:
            return self._hot_rows
        return KeepingFeatures(self._features, self.cache.rule) if keeps else self._features

    def _begin(self, stages: tuple[Stage, ...]) -> None:
        """Take the stages that make a batch."""
        self._stages, self._fetched = stages, None
        if self._features is not None:
            id_dtype = self.data.graph.indices.dtype
            self._fetched = FetchRecord(self._features, self.cache, len(self), self.options, id_dtype)
            self._stages = self._fetched.counting(stages)

    @property
    def _sharers(self) -> Machines | None:
        """Ranks by machine, where those of one share its cache; None: every rank has its own."""
        return self.sharing.machines if self.transport == SHARED else None

    def _cached(
        self, features: DistFeatures | None, workload: Callable[[], Workload]
    ) -> tuple[DistFeatures | None, MadeCache | None]:
        """Features over the stages' communicator, and their cache. Collective: every rank must call this."""
        given = self.options.cache
        if given is None or features is None:
            return (None if features is None else features.using(self._comm)), None
        task = CacheTask(data=self.data, workload=workload(), features=features, machines=self._sharers)
        cache = make_cache(given, task) if isinstance(given, FeatureCache) else shared_cache(given, task)
        return cache.features.using(self._comm), cache

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
