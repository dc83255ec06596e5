"""Planted graphs on disk: what the files hold, and that kills, full disks and other threads change nothing."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph import generators, planted_files
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.graph.planted import PlantedGraph
from fastsample_dist.graph.planted_files import NodeColumns, PlantedFiles, work_directory, write_planted
from tests.interrupted import ROOT, interrupt
from tests.small_disk import enlarge, small_tmpfs

GRAPH = PlantedGraph(num_nodes=5000, num_edges=60_000, num_communities=30, mixing=0.25)
COLUMNS = NodeColumns(feature_dim=7, num_classes=5)


def write(path: Path, graph=GRAPH, columns=COLUMNS, threads=1, limit=None, on_rows=lambda *_: None) -> Path:
    write_planted(PlantedFiles(graph, columns, threads), path, limit, on_rows)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def command(path: Path, *more: object) -> list[str]:
    shape = ("--nodes", 5000, "--edges", 60_000, "--communities", 30, "--mixing", 0.25, "--features", 7, "--classes", 5)
    return ["planted", *map(str, (*shape, "--output", path, *more))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("planted") / "plain")


@pytest.fixture
def short_stretches(monkeypatch):
    monkeypatch.setattr(planted_files, "STRETCH_BYTES", 40_000)
    monkeypatch.setattr(planted_files, "BLOCK_ROWS", 999)


def test_the_directory_reads_as_a_graph_and_its_columns_agree(plain):
    raw = read_npy_graph(plain)
    of = np.load(plain / "planted.npy")
    assert (raw.num_nodes, raw.edge_index.shape, raw.undirected, raw.num_classes) == (5000, (2, 60_000), False, 5)
    assert np.array_equal(raw.labels, of % 5)
    assert np.array_equal(of, GRAPH.communities(0, 5000))
    assert {name: len(ids) for name, ids in raw.splits.items()} == {"train": 500, "val": 250, "test": 250}
    assert raw.edge_index.dtype == np.int32
    left = (of[raw.edge_index[0]] != of[raw.edge_index[1]]).mean()
    assert abs(left - 0.25) < 5 * (0.25 * 0.75 / 60_000) ** 0.5


def test_ids_are_the_numbers_in_the_order_of_the_graph(plain):
    edges = np.load(plain / "edge_index.npy")
    assert np.array_equal(GRAPH.order.numbers(edges.reshape(-1)).reshape(2, -1), np.stack(GRAPH.numbers(0, 60_000)))


def test_features_tell_the_class_and_have_unit_noise(plain):
    raw = read_npy_graph(plain)
    means = np.stack([raw.features[raw.labels == kind].mean(axis=0) for kind in range(5)])
    assert np.linalg.norm(means, axis=1) == pytest.approx(np.ones(5), abs=0.2)
    assert (raw.features - means[raw.labels]).std() == pytest.approx(1, abs=0.02)


def test_threads_and_blocks_change_no_byte(plain, tmp_path, short_stretches):
    assert contents(write(tmp_path / "other", threads=3)) == contents(plain)


def test_options_of_the_columns(tmp_path):
    options = NodeColumns(undirected=True, id_dtype="int64", feature_dim=3, feature_dtype="float16", train_fraction=0)
    raw = read_npy_graph(write(tmp_path / "graph", columns=options))
    assert raw.undirected and raw.edge_index.dtype == np.int64 and raw.features.dtype == np.float16
    assert raw.splits == {} and raw.num_classes == 30


def test_a_graph_without_edges(tmp_path):
    empty = PlantedGraph(num_nodes=10, num_edges=0, num_communities=2)
    raw = read_npy_graph(write(tmp_path / "graph", graph=empty, columns=NodeColumns()))
    assert raw.edge_index.shape == (2, 0)


@pytest.mark.parametrize("column", ["planted", "train_idx", "features", "edge_index"])
def test_a_run_that_failed_anywhere_is_resumed(plain, tmp_path, short_stretches, column):
    def fail(name: str, done: int, rows: int) -> None:
        if name == column:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write(tmp_path / "graph", on_rows=fail)
    assert not (tmp_path / "graph").exists() and work_directory(tmp_path / "graph").is_dir()
    seen: list[str] = []
    write(tmp_path / "graph", on_rows=lambda name, *_: seen.append(name))
    assert contents(tmp_path / "graph") == contents(plain)
    assert column == "planted" or "planted" not in seen  # what was finished is not written again
    assert not work_directory(tmp_path / "graph").exists()


def test_another_graph_does_not_resume_from_the_work_of_one(plain, tmp_path, short_stretches):
    def fail(name: str, done: int, rows: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write(tmp_path / "graph", graph=PlantedGraph(num_nodes=9000, num_edges=10, num_communities=3), on_rows=fail)
    assert contents(write(tmp_path / "graph")) == contents(plain)


def test_a_killed_command_resumes(plain, tmp_path):
    words = [sys.executable, "-m", "fastsample_dist.graph.generators", *command(tmp_path / "graph")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
    with process:
        assert any("labels" in line for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    if not (tmp_path / "graph").exists():  # it may have been faster
        assert generators.main(command(tmp_path / "graph")) == 0
    assert contents(tmp_path / "graph") == contents(plain)


def test_ctrl_c_ends_in_one_line_and_keeps_the_work(tmp_path):
    large = ("--nodes", 200_000, "--edges", 50_000_000, "--communities", 30, "--output", tmp_path / "graph")
    ended = interrupt(["-m", "fastsample_dist.graph.generators", "planted", *large], "labels")
    assert ended.status == 130
    assert ended.err == [
        f"generators: interrupted; unfinished work is kept in {work_directory(tmp_path / 'graph')}: the same command "
        "resumes from it, or delete it."
    ]


def test_full_disk_in_the_middle(plain, tmp_path, capsys, monkeypatch):
    small = tmp_path / "small"
    with small_tmpfs(small, 300 << 10):
        with monkeypatch.context() as patched:
            patched.setattr(planted_files, "free_bytes", lambda directory: None)  # others fill the disk meanwhile
            assert generators.main(command(small / "graph")) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and "No space left on device: '" in line and "the same command resumes" in line
        enlarge(small, 8 << 20)
        assert generators.main(command(small / "graph")) == 0
        assert contents(small / "graph") == contents(plain)


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    def refusal(*more: object) -> str:
        assert generators.main(command(tmp_path / "graph", *more)) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and list(tmp_path.iterdir()) == []
        return line

    assert "mixing is 2.0; expected a share of the edges, 0 to 1." in refusal("--mixing", 2)
    assert "communities is 2501; expected 1 to 2500" in refusal("--communities", 2501)
    assert "--memory-limit '5X' is not a size" in refusal("--memory-limit", "5X")
    line = refusal("--memory-limit", "20MB")
    assert "the memory limit is 20MB but 5000 nodes in" in line
    least = line.split("pass --memory-limit ")[1].split(" ")[0]
    monkeypatch.setattr(planted_files, "free_bytes", lambda directory: 1000)
    assert "of disk but 1000B are free" in refusal("--memory-limit", least)


def test_an_output_that_exists_or_is_being_written_is_refused(plain, tmp_path, capsys):
    assert generators.main(command(plain)) == 1
    assert f"{plain} exists; expected a new directory" in capsys.readouterr().err

    def again(*_: object) -> None:
        assert generators.main(command(tmp_path / "graph")) == 1

    write(tmp_path / "graph", on_rows=again)
    assert ".graph.planted is in use by another run; wait for it or choose another output." in capsys.readouterr().err
    assert contents(tmp_path / "graph") == contents(plain)


def test_a_file_system_without_locks_is_refused_and_left_clean(tmp_path, capsys, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert generators.main(command(tmp_path / "graph")) == 1
    line = f"{tmp_path}/.graph.planted cannot be locked (Function not implemented), which keeps a second run away;"
    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_peak_memory_is_within_the_prediction(tmp_path):
    """2 million nodes: the table is 8 MB of some 50 above the program."""
    words = ["planted", "--nodes", "2000000", "--edges", "2000000", "--communities", "400", "--output", tmp_path / "g"]
    report = subprocess.run(
        [sys.executable, "-m", "fastsample_dist.graph.generators", *map(str, words)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.splitlines()[-1]  # fmt: skip
    peak, predicted = (
        float(text.split("MB")[0].split()[-1].strip("(")) for text in report.split("peak memory")[1].split(" (")
    )
    assert peak <= predicted <= 1.4 * peak
