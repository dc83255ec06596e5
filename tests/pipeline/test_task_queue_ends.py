"""What ends a wait for the queue of tasks: a killed rank, a stopped one, a rank that fails, a stop, Ctrl-C.

What must not be waited for is a deadline of NEVER_S, longer than these tests last: who waited for it would fail them.
"""

import os
import re
import signal
import subprocess
from itertools import chain

import pytest

from fastsample_dist.comm.processes import Processes
from fastsample_dist.ops.shared_queue import QueueSpec
from fastsample_dist.pipeline.task_queue import GroupDone, TaskQueue
from fastsample_dist.pipeline.tasks import RolesError
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi
from tests.shared_memory import named_segments
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

WITHOUT_WAITING = {"timeout_s": ENOUGH_S, "comm_timeout_s": NEVER_S}
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))


def make_queue(ctx, timeout_s=None, **options):
    """Ranks 0 and 1 train, rank 2 samples; epoch 1 has its steps from 35 on, two tasks each."""
    sizes = {"capacity": 1000, "task_bytes": 1000, "group_size": 2, "most_bytes": 1 << 20} | options
    spec = QueueSpec(num_ranks=ctx.world_size, num_trainers=2, **sizes)
    queue = TaskQueue(ctx, ctx.machines(), spec, timeout_s=timeout_s)
    queue.begin(0, 20, epoch=1, first_step=35)
    return queue


def error_of(call):
    with pytest.raises(RolesError) as raised:
        call()
    return str(raised.value)


def put_tasks(queue, count):
    for _ in range(count):
        queue.put(queue.claim(), b"", [])


def train_all(queue):
    """Returns the tasks that were trained here."""
    trained = []
    while (taken := queue.take()) is not None:
        if isinstance(taken, GroupDone):
            queue.advance(taken.group)
        else:
            trained.append(taken.task)
            queue.done(taken.task)
    return trained


# ---- a rank that is killed ----


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_making(ctx, queue):
    if ctx.rank == 2:
        put_tasks(queue, 5)
        queue.claim()
        kill_self()
    train_all(queue)


def die_while_training(ctx, queue):
    """Rank 2, which has room for all that it makes, waits for nothing and hears of it when it claims the next task."""
    if ctx.rank == 2:
        put_tasks(queue, 10)
    if ctx.rank == 1:
        queue.take()
    ctx.comm.barrier()
    if ctx.rank == 1:
        kill_self()
    if ctx.rank == 2:
        assert queue.who_ended(NEVER_S)
        raise RolesError(f"rank 2 was given task {queue.claim()}")
    train_all(queue)


def die_while_updating(ctx, queue):
    if ctx.rank == 2:
        put_tasks(queue, 20)
    elif ctx.rank == 0:
        while not isinstance(taken := queue.take(), GroupDone):
            queue.done(taken.task)
        assert "; rank 0 (trainer) is to update the parameters; " in f"; {queue.state()}"
        kill_self()
    (train_all if ctx.rank == 1 else TaskQueue.wait_end)(queue)


def die_with_the_lock(ctx, queue):
    """Rank 0 stops rank 1, which reads the queue all the time, until it finds it with the lock."""
    pids = ctx.comm.all_gather_object(os.getpid(), purpose="test")
    if ctx.rank == 1:
        while True:
            queue._queue.slots(0.0)
    if ctx.rank == 0:

        def stopped_with_the_lock():
            os.kill(pids[1], signal.SIGCONT)
            os.kill(pids[1], signal.SIGSTOP)
            return queue._queue.holder() == 1

        wait_until(stopped_with_the_lock)
        assert queue.state() == "rank 1 (trainer) holds the queue's lock"
        os.kill(pids[1], signal.SIGKILL)
        train_all(queue)
    queue.wait_end()


DEATHS = {
    die_while_making: "rank 2 (sampler) ended while it made task (epoch 1, virtual rank 1, step 37)",
    die_while_training: "rank 1 (trainer) ended while it trained task (epoch 1, virtual rank ",
    die_while_updating: "rank 0 (trainer) ended while it updated the parameters (epoch 1, step 35)",
    die_with_the_lock: "rank 1 (trainer) ended while it changed the queue of tasks",
}


