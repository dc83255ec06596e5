"""What a rank sees when another one fails: an error that names rank, collective, purpose and step, and no waiting."""

import os
import signal
import socket
import threading
import time

import pytest
import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.rendezvous import meet
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi

DEADLINE_S = 1.0
SLACK_S = 8.0  # scheduling on a busy machine; the limits in these tests are far shorter than the default of 600 s
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def error_of(call, *args, **kwargs) -> tuple[str, float]:
    """The message of the RuntimeError that the call must raise, and the seconds until then."""
    start_s = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        call(*args, **kwargs)
    return str(raised.value), time.monotonic() - start_s


COLLECTIVES = {
    "all_to_all of counts": lambda comm: comm.plan_rows([1, 1]),
    "all_reduce of gradients": lambda comm: comm.all_reduce(torch.ones(3), purpose="gradients"),
    "broadcast of model": lambda comm: comm.broadcast(torch.ones(3), 1, purpose="model"),
    "all_gather of split": lambda comm: comm.all_gather_object(1, purpose="split"),
    "barrier of epoch": lambda comm: comm.barrier(purpose="epoch"),
}


def alone_in_collectives(ctx) -> list[tuple[str, float]]:
    """Rank 0 makes each collective on a communicator of its own, and rank 1 none."""
    seen = []
    for call in COLLECTIVES.values():
        comm = ctx.comm.duplicate()
        comm.step = 812
        comm.timeout_s = 0.5
        if ctx.rank == 0:
            seen.append(error_of(call, comm))
    ctx.comm.barrier()
    ctx.comm.abort()  # the abandoned collectives are still under way
    return seen


@pytest.fixture(scope="module")
def seen_alone():
    return dict(zip(COLLECTIVES, run_distributed(2, alone_in_collectives)[0], strict=True))


@pytest.mark.parametrize("what", COLLECTIVES)
def test_a_rank_that_does_not_take_part_is_an_error_with_rank_purpose_step_and_deadline(seen_alone, what):
    message, seconds = seen_alone[what]
    assert message.startswith(f"rank 0, step 812: {what} did not finish within 0.5 s: not every rank took part")
    assert "\n" not in message
    assert 0.5 <= seconds < 0.5 + SLACK_S


def reduce_alone(ctx):
    ctx.comm.step = 7
    if ctx.rank == 0:
        future = ctx.comm.all_reduce_future(torch.ones(3), purpose="gradients")
        return error_of(future.wait)
    time.sleep(1.5 * ctx.comm.timeout_s)
    ctx.comm.abort()


def test_a_future_that_nobody_joins_fails_by_name_at_the_deadline():
    message, seconds = run_distributed(2, reduce_alone, comm_timeout_s=3.0)[0]
    assert "rank 0, step 7: all_reduce of gradients did not finish within 3 s" in message
    assert seconds < 3.0 + SLACK_S


def wait_for_sleeper(ctx):
    ctx.comm.step = 812
    ctx.comm.timeout_s = DEADLINE_S
    if ctx.rank == 1:
        time.sleep(60)
    start_s = time.monotonic()
    try:
        ctx.comm.all_to_all_rows(torch.ones(2, 3), [1, 1], purpose="feature_rows")
    finally:
        assert time.monotonic() - start_s < DEADLINE_S + SLACK_S, "the deadline came too late"


@needs_mpi
def test_mpi_a_rank_that_does_not_take_part_ends_the_run():
    with pytest.raises(RankError) as failed:
        run_mpi(2, wait_for_sleeper, timeout_s=50)
    assert "rank 0, step 812: all_to_all of counts did not finish within 1 s" in str(failed.value)
    assert "too late" not in str(failed.value)


def killed_in_step(ctx):
    ctx.comm.step = 5
    ctx.comm.barrier()
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(ctx.comm.all_reduce, torch.ones(3), purpose="gradients")


def test_a_killed_rank_ends_the_others_within_moments():
    start_s = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code -9"):
        run_distributed(2, killed_in_step, timeout_s=60)
    assert time.monotonic() - start_s < 60 / 2


def survive_a_kill(ctx):
    message, seconds = killed_in_step(ctx)
    raise AssertionError(f"{message} after {'moments' if seconds < SLACK_S else 'ages'}")


def test_a_killed_rank_is_an_error_with_rank_purpose_and_step():
    with pytest.raises(RankError) as failed:
        run_distributed(2, survive_a_kill, timeout_s=60)
    assert "rank 0, step 5: all_reduce of gradients failed because a peer ended" in str(failed.value)
    assert "after moments" in str(failed.value)


def raise_on_one(ctx):
    ctx.comm.barrier()
    if ctx.rank == 1:
        raise KeyError("lost node")
    ctx.comm.step = 3
    message, seconds = error_of(ctx.comm.barrier)
    assert message.startswith("rank 0, step 3: barrier failed because a peer ended or its connection broke")
    assert seconds < SLACK_S
    raise AssertionError("rank 0 saw it in time")


