"""The queue of tasks in shared memory against its definition, on drawn schedules; its lock, its waits, its refusals."""

import ctypes
import math
import os
import random
import threading
import time

import pytest
import torch

from fastsample_dist.ops.reference.shared_queue import Queue
from fastsample_dist.ops.shared_queue import SLICE_S, Outcome, QueueSegment, QueueSpec, SharedQueue, SlotState
from fastsample_dist.pipeline.roles import switching_profit

PAGE = 4096
MUTEX_BYTES = 40  # of glibc on 64 bits
SPEC = {
    "capacity": 4, "group_size": 2, "staleness": 0, "most_bytes": 8 * PAGE, "arena_bytes": 16 * PAGE, "task_bytes": 100,
    "num_ranks": 4, "num_trainers": 2, "switching": "profit",
}  # fmt: skip


def make(numbers=None, **sizes):
    """Every rank's view of a queue in this process's memory."""
    spec = QueueSpec(**SPEC | sizes)
    words = torch.zeros(spec.num_bytes() // 8 + 8, dtype=torch.int64)
    begin = -words.data_ptr() % 64
    memory = words.view(torch.uint8)[begin : begin + spec.num_bytes()]
    spec.make(memory, range(spec.num_ranks) if numbers is None else numbers)
    return [SharedQueue(spec, memory, rank) for rank in range(spec.num_ranks)]


def begin(queues, first, count, *, ends_epoch=True):
    return queues[0].begin(QueueSegment(1, first, count, 0, int(ends_epoch)), 0.0)


def refused(call):
    """What a call returns, None where it is refused."""
    try:
        return call()
    except ValueError:
        return None


OFTEN = ["begin", "claim", "claim", "room", "put", "put", "take", "take", "take_standby", "done", "done", "advance"]
SELDOM = ["stop", "end_after", "strange", "wait_end"]


class Schedule:
    """Calls of all ranks in an order that is drawn, each made on a queue and on its definition."""

    def __init__(self, seed):
        self.drawn = random.Random(seed)
        draw = self.drawn.randint
        pages = draw(2, 9)
        trainers = draw(1, 3)
        sizes = {
            "capacity": draw(1, 7), "group_size": draw(1, 3), "staleness": draw(0, 2), "most_bytes": pages * PAGE,
            "arena_bytes": draw(1, 3) * pages * PAGE, "task_bytes": draw(1, 2 * PAGE), "num_trainers": trainers,
            "switching": self.drawn.choice(["never", "profit", "profit", "always"]),
        }  # fmt: skip
        self.queues = make(**sizes, num_ranks=trainers + draw(1, 2))
        self.oracle = Queue(**sizes)
        self.claimed, self.taken, self.next_segment = [], [], 0

    def run(self, calls):
        """Returns how many tasks were done."""
        num_done = 0
        for _ in range(calls):
            rank = self.drawn.randrange(len(self.queues))
            name = self.drawn.choice(OFTEN if self.drawn.random() < 0.98 else SELDOM)
            num_done += getattr(self, name)(rank, self.queues[rank])
        return num_done

    def begin(self, rank, queue):
        first = self.next_segment
        count = self.drawn.randint(0, 6) * queue.spec.group_size + (self.drawn.random() < 0.1)
        ends_epoch = self.drawn.random() < 0.8
        is_idle = self.oracle.current * queue.spec.group_size >= self.oracle.end
        if not is_idle:  # begun by an engine that has not waited for the end
            return 0
        expected = self.oracle.begin(first, count, ends_epoch)
        found = refused(lambda: queue.begin(QueueSegment(1, first, count, 0, int(ends_epoch)), 0.0))
        self.same(found, expected)
        if found is not None:
            self.next_segment = first + count
        return 0

    def claim(self, rank, queue):
        outcome, slot = queue.claim(0.0)
        expected, facts = self.oracle.claim(rank)
        self.same(outcome, expected)
        if outcome is Outcome.DID:
            assert (slot.task, slot.version, slot.offset) == facts
            assert (slot.state, slot.rank, slot.pid) == (SlotState.CLAIMED, rank, os.getpid())
            self.claimed.append((rank, slot.task))
        return 0

    def room(self, rank, queue):
        if not self.claimed:
            return 0
        rank, task = self.drawn.choice(self.claimed)
        num_bytes = self.drawn.randint(1, queue.spec.most_bytes + 1)
        expected = self.oracle.room(rank, task, num_bytes)
        found = refused(lambda: self.queues[rank].room(task, num_bytes, 0.0))
        assert (found is None) == (expected is None)
        if found is not None:
            self.same(found[0], expected[0])
            assert expected[1] is None or found[1:] == expected[1]
            if found[0] is Outcome.ENDED:
                self.claimed.remove((rank, task))
        return 0

    def put(self, rank, queue):
        if self.claimed:
            rank, task = self.drawn.choice(self.claimed)
            self.claimed.remove((rank, task))
            self.same(self.queues[rank].put(task, 0.0), self.oracle.put(rank, task))
        return 0

    def take(self, rank, queue):
        outcome, slot = queue.take(0.0)
        self.took(rank, outcome, slot, *self.oracle.take(rank))
        return 0

    def take_standby(self, rank, queue):
        standby_s = self.drawn.choice([-1.0, 0.01, 0.5, 2.0, 10.0])
        outcome, slot, profit = queue.take_standby(standby_s, 0.0)
        *expected, expected_profit = self.oracle.take_standby(rank, standby_s)
        self.took(rank, outcome, slot, *expected)
        assert math.isclose(profit, expected_profit, rel_tol=1e-12, abs_tol=1e-12)
        return 0

    def took(self, rank, outcome, slot, expected, task):
        self.same(outcome, expected)
        if outcome is Outcome.DID:
            assert slot.task == task
            self.taken.append((rank, task))

    def done(self, rank, queue):
        if not self.taken:
            return 0
        rank, task = self.drawn.choice(self.taken)
        self.taken.remove((rank, task))
        train_s = self.drawn.uniform(0.1, 3.0)
        self.same(self.queues[rank].done(task, train_s, 0.0), self.oracle.done(rank, task, train_s))
        return 1

    def advance(self, rank, queue):
        group = self.oracle.current
        self.same(refused(lambda: queue.advance(group, 0.0)), self.oracle.advance(group))
        return 0

    def wait_end(self, rank, queue):
        outcome, group = queue.wait_end(0.0)
        expected, expected_group = self.oracle.wait_end()
        self.same(outcome, expected)
        assert expected_group is None or group == expected_group
        return 0

    def stop(self, rank, queue):
        self.same(queue.stop(0.0), self.oracle.stop())
        return 0

    def end_after(self, rank, queue):
        group = self.oracle.current + self.drawn.randint(-1, queue.spec.staleness + 1)
        self.same(refused(lambda: queue.end_after(group, 0.0)), self.oracle.end_after(group))
        return 0

    def strange(self, rank, queue):
        """Calls on tasks that this rank does not hold."""
        held = {(holder, task) for holder, task in self.claimed + self.taken}
        task = self.drawn.randint(-1, self.next_segment + 3)
        if (rank, task) not in held:
            assert refused(lambda: queue.put(task, 0.0)) is None
            assert refused(lambda: queue.done(task, 1.0, 0.0)) is None
            assert refused(lambda: queue.room(task, 1, 0.0)) is None
        return 0

    @staticmethod
    def same(found, expected):
        assert (None if found is None else found.name.lower()) == expected


@pytest.mark.parametrize("part", range(4))
def test_every_call_does_what_the_definition_says(part):
    done = [Schedule(seed).run(1000) for seed in range(100 * part, 100 * part + 100)]
    assert sum(done) > 2000  # so the schedules are not empty


def test_the_profit_is_that_of_the_plan():
    """Two trainers with times, standbys that train and that do not."""
    queues = make(capacity=40, group_size=8, most_bytes=64 * PAGE, arena_bytes=64 * PAGE)
    begin(queues, 0, 8)
    for _ in range(8):
        queues[2].put(queues[2].claim()[1].task)
    for rank, train_s in ((0, 0.5), (1, 2.0)):
        queues[rank].done(queues[rank].take()[1].task, train_s)
    outcome, slot, profit = queues[2].take_standby(0.25, 0.0)
    assert (outcome, profit) == (Outcome.DID, pytest.approx(switching_profit(6, [0.5, 2.0], 0.25), rel=1e-12))
    _, _, profit = queues[3].take_standby(100.0, 0.0)
    assert profit == pytest.approx(
        switching_profit(6, [0.5, 2.0, 1.25], 100.0), rel=1e-12
    )  # it has no time: their mean
    queues[2].done(slot.task, 3.0)
    outcome, _, profit = queues[3].take_standby(1.9, 0.0)
    assert (outcome, profit) == (Outcome.DID, pytest.approx(switching_profit(5, [0.5, 2.0], 1.9), rel=1e-12))


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"capacity": 0}, "capacity is 0; expected at least 1"),
        ({"capacity": 2**31}, "capacity 2147483648, group_size 2, staleness 0; expected at most 2147483647"),
        ({"group_size": 0}, "group_size is 0; expected at least 1"),
        ({"staleness": -1}, "staleness is -1; expected at least 0"),
        ({"most_bytes": 10}, "most_bytes is 10; expected at least 4096"),
        ({"arena_bytes": PAGE}, "arena_bytes is 4096; expected at least 32768"),
        ({"task_bytes": 0}, "task_bytes is 0; expected at least 1"),
        ({"num_trainers": 0}, "num_trainers is 0; expected at least 1"),
        ({"num_ranks": 1}, "num_ranks is 1; expected at least 2"),
        ({"switching": "often"}, "switching is 'often'; expected never, profit, always."),
    ],
    ids=str,
)
def test_a_spec_out_of_range_is_refused(sizes, line):
    with pytest.raises(ValueError, match=line):
        make(**sizes)


