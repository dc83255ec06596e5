"""Facts about what is counted, and about refusals and their messages."""

import pickle

import pytest
import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.rows import RowPlan, Share
from tests.comm.oracle import count_between, counted, fact, named, others, sent_by

# ---- counts ----


@fact
def row_bytes_are_exact_without_the_own_chunk(comm):
    rows, counts = sent_by(comm, dtype=torch.float16, width=5)
    comm.reset_stats()
    comm.all_to_all_rows(rows, counts, purpose="feature_rows")
    sent = sum(count_between(comm.rank, dst) for dst in others(comm)) * 5 * 2
    received = sum(count_between(src, comm.rank) for src in others(comm)) * 5 * 2
    control = 16 * (comm.world_size - 1)
    assert comm.stats() == {"counts": counted(1, control, control), "feature_rows": counted(1, sent, received)}


@fact
def the_reply_needs_no_second_plan(comm):
    rows, counts = sent_by(comm)
    comm.reset_stats()
    plan = comm.plan_rows(counts)
    comm.exchange_rows(comm.exchange_rows(rows, plan, purpose="a"), plan.reversed(), purpose="b")
    stats = comm.stats()
    assert {purpose: entry["calls"] for purpose, entry in stats.items()} == {"counts": 1, "a": 1, "b": 1}
    assert (stats["a"]["bytes_sent"], stats["a"]["bytes_received"]) == (
        stats["b"]["bytes_received"],
        stats["b"]["bytes_sent"],
    )


@fact
def notes_come_with_the_plan(comm):
    rows, counts = sent_by(comm)
    comm.reset_stats()
    plan = comm.plan_rows(counts, note=2**62 - comm.rank)
    assert plan.notes == [2**62 - rank for rank in range(comm.world_size)]
    control = 24 * (comm.world_size - 1)
    assert comm.stats() == {"counts": counted(1, control, control)}
    assert torch.equal(comm.exchange_rows(rows, plan, purpose="a"), comm.all_to_all_rows(rows, counts)[0])


@fact
def a_share_of_the_bytes_is_counted_apart_without_a_call(comm):
    rows, counts = sent_by(comm)
    comm.all_to_all_rows(rows, counts, purpose="whole")
    whole = comm.stats()["whole"]
    plan = comm.plan_rows(counts)
    comm.reset_stats()
    comm.exchange_rows(rows, plan, purpose="rest", share=Share("apart", 3, 5))
    sent, received = whole["bytes_sent"] - 3, whole["bytes_received"] - 5
    assert comm.stats() == {"rest": counted(1, sent, received), "apart": counted(0, 3, 5)}


@fact
def all_reduce_bytes_are_those_of_the_tensor(comm):
    comm.reset_stats()
    comm.all_reduce(torch.ones(10, dtype=torch.bfloat16), purpose="gradients")
    comm.all_reduce_future(torch.ones(10, dtype=torch.float64), purpose="gradients").wait()
    comm.all_reduce_start(torch.ones(10, dtype=torch.float32), purpose="gradients")()
    moved = 140 if comm.world_size > 1 else 0
    assert comm.stats() == {"gradients": counted(3, moved, moved)}


@fact
def broadcast_bytes_leave_the_source_once(comm):
    comm.reset_stats()
    src = comm.world_size - 1
    comm.broadcast(torch.zeros(6, dtype=torch.int32), src, purpose="model")
    moved = 24 if comm.world_size > 1 else 0
    expected = counted(1, moved, 0) if comm.rank == src else counted(1, 0, moved)
    assert comm.stats() == {"model": expected}


@fact
def object_bytes_are_the_pickled_ones(comm):
    comm.reset_stats()
    comm.all_gather_object("x" * comm.rank, purpose="objects")
    sizes = [len(pickle.dumps("x" * rank)) for rank in range(comm.world_size)]
    own = sizes[comm.rank]
    sent = own if comm.world_size > 1 else 0
    assert comm.stats() == {"objects": counted(1, sent, sum(sizes) - own)}


@fact
def a_barrier_counts_calls_and_no_bytes(comm):
    comm.reset_stats()
    comm.barrier()
    comm.barrier(purpose="epoch")
    assert comm.stats() == {"barrier": counted(1, 0, 0), "epoch": counted(1, 0, 0)}


