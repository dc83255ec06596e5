"""agree_on: ranks that differ all get one line with what differs, the values and their ranks."""

import numpy as np
import pytest
import torch

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.names import rank_names
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi

SAME = "start all ranks with the same options."


def said(ctx, facts_by_rank, what=("DistLoader",) * 3):
    """What agree_on raises on this rank, "" for nothing; the communicator must be usable afterwards."""
    try:
        agree_on(ctx.comm, what[ctx.rank], facts_by_rank[ctx.rank])
    except ValueError as error:
        text = str(error)
    else:
        text = ""
    ctx.comm.barrier()
    return text


def on_ranks(*facts_by_rank, what=("DistLoader",) * 3):
    """The one text of all ranks."""
    (text,) = set(run_distributed(len(facts_by_rank), said, args=(facts_by_rank, what)))
    return text


def test_ranks_that_agree_continue():
    facts = {"fanouts": (15, 10), "lr": 0.006, "scheme": "hybrid", "dtype": None, "shuffle": True, "none": float("nan")}
    assert on_ranks(facts, dict(reversed(facts.items()))) == ""


def test_a_difference_names_the_option_the_ranks_and_the_values():
    text = on_ranks(
        {"batch_size": 500, "prefetch": 0}, {"batch_size": 1000, "prefetch": 0}, {"batch_size": 500, "prefetch": 0}
    )
    assert text == f"DistLoader: ranks differ in batch_size: 500 on ranks 0, 2; 1000 on rank 1; {SAME}"


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.006, 0.01), (0.1, 0.1 + 2**-55), ((15, 10), (15, 5)), ("1", 1), (1, 1.0), (True, 1), (None, "None")],
)
def test_values_are_compared_exactly(one, other):
    text = on_ranks({"option": one}, {"option": other})
    assert text == f"DistLoader: ranks differ in option: {one!r} on rank 0; {other!r} on rank 1; {SAME}"


def test_a_fact_that_one_rank_lacks_is_a_difference():
    assert "differ in seeds: not given on rank 0; 'given' on rank 1" in on_ranks({}, {"seeds": "given"})


def test_several_differences_are_named_and_many_are_counted():
    text = on_ranks(dict.fromkeys("abcdef", 0), dict.fromkeys("abcdef", 1))
    assert "differ in a: 0 on rank 0; 1 on rank 1; in b: " in text
    assert "; in d: " in text
    assert "; in e: " not in text
    assert f"; and 2 more; {SAME}" in text


def test_ranks_in_different_calls_are_named():
    text = on_ranks({"a": 1}, {"a": 1}, what=("DistLoader", "Trainer"))
    assert text.startswith("the ranks make different calls: DistLoader on rank 0; Trainer on rank 1; ")


def test_a_rank_that_refuses_its_input_is_heard_in_both_calls():
    def mixed(ctx):
        try:
            if ctx.rank == 0:
                agree(ctx, lambda: None)
            else:
                agree_on(ctx.comm, "Trainer", {})
        except ValueError as error:
            return str(error)
        return ""

    (text,) = set(run_distributed(2, mixed))
    assert "different calls: a check of the input on rank 0; Trainer on rank 1" in text


@pytest.mark.grid
@pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
def test_the_same_over_mpi():
    facts = ({"lr": 0.1}, {"lr": 0.2})
    assert set(run_mpi(2, said, args=(facts,))) == {
        f"DistLoader: ranks differ in lr: 0.1 on rank 0; 0.2 on rank 1; {SAME}"
    }


def test_it_counts_as_setup_and_agreeing_ranks_send_a_hash_each():
    def counted(ctx):
        ctx.comm.reset_stats()
        agree_on(ctx.comm, "Trainer", {f"option {number}": number for number in range(1000)})
        return ctx.comm.stats()

    for stats in run_distributed(2, counted):
        assert list(stats) == ["setup"]
        assert stats["setup"]["calls"] == 1
        assert stats["setup"]["bytes_sent"] < 200


def test_only_plain_values_are_facts():
    for number in (np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(3)):
        agree_on(LocalCommunicator(), "Trainer", {"lr": number})
    with pytest.raises(TypeError, match="the fact weights is a ndarray; expected a str"):
        agree_on(LocalCommunicator(), "Trainer", {"weights": np.zeros(3)})


def test_numbers_of_ranks_are_shortened():
    assert rank_names([3]) == "rank 3"
    assert rank_names([0, 1]) == "ranks 0, 1"
    assert rank_names([0, 2, 5, 6, 7, 8]) == "ranks 0, 2, 5-8"
