"""WalkLoader: an epoch of random walks in batches, the same number of steps on every rank.

A sample is one walk: the repetition r of the walk from a node, whose number is the node's original id +
num_nodes * r. The walk itself is a function of (rng_seed, epoch, sample number) alone, so an epoch has the same walks
on any number of ranks and parts.

Which walks make a batch depends on the parts, not on the ranks: every part shuffles its own samples with a permutation
drawn from (rng_seed, epoch, part) and cuts them into batches, and a rank makes those of all its parts. So the steps are
those of EpochPlan with parts as virtual ranks. A position is written and resumed as by DistLoader (position.py), with
sample numbers in place of original ids.

Topology is on every rank under hybrid, so walking exchanges nothing. Under vanilla each step of a walk would ask the
owner of the node that it has reached: two exchanges per step, 2 * length per batch. That is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import DistData, check_data, own_parts
from fastsample_dist.pipeline.epoch_plan import EpochPlan, StepInput, epoch_permutation
from fastsample_dist.pipeline.iterations import Iterations
from fastsample_dist.pipeline.lookahead import Prefetcher
from fastsample_dist.pipeline.position import (
    PURPOSE,
    SEEDS,
    LoaderPosition,
    check_position,
    gather_in_turn,
    in_turn,
    pick_own,
)
from fastsample_dist.sampling.transit.app import INDIVIDUAL, INF, App
from fastsample_dist.sampling.transit.app_sampler import app_facts
from fastsample_dist.sampling.transit.binding import MAX_STEPS, check_methods
from fastsample_dist.sampling.transit.sampler import TransitSampler


@dataclass(frozen=True, eq=False)
class WalkBatch:
    """Walks of one step, those of this rank's parts one after another.

    Attributes:
      walks: int64 [num_walks, length + 1] node ids of the partitioned graph, the root first; -1 behind the end.
      sample_ids: int64 [num_walks]; original id of the root + num_nodes * repetition.
      part_sizes: walks of each of this rank's parts.
      step: global step, the same on all ranks.
      epoch: of the loader.
      num_global_walks: walks of this step over all ranks.
    """

    walks: Tensor
    sample_ids: Tensor
    part_sizes: tuple[int, ...]
    step: int
    epoch: int
    num_global_walks: int

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """(walks, sample_ids) of each of this rank's parts."""
        return list(zip(self.walks.split(self.part_sizes), self.sample_ids.split(self.part_sizes), strict=True))


