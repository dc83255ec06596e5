"""The law of frontier sampling, by enumeration on tiny graphs, and of both structures against each other.

Subgraphs are independent, the visits of one are not: a statistic counts subgraphs. All p-values of the file are held
against one false-alarm rate each, of 1e-4 (testing/statistics.py).
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.generators import rmat
from fastsample_dist.ops import SubgraphRule, SubgraphTables
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.testing.statistics import Evidence, chi_square_p, pearson_p

FALSE_ALARM, COUNT = 1e-4, 40_000
STRUCTURES = ("sums", "dashboard")
# In-neighbours by node: a sink, a self-loop, parallel edges, a hub.
TINY = {
    "symmetric": [[1, 2, 3], [0], [0, 3], [0, 2]],
    "directed": [[1, 1, 2], [], [2, 0], [0, 1, 2, 3]],
}
CASES = {
    "two walkers": SubgraphRule(budget=5, frontier_size=2, eta=1.3),
    "three walkers, degrees cut": SubgraphRule(budget=6, frontier_size=3, max_degree=2, eta=1.3),
}


def graph_of(rows: list[list[int]]) -> CSCGraph:
    lengths = torch.tensor([len(row) for row in rows])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return CSCGraph(indptr, torch.tensor([source for row in rows for source in row], dtype=torch.int32))


def draw(graph: CSCGraph, rule: SubgraphRule, count: int) -> ops.SubgraphNodes:
    tables = SubgraphTables.of(rule, graph.indptr, None, torch.arange(graph.num_nodes), graph.indices.dtype)
    return ops.subgraph_nodes(SamplingGraph(graph.indptr, graph.indices), rule, tables, 0, count)


def law(rows: list[list[int]], rule: SubgraphRule) -> Counter:
    """Probability of (distinct visits in order of first appearance, number of visits), summed over all draws."""
    most = rule.max_degree or max(map(len, rows))

    @cache
    def outcomes(slots: tuple[int, ...], nodes: tuple[int, ...], visits: int) -> Counter:
        weights = [min(len(rows[node]), most) for node in slots]
        if visits == rule.budget or sum(weights) == 0:
            return Counter({(nodes, visits): 1.0})
        found = Counter()
        for slot, weight in enumerate(weights):
            for entering in rows[slots[slot]] if weight else ():
                moved = (*slots[:slot], entering, *slots[slot + 1 :])
                then = outcomes(moved, tuple(dict.fromkeys((*nodes, entering))), visits + 1)
                for outcome, p in then.items():
                    found[outcome] += p * weight / sum(weights) / len(rows[slots[slot]])
        return found

    total = Counter()
    for roots in np.ndindex(*[len(rows)] * rule.frontier_size):
        for outcome, p in outcomes(roots, tuple(dict.fromkeys(roots)), rule.frontier_size).items():
            total[outcome] += p / len(rows) ** rule.frontier_size
    return total


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_law_is_that_of_algorithm_2_with_the_entering_vertex(structure):
    evidence = Evidence(FALSE_ALARM)
    for shape, rows in TINY.items():
        for name, rule in CASES.items():
            found, expected = draw(graph_of(rows), replace(rule, structure=structure), COUNT), law(rows, rule)
            seen = Counter(
                (tuple(nodes.tolist()), visits)
                for nodes, visits in zip(found.nodes, found.num_visits.tolist(), strict=True)
            )
            assert sum(expected.values()) == pytest.approx(1) and seen.keys() <= expected.keys()
            outcomes = list(expected)
            p = pearson_p([seen[each] for each in outcomes], [COUNT * expected[each] for each in outcomes])
            evidence.add(p, lambda shape=shape, name=name: f"{shape} graph, {name}")
    assert evidence.count == len(TINY) * len(CASES)
    evidence.decide()


@pytest.mark.parametrize("max_degree", [None, 30], ids=["degrees", "degrees cut at 30"])
def test_both_structures_have_one_law(max_degree):
    """Nodes of each degree class per subgraph: two samples of 1500 subgraphs, their means compared (Hotelling).

    It sees a clip at 60 in one of them (p = 7e-12), or a budget that is 1 % smaller (p = 1e-30).
    """
    graph = rmat(13, 16, seed=3)
    classes = torch.log2(graph.in_degrees().clamp(min=1).double()).long().clamp(max=8)
    count, samples = 1500, []
    for structure, seed in zip(STRUCTURES, (0, 1), strict=True):
        rule = SubgraphRule(budget=400, frontier_size=100, structure=structure, max_degree=max_degree, rng_seed=seed)
        nodes = draw(graph, rule, count).nodes
        samples.append(np.stack([torch.bincount(classes[own.long()], minlength=9).numpy() for own in nodes]))
    first, second = samples
    difference = first.mean(0) - second.mean(0)
    covariance = (np.cov(first.T) + np.cov(second.T)) / count
    statistic = float(difference @ np.linalg.solve(covariance, difference))
    evidence = Evidence(FALSE_ALARM)
    evidence.add(chi_square_p(statistic, 9), lambda: f"mean nodes by class {first.mean(0)} and {second.mean(0)}")
    evidence.decide()
