"""Sub-groups: who is in them, what is their own, who is named when one fails. (test_communicator.py runs every
collective in two of them at the same time.)

Four ranks; most facts share one start per backend: each is a function of the context that all ranks call.
"""

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastsample_dist.comm.agree import agree_on
from fastsample_dist.comm.deadline import Deadline, DeadlineError
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.mpi import _call_in_thread
from fastsample_dist.comm.rows import RowPlan
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi
from tests.comm.oracle import counted
from tests.comm.test_failures import error_of
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
SAMPLERS, TRAINERS = [2, 0], [1, 3]


def halves(comm):
    """This rank's of two disjoint sub-groups."""
    first, second = comm.split(SAMPLERS), comm.split(TRAINERS)
    assert (first is None) != (second is None)
    return first or second


def members_are_in_the_order_of_the_list(ctx):
    group = halves(ctx.comm)
    listed = SAMPLERS if ctx.rank in SAMPLERS else TRAINERS
    assert (group.rank, group.world_size) == (listed.index(ctx.rank), 2)
    assert (group.run_ranks, group.run_rank) == (tuple(listed), ctx.rank)
    assert group.all_gather_object(ctx.rank, purpose="x") == listed
    group.close()


def other_ranks_get_none(ctx):
    group = ctx.comm.split([3])
    assert (group is None) == (ctx.rank != 3)


def a_group_of_all_ranks_may_have_another_order(ctx):
    group = ctx.comm.split([3, 2, 1, 0])
    values = torch.tensor([float(ctx.rank)])
    assert group.broadcast(values, 0, purpose="x").item() == 3.0
    rows, _ = group.all_to_all_rows(torch.full((4, 1), ctx.rank), [1] * 4)
    assert rows[:, 0].tolist() == [3, 2, 1, 0]
    group.close()


def counters_are_separate(ctx):
    ctx.comm.reset_stats()
    group = halves(ctx.comm)
    before = ctx.comm.stats()
    assert {purpose: found["calls"] for purpose, found in before.items()} == {"setup": 2}
    group.all_reduce(torch.ones(10), purpose="gradients")
    copy = group.duplicate()
    copy.barrier(purpose="epoch")
    assert group.stats() == {"gradients": counted(1, 40, 40), "epoch": counted(1, 0, 0)}
    assert ctx.comm.stats() == before
    group.close()
    assert copy.closed


def limits_and_step_are_taken_over_and_then_its_own(ctx):
    comm = ctx.comm.duplicate()
    comm.step, comm.timeout_s, comm.max_message_bytes = 7, 50.0, 99
    group = halves(comm)
    assert (group.step, group.timeout_s, group.max_message_bytes) == (7, 50.0, 99)
    assert group.verify_exchanges == comm.verify_exchanges
    group.step, group.timeout_s = 8, 5.0
    assert (comm.step, comm.timeout_s) == (7, 50.0)
    comm.close()


def a_duplicate_can_be_split_and_a_sub_group_duplicated_and_split(ctx):
    """Ranks derive different numbers of communicators from their groups in between."""
    copy = ctx.comm.duplicate()
    group = halves(copy)
    for _ in range(1 if ctx.rank in SAMPLERS else 3):
        extra = group.duplicate()
        assert extra.all_gather_object(ctx.rank, purpose="x") == list(group.run_ranks)
    lone = group.split([1])
    assert (lone is not None) == (group.rank == 1)
    if lone is not None:
        assert lone.run_ranks == (ctx.rank,)
    crossed = ctx.comm.split([1, 2])
    if crossed is not None:
        assert crossed.all_gather_object(ctx.rank, purpose="x") == [1, 2]
        crossed.close()
    copy.close()
    assert group.closed and extra.closed and (lone is None or lone.closed)


def a_rank_works_in_two_groups_at_the_same_time(ctx):
    """Messages would mix if the groups shared a transport: sizes, order and values differ."""
    group, everybody = halves(ctx.comm), ctx.comm.split(range(4))
    failures = []

    def background():
        try:
            for k in range(30):
                rows, _ = everybody.all_to_all_rows(torch.full((40, 3), 1000.0 * k + ctx.rank), [10] * 4)
                assert torch.equal(rows[:, 0], 1000.0 * k + torch.arange(4).repeat_interleave(10))
        except BaseException as error:
            failures.append(repr(error))

    thread = threading.Thread(target=background)
    thread.start()
    for k in range(30 if ctx.rank in SAMPLERS else 50):
        total = group.all_reduce(torch.full((100,), float(k * ctx.rank)), purpose="gradients")
        assert total[0].item() == k * sum(group.run_ranks)
    thread.join()
    assert not failures, failures[0]
    everybody.close()
    group.close()


