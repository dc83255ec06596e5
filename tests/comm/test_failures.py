"""What a rank sees when another one fails: an error that names rank, collective, purpose and step, and no waiting.

What must not be waited for is a deadline of NEVER_S, longer than these tests last: who waited for it would fail them.
"""

import os
import re
import signal
import socket
import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from fastsample_dist.comm import watch
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.deadline import CollectiveError
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.rendezvous import all_gather_once, meet
from fastsample_dist.comm.torch_dist import _named
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

DEADLINE_S = 1.0
JOIN_S = 5.0  # within which threads that start together meet
WITHOUT_WAITING = {"timeout_s": ENOUGH_S, "comm_timeout_s": NEVER_S}
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
    assert seconds >= 0.5


LATER = {
    "future": lambda comm: comm.all_reduce_future(torch.ones(3), purpose="gradients").wait,
    "start": lambda comm: comm.all_reduce_start(torch.ones(3), purpose="gradients"),
}


def reduce_alone(ctx, failed, way):
    ctx.comm.step = 7
    if ctx.rank == 0:
        message = error_of(LATER[way](ctx.comm))[0]
        assert message.startswith(ctx.comm.failure) or way == "future"
        failed.touch()
        return message
    wait_until(failed.exists)
    ctx.comm.abort()


@pytest.mark.parametrize("way", LATER)
def test_a_sum_in_the_background_that_nobody_joins_fails_by_name_at_the_deadline(tmp_path, way):
    message = run_distributed(2, reduce_alone, ENOUGH_S, args=(tmp_path / "failed", way), comm_timeout_s=10.0)[0]
    assert "rank 0, step 7: all_reduce of gradients did not finish within 10 s" in message


def wait_for_sleeper(ctx):
    ctx.comm.step = 812
    ctx.comm.timeout_s = DEADLINE_S
    if ctx.rank == 1:
        time.sleep(NEVER_S)
    ctx.comm.all_to_all_rows(torch.ones(2, 3), [1, 1], purpose="feature_rows")


@needs_mpi
def test_mpi_a_rank_that_does_not_take_part_ends_the_run():
    with pytest.raises(RankError) as failed:
        run_mpi(2, wait_for_sleeper, timeout_s=ENOUGH_S)
    assert "rank 0, step 812: all_to_all of counts did not finish within 1 s" in str(failed.value)


def killed_in_step(ctx):
    ctx.comm.step = 5
    ctx.comm.barrier()
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(ctx.comm.all_reduce, torch.ones(3), purpose="gradients")[0]


def test_a_killed_rank_ends_the_others_before_any_deadline():
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code -9"):
        run_distributed(2, killed_in_step, **WITHOUT_WAITING)


def survive_a_kill(ctx):
    raise AssertionError(killed_in_step(ctx))


def test_a_killed_rank_is_an_error_with_rank_purpose_and_step():
    with pytest.raises(RankError) as failed:
        run_distributed(2, survive_a_kill, **WITHOUT_WAITING)
    assert "rank 0, step 5: all_reduce of gradients failed because a peer ended" in str(failed.value)


def die_within(ctx):
    """Rank 2 is killed when it has entered the collective that the others wait in."""
    if ctx.rank == 2:
        ctx.comm.watch.enter(5, "all_reduce of gradients")
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.comm.step, watch.ENDS_WITHIN_S = 5, ENOUGH_S
    raise AssertionError(error_of(ctx.comm.all_reduce, torch.ones(3), purpose="gradients")[0])


def test_a_rank_that_is_killed_in_the_same_collective_is_named():
    with pytest.raises(RankError) as failed:
        run_distributed(3, die_within, **WITHOUT_WAITING)
    said = r"rank [01], step 5: all_reduce of gradients failed because a peer ended .*; see its error "
    first = r"\((rank 2 has ended: |ranks [01], 2 have ended: rank 2 was )last seen "
    assert re.search(said + first, str(failed.value)), str(failed.value)


