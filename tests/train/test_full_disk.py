"""Training while the disk refuses: logs only warn, results are refused at the end, deleted directories come back."""

import errno
import json
import shutil

import pytest

from fastsample_dist.train import session
from fastsample_dist.train.checkpoint import Checkpointer
from fastsample_dist.train.cli import main
from tests.small_disk import small_files
from tests.train.task import make_task


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32").path


def train(parts, *more):
    options = ["--epochs", "3", "--batch-size", "40", "--hidden", "8", "--fanouts", "5,5", "--layers", "2"]
    return main(["--data", str(parts), *options, "--threads", "1", *map(str, more)])


def test_a_log_on_a_full_disk_does_not_end_the_run(parts, tmp_path, capsys, caplog):
    with small_files(10):
        assert train(parts, "--jsonl", tmp_path / "epochs.jsonl") == 0
    # What was verified of the partition cannot be remembered either; that has a warning of its own.
    said = [text for text in (record.getMessage() for record in caplog.records) if text.startswith("--jsonl")]
    assert said == [
        f"--jsonl {tmp_path}/epochs.jsonl cannot be written (File too large); "
        "training continues and tries again after every epoch.",
        f"--jsonl {tmp_path}/epochs.jsonl lacks the last 3 epoch(s).",
    ]
    assert "test accuracy" in capsys.readouterr().out


def test_results_that_do_not_fit_are_refused_when_everything_else_is_done(parts, tmp_path, capsys, monkeypatch):
    write_json = session.write_json

    def with_little_room(*arguments):
        with small_files(10):
            write_json(*arguments)

    monkeypatch.setattr(session, "write_json", with_little_room)
    with pytest.raises(SystemExit, match="1"):
        train(parts, "--json", tmp_path / "out.json", "--trace", tmp_path / "trace.json")
    printed = capsys.readouterr()
    assert printed.err == f"error: [Errno 27] File too large: '{tmp_path}/out.json'\n"
    assert "test accuracy" in printed.out
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_every_result_that_does_not_fit_is_named(parts, tmp_path, capsys, monkeypatch):
    def refuse(file, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(session, "write_json", refuse)
    monkeypatch.setattr(session, "save_model", refuse)
    with pytest.raises(SystemExit, match="1"):
        train(parts, "--json", tmp_path / "out.json", "--save-model", tmp_path / "model.pt")
    said = "[Errno 28] No space left on device"
    assert capsys.readouterr().err == f"error: {said}: '{tmp_path}/model.pt'; {said}: '{tmp_path}/out.json'\n"


def test_directories_that_are_deleted_in_the_middle_are_made_again(parts, tmp_path, monkeypatch, caplog):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    on_epoch = Checkpointer.on_epoch

    def clean_up(self, report):
        if self._epoch == 0:
            shutil.rmtree(tmp_path / "run")
            shutil.rmtree(tmp_path / "board")
        return on_epoch(self, report)

    monkeypatch.setattr(Checkpointer, "on_epoch", clean_up)
    more = ("--checkpoint-dir", tmp_path / "run", "--checkpoint-every", 1, "--tensorboard", tmp_path / "board")
    assert train(parts, *more) == 0
    assert len(list((tmp_path / "run").iterdir())) == 3
    assert len(list((tmp_path / "board").iterdir())) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint directory {tmp_path}/run was deleted with its contents; it has been made again."
    ]
