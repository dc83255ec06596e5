"""Asking the owners: answers are right, in order, and what travels is what was asked of others."""

import pytest
import torch

from fastsample_dist.comm.owners import Lists, ask_owners
from fastsample_dist.testing import run_distributed

RANGES = torch.tensor([0, 6, 6, 11, 20])  # a rank that owns nothing
IDS = {0: [19, 3, 0, 7, 12, 5], 1: [6, 2, 18], 2: [], 3: [13, 14, 4, 9]}


def square_lists(ids):
    """Of id i: i % 4 entries i * i, each with a second value."""
    counts = ids.long() % 4
    first = (ids.long() ** 2).repeat_interleave(counts)
    return counts, torch.stack([first, -first])


def ask(ctx, dtype):
    ids = torch.tensor(IDS[ctx.rank], dtype=dtype)
    ctx.comm.reset_stats()
    request = ask_owners(ids, RANGES, ctx.comm, purpose="ids")
    lo, hi = RANGES[ctx.rank], RANGES[ctx.rank + 1]
    assert all(bool(((part >= lo) & (part < hi)).all()) for part in (request.own, request.asked))
    received = request.reply_rows(request.asked.float()[:, None] / 2, purpose="rows")
    assert torch.equal(request.in_order(request.own.float()[:, None] / 2, received), ids.float()[:, None] / 2)

    counts, values = square_lists(request.asked)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    lists = request.reply_lists(indptr, values, purpose="lists")
    indptr, values = request.lists_in_order(Lists(*square_lists(request.own)), lists)
    counts, expected = square_lists(ids)
    assert torch.equal(indptr.diff(), counts) and torch.equal(values, expected)
    return ctx.comm.stats(), int(((ids < lo) | (ids >= hi)).sum())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_answers_come_back_in_order_and_own_ids_do_not_travel(dtype):
    for stats, num_foreign in run_distributed(4, ask, args=(dtype,)):
        assert stats["ids"] == {**stats["ids"], "calls": 1, "bytes_sent": num_foreign * dtype.itemsize}
        assert stats["rows"] == {**stats["rows"], "calls": 1, "bytes_received": num_foreign * 4}
        assert stats["lists"]["calls"] == 1 and stats["counts"]["calls"] == 2


def ask_for_nobody(ctx):
    with pytest.raises(ValueError, match="20"):
        ask_owners(torch.tensor([20]), RANGES[:3] + 9, ctx.comm, purpose="ids")


def test_an_id_that_no_rank_owns_is_refused():
    run_distributed(2, ask_for_nobody)


def send_back(ctx):
    """What this rank got, by (rank, position): (id, sending rank, place in its list)."""
    ids = torch.tensor(IDS[ctx.rank], dtype=torch.int64)
    request = ask_owners(ids, RANGES, ctx.comm, purpose="ids")
    rows = torch.stack([ids, torch.full_like(ids, ctx.rank), torch.arange(ids.numel())], dim=1)
    ctx.comm.reset_stats()
    grouped = torch.empty_like(rows)
    grouped[request.places] = rows
    received, own = request.send_rows(grouped, purpose="back"), grouped[slice(*request.own_span)]
    assert torch.equal(received[:, 0], request.asked) and torch.equal(own[:, 0], request.own)
    calls = {purpose: count["calls"] for purpose, count in ctx.comm.stats().items()}
    assert calls == {"back": 1}  # no plan of its own
    found = request.by_rank(own, received)
    assert torch.equal(request.by_rank(request.own, request.asked), found[:, 0])
    return found.tolist()


def test_rows_sent_after_the_ids_arrive_by_rank_and_position():
    for rank, found in enumerate(run_distributed(4, send_back)):
        owned = range(int(RANGES[rank]), int(RANGES[rank + 1]))
        assert found == [[i, asker, at] for asker in range(4) for at, i in enumerate(IDS[asker]) if i in owned]
