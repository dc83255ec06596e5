"""CSCGraph: weights that no edge can be drawn by, and arguments of another kind, are refused when the graph is made."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

from fastsample_dist.graph import csc
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.storage import load_topology, read_manifest
from tests.parts import draw_partition

BAD = [-1.5, -math.inf, math.inf, math.nan]
BEYOND = np.array([2**63], np.uint64)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at_once", [2, 1 << 24])
def test_a_bad_weight_is_refused_by_its_position(bad, at_once, monkeypatch):
    monkeypatch.setattr(csc, "_CHECKED_AT_ONCE", at_once)
    weights = torch.tensor([1.0, 0.0, 2.0, bad, 1.0])
    message = rf"the weight of edge 3 is {bad}; expected a finite number, 0 or more .*correct it"
    with pytest.raises(ValueError, match=message):
        CSCGraph(torch.arange(6), torch.tensor([1, 2, 3, 4, 0]), weights)
    with pytest.raises(ValueError, match=message):
        CSCGraph.from_edge_index(torch.tensor([4, 0, 1, 2, 3]), torch.tensor([3, 2, 4, 0, 1]), 5, weights)


def test_zero_is_a_weight():
    assert CSCGraph(torch.arange(3), torch.tensor([1, 0]), torch.tensor([0.0, -0.0])).weights is not None


def test_a_partition_is_opened_without_reading_its_weights(tmp_path, monkeypatch):
    parts = draw_partition(tmp_path, 2, weights=np.ones(3000, dtype=np.float32)).path
    monkeypatch.setattr(csc, "_check_weights", lambda weights: pytest.fail("the weights were read"))
    manifest = read_manifest(parts)
    assert load_topology(parts, manifest).weights is not None
    assert load_topology(parts, manifest, (0, 10)).weights is not None


def _edges(graph):
    """(source, destination, weight, place in the list) of every edge by original ids, sorted."""
    orig = torch.arange(graph.num_nodes) if graph.orig_ids is None else graph.orig_ids
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.in_degrees())
    columns = (orig[graph.indices.long()], orig[dst], graph.weights, graph.edge_map)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def _relabelled(graph, orig_ids):
    """The same graph with node orig_ids[i] numbered i, rows canonical."""
    new_ids = torch.argsort(orig_ids)
    rows = []
    for node in orig_ids.tolist():
        entries = slice(int(graph.indptr[node]), int(graph.indptr[node + 1]))
        rows.append((new_ids[graph.indices[entries].long()], graph.weights[entries], graph.edge_map[entries]))
    indptr = torch.tensor([0, *(len(row[0]) for row in rows)]).cumsum(0)
    indices, weights, edge_map = (torch.cat(column) for column in zip(*rows, strict=True))
    return CSCGraph(indptr, indices.to(graph.indices.dtype), weights, orig_ids, edge_map=edge_map)


def _drawn_graph(num_nodes=23, num_edges=140):
    """Self-loops, parallel edges, nodes without edges in either direction; edge_map names the edge."""
    generator = torch.Generator().manual_seed(4)
    src, dst = torch.randint(num_nodes - 3, (2, num_edges), generator=generator)
    weights = torch.randint(1, 5, (num_edges,), generator=generator).float()
    return CSCGraph.from_edge_index(src, dst, num_nodes, weights, edge_map=torch.arange(num_edges))


def test_transposed_has_every_edge_turned_round():
    graph = _drawn_graph()
    assert sorted((dst, src, weight, place) for src, dst, weight, place in _edges(graph.transposed())) == _edges(graph)


def test_transposed_is_the_graph_of_the_turned_edge_list():
    graph = _drawn_graph()
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.in_degrees())
    expected = CSCGraph.from_edge_index(dst, graph.indices, graph.num_nodes, graph.weights, edge_map=graph.edge_map)
    found = graph.transposed()
    for name in ("indptr", "indices", "weights"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_transposed_takes_what_it_says(weighted):
    """By what NumPy reports of what it allocates: the 4 bytes per edge that sorting takes it reports since 2.5."""
    reported = 28 if np.lib.NumpyVersion(np.__version__) >= "2.5.0" else 24
    generator = torch.Generator().manual_seed(0)
    num_nodes, degree = 1000, 200
    num_edges = num_nodes * degree
    indices = torch.randint(0, num_nodes, (num_edges,), generator=generator, dtype=torch.int32)
    graph = CSCGraph(
        torch.arange(0, num_edges + 1, degree), indices, torch.rand(num_edges) if weighted else None,
        orig_ids=torch.randperm(num_nodes, generator=generator),
    )  # fmt: skip
    tracemalloc.start()
    try:
        graph.transposed()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= reported * num_edges + 24 * num_nodes + 20_000


def test_transposed_twice_is_the_graph():
    graph = _drawn_graph()
    twice = graph.transposed().transposed()
    assert torch.equal(twice.indptr, graph.indptr) and torch.equal(twice.indices, graph.indices)
    assert torch.equal(twice.weights, graph.weights) and _edges(twice) == _edges(graph)


def test_transposed_rows_ascend_by_original_id_after_relabelling():
    graph = _drawn_graph()
    orig_ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    found, expected = _relabelled(graph, orig_ids).transposed(), _relabelled(graph.transposed(), orig_ids)
    for name in ("indptr", "indices", "weights", "orig_ids"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    assert _edges(found) == _edges(expected)


@pytest.mark.parametrize("num_nodes", [0, 1, 4])
def test_transposed_without_edges(num_nodes):
    empty = torch.empty(0, dtype=torch.int32)
    found = CSCGraph(torch.zeros(num_nodes + 1, dtype=torch.int64), empty).transposed()
    assert found.num_nodes == num_nodes and found.num_edges == 0 and found.weights is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_ids_may_be_unsigned(dtype):
    src, dst = np.array([2, 0, 1], dtype), np.array([0, 1, 0], dtype)
    found = CSCGraph.from_edge_index(src, torch.from_numpy(dst), 3)
    wanted = CSCGraph.from_edge_index(src.astype(np.int64), dst.astype(np.int64), 3)
    assert torch.equal(found.indptr, wanted.indptr) and torch.equal(found.indices, wanted.indices)
    assert found.indices.dtype == torch.int32


def test_a_slice_is_not_transposed():
    graph = CSCGraph(torch.tensor([0, 1]), torch.tensor([3]))
    with pytest.raises(ValueError, match="indices holds node 3 but the graph has 1 rows; expected the whole graph"):
        graph.transposed()


def test_weights_that_are_learned_are_taken_as_numbers():
    learned = torch.tensor([0.5, 2.0], requires_grad=True)
    assert CSCGraph.from_edge_index([0, 1], [1, 0], 2, learned).weights.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CSCGraph([0, 1], [0]), "indptr is a list; expected a tensor"),
        (lambda: CSCGraph.from_edge_index(None, [0], 2), "src is a NoneType; expected a tensor or list of node ids"),
        (lambda: CSCGraph.from_edge_index([0], [0], None), "num_nodes is None; expected an integer >= 0"),
        (lambda: CSCGraph.from_edge_index([0], [0], 2.0), "num_nodes is 2.0; expected an integer >= 0"),
        (lambda: CSCGraph.from_edge_index(BEYOND, [0], 2), r"src: an id is above 2\*\*63 - 1; expected ids that fit"),
        (
            lambda: CSCGraph.from_edge_index([0], [0], 2, "text"),
            "weights is a str; expected a tensor or list, one value",
        ),
        (lambda: CSCGraph.from_edge_index([0], [0], 2, torch.ones(2)), "weights has 2 entries; expected 1"),
        (
            lambda: CSCGraph.from_edge_index([0], [0], 2, [1 + 2j]),
            r"weights is torch.complex64 of shape \(1,\); expected",
        ),
        (lambda: CSCGraph.from_edge_index([0, 1], [1, 0], 2, edge_map=[1]), "edge_map has 1 entries; expected 2"),
        (lambda: CSCGraph.from_edge_index([0], [0], 2, edge_map=[1.0]), r"edge_map is torch.float32 of shape \(1,\)"),
    ],
)
def test_arguments_of_another_kind_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
