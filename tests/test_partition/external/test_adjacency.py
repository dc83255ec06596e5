"""The adjacency made on disk against methods.adjacency.symmetrise: the same offsets, neighbours and weights."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.external import adjacency, buckets, csc
from fastsample_dist.partition.external import budget as memory
from fastsample_dist.partition.external.adjacency import adjacency_bytes, build_adjacency, remove_adjacency
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.csc import StoredTopology, build_stored, sort_edge_bytes
from fastsample_dist.partition.external.journal import Journal
from fastsample_dist.partition.methods.adjacency import Adjacency, symmetrise
from tests.forked import run_code
from tests.grids import grid
from tests.optional import HealthCheck, given, settings, st
from tests.small_disk import small_files
from tests.test_partition.external.pieces import shrink_pieces
from tests.test_partition.inputs import draw_raw

KILLED = KeyboardInterrupt  # leaves what is there, as a kill does: nothing is cleaned up after it


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Several pieces and buckets even here."""
    shrink_pieces(monkeypatch)
    monkeypatch.setattr(adjacency, "MAX_ROW_PIECE", 5)


def budget_of(raw: RawGraph, limit: int = 1 << 34) -> MemoryBudget:
    return MemoryBudget(limit=limit, base=0, num_nodes=raw.num_nodes, sort_edge_bytes=sort_edge_bytes(0))


def graph_of(num_nodes: int, edges: list[tuple[int, int]], *, undirected: bool) -> RawGraph:
    edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return RawGraph(name="made", num_nodes=num_nodes, undirected=undirected, edge_index=edge_index)


def stored(raw: RawGraph, journal: Journal) -> StoredTopology:
    return build_stored(raw, journal, budget_of(raw))


def made(raw: RawGraph, journal: Journal) -> list[np.ndarray | None]:
    """Copies of the arrays; the weights as int32, as `symmetrise` has them."""
    found = build_adjacency(stored(raw, journal), journal, budget_of(raw), undirected=raw.undirected)
    with found.mapped() as mapped:
        assert found.num_entries == len(mapped.indices)
        weights = None if mapped.weights is None else mapped.weights.astype(np.int32)
        return [mapped.indptr.copy(), mapped.indices.copy(), weights]


def wanted(raw: RawGraph) -> Adjacency:
    return symmetrise(raw.to_csc(), undirected=raw.undirected)


def assert_same(found: list[np.ndarray | None], adjacency: Adjacency) -> None:
    for array, expected in zip(found, (adjacency.indptr, adjacency.indices, adjacency.weights), strict=True):
        assert (array is None) == (expected is None)
        if array is not None:
            assert array.dtype == expected.dtype and np.array_equal(array, expected)


def check(raw: RawGraph, path: Path) -> None:
    with Journal(path / "parts") as journal:
        assert_same(made(raw, journal), wanted(raw))
        journal.remove()


@pytest.mark.parametrize("undirected", [False, True])
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_drawn_graphs(undirected, data, tmp_path_factory):
    num_nodes = data.draw(st.integers(1, 12))
    ends = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(ends, ends), max_size=40))
    check(graph_of(num_nodes, edges, undirected=undirected), tmp_path_factory.mktemp("drawn"))


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize(
    "edges",
    {
        "none": [],
        "loops alone": [(node, node) for node in range(9)] * 2,
        "each once": [(node, node + 1) for node in range(8)],
        "each in both directions": [(node, (node + step) % 9) for node in range(9) for step in (1, 8)],
        "a hub": [(0, node) for node in range(1, 9)] * 4,
    }.items(),
    ids=lambda named: named[0],
)
def test_kinds_of_graphs(undirected, edges, tmp_path):
    check(graph_of(9, edges[1], undirected=undirected), tmp_path)


def test_communities(tmp_path):
    for undirected in (False, True):
        check(draw_raw(undirected=undirected, num_nodes=90), tmp_path)


