"""Predicted bytes of a partition and of the work directory against the files themselves."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import FEATURE_DTYPES, WIDE_DTYPES
from fastsample_dist.partition.external.journal import JOURNAL_NAME, work_directory
from fastsample_dist.partition.methods import METHODS, kaminpar
from fastsample_dist.partition.plan.disk import (
    LINK_WEIGHT_BYTES,
    NARROW_LINK_BYTES,
    feature_row_bytes,
    output_bytes,
    topology_file_bytes,
    work_bytes,
)
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.write import build
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import draw_raw
from tests.test_partition.played_kaminpar import played_kaminpar


def size_of(path: Path) -> int:
    """Bytes of the files below a directory, the journal left out."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith(JOURNAL_NAME))
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("feature_dtype", ["keep", "bfloat16", "int8"])
def test_a_partition_is_as_large_as_predicted(tmp_path, weighted, feature_dtype):
    raw = draw_raw(undirected=False, weighted=weighted, num_nodes=5000, num_train=1000)
    options = PartitionOptions(num_parts=3, method="random", feature_dtype=feature_dtype)
    build_partition(raw, options, tmp_path / "parts")
    predicted = output_bytes(sizes_of(raw), 3, feature_dtype)
    assert size_of(tmp_path / "parts") == pytest.approx(predicted, rel=0.01)
    assert size_of(tmp_path / "parts" / "topology") == topology_file_bytes(sizes_of(raw))


class Watcher(Progress):
    """Takes the size of the work directory when bytes are reported, and at the end of each step."""

    def __init__(self, work: Path, output: Path) -> None:
        self.work, self.output, self.at_end, self.widest, self.running = work, output, {}, {}, ""

    @contextmanager
    def step(self, name):
        self.running = name
        yield
        self.at_end[name] = size_of(self.work) + (size_of(self.output) if self.output.exists() else 0)

    def bytes_done(self, count):
        self.widest[self.running] = max(self.widest.get(self.running, 0), size_of(self.work))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_work_directory_is_as_large_as_predicted(tmp_path, weighted):
    raw = draw_raw(undirected=False, weighted=weighted, num_nodes=5000, num_train=1000)
    watcher = Watcher(work_directory(tmp_path / "parts"), tmp_path / "parts")
    options = PartitionOptions(num_parts=3, method="random", on_disk=True)
    build_partition(raw, options, tmp_path / "parts", progress=watcher)
    predicted = work_bytes(sizes_of(raw), 3)
    assert watcher.widest["topology"] == predicted["sort"]
    assert watcher.at_end["topology"] == predicted["assign"] - 4 * raw.num_nodes
    assert watcher.at_end["write"] == pytest.approx(predicted["write"], rel=0.01)


# ---- every method, with edges that are listed once, twice, or more often than bytes count

METHODS_ON_DISK = ("random", "ldg", "stream", "metis", "kaminpar")
COPIES = {"once": 1, "twice": 2, "often": 200}


def ring(num_nodes: int, copies: int, *, undirected: bool) -> RawGraph:
    """Edges to some of the next nodes, each once and in one direction, but the first so many times; no self-loops."""
    nodes = np.arange(num_nodes)
    edges = np.concatenate([[nodes, (nodes + step) % num_nodes] for step in range(1, 40, 3)], axis=1)
    edges = np.concatenate([edges, np.repeat(edges[:, :1], copies - 1, axis=1)], axis=1)
    return replace(draw_raw(undirected=undirected, num_nodes=num_nodes), edge_index=edges)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Cuts a graph on disk; returns the most that lay in the work directory, and at the end beside it, by phase."""

    def run(raw: RawGraph, method: str) -> dict[str, int]:
        watcher = Watcher(work_directory(tmp_path / "parts"), tmp_path / "parts")

        def looked_after(function):
            def call(*args):
                function(*args)
                watcher.bytes_done(0)

            return call

        monkeypatch.setattr(kaminpar, "_run", looked_after(kaminpar._run))  # the file that it reads is there still
        monkeypatch.setattr(build, "_keep", looked_after(build._keep))  # what the method read is there still
        with played_kaminpar(tmp_path / "played"):
            build_partition(
                raw, PartitionOptions(num_parts=3, method=method, on_disk=True), tmp_path / "parts", progress=watcher
            )
        widest = watcher.widest
        found = {"sort": widest["topology"], "write": watcher.at_end["write"]}
        if METHODS[method].stores_adjacency:
            found["adjacency"] = widest["adjacency"]
            found["method"] = max(
                widest.get("assign", 0), widest["balance"]
            )  # the step that ended before parts are kept
        return found

    return run


@pytest.mark.parametrize("method", METHODS_ON_DISK)
@pytest.mark.parametrize("copies", COPIES)
def test_every_phase_of_a_method_takes_what_was_predicted(measured, method, copies):
    """Equal, but for 200 copies of a pair that are one entry of 26,000, and for weights that turn out to be equal."""
    raw = ring(2000, COPIES[copies], undirected=False)
    made = METHODS[method].work_files(ordered=False)
    width = LINK_WEIGHT_BYTES if copies == "often" else NARROW_LINK_BYTES
    predicted = work_bytes(sizes_of(raw), 3, made=made, link_weight_bytes=width)
    found = measured(raw, method)
    assert ("adjacency" in found) == made.adjacency
    for phase, size in found.items():
        least = 0.5 if (phase, copies) == ("method", "once") else 0.98
        assert least * predicted[phase] <= size <= predicted[phase], phase
    assert max(found.values()) <= max(work_bytes(sizes_of(raw), 3, made=made).values())  # the plan's figure


@pytest.mark.parametrize("method", METHODS_ON_DISK)
@pytest.mark.parametrize("loops", [False, True])
def test_undirected_rows_take_no_more_than_was_predicted(measured, method, loops):
    raw = ring(2000, 2, undirected=True)
    if loops:
        raw = replace(raw, edge_index=np.concatenate([raw.edge_index, np.zeros((2, 1), dtype=int)], axis=1))
    predicted = work_bytes(sizes_of(raw), 3, made=METHODS[method].work_files(ordered=False))
    for phase, size in measured(raw, method).items():
        is_known = phase in ("sort", "write") or (phase == "method" and loops)  # without loops no row is copied
        assert 0.98 * is_known * predicted[phase] <= size <= predicted[phase], phase


@pytest.mark.parametrize("dtype", (*FEATURE_DTYPES, *WIDE_DTYPES))
def test_feature_rows_are_as_wide_as_their_type(dtype):
    sizes = sizes_of(draw_raw(undirected=True))
    kept = type(sizes)(**{**sizes.__dict__, "feature_dtype": dtype})
    assert feature_row_bytes(kept) == 3 * np.dtype(dtype).itemsize
    assert feature_row_bytes(kept, "float16") == 6
