"""A training run with a feature cache: the same losses, and what it reports of the cache."""

import io
import json

import pytest
from rich.console import Console

import fastsample_dist as fsd
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.cli import parse_arguments
from fastsample_dist.train.metrics import EpochTotals
from fastsample_dist.train.report import epoch_line, epoch_table
from tests.train.task import FEATURE_DIM, make_task

CACHE = CacheReport(own=5, cached=3, exchanged=1, oracle_hits=4, policy="vip").as_json()


def train(ctx, path, folder):
    """Per cache: (the run's report, the lines of its --jsonl file); of rank 0."""
    found = []
    for name, given in {
        "off": {}, "on": {"cache": "2kB"}, "ahead": {"cache": "2kB", "lookahead": 2, "prefetch": 1}
    }.items():  # fmt: skip
        jsonl = folder / f"{name}.jsonl"
        config = fsd.train.TrainConfig(
            data=path, epochs=2, batch_size=20, fanouts=(4, 3), hidden=16, threads=1, jsonl=jsonl,
            transport="exchange", **given,
        )  # fmt: skip
        report = fsd.train.run(config, ctx).report
        found.append((report, [json.loads(line) for line in jsonl.read_text().splitlines()] if ctx.rank == 0 else []))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return run_distributed(2, train, args=(make_task(folder, 2, dtype="float32").path, folder))[0]


def test_losses_and_scores_are_those_without_a_cache(runs):
    (off, _), *others = runs
    for report, _ in others:
        assert [epoch["loss"] for epoch in report["epochs"]] == [epoch["loss"] for epoch in off["epochs"]]
        assert (report["val_acc"], report["test_acc"]) == (off["val_acc"], off["test_acc"])


def test_every_epoch_and_the_run_have_a_report_over_all_ranks(runs):
    (off, off_lines), *others = runs
    assert off["cache"] is None and "cache" not in off_lines[0]
    for report, lines in others:
        epochs = [epoch["cache"] for epoch in report["epochs"]]
        assert epochs == [line["cache"] for line in lines] and len(epochs) == 2
        for name in ("own", "neighbour", "cached", "kept", "exchanged"):
            assert sum(epoch[name] for epoch in epochs) == report["cache"][name]
        assert report["cache"]["policy"] == "vip" and 0 < report["cache"]["hit_rate"] <= 1
        assert report["comm"]["feature_rows"]["bytes_received"] > 0
    assert others[1][0]["cache"]["kept"] > 0 and others[1][0]["exchange"] == "paired"


def test_bytes_saved_are_those_that_travel_without_a_cache(runs):
    (off, _), (on, _), _ = runs
    moved = [sum(run["comm"][purpose]["bytes_received"] for purpose in ("feature_rows",)) for run in (off, on)]
    assert moved[0] > moved[1]
    rows = on["cache"]["cached"] + on["cache"]["exchanged"]
    assert on["cache"]["bytes_saved"] == on["cache"]["cached"] * (4 * FEATURE_DIM + 4) and rows > 0


def test_the_command_states_a_cache():
    config = parse_arguments(["--data", "x", "--cache", "2GiB", "--cache-policy", "degree", "--lookahead", "3"])
    assert config.feature_cache() == fsd.FeatureCache(2 << 30, "degree", lookahead=3)
    assert config.as_json()["cache"] == 2 << 30
    assert parse_arguments(["--data", "x"]).feature_cache() is None


@pytest.mark.parametrize(
    "given, said",
    [
        (["--cache", "much"], "--cache: 'much' is not a size; expected a number with B, kB, MB, GB, TB, MiB or GiB"),
        (["--cache-policy", "hot"], "argument --cache-policy: invalid choice: 'hot'"),
        (["--lookahead", "-1"], "--lookahead is -1; expected an integer >= 0."),
        (["--lookahead", "2"], "--lookahead is 2 without a cache; pass --cache SIZE too."),
        (["--lookahead", "101", "--cache", "2kB"], "--lookahead is 101; expected at most 100 batches."),
        (["--cache-policy", "vip"], "--cache-policy is vip without a cache; pass --cache SIZE too."),
    ],
    ids=["size", "policy", "lookahead", "lookahead without a cache", "far lookahead", "policy without a cache"],
)
def test_the_command_refuses_in_one_line(given, said):
    with pytest.raises(ValueError) as refused:
        parse_arguments(["--data", "x", *given])
    assert str(refused.value).startswith(said)


def test_hit_rates_stand_in_the_epoch_s_line_and_in_the_table():
    stats = EpochTotals(num_seeds=1).stats(0)
    assert "val 0.5000  cache hits 75.0 % (oracle 100.0 %)  " in epoch_line(stats, {"val_acc": 0.5, "cache": CACHE})
    out = io.StringIO()
    epochs = [{"epoch": 0, "cache": CACHE}, {"epoch": 1}]
    Console(file=out, width=150).print(epoch_table(epochs))
    lines = [line for line in out.getvalue().splitlines() if "│" in line]
    assert "75.0 % (oracle 100.0 %)" in lines[0] and "%" not in lines[1]
