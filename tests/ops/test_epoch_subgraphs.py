"""Subgraphs of clusters and of roots' neighbourhoods, compiled, against their oracle; orders of an epoch."""

import dataclasses
from itertools import chain

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SubgraphRule, SubgraphTables, reference
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.testing.statistics import Evidence, pearson_p
from tests.ops.graphs import random_csc

ISAS = ("scalar", "baseline", "avx2", "avx512")
CLUSTERS = SubgraphRule(method="cluster", clusters_per_batch=3, rng_seed=5)
EGOS = {
    "ego": SubgraphRule(method="ego", depth=2, fanout=3, rng_seed=5),
    "deep": SubgraphRule(method="ego", depth=4, fanout=2),
    "all neighbours": SubgraphRule(method="ego", depth=1, fanout=-1),
    "many neighbours": SubgraphRule(method="ego", depth=2, fanout=40, rng_seed=2**40),
}


def sampling_graph(graph: CSCGraph) -> SamplingGraph:
    return SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)


def ego_nodes(graph, rule, roots, first, count):
    tables = SubgraphTables.of(rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)
    return ops.subgraph_nodes(sampling_graph(graph), rule, tables, first, count)


def cluster_nodes(graph, rule, clusters, first, count, **options):
    tables = SubgraphTables.of_clusters(clusters, graph.orig_ids, graph.indices.dtype, **options)
    return ops.subgraph_nodes(sampling_graph(graph), rule, tables, first, count)


def as_lists(found: ops.SubgraphNodes) -> list[list[int]]:
    return [nodes.tolist() for nodes in found.nodes]


def num_expanded(graph, rule, roots, number):
    """Nodes of an ego network whose neighbours were drawn: all but those of its last hop."""
    if rule.depth == 1:
        return 1
    return len(reference.subgraph_visits(graph, dataclasses.replace(rule, depth=rule.depth - 1), roots, number))


@pytest.fixture(scope="module")
def clusters():
    """Ten clusters of the 60 nodes of random_csc; one has no node."""
    drawn = torch.randint(0, 10, (60,), generator=torch.Generator().manual_seed(4))
    return torch.where(drawn == 6, 5, drawn).int()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", EGOS)
def test_neighbourhoods_are_those_of_the_oracle(name, isa, use_isa):
    use_isa(isa)
    for dtype in (torch.int32, torch.int64):
        graph, rule = random_csc(dtype=dtype), EGOS[name]
        for roots, first in ((torch.arange(60), 118), (torch.tensor([7, 3, 50, 3, 11]), 2**63 + 5)):
            found = ego_nodes(graph, rule, roots, first, 4)
            numbers = range(first, first + 4)
            visits = [reference.subgraph_visits(graph, rule, roots, number) for number in numbers]
            assert as_lists(found) == visits and found.num_visits.tolist() == [len(own) for own in visits]
            assert found.steps.tolist() == [num_expanded(graph, rule, roots, number) for number in numbers]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_clusters_are_those_of_the_oracle(clusters, dtype):
    graph = random_csc(dtype=dtype)
    for first in (0, 2**63 + 5):
        found = cluster_nodes(graph, CLUSTERS, clusters, first, 9)
        numbers = range(first, first + 9)
        visits = [reference.subgraph_visits(graph, CLUSTERS, torch.empty(0), n, clusters) for n in numbers]
        assert as_lists(found) == visits
        assert found.steps.tolist() == [1 if number % 4 == 3 else 3 for number in numbers]


def test_an_epoch_has_every_cluster_once_and_the_next_another_order(clusters):
    found = as_lists(cluster_nodes(random_csc(), CLUSTERS, clusters, 0, 8))
    first, second = list(chain(*found[:4])), list(chain(*found[4:]))
    assert sorted(first) == sorted(second) == list(range(60)) and first != second


def test_all_clusters_are_one_subgraph(clusters):
    found = as_lists(cluster_nodes(random_csc(), dataclasses.replace(CLUSTERS, clusters_per_batch=10), clusters, 0, 2))
    assert [sorted(nodes) for nodes in found] == [list(range(60))] * 2 and found[0] != found[1]


def test_an_epoch_has_every_root_once():
    rule, roots = EGOS["ego"], torch.tensor([7, 3, 50, 11])
    first_nodes = [nodes[0] for nodes in as_lists(ego_nodes(random_csc(), rule, roots, 0, 8))]
    assert sorted(first_nodes[:4]) == sorted(first_nodes[4:]) == [3, 7, 11, 50]


def test_chosen_clusters_alone_are_drawn_from(clusters):
    graph, chosen = random_csc(), torch.tensor([8, 2, 5])
    rule = dataclasses.replace(CLUSTERS, clusters_per_batch=2)
    found = as_lists(cluster_nodes(graph, rule, clusters, 0, 2, chosen=chosen))
    assert sorted(chain(*found)) == torch.isin(clusters, chosen).nonzero().flatten().tolist()
    places = {number: place for place, number in enumerate(chosen.tolist())}
    renumbered = torch.tensor([places.get(number, 3) for number in clusters.tolist()])
    others = cluster_nodes(graph, rule, renumbered, 0, 2, chosen=torch.arange(3))
    assert found == as_lists(others)


