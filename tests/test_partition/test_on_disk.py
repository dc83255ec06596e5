"""Cutting on disk: the same bytes as in memory, resumed after SIGKILL anywhere, and refusals that lose nothing."""

import dataclasses
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist.partition.write.writer
from fastsample_dist.graph.datasets import RawGraph, read_npy_graph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import load_part, read_manifest
from fastsample_dist.memory_sizes import parse_bytes, resident_bytes
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external import budget as memory
from fastsample_dist.partition.external.journal import Journal, work_directory
from fastsample_dist.partition.plan.memory import memory_budget, method_needs
from fastsample_dist.partition.report import display as cli_report
from fastsample_dist.partition.write import disk_space as disk
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.forked import run_code
from tests.grids import grid
from tests.small_disk import enlarge, small_tmpfs
from tests.test_partition.inputs import draw_raw, write_input
from tests.test_partition.resident import resident_kb

REPOSITORY = Path(fastsample_dist.partition.write.writer.__file__).parents[3]
# A run with tiny pieces that is killed at the KILL_AT-th durable entry of the journal or finished chunk of a file.
KILLED_RUN = """
import os, signal, sys
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.partition import cli
from fastsample_dist.partition.methods import adjacency
from fastsample_dist.partition.external import buckets, csc, journal
from fastsample_dist.partition.external import budget as memory

memory.MIN_PIECE, memory.MAX_PIECE, memory.MAX_BUCKET, buckets.SAVE_EDGES = 1, 50, 90, 100
where, left = sys.argv[1], int(sys.argv[2])

def killing(original):
    def run(*args, **named):
        global left
        result = original(*args, **named)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return run

if where == "save":
    journal.Journal.save = killing(journal.Journal.save)
elif where == "append":
    NpyWriter.append = killing(NpyWriter.append)
elif where == "write_at":
    buckets.write_at = killing(buckets.write_at)
elif where == "rows":
    csc.append = buckets.append = killing(buckets.append)
sys.exit(cli.main(sys.argv[3:]))
"""
PEAK_OF_IMPORTS = """
import fastsample_dist.partition.cli, fastsample_dist.partition.report.display
from fastsample_dist.ops import library
from fastsample_dist.memory_sizes import resident_bytes
library.core()
print(resident_bytes(peak=True))
"""
KILLS = [
    *(("save", k) for k in (1, 2, 4, 9, 14, 20)),
    *(("append", k) for k in (1, 6, 12)),
    *(("write_at", k) for k in (1, 7)),
    *(("rows", k) for k in (2, 3, 6)),
]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def arguments(graph: Path, output: Path, *more: object) -> list[str]:
    argv = ["--input", graph, "--num-parts", 3, "--seed", 5, "--output", output, *more]
    return [str(item) for item in argv]


def run_killed(where: str, count: int, argv: list[str]) -> int:
    return run_code(KILLED_RUN, where, count, *argv).returncode


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    raw = draw_raw(undirected=True, weighted=True)
    types = {"node_types": ("a", "b", "c"), "node_type": np.arange(raw.num_nodes) % 2}
    return write_input(tmp_path / "graph", dataclasses.replace(raw, **types))


@pytest.mark.parametrize("method", ["metis", "random", "range", "ldg"])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_bytes_as_in_memory(method, undirected, weighted, tmp_path):
    raw = draw_raw(undirected=undirected, weighted=weighted, num_nodes=300)
    for on_disk in (False, True):
        options = PartitionOptions(num_parts=3, method=method, seed=2, on_disk=on_disk)
        build_partition(raw, options, tmp_path / f"parts-{on_disk}")
    assert contents(tmp_path / "parts-True") == contents(tmp_path / "parts-False")
    assert len(list(tmp_path.iterdir())) == 2  # the work directory is gone


@pytest.mark.parametrize(
    "kill",
    grid(
        [*((*kill, "random") for kill in KILLS), ("append", 1, "metis")],
        gate=[(*KILLS[3], "random"), (*KILLS[-1], "random")],
    ),
    ids=str,
)
def test_killed_run_resumes_to_the_same_bytes(kill, graph, tmp_path):
    where, count, method = kill
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", method)
    assert run_killed(where, count, argv) == -signal.SIGKILL
    assert not (tmp_path / "parts").exists()
    assert work_directory(tmp_path / "parts").is_dir()
    assert main(argv) == 0
    assert main(arguments(graph, tmp_path / "plain", "--method", method)) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    assert not work_directory(tmp_path / "parts").exists()