def bad_lists_are_refused_on_all_ranks(ctx):
    expected = "expected different ranks from 0 to 3"
    for ranks, said in [
        ([], f"split: ranks is empty; {expected}, at least one."),
        ([0, 4], f"split: ranks has 4; {expected}."),
        ([-1], f"split: ranks has -1; {expected}."),
        ([2, 0, 2], f"split: ranks has 2 more than once; {expected}."),
        (3, f"split: ranks is 3; {expected}."),
        (["0"], f"split: ranks is ['0']; {expected}."),
    ]:
        with pytest.raises(ValueError) as refused:
            ctx.comm.split(ranks)
        assert str(refused.value) == said
    ctx.comm.barrier()


def lists_that_differ_are_refused_on_all_ranks(ctx):
    with pytest.raises(ValueError) as refused:
        ctx.comm.split([0, 1] if ctx.rank == 2 else [0, 3])
    assert str(refused.value) == (
        "split: ranks differ in the list: (0, 3) on ranks 0, 1, 3; (0, 1) on rank 2; pass the same list on every rank."
    )
    with pytest.raises(ValueError, match="the list: 'ranks is 3; expected .*' on rank 0; "):
        ctx.comm.split(3 if ctx.rank == 0 else [1])
    ctx.comm.barrier()


def disagreement_in_a_group_names_ranks_of_the_run(ctx):
    group = halves(ctx.comm)
    with pytest.raises(ValueError) as refused:
        agree_on(group, "Trainer", {"lr": ctx.rank})
    first, second = group.run_ranks
    assert f"lr: {first} on rank {first}; {second} on rank {second}; " in str(refused.value)
    group.close()


def a_failure_stays_in_its_group(ctx):
    """Both members expect a row too many; the error names them by their numbers in the run."""
    copy = ctx.comm.duplicate()
    group, everybody = halves(copy), copy.split(range(4))
    if ctx.rank in TRAINERS:
        group.verify_exchanges, group.step = True, 5
        plan = group.plan_rows([1, 1])
        recv_counts = [1, 1]
        recv_counts[1 - group.rank] = 2
        wrong = RowPlan(plan.send_counts, recv_counts, plan.max_message_rows)
        message, _ = error_of(group.exchange_rows, torch.zeros(2, 3), wrong, purpose="feature_rows")
        peer = TRAINERS[1 - group.rank]
        assert message == (
            f"rank {ctx.rank} (group of ranks 1, 3), step 5: all_to_all of feature_rows got 1 rows from rank {peer}, "
            "expected 2."
        )
        assert "refused: this communicator failed before" in error_of(group.barrier)[0]
        assert copy.failure == group.failure == message.rstrip(".")
    else:
        group.barrier()
        assert copy.failure is None
    everybody.barrier()
    copy.barrier()


FACTS = (
    members_are_in_the_order_of_the_list,
    other_ranks_get_none,
    a_group_of_all_ranks_may_have_another_order,
    counters_are_separate,
    limits_and_step_are_taken_over_and_then_its_own,
    a_duplicate_can_be_split_and_a_sub_group_duplicated_and_split,
    a_rank_works_in_two_groups_at_the_same_time,
    bad_lists_are_refused_on_all_ranks,
    lists_that_differ_are_refused_on_all_ranks,
    disagreement_in_a_group_names_ranks_of_the_run,
)


def check_all(ctx):
    """Per fact None, or why it does not hold on some rank; the one that leaves a failure behind comes last."""
    outcomes = {}
    for check in (*FACTS, a_failure_stays_in_its_group):
        try:
            check(ctx)
            failed = None
        except BaseException as error:
            failed = f"rank {ctx.rank}: {type(error).__name__}: {error}"
        outcomes[check.__name__] = next(filter(None, ctx.comm.all_gather_object(failed, purpose="outcome")), None)
    return outcomes, ctx.comm.failure


@pytest.fixture(scope="module")
def outcomes():
    found = {}

    def of(backend):
        if backend not in found:
            found[backend] = start(backend)
        return found[backend]

    def start(backend):
        try:
            if backend == "torch":
                return run_distributed(4, check_and_abort, ENOUGH_S)[0]
            run_mpi(4, check_and_fail, ENOUGH_S)
        except RankError as error:
            return error
        return None

    return of


def check_and_abort(ctx):
    outcomes, _ = check_all(ctx)
    ctx.comm.abort()  # a group has failed
    return outcomes


def check_and_fail(ctx):
    """Under MPI a run with a failed collective ends by an error; the outcomes are in its text."""
    outcomes, _ = check_all(ctx)
    raise AssertionError(f"<{ {name: why for name, why in outcomes.items() if why is not None} }>")


@pytest.mark.parametrize("check", [*FACTS, a_failure_stays_in_its_group], ids=lambda check: check.__name__)
def test_over_torch(outcomes, check):
    found = outcomes("torch")
    assert isinstance(found, dict), found
    assert found[check.__name__] is None


@pytest.mark.grid
@needs_mpi
def test_all_over_mpi(outcomes):
    assert "AssertionError: <{}>" in str(outcomes("mpi"))


def test_one_process_is_split_into_itself():
    comm = LocalCommunicator(timeout_s=5.0)
    comm.barrier(purpose="epoch")
    group = comm.split([0])
    assert (group.rank, group.world_size, group.timeout_s, group.stats()) == (0, 1, 5.0, {})
    with pytest.raises(ValueError, match="ranks has 1; expected different ranks from 0 to 0"):
        comm.split([0, 1])
    comm.close()
    assert group.closed


