"""DistLoader: an epoch of mini-batches, the same number of steps on every rank.

Each rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, rank) and cuts them into batches.
The rank with the most seeds sets the number of steps; the others finish with empty batches of weight 0
(epoch_plan.py). Steps are numbered through all epochs, because the step is part of every draw's key. A run's position
can be saved and resumed, by as many ranks or by another number of them (position.py). A batch is made by stages
(stages.py), ahead of its turn where that is asked for (lookahead.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.choice import computing
from fastsample_dist.features.cache import FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.hot_rows import HotRows
from fastsample_dist.features.policies import Workload
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.caching import sampled_inputs
from fastsample_dist.pipeline.data import DistData, check_data, own_parts
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.factored import (
    TaskWork,
    auto_roles,
    check_machines,
    make_executor,
)
from fastsample_dist.pipeline.hot_cache import IN_FULL, NEVER, WHAT_FITS, HotUse
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.pipeline.position import PURPOSE, SEEDS, LoaderPosition, check_position, gather_in_turn, in_turn
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles
from fastsample_dist.pipeline.schemes import REGISTRY, make_sampler
from fastsample_dist.pipeline.seed_order import SeedOrder
from fastsample_dist.pipeline.seeds import Seeds, check_counts, check_full_batches, given_seeds, warn_of_idle_ranks
from fastsample_dist.pipeline.stages import Stage, completing_stages, handing_stages, make_stages, sampling_stages
from fastsample_dist.pipeline.tasks import TaskShares
from fastsample_dist.pipeline.transport import SHARED
from fastsample_dist.pipeline.virtual_ranks import share_virtual_ranks
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import Sampler, payload_exchanges
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.app_sampler import AppSampler
from fastsample_dist.sampling.transit.device_collective import NotOnGpusError

logger = logging.getLogger(__name__)

HOST = torch.device("cpu")


class DistLoader(BatchLoader):
    """Iterates over mini-batches of a split's seeds, or of given ones; one iteration is one epoch, one at a time.

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
        edge_values, transform, device, kernel, placement, transport, exchange, rails, cache, roles, staleness: see
        LoaderOptions.
    Attributes:
      epoch, options, device, places, sharing, exchange, cache, roles, executor: see BatchLoader.
    Raises:
      ValueError: an argument out of range; a split that is empty on all ranks; seeds that are refused on one rank, on
        all of them; features of a type of which no batch can be made; roles of ranks that do not share machines of as
        many ranks.
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
        roles: str | Roles = "none",
        staleness: int = 0,
    ) -> None:
        check_data(data)

        def check() -> tuple[LoaderOptions, torch.device]:
            own = LoaderOptions(
                fanouts=fanouts, batch_size=batch_size, sampler=sampler, app=app, split=split, scheme=scheme,
                rng_seed=rng_seed, prefetch=prefetch, shuffle=shuffle, drop_last=drop_last, feature_dtype=feature_dtype,
                method=method, replace=replace, layer_dependency=layer_dependency, edge_ids=edge_ids,
                edge_values=edge_values, transform=transform, device=device, kernel=kernel, placement=placement,
                transport=transport, exchange=exchange, rails=rails, cache=cache, roles=roles, staleness=staleness,
            )  # fmt: skip
            _check_communicator(own, data.ctx.comm)
            return own, computing(data.ctx.device if device is None else device)

        options, self._target = agree(data.ctx, check)
        has_roles, on_gpu = isinstance(options.roles, Roles), arrays.runs_kernels(self._target)
        made_on = HOST if has_roles else self._target  # tasks are in host memory
        self._rows_in_host_memory = on_gpu and (has_roles or options.transport == SHARED)
        agree_on(data.ctx.comm, "DistLoader", options.facts())  # before anything whose shape depends on them
        self._seeds, seeds_per_rank, self._own_seeds = _take_seeds(data, options, seeds)
        self._order = SeedOrder({data.ctx.rank: self._seeds}, seeds_per_rank, options)
        self._taken_up: LoaderPosition | None = None
        self._placed_for = options.roles
        super().__init__(data, options, made_on, HOST if self._rows_in_host_memory else None)
        if has_roles:
            check_machines(options.roles, self.sharing, data.ctx.world_size)
        self._make_batches()
        if options.roles == ROLES_AUTO:
            self.roles = auto_roles(self.sharing, data.ctx, on_gpu=on_gpu)
        elif options.roles != ROLES_NONE:
            self.take_roles(options.roles)

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return self._order.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """See BatchLoader.

        Raises:
          ValueError: the ranks have roles.
        """
        if self.executor is not None:
            raise ValueError(
                f"the loader has roles {self.roles}, so no rank makes all batches of its own; train with "
                "Trainer.run_epoch or Trainer.fit, or iterate over a loader with roles='none'."
            )
        return super().__iter__()

    @property
    def batch_size(self) -> int:
        """Seeds per rank and step."""
        return self.options.batch_size

    @property
    def fanouts(self) -> tuple[int, ...] | None:
        """Neighbours per node and hop; None where `sampler` or `app` was given."""
        return None if self.options.fanouts is None else self.options.spec.fanouts

    def num_steps(self, epoch: int) -> int:
        """Steps that an iteration of this epoch makes: fewer than len(loader) in the epoch that was resumed."""
        return self._order.plan(epoch).num_steps

    def first_step(self, epoch: int) -> int:
        """Global step of the first batches that an iteration of this epoch makes."""
        return self._order.plan(epoch).first_step

    def take_roles(self, roles: Roles | None) -> None:
        """Give the ranks their roles, where the loader was made with roles "auto". Collective: every rank must call
        this, with the same roles.

        Args:
          roles: from now on; None: every rank does everything.
        Raises:
          ValueError: on all ranks: another number of ranks, ranks that do not read each other's rows in place, no
            memory; they have roles already.
        """
        data, options = self.data, self.options
        if self.executor is not None:
            raise ValueError(f"the ranks have roles {self.roles} already; make another loader to change them.")
        agree_on(data.ctx.comm, "DistLoader.take_roles", {"roles": repr(roles)})
        self.roles = roles
        if roles is None:
            return
        check_machines(roles, self.sharing, data.ctx.world_size)
        if options.prefetch and data.ctx.rank == 0:
            logger.warning(
                "prefetch is %d, but with roles %s it is not read: samplers work ahead of the trainers, which take one "
                "batch after another.", options.prefetch, roles,
            )  # fmt: skip
        if self._hot_rows is not None and self._placed_for == ROLES_AUTO:
            self._place_for(roles)
        machines = self.sharing.machines
        ranks = share_virtual_ranks(data, self._seeds, machines)
        if options.drop_last:
            check_full_batches(ranks.seeds_per_rank, options.batch_size)
        self._order = SeedOrder(ranks.seeds, ranks.seeds_per_rank, options)
        labels_of = None if data.labels is None else ranks.labels_of
        received = self._features is not None and self._features.exchanges
        completing = completing_stages(
            options, self._comm, self._hot_rows or self._features, labels_of, HOST, self._target, received=received
        )  # fmt: skip
        work = TaskWork(
            shares=TaskShares.of(machines, data.ctx.rank, data.manifest.num_parts), order=self._order, comm=self._comm,
            tables=(data.graph.orig_ids,), sampling={rank: self._sampling_of(rank) for rank in ranks.seeds},
            completing=completing if self._fetched is None else self._fetched.counting(completing),
            features=self._features if received else None,
        )  # fmt: skip
        self.executor = make_executor(self, work, roles)
        if self._taken_up is not None:
            self.resume(self._taken_up)

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
        plan, order, ctx = self._order.plan(epoch), self._order, self.data.ctx
        has_all = self.executor is not None and self.sharing.machines.is_one
        known = order.seeds if not has_all or ctx.rank == 0 else {}
        left = {
            rank: self.data.orig_ids(plan.seeds_from(step, order.of(epoch, rank)))
            for rank in known
            if self.executor is None or has_all or rank in own_parts(self.data.manifest.num_parts, ctx)
        }
        if has_all:
            return LoaderPosition(epoch, step, in_turn([*left.values()]) if left else torch.empty(0, dtype=torch.int64))
        return LoaderPosition(epoch, step, gather_in_turn([*left.values()], ctx.comm))

    def resume(self, position: LoaderPosition) -> None:
        """Resume at a position: the next iteration makes what is left of its epoch, under its step numbers.

        Collective: every rank must call this, with the whole position. The number of ranks and the batch size may
        differ from those of the run that saved it.

        Raises:
          ValueError: on all ranks, when the remaining seeds are not all in the split, or it is a position of subgraphs.
        """
        check_position(position, SEEDS)
        self._order.resume(position, self.data.orig_ids, self._counts_of_all, self._source)
        self.epoch = self._first_epoch = position.epoch
        self._taken_up = position if self.roles == ROLES_AUTO else None  # roles that are chosen later begin there

    def _place_for(self, roles: Roles) -> None:
        """Place the tables of ranks with GPUs anew, for roles that were chosen: trainers hold rows, not the topology.

        Collective: every rank must call this.
        """
        self._placed_for, self._stages, self.cache = roles, (), None
        self._sampler = self._hot_rows = None
        self.data.forget_placed(self._target)
        self._make_batches()

    def _make_batches(self) -> None:
        """Place tables, and make of them the sampler and the stages. Collective: every rank must call this."""
        # one rank's edges alone may hold a weight that is refused
        sampler, features = agree(self.data.ctx, self._prepare)
        meets = not isinstance(self._placed_for, Roles)
        fetched_from = self._supply(sampler, features, self._workload, meets=meets, hot=self._hot_use())
        self._begin(make_stages(self.data, self.options, self._comm, sampler, fetched_from, self.device))

    @property
    def hot_rows(self) -> HotRows | None:
        """Rows on this rank's GPU in front of those in host memory; None: there are none."""
        return self._hot_rows

    @property
    def _is_trainer(self) -> bool:
        """Whether this rank has the role of a trainer."""
        roles, rank = self._placed_for, self.data.ctx.rank
        return isinstance(roles, Roles) and not roles.is_sampler(self.sharing.machines.of(rank).index(rank))

    @property
    def _sampled_on(self) -> torch.device:
        """Where the sampler works. The memory of a GPU that trains is left to rows."""
        has_roles = isinstance(self._placed_for, Roles)
        return HOST if self._is_trainer or (has_roles and self.options.sampler is not None) else self._target

    def _hot_use(self) -> HotUse | None:
        """What this rank needs of rows on its GPU; None: the tables are placed there as they are."""
        if not self._rows_in_host_memory:
            return None
        roles = self._placed_for
        if isinstance(roles, Roles) and not self._is_trainer:
            return HotUse(self._target, WHAT_FITS if roles.switching else NEVER)
        return HotUse(self._target, WHAT_FITS if self.options.roles == ROLES_AUTO else IN_FULL)

    def _prepare(self) -> tuple[Sampler, DistFeatures | None]:
        """Place the tables and make the sampler; features where the device reads them.

        Raises:
          ValueError: a kernel or a placement that the device does not have; tables that fit nowhere; missing weights.
        """
        data, options = self.data, self.options
        edge_values = options.wants_edge_values(data.graph.weights is not None)
        topology = None if options.has_own_sampler else REGISTRY[options.scheme].topology
        ranks = self.sharing.machines.of(data.ctx.rank)
        placement, kernel = ("auto", "auto") if self._is_trainer else (options.placement, options.kernel)
        sampler = options.sampler if options.app is None else self._app_sampler()  # its tables before the features
        tables = data.placed_tables(
            self._sampled_on, topology, placement, weighted=options.spec.traits.weighted, valued=edge_values,
            ranks=ranks, features=not self._rows_in_host_memory,
        )  # fmt: skip
        self.places = tables.places
        if sampler is None:
            sampler = make_sampler(
                data, options.scheme, options.spec, self._comm, tables=tables, kernel=kernel,
                edge_values=edge_values, ranks=ranks, exchanges=not self.sharing.reads_all,
            )  # fmt: skip
        return sampler, tables.features

    def _app_sampler(self) -> AppSampler:
        """What samples the application, on the CPU where no kernel of a GPU does."""
        data, app, device = self.data, self.options.app, self._sampled_on
        assert app is not None

        def make(device: torch.device) -> AppSampler:
            return AppSampler(data.graph, app, self.options.rng_seed, data.ctx.rank, device=device)

        try:
            return make(device)
        except NotOnGpusError as error:
            if data.ctx.rank == 0:
                logger.warning("%s The CPU samples it, and its batches are copied to %s.", error, device)
            return make(HOST)

    def _workload(self) -> Workload:
        """What this rank trains on, for a cache."""
        data, options, sampler = self.data, self.options, self._sampler
        if options.neighbour_spec is not None and payload_exchanges(sampler) > 0:
            # a local sampler draws the same batches without asking
            sampler = NeighborSampler.from_spec(data.graph, options.neighbour_spec)
        return Workload(
            graph=data.graph, train_nodes=self._seeds, batch_size=self.batch_size, rng_seed=options.rng_seed,
            spec=options.neighbour_spec, steps_per_epoch=len(self),
            sample=lambda epoch, first: sampled_inputs(sampler, self._whole_epoch(epoch, first), self._sampled_on),
            undirected=data.manifest.undirected,
        )  # fmt: skip

    def _steps_of(self, epoch: int) -> list[StepInput]:
        return self._order.plan(epoch).step_inputs(self._order.of(epoch, self.data.ctx.rank))

    def _whole_epoch(self, epoch: int, first_step: int) -> list[StepInput]:
        """The steps of an epoch that was not resumed, under other numbers than a run's."""
        return self._order.whole(epoch, first_step).step_inputs(self._order.shuffled(epoch, self.data.ctx.rank))

    def _counts_of_all(self, known: Mapping[int, int]) -> Sequence[int]:
        """How many seeds all virtual ranks have, given those known here. Collective where these are this rank's."""
        if self.executor is None:
            return self.data.ctx.comm.all_gather_object(known[self.data.ctx.rank], purpose=PURPOSE)
        if not self.sharing.machines.is_one:
            everyone = self.data.ctx.comm.all_gather_object(dict(known), purpose=PURPOSE)
            known = {rank: count for found in everyone for rank, count in found.items()}
        return [known[rank] for rank in range(len(known))]

    def _sampling_of(self, virtual_rank: int) -> tuple[Stage, ...]:
        """The stages that sample for a virtual rank; only one that samples collectively needs to know which."""
        sampler, device = self._sampler, self._sampled_on
        if isinstance(sampler, AppSampler):
            sampler, device = sampler.of_sample(virtual_rank), sampler.device
        sampling = sampling_stages(self.data, self.options, self._comm, sampler, device)
        return (*sampling, *handing_stages(device, self._hot_rows))

    def close(self) -> None:
        """See BatchLoader."""
        if self.executor is not None:
            self.executor.close()
        super().close()

    @property
    def _source(self) -> str:
        """Where the seeds come from, for messages."""
        return "seeds given" if self._own_seeds else f"{self.options.split} split"


