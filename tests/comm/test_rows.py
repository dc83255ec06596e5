"""Row plans, rounds and counters, without any communication."""

import threading

import pytest
import torch

from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import CollectiveError, Deadline, DeadlineError, check_timeout_s
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.mpi import INT32_MAX, MPICommunicator
from fastsample_dist.comm.rows import RowPlan, Segments, exchange_staged, num_rounds, round_span
from fastsample_dist.ops.bytes import byte_view


@pytest.mark.parametrize(
    ("message_bytes", "limit_bytes", "rounds"),
    [
        (0, 10, 0),
        (1, 10, 1),
        (10, 10, 1),
        (11, 10, 2),
        (2**31, 2**30, 2),
        (2**31 + 1, 2**30, 3),
        (5 * 2**40, 2**30, 5120),
    ],
)
def test_number_of_rounds(message_bytes, limit_bytes, rounds):
    assert num_rounds(message_bytes, limit_bytes) == rounds


@pytest.mark.parametrize("message_bytes", [0, 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 3 * 2**32 + 17])
def test_spans_of_all_rounds_tile_the_message(message_bytes):
    limit_bytes = 2**30
    spans = [round_span(message_bytes, k, limit_bytes) for k in range(num_rounds(message_bytes, limit_bytes))]
    ends = [0, *(end for _, end in spans)]
    assert [begin for begin, _ in spans] == ends[:-1]
    assert ends[-1] == message_bytes


def test_no_span_is_longer_than_the_limit():
    spans = [round_span(2**33 + 5, k, 2**31 - 1) for k in range(num_rounds(2**33 + 5, 2**31 - 1))]
    assert max(end - begin for begin, end in spans) == 2**31 - 1


def test_a_finished_message_has_empty_spans():
    assert round_span(2**31, 7, 2**30) == (2**31, 2**31)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 64, 1024])
def test_a_whole_mpi_round_stays_below_two_to_the_31(world_size):
    class Sized(MPICommunicator):
        def __init__(self):
            self._max_message_bytes = 2**30
            self.world_size = world_size

    assert Sized()._limit_bytes() * world_size <= INT32_MAX


def test_reversed_plan_swaps_directions_and_keeps_the_longest_message():
    plan = RowPlan([1, 2, 3], [4, 5, 6], 6)
    assert plan.reversed() == RowPlan([4, 5, 6], [1, 2, 3], 6)
    assert plan.reversed().reversed() == plan


def segments(values, lengths):
    return Segments(torch.tensor(values, dtype=torch.uint8), lengths)


def test_staged_exchange_makes_the_agreed_rounds_even_when_it_has_nothing_to_send():
    calls = []
    exchange_staged(lambda into, out: calls.append(out.lengths), 0, segments([], [0, 0]), segments([], [0, 0]), (3, 4))
    assert calls == [[0, 0]] * 3


def test_staged_exchange_copies_the_own_piece_without_sending_it():
    sent = []
    into = segments([0, 0, 0], [3, 0])
    exchange_staged(lambda i, out: sent.append(out.buffer.tolist()), 0, into, segments([7, 8, 9, 1, 2], [3, 2]), (1, 2))
    assert into.buffer.tolist() == [7, 8, 9]
    assert sent == [[1, 2]]


def test_staged_exchange_sends_spans_in_order():
    sent = []
    exchange_staged(
        lambda i, out: sent.append((out.buffer.tolist(), out.lengths)),
        0,
        segments([], [0, 0, 0]),
        segments([1, 2, 3, 4, 5, 6], [0, 5, 1]),
        (3, 2),
    )
    assert sent == [([1, 2, 6], [0, 2, 1]), ([3, 4], [0, 2, 0]), ([5], [0, 1, 0])]


def test_staged_exchange_puts_spans_where_they_belong():
    into = segments([0] * 6, [5, 0, 1])
    came = iter([([1, 2, 6], [2, 0, 1]), ([3, 4], [2, 0, 0]), ([5], [1, 0, 0])])

    def exchange(round_into, out):
        values, lengths = next(came)
        assert round_into.lengths == lengths
        round_into.buffer.copy_(torch.tensor(values))

    exchange_staged(exchange, 1, into, segments([], [0, 0, 0]), (3, 2))
    assert into.buffer.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.int16])
def test_byte_view_shares_memory(dtype):
    tensor = torch.zeros(2, 3, dtype=dtype)
    byte_view(tensor).fill_(1)
    assert byte_view(tensor.clone()).tolist() == [1] * tensor.nbytes


@pytest.mark.parametrize("rows", [0, 1])
def test_byte_view_of_a_column_of_a_row_at_most(rows):
    """Contiguous whatever its stride, which `contiguous` leaves as it is."""
    column = torch.arange(6.0).reshape(1, 6)[:rows, 1].contiguous()
    assert byte_view(column).view(torch.float32).tolist() == [1.0] * rows


def test_byte_view_of_no_elements():
    assert byte_view(torch.empty(4, 0)).shape == (0,)


def test_counters_add_up_over_threads():
    counters = Counters()

    def count():
        for _ in range(1000):
            counters.add("rows", 3, 5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot() == {"rows": {"calls": 4000, "bytes_sent": 12000, "bytes_received": 20000}}


def test_counters_reset():
    counters = Counters()
    counters.add("rows", 1, 1)
    counters.reset()
    assert counters.snapshot() == {}


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "600", None, True])
def test_a_bad_timeout_is_refused_with_its_value(timeout_s):
    with pytest.raises(ValueError, match=f"timeout_s is {timeout_s}|timeout_s is '600'"):
        check_timeout_s(timeout_s)


def test_a_communicator_refuses_a_bad_timeout():
    with pytest.raises(ValueError, match="timeout_s is 0"):
        LocalCommunicator(timeout_s=0)


@pytest.mark.parametrize("limit_bytes", [0, -5, 1.5])
def test_a_communicator_refuses_a_bad_message_limit(limit_bytes):
    with pytest.raises(ValueError, match=f"max_message_bytes is {limit_bytes}"):
        LocalCommunicator(max_message_bytes=limit_bytes)


def test_a_deadline_that_passed_says_how_long_it_was():
    with pytest.raises(DeadlineError, match="did not finish within 1e-09 s"):
        Deadline(1e-9).check()


def test_a_deadline_ends_when_the_rank_leaves():
    aborted = threading.Event()
    deadline = Deadline(60.0, aborted)
    deadline.check()
    aborted.set()
    with pytest.raises(CollectiveError, match="this rank is leaving the run"):
        deadline.check()
