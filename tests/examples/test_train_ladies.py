"""train_ladies.py as it stands: on two ranks it learns, by every sampler."""

import json
import runpy
from pathlib import Path

import pytest

from tests.forked import run_forked
from tests.grids import grid
from tests.train.task import make_targets, make_task

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_ladies.py"
CHANCE = 0.25  # four classes


@pytest.mark.parametrize(
    ("sampler", "model"),
    grid(
        [("ladies", "sage"), ("ladies", "gcn"), ("fastgcn", "sage"), ("neighbor", "sage")],
        gate=[("ladies", "sage")], several=True,
    ),
)  # fmt: skip
def test_two_ranks_learn(tmp_path, sampler, model):
    parts, file = make_task(tmp_path, 2, dtype="float32").path, tmp_path / "out.json"
    options = (
        "--sampler", sampler, "--model", model, "--sizes", "60,60", "--fanouts", "5,5", "--batch-size", "20",
        "--hidden", "16", "--lr", "0.02", "--epochs", "8", "--json", str(file),
    )  # fmt: skip
    finished = run_forked(2, SCRIPT, [parts, *options])
    assert finished.returncode == 0, finished.stderr
    report = json.loads(file.read_text())
    losses = [epoch["loss"] for epoch in report["epochs"]]
    assert report["ranks"] == 2 and len(losses) == 8 and losses[-1] < losses[0]
    assert report["test_acc"] > 2 * CHANCE
    assert f"test accuracy {report['test_acc']:.4f}" in finished.stdout


def test_labels_that_are_no_classes_are_one_line(tmp_path, capsys):
    parts = make_targets(tmp_path, 1, "multilabel")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"]([str(parts), "--sizes", "60,60"])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        f'error: {parts} has labels for multilabel; expected data.task "classification"; pass parts with classes.'
    )


def test_results_that_cannot_be_written_are_refused_before_the_work(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"]([str(tmp_path / "parts"), "--json", str(tmp_path / "no" / "out.json")])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --json {tmp_path}/no/out.json cannot be written (No such file or directory); pass")