class WalkLoader:
    """Iterates over batches of walks from every node; one iteration is one epoch, one at a time.

    Constructing and iterating are collective: every rank must do both, with the same arguments. Iterating exchanges
    nothing.

    Args:
      data: the opened partition.
      app: an application of individual walks: one pick per step, such as transit.DeepWalk or transit.Node2Vec.
      walks_per_node: walks from every node in an epoch, at least 1.
      batch_size: walks per part and step, at least 1. With one part per rank that is per rank and step.
      rng_seed: key of walking and shuffling, 0 .. 2**63 - 1.
      shuffle: permute the samples anew every epoch.
      prefetch: batches made ahead in a background thread; 0 makes each batch when it is asked for.
      graph: to walk on in place of data.graph, such as data.graph.transposed(): a walk goes from a node to one of its
        row, so against the edges of data.graph. Its nodes are numbered as those of data.graph, with the same orig_ids.
      scheme: "hybrid".
    Attributes:
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
    Raises:
      ValueError: an argument out of range, an application that does not make walks, a graph of other nodes, scheme
        "vanilla".
    """

    def __init__(
        self,
        data: DistData,
        app: App,
        walks_per_node: int = 10,
        batch_size: int = 128,
        *,
        rng_seed: int = 0,
        shuffle: bool = True,
        prefetch: int = 0,
        graph: CSCGraph | None = None,
        scheme: str = "hybrid",
    ) -> None:
        check_data(data)
        self.data, self.app, self.shuffle, self.epoch = data, app, shuffle, 0

        def check() -> TransitSampler:
            check_scheme(scheme)
            check_walks(app)
            checks.flag("shuffle", shuffle)
            self.walks_per_node = checks.whole("walks_per_node", walks_per_node, 1)
            self.batch_size = checks.whole("batch_size", batch_size, 1)
            self.prefetch = checks.whole("prefetch", prefetch, 0)
            self.rng_seed = checks.whole("rng_seed", rng_seed, 0, checks.LARGEST)
            if graph is not None:
                check_same_nodes(graph, data)
            return TransitSampler(data.graph if graph is None else graph, app, rng_seed=self.rng_seed)

        self._sampler = agree(data.ctx, check)
        steps = app.steps()
        facts = {
            **app_facts(app), "steps": steps if steps == INF else int(steps), "walks_per_node": self.walks_per_node,
            "batch_size": self.batch_size, "rng_seed": self.rng_seed, "shuffle": shuffle, "graph": graph is not None,
        }  # fmt: skip
        agree_on(data.ctx.comm, "WalkLoader", facts)
        self._parts = own_parts(data.manifest.num_parts, data.ctx)
        self._walks_per_part = [size * self.walks_per_node for size in data.book.part_ranges.diff().tolist()]
        self._resumed: tuple[EpochPlan, list[Tensor]] | None = None
        self._iterations = Iterations("WalkLoader")

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return self._whole_plan(0, 0).num_steps

    def num_steps(self, epoch: int) -> int:
        """Steps that an iteration of this epoch makes: fewer than len(loader) in the epoch that was resumed."""
        return self._plan_of(epoch)[0].num_steps

    def first_step(self, epoch: int) -> int:
        """Global step of an iteration's first batch, the same on all ranks."""
        return self._plan_of(epoch)[0].first_step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes.

        Raises:
          ValueError: a negative epoch, or one before that in which the loader was resumed.
        """
        first = 0 if self._resumed is None else self._resumed[0].epoch
        self.epoch = checks.whole("epoch", epoch, first)

    def __iter__(self) -> Iterator[WalkBatch]:
        """Batches of one epoch; empty ones where this rank has run out of samples.

        One iteration is under way at a time: the first step of another ends it, as leaving its loop would.

        Raises:
          ValueError: another batch was asked of an iteration that a later one has ended.
        """
        self._iterations.end()
        plan, orders = self._plan_of(self.epoch)
        steps = range(plan.num_steps)  # their inputs are made when their turn comes: an epoch has many
        self.epoch += 1

        def make(number: int) -> WalkBatch:
            return self._batch([plan.step_input(number, order) for order in orders])

        timeout_s = self.data.ctx.comm.timeout_s
        batches = Prefetcher(make, steps, self.prefetch, timeout_s) if self.prefetch else map(make, steps)
        with self._iterations.under_way(plan.epoch, batches) as check:
            for batch in batches:
                yield batch
                check()

    def position(self, epoch: int, step: int) -> LoaderPosition:
        """Where a run stands that has used all batches before `step`: as DistLoader.position, with sample numbers for
        seeds in `remaining`.

        Collective: every rank must call this, with the same arguments. Purposes "counts" and "checkpoint".

        Raises:
          ValueError: the step is not in that epoch.
        """
        plan, orders = self._plan_of(epoch)
        left = [
            self._sample_ids(part, plan.seeds_from(step, order))
            for part, order in zip(self._parts, orders, strict=True)
        ]
        return LoaderPosition(epoch, step, gather_in_turn([in_turn(left)], self.data.ctx.comm))

    def resume(self, position: LoaderPosition) -> None:
        """Resume at a position: the next iteration makes what is left of its epoch, under its step numbers.

        Collective: every rank must call this, with the whole position. The number of ranks, of parts and the batch size
        may differ from those of the run that saved it; on the same parts the batches are the same.

        Raises:
          ValueError: on all ranks, what is no position, or one whose remaining samples are not all there.
        """
        check_position(position, SEEDS)
        orders = [
            pick_own(position.remaining, self._sample_ids(part, torch.arange(self._walks_per_part[part])))
            for part in self._parts
        ]
        counts = self.data.ctx.comm.all_gather_object([order.numel() for order in orders], purpose=PURPOSE)
        per_part = [count for of_rank in counts for count in of_rank]
        if sum(per_part) != position.remaining.numel():
            raise ValueError(
                f"{position.remaining.numel()} walks of epoch {position.epoch} are still to come but {sum(per_part)} "
                f"of them are among the {sum(self._walks_per_part)} walks here; resume with the graph and "
                "walks_per_node of the run that is to be continued."
            )
        plan = EpochPlan(position.epoch, position.step, per_part, self.batch_size)
        self._resumed, self.epoch = (plan, orders), position.epoch

    def _whole_plan(self, epoch: int, first_step: int) -> EpochPlan:
        return EpochPlan(epoch, first_step, self._walks_per_part, self.batch_size)

    def _plan_of(self, epoch: int) -> tuple[EpochPlan, list[Tensor]]:
        """The epoch's plan, and the samples of each own part in order: its repetition * part size + place in it."""
        first_epoch, first_step = 0, 0
        if self._resumed is not None:
            plan, orders = self._resumed
            if epoch == plan.epoch:
                return plan, orders
            first_epoch, first_step = plan.epoch + 1, plan.first_step + plan.num_steps
        counts = [(part, self._walks_per_part[part]) for part in self._parts]
        orders = [
            epoch_permutation(count, self.rng_seed, epoch, part) if self.shuffle else torch.arange(count)
            for part, count in counts
        ]
        return self._whole_plan(epoch, first_step + (epoch - first_epoch) * len(self)), orders

    def _roots(self, part: int, samples: Tensor) -> Tensor:
        """Node ids that samples of a part begin at."""
        lo, hi = self.data.book.part2range(part)
        return lo + samples % max(hi - lo, 1)

    def _sample_ids(self, part: int, samples: Tensor) -> Tensor:
        """Their numbers in the whole graph."""
        lo, hi = self.data.book.part2range(part)
        repetition = samples.div(max(hi - lo, 1), rounding_mode="floor")
        return self.data.orig_ids(self._roots(part, samples)) + self.data.num_nodes * repetition

    def _batch(self, given: list[StepInput]) -> WalkBatch:
        own = list(zip(self._parts, (one.seeds for one in given), strict=True))
        roots = torch.cat([self._roots(part, samples) for part, samples in own])
        sample_ids = torch.cat([self._sample_ids(part, samples) for part, samples in own])
        first = given[0]
        walks = self._sampler.sample(roots, step=first.epoch, sample_ids=sample_ids).vertices
        sizes = tuple(samples.numel() for _, samples in own)
        return WalkBatch(walks, sample_ids, sizes, first.step, first.epoch, first.num_global_seeds)


