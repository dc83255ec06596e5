"""The queue of tasks between samplers and trainers: every task once, whoever makes and trains it."""

import pytest
import torch

from fastsample_dist.ops.shared_queue import QueueSpec
from fastsample_dist.pipeline.task_queue import GroupDone, TaskQueue
from fastsample_dist.testing import run_distributed
from tests.waiting import ENOUGH_S

GROUP_SIZE = 2


def head_of(task):
    return b"" if task % 5 == 0 else b"head %d" % task


def buffers_of(task):
    """Of several sizes, empty ones among them."""
    tensors = (
        torch.full((task % 7,), task),
        torch.arange(task % 300, dtype=torch.float32),
        torch.tensor([task % 2 == 0]),
    )
    return [memoryview(tensor.numpy()).cast("B") if tensor.numel() else memoryview(b"") for tensor in tensors]


def make_queue(ctx, trainers, **options):
    sizes = {"capacity": 1000, "task_bytes": 1000, "group_size": GROUP_SIZE, "most_bytes": 1 << 20} | options
    spec = QueueSpec(num_ranks=ctx.world_size, num_trainers=trainers, **sizes)
    return TaskQueue(ctx, ctx.machines(), spec)


def check(taken, first_group, staleness):
    """A task's contents are those that were put, and its version is by its group."""
    assert taken.head == head_of(taken.task)
    for buffer, expected in zip(taken.buffers, buffers_of(taken.task), strict=True):
        assert len(buffer) == 0 or torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() % 64 == 0
        assert buffer == expected and not buffer.readonly
    assert taken.version == max(first_group, taken.task // GROUP_SIZE - staleness)


def train(queue, take, trained, check_taken):
    """Train and update until nothing more comes."""
    while (taken := take()) is not None:
        if isinstance(taken, GroupDone):
            queue.advance(taken.group)
        else:
            check_taken(taken)
            trained.append(taken.task)
            queue.done(taken.task)


def sample(queue, made, trained, check_taken):
    """A sampler's segment; with switching "always" it trains between any two tasks that it makes."""
    while (task := queue.claim()) is not None:
        if queue.put(task, head_of(task), buffers_of(task)):
            made.append(task)
        if queue.spec.switching == "always":
            train(queue, lambda: queue.take_as_standby(waits=False), trained, check_taken)
    train(queue, queue.take_as_standby, trained, check_taken)


def run_segments(ctx, trainers, segments, options):
    """By segment: (tasks made here, tasks trained here, first group that was not done)."""
    queue, found = make_queue(ctx, trainers, **options), []
    for first_group, num_groups in segments:
        made, trained = [], []

        def check_taken(taken, first_group=first_group):
            check(taken, first_group, queue.spec.staleness)

        queue.begin(first_group * GROUP_SIZE, num_groups * GROUP_SIZE, epoch=1)
        if ctx.rank >= trainers:
            sample(queue, made, trained, check_taken)
        else:
            train(queue, queue.take, trained, check_taken)
        found.append((made, trained, queue.wait_end()))
        assert queue.tasks_done == num_groups * GROUP_SIZE
    ctx.comm.barrier()
    queue.close()
    return found


SEGMENTS = ((0, 40), (40, 0), (40, 21))
CASES = [
    (2, 1, {}),
    (2, 1, {"switching": "always", "staleness": 2}),
    (4, 1, {"switching": "never", "capacity": 3}),
    (4, 3, {"staleness": 1, "most_bytes": 8192, "task_bytes": 1}),
    (4, 2, {"switching": "always", "capacity": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_task_is_made_once_and_trained_once(case):
    world_size, trainers, options = case
    ranks = run_distributed(world_size, run_segments, ENOUGH_S, args=(trainers, SEGMENTS, options))
    for number, (first, count) in enumerate(SEGMENTS):
        tasks = list(range(first * GROUP_SIZE, (first + count) * GROUP_SIZE))
        assert sorted(task for rank in ranks for task in rank[number][0]) == tasks
        assert sorted(task for rank in ranks for task in rank[number][1]) == tasks
        assert {rank[number][2] for rank in ranks} == {first + count}
        assert all(rank[number][0] == sorted(rank[number][0]) for rank in ranks)