@pytest.mark.parametrize(
    "column", grid(["edge_index", "edge_weight", "features", "node_type", "train_idx"], gate=["edge_weight"])
)
def test_input_changed_after_a_kill_starts_anew(column, graph, tmp_path):
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")
    assert run_killed("append", 12, argv) == -signal.SIGKILL
    values = np.load(graph / f"{column}.npy")
    if column == "train_idx":
        values = values[1:]
    elif column == "edge_index":
        values[0, 7] = (values[0, 7] + 1) % 57
    else:
        values[7] += 1
    np.save(graph / f"{column}.npy", values)
    assert main(argv) == 0
    assert main(arguments(graph, tmp_path / "plain", "--method", "random")) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")


@pytest.mark.parametrize(
    "option",
    grid(
        [("--seed", 6), ("--num-parts", 2), ("--feature-dtype", "float16"), ("--feature-dtype", "int8")],
        gate=[("--seed", 6)],
    ),
)
def test_options_changed_after_a_kill_count(option, graph, tmp_path):
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")
    assert run_killed("append", 12, argv) == -signal.SIGKILL
    more = [*map(str, option)]
    assert main([*argv, *more]) == 0
    assert main([*arguments(graph, tmp_path / "plain", "--method", "random"), *more]) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")


def test_damaged_journal_starts_anew(graph, tmp_path):
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")
    assert run_killed("save", 4, argv) == -signal.SIGKILL
    journal = work_directory(tmp_path / "parts") / "journal.json"
    journal.write_bytes(journal.read_bytes()[:50])
    assert main(argv) == 0
    assert read_manifest(tmp_path / "parts").num_parts == 3


def test_second_run_on_the_same_output_is_refused(tmp_path):
    options = PartitionOptions(num_parts=2, method="random", on_disk=True)
    with Journal(tmp_path / "parts"), pytest.raises(ValueError, match="is in use by another run"):
        build_partition(draw_raw(undirected=True), options, tmp_path / "parts")


def test_work_of_another_run_is_not_said_to_be_deletable(graph, tmp_path, capsys):
    with Journal(tmp_path / "parts"):
        assert main(arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")) == 1
    assert capsys.readouterr().err.endswith("in use by another run; wait for it or choose another output.\n")


def test_failure_names_the_place_of_the_unfinished_work(graph, tmp_path, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fastsample_dist.partition.write.writer, "_write_part", refuse)
    assert main(arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")) == 1
    merged, line = capsys.readouterr().err.splitlines()
    assert "with another weight; merged" in merged
    assert "No space left on device; unfinished work is kept in " in line
    assert f"{work_directory(tmp_path / 'parts')}: the same command resumes from it" in line
    assert not (tmp_path / "parts").exists()


def test_work_that_a_complete_partition_left_behind_is_resumed_with_overwrite(graph, tmp_path, capsys, monkeypatch):
    """As after a kill between the two last steps: the output appears, the work directory goes."""
    given = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda journal: None)
        assert main(given) == 0
    written = contents(tmp_path / "parts")
    capsys.readouterr()
    assert main(given) == 1
    work = work_directory(tmp_path / "parts")
    assert capsys.readouterr().err == (
        f"fastsample-partition: error: {tmp_path / 'parts'} exists; pass --overwrite (overwrite=True) to replace it; "
        f"work is kept in {work}: the same command with --overwrite resumes from it, or delete it.\n"
    )
    assert main([*given, "--overwrite"]) == 0
    assert contents(tmp_path / "parts") == written and not work.exists()


def test_a_file_system_without_locks_is_refused_and_left_clean(graph, tmp_path, capsys, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(arguments(graph, tmp_path / "parts", "--method", "random", "--on-disk")) == 1
    line = f"{work_directory(tmp_path / 'parts')} cannot be locked (No locks available), which keeps a second run away;"
    assert capsys.readouterr().err == (
        f"fastsample-partition: error: {line} choose an output on a file system with locks.\n"
    )
    assert list(tmp_path.iterdir()) == [graph]


def test_full_disk_in_the_middle(tmp_path, capsys, monkeypatch):
    small = tmp_path / "small"
    with small_tmpfs(small, 3 << 20):
        raw = draw_raw(undirected=False, num_nodes=50_000)  # 200,000 edges: 1.6 MB of keys, 0.8 MB of rows, ...
        graph = write_input(tmp_path / "graph", raw)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "free_bytes", lambda directory: None)  # others fill the disk while the run works
            assert main(arguments(graph, small / "parts", "--on-disk", "--method", "random")) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert f"No space left on device: '{work_directory(small / 'parts')}/" in line
        assert "unfinished work is kept in" in line
        assert not (small / "parts").exists()
        enlarge(small, 64 << 20)
        assert main(arguments(graph, small / "parts", "--on-disk", "--method", "random")) == 0
        assert main(arguments(graph, tmp_path / "plain", "--method", "random")) == 0
        assert contents(small / "parts") == contents(tmp_path / "plain")


# ---- memory


def test_limit_that_cannot_work_says_the_least_that_can(graph, tmp_path, capsys):
    assert main(arguments(graph, tmp_path / "parts", "--method", "random", "--memory-limit", "5MB")) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "the memory limit is 5MB but 60 nodes take at least " in line
    assert " of it the program itself); pass" in line
    least = line.split("pass --memory-limit ")[1].split(" ")[0]
    assert list(tmp_path.iterdir()) == [graph]
    assert main(arguments(graph, tmp_path / "parts", "--method", "random", "--memory-limit", least)) == 0


LEAST = [("random", ()), ("ldg", ()), ("random", ("--edge-map",))]


@pytest.mark.parametrize("method, more", grid(LEAST, gate=LEAST[2:], several=True))
def test_least_limit_works_and_is_kept(tmp_path, method, more):
    """As a user would: take over the limit that the refusal names. 100,000 listed edges."""
    num_nodes, rng = 20_000, np.random.default_rng(0)
    raw = RawGraph(
        name="drawn",
        num_nodes=num_nodes,
        undirected=True,
        edge_index=(rng.random((2, 100_000)) ** 2 * num_nodes).astype(np.int32),
        features=rng.random((num_nodes, 64), dtype=np.float32),
        labels=np.zeros(num_nodes, dtype=np.int64),
        splits={"train": np.arange(0, num_nodes, 3)},
    )
    graph = write_input(tmp_path / "graph", raw)

    def run(limit: str) -> subprocess.CompletedProcess[str]:
        argv = arguments(graph, tmp_path / "parts", "--method", method, "--memory-limit", limit, *more)
        command = [
            sys.executable,
            "-m",
            "fastsample_dist.partition.cli",
            *argv,
            "--json",
            str(tmp_path / "report.json"),
        ]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)

    refused = run("10MB")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [graph]
    least = refused.stderr.split("pass --memory-limit ")[1].split(" ")[0]
    done = run(least)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "report.json").read_text())["peak_resident_bytes"] <= parse_bytes(least)