def check_scheme(scheme: str) -> None:
    """Refuse every scheme but hybrid, and say why.

    Raises:
      ValueError: as said.
    """
    if scheme == "vanilla":
        raise ValueError(
            "scheme is 'vanilla', under which every step of a walk would cost 2 exchanges (ask the owner of the node "
            "reached, hear its neighbours); pass scheme='hybrid': topology is on every rank and walking costs none."
        )
    if scheme != "hybrid":
        raise ValueError(f"scheme is {scheme!r}; expected 'hybrid'.")


def check_same_nodes(graph: CSCGraph, data: DistData) -> None:
    """Refuse a graph to walk on whose nodes are not the partition's, under the same numbers.

    Raises:
      ValueError: as said.
    """
    if not isinstance(graph, CSCGraph):
        raise ValueError(f"graph is a {type(graph).__name__}; expected a CSCGraph, such as data.graph.transposed().")
    if graph.num_nodes != data.num_nodes:
        raise ValueError(f"graph has {graph.num_nodes} nodes, the partition {data.num_nodes}; pass the same.")
    given, own = graph.orig_ids, data.graph.orig_ids
    if given is not own and not torch.equal(torch.arange(len(own)) if given is None else given.cpu(), own):
        raise ValueError(
            f"graph has {'no orig_ids' if given is None else 'other orig_ids than data.graph'}, so its nodes are not "
            "numbered as the partition's; pass one that is, with orig_ids=data.graph.orig_ids, such as "
            "data.graph.transposed()."
        )


def check_walks(app: App) -> None:
    """Refuse what does not make walks from one root.

    Raises:
      TypeError: the application has a value in place of a method.
      ValueError: it is collective, makes another number of picks than 1 in a step, or has no number of steps.
    """
    if not isinstance(app, App):
        raise ValueError(f"app is a {type(app).__qualname__}; expected an application, such as transit.DeepWalk(80).")
    check_methods(app)
    name = type(app).__qualname__
    if app.sampling_type != INDIVIDUAL:
        raise ValueError(f"{name} is a collective application; expected walks, such as transit.DeepWalk(80).")
    steps = app.steps()
    count = 1 if steps == INF else min(checks.whole(f"steps() of {name}", steps, 0), MAX_STEPS)  # more are refused
    for step in range(count):
        size, transits = app.sample_size(step), app.num_transits(step, 1)
        if size != 1 or transits not in (None, 1):
            picks = f"{size} picks" if transits in (None, 1) else f"{size} picks for each of {transits} transits"
            raise ValueError(
                f"{name} makes {picks} in step {step}; expected 1 in every step: a walk, such as transit.DeepWalk(80)."
            )
