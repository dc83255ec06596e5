"""Disk space in advance: what is certainly needed, refusals, and disks that fill up anyway.

How much a partition and the work on it take is compared with the files in plan/test_disk.py.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist.partition.write.disk_space
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external.journal import Journal, work_directory
from fastsample_dist.partition.plan.disk import output_bytes, work_bytes
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.disk_space import least_bytes
from fastsample_dist.partition.write.repartition import repartition
from tests.small_disk import enlarge, small_files, small_tmpfs
from tests.test_partition.inputs import draw_raw, listed_edges, write_input

DIRECTED, UNDIRECTED = draw_raw(undirected=False, weighted=True), draw_raw(undirected=True)


def needs(raw: RawGraph, *, on_disk: bool = False, stored_edges: int | None = None) -> int:
    return least_bytes(sizes_of(raw), 2, "keep", on_disk=on_disk, stored_edges=stored_edges)


def file_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


# ---- what is certain


def test_of_a_directed_graph_everything_is_known_at_once():
    sizes, edges = sizes_of(DIRECTED), DIRECTED.edge_index.shape[1]
    assert needs(DIRECTED) == needs(DIRECTED, stored_edges=edges) == output_bytes(sizes, 2)
    assert needs(DIRECTED, on_disk=True) == max(work_bytes(sizes, 2).values())


def test_of_an_undirected_graph_no_more_is_asked_for_than_it_will_take():
    assert needs(UNDIRECTED) < needs(UNDIRECTED, stored_edges=len(listed_edges(UNDIRECTED)))
    loops = dataclasses.replace(UNDIRECTED, edge_index=np.zeros((2, 240), dtype=int))  # one edge is left of them
    assert needs(loops) == needs(loops, stored_edges=1)


def test_keys_of_the_listed_edges_are_asked_for_whatever_is_merged_later():
    num_nodes, listed = UNDIRECTED.num_nodes, 10**6
    raw = dataclasses.replace(UNDIRECTED, edge_index=np.zeros((2, listed), dtype=int))
    assert needs(raw, on_disk=True) == 8 * listed + 8 * num_nodes


# ---- refusals


def room(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(fastsample_dist.partition.write.disk_space, "free_bytes", lambda directory: count)


@pytest.mark.parametrize("on_disk", [False, True])
def test_one_byte_decides(tmp_path, monkeypatch, on_disk):
    options, needed = PartitionOptions(num_parts=2, method="random", on_disk=on_disk), needs(DIRECTED, on_disk=on_disk)
    room(monkeypatch, needed - 1)
    message = f"parts takes {needed:,} bytes of disk while it is made but {needed - 1:,} are free in {tmp_path}; make"
    with pytest.raises(ValueError, match=re.escape(message)):
        build_partition(DIRECTED, options, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []
    room(monkeypatch, needed)
    build_partition(DIRECTED, options, tmp_path / "parts")


def test_merged_edges_are_not_asked_for(tmp_path, monkeypatch):
    """Undirected, every edge listed ten times: the room for one is enough, and one byte less is not."""
    raw = dataclasses.replace(UNDIRECTED, edge_index=np.tile(UNDIRECTED.edge_index, 10))
    needed = needs(raw, stored_edges=len(listed_edges(raw)))
    room(monkeypatch, needed - 1)
    with pytest.raises(ValueError, match=f"takes {needed:,} bytes of disk"):
        build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    room(monkeypatch, needed)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")


def test_partition_that_is_overwritten_gives_no_room(tmp_path, monkeypatch):
    options = PartitionOptions(num_parts=2, method="random")
    build_partition(DIRECTED, options, tmp_path / "parts")
    before = read_manifest(tmp_path / "parts")
    room(monkeypatch, needs(DIRECTED) - 1)
    with pytest.raises(ValueError, match="bytes of disk while it is made"):
        build_partition(DIRECTED, options, tmp_path / "parts", overwrite=True)
    assert read_manifest(tmp_path / "parts") == before


def test_work_that_is_kept_counts_as_room(tmp_path, monkeypatch):
    """After a failure while writing, no more than the rest is asked for."""
    raw = draw_raw(undirected=False, num_nodes=20_000)
    options = PartitionOptions(num_parts=2, method="random", on_disk=True)
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(
            "fastsample_dist.partition.write.writer._write_part", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        build_partition(raw, options, tmp_path / "parts")
    kept = fastsample_dist.partition.write.disk_space.used_bytes(tmp_path / "parts")
    rest = needs(raw, on_disk=True, stored_edges=raw.edge_index.shape[1]) - kept
    assert kept > rest > 100_000
    room(monkeypatch, rest - 1)
    with pytest.raises(ValueError, match=f"takes {rest:,} bytes of disk"):
        build_partition(raw, options, tmp_path / "parts")
    room(monkeypatch, rest)
    build_partition(raw, options, tmp_path / "parts")


@pytest.mark.parametrize("num_parts", [1, 6])
def test_repartition_asks_for_the_new_files_alone(tmp_path, monkeypatch, num_parts):
    build_partition(DIRECTED, PartitionOptions(num_parts=3, method="random"), tmp_path / "parts")
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
        monkeypatch.setattr(fastsample_dist.partition.write.disk_space, "free_bytes", lambda directory: None)
        output = tmp_path / "small" / "parts"
        line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--method", "random", "--output", output)
        assert re.search(r"No space left on device: '.*/small/\.parts\.partial-[^/]+/[^']+\.npy'", line)
        assert list((tmp_path / "small").iterdir()) == []


@pytest.mark.parametrize("foreseen", [True, False])
def test_disk_too_small_for_a_repartition_keeps_the_old_partition_only(tmp_path, capsys, monkeypatch, foreseen):
    build_partition(GRAPH, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    with small_tmpfs(tmp_path / "small", 1 << 20):
        if not foreseen:
            monkeypatch.setattr(fastsample_dist.partition.write.disk_space, "free_bytes", lambda directory: None)
        line = run_refused(capsys, "--repartition", tmp_path / "parts", 4, "--output", tmp_path / "small" / "new")
        refusal = r"No space left on device: '.*/small/\.new\.partial-[^/]+/[^']+\.npy'"
        assert re.search("bytes of disk while it is made" if foreseen else refusal, line)
        assert list((tmp_path / "small").iterdir()) == []
    assert main(["--check", str(tmp_path / "parts")]) == 0


# ---- files that cannot grow: a full disk, where none may be mounted


NAMED = r"File too large: '(?P<path>/[^']+)'"


def run_refused_at(capsys, size_bytes, *argv):
    with small_files(size_bytes):
        line = run_refused(capsys, *argv)
    return Path(re.search(NAMED, line)["path"])


@pytest.mark.parametrize("size_bytes", [100, 1000, 5000, 100_000])
def test_every_error_of_a_cut_in_memory_names_its_file_and_nothing_stays(tmp_path, capsys, size_bytes):
    graph = write_input(tmp_path / "graph", GRAPH)
    argv = ["--input", graph, "--num-parts", 2, "--method", "random", "--output", tmp_path / "parts"]
    path = run_refused_at(capsys, size_bytes, *argv)
    assert path.parent.parent.name.startswith(".parts.partial-") and path.suffix == ".npy"
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize(
    ("size_bytes", "named"),
    [
        (100, "degrees"),
        (401_000, "buckets.keys"),
        (1_650_000, "parts/part-0/features.npy"),
    ],
)
def test_every_error_of_the_external_sort_names_its_file(tmp_path, capsys, size_bytes, named):
    graph = dataclasses.replace(GRAPH, features=np.zeros((50_000, 20), np.float32))
    argv = ["--input", write_input(tmp_path / "graph", graph), "--num-parts", 2, "--method", "random", "--on-disk"]
    path = run_refused_at(capsys, size_bytes, *argv, "--output", tmp_path / "parts")
    assert path == work_directory(tmp_path / "parts") / named


def test_a_journal_that_cannot_be_written_is_named(tmp_path):
    with Journal(tmp_path / "parts") as journal, small_files(10), pytest.raises(OSError) as raised:
        journal.begin("count", {})
        journal.save("count", done=True)
    assert raised.value.filename == str(journal.path / "journal.json")


def test_a_repartition_names_its_file(tmp_path, capsys):
    build_partition(GRAPH, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    path = run_refused_at(capsys, 1000, "--repartition", tmp_path / "parts", 4, "--output", tmp_path / "new")
    assert path.parent.parent.name.startswith(".new.partial-")
    assert [file.name for file in tmp_path.iterdir()] == ["parts"]


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_that_cannot_be_written_is_named_and_nothing_stays(tmp_path, capsys, option):
    if option == "--html":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    build_partition(DIRECTED, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    path = run_refused_at(capsys, 100, "--inspect", tmp_path / "parts", option, tmp_path / "report")
    assert path == tmp_path / "report"
    assert [file.name for file in tmp_path.iterdir()] == ["parts"]
