"""Roles as an option, and what the formulas predict: the worked examples, the bound by cores, the choice."""

import io
import math
from dataclasses import replace

import pytest

import fastsample_dist as fsd
from fastsample_dist.pipeline.roles import (
    EpochShape,
    StageTimes,
    as_roles,
    choose_roles,
    paper_samplers,
    predict_factored,
    predict_time_sharing,
    switching_profit,
)

MANY = 100_000  # tasks: filling and draining the pipeline do not show


def test_roles_are_written_and_read_as_samplers_plus_trainers():
    roles = fsd.Roles.parse("1+3")
    assert roles == fsd.Roles(samplers=1, trainers=3)
    assert str(roles) == "1+3"
    assert [roles.is_sampler(rank) for rank in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(("wanted", "meant"), [("none", "none"), ("auto", "auto"), ("2+2", fsd.Roles(2, 2))])
def test_an_option_of_roles_is_read(wanted, meant):
    assert as_roles(wanted) == meant
    assert as_roles(meant) == meant


@pytest.mark.parametrize("wanted", ["", "4", "1-3", "1+3+1", "-1+3", "all", "1+x"])
def test_other_words_are_refused(wanted):
    with pytest.raises(ValueError, match=r"^roles '.*' is not SAMPLERS\+TRAINERS; pass two numbers, such as 1\+3, "):
        as_roles(wanted)


@pytest.mark.parametrize("wanted", ["0+2", "2+0"])
def test_roles_need_one_rank_of_each_kind(wanted):
    with pytest.raises(ValueError, match="needs at least 1 sampler and 1 trainer"):
        as_roles(wanted)


@pytest.mark.parametrize("wanted", [None, 3, (1, 3)])
def test_other_types_are_refused(wanted):
    with pytest.raises(ValueError, match="expected 'none', 'auto', 'S\\+T' such as '1\\+3', or Roles"):
        as_roles(wanted)


def test_roles_of_another_number_of_ranks_are_refused():
    fsd.Roles(1, 3).check(4)
    with pytest.raises(ValueError, match=r"^roles 1\+3 are 4 ranks but world_size is 2; start 4 ranks or pass "):
        fsd.Roles(1, 3).check(2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"samplers": 0}, "an integer >= 1"),
        ({"trainers": -1}, "an integer >= 1"),
        ({"trainers": 1.5}, "an integer >= 1"),
        ({"queue_bytes": 4095}, "an integer >= 4096"),
        ({"times": 3}, "StageTimes or None"),
    ],
)
def test_what_is_no_roles_is_refused(given, expected):
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name} is .*; expected {expected}\.$"):
        fsd.Roles(**{"samplers": 1, "trainers": 1, **given})


def test_times_must_be_seconds():
    with pytest.raises(ValueError, match="^fetch_s is nan; expected seconds >= 0.$"):
        StageTimes(1.0, math.nan, 1.0)
    with pytest.raises(ValueError, match="^sample_s is '0.5'; expected seconds >= 0.$"):
        StageTimes("0.5", 1.0, 1.0)


def of_a_task(seconds: float) -> float:
    """Per task, in digits that filling and draining do not change."""
    return round(seconds / MANY, 3)


def test_the_papers_number_of_samplers_need_not_be_the_best():
    """R = 8, K = 6.5: 2 samplers 1.083 Ts a task, 1 sampler 1.0."""
    times, shape = StageTimes(1.0, 0.0, 6.5), EpochShape(MANY, switching=False)
    assert paper_samplers(times, 8) == 2
    assert of_a_task(predict_factored(times, shape, 2, 6)) == 1.083
    assert of_a_task(predict_factored(times, shape, 1, 7)) == 1.0


EPOCH_RMAT19 = StageTimes(0.006, 0.025, 0.150)  # benchmarks/epoch-rmat19.md of an earlier commit, a thread per rank


@pytest.mark.parametrize(("switching", "factored"), [(False, 0.175), (True, 0.0905)])
def test_on_cpu_ranks_factoring_loses_and_switching_gives_it_back(switching, factored):
    shape = EpochShape(MANY, cores=2, group_size=2, switching=switching)
    assert round(predict_time_sharing(EPOCH_RMAT19, shape, 2) / MANY, 4) == 0.0905
    assert round(predict_factored(EPOCH_RMAT19, shape, 1, 1) / MANY, 4) == factored
    assert choose_roles(EPOCH_RMAT19, shape, 2).chosen is None


