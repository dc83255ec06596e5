"""The loss shares of ranks, and the counts of parts of a run."""

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.train.metrics import CommTally, global_sum, num_correct, payload_exchanges, seed_loss

LOGITS = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 1.0]])
LABELS = torch.tensor([0, 0, 1])


def test_shares_of_two_ranks_add_up_to_the_mean():
    shares = seed_loss(LOGITS[:1], LABELS[:1], 3) + seed_loss(LOGITS[1:], LABELS[1:], 3)
    torch.testing.assert_close(shares, F.cross_entropy(LOGITS, LABELS))


def test_bfloat16_logits_are_widened():
    assert seed_loss(LOGITS.bfloat16(), LABELS, 3).dtype == torch.float32


def test_no_seeds_cost_nothing():
    assert seed_loss(LOGITS[:0], LABELS[:0], 5).item() == 0


@pytest.mark.parametrize(("count", "seeds"), [(2, 3), (0, 0)])
def test_a_count_of_global_seeds_that_is_too_small_is_refused(count, seeds):
    with pytest.raises(ValueError, match=f"num_global_seeds is {count} but this rank has {seeds} seeds"):
        seed_loss(LOGITS[:seeds], LABELS[:seeds], count)


def test_the_first_of_equal_logits_counts():
    assert num_correct(LOGITS, LABELS) == 1


def test_a_tally_counts_its_blocks_only():
    comm = LocalCommunicator()
    tally = CommTally(comm)
    for _ in range(2):
        global_sum(comm, [1.0])
        with tally:
            comm.barrier(purpose="inside")
    assert tally.stats == {"inside": {"calls": 2, "bytes_sent": 0, "bytes_received": 0}}


def test_a_tally_adds_bytes():
    comm = LocalCommunicator()
    tally = CommTally(comm)
    for sent in (3, 4):
        comm._counters.add("rows", 100, 100)
        with tally:
            comm._counters.add("rows", sent, 10 * sent)
    assert tally.stats == {"rows": {"calls": 2, "bytes_sent": 7, "bytes_received": 70}}


def test_a_tally_has_bytes_that_came_with_the_calls_of_another_purpose():
    comm = LocalCommunicator()
    with CommTally(comm) as tally:
        comm._counters.add("ids", 5, 6, calls=0)
    assert tally.stats == {"ids": {"calls": 0, "bytes_sent": 5, "bytes_received": 6}}


def test_payload_exchanges_are_ids_replies_and_rows():
    calls = {"sample_ids": 4, "feature_rows": 2, "counts": 9, "gradients": 5}
    stats = {purpose: {"calls": count, "bytes_sent": 0, "bytes_received": 0} for purpose, count in calls.items()}
    assert payload_exchanges(stats) == 6
