"""Disk space in advance: the formulas against the files that are there, refusals, and disks that fill up anyway."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import partition.disk
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.manifest import MANIFEST_NAME
from fastsample_dist.graph.storage import PartitionWriter, read_manifest
from partition.build import PartitionOptions, partition_graph
from partition.cli import main
from partition.disk import DiskSizes, disk_bytes, partition_bytes
from partition.external.journal import Journal, work_directory
from partition.repartition import repartition
from tests.small_disk import enlarge, small_tmpfs
from tests.test_partition.inputs import draw_raw, listed_edges, write_input

RAWS = {
    "all columns": draw_raw(undirected=False, weighted=True),
    "undirected": draw_raw(undirected=True),
    "topology alone": RawGraph(name="bare", num_nodes=3, undirected=False, edge_index=np.array([[0, 1], [1, 2]])),
    "double weights": dataclasses.replace(draw_raw(undirected=False), edge_weight=np.arange(240, dtype=np.float64)),
}


def file_bytes(directory: Path) -> int:
    """Size of all files of a directory but those that only tell about others."""
    untold = (MANIFEST_NAME, "journal.json", "lock")
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file() and file.name not in untold)


def true_sizes(raw: RawGraph, num_parts: int, feature_dtype: str = "keep") -> DiskSizes:
    """Sizes with the edges counted one by one."""
    stored = len(listed_edges(raw))
    loops = int((raw.edge_index[0] == raw.edge_index[1]).sum())
    grouped = raw.edge_index.shape[1] * 2 - loops if raw.undirected else stored
    least = DiskSizes.at_least(raw, num_parts, feature_dtype, stored)
    assert least.grouped_edges <= grouped
    return dataclasses.replace(least, grouped_edges=grouped)


# ---- the formulas


@pytest.mark.parametrize("case", RAWS)
@pytest.mark.parametrize("feature_dtype", ["keep", "bfloat16"])
def test_partition_takes_what_is_foretold(tmp_path, case, feature_dtype):
    options = PartitionOptions(num_parts=2, method="random", feature_dtype=feature_dtype)
    partition_graph(RAWS[case], options, tmp_path / "parts")
    assert file_bytes(tmp_path / "parts") == partition_bytes(true_sizes(RAWS[case], 2, feature_dtype))


@pytest.mark.parametrize("case", RAWS)
def test_phases_on_disk_take_what_is_foretold(tmp_path, case, monkeypatch):
    seen, save, finish = {}, Journal.save, PartitionWriter.finish

    def look_after_sorting(self: Journal, step: str, **state: object) -> None:
        if step == "sort" and state["done"]:
            seen["topology"] = file_bytes(self.path)
        save(self, step, **state)

    def look_after_writing(self: PartitionWriter, **fields: object) -> object:
        seen["write"] = file_bytes(work_directory(self.path))
        return finish(self, **fields)

    monkeypatch.setattr(Journal, "save", look_after_sorting)
    monkeypatch.setattr(PartitionWriter, "finish", look_after_writing)
    partition_graph(RAWS[case], PartitionOptions(num_parts=2, method="random", on_disk=True), tmp_path / "parts")
    assert seen == disk_bytes(true_sizes(RAWS[case], 2), on_disk=True)


# ---- refusals


def room(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(partition.disk, "free_bytes", lambda directory: count)


@pytest.mark.parametrize("on_disk", [False, True])
def test_one_byte_decides(tmp_path, monkeypatch, on_disk):
    raw, options = RAWS["all columns"], PartitionOptions(num_parts=2, method="random", on_disk=on_disk)
    needed = max(disk_bytes(true_sizes(raw, 2), on_disk=on_disk).values())
    room(monkeypatch, needed - 1)
    message = f"parts takes {needed:,} bytes of disk while it is made but {needed - 1:,} are free in {tmp_path}; make"
    with pytest.raises(ValueError, match=re.escape(message)):
        partition_graph(raw, options, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []
    room(monkeypatch, needed)
    partition_graph(raw, options, tmp_path / "parts")


def test_merged_edges_are_not_asked_for(tmp_path, monkeypatch):
    """Undirected, every edge listed ten times: the room for one is enough, and one byte less is not."""
    raw = dataclasses.replace(RAWS["undirected"], edge_index=np.tile(RAWS["undirected"].edge_index, 10))
    needed = partition_bytes(true_sizes(raw, 2))
    room(monkeypatch, needed - 1)
    with pytest.raises(ValueError, match=f"takes {needed:,} bytes of disk"):
        partition_graph(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    room(monkeypatch, needed)
    partition_graph(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")


def test_partition_that_is_overwritten_gives_no_room(tmp_path, monkeypatch):
    raw, options = RAWS["all columns"], PartitionOptions(num_parts=2, method="random")
    partition_graph(raw, options, tmp_path / "parts")
    before = read_manifest(tmp_path / "parts")
    room(monkeypatch, partition_bytes(true_sizes(raw, 2)) - 1)
    with pytest.raises(ValueError, match="bytes of disk while it is made"):
        partition_graph(raw, options, tmp_path / "parts", overwrite=True)
    assert read_manifest(tmp_path / "parts") == before


def test_work_that_is_kept_counts_as_room(tmp_path, monkeypatch):
    """After a failure while writing, no more than the rest is asked for."""
    raw = draw_raw(undirected=False, num_nodes=20_000)
    options = PartitionOptions(num_parts=2, method="random", on_disk=True)
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr("partition.writer._write_part", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        partition_graph(raw, options, tmp_path / "parts")
    kept = partition.disk.used_bytes(tmp_path / "parts")
    rest = disk_bytes(true_sizes(raw, 2), on_disk=True)["write"] - kept
    assert kept > rest > 100_000
    room(monkeypatch, rest - 1)
    with pytest.raises(ValueError, match=f"takes {rest:,} bytes of disk"):
        partition_graph(raw, options, tmp_path / "parts")
    room(monkeypatch, rest)
    partition_graph(raw, options, tmp_path / "parts")


@pytest.mark.parametrize("num_parts", [1, 6])
def test_repartition_asks_for_the_new_files_alone(tmp_path, monkeypatch, num_parts):
    partition_graph(RAWS["all columns"], PartitionOptions(num_parts=3, method="random"), tmp_path / "parts")
    repartition(tmp_path / "parts", num_parts, tmp_path / "first")
    needed = sum(file_bytes(folder) for folder in (tmp_path / "first").glob("part-*"))
    room(monkeypatch, needed - 1)
    with pytest.raises(ValueError, match=f"takes {needed:,} bytes of disk"):
        repartition(tmp_path / "parts", num_parts, tmp_path / "second")
    room(monkeypatch, needed)
    repartition(tmp_path / "parts", num_parts, tmp_path / "second")


# ---- a small disk


GRAPH = dataclasses.replace(draw_raw(undirected=False, num_nodes=50_000), labels=np.zeros(50_000, dtype=np.int64))


def run_refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(item) for item in argv]) == 1
    line = capsys.readouterr().err
    assert line.startswith("fastsample-partition: error: ") and line.count("\n") == 1
    return line


@pytest.mark.parametrize("more", [(), ("--on-disk",)])
def test_small_disk_is_refused_before_any_work(tmp_path, capsys, more):
    graph = write_input(tmp_path / "graph", GRAPH)
    with small_tmpfs(tmp_path / "small", 1 << 20):
        output = tmp_path / "small" / "parts"
        argv = ["--input", graph, "--num-parts", 2, "--method", "random", "--output", output, *more]
        line = run_refused(capsys, *argv)
        assert re.search(r"parts takes [\d,]+ bytes of disk while it is made but 1,0\d\d,\d{3} are free in ", line)
        assert list((tmp_path / "small").iterdir()) == []
        enlarge(tmp_path / "small", 16 << 20)
        assert main([str(item) for item in argv]) == 0


def test_disk_that_fills_up_leaves_nothing_of_a_cut_in_memory(tmp_path, capsys, monkeypatch):
    graph = write_input(tmp_path / "graph", GRAPH)
    with small_tmpfs(tmp_path / "small", 1 << 20):
        monkeypatch.setattr(partition.disk, "free_bytes", lambda directory: None)
        output = tmp_path / "small" / "parts"
        line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--method", "random", "--output", output)
        assert "No space left on device" in line
        assert list((tmp_path / "small").iterdir()) == []


@pytest.mark.parametrize("foreseen", [True, False])
def test_disk_too_small_for_a_repartition_keeps_the_old_partition_only(tmp_path, capsys, monkeypatch, foreseen):
    partition_graph(GRAPH, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    with small_tmpfs(tmp_path / "small", 1 << 20):
        if not foreseen:
            monkeypatch.setattr(partition.disk, "free_bytes", lambda directory: None)
        line = run_refused(capsys, "--repartition", tmp_path / "parts", 4, "--output", tmp_path / "small" / "new")
        assert ("bytes of disk while it is made" if foreseen else "No space left on device") in line
        assert list((tmp_path / "small").iterdir()) == []
    assert main(["--check", str(tmp_path / "parts")]) == 0
