"""Ranks in their roles: samplers make tasks, trainers complete and train them (GNNLab, sections 4 and 5).

    sampler   claim a task -> sample -> its bytes into the queue; when all of an epoch are made, train where that pays
    trainer   take a task -> fetch features, look up labels, transform -> train -> done; rank 0 updates between tasks

Ranks 0 .. trainers - 1 of each machine train, the others sample. A task's seeds, step and sample are those of its
virtual rank (tasks.py), so a batch is the same whoever makes and trains it. Order, waiting and deadlines are those of
the queue (task_queue.py). A rank that fails leaves one line there, which the others raise. Where there are several
machines, samplers fetch what theirs does not hold, and those that update meet: see between_machines.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.context import DistContext
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.shared_queue import QueueSpec
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.between_machines import (
    RemoteRows,
    Updaters,
    servers_of,
    split_samplers,
    split_updaters,
)
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles
from fastsample_dist.pipeline.seed_order import SeedOrder
from fastsample_dist.pipeline.stages import Stage, result_dtype, run_stages
from fastsample_dist.pipeline.task_batch import pack, unpack
from fastsample_dist.pipeline.task_queue import UPDATER, GroupDone, Taken, TaskQueue
from fastsample_dist.pipeline.tasks import RolesError, Task, TaskShares
from fastsample_dist.pipeline.transport import SHARED, Transport
from fastsample_dist.sampling.mfg import MiniBatch

logger = logging.getLogger(__name__)

NEVER, BY_PROFIT, ALWAYS = "never", "profit", "always"  # when samplers train, too
UNKNOWN_TASK_BYTES = 1 << 20  # first estimate of a task where the sampler's fanouts are not known
MOST_PLACES = 1 << 16  # of a queue; about 100 bytes each

Train = Callable[[Task, Any, int], None]
Update = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class TaskWork:
    """How a rank makes and completes the batches of tasks.

    Attributes:
      shares: the tasks of the machines.
      order: seeds of this machine's virtual ranks.
      sampling: by virtual rank of this machine, the stages that make a batch without features.
      completing: the stages that complete it.
      comm: of the stages.
      tables: of the graph, which batches refer to.
      features: that the completing stages read, where rows of other machines must come with a batch; else None.
    """

    shares: TaskShares
    order: SeedOrder
    sampling: Mapping[int, Sequence[Stage]]
    completing: Sequence[Stage]
    comm: Communicator
    tables: tuple[Tensor, ...]
    features: DistFeatures | None = None

    def task(self, epoch: int, number: int) -> Task:
        """The task of a number in an epoch."""
        group, place = divmod(number, len(self.shares.own))
        return Task(number, group, self.shares.own[place], epoch, self.order.plan(epoch).first_step + group)

    def sample(self, task: Task) -> MiniBatch:
        """The task's batch, without features."""
        seeds = self.order.of(task.epoch, task.virtual_rank)
        given = self.order.plan(task.epoch).step_input(task.group, seeds)
        return run_stages(self.sampling[task.virtual_rank], self.comm, given)

    def complete(self, batch: MiniBatch) -> Any:
        """The batch with features and labels, transformed."""
        given = StepInput(batch.seeds.cpu().long(), batch.step, batch.epoch, batch.num_global_seeds)
        return run_stages(self.completing, self.comm, given, batch)


@dataclass
class RoleTally:
    """What a rank has done of an epoch.

    Attributes:
      sampled: tasks that it sampled.
      trained: tasks that it trained, those as a standby trainer among them.
      stood_by: tasks that it trained as a sampler.
      sample_s: seconds of sampling.
      fetch_s: seconds of fetching rows of other machines for what was sampled, waiting for other samplers included.
      hand_over_s: seconds of copying sampled tasks into the queue.
    """

    sampled: int = 0
    trained: int = 0
    stood_by: int = 0
    sample_s: float = 0.0
    fetch_s: float = 0.0
    hand_over_s: float = 0.0