@pytest.mark.parametrize(("copies", "dtype"), [((127, 127), np.uint8), ((128, 1), np.int32), ((300, 300), np.int32)])
def test_weights_are_bytes_where_no_edge_is_listed_too_often(copies, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MAX_PIECE", 100)
    edges = [(0, 1)] * copies[0] + [(1, 0)] * copies[1] + [(1, 2)]
    raw = graph_of(3, edges, undirected=False)
    with Journal(tmp_path / "parts") as journal:
        found = build_adjacency(stored(raw, journal), journal, budget_of(raw), undirected=False)
        assert found.weight_dtype == dtype
        with found.mapped() as mapped:
            assert mapped.weights.dtype == dtype and mapped.weights.tolist() == [sum(copies), sum(copies), 1, 1]


def test_ids_above_int32_become_int64(tmp_path, monkeypatch):
    # Three thousand million nodes take too much memory for a test; the topology is told so instead.
    monkeypatch.setattr(csc, "id_dtype", lambda num_nodes: torch.int64)
    for undirected in (False, True):
        raw = draw_raw(undirected=undirected)
        with Journal(tmp_path / "parts") as journal:
            indptr, indices, weights = made(raw, journal)
            journal.remove()
        expected = wanted(raw)
        assert_same([indptr, indices.astype(np.int32), weights], expected)
        assert indices.dtype == np.int64


def test_undirected_rows_without_loops_are_used_as_they_are(tmp_path):
    raw = graph_of(9, [(node, node + 1) for node in range(8)], undirected=True)
    with Journal(tmp_path / "parts") as journal:
        topology = stored(raw, journal)
        before = sorted(file.name for file in journal.path.iterdir())
        found = build_adjacency(topology, journal, budget_of(raw), undirected=True)
        assert found.indices == topology.indices
        assert sorted(file.name for file in journal.path.iterdir()) == before
        remove_adjacency(journal)
        assert topology.indices.exists()


@pytest.mark.parametrize("undirected", [False, True])
def test_files_of_the_work_are_gone_after_it(undirected, tmp_path):
    raw = draw_raw(undirected=undirected)
    with Journal(tmp_path / "parts") as journal:
        stored(raw, journal)
        before = {file.name for file in journal.path.iterdir()}
        made(raw, journal)
        columns = {"adjacency.degrees", "adjacency.indices"} | (set() if undirected else {"adjacency.weights"})
        counted = set() if undirected else {"adjacency.sources"}
        assert {file.name for file in journal.path.iterdir()} - before == columns | counted
        remove_adjacency(journal)
        assert {file.name for file in journal.path.iterdir()} == before
        assert_same(made(raw, journal), wanted(raw))  # again, after it was used and deleted


@pytest.mark.parametrize("undirected", [False, True])
def test_bytes_of_the_work_are_what_was_said(undirected, tmp_path):
    raw = graph_of(9, [(node, node + 1) for node in range(8)] + [(0, 3)] * (not undirected), undirected=undirected)
    done = []
    with Journal(tmp_path / "parts") as journal:
        topology = stored(raw, journal)
        build_adjacency(topology, journal, budget_of(raw), done.append, undirected=undirected)
        most = adjacency_bytes(topology, undirected=undirected)
    assert sum(done) == (most // 2 if undirected else most)  # without self-loops nothing is copied


# ---- resumed


class Killing:
    """Ends the run at the first call whose number has come; counts the calls."""

    def __init__(self, original, call):
        self.original, self.left = original, call

    def __call__(self, *args, **named):
        result = self.original(*args, **named)
        self.left -= 1
        if not self.left:
            raise KILLED
        return result


@pytest.mark.parametrize("undirected", grid([False, True], gate=[False]))
def test_resumes_after_a_kill_at_every_entry_of_the_journal(undirected, tmp_path):
    raw = draw_raw(undirected=undirected, num_nodes=12)
    expected = wanted(raw)
    for call in range(1, 1000):
        with Journal(tmp_path / f"{call}") as journal:
            topology = stored(raw, journal)
            journal.save = Killing(journal.save, call)
            try:
                build_adjacency(topology, journal, budget_of(raw), undirected=undirected)
                break
            except KILLED:
                pass
        with Journal(tmp_path / f"{call}") as journal:
            assert_same(made(raw, journal), expected)
    assert call > (3 if undirected else 10)


@pytest.mark.parametrize("name", ["write_at", "append"])
def test_resumes_after_a_kill_within_a_pass(name, tmp_path, monkeypatch):
    raw = draw_raw(undirected=False, num_nodes=30)
    expected = wanted(raw)
    for call in (1, 3, 8, 21):
        with Journal(tmp_path / f"{call}") as journal, monkeypatch.context() as patch, pytest.raises(KILLED):
            topology = stored(raw, journal)
            patch.setattr(buckets, name, Killing(getattr(buckets, name), call))
            build_adjacency(topology, journal, budget_of(raw), undirected=False)
        with Journal(tmp_path / f"{call}") as journal:
            assert_same(made(raw, journal), expected)


def test_a_finished_adjacency_is_not_made_again(tmp_path, monkeypatch):
    raw = draw_raw(undirected=False)
    with Journal(tmp_path / "parts") as journal:
        made(raw, journal)
    for module, name in ((buckets, "group_edges"), (adjacency, "sort_edges"), (adjacency, "add_degrees")):
        monkeypatch.setattr(module, name, None)
    with Journal(tmp_path / "parts") as journal:
        assert_same(made(raw, journal), wanted(raw))


def test_another_topology_gets_another_adjacency(tmp_path):
    raw = draw_raw(undirected=False)
    fewer = replace(raw, edge_index=raw.edge_index[:, 10:].copy(), edge_weight=None)
    assert wanted(raw).indices.size != wanted(fewer).indices.size
    turned = replace(raw, edge_index=raw.edge_index[::-1].copy(), edge_weight=None)  # the same neighbours of other rows
    for each in (raw, fewer, raw, turned):
        with Journal(tmp_path / "parts") as journal:
            assert_same(made(each, journal), wanted(each))


def test_smaller_limit_groups_again(tmp_path, monkeypatch):
    raw = draw_raw(undirected=False)
    with Journal(tmp_path / "parts") as journal, monkeypatch.context() as patch, pytest.raises(KILLED):
        topology = stored(raw, journal)
        patch.setattr(adjacency, "sort_edges", Killing(adjacency.sort_edges, 3))
        build_adjacency(topology, journal, budget_of(raw), undirected=False)
    monkeypatch.setattr(memory, "MAX_BUCKET", 5)
    with Journal(tmp_path / "parts") as journal:
        assert_same(made(raw, journal), wanted(raw))


# ---- refused


@pytest.mark.parametrize("size_bytes", grid([100, 300, 500, 900], gate=[100, 500]))
@pytest.mark.parametrize("undirected", grid([False, True], gate=[True]))
def test_a_disk_that_refuses_is_named_and_the_work_resumes(undirected, size_bytes, tmp_path):
    raw = draw_raw(undirected=undirected, num_nodes=60)
    with Journal(tmp_path / "parts") as journal:
        topology = stored(raw, journal)
        with small_files(size_bytes), pytest.raises(OSError) as raised:
            build_adjacency(topology, journal, budget_of(raw), undirected=undirected)
        name = os.path.relpath(raised.value.filename, journal.path)
        assert name.startswith("adjacency.") or name == "journal.json"
    with Journal(tmp_path / "parts") as journal:
        assert_same(made(raw, journal), wanted(raw))


def test_a_row_that_is_too_long_is_refused_with_the_limit_that_would_do(tmp_path, monkeypatch):
    for name in ("MAX_PIECE", "MAX_BUCKET"):
        monkeypatch.setattr(memory, name, 1 << 16)
    raw = graph_of(2000, [(0, 1 + node % 1999) for node in range(60_000)], undirected=False)
    with Journal(tmp_path / "parts") as journal:
        topology = stored(raw, journal)
        limit = memory.SLACK_BYTES + memory.NODE_BYTES * 2000 + 1_000_000
        with pytest.raises(ValueError, match="with a node of 60000 neighbours take at least .*; pass --memory-limit"):
            build_adjacency(topology, journal, budget_of(raw, limit), undirected=False)
        assert not (journal.path / "adjacency.buckets.keys").exists()
        enough = limit - 1_000_000 + 60_000 * adjacency.SORT_LINK_BYTES
        build_adjacency(topology, journal, budget_of(raw, enough), undirected=False)


def test_the_longest_row_is_known_before_any_edge_is_sorted(tmp_path):
    edges = [(0, 0), *((0, node) for node in range(1, 40)), *((node, 0) for node in range(20, 60)), (3, 4)]
    raw, counted = graph_of(60, edges, undirected=False), []

    def check(most_links: int) -> None:
        counted.append(most_links)
        raise ValueError("too many")

    with Journal(tmp_path / "parts") as journal:
        for _ in range(2):  # the same again where nothing was kept
            with pytest.raises(ValueError, match="too many"):
                build_stored(raw, journal, budget_of(raw), check_links=check)
            assert not list(journal.path.glob("*buckets*"))
        build_stored(raw, journal, budget_of(raw), check_links=counted.append)
        build_adjacency(stored(raw, journal), journal, budget_of(raw), undirected=False)
        steps = json.loads((journal.path / "journal.json").read_text())["steps"]
        assert counted == [80] * 3 and steps["link_count"]["state"]["longest_row"] == 80


def test_a_limit_that_is_too_low_for_work_that_is_there_keeps_it(tmp_path):
    raw = graph_of(60, [(0, node) for node in range(1, 40)], undirected=False)

    def refuse(count: int) -> None:
        raise ValueError("too many")

    for check in ("check_links", "check_compressed"):
        with Journal(tmp_path / "parts") as journal:
            build_stored(raw, journal, budget_of(raw), check_links=print, check_compressed=print)
        with Journal(tmp_path / "parts") as journal, pytest.raises(ValueError, match="too many"):
            build_stored(raw, journal, budget_of(raw), **{check: refuse})
        with Journal(tmp_path / "parts") as journal:
            assert journal.finished("sort")


MEASURED = """
import sys
from pathlib import Path
import numpy as np
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.ops import library
from fastsample_dist.partition.external.adjacency import build_adjacency
from fastsample_dist.memory_sizes import resident_bytes
from fastsample_dist.partition.external.csc import build_stored
from fastsample_dist.partition.external.journal import Journal
from fastsample_dist.partition.plan.memory import memory_budget, on_disk_peak
from fastsample_dist.partition.methods import METHODS
from dataclasses import replace

METHODS["metis"] = replace(METHODS["metis"], in_memory=False)
library.core()
edges = (np.random.default_rng(0).random((2, 2_000_000)) ** 2 * 50_000).astype(np.int32)
raw = RawGraph(name="drawn", num_nodes=50_000, undirected=False, edge_index=edges)
base = resident_bytes()
budget = memory_budget(base + 100_000_000, base, sizes_of(raw), "metis")
with Journal(sys.argv[1]) as journal:
    topology = build_stored(raw, journal, budget)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    build_adjacency(topology, journal, budget, undirected=False)
    print(base, resident_bytes(peak=True), on_disk_peak(sizes_of(raw), "metis", 2, budget).steps["adjacency"])
"""


def test_the_memory_limit_is_kept_and_the_peak_foretold(tmp_path):
    ended = run_code(MEASURED, tmp_path / "parts")
    assert ended.returncode == 0, ended.stderr
    base, peak, foretold = map(int, ended.stdout.split())
    assert peak <= base + 100_000_000
    assert abs((base + foretold) / peak - 1) <= 0.15