def _take_seeds(data: DistData, options: LoaderOptions, seeds: Seeds | None) -> tuple[Tensor, list[int], bool]:
    """(this rank's seeds, how many every rank has, whether they were given).

    Collective: every rank must call this.
    """
    split, are_given = options.split, seeds is not None

    def check() -> Tensor:
        if seeds is None:
            return data.split(split)
        if split != "train":
            raise ValueError(f"split is {split!r} beside seeds, which take its place; pass one of them.")
        return given_seeds(data, seeds)

    own = agree(data.ctx, check)
    found = data.ctx.comm.all_gather_object((own.numel(), are_given), purpose="setup")
    per_rank, given = ([entry[i] for entry in found] for i in (0, 1))
    if len(set(given)) > 1:
        raise ValueError(
            f"seeds is given on rank {given.index(True)} but not on rank {given.index(False)}; pass it on all "
            "ranks (it may be empty) or on none."
        )
    check_counts("seeds" if are_given else split, per_rank)
    if split == "train" and not are_given and data.ctx.rank == 0:
        warn_of_idle_ranks(per_rank)
    if options.drop_last:
        check_full_batches(per_rank, options.batch_size)
    return own, per_rank, are_given


def _check_communicator(options: LoaderOptions, comm: Communicator) -> None:
    """Refuse a prefetch thread that would sample over the communicator of the training loop."""
    sampler = options.sampler
    if options.prefetch and payload_exchanges(sampler) > 0 and getattr(sampler, "comm", None) is comm:
        raise ValueError(
            f"prefetch is {options.prefetch}, but sampler exchanges over ctx.comm, which the training loop uses at the "
            "same time; make the sampler over ctx.comm.duplicate(), or pass prefetch=0."
        )
