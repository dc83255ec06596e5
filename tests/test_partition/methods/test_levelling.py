"""Levelling: loads within the tolerance, at a low cut, and no node moved that may not."""

import numpy as np
import pytest

from fastsample_dist.partition.methods.balance import balance_train_nodes
from fastsample_dist.partition.methods.levelling import Loads, level_parts, unmet
from tests.test_partition.methods.requests import drawn, graph_of, request_of, star, stored_cut

TOLERANCE = 0.05


def skewed(num_parts: int, num_nodes: int, seed: int = 0) -> np.ndarray:
    """Low parts own most."""
    return (np.random.default_rng(seed).random(num_nodes) ** 2 * num_parts).astype(np.int32)


def loads_of(request, parts) -> Loads:
    return Loads.count(parts, request.constraints(), request.num_parts)


@pytest.mark.parametrize("num_parts", [2, 3, 8])
@pytest.mark.parametrize("undirected", [False, True])
def test_every_load_comes_within_the_tolerance(num_parts, undirected):
    request = drawn(num_parts, num_nodes=3000, num_train=900, undirected=undirected)
    parts = skewed(num_parts, 3000)
    loads = loads_of(request, parts)
    level_parts(parts, request.rows, loads, tolerance=TOLERANCE)
    for name, weight in request.constraints().items():
        held = np.bincount(parts, weight[:], minlength=num_parts)
        assert abs(held / held.mean() - 1).max() <= TOLERANCE + 1e-9, name
    assert unmet(loads, TOLERANCE) == []


def test_loads_are_kept_up_to_date():
    request = drawn(4, num_nodes=1000)
    parts = skewed(4, 1000)
    loads = loads_of(request, parts)
    level_parts(parts, request.adjacency, loads, tolerance=TOLERANCE)
    np.testing.assert_allclose(loads.held, loads_of(request, parts).held, atol=1e-9)


def test_what_is_level_stays():
    request = drawn(4, num_nodes=400, num_train=0)
    parts = (np.arange(400) % 4).astype(np.int32)
    loads = Loads.count(parts, {"nodes": np.ones(400)}, 4)
    assert level_parts(parts, request.adjacency, loads, tolerance=TOLERANCE) == 0
    assert parts.tolist() == [node % 4 for node in range(400)]


def test_only_movable_nodes_move():
    request = drawn(4, num_nodes=2000)
    before = skewed(4, 2000)
    movable = np.arange(2000) % 3 > 0
    parts = before.copy()
    moves = level_parts(parts, request.adjacency, loads_of(request, parts), tolerance=TOLERANCE, movable=movable)
    assert moves >= int((parts != before).sum()) > 0
    assert (parts == before)[~movable].all()


def test_cut_rises_less_than_by_moves_at_random():
    request = drawn(4, num_nodes=4000, num_train=0)
    parts = np.minimum(np.arange(4000) // 700, 3).astype(np.int32)  # communities lie side by side; part 3 is too large
    by_chance = parts.copy()
    constraints = {"nodes": np.ones(4000, dtype=np.int64)}
    level_parts(parts, request.adjacency, Loads.count(parts, constraints, 4), tolerance=TOLERANCE)
    excess = np.random.default_rng(0).choice(np.flatnonzero(by_chance == 3), 900, replace=False)
    by_chance[excess] = np.repeat([0, 1, 2], 300)
    assert stored_cut(request, parts) < stored_cut(request, by_chance)


def test_repeats():
    request = drawn(4, num_nodes=1000)
    first, again = skewed(4, 1000), skewed(4, 1000)
    for parts in (first, again):
        level_parts(parts, request.adjacency, loads_of(request, parts), tolerance=TOLERANCE, seed=1)
    assert (first == again).all()


def test_an_isolated_node_goes_before_one_with_neighbours():
    # Part 0 has a triangle and an isolated node, part 1 two nodes; one must go for both to have three.
    request = request_of(graph_of(6, [(0, 1), (1, 2), (0, 2), (4, 5)]), 2)
    parts = np.array([0, 0, 0, 0, 1, 1], dtype=np.int32)
    constraints = {"nodes": np.ones(6, dtype=np.int64)}
    assert level_parts(parts, request.adjacency, Loads.count(parts, constraints, 2), tolerance=TOLERANCE) == 1
    assert parts.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_hub_is_named():
    request = request_of(star(40), 4)
    parts = (np.arange(40) % 4).astype(np.int32)
    loads = Loads.count(parts, {"in_edges": request.in_degrees}, 4)
    level_parts(parts, request.adjacency, loads, tolerance=TOLERANCE)
    (line,) = unmet(loads, TOLERANCE)
    assert line.startswith("in-edges per part run from ")
    assert line.endswith("outside 5%: node 0 alone has 2.00 of a part's share.")


def test_train_nodes_of_directed_rows_are_balanced_exactly():
    request = drawn(4, num_nodes=400, undirected=False)
    parts = skewed(4, 400)
    balance_train_nodes(parts, request.train, request.rows, 4)
    counts = np.bincount(parts[request.train], minlength=4)
    assert counts.max() - counts.min() <= 1
