"""Facts about row exchanges and long messages."""

import torch

from tests.comm.oracle import DTYPES, FACTS, assert_same, count_between, expected_at, fact, rows_between, sent_by

# ---- rows ----


def check_dtype(dtype):
    def rows_of_dtype(comm):
        rows, counts = sent_by(comm, dtype=dtype)
        got, got_counts = comm.all_to_all_rows(rows, counts)
        expected, expected_counts = expected_at(comm, dtype=dtype)
        assert_same(got, expected)
        assert got_counts == expected_counts

    return rows_of_dtype


for _dtype in DTYPES:
    FACTS[f"rows_arrive_grouped_by_source_{str(_dtype).removeprefix('torch.')}"] = check_dtype(_dtype)


@fact
def rows_may_have_one_dimension(comm):
    rows, counts = sent_by(comm, width=1)
    got, _ = comm.all_to_all_rows(rows.flatten(), counts)
    assert_same(got, expected_at(comm, width=1)[0].flatten())


@fact
def rows_may_have_three_dimensions(comm):
    rows, counts = sent_by(comm, width=6)
    got, _ = comm.all_to_all_rows(rows.reshape(-1, 2, 3), counts)
    assert_same(got, expected_at(comm, width=6)[0].reshape(-1, 2, 3))


@fact
def rows_may_be_strided(comm):
    rows, counts = sent_by(comm, dtype=torch.float32, width=4)
    got, _ = comm.all_to_all_rows(rows.repeat(1, 2)[:, ::2], counts)
    wide = expected_at(comm, dtype=torch.float32, width=4)[0]
    assert_same(got, wide.repeat(1, 2)[:, ::2].contiguous())


@fact
def rows_may_be_a_column_of_one_row_or_none(comm):
    table = torch.arange(6.0).reshape(1, 6) + comm.rank
    for first_rank in (1, 0):  # sends a row to rank 0; another one, none
        count = int(comm.rank >= first_rank)
        got, _ = comm.all_to_all_rows(table[:count, 1], [count] + [0] * (comm.world_size - 1))
        assert got.tolist() == ([1.0 + rank for rank in range(first_rank, comm.world_size)] if comm.rank == 0 else [])


@fact
def rows_may_have_no_columns(comm):
    counts = [count_between(comm.rank, dst) for dst in range(comm.world_size)]
    got, got_counts = comm.all_to_all_rows(torch.empty(sum(counts), 0), counts)
    assert got.shape == (sum(got_counts), 0)
    assert got_counts == [count_between(src, comm.rank) for src in range(comm.world_size)]


@fact
def one_rank_may_send_everything(comm):
    count = 5 if comm.rank == 0 else 0
    rows = torch.cat([rows_between(comm.rank, dst, count=count) for dst in range(comm.world_size)])
    got, got_counts = comm.all_to_all_rows(rows, [count] * comm.world_size)
    assert_same(got, rows_between(0, comm.rank, count=5))
    assert got_counts == [5] + [0] * (comm.world_size - 1)


@fact
def nobody_may_send_anything(comm):
    got, got_counts = comm.all_to_all_rows(torch.empty(0, 4), [0] * comm.world_size)
    assert got.shape == (0, 4)
    assert got_counts == [0] * comm.world_size


@fact
def counts_may_be_a_tensor(comm):
    rows, counts = sent_by(comm)
    got, _ = comm.all_to_all_rows(rows, torch.tensor(counts))
    assert_same(got, expected_at(comm)[0])


@fact
def a_plan_knows_what_comes_and_the_longest_message(comm):
    world = range(comm.world_size)
    plan = comm.plan_rows([count_between(comm.rank, dst) for dst in world])
    assert plan.recv_counts == [count_between(src, comm.rank) for src in world]
    longest = max((count_between(src, dst) for src in world for dst in world if src != dst), default=0)
    assert plan.max_message_rows == longest


@fact
def a_reversed_plan_brings_rows_home(comm):
    rows, counts = sent_by(comm, dtype=torch.bfloat16)
    plan = comm.plan_rows(counts)
    there = comm.exchange_rows(rows, plan, purpose="there")
    assert_same(comm.exchange_rows(there, plan.reversed(), purpose="back"), rows)


@fact
def the_result_shares_no_memory_with_the_input(comm):
    rows, counts = sent_by(comm)
    got, _ = comm.all_to_all_rows(rows, counts)
    rows.zero_()
    assert_same(got, expected_at(comm)[0])


@fact
def rows_that_require_grad_travel_without_it(comm):
    rows, counts = sent_by(comm, dtype=torch.float32)
    got, _ = comm.all_to_all_rows(rows.requires_grad_(), counts)
    assert not got.requires_grad


# ---- long messages ----


def check_chunks(limit_bytes):
    def chunked_rows(comm):
        comm.max_message_bytes = limit_bytes
        rows, counts = sent_by(comm, dtype=torch.float32, width=5)
        got, _ = comm.all_to_all_rows(rows, counts)
        assert_same(got, expected_at(comm, dtype=torch.float32, width=5)[0])

    return chunked_rows


for _limit in (1, 7, 20, 1000):
    FACTS[f"rows_in_rounds_of_{_limit}_bytes_arrive_alike"] = check_chunks(_limit)


@fact
def rounds_change_neither_calls_nor_bytes(comm):
    rows, counts = sent_by(comm)
    comm.reset_stats()
    comm.all_to_all_rows(rows, counts)
    whole = comm.stats()
    comm.reset_stats()
    comm.max_message_bytes = 3
    comm.all_to_all_rows(rows, counts)
    assert comm.stats() == whole


@fact
def all_reduce_in_parts_gives_the_same_sum(comm):
    comm.max_message_bytes = 12
    tensor = torch.arange(10.0) + comm.rank
    comm.all_reduce(tensor, purpose="sum")
    world = comm.world_size
    assert_same(tensor, torch.arange(10.0) * world + world * (world - 1) / 2)


@fact
def broadcast_in_parts_gives_the_same_values(comm):
    comm.max_message_bytes = 7
    tensor = torch.arange(10) if comm.rank == 0 else torch.zeros(10, dtype=torch.int64)
    assert_same(comm.broadcast(tensor, purpose="values"), torch.arange(10))


@fact
def all_gather_object_in_parts_gives_the_same_objects(comm):
    comm.max_message_bytes = 11
    got = comm.all_gather_object(list(range(comm.rank * 40)), purpose="objects")
    assert got == [list(range(rank * 40)) for rank in range(comm.world_size)]


@fact
def messages_of_a_megabyte_arrive(comm):
    rows = torch.arange(comm.world_size * 2**18, dtype=torch.int32).reshape(-1, 4) + comm.rank
    got, _ = comm.all_to_all_rows(rows, [2**16] * comm.world_size)
    mine = slice(comm.rank * 2**16, (comm.rank + 1) * 2**16)
    assert_same(got, torch.cat([rows[mine] - comm.rank + src for src in range(comm.world_size)]))
