"""stream_partition against its oracle, its capacities, and what a pass is for."""

import itertools

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.ops.stream_partition import NO_LIMIT, NUM_LIMITS, StreamRule
from tests.optional import given, settings, st

SCORES = ["ldg", "fennel"]


def limits(*given_limits: int) -> tuple[int, ...]:
    """Capacities of which the first ones are given and the others do not bind."""
    return (*given_limits, *[NO_LIMIT] * (NUM_LIMITS - len(given_limits)))


def csc(num_nodes: int, edges: list[tuple[int, int]], dtype: torch.dtype = torch.int32) -> tuple:
    """(indptr, indices) of edges (source, destination)."""
    degrees = torch.bincount(torch.tensor([dst for _, dst in edges], dtype=torch.int64), minlength=num_nodes)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return indptr, torch.tensor([src for src, _ in sorted(edges, key=lambda edge: edge[1])], dtype=dtype)


def unassigned(num_nodes: int) -> torch.Tensor:
    return torch.full((num_nodes,), -1, dtype=torch.int32)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_equals_the_oracle(data):
    num_nodes = data.draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=40))
    num_parts = data.draw(st.integers(1, 5))
    per_node = {"min_size": num_nodes, "max_size": num_nodes}
    columns = {
        "order": data.draw(st.none() | st.permutations(range(num_nodes))),
        "in_edges": data.draw(st.none() | st.lists(st.integers(0, 9), **per_node)),
        "kinds": data.draw(st.none() | st.lists(st.integers(0, 255), **per_node)),
    }
    dtypes = {"order": torch.int64, "in_edges": torch.int64, "kinds": torch.uint8}
    columns = {
        name: None if column is None else torch.tensor(list(column), dtype=dtypes[name])
        for name, column in columns.items()
    }
    capacity = st.integers(1, 2 * num_nodes) | st.just(NO_LIMIT)
    rule = StreamRule(
        score=data.draw(st.sampled_from(SCORES)),
        num_parts=num_parts,
        capacities=tuple(data.draw(st.lists(capacity, min_size=NUM_LIMITS, max_size=NUM_LIMITS))),
        alpha=data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        rng_seed=data.draw(st.sampled_from([0, 1, 2**40 + 3])),
    )
    before = torch.tensor(data.draw(st.lists(st.integers(-1, num_parts - 1), **per_node)), dtype=torch.int32)
    graph = csc(num_nodes, edges, data.draw(st.sampled_from([torch.int32, torch.int64])))
    kept = before.clone()
    found = ops.stream_partition(*graph, before, rule, **columns)
    assert found.tolist() == reference.stream_partition(*graph, before, rule, **columns).tolist()
    assert torch.equal(before, kept)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("ldg", 1),  # 2 * (1 - 3/4) = 0.5 of part 0, 1 * (1 - 1/4) = 0.75 of part 1
        ("fennel", 0),  # 2 - 0.15 sqrt(3) = 1.74 of part 0, 1 - 0.15 sqrt(1) = 0.85 of part 1
    ],
)
def test_by_hand(score, expected):
    # Node 4 has two neighbours in part 0, which holds three nodes, and one in part 1, which holds one.
    graph = csc(5, [(0, 4), (1, 4), (3, 4)])
    rule = StreamRule(score=score, num_parts=2, capacities=limits(4), alpha=0.1)
    before = torch.tensor([0, 0, 0, 1, -1], dtype=torch.int32)
    assert ops.stream_partition(*graph, before, rule, order=torch.tensor([4, 0, 1, 2, 3]))[4] == expected


@pytest.mark.parametrize("score", SCORES)
def test_two_cliques_come_apart(score):
    cliques = [range(0, 8), range(8, 16)]
    edges = [(u, v) for clique in cliques for u, v in itertools.permutations(clique, 2)] + [(3, 12), (12, 3)]
    graph, rule = csc(16, edges), StreamRule(score=score, num_parts=2, capacities=limits(9), alpha=0.5)
    parts = unassigned(16)
    for _ in range(3):
        parts = ops.stream_partition(*graph, parts, rule)
    assert len(set(parts[:8].tolist())) == len(set(parts[8:].tolist())) == 1
    assert parts[0] != parts[8]


