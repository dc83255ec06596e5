"""refine_parts against its oracle, its capacities and floors, and what a pass is for."""

import numpy as np
import pytest

from fastsample_dist import ops
from fastsample_dist.ops import reference
from tests.ops.neighbour_lists import large, neighbours, pairs_of, rows_by_turn
from tests.optional import given, settings, st


def held_by(parts: np.ndarray, counts: np.ndarray, num_parts: int) -> np.ndarray:
    return np.array([counts[parts == part].sum(axis=0) for part in range(num_parts)], dtype=np.int64)


def nodes_alone(num_nodes: int, most: int, least: int = 1) -> ops.PartLimits:
    """A limit on nodes."""
    ones = np.ones((num_nodes, 1), dtype=np.int32)
    return ops.PartLimits(capacities=np.array([most]), floors=np.array([least]), node_loads=ones)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_equals_the_oracle_in_any_number_of_calls(data):
    graph, num_parts = data.draw(neighbours()), data.draw(st.integers(1, 4))
    num_nodes = graph.num_nodes

    def numbers(least: int, most: int, size: int = num_nodes) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(least, most), min_size=size, max_size=size)))

    parts = numbers(0, num_parts - 1).astype(np.int32)
    if data.draw(st.booleans()):
        counts = np.stack([numbers(0, 3), numbers(0, 3)], axis=1)
        columns = {"node_loads": counts.astype(np.int32)}
    else:
        kinds, degrees = numbers(0, 3).astype(np.uint8), numbers(0, 4)
        counts = np.stack([np.ones(num_nodes, dtype=np.int64), degrees, kinds & 1, kinds >> 1 & 1], axis=1)
        columns = {"in_offsets": np.concatenate([[0], np.cumsum(degrees)]), "kinds": kinds}
    size = counts.shape[1]
    limits = ops.PartLimits(capacities=numbers(1, 12, size), floors=numbers(0, 4, size), **columns)
    shed, split = data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.integers(0, num_nodes))
    expected, loads = parts.copy(), held_by(parts, counts, num_parts)
    runs = [(0, split), (split, num_nodes)]
    threads = data.draw(st.integers(1, 3))
    moved = sum(
        ops.refine_parts(graph, limits, parts, loads, shed=shed, turns=turns, num_threads=threads) for turns in runs
    )
    assert moved == reference.refine_parts(graph, limits, expected, num_parts, shed)
    assert parts.tolist() == expected.tolist()
    assert loads.tolist() == held_by(parts, counts, num_parts).tolist()


@pytest.mark.parametrize("order", [False, True])
def test_threads_and_where_rows_lie_change_nothing(order):
    graph = large(5, 20000, order=order)
    limits, found = nodes_alone(graph.num_nodes, 2700, 2300), []
    for rows, threads in [(graph, 1), (graph, 2), (graph, 5), (rows_by_turn(graph) if order else graph, 3)]:
        parts = (np.arange(graph.num_nodes) % 8).astype(np.int32)
        loads = np.bincount(parts)[:, None]
        moved = [ops.refine_parts(rows, limits, parts, loads, shed=0.5, num_threads=threads) for _ in range(2)]
        found.append((moved, parts.tolist(), loads.tolist()))
    assert all(each == found[0] for each in found) and min(found[0][0]) > 100


def test_a_node_goes_where_most_of_its_links_are():
    graph = pairs_of(5, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)])
    parts, loads = np.array([1, 0, 0, 1, 1], dtype=np.int32), np.array([[2], [3]])
    assert ops.refine_parts(graph, nodes_alone(5, 3), parts, loads) == 1
    assert parts.tolist() == [0, 0, 0, 1, 1] and loads.tolist() == [[3], [2]]


@pytest.mark.parametrize(("most", "least"), [(2, 1), (3, 3)])
def test_neither_a_capacity_nor_a_floor_is_passed(most, least):
    graph = pairs_of(5, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)])
    parts, loads = np.array([1, 0, 0, 1, 1], dtype=np.int32), np.array([[2], [3]])
    assert ops.refine_parts(graph, nodes_alone(5, most, least), parts, loads) == 0


@pytest.mark.parametrize(("shed", "expected"), [(0.0, [0, 0, 0, 1]), (0.5, [1, 0, 0, 1])])
def test_a_part_that_is_too_full_sheds(shed, expected):
    graph = pairs_of(4, [(0, 1), (0, 2), (0, 3)])  # node 0: two links in its part, one out of it
    parts, loads = np.array([0, 0, 0, 1], dtype=np.int32), np.array([[3], [1]])
    ops.refine_parts(graph, nodes_alone(4, 2), parts, loads, shed=shed, turns=(0, 1))
    assert parts.tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": np.array([0, 2], dtype=np.int32)}, "node 1 has part 2; expected 0 to 1"),
        ({"parts": np.array([0, 1])}, "parts is int64"),
        ({"shed": 1.5}, "shed 1.5; expected 0 to 1"),
        ({"turns": (0, 3)}, "turns 0 to 3; expected them within 0 to 2"),
        ({"limits": nodes_alone(2, 0)}, "capacity 0 is 0; expected at least 1"),
        ({"limits": nodes_alone(3, 1)}, "node_loads has 3 entries; expected 2"),
        ({"limits": ops.PartLimits(capacities=np.array([1]), floors=np.array([1]))}, "pass node_loads, or in_offsets"),
        ({"loads": np.ones((2, 2), dtype=np.int64)}, "loads has 4 entries; expected 2"),
    ],
)
def test_refuses(change, message):
    arguments = {
        "limits": nodes_alone(2, 2), "parts": np.array([0, 1], dtype=np.int32), "loads": np.array([[1], [1]]),
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ops.refine_parts(pairs_of(2, [(0, 1)]), **arguments)
