"""The command on edge lists: refusals in one line that leave nothing behind, kills, and the memory reading takes."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist.partition
from fastsample_dist.graph.inputs import edgelist
from fastsample_dist.graph.storage import load_topology, read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external.journal import work_directory
from tests.forked import run_code
from tests.grids import grid

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

REPOSITORY = Path(fastsample_dist.partition.__file__).parents[2]
# The command with every list taken for a long one, killed at the KILL_AT-th block that is read or entry of the journal.
KILLED_RUN = """
import os, signal, sys
from fastsample_dist.graph.inputs import edgelist, text_edges
from fastsample_dist.partition import cli
from fastsample_dist.partition.external import journal

edgelist.SMALL_BYTES, text_edges.BLOCK_BYTES = 0, 200
where, left = sys.argv[1], int(sys.argv[2])

def killing(original):
    def run(*args, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **named)
    return run

if where == "read":
    text_edges._parse = killing(text_edges._parse)
else:
    journal.Journal.save = killing(journal.Journal.save)
sys.exit(cli.main(sys.argv[3:]))
"""
# The command where no file may grow beyond 4 kB.
SHORT_OF_ROOM = """
import resource, sys
from fastsample_dist.graph.inputs import edgelist
from fastsample_dist.partition import cli

edgelist.SMALL_BYTES = 0
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(cli.main(sys.argv[1:]))
"""
# Peak of resident memory while a list is read, above what the process held before, in bytes.
PEAK_OF_READING = """
import sys
from pathlib import Path
from fastsample_dist.graph.inputs import ReadOptions, Scratch, edgelist, text_edges
from fastsample_dist.memory_sizes import resident_bytes

text_edges.BLOCK_BYTES = 1 << 18
edgelist.read_edgelist(Path(sys.argv[1]), ReadOptions())  # a short list: loads what reading needs
with Scratch(Path(sys.argv[3])) as scratch:
    before = resident_bytes()
    raw = edgelist.read_edgelist(Path(sys.argv[2]), ReadOptions(scratch=scratch))
    print(raw.edge_index.shape[1], raw.num_nodes, resident_bytes(peak=True) - before)
