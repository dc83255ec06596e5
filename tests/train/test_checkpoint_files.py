"""Checkpoint files: what was written comes back, or is refused; an earlier one survives whatever happens to a later."""

import errno
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist.train.checkpoint_files import CheckpointFiles, decode, encode
from tests.small_disk import small_tmpfs

ROOT = Path(__file__).resolve().parents[2]
CONTENT = {
    "weights": torch.arange(1000, dtype=torch.float32),
    "epoch": 3,
    "kept": {"losses": [0.5, 0.25], "none": None},
}


def files_in(directory, keep=3):
    files = CheckpointFiles(directory, keep)
    files.prepare()
    return files


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_was_written_comes_back(tmp_path):
    path = files_in(tmp_path / "made" / "here").write(12, CONTENT)
    found, content = files_in(path.parent).newest()
    assert (found, path.name) == (path, "step-000000012.ckpt")
    assert torch.equal(content.pop("weights"), CONTENT["weights"])
    assert content == {"epoch": 3, "kept": {"losses": [0.5, 0.25], "none": None}}


def test_the_newest_k_stay_and_nothing_else(tmp_path):
    files = files_in(tmp_path, keep=2)
    for step in (5, 10, 999_999_999, 1_000_000_000):
        files.write(step, CONTENT)
    assert names(tmp_path) == ["step-1000000000.ckpt", "step-999999999.ckpt"]
    assert files.newest()[0].name == "step-1000000000.ckpt"


def test_files_of_others_are_left_alone(tmp_path):
    for name in ("notes.txt", "step-7.ckpt", "step-000000001.ckpt.bak"):
        (tmp_path / name).write_text("mine")
    files_in(tmp_path, keep=1).write(4, CONTENT)
    assert names(tmp_path) == ["notes.txt", "step-000000001.ckpt.bak", "step-000000004.ckpt", "step-7.ckpt"]


def truncate(raw):
    return raw[: len(raw) // 2]


def flip(place):
    return lambda raw: raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


DAMAGE = {
    "empty": lambda raw: b"",
    "truncated": truncate,
    "first bit": flip(0),
    "bit of the version": flip(encode(CONTENT).index(b'"version": ') + 11),
    "bit of the hash": flip(encode(CONTENT).index(b'"sha256": "') + 14),
    "bit in the middle": flip(3000),
    "last bit": flip(-1 + len(encode(CONTENT))),
    "longer": lambda raw: raw + b"x",
    "foreign": lambda raw: b"PK\x03\x04" + raw,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_newest_one_is_skipped_with_a_warning(tmp_path, caplog, damage):
    files = files_in(tmp_path)
    earlier, later = files.write(1, {"epoch": 1}), files.write(2, CONTENT)
    later.write_bytes(damage(encode(CONTENT)))
    with caplog.at_level(logging.WARNING):
        found, content = files.newest()
    assert (found, content) == (earlier, {"epoch": 1})
    assert [record.levelname for record in caplog.records] == ["WARNING"] and str(later) in caplog.text


def test_a_directory_of_damaged_ones_is_refused(tmp_path):
    (tmp_path / "step-000000002.ckpt").write_text("?")
    with pytest.raises(ValueError, match=r"none of the 1 checkpoints in .* is valid; move them away"):
        files_in(tmp_path).newest()


def test_an_empty_directory_has_no_newest(tmp_path):
    assert files_in(tmp_path).newest() is None


def test_one_of_a_newer_release_is_refused_not_skipped(tmp_path):
    files = files_in(tmp_path)
    files.write(1, CONTENT)
    path = files.write(2, CONTENT)
    header, payload = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(header), "version": 2}).encode() + b"\n" + payload)
    with pytest.raises(ValueError, match="has checkpoint version 2; this release reads version 1"):
        files.newest()


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_reading_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step-000000001.ckpt"
    path.write_bytes(encode({"trap": Trap()}))
    with pytest.raises(ValueError, match="holds more than tensors and plain values"):
        decode(path)
    assert names(tmp_path) == ["step-000000001.ckpt"]


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    (tmp_path / ".step-000000009.ckpt.partial").write_text("half")
    files_in(tmp_path)
    assert names(tmp_path) == []


