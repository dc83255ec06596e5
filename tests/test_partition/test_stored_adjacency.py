"""A method that reads the adjacency from files: the same partition as from memory, resumed, and checked in advance.

METIS stands in: it is repeatable, and told here that it need not hold the adjacency itself.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external import adjacency
from fastsample_dist.partition.external.journal import work_directory
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.request import WorkFiles
from fastsample_dist.partition.plan.disk import NARROW_LINK_BYTES, work_bytes
from fastsample_dist.partition.plan.memory import (
    in_memory_peak,
    memory_budget,
    needed_bytes,
    on_disk_peak,
    sorted_on_disk,
    topology_bytes,
)
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.write import build, disk_space
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.disk_space import least_bytes
from tests.small_disk import enlarge, small_tmpfs
from tests.test_partition.inputs import draw_raw, write_input
from tests.test_partition.plan.test_disk import Watcher, ring
from tests.test_partition.test_on_disk import contents

ON_DISK = PartitionOptions(num_parts=3, method="metis", seed=2, on_disk=True)


@pytest.fixture(autouse=True)
def stored(monkeypatch):
    """METIS takes the adjacency from files."""
    monkeypatch.setitem(METHODS, "metis", replace(METHODS["metis"], in_memory=False))


def plain(raw, path):
    build_partition(raw, replace(ON_DISK, on_disk=False), path)
    return contents(path)


@pytest.mark.parametrize("undirected", [False, True])
def test_same_bytes_as_in_memory(undirected, tmp_path, monkeypatch):
    raw = draw_raw(undirected=undirected, num_nodes=300)
    expected = plain(raw, tmp_path / "plain")

    def refuse(*_, **__):
        raise AssertionError("the adjacency was made in memory")

    monkeypatch.setattr("fastsample_dist.partition.methods.request.symmetrise", refuse)
    build_partition(raw, ON_DISK, tmp_path / "parts")
    assert contents(tmp_path / "parts") == expected
    assert not work_directory(tmp_path / "parts").exists()


@pytest.mark.parametrize("place", ["adjacency.sort_edges", "adjacency.add_degrees", "build.balance_parts"])
def test_resumes_and_leaves_nothing(place, tmp_path, monkeypatch):
    raw = draw_raw(undirected=False)
    module, name = {"adjacency": adjacency, "build": build}[place.split(".")[0]], place.split(".")[1]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, interrupted)
        build_partition(raw, ON_DISK, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
    if name == "balance_parts":  # the adjacency is there and is not made again
        monkeypatch.setattr(adjacency, "sort_edges", None)
    build_partition(raw, ON_DISK, tmp_path / "parts")
    assert contents(tmp_path / "parts") == plain(raw, tmp_path / "plain")
    assert not work_directory(tmp_path / "parts").exists()


def test_the_adjacency_is_gone_once_parts_are_assigned(tmp_path, monkeypatch):
    raw = draw_raw(undirected=False)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_partition(raw, ON_DISK, tmp_path / "parts")
    assert not list(work_directory(tmp_path / "parts").glob("adjacency.*"))


def test_the_step_is_shown_with_its_bytes(tmp_path):
    seen = []

    class Steps(Progress):
        def step(self, name):
            seen.append(name)
            return super().step(name)

    build_partition(draw_raw(undirected=False), ON_DISK, tmp_path / "parts", progress=Steps())
    assert seen[:3] == ["topology", "adjacency", "assign"]


# ---- disk


def contents_of(status, path):
    assert status == 0
    return contents(path)


@pytest.mark.parametrize("method", ["stream", "ldg"])
def test_rows_that_are_copied_in_an_order_are_in_the_prediction(method, tmp_path):
    raw = ring(5000, 2, undirected=False)
    options = PartitionOptions(num_parts=3, method=method, order="bfs", on_disk=True)
    watcher = Watcher(work_directory(tmp_path / "parts"), tmp_path / "parts")
    build_partition(raw, options, tmp_path / "parts", progress=watcher)
    made = METHODS[method].work_files(ordered=True)
    predicted = work_bytes(sizes_of(raw), 3, made=made, link_weight_bytes=NARROW_LINK_BYTES)
    assert watcher.widest["assign"] == pytest.approx(predicted["method"], rel=1e-4)


def test_what_the_adjacency_takes_is_asked_for_before_the_data_are_read(tmp_path, monkeypatch):
    raw = ring(5000, 1, undirected=False)
    needed = least_bytes(sizes_of(raw), 3, "keep", on_disk=True, made=WorkFiles(adjacency=True))
    assert needed > least_bytes(sizes_of(raw), 3, "keep", on_disk=True)
    monkeypatch.setattr(disk_space, "free_bytes", lambda directory: needed - 1)
    with pytest.raises(ValueError, match=re.escape(f"takes {needed:,} bytes of disk while it is made")):
        build_partition(raw, ON_DISK, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_the_work_resumes(tmp_path, capsys, monkeypatch):
    raw = ring(20_000, 1, undirected=False)  # 260,000 edges: 2.1 MB of keys for 1.2 MB of rows, then 2.6 MB of entries
    graph = write_input(tmp_path / "graph", replace(raw, labels=np.zeros(raw.num_nodes, dtype=np.int64)))
    argv = ["--input", str(graph), "--num-parts", "3", "--seed", "2", "--on-disk"]
    expected = contents_of(main([*argv, "--output", str(tmp_path / "plain")]), tmp_path / "plain")
    for size_bytes in (4 << 20, 6 << 20):  # full while edges are grouped; while buckets are sorted
        small = tmp_path / str(size_bytes)
        with small_tmpfs(small, size_bytes):
            with monkeypatch.context() as patch:
                patch.setattr(disk_space, "free_bytes", lambda directory: None)  # others fill the disk meanwhile
                assert main([*argv, "--output", str(small / "parts")]) == 1
            line = capsys.readouterr().err
            assert line.count("\n") == 1 and "unfinished work is kept in" in line
            assert f"No space left on device: '{work_directory(small / 'parts')}/adjacency." in line
            assert not (small / "parts").exists()
            enlarge(small, 64 << 20)
            assert contents_of(main([*argv, "--output", str(small / "parts")]), small / "parts") == expected


# ---- memory


def test_an_adjacency_that_does_not_fit_is_made_on_disk():
    sizes = sizes_of(ring(300_000, 1, undirected=False))
    limit = needed_bytes(0, topology_bytes(sizes))
    budget = memory_budget(limit, 0, sizes, "metis")
    assert not sorted_on_disk(sizes, budget, "ldg")
    assert sorted_on_disk(sizes, budget, "metis")
    peak = in_memory_peak(sizes, "metis", 3).steps["assign"]
    assert not sorted_on_disk(sizes, replace(budget, limit=needed_bytes(0, peak)), "metis")


def test_making_it_is_expected_to_stay_within_the_limit():
    sizes = sizes_of(ring(300_000, 1, undirected=False))
    for limit in (10**8, 2 * 10**8, 10**9):
        steps = on_disk_peak(sizes, "metis", 3, memory_budget(limit, 0, sizes, "metis")).steps
        assert 0 < steps["adjacency"] <= limit
