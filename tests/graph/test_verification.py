"""Checksums are compared once per copy: what is remembered is not read again, what may have changed is."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph import verification
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.graph.verification import RECORDS, Verification
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.report.inspection import make_report
from fastsample_dist.partition.write.repartition import repartition
from tests.parts import draw_partition
from tests.small_disk import small_tmpfs

INDICES = "topology/indices.npy"


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch) -> Path:
    """The user's cache directory of a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def parts(tmp_path) -> Path:
    path = draw_partition(tmp_path, 2).path
    settle()
    return path


def settle() -> None:
    """Let the files grow old enough for a later change to show in their times."""
    time.sleep(2 * verification._FINE_TICK_S)


def verify(path: Path, names: list[str] | None = None, **options: object) -> int:
    """Bytes that were read; ValueError with the refusal."""
    manifest = read_manifest(path)
    with Verification(path, manifest, manifest.files if names is None else names, **options) as job:
        found = job.wait()
    if found.refusal is not None:
        raise ValueError(found.refusal)
    assert found.is_done and found.bytes_done == found.bytes_total
    return found.bytes_done


def total(path: Path) -> int:
    return sum(record["bytes"] for record in read_manifest(path).files.values())


def flip_last_bit(file: Path, *, keep_times: bool = False) -> None:
    """Change one bit in place: the same inode, the same size."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read(1)[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last ^ 1]))
    if keep_times:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_mtime_ns == before.st_mtime_ns


def test_all_bytes_are_read_once(parts):
    assert verify(parts) == total(parts)
    assert verify(parts) == 0


def test_full_reads_all_bytes_again(parts):
    verify(parts)
    assert verify(parts, full=True) == total(parts)
    assert verify(parts) == 0


def test_rooms_are_remembered_each_for_itself(parts):
    manifest = read_manifest(parts)
    rooms = {room: [name for name in manifest.files if name.startswith(room)] for room in ("topology", "part-0")}
    for names in rooms.values():
        assert verify(parts, names) > 0
    assert [verify(parts, names) for names in rooms.values()] == [0, 0]
    assert sorted(file.name for file in (parts / RECORDS).iterdir()) == ["part-0.json", "topology.json"]


def test_saving_reads_every_name_once_however_many_rooms_there_are(parts, monkeypatch):
    names, asked = [f"part-{part}/train.npy" for part in range(20)], []
    room_of = verification._room
    monkeypatch.setattr(verification, "_room", lambda name: asked.append(name) or room_of(name))
    state = verification.FileState.of((parts / INDICES).stat())
    verification._Records(parts).save({name: (state, "0" * 64) for name in names})
    assert sorted(asked) == sorted(names)
    assert sorted(file.stem for file in (parts / RECORDS).iterdir()) == sorted(map(room_of, names))


@pytest.mark.parametrize("keep_times", [False, True], ids=["changed", "changed, with its old time"])
def test_a_changed_file_is_read_again_and_refused_by_name(parts, keep_times):
    verify(parts)
    flip_last_bit(parts / INDICES, keep_times=keep_times)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{parts / INDICES} is altered: its SHA-256 is .*, the manifest says "):
            verify(parts)


def test_a_file_that_was_touched_is_read_again_alone(parts):
    verify(parts)
    (parts / INDICES).touch()
    settle()
    assert verify(parts) == (parts / INDICES).stat().st_size
    assert verify(parts) == 0


def test_a_copy_with_all_its_records_and_times_is_read_again(parts, tmp_path):
    verify(parts)
    copy = shutil.copytree(parts, tmp_path / "copy")
    assert (copy / INDICES).stat().st_mtime_ns == (parts / INDICES).stat().st_mtime_ns
    assert verify(copy) == total(parts)


def test_a_partition_that_was_moved_is_not(parts, tmp_path):
    verify(parts)
    assert verify(parts.rename(tmp_path / "moved")) == 0


def test_a_file_younger_than_its_clock_can_tell_is_not_remembered(parts, monkeypatch):
    monkeypatch.setattr(verification, "_FINE_TICK_S", 3600.0)
    assert verify(parts) == verify(parts) == total(parts)


def test_damage_that_no_time_tells_is_found_in_full_and_forgotten(parts):
    verify(parts)
    flip_last_bit(parts / INDICES)
    record = parts / RECORDS / "topology.json"
    document = json.loads(record.read_text())
    found = (parts / INDICES).stat()
    document["files"][INDICES][-1] |= {"mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns}
    record.write_text(json.dumps(document))
    assert verify(parts) == 0  # as if a disk had lost the bit
    for full in (True, False):
        with pytest.raises(ValueError, match="indices.npy is altered"):
            verify(parts, full=full)


def test_a_manifest_that_expects_other_bytes_is_not_satisfied_by_a_record(parts):
    verify(parts)
    manifest = read_manifest(parts)
    other = {name: {**record, "sha256": "0" * 64} for name, record in manifest.files.items()}
    object.__setattr__(manifest, "files", other)
    with Verification(parts, manifest, [INDICES]) as job:
        assert "is altered" in job.wait().refusal


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"topology/indices.npy": 3}}', '{"files": []}'])
def test_a_damaged_record_counts_as_none(parts, text):
    verify(parts)
    for record in (parts / RECORDS).iterdir():
        record.write_text(text)
    assert verify(parts) == total(parts)
    assert verify(parts) == 0


def test_records_of_other_machines_stay(parts):
    verify(parts)
    record = parts / RECORDS / "topology.json"
    document = json.loads(record.read_text())
    document["files"][INDICES][0]["device"] += 1  # how another machine that mounts it sees it
    record.write_text(json.dumps(document))
    assert verify(parts) == (parts / INDICES).stat().st_size
    assert document["files"][INDICES][0] in json.loads(record.read_text())["files"][INDICES]
    assert verify(parts) == 0


def test_the_users_cache_remembers_where_the_partition_is_read_only(parts, tmp_path, cache_home):
    disk = tmp_path / "disk"
    with small_tmpfs(disk, 1 << 23):
        copy = shutil.copytree(parts, disk / "parts")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        settle()
        assert verify(copy) == total(copy)
        assert verify(copy) == 0
        assert not (copy / RECORDS).exists()
        assert list(cache_home.glob("fastsample_dist/verified/*/topology.json"))


def test_where_nothing_can_be_remembered_one_line_for_all_parts_says_so(parts, cache_home, caplog):
    cache_home.write_text("no directory")
    (parts / RECORDS).write_text("no directory")
    assert verify(parts) == verify(parts) == total(parts)
    once_each = [
        line for line in caplog.messages if "will be compared with its checksums at every start: neither" in line
    ]
    assert len(once_each) == 2


def test_what_was_stopped_is_not_remembered(parts):
    job = Verification(parts, read_manifest(parts), [INDICES])
    job._stop.set()
    with job:
        pass
    assert verify(parts, [INDICES]) == (parts / INDICES).stat().st_size


def test_a_file_that_cannot_be_read_is_named(parts, monkeypatch):
    def refuse(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Verification, "_hash", staticmethod(refuse))
    with pytest.raises(ValueError, match=r"indices.npy cannot be read \(Input/output error\)"):
        verify(parts, [INDICES])


def test_reports_checks_and_other_numbers_of_parts_ignore_the_records(parts, tmp_path):
    before = make_report(parts)
    verify(parts)
    assert make_report(parts) == before
    assert check_partition(parts) == []
    repartition(parts, 1, tmp_path / "joined")
    assert not (tmp_path / "joined" / RECORDS).exists()
    assert RECORDS not in json.dumps(sorted(read_manifest(parts).files))
    assert np.load(tmp_path / "joined" / INDICES).size == np.load(parts / INDICES).size