def test_limit_below_the_longest_row_is_refused(tmp_path):
    star = np.stack([np.arange(10_000_000, dtype=np.int32) % 1000, np.zeros(10_000_000, dtype=np.int32)])
    raw = RawGraph(name="star", num_nodes=1000, undirected=False, edge_index=star)
    limit = resident_with(150_000_000)
    options = PartitionOptions(num_parts=2, method="random", memory_limit=limit)
    with pytest.raises(ValueError, match="1000 nodes with a node of 10000000 in-edges take at least"):
        build_partition(raw, options, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_what_reading_left_is_not_called_the_program(tmp_path):
    options = PartitionOptions(num_parts=2, method="random", memory_limit=5_000_000, on_disk=True)
    with pytest.raises(ValueError, match=r"the memory limit is 5MB but .* of it held after reading the input\); pass"):
        build_partition(draw_raw(undirected=False), options, tmp_path / "parts")


def test_peak_stays_within_the_limit(tmp_path):
    # 6 million edges take 400 MB and more in memory, 60,000 rows of features 60 MB.
    num_nodes, rng = 60_000, np.random.default_rng(0)
    raw = RawGraph(
        name="large",
        num_nodes=num_nodes,
        undirected=True,
        edge_index=(rng.random((2, 6_000_000)) ** 2 * num_nodes).astype(np.int32),
        features=rng.random((num_nodes, 250), dtype=np.float32),
        node_types=("paper", "author"),
        node_type=rng.integers(0, 2, num_nodes),
    )
    graph = write_input(tmp_path / "graph", dataclasses.replace(raw, labels=np.zeros(num_nodes, dtype=np.int64)))
    base = subprocess.run(
        [sys.executable, "-c", PEAK_OF_IMPORTS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    limit = int(base.stdout) + 160_000_000
    argv = arguments(graph, tmp_path / "parts", "--method", "random", "--memory-limit", f"{limit}B")
    argv += ["--json", str(tmp_path / "report.json")]
    command = [sys.executable, "-m", "fastsample_dist.partition.cli", *argv]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=300, check=True)
    assert json.loads((tmp_path / "report.json").read_text())["peak_resident_bytes"] <= limit


def test_log_tells_the_time_left(tmp_path, graph, capsys, monkeypatch):
    monkeypatch.setattr(cli_report, "LOG_INTERVAL_S", 0)
    monkeypatch.setattr(memory, "MIN_PIECE", 1)
    monkeypatch.setattr(memory, "MAX_PIECE", 50)
    assert main(arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")) == 0
    assert re.search(r"^build the topology: \d+%, about \d+ s left$", capsys.readouterr().out, re.MULTILINE)


def resident_with(more: int) -> int:
    return resident_bytes() + more


def test_method_that_holds_the_graph_is_refused_where_it_does_not_fit(tmp_path):
    raw = draw_raw(undirected=True)
    options = PartitionOptions(num_parts=2, method="metis", memory_limit=1_000_000)
    with pytest.raises(ValueError, match="method metis holds the whole graph in memory, about .* another --method"):
        build_partition(raw, options, tmp_path / "parts")


@pytest.mark.parametrize("listed_twice", [True, False])
def test_what_a_method_holds_depends_on_edges_listed_both_ways(tmp_path, listed_twice, monkeypatch):
    """The limit lies between what edges with their reverses take and what as many without any take."""
    monkeypatch.setattr("fastsample_dist.partition.write.checks.resident_bytes", lambda: 0)
    nodes = np.arange(20_000)
    edges = np.stack([nodes, (nodes + 1) % len(nodes)])
    second = edges[::-1] if listed_twice else np.stack([nodes, (nodes + 7) % len(nodes)])
    edge_index = np.concatenate([edges, second], axis=1)
    raw = RawGraph(name="ring", num_nodes=len(nodes), undirected=False, edge_index=edge_index)
    sizes = sizes_of(raw)
    plan = memory_budget(1, 0, sizes, "metis")
    limits = [method_needs(sizes, "metis", plan, sizes.num_edges, count) for count in (40_000, 80_000)]
    monkeypatch.setattr("fastsample_dist.partition.write.checks.sorted_on_disk", lambda *_: False)
    options = PartitionOptions(num_parts=2, method="metis", memory_limit=sum(limits) // 2)
    if listed_twice:
        build_partition(raw, options, tmp_path / "parts")
    else:
        with pytest.raises(ValueError, match="method metis holds the whole graph"):
            build_partition(raw, options, tmp_path / "parts")


@pytest.mark.parametrize("text", ["", "GB", "2 potatoes", "-1GB", "0x10"])
def test_size_that_is_none_is_refused(text, graph, tmp_path, capsys):
    assert main(arguments(graph, tmp_path / "parts", f"--memory-limit={text}")) == 1
    assert "is not a size; expected a number with B, kB" in capsys.readouterr().err


# ---- types of features


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("given", ["float16", "float32", "float64", ">f4", "int8"])
@pytest.mark.parametrize("mapped", [False, True])
def test_features_are_converted(dtype, given, mapped, tmp_path):
    raw = draw_raw(undirected=True, num_nodes=40)
    features = (np.random.default_rng(0).normal(size=(40, 5)) * 20).astype(given)
    if mapped:
        np.save(tmp_path / "features.npy", features)
        features = np.lib.format.open_memmap(tmp_path / "features.npy", mode="c")
    raw = RawGraph(name="drawn", num_nodes=40, undirected=True, edge_index=raw.edge_index, features=features)
    name = str(dtype).removeprefix("torch.")
    build_partition(raw, PartitionOptions(num_parts=1, method="range", feature_dtype=name), tmp_path / "parts")
    manifest = read_manifest(tmp_path / "parts")
    stored = load_part(tmp_path / "parts", manifest, 0).features
    wanted = torch.from_numpy(np.array(features, dtype=np.dtype(given).newbyteorder("="))).to(dtype)
    assert manifest.feature_dtype == name and stored.dtype == dtype
    assert torch.equal(stored, wanted)


def test_int8_with_scales_on_disk_is_that_in_memory(graph, tmp_path):
    for name, more in (("memory", ()), ("disk", ("--on-disk",))):
        assert main(arguments(graph, tmp_path / name, "--feature-dtype", "int8", *more)) == 0
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")
    assert any(name.endswith("scales.npy") for name in read_manifest(tmp_path / "disk").files)


def test_feature_beyond_float16_is_refused(graph, tmp_path, capsys):
    features = np.load(graph / "features.npy")
    features[31, 2] = 70_000
    np.save(graph / "features.npy", features)
    assert main(arguments(graph, tmp_path / "parts", "--feature-dtype", "float16")) == 1
    assert "feature 2 of node 31 is 70000, which float16 cannot hold" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [graph]


def test_mapped_input_leaves_no_pages_behind(tmp_path):
    graph = write_input(tmp_path / "graph", draw_raw(undirected=False, num_nodes=100_000))
    raw = read_npy_graph(graph)
    build_partition(raw, PartitionOptions(num_parts=2, method="random", on_disk=True), tmp_path / "parts")
    assert resident_kb(graph / "edge_index.npy", graph / "features.npy") == [0, 0]
