"""The nodes of subgraphs, compiled, against their oracle: exact equality; what is refused; what a graph may be like."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import SubgraphRule, SubgraphTables, reference
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.ops.graphs import random_csc

ISAS = ("scalar", "baseline", "avx2", "avx512")
RULES = {
    "frontier": SubgraphRule(budget=90, frontier_size=20, rng_seed=5),
    "frontier of one": SubgraphRule(budget=40, frontier_size=1, rng_seed=5),
    "frontier that is the budget": SubgraphRule(budget=30, frontier_size=30),
    "frontier, degrees cut": SubgraphRule(budget=90, frontier_size=20, max_degree=3),
    "more walkers than roots": SubgraphRule(budget=200, frontier_size=150, rng_seed=2**40),
    "node": SubgraphRule(method="node", budget=70),
    "edge": SubgraphRule(method="edge", budget=50),
    "walk": SubgraphRule(method="walk", budget=61, walk_length=2),
    "long walks": SubgraphRule(method="walk", budget=61, walk_length=20, rng_seed=9),
}


def drawn(graph, rule, roots=None, first=0, count=3):
    """The nodes of some subgraphs by the compiled core; all nodes are roots if none are given."""
    roots = torch.arange(graph.num_nodes) if roots is None else roots
    tables = SubgraphTables.of(rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)
    return ops.subgraph_nodes(SamplingGraph(graph.indptr, graph.indices, graph.orig_ids), rule, tables, first, count)


def expected(graph, rule, roots=None, first=0, count=3):
    roots = torch.arange(graph.num_nodes) if roots is None else roots
    return [reference.subgraph_visits(graph, rule, roots, number) for number in range(first, first + count)]


def assert_equal(graph, rule, roots=None, first=0, count=3):
    found, visits = drawn(graph, rule, roots, first, count), expected(graph, rule, roots, first, count)
    assert [nodes.tolist() for nodes in found.nodes] == [list(dict.fromkeys(own)) for own in visits]
    assert found.num_visits.tolist() == [len(own) for own in visits]
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", RULES)
def test_nodes_are_those_of_the_oracle(name, isa, use_isa):
    use_isa(isa)
    for dtype in (torch.int32, torch.int64):
        graph = random_csc(dtype=dtype)
        assert_equal(graph, RULES[name])
        assert_equal(graph, RULES[name], torch.tensor([7, 3, 50, 3, 11]), first=2**63 + 5)
