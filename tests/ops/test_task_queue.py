"""The persistent kernel's task queue, by a tree of tasks (csrc/cuda/emulated/task_tree.cu) under many schedules."""

from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p

import pytest
import torch

from fastsample_dist.ops import cuda
from tests.grids import grid

NUM_PLACES = 160
CONTROL_WORDS, HEAD, TAIL, FINISHED, STOP = 80, 0, 16, 32, 64  # task_queue.cuh
DONE, STUCK, FULL = 0, 1, 2
PATIENCE_NS = 10**8  # of the emulator's clock: 100,000 changes between threads


class TaskTree(Structure):
    """FsTaskTree."""

    _fields_ = (
        ("control", c_void_p),
        ("tasks", c_void_p),
        ("visits", c_void_p),
        ("num_places", c_int64),
        ("num_given", c_int64),
        ("degree", c_int64),
        ("capacity", c_int64),
        ("fetch_size", c_int64),
        ("at_once", c_int64),
        ("patience_ns", c_uint64),
        ("lost", c_int64),
        ("looks", c_void_p),
        ("late", c_int64),
    )


class Run:
    """One launch: visits per task and the queue's words when it was over."""

    def __init__(
        self, *, num_given=1, degree=3, fetch_size=4, at_once=8, capacity=NUM_PLACES, lost=-1, blocks=4, late=0
    ):
        self.control = torch.full((CONTROL_WORDS,), -1)
        self.tasks = torch.full((capacity + NUM_PLACES,), -1)
        self.visits, looks = torch.zeros(2, NUM_PLACES, dtype=torch.int64)
        tree = TaskTree(
            self.control.data_ptr(), self.tasks.data_ptr(), self.visits.data_ptr(), NUM_PLACES, num_given, degree,
            capacity, fetch_size, at_once, PATIENCE_NS, lost, looks.data_ptr(), late,
        )  # fmt: skip
        function = cuda.core().fs_emulated_task_tree
        function.argtypes, function.restype = (POINTER(TaskTree), c_int32), c_int32
        assert function(byref(tree), blocks) == 0, cuda.core().fs_cuda_last_error()

    def counter(self, word):
        return int(self.control[word]) + 1

    @property
    def end(self):
        return int(self.control[STOP])

    @property
    def report(self):
        """Block, warp, task, head, number of tasks, finished."""
        return self.control[STOP + 1 : STOP + 7].tolist()


def expected_visits(num_given, degree):
    visits = torch.zeros(NUM_PLACES, dtype=torch.int64)
    tasks = list(range(num_given))
    for task in tasks:
        visits[task] += 1
        first = degree * task + 1
        tasks += range(first, min(first + 1 + (5 * task + 3) % degree, NUM_PLACES))
    return visits


@pytest.mark.parametrize("fetch_size", grid([1, 2, 3, 5, 8, 31, 32], gate=[1, 8, 32]))
@pytest.mark.parametrize("degree", grid([1, 2, 3, 7, 40], gate=[3, 40]))
def test_every_task_is_done_once_whatever_fetch_size_and_fanout(emulated_device, fetch_size, degree):
    oracle = expected_visits(1, degree)
    for schedule in range(4):
        emulated_device.set_schedule(schedule)
        run = Run(degree=degree, fetch_size=fetch_size)
        assert run.end == DONE and torch.equal(run.visits, oracle), schedule


@pytest.mark.parametrize("num_given", grid([1, 2, 9, 60], gate=[1, 60]))
@pytest.mark.parametrize("at_once", grid([1, 2, 8, 32], gate=[1, 32]))
def test_given_tasks_and_tasks_at_once(emulated_device, num_given, at_once):
    oracle = expected_visits(num_given, 5)
    capacity = int(oracle.sum()) - num_given  # not one more than is needed
    for schedule in range(4):
        emulated_device.set_schedule(schedule)
        run = Run(num_given=num_given, degree=5, at_once=at_once, capacity=capacity)
        assert run.end == DONE and torch.equal(run.visits, oracle), schedule
        assert run.counter(FINISHED) == int(oracle.sum()) == num_given + run.counter(TAIL)


@pytest.mark.parametrize("blocks", [1, 3])
def test_any_number_of_blocks(emulated_device, blocks):
    emulated_device.set_schedule(5)
    assert torch.equal(Run(blocks=blocks, degree=4).visits, expected_visits(1, 4))


@pytest.mark.parametrize("schedule", grid(range(6), gate=[0, 5]))
def test_a_task_that_never_comes_ends_the_kernel_with_its_number(emulated_device, schedule):
    emulated_device.set_schedule(schedule)
    run = Run(lost=0, degree=4, fetch_size=1)
    block, warp, task, head, num_tasks, finished = run.report
    assert run.end == STUCK
    assert 0 <= block < 4 and 0 <= warp < 2
    assert num_tasks == finished + 1 and head > task
    assert torch.equal(run.visits, expected_visits(1, 4))  # every other task was done


@pytest.mark.parametrize("late", [1, 3])
def test_a_task_is_taken_when_what_its_word_refers_to_can_be_seen(emulated_device, late):
    for schedule in range(4):
        emulated_device.set_schedule(schedule)
        run = Run(degree=4, late=late)
        assert run.end == DONE and torch.equal(run.visits, expected_visits(1, 4)), schedule


def test_a_task_whose_word_refers_to_nothing_ends_the_kernel(emulated_device):
    run = Run(late=2**40)
    assert run.end == STUCK and run.visits.tolist() == [1] + [0] * (NUM_PLACES - 1)


@pytest.mark.parametrize("capacity", [0, 1, 5, 40])
def test_a_queue_without_room_ends_the_kernel_and_writes_nothing_beyond_it(emulated_device, capacity):
    for schedule in range(4):
        emulated_device.set_schedule(schedule)
        run = Run(capacity=capacity, degree=7)
        assert run.end == FULL
        assert run.report[4] > capacity
        assert (run.tasks[capacity:] == -1).all()


def test_a_kernel_that_gave_up_leaves_nothing_behind(emulated_device):
    assert Run(lost=0).end == STUCK
    assert torch.equal(Run().visits, expected_visits(1, 3))