def test_one_found_damaged_earlier_does_not_push_out_what_is_written_now(tmp_path):
    (tmp_path / "step-000000090.ckpt").write_text("damaged")
    files = files_in(tmp_path, keep=1)
    files.write(80, CONTENT)
    assert names(tmp_path) == ["step-000000080.ckpt", "step-000000090.ckpt"]


def test_keeping_none_and_a_directory_that_is_a_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep is 0; expected at least 1"):
        CheckpointFiles(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot be written"):
        files_in(tmp_path / "file")


# ---- a directory that others touch ----


def test_a_directory_that_was_deleted_is_made_again_with_a_warning(tmp_path, caplog):
    files = files_in(tmp_path / "run", keep=1)
    files.write(1, CONTENT)
    shutil.rmtree(tmp_path / "run")
    assert files.paths() == []
    files.write(2, CONTENT)
    assert names(tmp_path / "run") == ["step-000000002.ckpt"]
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint directory {tmp_path}/run was deleted with its contents; it has been made again."
    ]


def test_a_directory_that_cannot_be_made_again_is_named(tmp_path):
    files = files_in(tmp_path / "run")
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("in its place")
    with pytest.raises(RuntimeError, match=r"run/step-000000002.ckpt could not be written .*no earlier one"):
        files.write(2, CONTENT)


def test_an_old_one_that_cannot_be_deleted_is_a_warning(tmp_path, caplog, monkeypatch):
    files = files_in(tmp_path, keep=1)
    files.write(1, CONTENT)
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path.suffix == ".ckpt":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    files.write(2, CONTENT)
    assert names(tmp_path) == ["step-000000001.ckpt", "step-000000002.ckpt"]
    assert [record.getMessage() for record in caplog.records] == [
        f"old checkpoint {tmp_path}/step-000000001.ckpt could not be deleted (Operation not permitted)."
    ]


# ---- a full disk ----


def test_on_a_full_disk_the_earlier_checkpoint_survives_and_the_message_says_so(tmp_path):
    with small_tmpfs(tmp_path / "small", 256 << 10):
        files = files_in(tmp_path / "small", keep=1)
        files.write(1, CONTENT)
        message = r"step-000000002.ckpt could not be written \(No space left on device\); step-000000001.ckpt before it"
        with pytest.raises(RuntimeError, match=message):
            files.write(2, {"weights": torch.zeros(1 << 18)})
        assert names(files.directory) == ["step-000000001.ckpt"]
        assert torch.equal(files.newest()[1]["weights"], CONTENT["weights"])
        with pytest.raises(RuntimeError, match=r"left on device\); the earlier one of that name is untouched"):
            files.write(1, {"weights": torch.zeros(1 << 18)})
        assert torch.equal(files.newest()[1]["weights"], CONTENT["weights"])
        files.write(3, CONTENT)
        assert names(files.directory) == ["step-000000003.ckpt"]


LIMITED = """
import sys, torch
from pathlib import Path
from fastsample_dist.train.checkpoint_files import CheckpointFiles
files = CheckpointFiles(Path(sys.argv[1]), 1)
files.prepare()
files.write(1, {"epoch": 1})
try:
    files.write(2, {"weights": torch.zeros(1 << 18)})
except RuntimeError as error:
    print(error)
"""


def test_at_a_file_size_limit_the_earlier_checkpoint_survives_and_the_message_says_so(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))

    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], preexec_fn=limit, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "could not be written (File too large); step-000000001.ckpt before it is untouched" in done.stdout
    assert names(tmp_path) == ["step-000000001.ckpt"]
    assert files_in(tmp_path).newest()[1] == {"epoch": 1}


KILLED = """
import os, sys, torch
from pathlib import Path
from fastsample_dist.train import checkpoint_files
files = checkpoint_files.CheckpointFiles(Path(sys.argv[1]), 1)
files.prepare()
files.write(1, {"epoch": 1})
setattr(*{"sync": (os, "fsync"), "rename": (Path, "replace")}[sys.argv[2]], lambda *_: os.kill(os.getpid(), 9))
files.write(2, {"epoch": 2})
"""


@pytest.mark.parametrize("moment", ["sync", "rename"])
def test_a_kill_before_the_rename_leaves_the_earlier_one(tmp_path, moment):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert files_in(tmp_path).newest()[1] == {"epoch": 1} and names(tmp_path) == ["step-000000001.ckpt"]