@pytest.mark.parametrize("rule", [CLUSTERS, *EGOS.values()], ids=["cluster", *EGOS])
def test_threads_and_numbering_change_nothing(clusters, rule):
    def originals(graph, of_node, threads):
        own = dataclasses.replace(rule, num_threads=threads)
        if rule.method == "cluster":
            found = cluster_nodes(graph, own, of_node, 3, 20)
        else:
            found = ego_nodes(graph, own, torch.arange(60), 3, 20)
        return [graph.orig_ids[nodes.long()].tolist() for nodes in found.nodes]

    graph = random_csc()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))
    new_ids = torch.argsort(order)
    degrees = graph.in_degrees()[order]
    rows = [new_ids[graph.indices[graph.indptr[v] : graph.indptr[v + 1]].long()] for v in order.tolist()]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    other = CSCGraph(indptr, torch.cat(rows).int(), orig_ids=graph.orig_ids[order])
    one = originals(graph, clusters, 1)
    assert one == originals(graph, clusters, 3) == originals(other, clusters[order], 2)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 255, 256, 257, 1000])
def test_orders_are_permutations(count):
    key = reference.stage_key(3, 16, 0, count)
    assert sorted(reference.permutation(key, count)) == list(range(count))


def test_pairs_of_clusters_are_equally_likely():
    evidence = Evidence(false_alarm=1e-4)
    for count, seed in ((5, 0), (9, 1)):
        rule = SubgraphRule(method="cluster", clusters_per_batch=2, rng_seed=seed)
        graph = CSCGraph(torch.zeros(count + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
        batches = -(-count // 2)
        found = as_lists(cluster_nodes(graph, rule, torch.arange(count), 0, 8000 * batches))[::batches]  # one an epoch
        observed = torch.bincount(torch.tensor([a * count + b for a, b in found]), minlength=count**2)
        pairs = [float(observed[a * count + b]) for a in range(count) for b in range(count) if a != b]
        evidence.add(pearson_p(pairs, [8000 / len(pairs)] * len(pairs)), lambda count=count: f"{count} clusters")
    evidence.decide()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"method": "cluster", "clusters_per_batch": 0}, "clusters_per_batch is 0; expected 1 to"),
        ({"method": "ego", "depth": 0}, "depth is 0; expected 1 to"),
        ({"method": "ego", "fanout": 0}, "fanout is 0; expected 1 to"),
        ({"method": "ego", "fanout": -2}, "fanout is -2; expected 1 to"),
    ],
)
def test_rules_that_no_method_has_are_refused(fields, text):
    with pytest.raises(ValueError, match=text):
        SubgraphRule(**fields)


def test_tables_that_do_not_fit_are_refused(clusters):
    graph, rule = random_csc(), dataclasses.replace(CLUSTERS, clusters_per_batch=11)
    with pytest.raises(ValueError, match="clusters_per_batch is 11; expected 1 to 10, the clusters that there are"):
        cluster_nodes(graph, rule, clusters, 0, 1)
    with pytest.raises(ValueError, match="the method reads cluster_nodes, but the tables hold none"):
        ego_nodes(graph, CLUSTERS, torch.arange(3), 0, 1)
    with pytest.raises(ValueError, match="clusters holds -1; expected 0 or more"):
        cluster_nodes(graph, CLUSTERS, clusters - 1, 0, 1)
    with pytest.raises(ValueError, match="chosen has clusters from 3 to 10; expected some of 0 to 9"):
        cluster_nodes(graph, CLUSTERS, clusters, 0, 1, chosen=torch.tensor([3, 10]))
    tables = SubgraphTables.of_clusters(clusters, graph.orig_ids, torch.int32)
    tables.cluster_nodes[4] = 60
    with pytest.raises(ValueError, match="60"):
        ops.subgraph_nodes(sampling_graph(graph), CLUSTERS, tables, 0, 4)
    tables.cluster_offsets[3] = 99
    with pytest.raises(ValueError, match="expected offsets from 0 to 60"):
        ops.subgraph_nodes(sampling_graph(graph), CLUSTERS, tables, 0, 4)


def test_a_source_outside_the_graph_is_refused():
    graph = random_csc()
    graph.indices[:] = 77
    with pytest.raises(ValueError, match="77"):
        ego_nodes(graph, EGOS["ego"], torch.arange(60), 0, 40)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("root", [60, -1])
def test_a_root_outside_the_graph_is_refused(root, isa, use_isa):
    use_isa(isa)
    with pytest.raises(ValueError, match=f"node id {root} is outside 0 to 59"):
        tables = SubgraphTables(torch.tensor([root], dtype=torch.int32))
        ops.subgraph_nodes(sampling_graph(random_csc()), EGOS["ego"], tables, 0, 1)