@pytest.mark.parametrize("score", SCORES)
def test_no_capacity_is_exceeded_while_there_is_room(score):
    generator = torch.Generator().manual_seed(2)
    ends = torch.randint(0, 300, (2000, 2), generator=generator)
    indptr, indices = csc(300, ends.tolist())
    kinds = (torch.arange(300) % 3 == 0).to(torch.uint8)
    rule = StreamRule(score=score, num_parts=4, capacities=limits(85, 640, 30), alpha=1.0)
    parts = ops.stream_partition(indptr, indices, unassigned(300), rule, kinds=kinds)
    assert int(torch.bincount(parts).max()) <= 85
    assert int(torch.bincount(parts, weights=indptr.diff().double()).max()) <= 640
    assert int(torch.bincount(parts[kinds == 1]).max()) <= 30


def test_a_hub_above_the_capacity_goes_where_it_exceeds_least():
    # Node 0 has 5 in-edges where 4 fit; nodes 1 and 2 with one each come before it, into different parts.
    indptr, indices = csc(7, [(3, 1), (3, 2), *((u, 0) for u in range(2, 7))])
    rule = StreamRule(score="ldg", num_parts=3, capacities=limits(7, 4))
    order = torch.tensor([1, 2, 0, 3, 4, 5, 6])
    parts = ops.stream_partition(indptr, indices, unassigned(7), rule, order=order)
    assert len(set(parts[:3].tolist())) == 3


def test_the_seed_decides_between_equals():
    rule = {"score": "ldg", "num_parts": 8, "capacities": limits(100)}
    indptr, indices = csc(60, [])
    first, again, other = (
        ops.stream_partition(indptr, indices, unassigned(60), StreamRule(**rule, rng_seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_no_nodes():
    rule = StreamRule(score="ldg", num_parts=3, capacities=limits(1))
    assert ops.stream_partition(*csc(0, []), unassigned(0), rule).tolist() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "best"}, "score is 'best'; expected ldg or fennel"),
        ({"num_parts": 0}, "num_parts is 0; expected an integer from 1"),
        ({"num_parts": 2.5}, "num_parts is 2.5; expected an integer from 1"),
        ({"rng_seed": -1}, "rng_seed is -1; expected an integer from 0"),
        ({"rng_seed": None}, "rng_seed is None; expected an integer from 0"),
        ({"capacities": (1, 2)}, "capacities has 2 entries; expected 10"),
        ({"capacities": limits(0)}, "capacity 0 is 0; expected at least 1"),
        ({"indices": torch.tensor([0, 9])}, "node 2 has a neighbour outside 0 to 2"),
        ({"indices": torch.tensor([0, -1])}, "node 2 has a neighbour outside 0 to 2"),
        ({"indptr": torch.tensor([0, 2, 1, 2])}, "indptr of node 1 runs from 2 to 1"),
        ({"indptr": torch.tensor([0, 1, 2])}, "parts has 3 entries; expected 2"),
        ({"parts": torch.tensor([0, 0, 2]).int()}, "node 2 is in part 2; expected -1 to 1"),
        ({"parts": [0, 0, 0]}, "parts is a list; expected a tensor"),
        ({"order": [0, 1, 2]}, "order is a list; expected a tensor"),
        ({"indices": torch.empty(2, dtype=torch.int64, device="meta")}, "indices is on meta; expected host memory"),
        ({"order": torch.tensor([0, 1, 3])}, "order has node 3; expected 0 to 2"),
        ({"order": torch.tensor([0, 1])}, "order has 2 entries; expected 3"),
        ({"kinds": torch.tensor([0, 1, 1])}, "kinds is torch.int64"),
        ({"in_edges": torch.tensor([0, 1])}, "in_edges has 2 entries; expected 3"),
    ],
)
def test_refuses(change, message):
    given_rule = {"score": "ldg", "num_parts": 2, "capacities": limits(3)}
    rule = StreamRule(**{name: change.pop(name, value) for name, value in [*given_rule.items(), ("rng_seed", 0)]})
    arguments = {"indptr": torch.tensor([0, 0, 1, 2]), "indices": torch.tensor([0, 1]), "parts": unassigned(3)}
    with pytest.raises(ValueError, match=message):
        ops.stream_partition(rule=rule, **{**arguments, **change})
