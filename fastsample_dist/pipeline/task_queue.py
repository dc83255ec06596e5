"""The queue through which the samplers of a machine hand tasks to its trainers (GNNLab, sections 5.2 and 5.3).

The order of tasks, what may be trained when, and who may take it are decided in csrc/cpu/shared_queue.cpp, under one
lock in memory that all ranks map. Here are the bytes of the tasks, in a second segment of which a task has a piece
while it is between claim and done, and the waits: in slices, so that Ctrl-C, the end of another rank's process, its
failure and a deadline end them.

The deadline counts from the last change that any rank made, so it does not pass while others make progress, however
long this rank has nothing to do.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.processes import Processes
from fastsample_dist.comm.segments import share_growing_segment, share_segments
from fastsample_dist.memory_sizes import format_size
from fastsample_dist.ops.shared_queue import (
    Outcome,
    QueueSegment,
    QueueSlot,
    QueueSpec,
    QueueState,
    SharedQueue,
    SlotState,
)
from fastsample_dist.pipeline.tasks import RolesError

UPDATER = 0  # the rank of a machine that updates
LOCK = "for the lock"
ROOM = "for room in the queue"
R = TypeVar("R")
_ALIGNED = 64  # bytes to which every buffer of a task begins
_COUNT = struct.Struct("<qq")  # bytes of the head, number of buffers; then the bytes of each buffer
_DOES = {SlotState.CLAIMED: ("makes", "made"), SlotState.TAKEN: ("trains", "trained")}


@dataclass(frozen=True, eq=False)
class Taken:
    """A task to train. What it holds is valid until `done`.

    Attributes:
      task: its number in the epoch.
      version: of the parameters to train it at: max(first group of the segment, group - staleness).
      head: as it was put.
      buffers: memoryviews of bytes over the shared memory, as they were put, each at an address that 64 divides.
    """

    task: int
    version: int
    head: bytes
    buffers: list[memoryview]


@dataclass(frozen=True)
class GroupDone:
    """All tasks of a group are done: rank 0 updates the parameters, then calls `advance`.

    Attributes:
      group: its number in the epoch, the current one.
    """

    group: int


class TaskQueue:
    """The queue of a machine. Collective: every rank of the run must make it, with the same spec.

    Ranks 0 .. num_trainers - 1 of each machine are trainers, rank 0 among them updates; the others are samplers.

    Args:
      ctx: of the run.
      machines: ranks by machine, spec.num_ranks on each.
      spec: of the queue of every machine.
      virtual_ranks: of the tasks of a group, for messages; None: 0, 1, ...
      timeout_s: seconds without any change until a wait fails; None: the communicator's.
    Raises:
      ValueError: on all ranks alike: a number out of range, arguments that differ, no memory.
    """

    def __init__(
        self,
        ctx: DistContext,
        machines: Machines,
        spec: QueueSpec,
        *,
        virtual_ranks: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._ctx, self._members, self.spec = ctx, machines.of(ctx.rank), spec
        self._rank, self._is_only = self._members.index(ctx.rank), machines.is_one
        self._virtual_ranks = range(spec.group_size) if virtual_ranks is None else virtual_ranks
        self._timeout_s = ctx.comm.timeout_s if timeout_s is None else timeout_s
        agree_on(ctx.comm, "TaskQueue", vars(spec))
        sizes = agree(ctx, spec.num_bytes)  # a multiple of 64
        is_first = self._rank == UPDATER
        memory = share_segments(ctx, ctx.rank, machines, sizes + 8 if is_first else 0)[self._members[UPDATER]]
        self._memory = memory.tensor(torch.uint8, (sizes,))
        self._wants_stop = memory.tensor(torch.int64, (1,), sizes)  # 1: a rank of this machine has asked for it
        self._arena = share_growing_segment(ctx, ctx.rank, machines, spec.arena_bytes)
        self._bytes = self._arena.tensor(torch.uint8, (spec.arena_bytes,)).numpy()
        numbers = [ctx.comm.run_ranks[member] for member in self._members]
        agree(ctx, lambda: spec.make(self._memory, numbers) if is_first else None)
        self._is_running = self._stops_next = False
        self._room_ns = 0  # when there was room for a task last
        self._queue = SharedQueue(self.spec, self._memory, self._rank)
        pids = ctx.comm.all_gather_object(os.getpid(), purpose="setup")
        others = {rank: pids[member] for rank, member in enumerate(self._members) if rank != self._rank}
        self._processes = Processes(others)

    @property
    def rank(self) -> int:
        """This one, among those of its machine."""
        return self._rank

    def begin(
        self, first_task: int, num_tasks: int, *, epoch: int, first_step: int = 0, ends_epoch: bool = True
    ) -> None:
        """Begin a segment of an epoch. Collective: every rank must call this, when `wait_end` has returned.

        Args:
          first_task, num_tasks: the tasks, whole groups; 0 tasks end at once.
          epoch, first_step: of the first task, for messages.
          ends_epoch: no task of the epoch comes after this segment; only then do samplers switch by profit.
        Raises:
          ValueError: on all ranks: not whole groups, or tasks of the segment before are under way.
        """
        segment = QueueSegment(epoch, first_task, num_tasks, first_step, int(ends_epoch))
        stops, self._stops_next = self._stops_next, False
        stops = any(self._ctx.comm.all_gather_object(stops, purpose="setup"))

        def begin_once() -> None:
            if self._rank == UPDATER:
                self._wants_stop.zero_()
                self._until(lambda: self._queue.begin(segment), "to begin")
                if stops:
                    self._until(self._queue.stop, "to stop")

        agree(self._ctx, begin_once)
        self._is_running, self._room_ns = True, time.monotonic_ns()
        if self._stops_next:  # asked for by another thread meanwhile
            self._stops_next = False
            self.request_stop()

    # ---- samplers ----

    def claim(self) -> int | None:
        """The next task to make; None: all tasks of the segment are claimed, or a stop was asked for."""
        self._look_for_ended()
        outcome, claimed = self._until(self._queue.claim, ROOM)
        return None if outcome is Outcome.ENDED else claimed.task

    def claim_now(self) -> tuple[int | None, bool]:
        """(the next task to make, whether none will come); None too where there has been no room for a slice.

        For samplers that wait for each other: none of them may wait for what the others' tasks will bring.
        """
        self._look_for_ended()
        outcome, claimed = self._queue.claim()
        if outcome is Outcome.WAITED:
            self._look_around(ROOM, self._room_ns)
            return None, False
        self._raise_failure(outcome)
        self._room_ns = time.monotonic_ns()
        return (None, True) if outcome is Outcome.ENDED else (claimed.task, False)

    def put(self, task: int, head: bytes, buffers: Sequence[memoryview]) -> bool:
        """Hand over a claimed task; its bytes are copied.

        Args:
          task: that this rank has claimed.
          head: any bytes.
          buffers: one-dimensional memoryviews of bytes.
        Returns:
          Whether it is still wanted: False after a stop, and then it is dropped.
        Raises:
          ValueError: not claimed by this rank; larger than most_bytes; no memory.
        """
        sizes = [len(buffer) for buffer in buffers]
        opening = _COUNT.pack(len(head), len(sizes)) + struct.pack(f"<{len(sizes)}q", *sizes) + head
        starts, num_bytes = _places(len(opening), sizes)
        if num_bytes > self.spec.most_bytes:
            raise ValueError(
                f"{self.describe(task)} takes {format_size(num_bytes)}, but all tasks in the queue may take "
                f"{format_size(self.spec.most_bytes)}; pass a larger queue_bytes, or smaller batches."
            )
        outcome, offset, unused_from = self._until(
            lambda: self._queue.room(task, num_bytes), "for room in the queue for a task larger than those before"
        )
        if outcome is Outcome.ENDED:
            return False
        if offset + num_bytes > unused_from:
            self._arena.take(unused_from, offset + num_bytes - unused_from)
        for place, piece in zip([0, *starts], [opening, *buffers], strict=True):
            self._bytes[offset + place : offset + place + len(piece)] = np.frombuffer(piece, np.uint8)
        return self._until(lambda: self._queue.put(task), LOCK) is Outcome.DID

    def take_as_standby(self, standby_s: float | None = None, *, waits: bool = True) -> Taken | None:
        """A task for a sampler to train, where that pays (see csrc/include/fastsample_queue.h).

        Args:
          standby_s: seconds that this rank needs for a task; None: what it needed before, or what the trainers need.
          waits: until there is one; False: None where there is none now.
        Returns:
          The task; None: every task of the segment is taken, or samplers never switch.
        """
        known_s = -1.0 if standby_s is None else standby_s
        if not waits:
            outcome, slot, _ = self._queue.take_standby(known_s, 0.0)
            self._raise_failure(outcome)
        else:
            outcome, slot, _ = self._until(lambda: self._queue.take_standby(known_s), "for a task that pays")
        return self._open(slot) if outcome is Outcome.DID else None

    # ---- trainers ----

    def take(self) -> Taken | GroupDone | None:
        """The made task of the lowest number whose group may be trained; None: all tasks of the segment are taken.

        On rank 0, before any task: a group whose tasks are all done, until `advance`; None once all are updated.
        """
        outcome, slot = self._until(self._queue.take, "for a task to train")
        if outcome is Outcome.UPDATE:
            return GroupDone(self._until(self._queue.state, LOCK)[1].current_group)
        return None if outcome is Outcome.ENDED else self._open(slot)

    def done(self, task: int, train_s: float | None = None) -> None:
        """A task that this rank has taken is trained, and its memory is free.

        Args:
          train_s: what it took, for the profit of standby trainers; None: the time since it was taken, or since the
            task before was done if that is less.
        """
        self._until(lambda: self._queue.done(task, -1.0 if train_s is None else train_s), LOCK)

    def advance(self, group: int) -> None:
        """The group of `GroupDone` is updated: version group + 1 of the parameters is there. Rank 0 calls this."""
        self._until(lambda: self._queue.advance(group), LOCK)

    # ---- all ranks ----

    def wait_end(self) -> int:
        """Return the first group that was not done, once all of the segment are updated; the same on all ranks."""
        group = self._until(self._queue.wait_end, "for the end of the segment")[1]
        self._is_running = False
        return group

    def request_stop(self) -> None:
        """End the segment after the last group of which a task is trained or done. Any rank, any thread.

        Between `wait_end` and `begin` it is the next segment that ends, before its first task. Queues of several
        machines end after the same group: see `stop_is_wanted`.
        """
        if not self._is_running:
            self._stops_next = True
        elif self._is_only:
            self._until(self._queue.stop, LOCK)
        else:
            self._wants_stop.fill_(1)

    @property
    def stop_is_wanted(self) -> bool:
        """Whether a rank of this machine has asked for a stop that the machines are to agree on."""
        return bool(self._wants_stop)

    def end_after(self, group: int) -> None:
        """End the segment after this group, of whose followers no task is trained or done. Rank 0 calls this."""
        self._until(lambda: self._queue.end_after(group), LOCK)

    def fail(self, message: str) -> None:
        """The run has failed on this rank: the others raise this line. Only the first one is kept."""
        self._queue.fail(message)

    @property
    def failure(self) -> str | None:
        """Why the run has failed; None: it has not."""
        return self._queue.failure()[1] or None

    @property
    def tasks_done(self) -> int:
        """Tasks of the segment that are done."""
        return self._until(self._queue.state, LOCK)[1].num_done

    def describe(self, task: int) -> str:
        """ "task (epoch 1, virtual rank 0, step 37)"."""
        segment = self._queue.state()[1].segment
        group, virtual_rank = divmod(task, self.spec.group_size)
        virtual_rank = self._virtual_ranks[virtual_rank]
        return f"task (epoch {segment.epoch}, virtual rank {virtual_rank}, step {self._step_of(group, segment)})"

    def state(self) -> str:
        """Who holds what, one line."""
        holder = self._queue.holder()
        outcome, counters, slots = self._queue.slots()
        if outcome is Outcome.WAITED:
            return f"{self._name(holder)} holds the queue's lock" if holder >= 0 else "the queue's lock is held"
        now_ns = time.monotonic_ns()
        held = [
            f"{self._name(slot.rank)} {_DOES[slot.state][0]} {self.describe(slot.task)} since "
            f"{(now_ns - slot.since_ns) / 1e9:.1f} s"
            for slot in sorted(slots, key=lambda slot: slot.task)
            if slot.state in _DOES
        ]
        if self._is_to_update(counters, slots):
            held.append(f"{self._name(UPDATER)} is to update the parameters")
        ready = sum(slot.state == SlotState.READY for slot in slots)
        counts = f"{ready} tasks are made and not taken, {counters.num_done} are done"
        return "; ".join([*held, f"{counts}, group {counters.current_group} is next"])

    def who_ended(self, within_s: float = 0.0) -> str:
        """Which other rank has ended, in which role and at what, in one line; "" where all are there.

        Args:
          within_s: a rank whose connections broke just now is given so long to end.
        """
        until_s = time.monotonic() + within_s
        while not (ended := self._processes.ended()) and time.monotonic() < until_s:
            time.sleep(0.01)
        return f"{self._name(ended[0])} ended while it {self._was_doing(ended[0])}" if ended else ""

    def close(self) -> None:
        """Watch the other ranks no longer. The memory goes with the last tensor over it."""
        self._processes.close()

    # ---- waits ----

    def _until(self, call: Callable[[], R], what: str) -> R:
        """Repeat a call until it has not merely waited; its first entry, or itself, is the outcome."""
        start_ns = time.monotonic_ns()
        while True:
            found = call()
            outcome = found[0] if isinstance(found, tuple) else found
            if outcome is not Outcome.WAITED:
                self._raise_failure(outcome)
                return found
            self._look_around(what, start_ns)

    def _raise_failure(self, outcome: Outcome) -> None:
        if outcome is Outcome.FAILED:
            raise RolesError(self._until(self._queue.failure, LOCK)[1])

    def _look_for_ended(self) -> None:
        """Raise if another rank has ended. Who has room for all that it makes never waits, so it looks now and then."""
        if ended := self.who_ended():
            self._fail_first(ended)

    def _look_around(self, what: str, start_ns: int) -> None:
        """Raise if another rank has ended, or nothing has changed for too long."""
        self._look_for_ended()
        outcome, state = self._queue.state()
        changed_ns = start_ns if outcome is Outcome.WAITED else max(start_ns, state.changed_ns)
        waited_s = (time.monotonic_ns() - changed_ns) / 1e9
        if waited_s >= self._timeout_s:
            waits = f"{self._name(self._rank)} has waited {what}"
            self._fail_first(f"{waits} and nothing has changed for {waited_s:.1f} s: {self.state()}")

    def _fail_first(self, line: str) -> None:
        """Raise the first failure of all ranks, which may be this one."""
        self.fail(line)
        raise RolesError(self.failure or line)

    def _was_doing(self, rank: int) -> str:
        _, counters, slots = self._queue.slots()
        held = sorted((slot for slot in slots if slot.rank == rank and slot.state in _DOES), key=lambda slot: slot.task)
        if not held and rank == UPDATER and self._is_to_update(counters, slots):
            segment = counters.segment
            return (
                f"updated the parameters (epoch {segment.epoch}, step {self._step_of(counters.current_group, segment)})"
            )
        if not held:
            return "held no task"
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        return f"{_DOES[held[0].state][1]} {self.describe(held[0].task)}{more}"

    def _is_to_update(self, counters: QueueState, slots: Sequence[QueueSlot]) -> bool:
        """Whether all tasks of the current group are done."""
        first = counters.current_group * self.spec.group_size
        tasks = range(first, first + self.spec.group_size)
        is_claimed = tasks.stop <= min(counters.next_task, counters.end_task)
        return is_claimed and not any(slot.task in tasks for slot in slots)

    def _step_of(self, group: int, segment: QueueSegment) -> int:
        return segment.first_step + group - segment.first_task // self.spec.group_size

    def _name(self, rank: int) -> str:
        role = "trainer" if rank < self.spec.num_trainers else "sampler"
        return f"rank {self._ctx.comm.run_ranks[self._members[rank]]} ({role})"

    def _open(self, slot: QueueSlot) -> Taken:
        view = memoryview(self._bytes[slot.offset : slot.offset + slot.bytes])
        head_bytes, count = _COUNT.unpack_from(view)
        sizes = struct.unpack_from(f"<{count}q", view, _COUNT.size)
        head_from = _COUNT.size + 8 * count
        starts, _ = _places(head_from + head_bytes, sizes)
        buffers = [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        return Taken(slot.task, slot.version, bytes(view[head_from : head_from + head_bytes]), buffers)


def _places(opening_bytes: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """(where each buffer begins, bytes of all)"""
    starts, end = [], opening_bytes
    for size in sizes:
        starts.append(-(-end // _ALIGNED) * _ALIGNED)
        end = starts[-1] + size
    return starts, end
