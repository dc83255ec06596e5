"""The paper's Dashboard, compiled, against its oracle: equality of nodes, visits, probes, cleanups and growths."""

import dataclasses
import math

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SubgraphRule, SubgraphTables, reference
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.ops.graphs import random_csc

ISAS = ("scalar", "baseline", "avx2", "avx512")
PLAIN = SubgraphRule(structure="dashboard", budget=120, frontier_size=20, rng_seed=5)
RULES = {
    "plain": PLAIN,
    "a table that is nearly full": dataclasses.replace(PLAIN, eta=1.01),
    "a large table": dataclasses.replace(PLAIN, eta=7.5),
    "one walker": dataclasses.replace(PLAIN, budget=60, frontier_size=1),
    "degrees cut": dataclasses.replace(PLAIN, max_degree=3),
    "roots alone": dataclasses.replace(PLAIN, budget=20),
    "more walkers than roots": dataclasses.replace(PLAIN, budget=200, frontier_size=150, rng_seed=2**40),
}


def drawn(graph, rule, roots=None, first=0, count=3):
    roots = torch.arange(graph.num_nodes) if roots is None else roots
    tables = SubgraphTables.of(rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)
    return ops.subgraph_nodes(SamplingGraph(graph.indptr, graph.indices, graph.orig_ids), rule, tables, first, count)


def assert_equal(graph, rule, roots=None, first=0, count=3):
    found, numbers = drawn(graph, rule, roots, first, count), range(first, first + count)
    roots = torch.arange(graph.num_nodes) if roots is None else roots
    visits = [reference.subgraph_visits(graph, rule, roots, number) for number in numbers]
    assert [nodes.tolist() for nodes in found.nodes] == [list(dict.fromkeys(own)) for own in visits]
    assert found.num_visits.tolist() == [len(own) for own in visits]
    assert found.steps.tolist() == [len(own) - rule.frontier_size for own in visits]
    counts = [reference.dashboard_counts(graph, rule, roots, number) for number in numbers]
    for name in ("probes", "cleanups", "growths"):
        assert getattr(found, name).tolist() == [own[name] for own in counts], name
    return found


def hubs(num_nodes: int = 40, seed: int = 1) -> CSCGraph:
    """A graph in which three nodes have most of the in-edges: runs of entries longer than any vector."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_nodes, (900,), generator=generator)
    dst = torch.where(torch.arange(900) < 700, torch.arange(900) % 3, src.flip(0))
    return CSCGraph.from_edge_index(src, dst, num_nodes)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", RULES)
def test_nodes_and_counts_are_those_of_the_oracle(name, isa, use_isa):
    use_isa(isa)
    assert_equal(random_csc(dtype=torch.int64), RULES[name], torch.tensor([7, 3, 50, 3, 11]), first=2**63 + 5)
    assert_equal(random_csc(), RULES[name])
    assert_equal(hubs(), RULES[name])


@pytest.mark.parametrize("isa", ISAS[1:])
def test_probes_whose_words_are_rejected_are_those_of_the_definition(isa, use_isa):
    """A table of 1 to 2 million entries rejects about one probe of 5,000, and there are more than 50,000."""
    sources = torch.randint(0, 20_000, (1_200_000,), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    graph = CSCGraph(60 * torch.arange(20_001), sources)
    rule = dataclasses.replace(PLAIN, frontier_size=17_000, budget=57_000)
    use_isa("scalar")
    expected = drawn(graph, rule, count=1)
    assert int(expected.probes) > 50_000
    use_isa(isa)
    found = drawn(graph, rule, count=1)
    assert torch.equal(found.nodes[0], expected.nodes[0])
    assert (found.probes, found.cleanups) == (expected.probes, expected.cleanups)


def test_tables_are_cleaned_up_and_grow():
    found = assert_equal(hubs(), dataclasses.replace(PLAIN, eta=1.1, budget=300))
    assert (found.cleanups > 5).all() and (found.growths > 0).any()
    assert (found.probes >= found.steps).all()


def test_a_subgraph_ends_where_all_walkers_are_at_sinks():
    graph = CSCGraph.from_edge_index(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), 6)
    found = assert_equal(graph, dataclasses.replace(PLAIN, frontier_size=4, budget=50), count=10)
    assert (found.num_visits < 50).all()


def test_a_graph_without_edges_has_its_roots_alone():
    graph = CSCGraph(torch.zeros(8, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    assert assert_equal(graph, PLAIN).num_visits.tolist() == [20, 20, 20]


def test_threads_change_nothing():
    one, three = (drawn(hubs(), dataclasses.replace(PLAIN, num_threads=threads), count=30) for threads in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one.nodes, three.nodes, strict=True))
    assert torch.equal(one.probes, three.probes)


def test_hops_and_roots_are_those_of_a_frontier_with_sums():
    graph = CSCGraph.from_edge_index(torch.tensor([1, 0, 0, 2]), torch.tensor([0, 1, 2, 2]), 3)
    rules = [dataclasses.replace(PLAIN, frontier_size=1, budget=30, structure=name) for name in ("sums", "dashboard")]
    first, second = (drawn(graph, rule, count=20) for rule in rules)  # one walker: nothing is left to pops
    assert all(torch.equal(a, b) for a, b in zip(first.nodes, second.nodes, strict=True))


@pytest.mark.parametrize("eta", [1.0, 0.0, -2.0, 1001.0, math.nan, math.inf])
def test_an_eta_out_of_range_is_refused(eta):
    with pytest.raises(ValueError, match="eta is .*; expected a number above 1, at most 1000"):
        SubgraphRule(structure="dashboard", eta=eta)
    SubgraphRule(structure="sums", eta=eta)


def test_more_entries_than_a_table_has_are_refused():
    indptr = torch.tensor([0, 2**31])  # a row of which no edge is read
    graph = SamplingGraph(torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    graph.view.indptr, graph.view.num_edges = indptr.data_ptr(), 2**31
    rule, tables = dataclasses.replace(PLAIN, frontier_size=2, budget=3), SubgraphTables(torch.zeros(1).int())
    with pytest.raises(ValueError, match="an entry of the dashboard each; pass max_degree, or structure sums"):
        ops.subgraph_nodes(graph, rule, tables, 0, 1)


def test_a_walker_that_comes_to_more_entries_than_a_table_has_is_refused():
    """From node 0, whose one neighbour is node 1; behind it are many nodes, so that the table begins small."""
    indptr = torch.full((2**20 + 1,), 2**31 + 1)
    indptr[:2] = torch.tensor([0, 1])
    graph = SamplingGraph(torch.zeros_like(indptr), torch.ones(1, dtype=torch.int32))
    graph.view.indptr, graph.view.num_edges = indptr.data_ptr(), 2**31 + 1
    rule, tables = dataclasses.replace(PLAIN, frontier_size=1, budget=3), SubgraphTables(torch.zeros(1).int())
    with pytest.raises(ValueError, match="an entry of the dashboard each; pass max_degree, or structure sums"):
        ops.subgraph_nodes(graph, rule, tables, 0, 1)