def test_an_exception_on_one_rank_ends_the_others_within_moments():
    with pytest.raises(RankError) as failed:
        run_distributed(2, raise_on_one, timeout_s=60)
    text = str(failed.value)
    assert text.index("KeyError: 'lost node'") < text.index("rank 0 saw it in time")


def raise_while_a_thread_waits(ctx):
    """The thread's collective can never finish; leaving must end it, or the process would wait for the thread."""
    copy = ctx.comm.duplicate()
    if ctx.rank == 0:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(error_of(copy.barrier, purpose="prefetch")[0]))
        thread.start()
        time.sleep(0.2)
        start_s = time.monotonic()
        try:
            with ctx:
                raise KeyError("boom")
        except KeyError:
            thread.join(SLACK_S)
        assert not thread.is_alive()
        return seen[0], time.monotonic() - start_s
    with pytest.raises(RuntimeError, match="a peer ended"):
        ctx.comm.barrier()


def test_leaving_by_an_exception_ends_collectives_of_other_threads():
    message, seconds = run_distributed(2, raise_while_a_thread_waits, timeout_s=60)[0]
    assert message.startswith("rank 0, outside a step: barrier of prefetch was broken off because this rank leaves")
    assert seconds < SLACK_S


def interrupted_in_wait(ctx):
    if ctx.rank == 1:
        time.sleep(1.5)  # in no collective while rank 0 is interrupted
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    start_s = time.monotonic()
    try:
        ctx.comm.barrier()
    except KeyboardInterrupt:
        assert time.monotonic() - start_s < SLACK_S
        raise


def test_control_c_gets_through_a_wait():
    start_s = time.monotonic()
    with pytest.raises(RankError) as failed:
        run_distributed(2, interrupted_in_wait, timeout_s=120)
    assert time.monotonic() - start_s < 60
    assert str(failed.value).startswith("rank 0 of 2 failed:")
    assert "KeyboardInterrupt" in str(failed.value)


# ---- ranks that do not join ----


def launch(rank: int, world_size: int, port: int) -> LaunchInfo:
    return LaunchInfo("torchrun", "torch", rank, world_size, rank, world_size, "127.0.0.1", port)


def join_error(info: LaunchInfo, timeout_s: float = DEADLINE_S) -> tuple[str, float]:
    return error_of(meet, info, timeout_s)


def together(*calls) -> list:
    """Results of calls that run at the same time, in threads."""
    results = [None] * len(calls)

    def run(place, call):
        results[place] = call()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_from_env_names_a_rank_that_never_starts(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    port = free_port()
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    message, seconds = error_of(DistContext.from_env, timeout_s=DEADLINE_S, environ=environ)
    assert message.startswith(f"rank 0: rank 1 of 2 did not join at 127.0.0.1:{port} within 1 s; start")
    assert DEADLINE_S <= seconds < DEADLINE_S + SLACK_S


def test_a_missing_rank_0_is_named():
    port = free_port()
    message, seconds = join_error(launch(1, 2, port))
    assert message.startswith(f"rank 1: rank 0 of 2 did not join at 127.0.0.1:{port} within 1 s")
    assert seconds < DEADLINE_S + SLACK_S


def test_all_ranks_that_came_name_all_that_did_not():
    port = free_port()
    errors = together(*(lambda rank=rank: join_error(launch(rank, 5, port))[0] for rank in (0, 3, 4)))
    for rank, message in zip((0, 3, 4), errors, strict=True):
        assert message.startswith(f"rank {rank}: ranks 1, 2 of 5 did not join at 127.0.0.1:{port}")


def test_ranks_meet_whatever_their_order():
    port = free_port()

    def join(rank):
        time.sleep(0.2 * (2 - rank))  # rank 0, which serves the store, comes last
        return meet(launch(rank, 3, port), 20.0)

    stores = together(*(lambda rank=rank: join(rank) for rank in range(3)))
    stores[1].set("key", "value")
    assert stores[2].get("key") == b"value"


def test_a_rank_that_comes_twice_is_refused():
    port = free_port()
    errors = together(*(lambda rank=rank: join_error(launch(rank, 3, port))[0] for rank in (0, 1, 1)))
    assert sum("another process has joined" in message for message in errors[1:]) == 1


def test_ranks_of_different_world_sizes_are_refused():
    port = free_port()
    errors = together(lambda: join_error(launch(0, 2, port))[0], lambda: join_error(launch(1, 3, port))[0])
    refused = [message for message in errors if "give all ranks the same world size" in message]
    assert refused


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message, _ = join_error(launch(0, 2, port))
    assert message.startswith(f"rank 0: cannot serve the meeting point at 127.0.0.1:{port}")
    assert "choose another MASTER_PORT" in message
