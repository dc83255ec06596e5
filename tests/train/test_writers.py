"""Figures of epochs as JSON lines and as TensorBoard events."""

import json
import shutil
import sys

import pytest

from fastsample_dist.train.writers import JsonLinesWriter, TensorBoardWriter
from tests.small_disk import small_files


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


def test_json_lines_have_null_for_what_is_no_number(tmp_path):
    writer = JsonLinesWriter(tmp_path / "epochs.jsonl")
    writer.write({"val_acc": float("nan"), "ranks": [{"seconds": float("inf")}]}, 17)
    found = json.loads((tmp_path / "epochs.jsonl").read_text(), parse_constant=pytest.fail)
    assert found == {"step": 17, "val_acc": None, "ranks": [{"seconds": None}]}


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


# ---- a disk that refuses ----


def lines_of(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def scalars_of(directory, name):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    return [(event.step, event.value) for event in reader.EventAccumulator(str(directory)).Reload().Scalars(name)]


def test_lines_that_do_not_fit_are_kept_and_written_when_there_is_room(tmp_path):
    path = tmp_path / "epochs.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({"epoch": 0}, 1)
    with small_files(path.stat().st_size + 5):  # half a line fits
        for step in (2, 3):
            with pytest.raises(OSError) as raised:
                writer.write({"epoch": step - 1}, step)
            assert raised.value.filename == str(path)
            assert lines_of(path) == [1]
    writer.write({"epoch": 3}, 4)
    assert lines_of(path) == [1, 2, 3, 4]


def test_what_waits_is_written_by_close(tmp_path):
    writer = JsonLinesWriter(tmp_path / "epochs.jsonl")
    with small_files(5), pytest.raises(OSError):
        writer.write({"epoch": 0}, 1)
    writer.close()
    writer.close()
    assert lines_of(tmp_path / "epochs.jsonl") == [1]


def test_a_directory_that_was_deleted_is_made_again(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "logs").mkdir()
    lines = JsonLinesWriter(tmp_path / "logs" / "epochs.jsonl")
    board = TensorBoardWriter(tmp_path / "board")
    for step in (1, 2, 3):
        for writer in (lines, board):
            writer.write({"loss": 1.0 / step}, step)
        if step == 1:
            shutil.rmtree(tmp_path / "logs")
            shutil.rmtree(tmp_path / "board")
    assert lines_of(tmp_path / "logs" / "epochs.jsonl") == [2, 3]
    assert scalars_of(tmp_path / "board", "loss") == [(2, 0.5), (3, pytest.approx(1 / 3))]


def test_tensorboard_events_that_do_not_fit_are_kept(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    writer = TensorBoardWriter(tmp_path)
    with small_files(10), pytest.raises(OSError) as raised:
        writer.write({"loss": 1.0}, 1)
    assert raised.value.filename.startswith(f"{tmp_path}/events.out.tfevents.")
    writer.write({"loss": 0.5}, 2)
    writer.close()
    assert scalars_of(tmp_path, "loss") == [(1, 1.0), (2, 0.5)]
