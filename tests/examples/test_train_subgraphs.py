"""train_subgraphs.py as it stands learns, in one process: its loader on more ranks has tests of its own."""

import re
import runpy
from pathlib import Path

import pytest

from tests.train.task import make_targets, make_task

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_subgraphs.py"
CHANCE = 0.25  # four classes


def test_it_learns(tmp_path, capsys):
    parts = make_task(tmp_path, 1, dtype="float32").path
    options = ["--budget", "60", "--frontier-size", "15", "--hidden", "16", "--lr", "0.02", "--epochs", "8"]
    runpy.run_path(str(SCRIPT))["main"]([str(parts), *options])
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert float(re.search(r"test accuracy (\S+)", printed)[1]) > 2 * CHANCE


def test_a_budget_below_the_walkers_is_one_line(tmp_path, capsys):
    parts = make_task(tmp_path, 1, dtype="float32").path
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"]([str(parts), "--budget", "500"])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: frontier_size is 1000 but budget is 500; ")


def test_labels_that_are_no_classes_are_one_line(tmp_path, capsys):
    parts = make_targets(tmp_path, 1, "regression")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"]([str(parts)])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        f'error: {parts} has labels for regression; expected data.task "classification"; pass parts with classes.'
    )
