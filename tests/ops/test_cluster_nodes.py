"""cluster_nodes against its oracle, and what a pass is for."""

import itertools

import numpy as np
import pytest

from fastsample_dist import ops
from fastsample_dist.ops import reference
from tests.ops.neighbour_lists import large, neighbours, pairs_of, rows_by_turn
from tests.optional import given, settings, st


def singletons(weights: np.ndarray) -> ops.Clusters:
    """Every node alone."""
    count = len(weights)
    return ops.Clusters(np.arange(count, dtype=np.int32), weights.copy(), np.full(count, -1, dtype=np.int32))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_equals_the_oracle_in_any_number_of_calls(data):
    graph = data.draw(neighbours())
    numbers = st.lists(st.integers(1, 5), min_size=graph.num_nodes, max_size=graph.num_nodes)
    weights = np.array(data.draw(numbers), dtype=np.int32)
    within = data.draw(st.none() | numbers)
    found, expected = singletons(weights), singletons(weights)
    split = data.draw(st.integers(0, graph.num_nodes))
    for name in data.draw(st.sampled_from([["heaviest"], ["alike"], ["heaviest", "heaviest", "alike"]])):
        rule = ops.ClusterRule(
            rule=name,
            node_weights=weights,
            bound=data.draw(st.integers(1, 20)),
            within=None if within is None else np.array(within, dtype=np.int32),
            rng_seed=data.draw(st.sampled_from([0, 7, 2**63 + 5])),
        )
        threads, runs = data.draw(st.integers(1, 3)), [(0, split), (split, graph.num_nodes)]
        moved = sum(ops.cluster_nodes(graph, rule, found, turns, num_threads=threads) for turns in runs)
        assert moved == reference.cluster_nodes(graph, rule, expected)
        assert found.labels.tolist() == expected.labels.tolist()
        assert found.loads.tolist() == expected.loads.tolist()


@pytest.mark.parametrize("order", [False, True])
def test_threads_and_where_rows_lie_change_nothing(order):
    graph = large(3, 20000, order=order)
    weights = np.ones(graph.num_nodes, dtype=np.int32)
    ways = [(graph, 1), (graph, 2), (graph, 5), (rows_by_turn(graph) if order else graph, 3)]
    ends = [singletons(weights) for _ in ways]
    for (rows, threads), clusters in zip(ways, ends, strict=True):
        for name, bound in [("heaviest", 60), ("heaviest", 60), ("alike", 400)]:
            rule = ops.ClusterRule(rule=name, node_weights=weights, bound=bound, rng_seed=2)
            ops.cluster_nodes(rows, rule, clusters, num_threads=threads)
    assert all((each.labels == ends[0].labels).all() for each in ends)
    assert len(np.unique(ends[0].labels)) < graph.num_nodes / 4


def test_cliques_become_clusters():
    edges = [(8 * clique + a, 8 * clique + b) for clique in range(4) for a, b in itertools.combinations(range(8), 2)]
    graph = pairs_of(32, [*edges, (0, 8), (8, 16), (16, 24)])
    clusters = singletons(np.ones(32, dtype=np.int32))
    for _ in range(4):
        rule = ops.ClusterRule(rule="heaviest", node_weights=np.ones(32, dtype=np.int32), bound=8)
        ops.cluster_nodes(graph, rule, clusters)
    assert [len(set(clusters.labels[lo : lo + 8].tolist())) for lo in range(0, 32, 8)] == [1, 1, 1, 1]
    assert len(set(clusters.labels.tolist())) == 4


def test_leaves_of_a_full_hub_join_each_other():
    weights = np.array([10] + [1] * 12, dtype=np.int32)
    graph, clusters = pairs_of(13, [(0, leaf) for leaf in range(1, 13)]), singletons(weights)
    for name in ("heaviest", "alike"):
        ops.cluster_nodes(graph, ops.ClusterRule(rule=name, node_weights=weights, bound=10), clusters)
    assert np.bincount(clusters.labels)[clusters.labels].tolist() == [1] + [10] * 10 + [2] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "first"}, "rule is 'first'; expected heaviest or alike"),
        ({"bound": 0}, "bound is 0; expected 1 to 1073741824"),
        ({"rng_seed": -1}, "rng_seed is -1"),
        ({"node_weights": np.ones(2, dtype=np.int32)}, "node_weights has 2 entries; expected 3"),
        ({"within": np.ones(3)}, "within is float64"),
        ({"labels": np.array([0, 3, 1], dtype=np.int32)}, "node 1 has label 3; expected 0 to 2"),
        ({"labels": np.array([0, -1, 1], dtype=np.int32)}, "node 1 has label -1; expected 0 to 2"),
        ({"open": None, "rule": "alike"}, "open is None; rule alike needs it"),
        ({"turns": (0, 4)}, "turns 0 to 4; expected them within 0 to 3"),
        ({"indices": np.array([1, 0, 2, 3], dtype=np.int32)}, "node 2 has a neighbour outside 0 to 2"),
        ({"indptr": np.array([0, 1, 3, 2])}, "indptr of node 2 runs from 3 to 2"),
        ({"order": np.array([0, 5, 1])}, "order has node 5; expected 0 to 2"),
        ({"weights": np.ones(4, dtype=np.int64)}, "weights is int64"),
    ],
)
def test_refuses(change, message):
    ones = np.ones(3, dtype=np.int32)
    given_values = {
        "indptr": np.array([0, 1, 3, 4]), "indices": np.array([1, 0, 2, 1], dtype=np.int32), "rule": "heaviest",
        "node_weights": ones, "bound": 3, "labels": np.arange(3, dtype=np.int32), "open": -ones,
    } | change  # fmt: skip

    def of(*names: str) -> dict:
        return {name: given_values[name] for name in names if name in given_values}

    with pytest.raises(ValueError, match=message):
        ops.cluster_nodes(
            ops.Neighbours(**of("indptr", "indices", "order", "weights")),
            ops.ClusterRule(**of("rule", "node_weights", "bound", "within", "rng_seed")),
            ops.Clusters(**of("labels", "open"), loads=ones.copy()),
            given_values.get("turns"),
        )
