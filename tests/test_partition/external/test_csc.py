"""The topology sorted on disk against RawGraph.to_csc: the same offsets, sources and weights, bit for bit."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.partition.external import buckets, csc
from fastsample_dist.partition.external import budget as memory
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.csc import build_stored, sort_edge_bytes
from fastsample_dist.partition.external.journal import Journal
from tests.grids import grid
from tests.optional import HealthCheck, given, settings, st
from tests.test_partition.external.pieces import shrink_pieces
from tests.test_partition.inputs import draw_raw

ID_TYPES = ["int32", "int64", "uint8", "int16", "uint32", "uint64", ">i4", ">i8"]
WEIGHT_TYPES = ["float16", "float32", "float64", ">f4", "int32", "uint8", "int64"]
EVERY_ID_TYPE = list(itertools.product([False, True], ID_TYPES))
ID_TYPES_OF_THE_GATE = [(False, "int32"), (True, "int64"), (False, "uint8"), (True, ">i4")]
EVERY_WEIGHT_TYPE = list(itertools.product([False, True], WEIGHT_TYPES))
WEIGHTS_OF_THE_GATE = [(False, "float16"), (True, "float32"), (False, "float64"), (True, "uint8"), (False, ">f4")]
PASSES = {"group_edges": buckets, "sort_edges": csc}
INTERRUPTIONS = list(itertools.product(PASSES, [1, 3, 6], [False, True]))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Several pieces and buckets even here."""
    shrink_pieces(monkeypatch)


def plan_of(raw: RawGraph) -> MemoryBudget:
    return MemoryBudget(
        limit=1 << 34, base=0, num_nodes=raw.num_nodes, sort_edge_bytes=sort_edge_bytes(sizes_of(raw).weight_bytes)
    )


def columns(graph: CSCGraph) -> list[tuple[str, bytes] | None]:
    """Type and bytes of every array of a topology: what must be equal bit for bit."""
    arrays = [None if column is None else column.numpy() for column in (graph.indptr, graph.indices, graph.weights)]
    return [None if array is None else (array.dtype.str, array.tobytes()) for array in arrays]


def in_memory(raw: RawGraph) -> list[tuple[str, bytes] | None]:
    return columns(raw.to_csc())


def built(raw: RawGraph, journal: Journal) -> list[tuple[str, bytes] | None]:
    with build_stored(raw, journal, plan_of(raw)).mapped() as graph:
        return columns(graph)


def on_disk(raw: RawGraph, path: Path) -> list[tuple[str, bytes] | None]:
    with Journal(path / "parts") as journal:
        found = built(raw, journal)
        journal.remove()
    return found


@pytest.mark.parametrize("undirected", grid([False, True], gate=[True]))
@pytest.mark.parametrize("weighted", [False, True])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_drawn_graphs(undirected, weighted, data, tmp_path_factory):
    num_nodes = data.draw(st.integers(1, 12))
    ends = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(ends, ends, st.sampled_from([0.0, -0.0, 1.5, -2.0, 3.25])), max_size=40))
    raw = RawGraph(
        name="drawn",
        num_nodes=num_nodes,
        undirected=undirected,
        edge_index=np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2).T,
        edge_weight=np.array([edge[2] for edge in edges], dtype=np.float32) if weighted else None,
    )
    assert on_disk(raw, tmp_path_factory.mktemp("drawn")) == in_memory(raw)


@pytest.mark.parametrize(("undirected", "dtype"), grid(EVERY_ID_TYPE, gate=ID_TYPES_OF_THE_GATE, several=True))
def test_every_id_type(undirected, dtype, tmp_path):
    raw = draw_raw(undirected=undirected)
    edges = raw.edge_index.astype(dtype)
    typed = RawGraph(name="typed", num_nodes=raw.num_nodes, undirected=undirected, edge_index=edges)
    assert on_disk(typed, tmp_path) == in_memory(typed)


@pytest.mark.parametrize(("undirected", "dtype"), grid(EVERY_WEIGHT_TYPE, gate=WEIGHTS_OF_THE_GATE, several=True))
def test_every_weight_type(undirected, dtype, tmp_path):
    raw = draw_raw(undirected=undirected)
    weights = np.random.default_rng(0).integers(0, 9, raw.edge_index.shape[1]).astype(dtype)
    typed = RawGraph(
        name="typed",
        num_nodes=raw.num_nodes,
        undirected=undirected,
        edge_index=raw.edge_index,
        edge_weight=weights,
    )
    assert on_disk(typed, tmp_path) == in_memory(typed)