def test_calls_that_make_no_sense_are_refused_in_one_line():
    queues = make()
    with pytest.raises(ValueError, match="3 tasks from task 0; expected whole groups of 2"):
        begin(queues, 0, 3)
    with pytest.raises(ValueError, match="num_tasks is -2; expected at least 0"):
        begin(queues, 0, -2)
    begin(queues, 0, 4)
    task = queues[2].claim()[1].task
    with pytest.raises(ValueError, match="the segment before has tasks under way"):
        begin(queues, 4, 4)
    with pytest.raises(ValueError, match="rank 3 has not claimed task 0"):
        queues[3].put(task)
    with pytest.raises(ValueError, match="task 0 takes 32769 bytes; expected at most 32768"):
        queues[2].room(task, 8 * PAGE + 1)
    queues[2].put(task)
    with pytest.raises(ValueError, match="rank 0 has not taken task 0"):
        queues[0].done(task)
    queues[1].take()
    queues[1].done(task)
    with pytest.raises(ValueError, match="rank 1 has not taken task 0"):
        queues[1].done(task)  # never twice
    with pytest.raises(ValueError, match="group 0; expected the current one, 0, with all tasks done"):
        queues[0].advance(0)
    with pytest.raises(ValueError, match="slice_s is 1; expected 0 to 0.05"):
        queues[0].take(1.0)
    with pytest.raises(ValueError, match="rank 4; expected 0 to 3"):
        SharedQueue(queues[0].spec, queues[0]._memory, 4).take()