"""
GOOD = b"0 1\n1 2\n2 3\n"
BAD = {
    "out of range": ("edges.txt", GOOD + b"0 9\n", "line 4: node id 9; expected 0 to 4; correct it or num_nodes"),
    "negative": ("edges.txt", GOOD + b"-1 2\n", "line 4: node id -1; expected 0 to 4"),
    "ragged": ("edges.txt", GOOD + b"4\n", "line 4: found '4'; expected two integers 'source destination'"),
    "third column": ("edges.csv", b"0,1,0.5\n", "line 1: found '0,1,0.5'; expected two integers"),
    "header": ("edges.csv", b"src,dst\n0,1\n", "line 1: found 'src,dst'; .* put # before a header"),
    "fraction": ("edges.txt", GOOD + b"1.5 2\n", "line 4: found '1.5 2'"),
    "letters": ("edges.txt", GOOD + b"abc 2\n", "line 4: found 'abc 2'"),
    "huge": ("edges.txt", GOOD + b"9223372036854775808 2\n", "line 4: node id 9223372036854775808; expected 0 to 4"),
    "empty": ("edges.txt", b"", "lists no edge"),
    "binary": ("edges.txt", bytes(range(256)), "line 1: found .* in plain text"),
    "not UTF-8": ("edges.txt", GOOD + b"\xe9 2\n", "line 4: found .* in ASCII or UTF-8"),
    "no gzip": ("edges.txt.gz", GOOD, "starts with '0 '; expected gzip data"),
    "short gzip": (
        "edges.txt.gz",
        gzip.compress(GOOD)[:-12],
        "after line 1 and byte 0 of .* gzip data are damaged",
    ),
    "bad line in gzip": ("edges.txt.gz", gzip.compress(GOOD + b"x 2\n"), "line 4: found 'x 2'"),
}


def arguments(graph: Path, output: Path, *more: object) -> list[str]:
    argv = ["--input", graph, "--num-parts", 3, "--method", "random", "--seed", 5, "--output", output, *more]
    return [str(item) for item in argv]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


def edges_in(parts: Path) -> list[list[int]]:
    graph = load_topology(parts, read_manifest(parts))
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
    names = graph.orig_ids.numpy()
    return sorted(np.stack([names[graph.indices.numpy()], names[destinations]], axis=1).tolist())


def write_text(file: Path, edges: np.ndarray) -> Path:
    file.write_text("".join(f"{src} {dst}\n" for src, dst in edges.tolist()))
    return file


@pytest.fixture
def drawn() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 200, (3000, 2))


@pytest.mark.parametrize("small_bytes", [0, 1 << 26])
@pytest.mark.parametrize("case", BAD)
def test_bad_list_is_refused_in_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch, case, small_bytes):
    monkeypatch.setattr(edgelist, "SMALL_BYTES", small_bytes)
    name, data, message = BAD[case]
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / name).write_bytes(data)
    if case != "empty":
        (graph / "meta.json").write_text(json.dumps({"name": "five", "num_nodes": 5, "undirected": False}))
    assert main(arguments(graph, tmp_path / "parts")) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    with pytest.raises(ValueError, match=rf"error: \S*{name}\W.*{message}|error: \S*{name} {message}"):
        raise ValueError(line)
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("small_bytes", [0, 1 << 26])
@pytest.mark.parametrize("form", [".txt", ".csv", ".tsv.gz", ".parquet", "parts", "marked", "windows"])
def test_parts_hold_the_edges_of_the_list(tmp_path, monkeypatch, drawn, form, small_bytes):
    monkeypatch.setattr(edgelist, "SMALL_BYTES", small_bytes)
    graph = tmp_path / f"edges{form if form.startswith('.') else '.txt'}"
    lines = [f"{src} {dst}" for src, dst in drawn.tolist()]
    if form == ".parquet":
        pq.write_table(pa.table({"src": drawn[:, 0], "dst": drawn[:, 1]}), graph)
    elif form == "parts":
        graph = tmp_path / "list"
        graph.mkdir()
        write_text(graph / "part-00000.txt", drawn[:1000])
        write_text(graph / "part-00001.txt", drawn[1000:])
    elif form == ".tsv.gz":
        graph.write_bytes(gzip.compress("\n".join(lines).replace(" ", "\t").encode()))
    elif form == ".csv":
        graph.write_text("\n".join(lines).replace(" ", ","))
    elif form == "windows":
        graph.write_bytes("\r\n".join([*lines, ""]).encode())
    else:
        graph.write_text("\n".join(["# source destination"] * (form == "marked") + lines))
    assert main(arguments(graph, tmp_path / "parts")) == 0
    assert edges_in(tmp_path / "parts") == sorted(drawn.tolist())
    assert sorted(tmp_path.iterdir()) == sorted([graph, tmp_path / "parts"])


@pytest.mark.parametrize("count, packed", [(1, False), (40, False), (40, True)])
def test_run_killed_while_reading_resumes_to_the_same_bytes(tmp_path, drawn, monkeypatch, count, packed):
    graph = write_text(tmp_path / "edges.txt", drawn)
    if packed:
        graph = tmp_path / "edges.txt.gz"
        graph.write_bytes(gzip.compress((tmp_path / "edges.txt").read_bytes()))
    argv = arguments(graph, tmp_path / "parts", "--on-disk")
    assert run_code(KILLED_RUN, "read", str(count), *argv).returncode == -signal.SIGKILL
    assert not (tmp_path / "parts").exists()
    assert work_directory(tmp_path / "parts").is_dir()
    monkeypatch.setattr(edgelist, "SMALL_BYTES", 0)
    assert main(argv) == 0
    assert main(arguments(graph, tmp_path / "plain")) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    assert not work_directory(tmp_path / "parts").exists()


@pytest.mark.parametrize("count", [1, 4])
def test_run_killed_later_does_not_read_again(tmp_path, drawn, monkeypatch, count):
    graph = write_text(tmp_path / "edges.txt", drawn)
    argv = arguments(graph, tmp_path / "parts", "--on-disk")
    assert run_code(KILLED_RUN, "save", str(count), *argv).returncode == -signal.SIGKILL
    assert main(arguments(graph, tmp_path / "plain")) == 0
    monkeypatch.setattr(edgelist, "SMALL_BYTES", 0)
    monkeypatch.setattr(edgelist.TextEdges, "chunks", lambda source: pytest.fail("the text was read again"))
    assert main(argv) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    assert not work_directory(tmp_path / "parts").exists()


def test_a_list_that_changed_after_a_kill_is_read_again(tmp_path, drawn, monkeypatch):
    graph = write_text(tmp_path / "edges.txt", drawn)
    argv = arguments(graph, tmp_path / "parts", "--on-disk")
    assert run_code(KILLED_RUN, "save", "4", *argv).returncode == -signal.SIGKILL
    monkeypatch.setattr(edgelist, "SMALL_BYTES", 0)
    write_text(graph, drawn[::-1][:2000])
    os.utime(graph, ns=(1, 1))
    assert main(argv) == 0
    assert edges_in(tmp_path / "parts") == sorted(drawn[::-1][:2000].tolist())


def test_disk_that_refuses_is_named_and_leaves_nothing(tmp_path, drawn):
    graph = write_text(tmp_path / "edges.txt", drawn)
    done = run_python(SHORT_OF_ROOM, *arguments(graph, tmp_path / "parts"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.search(r"File too large: .*\.parts\.work/input/edges\.npy\.\d+\.partial", done.stderr)
    assert list(tmp_path.iterdir()) == [graph]


LONG = [(".txt", 24_000_000), (".txt.gz", 24_000_000), (".parquet", 48_000_000)]


@pytest.mark.parametrize("suffix, limit", grid(LONG, gate=LONG[1:2], several=True))
def test_reading_takes_little_memory_however_long_the_list(tmp_path, suffix, limit):
    # 8 million edges are 64 MB as int32 and 128 MB as int64; the text has 90 MB. Checks map 16 MB at a time.
    repeats = 80
    block = np.random.default_rng(0).integers(0, 99_000, (100_000, 2))
    text = "".join(f"{src} {dst}\n" for src, dst in block.tolist()).encode()
    table = pa.table({"src": block[:, 0], "dst": block[:, 1]})
    for name, count in (("short", 1), ("long", repeats)):
        with (tmp_path / f"{name}{suffix}").open("wb") as file:
            if suffix == ".parquet":
                with pq.ParquetWriter(file, table.schema) as writer:
                    for _ in range(count):
                        writer.write_table(table)
            data = gzip.compress(text, 1) if suffix == ".txt.gz" else text
            for _ in range(0 if suffix == ".parquet" else count):
                file.write(data)
    paths = [str(tmp_path / name) for name in (f"short{suffix}", f"long{suffix}", "scratch")]
    done = run_python(PEAK_OF_READING, *paths)
    assert done.returncode == 0, done.stderr
    num_edges, num_nodes, peak = map(int, done.stdout.split())
    assert (num_edges, num_nodes) == (100_000 * repeats, int(block.max()) + 1)
    assert peak < limit