@fact
def a_duplicate_shares_the_counters(comm):
    copy = comm.duplicate()
    comm.reset_stats()
    copy.barrier(purpose="copy")
    comm.barrier(purpose="original")
    copy.close()
    assert comm.stats() == {"copy": counted(1, 0, 0), "original": counted(1, 0, 0)}


# ---- errors that need no second rank ----


def refusal(expected: type[Exception], call, *args, **kwargs) -> str:
    """The message of the error that the call must raise; no rank has communicated then."""
    with pytest.raises(expected) as refused:
        call(*args, **kwargs)
    message = str(refused.value)
    assert "\n" not in message
    return message


@fact
def a_wrong_number_of_counts_is_refused(comm):
    message = refusal(ValueError, comm.plan_rows, [0] * (comm.world_size + 1))
    assert f"expected world_size = {comm.world_size} counts" in message


@fact
def a_negative_count_is_refused(comm):
    assert "-1" in refusal(ValueError, comm.plan_rows, [0] * (comm.world_size - 1) + [-1])


@fact
def rows_that_do_not_fit_the_plan_are_refused(comm):
    plan = comm.plan_rows([1] * comm.world_size)
    message = refusal(ValueError, comm.exchange_rows, torch.zeros(comm.world_size + 1, 2), plan, purpose="rows")
    assert f"({comm.world_size + 1}, 2)" in message
    assert f"plan sends {comm.world_size} rows" in message


@fact
def a_plan_of_another_group_is_refused(comm):
    plan = RowPlan([0] * 9, [0] * 9, 0)
    assert "9 ranks" in refusal(ValueError, comm.exchange_rows, torch.zeros(0), plan, purpose="rows")


@fact
def an_unknown_op_is_refused(comm):
    assert "'mean'" in refusal(ValueError, comm.all_reduce, torch.zeros(1), op="mean", purpose="x")


@fact
def all_reduce_of_bool_is_refused(comm):
    assert "torch.bool" in refusal(ValueError, comm.all_reduce, torch.zeros(1, dtype=torch.bool), purpose="x")


@fact
def a_source_that_is_no_rank_is_refused(comm):
    assert "src is 99" in refusal(ValueError, comm.broadcast, torch.zeros(1), 99, purpose="x")


@fact
def a_closed_communicator_is_refused_by_name(comm):
    copy = comm.duplicate()
    copy.step = 812
    copy.close()
    copy.close()
    message = refusal(RuntimeError, copy.barrier, purpose="epoch")
    assert message == f"{named(comm)}, step 812: barrier of epoch refused: this communicator is closed."


# ---- errors between ranks ----


def doctored(comm: Communicator, change_rows: int) -> RowPlan:
    """A plan of one row to each rank in which this rank expects other rows from its right neighbour."""
    plan = comm.plan_rows([1] * comm.world_size)
    recv_counts = list(plan.recv_counts)
    recv_counts[(comm.rank + 1) % comm.world_size] += change_rows
    return RowPlan(plan.send_counts, recv_counts, plan.max_message_rows)


@fact
def ranks_that_disagree_on_rows_get_an_error_that_names_all(comm):
    copy = comm.duplicate()
    copy.verify_exchanges = True
    copy.step = 812
    plan = doctored(copy, 2)
    message = refusal(RuntimeError, copy.exchange_rows, torch.zeros(comm.world_size, 4), plan, purpose="feature_rows")
    neighbour = comm.run_ranks[(comm.rank + 1) % comm.world_size]
    assert message == (
        f"{named(comm)}, step 812: all_to_all of feature_rows got 1 rows from rank {neighbour}, expected 3."
    )
    again = refusal(RuntimeError, copy.barrier)
    assert "refused: this communicator failed before" in again
    assert "feature_rows" in again


@fact
def ranks_that_disagree_on_the_row_size_get_an_error(comm):
    if comm.world_size == 1:
        return
    copy = comm.duplicate()
    copy.verify_exchanges = True
    plan = copy.plan_rows([1] * comm.world_size)
    rows = torch.zeros(comm.world_size, 1 + comm.rank, dtype=torch.float32)
    message = refusal(RuntimeError, copy.exchange_rows, rows, plan, purpose="feature_rows")
    peer = 0 if comm.rank else 1
    assert f"got rows of {4 + 4 * peer} bytes from rank {comm.run_ranks[peer]}, expected {4 + 4 * comm.rank}" in message
