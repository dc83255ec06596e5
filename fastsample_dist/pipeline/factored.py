"""Ranks in their roles: samplers make tasks, trainers complete and train them (GNNLab, sections 4 and 5).

    sampler   claim a task -> sample -> its bytes into the queue; when all of an epoch are made, train where that pays
    trainer   take a task -> fetch features, look up labels, transform -> train -> done; rank 0 updates between tasks

Ranks 0 .. trainers - 1 train, the others sample. A task's seeds, step and sample are those of its virtual rank
(tasks.py), so a batch is the same whoever makes and trains it. Order, waiting and deadlines are the queue's
(task_queue.py). A rank that fails leaves one line there, which the others raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.context import DistContext
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles
from fastsample_dist.pipeline.seed_order import SeedOrder
from fastsample_dist.pipeline.stages import Stage, run_stages
from fastsample_dist.pipeline.task_batch import pack, unpack
from fastsample_dist.pipeline.task_queue import GroupDone, Taken, TaskQueue
from fastsample_dist.pipeline.tasks import RolesError, Task
from fastsample_dist.pipeline.transport import Transport
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
      order: seeds of all virtual ranks.
      sampling: by virtual rank, the stages that make a batch without features.
      completing: the stages that complete it.
      comm: of the stages.
      tables: of the graph, which batches refer to.
    """

    order: SeedOrder
    sampling: Sequence[Sequence[Stage]]
    completing: Sequence[Stage]
    comm: Communicator
    tables: tuple[Tensor, ...]

    def task(self, epoch: int, number: int) -> Task:
        """The task of a number in an epoch."""
        group, virtual_rank = divmod(number, len(self.sampling))
        return Task(number, group, virtual_rank, epoch, self.order.plan(epoch).first_step + group)

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
      hand_over_s: seconds of copying sampled tasks into the queue.
    """

    sampled: int = 0
    trained: int = 0
    stood_by: int = 0
    sample_s: float = 0.0
    hand_over_s: float = 0.0


class FactoredExecutor:
    """Runs the tasks of a loader on the ranks of one machine; see tasks.Executor.

    Args:
      work: how tasks are made.
      queue: of the machine, made for these roles.
      rank: this one.
      roles: of the ranks.
      begin_epoch: called on all ranks when an epoch begins, with its number.
    Attributes:
      roles, staleness, num_virtual_ranks, is_updater: see tasks.Executor.
      tally: what this rank has done of the epoch.
    """

    def __init__(
        self, work: TaskWork, queue: TaskQueue, rank: int, roles: Roles, begin_epoch: Callable[[int], None]
    ) -> None:
        self.roles, self.staleness, self.num_virtual_ranks = roles, queue.spec.staleness, len(work.sampling)
        self.is_updater, self.tally = rank == 0, RoleTally()
        self._work, self._queue, self._begin_epoch = work, queue, begin_epoch
        self._is_sampler, self._comm = roles.is_sampler(rank), work.comm
        self._task: Task | None = None  # that this rank has in hand

    def run(self, epoch: int, first_group: int, num_groups: int, train: Train, update: Update) -> int:
        """See tasks.Executor. Collective: every rank must call this."""
        plan, size = self._work.order.plan(epoch), self.num_virtual_ranks
        if first_group == 0:
            self.tally = RoleTally()
            self._begin_epoch(epoch)
        self._queue.begin(
            first_group * size, num_groups * size, epoch=epoch, first_step=plan.first_step + first_group,
            ends_epoch=first_group + num_groups == plan.num_steps,
        )  # fmt: skip
        with self._failing_together():
            if self._is_sampler:
                self._sample_all(epoch, train)
            else:
                self._train_all(epoch, train, update)
            return self._queue.wait_end()

    def request_stop(self) -> None:
        """See tasks.Executor."""
        self._queue.request_stop()

    def who_ended(self, within_s: float = 0.0) -> str:
        """See tasks.Executor."""
        return self._queue.who_ended(within_s)

    def close(self) -> None:
        """Watch the other ranks no longer."""
        self._queue.close()

    def _sample_all(self, epoch: int, train: Train) -> None:
        queue, work = self._queue, self._work
        while (number := queue.claim()) is not None:
            task = self._task = work.task(epoch, number)
            batch = work.sample(task)
            begin = batch.sampling.clock.mark()
            with self._comm.watch.span("hand over", task.step):
                queue.put(number, *pack(batch, work.tables))
            self._task = None
            self.tally.sampled += 1
            self.tally.sample_s += batch.sample_s
            self.tally.hand_over_s += batch.sampling.clock.seconds(begin, batch.sampling.clock.mark())
            if queue.spec.switching == ALWAYS:
                self._stand_by(epoch, queue.take_as_standby(waits=False), train)
        while (taken := queue.take_as_standby(self._known_standby_s)) is not None:
            self._stand_by(epoch, taken, train)

    def _train_all(self, epoch: int, train: Train, update: Update) -> None:
        while (taken := self._queue.take()) is not None:
            if isinstance(taken, GroupDone):
                update(taken.group)
                self._queue.advance(taken.group)
            else:
                self._train(epoch, taken, train)

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
        except RolesError:
            raise
        except BaseException as error:
            self._queue.fail(self._line(error))
            raise
        finally:
            self._comm.step = -1  # collectives from here on are of no step

    def _line(self, error: BaseException) -> str:
        """Which rank failed, at what and why."""
        name = f"rank {self._comm.run_rank} ({'sampler' if self._is_sampler else 'trainer'})"
        if isinstance(error, KeyboardInterrupt):
            return f"{name} was interrupted"
        at = "" if self._task is None else f" at {self._queue.describe(self._task.number)}"
        return f"{name} failed{at}: {type(error).__name__}: {error}"


def check_one_machine(roles: Roles | str, sharing: Transport, world_size: int) -> None:
    """Refuse roles of ranks that do not read everything in place.

    Args:
      roles: of the ranks.
      sharing: how rows of other ranks come to a rank.
      world_size: of the run.
    Raises:
      ValueError: samplers and trainers do not add up to it; what keeps ranks apart.
    """
    if isinstance(roles, Roles):
        roles.check(world_size)
    if not sharing.reads_all:
        why = sharing.reason or f"transport is {sharing.name!r}"
        raise ValueError(
            f"roles are {roles}, but not all ranks read each other's memory ({why}); start all ranks on one machine "
            f"with transport='auto', or pass roles={ROLES_NONE!r}."
        )


def auto_roles(sharing: Transport, ctx: DistContext) -> str | None:
    """ROLES_AUTO where there is a choice; else None, and rank 0 logs why."""
    try:
        if ctx.world_size == 1:
            raise ValueError("there is one rank.")
        check_one_machine(ROLES_AUTO, sharing, ctx.world_size)
    except ValueError as reason:
        if ctx.rank == 0:
            logger.warning("roles 'auto' are none: %s", reason)
        return None
    return ROLES_AUTO


def make_executor(loader: BatchLoader, work: TaskWork, roles: Roles) -> FactoredExecutor:
    """What runs the tasks of a loader. Collective: every rank must call this. Purpose "setup".

    Args:
      loader: whose ranks share one machine.
      work: how its tasks are made.
      roles: of the ranks.
    Raises:
      ValueError: on all ranks: there is not enough memory.
    """
    options, data, size = loader.options, loader.data, len(work.sampling)
    fanouts = None if options.neighbour_spec is None else options.neighbour_spec.fanouts
    queue = TaskQueue(
        data.ctx, loader.sharing.machines, num_trainers=roles.trainers,
        capacity=min(size * len(loader), MOST_PLACES), group_size=size, staleness=options.staleness,
        block_bytes=min(task_bytes(data.graph, fanouts, options.batch_size), roles.queue_bytes),
        most_bytes=roles.queue_bytes, switching=switching_of(roles),
    )  # fmt: skip
    return FactoredExecutor(work, queue, data.ctx.rank, roles, loader.begin_epoch)


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