# ---- the members that do not come ----


def stalled(ctx, seen):
    """Rank 3 does not come to its group's sum, while the other group works on."""
    ctx.comm.step = 7
    group = halves(ctx.comm)
    if ctx.rank in SAMPLERS:
        for _ in range(20):
            group.all_gather_object(ctx.rank, purpose="seeds")
        return None
    group.barrier(purpose="epoch")
    group.timeout_s = 1.0
    if ctx.rank == 3:
        wait_until(seen.exists)
        ctx.comm.abort()
        return None
    message, seconds = error_of(group.all_reduce, torch.ones(3), purpose="gradients")
    assert seconds >= 1.0
    seen.touch()
    return message


def leave_without_waiting(ctx, seen):
    message = stalled(ctx, seen)
    ctx.comm.abort()
    return message


def test_a_member_that_does_not_come_is_named_at_the_groups_deadline(tmp_path):
    message = run_distributed(4, leave_without_waiting, ENOUGH_S, args=(tmp_path / "seen",))[1]
    assert message.startswith("rank 1 (group of ranks 1, 3), step 7: all_reduce of gradients did not finish within 1 s")
    assert "(rank 3 did not come: last seen " in message
    assert "in or after barrier of epoch of step 7)" in message


def stalled_over_mpi(ctx):
    ctx.comm.step = 7
    group = halves(ctx.comm)
    if ctx.rank in SAMPLERS:
        for _ in range(20):
            group.all_gather_object(ctx.rank, purpose="seeds")
        time.sleep(NEVER_S)
    group.timeout_s = 1.0
    if ctx.rank == 3:
        time.sleep(NEVER_S)
    group.all_reduce(torch.ones(3), purpose="gradients")


@needs_mpi
@pytest.mark.grid
def test_mpi_a_member_that_does_not_come_is_named_at_the_groups_deadline():
    with pytest.raises(RankError) as failed:
        run_mpi(4, stalled_over_mpi, ENOUGH_S)
    message = str(failed.value)
    assert "rank 1 (group of ranks 1, 3), step 7: all_reduce of gradients did not finish within 1 s" in message
    assert "(rank 3 did not come" in message


def killed(ctx, folder):
    """Rank 3 is killed in its group; rank 1 raises what it sees, and the other group ends in order."""
    group = halves(ctx.comm)
    group.step = 5
    group.barrier()
    if ctx.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.rank == 1:
        raise AssertionError(error_of(group.all_reduce, torch.ones(3), purpose="gradients")[0])
    group.all_gather_object(ctx.rank, purpose="seeds")
    (folder / str(ctx.rank)).touch()
    ctx.comm.abort()


def test_a_killed_member_is_named_and_the_other_group_works_on(tmp_path):
    with pytest.raises(RankError) as failed:
        run_distributed(4, killed, ENOUGH_S, args=(tmp_path,), comm_timeout_s=NEVER_S)
    message = str(failed.value)
    assert "rank 1 (group of ranks 1, 3), step 5: all_reduce of gradients failed because a peer ended" in message
    assert "(rank 3 has ended: last seen " in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def abort_while_a_group_waits(ctx):
    """Rank 0's thread is in a barrier of its group that can never finish; leaving the run must end it."""
    group = ctx.comm.split([0, 1])
    if ctx.rank == 0:
        seen = []
        thread = threading.Thread(target=lambda: seen.append(error_of(group.barrier, purpose="prefetch")[0]))
        thread.start()
        time.sleep(1.0)  # the thread is in the barrier by then
        ctx.comm.abort()
        thread.join(ENOUGH_S)
        return seen[0], group.closed
    assert "a peer ended" in error_of(ctx.comm.barrier)[0]
    return None


def test_aborting_the_parent_ends_its_groups():
    message, closed = run_distributed(2, abort_while_a_group_waits, ENOUGH_S, comm_timeout_s=NEVER_S)[0]
    assert message.startswith("rank 0 (group of ranks 0, 1), outside a step: barrier of prefetch was interrupted")
    assert closed


def test_a_blocking_call_of_mpi_is_left_behind_at_the_deadline():
    release = threading.Event()
    with pytest.raises(DeadlineError):
        _call_in_thread(release.wait, Deadline(0.2))
    release.set()
    assert _call_in_thread(lambda: 3, Deadline(5.0)) == 3
    with pytest.raises(KeyError):
        _call_in_thread({}.popitem, Deadline(5.0))


# ---- torch's own users of a group ----


def train_in_a_group(ctx):
    group = halves(ctx.comm)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group.process_group)
    model(torch.full((1, 1), float(ctx.rank))).sum().backward()
    return model.module.weight.grad.item()


def test_gradients_are_averaged_within_a_group():
    assert run_distributed(4, train_in_a_group, ENOUGH_S) == [1.0, 2.0, 1.0, 2.0]
