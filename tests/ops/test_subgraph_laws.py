"""Subgraphs have their laws: every outcome on a tiny graph, enumerated, against 15,000 drawn subgraphs.

Chi-square with fixed seeds; every test has a false-alarm rate of 1e-4.
"""

import itertools
from collections import Counter

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import SubgraphRule, SubgraphTables
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.testing.statistics import chi_square_p

FALSE_ALARM = 1e-4
SUBGRAPHS = 15_000
LEAST_EXPECTED = 5.0
ROWS = [[1, 2, 3, 3], [0], [0, 1, 2], [0, 4], []]  # parallel edges, a self-loop, a sink
SYMMETRIC = [[1, 2, 3], [0, 2], [0, 1], [0]]
ROOTS = {"all": [0, 1, 2, 3, 4], "some, one twice": [0, 2, 2, 4]}


def frontier_law(rows, roots, size, budget, most=None, visits_popped=False):
    """Probability of every sequence of visits; of the wrong law that visits what is popped as well."""
    law = Counter()
    weights = [min(len(row), most or len(row)) for row in rows]

    def pop(slots, visits, probability):
        total = sum(weights[node] for node in slots)
        if len(visits) == budget or total == 0:
            law[visits] += probability
            return
        for slot, node in enumerate(slots):
            for neighbor in rows[node]:
                share = probability * weights[node] / total / len(rows[node])
                moved = (*slots[:slot], neighbor, *slots[slot + 1 :])
                pop(moved, (*visits, node if visits_popped else neighbor), share)

    for start in itertools.product(roots, repeat=size):
        pop(start, start if not visits_popped else (), len(roots) ** -size)
    return law


def walk_law(rows, roots, length):
    law = Counter()

    def hop(visits, probability):
        if len(visits) > length or not rows[visits[-1]]:
            law[visits] += probability
            return
        for neighbor in rows[visits[-1]]:
            hop((*visits, neighbor), probability / len(rows[visits[-1]]))

    for root in roots:
        hop((root,), 1 / len(roots))
    return law


def node_law(rows, roots, budget):
    total = sum(len(rows[root]) for root in roots)
    law = Counter()
    for visits in itertools.product(roots, repeat=budget):
        probability = 1.0
        for node in visits:
            probability *= len(rows[node]) / total
        law[visits] += probability
    return law


def edge_law(rows, roots):
    connected = [root for root in roots if rows[root]]
    law = Counter()
    for head in connected:
        for neighbor in rows[head]:
            law[head, neighbor] += 1 / len(connected) / len(rows[head])
    return law


def p_value(rows, roots, rule, law):
    """Of the nodes of drawn subgraphs under a law of their visits; rare outcomes count as one."""
    expected = Counter()
    for visits, probability in law.items():
        expected[tuple(dict.fromkeys(visits))] += probability * SUBGRAPHS
    assert sum(expected.values()) == pytest.approx(SUBGRAPHS)
    indptr = torch.tensor([0, *itertools.accumulate(len(row) for row in rows)])
    graph = CSCGraph(indptr, torch.tensor([node for row in rows for node in row], dtype=torch.int32))
    tables = SubgraphTables.of(rule, graph.indptr, None, torch.tensor(roots), torch.int32)
    drawn = ops.subgraph_nodes(SamplingGraph(graph.indptr, graph.indices), rule, tables, 0, SUBGRAPHS)
    found = Counter(tuple(nodes.tolist()) for nodes in drawn.nodes)
    if not found.keys() <= {outcome for outcome, count in expected.items() if count > 0}:
        return 0.0
    rare = [outcome for outcome, count in expected.items() if count < LEAST_EXPECTED]
    cells = [(found[outcome], count) for outcome, count in expected.items() if count >= LEAST_EXPECTED]
    if rare:
        cells.append((sum(found[outcome] for outcome in rare), sum(expected[outcome] for outcome in rare)))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 0)
    return chi_square_p(statistic, len(cells) - 1)


@pytest.mark.parametrize("max_degree", [None, 2])
@pytest.mark.parametrize("roots", ROOTS)
def test_a_frontier_has_the_law_of_algorithm_2_whose_entering_vertex_is_visited(roots, max_degree):
    rule = SubgraphRule(budget=4, frontier_size=2, max_degree=max_degree, rng_seed=11)
    law = frontier_law(ROWS, ROOTS[roots], 2, 4, max_degree)
    assert p_value(ROWS, ROOTS[roots], rule, law) > FALSE_ALARM


def test_the_laws_of_other_frontiers_are_told_apart():
    """The popped vertex visited, weights that are all equal, roots without replacement."""
    rule, roots = SubgraphRule(budget=4, frontier_size=2, rng_seed=11), ROOTS["all"]
    popped = frontier_law(ROWS, roots, 2, 4, visits_popped=True)
    distinct = {visits: p * 25 / 20 for visits, p in frontier_law(ROWS, roots, 2, 4).items() if visits[0] != visits[1]}
    for law in (popped, frontier_law(ROWS, roots, 2, 4, most=1), distinct):
        assert p_value(ROWS, roots, rule, law) < 1e-10


@pytest.mark.parametrize("roots", ROOTS)
def test_node_draws_go_by_degree(roots):
    rule = SubgraphRule(method="node", budget=3, rng_seed=12)
    assert p_value(ROWS, ROOTS[roots], rule, node_law(ROWS, ROOTS[roots], 3)) > FALSE_ALARM


@pytest.mark.parametrize("roots", ROOTS)
def test_edge_draws_take_a_head_and_a_neighbor(roots):
    rule = SubgraphRule(method="edge", budget=1, rng_seed=13)
    assert p_value(ROWS, ROOTS[roots], rule, edge_law(ROWS, ROOTS[roots])) > FALSE_ALARM


def test_on_a_symmetric_graph_edges_have_graphsaints_law():
    """P({u, v}) in proportion to 1/d_u + 1/d_v (GraphSAINT, section 3.4)."""
    law = Counter()
    for (head, neighbor), probability in edge_law(SYMMETRIC, range(4)).items():
        law[frozenset((head, neighbor))] += probability
    weights = {edge: sum(1 / len(SYMMETRIC[end]) for end in edge) for edge in law}
    assert law == pytest.approx({edge: weight / sum(weights.values()) for edge, weight in weights.items()})


@pytest.mark.parametrize("roots", ROOTS)
def test_walks_take_uniform_hops_and_end_at_sinks(roots):
    rule = SubgraphRule(method="walk", budget=4, walk_length=3, rng_seed=14)
    assert p_value(ROWS, ROOTS[roots], rule, walk_law(ROWS, ROOTS[roots], 3)) > FALSE_ALARM