def die(ctx, death, folder):
    """The survivors write what they are told into a file named after their rank."""
    capacity = 100_000 if death is die_with_the_lock else 1000  # reading that many slots takes most of the time
    queue = make_queue(ctx, capacity=capacity)
    try:
        death(ctx, queue)
    except RolesError as error:
        (folder / str(ctx.rank)).write_text(str(error))
        raise


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.__name__)
def test_a_killed_rank_is_named_with_its_task_before_any_deadline(death, tmp_path):
    with pytest.raises(RankError):
        run_distributed(3, die, args=(death, tmp_path), **WITHOUT_WAITING)
    lines = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert lines and set(lines) <= {"0", "1", "2"}
    assert all(line.startswith(DEATHS[death]) for line in lines.values()), lines
    assert named_segments() == []


@needs_mpi
@pytest.mark.grid
def test_mpi_a_killed_rank_is_named_with_its_task(tmp_path):
    with pytest.raises(RankError):
        run_mpi(3, die, args=(die_while_making, tmp_path), **WITHOUT_WAITING)
    lines = {file.read_text() for file in tmp_path.iterdir()}
    assert lines <= {DEATHS[die_while_making]}  # mpirun may end the others before they have written


# ---- what ends waits without a death: all in one run ----


def stop_a_process(ctx):
    """Rank 2 stops with a task in its hands; rank 0's deadline passes, and all raise the same line."""
    queue = make_queue(ctx, timeout_s=0.5 if ctx.rank == 0 else NEVER_S)
    pids = ctx.comm.all_gather_object(os.getpid(), purpose="test")
    if ctx.rank == 2:
        put_tasks(queue, 2)
        queue.claim()
        os.kill(os.getpid(), signal.SIGSTOP)
        return error_of(lambda: queue.put(2, b"", []))
    line = error_of(lambda: train_all(queue))
    if ctx.rank == 0:
        os.kill(pids[2], signal.SIGCONT)
    return line


def fail_on_one(ctx):
    queue = make_queue(ctx)
    if ctx.rank == 1:
        queue.fail("rank 1, step 35: the loss is nan")
        queue.fail("a consequence")
    ctx.comm.barrier()
    return error_of(queue.claim if ctx.rank == 2 else queue.take)


def put_too_much(ctx):
    """Blocks grow beyond the estimate; a task beyond the limit is refused; the queue goes on."""
    queue = make_queue(ctx, task_bytes=1, most_bytes=1 << 16)
    refusal = ""
    if ctx.rank == 2:
        with pytest.raises(ValueError) as raised:
            queue.put(queue.claim(), b"", [memoryview(bytes(1 << 16))])
        refusal = str(raised.value)
        for task, size in enumerate([10, 60_000, 5_000, *[20_000] * 17]):
            queue.put(task if task == 0 else queue.claim(), b"", [memoryview(bytes([task]) * size)])
    elif ctx.rank == 0:
        while (taken := queue.take()) is not None:
            if isinstance(taken, GroupDone):
                queue.advance(taken.group)
            else:
                assert set(taken.buffers[0]) == {taken.task}
                queue.done(taken.task)
    assert queue.wait_end() == 10
    return refusal


def stop_in_the_middle(ctx):
    """(first group that was not done, tasks trained here, the same of a segment that a stop before it ends)."""
    queue = make_queue(ctx)
    trained = []
    if ctx.rank == 2:
        put_tasks(queue, 12)
    ctx.comm.barrier()
    if ctx.rank == 1:
        taken = queue.take()  # of group 0
        queue.request_stop()
        queue.request_stop()
        queue.done(taken.task)
        trained.append(taken.task)
    ctx.comm.barrier()
    if ctx.rank == 2:
        assert queue.claim() is None
        assert queue.take_as_standby(0.0) is None
    else:
        trained += train_all(queue)
    end = queue.wait_end()
    if ctx.rank == 1:
        queue.request_stop()  # between two segments: for the next one
    queue.begin(4, 8, epoch=1, first_step=37)
    nothing = queue.claim() if ctx.rank == 2 else queue.take()
    assert nothing is None
    ended = queue.wait_end()
    queue.begin(4, 0, epoch=1)  # the stop is over
    queue.wait_end()
    return end, trained, ended


