"""Opening a partition: what is compared with its checksums, when, and what is said meanwhile."""

import logging
import shutil
import time

import pytest

from fastsample_dist import DistData
from fastsample_dist.graph import verification
from fastsample_dist.graph.verification import RECORDS, Verification
from fastsample_dist.pipeline import verifying
from fastsample_dist.testing import RankError, run_distributed
from tests.parts import draw_partition

INDICES = "topology/indices.npy"


@pytest.fixture
def path(tmp_path):
    drawn = draw_partition(tmp_path, 2)
    time.sleep(2 * verification._FINE_TICK_S)  # a file must be older than the tick of its clock to be remembered
    return drawn.path


def files_hashed(monkeypatch) -> list[str]:
    """Names of the files that are read from now on."""
    names, hash_file = [], Verification._hash
    monkeypatch.setattr(Verification, "_hash", lambda self, file: names.append(file.name) or hash_file(self, file))
    return names


def test_a_second_opening_reads_no_file_again(path, ctx, monkeypatch):
    names = files_hashed(monkeypatch)
    DistData.load(path, ctx)
    assert "indices.npy" in names and "features.npy" in names
    names.clear()
    DistData.load(path, ctx)
    assert names == []


@pytest.mark.parametrize(("verify", "reads"), [("full", True), (True, True), ("never", False), (False, False)])
def test_everything_or_nothing_is_compared_on_request(path, ctx, monkeypatch, verify, reads):
    DistData.load(path, ctx)
    names = files_hashed(monkeypatch)
    DistData.load(path, ctx, verify=verify)
    assert bool(names) == reads


def test_another_word_is_refused(path, ctx):
    with pytest.raises(ValueError, match="verify is 'twice'; expected 'once', 'full' or 'never'"):
        DistData.load(path, ctx, verify="twice")


def test_a_file_damaged_after_it_was_remembered_is_refused(path, ctx):
    DistData.load(path, ctx)
    data = bytearray((path / INDICES).read_bytes())
    data[-1] ^= 1
    (path / INDICES).write_bytes(data)
    with pytest.raises(ValueError, match="indices.npy is altered"):
        DistData.load(path, ctx)


def test_what_takes_long_is_said(path, ctx, monkeypatch, caplog):
    hash_file = Verification._hash
    monkeypatch.setattr(Verification, "_hash", lambda self, file: time.sleep(0.3) or hash_file(self, file))
    monkeypatch.setattr(verifying, "REPORT_S", 0.05)
    DistData.load(path, ctx)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(line.startswith(f"comparing {path} with its checksums, once for this copy: ") for line in lines)


def test_what_does_not_take_long_is_not(path, ctx, caplog):
    DistData.load(path, ctx)
    assert not caplog.records


def open_slowly(ctx, path, slow_s):
    """Opens with a deadline shorter than what rank 0 needs to read its first file."""
    ctx.comm.timeout_s = slow_s / 2
    if ctx.rank == 0:
        hash_file, pauses_s = Verification._hash, iter([slow_s])
        Verification._hash = lambda self, file: time.sleep(next(pauses_s, 0.0)) or hash_file(self, file)
    DistData.load(path, ctx)
    return sorted(file.stem for file in (path / RECORDS).iterdir())


def test_a_rank_outwaits_another_that_reads_longer_than_the_deadline(path):
    listed = run_distributed(2, open_slowly, args=(path, 12.0))
    assert set(listed[0]) | set(listed[1]) >= {"part-0", "topology"}
    assert sorted(file.stem for file in (path / RECORDS).iterdir()) == ["part-0", "part-1", "topology"]


def open_own_copy(ctx, paths):
    """Opens the copy of its rank; names of the rooms whose files were hashed here."""
    rooms, hash_file = set(), Verification._hash
    Verification._hash = lambda self, file: rooms.add(file.parent.name) or hash_file(self, file)
    DistData.load(paths[ctx.rank], ctx, verify="full")
    return sorted(rooms)


def test_every_copy_of_the_topology_is_compared_and_one_that_ranks_share_once(path, tmp_path):
    copy = shutil.copytree(path, tmp_path / "of-rank-1")
    linked = tmp_path / "linked"
    linked.symlink_to(path)
    assert run_distributed(2, open_own_copy, args=([path, linked],)) == [["part-0", "topology"], ["part-1"]]
    assert run_distributed(2, open_own_copy, args=([path, copy],))[1] == ["part-1", "topology"]
    data = bytearray((copy / INDICES).read_bytes())
    data[-1] ^= 1
    (copy / INDICES).write_bytes(data)
    with pytest.raises(RankError, match="of-rank-1/topology/indices.npy is altered"):
        run_distributed(2, open_own_copy, args=([path, copy],))