def test_files_that_this_process_may_not_open_are_not_taken_for_a_peer_that_ended():
    gloo = RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:9] rv != -1. -1 vs -1. socket: Too many open files"
    )
    error = _named(gloo, DEADLINE_S)
    assert type(error) is CollectiveError
    said = "failed: rv != -1. -1 vs -1. socket: Too many open files; raise the limit of open files (ulimit -n)"
    assert str(error) == said


MIXED = [
    (
        "all_gather of split",
        "all_gather of checkpoint",
        lambda comm: comm.all_gather_object(None, purpose="checkpoint"),
    ),
    ("all_gather of split", "all_to_all of counts", lambda comm: comm.plan_rows([0, 0])),
    ("all_to_all of counts", "all_gather of checkpoint", lambda comm: comm.all_gather_object(1, purpose="checkpoint")),
]


def in_different_calls(ctx) -> list[str]:
    """Rank 1 makes another collective of the same size than rank 0, on a communicator of its own each time."""
    comms = [ctx.comm.duplicate() for _ in MIXED]
    return [
        error_of(COLLECTIVES[what] if ctx.rank == 0 else other, comm)[0]
        for (what, _, other), comm in zip(MIXED, comms, strict=True)
    ]


def test_ranks_in_different_collectives_of_one_size_name_both():
    of_ranks = run_distributed(2, in_different_calls)
    for (*calls, _), *found in zip(MIXED, *of_ranks, strict=True):
        for rank, said in enumerate(found):
            assert said.startswith(
                f"rank {rank}, outside a step: {calls[rank]} failed: rank {1 - rank} is in another one"
            )
            assert said.endswith(f"(rank {1 - rank} makes another collective instead: {calls[1 - rank]}).")


def raise_on_one(ctx):
    ctx.comm.barrier()
    if ctx.rank == 1:
        raise KeyError("lost node")
    ctx.comm.step = 3
    message, _ = error_of(ctx.comm.barrier)
    assert message.startswith("rank 0, step 3: barrier failed because a peer ended or its connection broke")
    raise AssertionError("rank 0 saw it in time")


def test_an_exception_on_one_rank_ends_the_others_before_any_deadline():
    with pytest.raises(RankError) as failed:
        run_distributed(2, raise_on_one, **WITHOUT_WAITING)
    text = str(failed.value)
    assert text.index("KeyError: 'lost node'") < text.index("rank 0 saw it in time")


def raise_while_a_thread_waits(ctx):
    """The thread's collective can never finish; leaving must end it, or the process would wait for the thread."""
    copy = ctx.comm.duplicate()
    if ctx.rank == 0:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(error_of(copy.barrier, purpose="prefetch")[0]))
        thread.start()
        time.sleep(1.0)  # the thread is in the barrier by then
        try:
            with ctx:
                raise KeyError("boom")
        except KeyError:
            thread.join(ENOUGH_S)
        assert not thread.is_alive()
        return seen[0]
    with pytest.raises(RuntimeError, match="a peer ended"):
        ctx.comm.barrier()


def test_leaving_by_an_exception_ends_collectives_of_other_threads():
    message = run_distributed(2, raise_while_a_thread_waits, **WITHOUT_WAITING)[0]
    assert message.startswith(
        "rank 0, outside a step: barrier of prefetch was interrupted because this rank is leaving"
    )


def interrupted_in_wait(ctx, interrupted):
    if ctx.rank == 1:
        wait_until(interrupted.exists)  # in no collective while rank 0 is interrupted
        return
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        ctx.comm.barrier()
    except KeyboardInterrupt:
        interrupted.touch()
        raise


def test_control_c_gets_through_a_wait(tmp_path):
    with pytest.raises(RankError) as failed:
        run_distributed(2, interrupted_in_wait, args=(tmp_path / "interrupted",), **WITHOUT_WAITING)
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
    assert seconds >= DEADLINE_S


def test_a_missing_rank_0_is_named():
    port = free_port()
    message, _ = join_error(launch(1, 2, port))
    assert message.startswith(f"rank 1: rank 0 of 2 did not join at 127.0.0.1:{port} within 1 s")