def test_a_call_waits_for_its_slice_and_no_shorter():
    queues = make()
    begin(queues, 0, 4)
    start_s = time.monotonic()
    assert queues[0].take(SLICE_S)[0] is Outcome.WAITED
    assert time.monotonic() - start_s >= SLICE_S


def test_after_a_failure_every_call_says_so_and_the_first_line_stays():
    queues = make()
    begin(queues, 0, 4)
    assert queues[1].failure() == (Outcome.DID, "")
    queues[3].fail("no memory")
    queues[0].fail("another one")
    assert queues[2].failure() == (Outcome.DID, "no memory")
    for call in (queues[2].claim, queues[0].take, queues[1].wait_end, lambda: queues[2].take_standby(1.0)):
        assert call()[0] is Outcome.FAILED
    for call in (
        lambda: begin(queues, 0, 4),
        lambda: queues[0].put(0),
        lambda: queues[0].stop(),
        lambda: queues[0].end_after(0),
    ):
        assert call() is Outcome.FAILED
    assert queues[0].state()[0] is Outcome.DID


def test_who_ends_with_the_lock_is_named_by_its_number_in_the_run():
    """Ranks of a machine number among themselves; a thread in the place of a process locks and ends."""
    numbers = (4, 5, 6, 7)
    queue = make(numbers=numbers)[0]
    begin([queue], 0, 4)
    with pytest.raises(ValueError, match="rank 4 has not claimed task 0"):
        queue.put(0)

    def lock_and_end():
        address = queue._memory.data_ptr()
        assert ctypes.CDLL(None).pthread_mutex_trylock(ctypes.c_void_p(address)) == 0
        ctypes.c_int32.from_address(address + MUTEX_BYTES).value = 3

    holder = threading.Thread(target=lock_and_end)
    holder.start()
    holder.join()
    assert queue.take()[0] is Outcome.FAILED
    assert queue.failure()[1] == "rank 7 (sampler) ended while it changed the queue of tasks"
