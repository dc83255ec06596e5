"""Figures of epochs as JSON lines and as TensorBoard events."""

import json
import sys

import pytest

from fastsample_dist.train.writers import JsonLinesWriter, TensorBoardWriter


def test_json_lines_are_complete_at_once_and_continue_a_file(tmp_path):
    path = tmp_path / "epochs.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({"epoch": 0, "loss": 1.5, "val_acc": None}, 17)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 17, "epoch": 0, "loss": 1.5}]
    writer.close()
    again = JsonLinesWriter(path)
    again.write({"epoch": 1, "loss": 1.25}, 34)
    again.close()
    again.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [17, 34]


def test_json_lines_refuse_a_directory_that_is_missing(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        JsonLinesWriter(tmp_path / "missing" / "epochs.jsonl")


def test_tensorboard_gets_one_curve_per_figure(tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    writer = TensorBoardWriter(tmp_path)
    writer.write({"epoch": 0, "loss": 1.5, "val_acc": None}, 17)
    writer.write({"epoch": 1, "loss": 1.25, "val_acc": 0.5}, 34)
    writer.close()
    found = reader.EventAccumulator(str(tmp_path)).Reload()
    assert found.Tags()["scalars"] == ["loss", "val_acc"]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(17, 1.5), (34, 1.25)]


def test_tensorboard_names_the_extra_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RuntimeError, match=r"pip install 'fastsample_dist\[tensorboard\]'"):
        TensorBoardWriter(tmp_path)