def drop_what_is_being_made(ctx):
    queue = make_queue(ctx)
    task = queue.claim() if ctx.rank == 2 else None
    ctx.comm.barrier()
    if ctx.rank == 0:
        queue.request_stop()
    ctx.comm.barrier()
    wanted = queue.put(task, b"", []) if ctx.rank == 2 else None
    return wanted, queue.wait_end()


def interrupt_a_wait(ctx):
    """Ctrl-C while a rank waits for a task that never comes."""
    queue = make_queue(ctx)
    if ctx.rank == 0:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            queue.take()
        signal.signal(signal.SIGALRM, before)
        queue.fail("rank 0 was interrupted")
    return error_of(queue.wait_end)


SCENES = (stop_a_process, fail_on_one, put_too_much, stop_in_the_middle, drop_what_is_being_made, interrupt_a_wait)


def play(ctx):
    """What each scene returns; between two scenes all ranks meet."""
    found = {}
    for scene in SCENES:
        found[scene.__name__] = scene(ctx)
        ctx.comm.barrier()
    return found


@pytest.fixture(scope="module")
def seen():
    """By scene: what it returned on each rank."""
    ranks = run_distributed(3, play, **WITHOUT_WAITING)
    return {scene.__name__: [rank[scene.__name__] for rank in ranks] for scene in SCENES}


def test_a_deadline_says_who_holds_what(seen):
    lines = set(seen["stop_a_process"])
    assert len(lines) == 1
    line = lines.pop()
    waits = r"rank 0 \(trainer\) has waited for a task to train and nothing has changed for ([\d.]+) s: "
    assert (waited := re.match(waits, line)) and float(waited[1]) >= 0.5
    assert "rank 2 (sampler) makes task (epoch 1, virtual rank 0, step 36) since " in line
    assert line.endswith("; 0 tasks are made and not taken, 2 are done, group 1 is next")


def test_the_first_failure_of_a_rank_is_raised_by_all(seen):
    assert seen["fail_on_one"] == ["rank 1, step 35: the loss is nan"] * 3


def test_a_block_grows_and_one_beyond_the_limit_is_refused_in_one_line(seen):
    assert seen["put_too_much"][2] == (
        "task (epoch 1, virtual rank 0, step 35) takes 65600B, but all tasks in the queue may take 65536B; pass a "
        "larger queue_bytes, or smaller batches."
    )


def test_a_stop_ends_all_ranks_after_the_group_under_way(seen):
    ends, trained, next_ends = zip(*seen["stop_in_the_middle"], strict=True)
    assert ends == (1, 1, 1)
    assert sorted(chain(*trained)) == [0, 1]
    assert next_ends == (2, 2, 2)


def test_a_task_that_is_made_when_a_stop_comes_is_dropped(seen):
    assert seen["drop_what_is_being_made"] == [(None, 0), (None, 0), (False, 0)]


def test_ctrl_c_ends_a_wait(seen):
    assert seen["interrupt_a_wait"] == ["rank 0 was interrupted"] * 3


# ---- processes ----


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_an_ended_process_is_seen_with_and_without_descriptors_of_processes(monkeypatch, has_descriptors):
    if not has_descriptors:

        def missing(pid):
            raise OSError("not implemented")

        monkeypatch.setattr(os, "pidfd_open", missing)
    children = [subprocess.Popen(["sleep", str(NEVER_S)]) for _ in range(2)]
    try:
        processes = Processes({4: children[0].pid, 7: children[1].pid})
        assert processes.ended() == []
        children[1].kill()
        wait_until(lambda: processes.ended() == [7])  # before anybody has waited for it
        processes.close()
        assert processes.ended() == []
    finally:
        for child in children:
            child.kill()
            child.wait()
