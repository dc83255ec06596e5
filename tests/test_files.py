"""Files that any room writes: an error names its file, and nothing half-written stays."""

import errno
import fcntl
import gzip
import json
import math
import os
import stat
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.bench.graphs import work_folder
from fastsample_dist.files import (
    check_separate,
    check_writable,
    complete_file,
    locked_folder,
    naming_file,
    remove_stale,
    write_json,
    write_text,
)
from tests.small_disk import small_files, small_tmpfs


def test_an_error_without_a_name_gets_it(tmp_path):
    path = tmp_path / "rows.bin"
    with small_files(100), pytest.raises(OSError) as raised, naming_file(path), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 60)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert str(raised.value) == f"[Errno {errno.EFBIG}] File too large: '{path}'"


def test_an_error_keeps_the_name_that_it_has(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, naming_file(tmp_path / "outer"):
        (tmp_path / "inner").read_text()
    assert raised.value.filename == str(tmp_path / "inner")


def test_what_numpy_says_without_a_reason_gets_the_name(tmp_path):
    path = tmp_path / "rows.bin"
    with small_files(100), pytest.raises(OSError) as raised, naming_file(path):
        np.zeros(1000).tofile(path)
    assert str(path) in str(raised.value) and "None" not in str(raised.value)


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "Broken pipe"), gzip.BadGzipFile("not gzipped")])
def test_errors_that_are_about_no_file_pass_as_they_are(tmp_path, error):
    text = str(error)
    with pytest.raises(type(error)) as raised, naming_file(tmp_path / "file"):
        raise error
    assert raised.value is error and str(error) == text


def test_json_has_null_for_what_is_no_number(tmp_path):
    path = tmp_path / "out.json"
    write_json(
        path, {"loss": float("nan"), "ranks": [{"rate": np.float64("inf"), "steps": 3}], "pair": (1.5, -math.inf)}
    )
    found = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert found == {"loss": None, "ranks": [{"rate": None, "steps": 3}], "pair": [1.5, None]}


def test_a_file_that_cannot_be_finished_leaves_nothing_and_the_older_one(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("older")
    with small_files(100), pytest.raises(OSError) as raised:
        write_json(path, {"numbers": list(range(1000))})
    assert raised.value.filename == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]
    assert path.read_text() == "older"


def test_a_full_disk_is_said_with_the_file(tmp_path):
    with small_tmpfs(tmp_path / "small", 64 << 10):
        path = tmp_path / "small" / "page.html"
        with pytest.raises(OSError) as raised:
            write_text(path, "x" * (1 << 20))
        assert str(raised.value) == f"[Errno {errno.ENOSPC}] No space left on device: '{path}'"
        assert list((tmp_path / "small").iterdir()) == []


def test_a_directory_that_is_missing_is_named_by_the_users_name(tmp_path):
    path = tmp_path / "missing" / "out.json"
    with pytest.raises(FileNotFoundError) as raised:
        write_json(path, {})
    assert str(raised.value) == f"[Errno {errno.ENOENT}] No such file or directory: '{path}'"


def test_ctrl_c_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), complete_file(tmp_path / "rows.npy") as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link.json").symlink_to("out.json")
    write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "out.json").read_text()) == {"a": 1}


def test_a_pipe_is_refused_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="--json .*pipe.* a device or a pipe.*pass"):
        check_writable("--json", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_two_options_for_one_file_are_refused(tmp_path):
    (tmp_path / "link.json").symlink_to("out.json")
    check_separate([("--json", tmp_path / "out.json"), ("--jsonl", tmp_path / "out.jsonl")])
    with pytest.raises(ValueError, match=r"^--json and --report are both \S+/link.json; pass two names.$"):
        check_separate([("--json", tmp_path / "out.json"), ("--report", tmp_path / "link.json")])


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_and_its_name_are_synced(tmp_path, monkeypatch, durable):
    """Data before the name appears, the directory after it."""
    synced = []

    def note(handle):
        synced.append((str(Path(f"/proc/self/fd/{handle}").readlink()), (tmp_path / "state.json").exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_text(tmp_path / "state.json", "{}", durable=durable)
    expected = [(str(tmp_path / ".state.json.partial"), False), (str(tmp_path), True)]
    assert synced == (expected if durable else [])


def test_a_directory_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    """As those of 9p and of other network file systems; a disk's refusal is one."""
    fsync = os.fsync

    def refuse(handle, number=errno.EINVAL):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "state.json", "{}", durable=True)
    assert (tmp_path / "state.json").read_text() == "{}"
    monkeypatch.setattr(os, "fsync", partial(refuse, number=errno.EIO))
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/state.json'"):
        write_text(tmp_path / "state.json", "{}", durable=True)


KILLED = """
import os, sys
from pathlib import Path
from fastsample_dist.files import locked_folder
with locked_folder("work-", Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""


def kill_one(where):
    """A process that held a folder and was killed; returns what it left."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(where)], cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == -9
    [left] = where.iterdir()
    return left


def test_folders_of_killed_processes_are_removed_and_others_left_alone(tmp_path):
    left = kill_one(tmp_path)
    with locked_folder("work-", tmp_path) as used, locked_folder("other-", tmp_path) as other:
        (tmp_path / "work-without-lock").mkdir()
        assert remove_stale("work-", tmp_path) == [left]
        assert sorted(tmp_path.iterdir()) == sorted([used, other, tmp_path / "work-without-lock"])
    assert [path.name for path in tmp_path.iterdir()] == ["work-without-lock"]


def test_a_folder_that_cannot_be_locked_is_named_and_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match=rf"No locks available: '{tmp_path}/work-"), locked_folder("work-", tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_benchmark_cannot_make_is_refused_with_its_option(tmp_path):
    (tmp_path / "file").touch()
    message = r"^--work \S+/file cannot be written \(File exists\); pass another directory\.$"
    with pytest.raises(ValueError, match=message), work_folder(tmp_path / "file"):
        pass


def test_a_benchmark_removes_what_killed_ones_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = kill_one(tmp_path).rename(tmp_path / "fastsample-bench-1")
    with work_folder(None) as work:
        assert list(tmp_path.iterdir()) == [work] and work != left
    assert list(tmp_path.iterdir()) == []