class FactoredExecutor:
    """Runs the tasks of a loader; see tasks.Executor.

    Args:
      work: how tasks are made.
      queue: of the machine, made for these roles.
      roles: of the ranks of a machine.
      begin_epoch: called on all ranks when an epoch begins, with its number.
      meeting_point: where this rank meets those of other machines; None: it does not.
    Attributes:
      roles, staleness, shares, is_updater, updaters: see tasks.Executor.
      is_sampler: whether this rank samples.
      tally: what this rank has done of the epoch.
    """

    def __init__(
        self, work: TaskWork, queue: TaskQueue, roles: Roles, begin_epoch: Callable[[int], None],
        meeting_point: RemoteRows | Updaters | None = None,
    ) -> None:  # fmt: skip
        self.roles, self.staleness, self.shares = roles, queue.spec.staleness, work.shares
        self.is_updater, self.is_sampler, self.tally = queue.rank == UPDATER, roles.is_sampler(queue.rank), RoleTally()
        self.updaters = meeting_point.comm if isinstance(meeting_point, Updaters) else None
        self._work, self._queue, self._begin_epoch, self._comm = work, queue, begin_epoch, work.comm
        self._meeting_point = meeting_point
        self._task: Task | None = None  # that this rank has in hand
        self._ended_first = ""  # who had ended when this rank failed

    def run(self, epoch: int, first_group: int, num_groups: int, train: Train, update: Update) -> int:
        """See tasks.Executor. Collective: every rank must call this."""
        plan, size = self._work.order.plan(epoch), len(self.shares.own)
        if first_group == 0:
            self.tally = RoleTally()
            self._begin_epoch(epoch)
        if num_groups == 0:
            return first_group
        self._queue.begin(
            first_group * size, num_groups * size, epoch=epoch, first_step=plan.first_step + first_group,
            ends_epoch=first_group + num_groups == plan.num_steps,
        )  # fmt: skip
        if self._meeting_point is not None:
            self._meeting_point.begin()
        with self._failing_together():
            if self.is_sampler:
                self._sample_all(epoch, train)
            else:
                self._train_all(epoch, train, update)
            return self._queue.wait_end()

    def request_stop(self) -> None:
        """See tasks.Executor."""
        self._queue.request_stop()

    def who_ended(self, within_s: float = 0.0) -> str:
        """See tasks.Executor."""
        return self._queue.who_ended(within_s) if self._queue.failure is None else self._ended_first

    def close(self) -> None:
        """Watch the other ranks no longer, and leave those of other machines."""
        self._queue.close()
        if self._meeting_point is not None:
            self._meeting_point.comm.close()

    def _sample_all(self, epoch: int, train: Train) -> None:
        queue, batches = self._queue, self._sampled if self._meeting_point is None else self._sampled_in_rounds
        for batch in batches(epoch):
            begin = batch.sampling.clock.mark()
            with self._comm.watch.span("hand over", batch.step):
                queue.put(self._task.number, *pack(batch, self._work.tables))
            self._task = None
            self.tally.sampled += 1
            self.tally.sample_s += batch.sample_s
            self.tally.hand_over_s += batch.sampling.clock.seconds(begin, batch.sampling.clock.mark())
            if queue.spec.switching == ALWAYS:
                self._stand_by(epoch, queue.take_as_standby(waits=False), train)
        while (taken := queue.take_as_standby(self._known_standby_s)) is not None:
            self._stand_by(epoch, taken, train)

    def _sampled(self, epoch: int) -> Iterator[MiniBatch]:
        """The batches of the tasks that this rank claims; each is `_task` until the next one is asked for."""
        while (number := self._queue.claim()) is not None:
            self._task = self._work.task(epoch, number)
            yield self._work.sample(self._task)

    def _sampled_in_rounds(self, epoch: int) -> Iterator[MiniBatch]:
        """The same with rows of other machines, together with their samplers."""
        goes_on = True
        while goes_on:
            number, is_last = self._queue.claim_now()
            batch = None
            if number is not None:
                self._task = self._work.task(epoch, number)
                batch = self._work.sample(self._task)
            begin_s = time.perf_counter()
            self._meeting_point.comm.step = -1 if batch is None else batch.step
            with self._comm.watch.span("fetch", self._meeting_point.comm.step):
                goes_on = self._meeting_point.bring(batch, is_last)
            self.tally.fetch_s += time.perf_counter() - begin_s
            if batch is not None:
                yield batch

    def _train_all(self, epoch: int, train: Train, update: Update) -> None:
        while (taken := self._queue.take()) is not None:
            if isinstance(taken, GroupDone):
                self._agree_on_stop(epoch, taken.group)
                update(taken.group)
                self._queue.advance(taken.group)
            else:
                self._train(epoch, taken, train)

    def _agree_on_stop(self, epoch: int, group: int) -> None:
        """Let the queues of all machines end after the same group, where one of them is to stop."""
        if self.updaters is None:
            return
        self.updaters.step = self._work.order.plan(epoch).first_step + group
        if self._meeting_point.agree_on_stop(self._queue.stop_is_wanted):
            self._queue.end_after(group + self.staleness)  # groups up to this one may be under way

    @property
    def _known_standby_s(self) -> float | None:
        return None if self.roles.times is None else self.roles.times.standby_s

    def _stand_by(self, epoch: int, taken: Taken | None, train: Train) -> None:
        """Train a task on a sampler; the span shows the switching in a trace."""
        if taken is None:
            return
        with self._comm.watch.span("standby", self._work.task(epoch, taken.task).step):
            self._train(epoch, taken, train)
        self.tally.stood_by += 1

    def _train(self, epoch: int, taken: Taken, train: Train) -> None:
        task = self._task = self._work.task(epoch, taken.task)
        batch = self._work.complete(unpack(taken.head, taken.buffers, self._work.tables))
        train(task, batch, taken.version)
        self._queue.done(taken.task)
        self._task = None
        self.tally.trained += 1

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Let the other ranks raise what is raised here, unless it is one of them that failed."""
        try:
            yield
        except BaseException as error:
            line = str(error) if isinstance(error, RolesError) else self._line(error)
            if self._queue.failure is None:  # else, and from here on, ranks end because of a failure
                self._ended_first = self._queue.who_ended()
            self._queue.fail(line)
            if self._meeting_point is not None:
                self._meeting_point.pass_on(line)
            raise
        finally:
            self._comm.step = -1  # collectives from here on are of no step

    def _line(self, error: BaseException) -> str:
        """Which rank failed, at what and why."""
        name = f"rank {self._comm.run_rank} ({'sampler' if self.is_sampler else 'trainer'})"
        if isinstance(error, KeyboardInterrupt):
            return f"{name} was interrupted"
        at = "" if self._task is None else f" at {self._queue.describe(self._task.number)}"
        return f"{name} failed{at}: {type(error).__name__}: {error}"


def check_machines(roles: Roles, sharing: Transport, world_size: int) -> None:
    """Refuse roles of ranks that do not read the rows of their machine in place, or that are not as many on each.

    Args:
      roles: of the ranks of a machine.
      sharing: how rows of other ranks come to a rank.
      world_size: of the run.
    Raises:
      ValueError: samplers and trainers do not add up to a machine's ranks; what keeps ranks apart.
    """
    if sharing.reads_all or roles.ranks > world_size or world_size % roles.ranks:
        roles.check(world_size)
    sizes = {len(group) for group in sharing.machines.groups}
    if not sharing.reads_all and (sharing.name != SHARED or sizes != {roles.ranks}):
        why = sharing.reason or f"transport is {sharing.name!r}"
        found = " and ".join(str(size) for size in sorted(sizes))
        raise ValueError(
            f"roles are {roles} on each machine, but ranks read each other's memory in groups of {found} ({why}); "
            f"start {roles.ranks} ranks on every machine with transport='auto', or pass roles={ROLES_NONE!r}."
        )


def auto_roles(sharing: Transport, ctx: DistContext, *, on_gpu: bool) -> str | None:
    """ROLES_AUTO where there is a choice; else None, and rank 0 logs why.

    Args:
      sharing: how rows of other ranks come to a rank.
      ctx: of the run.
      on_gpu: batches are made on a GPU.
    """
    why = "there is one rank"
    if ctx.world_size > 1:
        if sharing.reads_all:
            return ROLES_AUTO
        found = sharing.reason or f"transport is {sharing.name!r}"
        why = f"they are chosen for ranks of one machine, and not all ranks read each other's memory ({found})"
        if on_gpu and sharing.name != SHARED:
            why += f"; with transport={SHARED!r} GPUs read rows in the host's memory"
    if ctx.rank == 0:
        logger.warning("roles 'auto' are none: %s.", why)
    return None


def make_executor(loader: BatchLoader, work: TaskWork, roles: Roles) -> FactoredExecutor:
    """What runs the tasks of a loader. Collective: every rank must call this. Purpose "setup".

    Args:
      loader: whose ranks have passed `check_machines`.
      work: how its tasks are made.
      roles: of the ranks of a machine.
    Raises:
      ValueError: on all ranks: there is not enough memory.
    """
    options, data, own, machines = loader.options, loader.data, work.shares.own, loader.sharing.machines
    fanouts = None if options.neighbour_spec is None else options.neighbour_spec.fanouts
    spec = QueueSpec(
        capacity=min(len(own) * len(loader), MOST_PLACES), group_size=len(own), num_ranks=roles.ranks,
        num_trainers=roles.trainers, staleness=options.staleness, most_bytes=roles.queue_bytes,
        task_bytes=min(task_bytes(data.graph, fanouts, options.batch_size), roles.queue_bytes),
        switching=switching_of(roles),
    )  # fmt: skip
    queue = TaskQueue(data.ctx, machines, spec, virtual_ranks=own)
    return FactoredExecutor(work, queue, roles, loader.begin_epoch, _meeting_point(loader, work, roles))


def _meeting_point(loader: BatchLoader, work: TaskWork, roles: Roles) -> RemoteRows | Updaters | None:
    """Where this rank meets those of other machines; None: it does not. Collective: every rank must call this."""
    comm, machines = loader.data.ctx.comm, loader.sharing.machines
    if machines.is_one:
        return None
    samplers, updaters = split_samplers(comm, machines, roles), split_updaters(comm, machines)
    for group in (samplers, updaters):
        if group is not None:
            group.count_in(comm)
    if updaters is not None:
        return Updaters(updaters)
    if samplers is None or work.features is None:
        return None
    dtype, id_dtype = result_dtype(loader.options, work.features), loader.data.graph.indices.dtype
    return RemoteRows(work.features, samplers, dtype, id_dtype, servers_of(machines, roles))


def task_bytes(graph: CSCGraph, fanouts: Sequence[int] | None, batch_size: int) -> int:
    """An estimate of a task's bytes in the queue: nodes and edges of a batch whose nodes have the mean degree.

    Args:
      graph: that is sampled.
      fanouts: of the sampler, hop order from the seeds outwards; None: not known.
      batch_size: seeds of a task.
    """
    if fanouts is None:
        return UNKNOWN_TASK_BYTES
    mean_degree = graph.num_edges / max(1, graph.num_nodes)
    nodes, num_bytes = float(batch_size), 8.0 * batch_size
    for fanout in fanouts:
        edges = nodes * (mean_degree if fanout < 0 else min(fanout, mean_degree))
        num_bytes += 8 * nodes + graph.indices.itemsize * edges  # indptr and indices
        nodes = min(nodes + edges, graph.num_nodes)
    return int(num_bytes + graph.indices.itemsize * nodes)


def switching_of(roles: Roles) -> str:
    """When samplers train, too."""
    return BY_PROFIT if roles.switching else NEVER
