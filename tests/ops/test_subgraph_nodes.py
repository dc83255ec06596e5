"""The nodes of subgraphs, compiled, against their oracle: exact equality; what is refused; what a graph may be like."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import SubgraphRule, SubgraphTables, reference
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.ops.graphs import random_csc

ISAS = ("scalar", "baseline", "avx2", "avx512")
RING = 1_047_553
RULES = {
    "frontier": SubgraphRule(budget=90, frontier_size=20, rng_seed=5),
    "frontier of one": SubgraphRule(budget=40, frontier_size=1, rng_seed=5),
    "frontier that is the budget": SubgraphRule(budget=30, frontier_size=30),
    "frontier, degrees cut": SubgraphRule(budget=90, frontier_size=20, max_degree=3),
    "more walkers than nodes": SubgraphRule(budget=200, frontier_size=150, rng_seed=2**40),
    "node": SubgraphRule(method="node", budget=150),
    "edge": SubgraphRule(method="edge", budget=150),
    "walk": SubgraphRule(method="walk", budget=401, walk_length=2),
    "long walks": SubgraphRule(method="walk", budget=61, walk_length=20, rng_seed=9),
}


def graph_of(rows, dtype=torch.int32):
    """The graph whose node v has the in-neighbours rows[v], in this order."""
    indptr = torch.tensor([0, *itertools.accumulate(len(row) for row in rows)])
    return CSCGraph(indptr, torch.tensor([node for row in rows for node in row], dtype=dtype))


def tables_of(graph, rule, roots=None):
    """All nodes are roots if none are given."""
    roots = torch.arange(graph.num_nodes) if roots is None else torch.as_tensor(roots)
    return roots, SubgraphTables.of(rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)


def drawn(graph, rule, roots=None, first=0, count=3, tables=None):
    tables = tables_of(graph, rule, roots)[1] if tables is None else tables
    return ops.subgraph_nodes(SamplingGraph(graph.indptr, graph.indices, graph.orig_ids), rule, tables, first, count)


def assert_equal(graph, rule, roots=None, first=0, count=3):
    """What is drawn is what the oracle draws."""
    found, roots = drawn(graph, rule, roots, first, count), tables_of(graph, rule, roots)[0]
    visits = [reference.subgraph_visits(graph, rule, roots, number) for number in range(first, first + count)]
    assert [nodes.tolist() for nodes in found.nodes] == [list(dict.fromkeys(own)) for own in visits]
    assert found.num_visits.tolist() == [len(own) for own in visits]
    return found


def same(one, other):
    """Two results are equal, statistics included."""
    fields = ("num_visits", "steps", "probes", "cleanups", "growths")
    return [nodes.tolist() for nodes in one.nodes] == [nodes.tolist() for nodes in other.nodes] and all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in fields
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", RULES)
def test_nodes_are_those_of_the_oracle(name, isa, use_isa):
    use_isa(isa)
    for dtype in (torch.int32, torch.int64):
        graph = random_csc(dtype=dtype)
        assert_equal(graph, RULES[name])
        assert_equal(graph, RULES[name], [7, 3, 50, 3, 11], first=2**63 + 5, count=1)


@pytest.fixture(scope="module")
def hubs():
    """1200 nodes, a third without in-edges; node 0 has 9,000."""
    generator = torch.Generator().manual_seed(5)
    degrees = torch.randint(0, 12, (1200,), generator=generator)
    degrees[torch.randint(0, 1200, (400,), generator=generator)] = 0
    degrees[0] = 9000
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return CSCGraph(indptr, torch.randint(0, 1200, (int(indptr[-1]),), generator=generator).int())


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 1024, 1025, 33000])
def test_every_instruction_set_draws_the_definition_whatever_the_number_of_slots(size, isa, hubs, use_isa):
    """One level of sums for 32 slots, two for 1,024, three for 32,768, then four."""
    rule = SubgraphRule(budget=size + 300, frontier_size=size, rng_seed=size)
    use_isa("scalar")
    expected = drawn(hubs, rule, count=2)
    use_isa(isa)
    assert same(drawn(hubs, rule, count=2), expected)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("method", ["node", "edge", "walk"])
@pytest.mark.parametrize("budget", [1, 127, 128, 129, 1000])
def test_every_instruction_set_draws_the_definition_whatever_the_number_of_draws(budget, method, isa, hubs, use_isa):
    for length in (1, 5) if method == "walk" else (1,):
        rule = SubgraphRule(method=method, budget=budget * (length + 1), walk_length=length)
        use_isa("scalar")
        expected = drawn(hubs, rule)
        use_isa(isa)
        assert same(drawn(hubs, rule), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_empty_rows_behind_the_roots_change_nothing(isa, hubs, use_isa):
    """Above 2^24 nodes the distinct visits are found in a table."""
    use_isa(isa)
    rule, roots = SubgraphRule(budget=700, frontier_size=50), range(1200)
    longer = CSCGraph(torch.cat([hubs.indptr, hubs.indptr[-1].expand(2**24)]), hubs.indices)
    assert same(drawn(longer, rule, roots), drawn(hubs, rule, roots))


@pytest.mark.parametrize("method", ["frontier", "node", "edge", "walk"])
def test_threads_and_grouping_change_nothing(method, hubs):
    few = {"budget": 600, "frontier_size": 100, "method": method}
    one = drawn(hubs, SubgraphRule(**few, num_threads=1), first=7, count=9)
    assert same(drawn(hubs, SubgraphRule(**few, num_threads=3), first=7, count=9), one)
    alone = [drawn(hubs, SubgraphRule(**few), first=number, count=1).nodes[0] for number in range(7, 16)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(alone, one.nodes, strict=True))
    assert len({tuple(nodes.tolist()) for nodes in one.nodes}) == 9


def relabelled(graph, seed):
    """The graph with its nodes in another order, as a partition has it: rows stay in canonical order."""
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    new_ids = torch.empty_like(order).index_copy_(0, order, torch.arange(graph.num_nodes))
    rows = [graph.indices[graph.indptr[node] : graph.indptr[node + 1]].long() for node in order.tolist()]
    indptr = torch.tensor([0, *itertools.accumulate(row.numel() for row in rows)])
    return CSCGraph(indptr, new_ids[torch.cat(rows)].int(), orig_ids=order), new_ids


@pytest.mark.parametrize("method", ["frontier", "node", "edge", "walk"])
def test_numbering_changes_nothing(method, hubs):
    rule, roots = SubgraphRule(method=method, budget=600, frontier_size=100), torch.arange(0, 1200, 3)
    expected = [nodes.long() for nodes in drawn(hubs, rule, roots).nodes]
    for seed in (1, 2):
        graph, new_ids = relabelled(hubs, seed)
        shuffled = new_ids[roots[torch.randperm(roots.numel())]]
        found = drawn(graph, rule, shuffled).nodes
        assert all(torch.equal(graph.orig_ids[own.long()], theirs) for own, theirs in zip(found, expected, strict=True))


STAR = [[1, 2, 3, 4, 5, 6, 7], *[[0]] * 7]
GRAPHS = {
    "no edges": [[], [], []],
    "one node": [[]],
    "a self-loop": [[0]],
    "isolated nodes": [[1], [0], [], [], []],
    "star": STAR,
    "parallel edges": [[1, 1, 1, 0], [0, 0, 2], [1]],
    "sinks": [[1, 2], [2], []],
    "a cycle": [[1], [2], [0]],
    "into one sink": [[4], [4], [4], [4], []],
}


@pytest.mark.parametrize("isa", ["scalar", "baseline", "avx512"])
@pytest.mark.parametrize("shape", GRAPHS)
def test_any_graph_is_walked_as_the_oracle_walks_it(shape, isa, use_isa):
    use_isa(isa)
    graph = graph_of(GRAPHS[shape])
    for rule in (
        SubgraphRule(budget=40, frontier_size=5),
        SubgraphRule(budget=40, frontier_size=40),
        SubgraphRule(budget=40, frontier_size=2, max_degree=1),
        *(SubgraphRule(method=method, budget=40, walk_length=3) for method in ("node", "edge", "walk")),
    ):
        for roots in (None, [0, 0, 0], [graph.num_nodes - 1]):
            found = assert_equal(graph, rule, roots)
            assert all(0 < nodes.numel() <= graph.num_nodes for nodes in found.nodes) or rule.method in ("node", "edge")


def test_a_frontier_without_edges_ends_early_and_says_so():
    found = drawn(graph_of([[], [], []]), SubgraphRule(budget=30, frontier_size=4))
    assert found.num_visits.tolist() == [4] * 3 and found.steps.tolist() == [0] * 3
    found = drawn(graph_of(GRAPHS["into one sink"]), SubgraphRule(budget=30, frontier_size=4), [0, 1])
    assert found.num_visits.tolist() == [8] * 3 and found.steps.tolist() == [4] * 3


def test_draws_where_nothing_has_an_edge_are_none():
    for method in ("node", "edge"):
        found = drawn(graph_of([[], [], []]), SubgraphRule(method=method, budget=30))
        assert found.num_visits.tolist() == [0] * 3 and all(nodes.numel() == 0 for nodes in found.nodes)


def test_every_hub_is_in_every_subgraph_and_a_budget_above_the_graph_takes_what_there_is():
    found = assert_equal(graph_of(STAR), SubgraphRule(budget=500, frontier_size=3))
    assert [sorted(nodes.tolist()) for nodes in found.nodes] == [list(range(8))] * 3


@pytest.mark.parametrize("isa", ISAS)
def test_a_total_weight_above_2_to_the_32(isa, use_isa):
    """40,000 slots at nodes of 131,072 neighbours and more; pops draw 64 bits."""
    use_isa(isa)
    degrees = [2**17 + node for node in range(4)]
    indices = torch.randint(0, 4, (sum(degrees),), generator=torch.Generator().manual_seed(1)).int()
    graph = CSCGraph(torch.tensor([0, *itertools.accumulate(degrees)]), indices)
    rule = SubgraphRule(budget=40_060, frontier_size=40_000)
    if isa == "scalar":
        assert assert_equal(graph, rule, count=1).num_visits.tolist() == [40_060]
    else:
        found = drawn(graph, rule, count=1)
        use_isa("scalar")
        assert same(found, drawn(graph, rule, count=1))


def huge_row():
    """Node 0 has 2^26 + 2^25 in-edges from itself, pages of zeros that take no memory; others lead to it."""
    degrees = [2**26 + 2**25, 5, 4, 3]
    indices = np.zeros(sum(degrees), dtype=np.int32)
    indices[degrees[0] :] = [1, 2, 3, 2, 0, 1, 3, 3, 1, 2, 1, 1]
    return CSCGraph(torch.tensor([0, *itertools.accumulate(degrees)]), torch.from_numpy(indices))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("roots", [[0, 1, 2, 3], [1, 2, 3]], ids=["from the start", "on the way"])
def test_weights_too_large_for_sums_of_32_bits(roots, isa, use_isa):
    """Bounded draws of 3 * 2^25 positions reject one word of 85."""
    use_isa(isa)
    rule = SubgraphRule(budget=500, frontier_size=60)
    found = assert_equal(huge_row(), rule, roots, count=2)
    assert all(0 in nodes for nodes in found.nodes)


@pytest.fixture(scope="module")
def wide_hub():
    """Node 0 has 140,000 in-neighbours, the others three and node 0."""
    num_nodes, generator = 70_000, torch.Generator().manual_seed(11)
    hub, rows = (torch.randint(0, num_nodes, (n,), generator=generator).int() for n in (140_000, 4 * num_nodes - 4))
    rows[::4] = 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), 140_000 + 4 * torch.arange(num_nodes)])
    return CSCGraph(indptr, torch.cat([hub, rows]))


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("roots", [[0], range(1, 70_000)], ids=["from the start", "on the way"])
def test_sums_become_wide_at_the_pop_that_needs_them(roots, isa, wide_hub, use_isa):
    """Of 33,000 walkers at node 0 the weights add up to 4.6 * 10^9; a single one of them is more than 2^31 / 33,000."""
    rule = SubgraphRule(budget=33_500, frontier_size=33_000, rng_seed=4)
    use_isa("scalar")
    expected = drawn(wide_hub, rule, roots, count=1)
    use_isa(isa)
    assert same(drawn(wide_hub, rule, roots, count=1), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("total", [3 * 2**30, 2**32 - 1, 2**32, 2**40 + 2**39], ids=str)
def test_node_draws_from_any_total(total, isa, use_isa):
    """Of 3 * 2^30 a quarter of the words is rejected; from 2^32 on a draw takes two words."""
    use_isa(isa)
    sums = torch.tensor([0, total // 7, total // 7, total // 2, total])
    roots = torch.arange(4, dtype=torch.int32)
    rule = SubgraphRule(method="node", budget=300)
    found = drawn(graph_of([[]] * 4), rule, count=1, tables=SubgraphTables(roots, sums))
    key = reference.stage_key(0, 13, 0, 0)
    draws = [reference.below(reference.node_words(key, i), total) for i in range(300)]
    visits = [int(np.searchsorted(sums[1:].numpy(), drawn, side="right")) for drawn in draws]
    assert found.nodes[0].tolist() == list(dict.fromkeys(visits))


RULE = {"budget": 50, "frontier_size": 10}
REFUSED = {
    "a frontier above the budget": (
        {"budget": 9, "frontier_size": 10},
        "frontier_size is 10 but budget is 9; expected a budget of at least as many visits",
    ),
    "no budget": ({"budget": 0}, "budget is 0; expected 1 to"),
    "no frontier": ({"frontier_size": 0}, "frontier_size is 0; expected 1 to"),
    "no walk": ({"method": "walk", "budget": 2}, "at least one walk, walk_length \\+ 1 = 3 visits"),
    "walks of nothing": ({"method": "walk", "walk_length": 0}, "walk_length is 0; expected 1 to"),
    "unknown method": ({"method": "mrw"}, "method is 'mrw'; expected 'frontier'"),
    "unknown structure": ({"structure": "tree"}, "structure is 'tree'; expected 'sums'"),
    "a budget that is none": ({"budget": 10.5}, "budget is 10.5; expected an integer"),
    "no degrees": ({"max_degree": 0}, "max_degree is 0; expected 1 or more, or None"),
    "a negative seed": ({"rng_seed": -1}, "rng_seed is -1; expected an integer from 0 to"),
    "no threads": ({"num_threads": 0}, "num_threads is 0; expected an integer from 1 to 1024"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rule_that_cannot_be_is_refused(case):
    options, line = REFUSED[case]
    with pytest.raises(ValueError, match=line):
        SubgraphRule(**(RULE | options))


def test_roots_and_numbers_that_cannot_be_are_refused():
    graph, rule = random_csc(), SubgraphRule(**RULE)
    with pytest.raises(ValueError, match="roots is empty; expected at least one node"):
        drawn(graph, rule, torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match="roots holds nodes from 3 to 60; expected 0 to 59"):
        drawn(graph, rule, [60, 3])
    with pytest.raises(ValueError, match="numbers of 64 bits"):
        drawn(graph, rule, first=2**64 - 1, count=2)
    with pytest.raises(ValueError, match="roots is torch.int64 but indices is torch.int32"):
        drawn(graph, rule, tables=SubgraphTables(torch.arange(3)))
    for method, name in (("node", "degree_sums"), ("edge", "connected")):
        with pytest.raises(ValueError, match=f"the method reads {name}, but the tables hold none"):
            drawn(graph, SubgraphRule(method=method), tables=SubgraphTables(torch.arange(3, dtype=torch.int32)))
    assert drawn(graph, rule, count=0).nodes == []


@pytest.mark.parametrize("method", ["frontier", "dashboard", "node", "edge", "walk"])
@pytest.mark.parametrize("damage", ["root", "offsets", "source", "negative source", "unconnected"])
def test_damage_is_refused_in_the_words_of_the_definition(damage, method, use_isa):
    indptr, indices = torch.tensor([0, 4, 7, 9]), torch.tensor([0, 1, 2, 1, 0, 2, 1, 2, 0], dtype=torch.int32)
    roots, connected = torch.arange(3, dtype=torch.int32), torch.arange(3, dtype=torch.int32)
    if damage == "root":
        roots[1] = connected[1] = 3
    elif damage == "unconnected":
        indptr[1] = 0
    elif damage == "offsets":
        indptr[3] = 6
    else:
        indices[:] = 3 if damage == "source" else -2
    rule = SubgraphRule(method="frontier" if method == "dashboard" else method, budget=600, frontier_size=200)
    rules = [rule, replace(rule, structure="dashboard")] if method == "dashboard" else [rule]
    tables = SubgraphTables(roots, torch.tensor([0, 4, 7, 9]), connected)
    is_read = damage == "root" or (method == "edge" if damage == "unconnected" else method != "node")
    lines = set()
    for isa, own in itertools.product(ISAS, rules):
        use_isa(isa)
        if is_read:
            with pytest.raises(ValueError, match="subgraph_nodes: ") as refused:
                ops.subgraph_nodes(SamplingGraph(indptr, indices), own, tables, 0, 4)
            lines.add(str(refused.value))
        else:
            ops.subgraph_nodes(SamplingGraph(indptr, indices), own, tables, 0, 4)
    assert len(lines) == is_read


@pytest.fixture(scope="module")
def many_roots():
    """A ring. 2**32 % its size is just below the size, so that a word is rejected as often as can be."""
    return CSCGraph(torch.arange(RING + 1), torch.arange(RING, dtype=torch.int32).roll(1))


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("method", ["node", "walk"])
def test_a_root_whose_word_is_rejected_is_that_of_the_definition(method, isa, many_roots, use_isa):
    """About 10 of 40,000."""
    assert 8 < 40_000 * (2**32 % RING) / 2**32 < 12
    rule = SubgraphRule(method=method, budget=80_000 if method == "walk" else 40_000, walk_length=1, rng_seed=3)
    use_isa("scalar")
    expected = drawn(many_roots, rule, count=1)
    use_isa(isa)
    assert same(drawn(many_roots, rule, count=1), expected)