def test_all_ranks_that_came_name_all_that_did_not():
    port = free_port()
    errors = together(*(lambda rank=rank: join_error(launch(rank, 5, port), JOIN_S)[0] for rank in (0, 3, 4)))
    for rank, message in zip((0, 3, 4), errors, strict=True):
        assert message.startswith(f"rank {rank}: ranks 1, 2 of 5 did not join at 127.0.0.1:{port}")


def test_ranks_meet_whatever_their_order():
    port = free_port()

    def join(rank):
        time.sleep(0.2 * (2 - rank))  # rank 0, which serves the store, comes last
        return meet(launch(rank, 3, port), ENOUGH_S)

    stores = together(*(lambda rank=rank: join(rank) for rank in range(3)))
    stores[1].store.set("key", "value")
    assert stores[2].store.get("key") == b"value"


@pytest.fixture
def agents_store():
    """What ranks of a run whose store torchrun's agent serves have as `LaunchInfo`, by rank and attempt."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda rank, attempt: replace(launch(rank, 2, store.port), agent_store=True, attempt=attempt)


def test_a_rank_that_waits_leaves_when_another_is_started_again_and_meets_it_in_that_attempt(agents_store):
    """As under torchrun on two hosts: rank 1 was killed before it joined, and its agent alone started it again."""

    def rank_0():
        message, _ = join_error(agents_store(0, 0), ENOUGH_S)
        return message, meet(agents_store(0, 2), ENOUGH_S)

    (message, _), _ = together(rank_0, lambda: meet(agents_store(1, 2), ENOUGH_S))
    assert message == (
        "rank 0: rank 1 was started again while this rank joined attempt 0 of the run; that attempt ends: torchrun "
        "starts this rank again too, as far as its --max-restarts allows."
    )


def test_a_rank_that_is_started_again_after_it_joined_is_named(agents_store):
    """It did join the attempt, but reports nothing there: that is not its error."""
    store, _ = together(*(lambda rank=rank: meet(agents_store(rank, 0), ENOUGH_S) for rank in range(2)))

    def rank_1():
        meet(agents_store(1, 1), ENOUGH_S)

    def rank_0():
        message, _ = error_of(all_gather_once, store, agents_store(0, 0), None, ENOUGH_S)
        return message, meet(agents_store(0, 1), ENOUGH_S)

    (message, _), _ = together(rank_0, rank_1)
    assert message.startswith("rank 0: rank 1 was started again while this rank joined attempt 0 of the run; ")


def test_a_rank_that_gave_up_is_missing_for_one_that_comes_later(agents_store):
    assert "rank 0 of 2 did not join" in join_error(agents_store(1, 0))[0]
    assert "rank 1 of 2 did not join" in join_error(agents_store(0, 0))[0]


def test_a_rank_that_comes_twice_is_refused():
    port = free_port()
    errors = together(*(lambda rank=rank: join_error(launch(rank, 3, port), JOIN_S)[0] for rank in (0, 1, 1)))
    said = "already, in another process or in an earlier DistContext of this one; give every process its own RANK"
    assert sum(said in message for message in errors[1:]) == 1


def test_ranks_of_different_world_sizes_are_refused():
    port = free_port()
    errors = together(*(lambda rank=rank: join_error(launch(rank, 2 + rank, port), JOIN_S)[0] for rank in (0, 1)))
    refused = [message for message in errors if "give all ranks the same world size" in message]
    assert refused


def test_rank_0_at_an_address_of_another_machine_is_refused():
    info = replace(launch(0, 2, free_port()), master_addr="192.0.2.1")  # RFC 5737: no machine has it
    message, _ = join_error(info)
    assert message.startswith("rank 0: cannot serve the meeting point at 192.0.2.1:")
    assert "(MASTER_ADDR is not an address of this machine, where rank 0 runs); " in message


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message, _ = join_error(launch(0, 2, port))
    assert message.startswith(f"rank 0: cannot serve the meeting point at 127.0.0.1:{port}")
    assert "choose another MASTER_PORT" in message
