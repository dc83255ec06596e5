"""PairTable against its oracle, and what it keeps when it is full."""

import numpy as np
import pytest

from fastsample_dist import ops
from fastsample_dist.ops import reference
from tests.ops.neighbour_lists import large, neighbours, pairs_of
from tests.optional import given, settings, st


def pairs_in(table: ops.PairTable) -> dict[tuple[int, int], int]:
    return {(a, b): weight for a, b, weight in zip(*(column.tolist() for column in table.pairs()), strict=True)}


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_equals_the_oracle_in_any_number_of_calls(data):
    graph = data.draw(neighbours())
    per_node = st.lists(st.integers(0, 5), min_size=graph.num_nodes, max_size=graph.num_nodes)
    labels = np.array(data.draw(per_node), dtype=np.int32)
    table, split = ops.PairTable(64), data.draw(st.integers(0, graph.num_nodes))
    for turns in [(0, split), (split, graph.num_nodes)]:
        table.add(graph, labels, turns, num_threads=split % 3 + 1)
    assert pairs_in(table) == reference.contract_links(graph, labels)
    assert table.left_out == 0 and table.num_used == len(pairs_in(table))


def test_a_full_table_keeps_the_heaviest_pairs():
    count = 200  # pairs of weight 1 around a cycle, and 20 of 50 or more
    edges = [(node, (node + 1) % count) for node in range(count)] + [(node, node + 100) for node in range(20)]
    weights = [1] * count + list(range(50, 70))
    graph = pairs_of(count, edges, weights, weight_dtype=np.int32)
    table = ops.PairTable(64)
    table.add(graph, np.arange(count, dtype=np.int32))
    kept = pairs_in(table)
    assert {(node, node + 100): 50 + node for node in range(20)}.items() <= kept.items()
    assert table.left_out == 1 and table.num_used <= 48


def test_heavy_pairs_are_told_apart():
    count = 80
    edges = [(node, (node + 1) % count) for node in range(count)]
    graph = pairs_of(count, edges, [10**6 + node for node in range(count)], weight_dtype=np.int32)
    table = ops.PairTable(64)
    table.add(graph, np.arange(count, dtype=np.int32))
    kept = pairs_in(table)
    assert {(node, node + 1): 10**6 + node for node in range(60, 79)}.items() <= kept.items()
    assert 10**6 <= table.left_out < 10**6 + 60


@pytest.mark.parametrize("slots", [1000, 1 << 20])
def test_threads_change_no_slot(slots):
    graph = large(4, 20000, order=False)
    labels = (np.arange(graph.num_nodes) // 8).astype(np.int32)
    tables = [ops.PairTable(slots) for _ in range(3)]
    for threads, table in enumerate(tables, start=1):
        table.add(graph, labels, num_threads=threads)
    first, *others = ([column.tolist() for column in table.pairs()] for table in tables)
    assert first == others[0] == others[1]
    assert (tables[0].left_out > 0) == (slots == 1000)


def test_a_weight_ends_at_31_bits():
    graph = pairs_of(4, [(0, 2), (1, 3)], [2**31 - 1, 5], weight_dtype=np.int32)
    table = ops.PairTable(8)
    table.add(graph, np.array([0, 0, 1, 1], dtype=np.int32))
    assert pairs_in(table) == {(0, 1): 2**31 - 1}


@pytest.mark.parametrize(
    ("labels", "turns", "message"),
    [
        (np.array([0, -2], dtype=np.int32), None, "node 1 has label -2; expected 0 to 2147483647"),
        (np.array([0, 1]), None, "labels is int64"),
        (np.array([0], dtype=np.int32), None, "labels has 1 entries; expected 2"),
        (np.array([0, 1], dtype=np.int32), (1, 3), "turns 1 to 3; expected them within 0 to 2"),
    ],
)
def test_refuses(labels, turns, message):
    with pytest.raises(ValueError, match=message):
        ops.PairTable(8).add(pairs_of(2, [(0, 1)]), labels, turns)
