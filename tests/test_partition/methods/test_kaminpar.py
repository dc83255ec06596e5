"""`kaminpar`: the file it reads is the graph, its process ends with this one, and nothing is left behind.

Calls that fail or never end are played by a module of the same name, see played_kaminpar.py.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist.partition
from fastsample_dist.ops.library import LIBRARY_DIR
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.kaminpar_process import paged_out
from fastsample_dist.partition.methods.parhip import parhip_bytes, write_parhip
from fastsample_dist.partition.progress import Progress
from tests.small_disk import enlarge, small_tmpfs
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import drawn, request_of
from tests.test_partition.played_kaminpar import FOREVER, is_running, played_kaminpar, signal_parent
from tests.test_partition.resident import resident_kb as resident_kb_of
from tests.waiting import wait_until

REPOSITORY = Path(fastsample_dist.partition.__file__).parents[2]


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Makes the call of KaMinPar this code; temporary files have a directory of their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with played_kaminpar(tmp_path / "played") as plays:
        yield plays


def left(tmp_path: Path) -> list[Path]:
    """Temporary files that are left."""
    return list((tmp_path / "temporary").iterdir())


# ---- the file


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_reads_the_graph_that_was_written(undirected, compressed, tmp_path):
    kaminpar = pytest.importorskip("kaminpar")
    adjacency = request_of(draw_raw(undirected=undirected), 2).adjacency
    weights = np.arange(adjacency.num_nodes)
    write_parhip(tmp_path / "graph", adjacency, weights)
    graph = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP, compressed)
    assert [graph.node_weight(node) for node in range(graph.n())] == (weights + 1).tolist()
    assert graph.is_edge_weighted() == (adjacency.weights is not None)
    for node in range(graph.n()):
        row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        ones = np.ones(row.stop - row.start, dtype=int)
        edge_weights = ones if adjacency.weights is None else adjacency.weights[row]
        expected = sorted(zip(adjacency.indices[row].tolist(), edge_weights.tolist(), strict=True))
        assert sorted(graph.neighbors(node)) == expected


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weight_dtype", [None, np.uint8, np.int32])
def test_size_of_the_file_is_known_before_and_its_columns_are_the_graphs(tmp_path, monkeypatch, id_dtype, weight_dtype):
    monkeypatch.setattr("fastsample_dist.partition.methods.parhip.CHUNK_EDGES", 7)
    monkeypatch.setattr("fastsample_dist.partition.methods.constraints.NODES_AT_ONCE_BYTES", 1 << 24)
    made = request_of(draw_raw(undirected=False), 2).adjacency
    weights = None if weight_dtype is None else made.weights.astype(weight_dtype)
    adjacency = Adjacency(made.indptr, made.indices.astype(id_dtype), weights)
    write_parhip(tmp_path / "graph", adjacency, np.arange(made.num_nodes))
    data, nodes, entries = (tmp_path / "graph").read_bytes(), made.num_nodes, len(made.indices)
    width = np.dtype(id_dtype).itemsize
    assert len(data) == parhip_bytes(nodes, entries, width, weighted=weights is not None)
    offsets = np.frombuffer(data, np.uint64, nodes + 1, 24)
    assert ((offsets - offsets[0]) // width == made.indptr).all() and offsets[0] == 24 + 8 * (nodes + 1)
    ids = np.frombuffer(data, id_dtype, entries, int(offsets[0]))
    assert (ids == made.indices).all()
    assert (np.frombuffer(data, np.int32, nodes, int(offsets[-1])) == np.arange(1, nodes + 1)).all()
    if weights is not None:
        assert (np.frombuffer(data, np.int32, entries, int(offsets[-1]) + 4 * nodes) == weights).all()


@pytest.mark.parametrize("weight", [2**31 - 2, 2**31 - 1, 2**33])
def test_node_of_many_in_edges_keeps_its_weight(tmp_path, weight):
    kaminpar = pytest.importorskip("kaminpar")
    adjacency = request_of(draw_raw(undirected=True), 2).adjacency
    weights = np.full(adjacency.num_nodes, weight)
    write_parhip(tmp_path / "graph", adjacency, weights)
    graph = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP, True)
    assert graph.node_weight(0) == weight + 1


# ---- the process


def test_leaves_no_file_behind(tmp_path, monkeypatch):
    pytest.importorskip("kaminpar")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    METHODS["kaminpar"].assign(drawn())
    assert list(tmp_path.iterdir()) == []


def test_parts_are_those_of_the_call(tmp_path, play):
    play("pass")
    assert METHODS["kaminpar"].assign(drawn(4)).tolist() == [node % 4 for node in range(400)]
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "KaMinPar was killed when it held .*, as the system does when memory"),
        ("os.abort()", r"KaMinPar crashed with SIGABRT \(.*\); try again, or pass another --method."),
        ("raise MemoryError('of the call')", "KaMinPar failed: MemoryError: of the call"),
        ("os._exit(1)", "KaMinPar failed: it printed nothing"),
    ],
    ids=["killed", "crash", "error", "silence"],
)
def test_end_of_the_process_is_reported_in_one_line(tmp_path, play, call, message):
    play(call)
    with pytest.raises(RuntimeError, match=message) as caught:
        METHODS["kaminpar"].assign(drawn())
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_ctrl_c_ends_the_process(tmp_path, play):
    play(signal_parent("SIGINT", tmp_path / "pid"))
    with pytest.raises(KeyboardInterrupt):
        METHODS["kaminpar"].assign(drawn())
    assert not is_running(tmp_path / "pid")
    assert left(tmp_path) == []


def test_more_than_the_memory_limit_is_ended(tmp_path, play):
    play(f"held = bytearray(1 << 28); held[::4096] = bytes(1 << 16); {FOREVER}")
    request = drawn()
    progress = Progress()
    progress.memory_held = (held := []).append
    limited = request_of(draw_raw(undirected=True), 4, memory_limit=resident_kb() * 1024 + (1 << 27), progress=progress)
    with pytest.raises(ValueError, match="KaMinPar held .* when it was ended, more than the memory limit of"):
        METHODS["kaminpar"].assign(limited)
    assert held[-1] > limited.memory_limit and request.memory_limit is None
    assert left(tmp_path) == []


def test_killed_parent_takes_the_process_along_and_its_files_go_with_the_next_call(tmp_path, play):
    play(signal_parent("SIGKILL", tmp_path / "pid"))
    code = (
        "from fastsample_dist.partition.methods import METHODS\n"
        "from tests.test_partition.methods.requests import drawn\n"
        "METHODS['kaminpar'].assign(drawn())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, env=environment, check=False)
    assert done.returncode == -9
    wait_until(lambda: not is_running(tmp_path / "pid"))
    assert len(left(tmp_path)) == 1
    play("pass")
    METHODS["kaminpar"].assign(drawn())
    assert left(tmp_path) == []


def test_work_directory_is_resumed_with_the_call_and_then_after_it(tmp_path, play):
    work = tmp_path / "work"
    work.mkdir()
    play("os._exit(1)")
    with pytest.raises(RuntimeError):
        METHODS["kaminpar"].assign(drawn_in(work))
    graph = work / "kaminpar.graph"
    inode = graph.stat().st_ino
    play(f"assert os.stat({str(graph)!r}).st_ino == {inode}")
    parts = METHODS["kaminpar"].assign(drawn_in(work))
    assert [file.name for file in work.iterdir()] == ["kaminpar.parts"]
    play("os._exit(1)")
    assert (METHODS["kaminpar"].assign(drawn_in(work)) == parts).all()


def test_full_disk_names_the_file_and_leaves_nothing(tmp_path, play):
    play("pass")
    with small_tmpfs(tmp_path / "small", 4096), pytest.raises(OSError, match="kaminpar.graph") as caught:
        METHODS["kaminpar"].assign(drawn_in(tmp_path / "small"))
    assert caught.value.strerror == "No space left on device"
    assert list((tmp_path / "small").iterdir()) == []


def test_full_disk_under_what_it_prints_is_named(tmp_path, play):
    small = tmp_path / "small"
    (tmp_path / "work").mkdir()
    play("os._exit(1)")
    with pytest.raises(RuntimeError):
        METHODS["kaminpar"].assign(drawn_in(tmp_path / "work"))
    pages = -(-(tmp_path / "work" / "kaminpar.graph").stat().st_size // resource.getpagesize())
    with small_tmpfs(small, pages * resource.getpagesize()):
        with pytest.raises(OSError) as caught:
            METHODS["kaminpar"].assign(drawn_in(small))
        assert str(caught.value) == f"[Errno 28] No space left on device: '{small}/kaminpar.log'"


def test_full_disk_while_the_parts_are_written_is_one_line_and_resumes(tmp_path, play):
    (tmp_path / "work").mkdir()
    play("os._exit(1)")
    with pytest.raises(RuntimeError):
        METHODS["kaminpar"].assign(drawn_in(tmp_path / "work"))
    pages = -(-(tmp_path / "work" / "kaminpar.graph").stat().st_size // resource.getpagesize())
    play("pass")
    small = tmp_path / "small"
    with small_tmpfs(small, (pages + 1) * resource.getpagesize()):  # what it prints has a page
        with pytest.raises(RuntimeError, match=r"^KaMinPar failed: OSError: .*No space left on device: '.*/small/kam"):
            METHODS["kaminpar"].assign(drawn_in(small))
        assert not list(small.glob("kaminpar.part*"))
        enlarge(small, (pages + 4) * resource.getpagesize())
        assert len(METHODS["kaminpar"].assign(drawn_in(small))) == drawn().num_nodes
        assert [file.name for file in small.iterdir()] == ["kaminpar.parts"]


def test_pages_of_the_file_are_given_back_while_it_is_mapped(tmp_path):
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    if sys.platform != "linux" or kind.strip() in ("tmpfs", "ramfs", "overlayfs"):
        pytest.skip("pages are given back to a disk's file only, by Linux")
    written = np.random.default_rng(0).integers(0, 2**62, 1 << 19)
    with (tmp_path / "graph").open("wb") as file:
        file.write(written.data)
        os.fsync(file.fileno())
    mapped = np.memmap(tmp_path / "graph", dtype=np.int64, mode="r")
    with paged_out(str(LIBRARY_DIR / "libfastsample.so"), str(tmp_path / "graph")):
        assert (mapped == written).all()
        wait_until(lambda: resident_kb_of(tmp_path / "graph") == [0])
    assert (mapped == written).all() and resident_kb_of(tmp_path / "graph") == [4096]


def test_absence_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    with pytest.raises(ImportError, match="method kaminpar needs kaminpar.*pip install kaminpar, or take --method"):
        METHODS["kaminpar"].assign(drawn())


def drawn_in(work: Path):
    """A request with this work directory."""
    return request_of(draw_raw(undirected=True, num_nodes=400, num_train=120), 4, work=work)


def resident_kb() -> int:
    """Memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