def test_a_cache_that_the_freed_memory_allows_makes_factoring_win():
    """Fetching takes 3.64 s an epoch beside the topology and 0.49 s without it (GNNLab, table 5, GCN on papers)."""
    times = StageTimes(0.79e-3, 3.64e-3, 4.0e-3, fetch_factored_s=0.49e-3, handover_s=0.18e-3)
    choice = choose_roles(times, EpochShape(MANY), 8)
    assert choice.chosen is not None
    assert min(choice.rows, key=lambda row: row.seconds).roles == choice.chosen


@pytest.mark.parametrize("cores", [1, 2, 3.5, 8, math.inf])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_prediction_is_below_the_work_divided_by_the_cores(cores, overlap):
    times = StageTimes(2.0, 1.0, 3.0)
    shape = EpochShape(400, cores=cores, group_size=4, prefetches=overlap, fetches_ahead=overlap)
    rows = choose_roles(times, shape, 4).rows
    assert [row.name for row in rows] == ["none", "1+3", "2+2", "3+1"]
    assert all(row.seconds >= 400 * 6.0 / cores for row in rows)


def test_of_equal_predictions_time_sharing_is_taken():
    assert choose_roles(StageTimes(0.0, 0.0, 0.0), EpochShape(10), 3).chosen is None


def test_one_rank_has_no_split():
    choice = choose_roles(StageTimes(1.0, 1.0, 1.0), EpochShape(10), 1)
    assert choice.chosen is None
    assert [row.name for row in choice.rows] == ["none"]


def test_more_trainers_than_tasks_of_a_group_wait():
    """Without staleness, 3 trainers do a group of 2 tasks no faster than 2 do; a group of 4 takes them two rounds."""
    times = StageTimes(1e-9, 0.0, 1.0)
    for group_size, rounds in ((2, 1), (3, 1), (4, 2), (6, 2), (7, 3)):
        shape = EpochShape(100 * group_size, group_size=group_size, switching=False)
        assert predict_factored(times, shape, 1, 3) == pytest.approx(100 * rounds, rel=1e-6)
    stale = EpochShape(400, group_size=2, staleness=1, switching=False)
    assert predict_factored(times, stale, 1, 3) == pytest.approx(400 / 3, rel=2e-2)


def test_the_choice_is_printed_with_the_papers_rule_beside_it():
    rich = pytest.importorskip("rich.console")
    choice = choose_roles(StageTimes(1.0, 0.0, 6.5), EpochShape(1000, group_size=8), 8)
    console = rich.Console(width=110, record=True, file=io.StringIO())
    console.print(choice.table())
    text = console.export_text()
    assert "roles: sample 1000.0, fetch 0.0, train 6500.0 ms a task" in text
    assert "GNNLab's ceil(R / (K + 1))" in next(line for line in text.splitlines() if " 2+6 " in line)
    assert "chosen" in next(line for line in text.splitlines() if " none " in line)
    assert "GNNLab's rule: 2 samplers" in str(choice)


@pytest.mark.parametrize(
    ("remaining", "active", "standby", "profit"),
    [(10, [2.0], 3.0, 17.0), (1, [2.0], 2.0, 0.0), (6, [2.0, 2.0], 3.0, 3.0), (6, [3.0, 1.5], 7.0, -1.0)],
)
def test_the_profit_of_switching(remaining, active, standby, profit):
    assert switching_profit(remaining, active, standby) == pytest.approx(profit)


def test_without_a_trainer_at_work_switching_always_pays():
    assert switching_profit(1, [], 100.0) == math.inf


def test_ranks_that_train_for_one_update_wait_for_the_slowest():
    """A step or a group takes the skew longer where several ranks work on it and all wait for its update."""
    even, uneven = (StageTimes(0.0, 0.0, 1.0, skew_s=skew_s) for skew_s in (0.0, 0.25))
    shape = EpochShape(80, group_size=2, switching=False)

    def longer(predict, shape=shape):
        return predict(uneven, shape) - predict(even, shape)

    assert longer(lambda times, shape: predict_time_sharing(times, shape, 2)) == 40 * 0.25
    assert longer(lambda times, shape: predict_time_sharing(times, shape, 1)) == 0
    assert longer(lambda times, shape: predict_factored(times, shape, 1, 2)) == pytest.approx(40 * 0.25)
    assert longer(lambda times, shape: predict_factored(times, shape, 1, 1)) == 0
    assert longer(lambda times, shape: predict_factored(times, shape, 1, 2), replace(shape, staleness=1)) == 0
    switching = replace(shape, switching=True)
    assert longer(lambda times, shape: predict_factored(times, shape, 1, 1), switching) == pytest.approx(40 * 0.25)