@pytest.mark.parametrize("fortran", [False, True])
def test_mapped_files(fortran, tmp_path):
    raw = draw_raw(undirected=False)
    edges = np.asfortranarray(raw.edge_index) if fortran else raw.edge_index
    np.save(tmp_path / "edges.npy", edges)
    mapped = np.lib.format.open_memmap(tmp_path / "edges.npy", mode="c")
    given = RawGraph(name="mapped", num_nodes=raw.num_nodes, undirected=False, edge_index=mapped)
    assert on_disk(given, tmp_path) == in_memory(raw)


def test_ids_above_int32_become_int64(tmp_path, monkeypatch):
    # Three thousand million nodes take too much memory for a test; the kernels are told so instead.
    monkeypatch.setattr(csc, "id_dtype", lambda num_nodes: torch.int64)
    raw = draw_raw(undirected=True)
    with Journal(tmp_path / "parts") as journal, build_stored(raw, journal, plan_of(raw)).mapped() as found:
        assert found.indices.dtype == torch.int64
        assert torch.equal(found.indices, raw.to_csc().indices.long())


@pytest.mark.parametrize("change", grid(["edge", "direction", "nodes", "weights"], gate=["edge", "nodes"]))
def test_changed_input_starts_anew(change, tmp_path):
    raw = draw_raw(undirected=False, weighted=True)
    with Journal(tmp_path / "parts") as journal:
        build_stored(raw, journal, plan_of(raw))
    values = {
        "name": "drawn",
        "num_nodes": raw.num_nodes + (change == "nodes"),
        "undirected": change == "direction",
        "edge_index": raw.edge_index.copy(),
        "edge_weight": raw.edge_weight * (2 if change == "weights" else 1),
    }
    if change == "edge":
        values["edge_index"][0, 100] ^= 1
    changed = RawGraph(**values)
    with Journal(tmp_path / "parts") as journal:
        assert built(changed, journal) == in_memory(changed)


def test_finished_topology_is_not_sorted_again(tmp_path, monkeypatch):
    raw = draw_raw(undirected=True)
    with Journal(tmp_path / "parts") as journal:
        build_stored(raw, journal, plan_of(raw))
    for name, module in PASSES.items():
        monkeypatch.setattr(module, name, None)
    with Journal(tmp_path / "parts") as journal:
        assert built(raw, journal) == in_memory(raw)


@pytest.mark.parametrize(("passed", "calls", "undirected"), grid(INTERRUPTIONS, gate=INTERRUPTIONS[::5], several=True))
def test_resumes_after_an_interruption(passed, calls, undirected, tmp_path, monkeypatch):
    raw = draw_raw(undirected=undirected, weighted=True)
    original, left = getattr(PASSES[passed], passed), [calls]

    def interrupted(*args, **named):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return original(*args, **named)

    monkeypatch.setattr(PASSES[passed], passed, interrupted)
    with pytest.raises(KeyboardInterrupt), Journal(tmp_path / "parts") as journal:
        build_stored(raw, journal, plan_of(raw))
    monkeypatch.setattr(PASSES[passed], passed, original)
    with Journal(tmp_path / "parts") as journal:
        assert built(raw, journal) == in_memory(raw)


def test_smaller_limit_groups_again(tmp_path, monkeypatch):
    raw = draw_raw(undirected=False)
    with Journal(tmp_path / "parts") as journal:
        build_stored(raw, journal, plan_of(raw))
        journal.restart("sort")
        journal.begin("sort", "unfinished")
        journal.save("sort", bucket=0, num_edges=0)
    monkeypatch.setattr(memory, "MAX_BUCKET", 5)
    with Journal(tmp_path / "parts") as journal:
        assert built(raw, journal) == in_memory(raw)


def test_id_out_of_range_is_refused(tmp_path):
    raw = RawGraph(name="bad", num_nodes=3, undirected=False, edge_index=np.array([[0] * 20, [2] * 19 + [3]]))
    with (
        pytest.raises(ValueError, match="the destination of edge 19 is 3; expected 0 to 2"),
        Journal(tmp_path / "p") as j,
    ):
        build_stored(raw, j, plan_of(raw))
    assert list(tmp_path.iterdir()) == []
