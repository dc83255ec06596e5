"""The queue of tasks by its definition (csrc/include/fastsample_queue.h): no lock, no waits, lists and dictionaries.

Calls return (outcome, what else the call returns); an outcome is the name of an FsQueueOutcome in small letters, and
None is a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 4096
KEPT_TIMES = 9


@dataclass
class QueuedTask:
    """A task between claim and done.

    Attributes:
      state: "claimed", "ready" or "taken".
      rank: that made it, or trains it.
      offset, bytes: its piece of the arena, whole pages.
    """

    state: str
    rank: int
    offset: int
    bytes: int


@dataclass
class Queue:
    """A queue and the segment under way. Sizes as in `QueueSpec`."""

    capacity: int
    group_size: int
    staleness: int
    most_bytes: int
    arena_bytes: int
    task_bytes: int
    num_trainers: int
    switching: str
    tasks: dict[int, QueuedTask] = field(default_factory=dict)
    first: int = 0
    end: int = 0
    next: int = 0
    current: int = 0
    used_bytes: int = 0
    ends_epoch: bool = False
    stopped: bool = False
    done_tasks: set[int] = field(default_factory=set)
    made_tasks: set[int] = field(default_factory=set)
    times: dict[int, list[float]] = field(default_factory=dict)

    def begin(self, first: int, count: int, ends_epoch: bool) -> str | None:
        """As fs_queue_begin."""
        if self.tasks or first % self.group_size or count % self.group_size:
            return None
        self.first = self.next = first
        self.end = first + count
        self.current = first // self.group_size
        self.ends_epoch, self.stopped = ends_epoch, False
        self.done_tasks, self.made_tasks = set(), set()
        return "did"

    def claim(self, rank: int) -> tuple[str, tuple[int, int, int]] | tuple[str, None]:
        """As fs_queue_claim: (task, version, offset)."""
        if self.next >= self.end:
            return "ended", None
        most = self.most_bytes // PAGE * PAGE
        num_bytes = min(_pages(self.task_bytes), most)
        offset = self._gap(num_bytes, most)
        if self.next - self.capacity in self.tasks or offset is None:
            return "waited", None
        task = self.next
        self.next += 1
        self.tasks[task] = QueuedTask("claimed", rank, offset, num_bytes)
        return "did", (task, max(self.first // self.group_size, task // self.group_size - self.staleness), offset)

    def room(self, rank: int, task: int, num_bytes: int) -> tuple[str, tuple[int, int] | None] | None:
        """As fs_queue_room: (offset, unused_from)."""
        if not self._holds(rank, task, "claimed"):
            return None
        if task >= self.end:
            del self.tasks[task]
            return "ended", None
        if not 1 <= num_bytes <= self.most_bytes:
            return None
        self.task_bytes = max(self.task_bytes, num_bytes)
        piece = self.tasks[task]
        piece.bytes = 0
        offset = self._gap(_pages(num_bytes), self.arena_bytes)
        if offset is None:
            return "waited", None
        piece.offset, piece.bytes = offset, _pages(num_bytes)
        unused_from = max(self.used_bytes, offset)
        self.used_bytes = max(self.used_bytes, offset + piece.bytes)
        return "did", (offset, unused_from)

    def put(self, rank: int, task: int) -> str | None:
        """As fs_queue_put."""
        if not self._holds(rank, task, "claimed"):
            return None
        if task >= self.end:
            del self.tasks[task]
            return "ended"
        self.tasks[task].state = "ready"
        self.made_tasks.add(task)
        return "did"

    def take(self, rank: int) -> tuple[str, int | None]:
        """As fs_queue_take: the task."""
        over = self.current * self.group_size >= self.end
        if rank == 0 and self._group_is_done():
            return "update", None
        if over if rank == 0 else self._all_are_taken():
            return "ended", None
        return self._take(rank)

    def take_standby(self, rank: int, standby_s: float) -> tuple[str, int | None, float]:
        """As fs_queue_take_standby: the task and the profit."""
        if self.switching == "never" or self._all_are_taken():
            return "ended", None, 0.0
        if self.switching == "always":
            return *self._take(rank), 0.0
        if not self.ends_epoch or self.stopped or self.made_tasks != set(range(self.first, self.end)):
            return "waited", None, 0.0
        profit = self._profit(rank, standby_s)
        return (*self._take(rank), profit) if profit > 0 else ("waited", None, profit)

    def done(self, rank: int, task: int, train_s: float) -> str | None:
        """As fs_queue_done."""
        if not self._holds(rank, task, "taken"):
            return None
        del self.tasks[task]
        self.done_tasks.add(task)
        self.times.setdefault(rank, []).append(train_s)
        return "did"

    def advance(self, group: int) -> str | None:
        """As fs_queue_advance."""
        if group != self.current or not self._group_is_done():
            return None
        self.current += 1
        return "did"

    def wait_end(self) -> tuple[str, int | None]:
        """As fs_queue_wait_end: the first group that was not done."""
        return ("did", self.current) if self.current * self.group_size >= self.end else ("waited", None)

    def stop(self) -> str:
        """As fs_queue_stop."""
        return self._end_at(self._begun_groups())

    def end_after(self, group: int) -> str | None:
        """As fs_queue_end_after."""
        return None if group + 1 < self._begun_groups() else self._end_at(group + 1)

    def _begun_groups(self) -> int:
        """Groups below it have a task that is trained or done."""
        begun = self.done_tasks | {task for task, piece in self.tasks.items() if piece.state == "taken"}
        return max([task // self.group_size + 1 for task in begun], default=self.first // self.group_size)

    def _end_at(self, group: int) -> str:
        if not self.stopped:
            self.end = min(self.end, group * self.group_size)
            self.tasks = {
                task: piece for task, piece in self.tasks.items() if task < self.end or piece.state != "ready"
            }
        self.stopped = True
        return "did"

    def _holds(self, rank: int, task: int, state: str) -> bool:
        return task in self.tasks and (self.tasks[task].state, self.tasks[task].rank) == (state, rank)

    def _gap(self, num_bytes: int, limit: int) -> int | None:
        """The lowest offset from which `num_bytes` are free, below the limit."""
        pieces = [(piece.offset, piece.offset + piece.bytes) for piece in self.tasks.values() if piece.bytes]
        for offset in sorted([0, *(end for _, end in pieces)]):
            if offset + num_bytes > limit:
                return None
            if all(end <= offset or begin >= offset + num_bytes for begin, end in pieces):
                return offset
        return None

    def _group_is_done(self) -> bool:
        tasks = range(self.current * self.group_size, (self.current + 1) * self.group_size)
        return tasks.stop <= self.end and all(task in self.done_tasks for task in tasks)

    def _all_are_taken(self) -> bool:
        taken = {task for task, piece in self.tasks.items() if piece.state == "taken"}
        return taken | self.done_tasks == set(range(self.first, self.end))

    def _allowed(self) -> range:
        """Tasks that may be trained now."""
        end = (self.current + self.staleness + 1) * self.group_size
        return range(self.current * self.group_size, min(end, self.end))

    def _take(self, rank: int) -> tuple[str, int | None]:
        for task in self._allowed():
            if task in self.tasks and self.tasks[task].state == "ready":
                self.tasks[task].state, self.tasks[task].rank = "taken", rank
                return "did", task
        return "waited", None

    def _profit(self, rank: int, standby_s: float) -> float:
        training = {piece.rank for piece in self.tasks.values() if piece.state == "taken"}
        last = {other: sorted(times[-KEPT_TIMES:]) for other, times in self.times.items()}
        medians = {other: times[len(times) // 2] for other, times in last.items()}
        active = sorted({*range(self.num_trainers), *training})
        known = [medians[other] for other in active if other in medians]
        guess = sum(known) / len(known) if known else abs(standby_s)
        if standby_s < 0:
            guess = guess if known else 1.0
            standby_s = medians.get(rank, guess)
        remaining = sum(task not in self.done_tasks for task in self._allowed())
        return remaining / sum(1 / medians.get(other, guess) for other in active) - standby_s


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE) * PAGE
