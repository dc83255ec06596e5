"""`fastsample-bench cache`: counts of hits against a simulation by sets, and the command on a small partition."""

import json

import pytest
import torch

from fastsample_dist.bench import cli, graphs
from fastsample_dist.bench.cache import replay
from fastsample_dist.bench.cache import verify as verify_module
from fastsample_dist.bench.cache.accesses import CacheOptions
from fastsample_dist.bench.cache.verify import verify
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.ops import SampleSpec
from tests.forked import run_python
from tests.parts import draw_partition


def options(tmp_path, **spec):
    return CacheOptions(
        source=GraphSource("none", tmp_path), num_parts=2, spec=SampleSpec(fanouts=(4, 2), **spec), batch_size=8,
        epochs=2, shares=(0.1,), lookahead=2,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["uniform", "weighted", "labor"])
def test_hits_are_those_of_a_simulation_by_sets(tmp_path, method):
    found = verify(options(tmp_path, method=method))
    assert found == {"comparisons": 55, "failures": []}


def test_a_wrong_count_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "lru_hits", lambda *_: -1)
    failures = verify(options(tmp_path))["failures"]
    assert len(failures) == len(verify_module.SHARES) and all(line.startswith("lru, ") for line in failures)


def test_bounds_hold_by_hand():
    """Two slots: Belady keeps what comes back, LRU what came last."""
    epochs = [[torch.tensor(step) for step in ([0, 1], [2], [0, 1], [3], [0])]]
    assert replay.belady_hits(epochs, 4, 2) == 5  # it begins with 0 and 1
    assert replay.lru_hits(epochs, 4, 2) == 1
    assert replay.static_hits(torch.tensor([3, 2, 1, 1]), torch.tensor([3, 0]), 2) == 4


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    parts = draw_partition(tmp_path, 3, num_edges=900).path
    arguments = ["--fanouts", "4,3", "--batch-size", "7", "--epochs", "3", "--shares", "5,20", "--verify"]
    assert cli.main(["cache", "--graph", str(parts), *arguments, "--json", str(tmp_path / "out.json")]) == 0
    shown, read = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    found = {entry["policy"]: entry for entry in read["policies"]}
    assert "verify: passed: 55 counts" in shown and f"{100 * found['vip']['hit_rates'][1]:.1f} (" in shown
    assert {"random", "degree", "presample K=1", "vip", "auto", "oracle", "lookahead 2", "belady", "lru"} <= set(found)
    assert found["oracle"]["of_oracle"] == [1.0, 1.0] and found["auto"]["hit_rates"] == found["vip"]["hit_rates"]
    for name, entry in found.items():
        best = found["belady" if name in ("lookahead 2", "belady", "lru") else "oracle"]
        assert all(rate <= most for rate, most in zip(entry["hit_rates"], best["hit_rates"], strict=True)), name
        assert (
            len(entry["score_s"]) == len(entry["score_cpu_s"]) == (0 if name in ("lookahead 2", "belady", "lru") else 3)
        )


def test_a_graph_without_train_nodes_gets_a_tenth_of_the_connected_ones(tmp_path, capsys, monkeypatch):
    """Its graph is drawn and cut by forked processes; test_graph_names.py has them start as commands."""
    monkeypatch.setattr(graphs, "run_process", lambda command, **_: run_python(*command[1:]))
    work = str(tmp_path)
    small = ["--fanouts", "3,2", "--batch-size", "9", "--epochs", "1", "--num-parts", "2", "--method", "weighted"]
    assert cli.main(["cache", "--graph", "rmat:8:4", *small, "--work", work, "--json", f"{work}/out.json"]) == 0
    out = capsys.readouterr().out
    assert "256 nodes" in out and "2 parts" in out
    assert json.loads((tmp_path / "out.json").read_text())["remote_rows_per_step"] > 0


@pytest.mark.parametrize("shares", ["", "5,101", "a"])
def test_shares_that_are_none_are_refused(shares, capsys):
    assert cli.main(["cache", "--graph", "rmat:8:4", "--shares", shares]) == 1
    assert "must be a list of percentages such as 1,5,10" in capsys.readouterr().err
