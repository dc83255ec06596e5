"""What every method promises, whatever the graph: one part per node, none empty, repeatable, train nodes even."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fastsample_dist.partition.methods import METHODS, PartitionRequest
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.balance import balance_parts
from tests.grids import grid
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import (
    GRAPH_METHODS,
    METIS_FREE,
    assigned,
    drawn,
    graph_of,
    islands,
    request_of,
    star,
    stored_cut,
)

ALL = [name for name in METHODS if name != "file"]  # test_simple.py has the method whose parts are given
PART_COUNTS = [1, 2, 3, 5, 8]
GRAPHS = {
    "directed": lambda: draw_raw(undirected=False, num_nodes=200, num_train=50),
    "undirected": lambda: draw_raw(undirected=True, num_nodes=200, num_train=50),
    "no train nodes": lambda: draw_raw(undirected=True, num_train=0),
    "hub": lambda: star(100),
    "islands": lambda: islands(12, 6),
    "no edges": lambda: graph_of(50, [], list(range(20))),
    "loops alone": lambda: graph_of(50, [(node, node) for node in range(50)]),
}


@pytest.mark.parametrize("num_parts", grid(PART_COUNTS, gate=[1, 3, 8]))
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ALL)
def test_every_node_has_a_part_and_train_nodes_are_even(name, graph, num_parts):
    request = request_of(GRAPHS[graph](), num_parts)
    parts = assigned(name, request)
    assert parts.dtype == np.int32 and parts.shape == (request.num_nodes,)
    assert np.bincount(parts, minlength=num_parts).min() >= 1
    balance_parts(request, METHODS[name], parts)
    counts = np.bincount(parts, minlength=num_parts)
    assert len(counts) == num_parts and counts.min() >= 1
    train = np.bincount(parts[request.train], minlength=num_parts)
    assert train.max() - train.min() <= 1


@pytest.mark.parametrize("name", [name for name in ALL if name != "kaminpar"])
def test_repeats(name):
    first, again = (assigned(name, drawn(seed=3)) for _ in range(2))
    assert (first == again).all()


@pytest.mark.parametrize("name", ["metis", "stream", "ldg", "fennel", "random"])
def test_another_seed_gives_other_parts(name):
    assert (assigned(name, drawn(seed=3)) != assigned(name, drawn(seed=4))).any()


@pytest.mark.parametrize("name", grid(["metis", "stream", "ldg"], gate=["metis"]))
def test_another_process_gives_the_same_parts(name):
    program = (
        "from tests.test_partition.methods.requests import assigned, drawn;"
        f"print(assigned({name!r}, drawn(seed=3)).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout.strip() == str(assigned(name, drawn(seed=3)).tolist())


@pytest.mark.parametrize("name", GRAPH_METHODS)
@pytest.mark.parametrize("undirected", [False, True])
def test_cuts_less_than_two_thirds_of_what_chance_cuts(name, undirected):
    request = drawn(undirected=undirected, num_nodes=1000)
    assert stored_cut(request, assigned(name, request)) < stored_cut(request, assigned("random", request)) * 2 / 3


@pytest.mark.parametrize("name", GRAPH_METHODS)
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_nodes_and_in_edges_are_within_5_percent(name, num_parts):
    request = drawn(num_parts, num_nodes=4000, num_train=1000)
    parts = assigned(name, request)
    balanced = balance_parts(request, METHODS[name], parts)
    for constraint in ("nodes", "in_edges"):
        held = np.bincount(parts, request.constraints()[constraint][:], minlength=num_parts)
        assert abs(held / held.mean() - 1).max() <= 0.05, constraint
    assert balanced.notes == ()


@pytest.mark.parametrize("name", GRAPH_METHODS)
def test_says_which_hub_is_in_the_way(name):
    request = request_of(star(300), 4)
    notes = balance_parts(request, METHODS[name], assigned(name, request)).notes
    # 299 of 598 stored in-edges are node 0's: two parts' share.
    assert any("node 0 alone has 2.00 of a part's share" in note and "in-edges" in note for note in notes)


@pytest.mark.parametrize("name", METIS_FREE)
def test_needs_no_package(name, monkeypatch):
    for package in ("pymetis", "kaminpar"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("fastsample_dist.partition.methods.libmetis.load", lambda: None)
    assert len(assigned(name, drawn())) == 400


@pytest.mark.parametrize("name", [name for name in ALL if METHODS[name].links == "rows"])
def test_copies_no_graph(name, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the graph was copied")

    monkeypatch.setattr("fastsample_dist.partition.methods.request.symmetrise", refuse)
    request = drawn(undirected=False)
    parts = assigned(name, request)
    balance_parts(request, METHODS[name], parts)
    assert set(parts.tolist()) == set(range(request.num_parts))


def test_links_say_what_the_cut_is_counted_in():
    links = {name: method.links for name, method in METHODS.items()}
    assert set(links.values()) == {"adjacency", "rows"}
    assert all(method.links == "adjacency" for method in METHODS.values() if method.in_memory)


def test_an_adjacency_that_is_given_is_taken():
    request = drawn(undirected=False)
    stored = Adjacency(request.graph.indptr.numpy(), request.graph.indices.numpy(), None)
    assert replace(request, stored=stored).adjacency is stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_parts": 0}, "num_parts is 0; expected at least 1"),
        ({"num_parts": 61}, "num_parts is 61 but the graph has 60 nodes; take at most one part per node"),
        ({"num_parts": 24}, "num_parts is 24 but the graph has 23 train nodes; training needs at least one per part"),
        ({"seed": -1}, "seed is -1; expected 0 to 2147483647"),
        ({"seed": 2**31}, "seed is 2147483648; expected 0 to 2147483647"),
        ({"splits": {"dev": np.arange(3)}}, "splits has dev; expected train, val, test"),
    ],
)
def test_refused_requests(change, message):
    raw = draw_raw(undirected=True)
    given = {"graph": raw.to_csc(), "undirected": True, "num_parts": 2, "splits": raw.splits}
    with pytest.raises(ValueError, match=message):
        PartitionRequest(**{**given, **change})


def test_constraints_without_weight_are_left_out():
    raw = draw_raw(undirected=True, num_train=0)
    raw.splits["val"] = np.array([], dtype=np.int64)
    assert list(request_of(raw, 2).constraints()) == ["nodes", "in_edges", "test"]
