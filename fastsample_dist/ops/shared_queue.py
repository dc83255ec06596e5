"""shared_queue: a bounded queue of tasks in memory that the ranks of one machine share, by the compiled core.

csrc/include/fastsample_queue.h says what it does. A call waits at most a slice, so that the caller sees signals and the
ends of other processes; it may be made by any thread. `fastsample_dist.pipeline.task_queue` makes the waits of it.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_void_p
from dataclasses import asdict, dataclass

from torch import Tensor

from fastsample_dist.ops import checks, library

SLICE_S = 0.05  # longest wait of a call
SWITCHING = {"never": 0, "profit": 1, "always": 2}
FAILURE_BYTES = 512


class Outcome(enum.IntEnum):
    """FsQueueOutcome: what a call has come to."""

    DID = 0
    WAITED = 1
    ENDED = 2
    FAILED = 3
    UPDATE = 4


class SlotState(enum.IntEnum):
    """FsSlotState."""

    FREE = 0
    CLAIMED = 1
    READY = 2
    TAKEN = 3


library.DECLARED.values(
    FS_SWITCH_NEVER=SWITCHING["never"], FS_SWITCH_BY_PROFIT=SWITCHING["profit"], FS_SWITCH_ALWAYS=SWITCHING["always"],
    **{f"FS_QUEUE_{outcome.name}": outcome.value for outcome in Outcome},
    **{f"FS_SLOT_{state.name}": state.value for state in SlotState},
)  # fmt: skip


@library.DECLARED.mirror("FsQueueSpec")
class _SpecArguments(Structure):
    """FsQueueSpec."""

    _fields_ = (
        ("capacity", c_int64),
        ("group_size", c_int64),
        ("staleness", c_int64),
        ("most_bytes", c_int64),
        ("arena_bytes", c_int64),
        ("task_bytes", c_int64),
        ("num_ranks", c_int32),
        ("num_trainers", c_int32),
        ("switching", c_int32),
    )


@library.DECLARED.mirror("FsQueueSlot")
class QueueSlot(Structure):
    """FsQueueSlot: task, version, offset, bytes, since_ns, state, rank and pid, as in fastsample_queue.h."""

    _fields_ = (
        ("task", c_int64),
        ("version", c_int64),
        ("offset", c_int64),
        ("bytes", c_int64),
        ("since_ns", c_int64),
        ("state", c_int32),
        ("rank", c_int32),
        ("pid", c_int32),
    )


@library.DECLARED.mirror("FsQueueSegment")
class QueueSegment(Structure):
    """FsQueueSegment: epoch, first_task, num_tasks, first_step, ends_epoch."""

    _fields_ = (
        ("epoch", c_int64),
        ("first_task", c_int64),
        ("num_tasks", c_int64),
        ("first_step", c_int64),
        ("ends_epoch", c_int32),
    )


@library.DECLARED.mirror("FsQueueState")
class QueueState(Structure):
    """FsQueueState, as in fastsample_queue.h."""

    _fields_ = (
        ("segment", QueueSegment),
        ("next_task", c_int64),
        ("end_task", c_int64),
        ("current_group", c_int64),
        ("num_taken", c_int64),
        ("num_done", c_int64),
        ("bytes_in_use", c_int64),
        ("task_bytes", c_int64),
        ("changed_ns", c_int64),
        ("num_slots", c_int64),
        ("stopped", c_int32),
    )


@library.DECLARED.mirror("FsQueueCall")
class _Call(Structure):
    """FsQueueCall."""

    _fields_ = (("queue", c_void_p), ("slice_s", c_double), ("rank", c_int32), ("outcome", c_int32))


_CALL, _SPEC, _SLOT, _NUMBER = POINTER(_Call), POINTER(_SpecArguments), POINTER(QueueSlot), POINTER(c_int64)
library.DECLARED.functions(
    fs_queue_bytes=(_SPEC, _NUMBER),
    fs_queue_make=(_SPEC, c_void_p),
    fs_queue_number_ranks=(c_void_p, _NUMBER),
    fs_queue_begin=(_CALL, POINTER(QueueSegment)),
    fs_queue_claim=(_CALL, _SLOT),
    fs_queue_room=(_CALL, c_int64, c_int64, _NUMBER, _NUMBER),
    fs_queue_put=(_CALL, c_int64),
    fs_queue_take=(_CALL, _SLOT),
    fs_queue_take_standby=(_CALL, c_double, _SLOT, POINTER(c_double)),
    fs_queue_done=(_CALL, c_int64, c_double),
    fs_queue_advance=(_CALL, c_int64),
    fs_queue_wait_end=(_CALL, _NUMBER),
    fs_queue_stop=(_CALL,),
    fs_queue_end_after=(_CALL, c_int64),
    fs_queue_fail=(_CALL, c_char_p),
    fs_queue_failure=(_CALL, c_char_p, c_int64),
    fs_queue_state=(_CALL, POINTER(QueueState), c_void_p),
    fs_queue_holder=(c_void_p, POINTER(c_int32)),
)


@dataclass(frozen=True, kw_only=True)
class QueueSpec:
    """Sizes and rules of a queue.

    Attributes:
      capacity: tasks between claim and done, at least 1; all tasks of an epoch let samplers finish early.
      group_size: tasks of a group, at least 1: one per virtual rank.
      task_bytes: estimate of the largest task, at least 1; the queue learns the largest as it comes.
      num_ranks: that use the queue.
      num_trainers: ranks 0 .. num_trainers - 1 are trainers, the others samplers.
      staleness: groups beyond the current one that may be trained.
      most_bytes: of all tasks between claim and done, at least 4096. A claim waits for room. Where a task is larger
        than all before and than the estimate, the sum may exceed it until that task is done.
      arena_bytes: where such tasks may lie as well; at least most_bytes. None: room for one of every rank.
      switching: when a sampler may take a task: "never"; by "profit"; "always", which tests take to see switching at
        every step.
    """

    capacity: int
    group_size: int
    task_bytes: int
    num_ranks: int
    num_trainers: int
    staleness: int = 0
    most_bytes: int = 1 << 30
    arena_bytes: int | None = None
    switching: str = "profit"

    def __post_init__(self) -> None:
        if self.arena_bytes is None:
            object.__setattr__(self, "arena_bytes", (1 + self.num_ranks) * self.most_bytes)

    def num_bytes(self) -> int:
        """Bytes of memory that such a queue takes.

        Raises:
          ValueError: a number out of range.
        """
        found = c_int64()
        library.call(library.core().fs_queue_bytes, byref(self._arguments()), byref(found))
        return found.value

    def make(self, memory: Tensor, numbers: Sequence[int]) -> None:
        """Make a queue in zeroed memory, once for all processes that map it.

        Args:
          memory: uint8 [num_bytes()].
          numbers: by which messages name the ranks, [num_ranks].
        """
        core, address = library.core(), memory.data_ptr()
        library.call(core.fs_queue_make, byref(self._arguments()), address)
        library.call(core.fs_queue_number_ranks, address, (c_int64 * self.num_ranks)(*numbers))

    def _arguments(self) -> _SpecArguments:
        checks.require(
            self.switching in SWITCHING, f"switching is {self.switching!r}; expected {', '.join(SWITCHING)}."
        )
        return _SpecArguments(**asdict(self) | {"switching": SWITCHING[self.switching]})


class SharedQueue:
    """One rank's calls of a queue. Methods are those of fastsample_queue.h and return their outcome first.

    Args:
      spec: with which the queue was made.
      memory: uint8 [spec.num_bytes()]; where.
      rank: that calls.
    Raises of all methods:
      ValueError: a call that is refused: a task that this rank does not hold, a group that is not the current one.
    """

    def __init__(self, spec: QueueSpec, memory: Tensor, rank: int) -> None:
        self.spec, self.rank, self._memory, self._core = spec, rank, memory, library.core()
        self._address = memory.data_ptr()

    def begin(self, segment: QueueSegment, slice_s: float = SLICE_S) -> Outcome:
        """Begin a segment; refused while tasks of the one before are under way."""
        return self._do(self._core.fs_queue_begin, slice_s, byref(segment))

    def claim(self, slice_s: float = SLICE_S) -> tuple[Outcome, QueueSlot]:
        """The next task to make. ENDED: none will come."""
        claimed = QueueSlot()
        return self._do(self._core.fs_queue_claim, slice_s, byref(claimed)), claimed

    def room(self, task: int, num_bytes: int, slice_s: float = SLICE_S) -> tuple[Outcome, int, int]:
        """(outcome, offset in the arena, where memory begins that no task has had). ENDED: it is not wanted."""
        offset, unused_from = c_int64(), c_int64()
        outcome = self._do(self._core.fs_queue_room, slice_s, task, num_bytes, byref(offset), byref(unused_from))
        return outcome, offset.value, unused_from.value

    def put(self, task: int, slice_s: float = SLICE_S) -> Outcome:
        """A claimed task is made. ENDED: it is not wanted any more."""
        return self._do(self._core.fs_queue_put, slice_s, task)

    def take(self, slice_s: float = SLICE_S) -> tuple[Outcome, QueueSlot]:
        """The made task of the lowest number that may be trained. ENDED: none will come. UPDATE: to rank 0."""
        taken = QueueSlot()
        return self._do(self._core.fs_queue_take, slice_s, byref(taken)), taken

    def take_standby(self, standby_s: float, slice_s: float = SLICE_S) -> tuple[Outcome, QueueSlot, float]:
        """The same for a sampler that needs `standby_s` a task (< 0: not known), where it pays; last, the profit."""
        taken, profit = QueueSlot(), c_double()
        outcome = self._do(self._core.fs_queue_take_standby, slice_s, standby_s, byref(taken), byref(profit))
        return outcome, taken, profit.value

    def done(self, task: int, train_s: float = -1.0, slice_s: float = SLICE_S) -> Outcome:
        """A task that this rank has taken is trained; train_s < 0: measured here."""
        return self._do(self._core.fs_queue_done, slice_s, task, train_s)

    def advance(self, group: int, slice_s: float = SLICE_S) -> Outcome:
        """The current group is updated."""
        return self._do(self._core.fs_queue_advance, slice_s, group)

    def wait_end(self, slice_s: float = SLICE_S) -> tuple[Outcome, int]:
        """Until every group of the segment is updated; the first group that was not done."""
        group = c_int64()
        return self._do(self._core.fs_queue_wait_end, slice_s, byref(group)), group.value

    def stop(self, slice_s: float = SLICE_S) -> Outcome:
        """End the segment after the last group of which a task is trained or done."""
        return self._do(self._core.fs_queue_stop, slice_s)

    def end_after(self, group: int, slice_s: float = SLICE_S) -> Outcome:
        """End the segment after this group; refused where a task of a later one is trained or done."""
        return self._do(self._core.fs_queue_end_after, slice_s, group)

    def fail(self, line: str, slice_s: float = SLICE_S) -> Outcome:
        """The run has failed; only the first line is kept."""
        return self._do(self._core.fs_queue_fail, slice_s, line.encode())

    def failure(self, slice_s: float = SLICE_S) -> tuple[Outcome, str]:
        """The line of the failure, "" for none."""
        line = ctypes.create_string_buffer(FAILURE_BYTES)
        return self._do(self._core.fs_queue_failure, slice_s, line, FAILURE_BYTES), line.value.decode(errors="replace")

    def state(self, slice_s: float = SLICE_S) -> tuple[Outcome, QueueState]:
        """The queue's counters."""
        state = QueueState()
        return self._do(self._core.fs_queue_state, slice_s, byref(state), None), state

    def slots(self, slice_s: float = SLICE_S) -> tuple[Outcome, QueueState, Sequence[QueueSlot]]:
        """The queue's counters and the slots in use, in no order."""
        state, slots = QueueState(), (QueueSlot * self.spec.capacity)()
        outcome = self._do(self._core.fs_queue_state, slice_s, byref(state), slots)
        return outcome, state, slots[: state.num_slots]

    def holder(self) -> int:
        """The rank that has the lock, -1: nobody, or unknown. Never waits."""
        rank = c_int32()
        library.call(self._core.fs_queue_holder, self._address, byref(rank))
        return rank.value

    def _do(self, function: object, slice_s: float, *arguments: object) -> Outcome:
        call = _Call(self._address, slice_s, self.rank, 0)
        library.call(function, byref(call), *arguments)
        return Outcome(call.outcome)
