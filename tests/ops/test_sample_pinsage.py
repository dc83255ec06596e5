"""sample_pinsage against its oracle, the walks of the application PPR, and the exact law of neighbourhoods."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fastsample_dist import CSCGraph, TransitSampler, ops
from fastsample_dist.ops import PinSAGERule, SamplingGraph, reference
from fastsample_dist.sampling.transit import PPR
from fastsample_dist.testing.statistics import Evidence, pearson_p
from tests.ops.graphs import random_csc

FALSE_ALARM = 1e-6  # of the one statistical test here, all of its statistics together
ISAS = ("scalar", "baseline", "avx2", "avx512")
RULES = {
    "paper": PinSAGERule(),
    "whole walks": PinSAGERule(num_walks=9, walk_length=7, end_probability=0, rng_seed=4),
    "one step": PinSAGERule(end_probability=1.0, num_layers=2),
    "hardly ever ends": PinSAGERule(walk_length=40, end_probability=1e-9, num_neighbors=8, num_layers=1),
    "nearly always ends": PinSAGERule(end_probability=1 - 1e-9),
    "all visited": PinSAGERule(num_walks=50, num_neighbors=10_000, num_layers=1, first_hop=2),
    "many walks": PinSAGERule(num_walks=1100, walk_length=2, num_neighbors=3, num_layers=1),
    "one": PinSAGERule(num_walks=1, walk_length=1, num_neighbors=1, rng_seed=2**63 - 1),
}


def sampled(graph, rule, seeds, step=0):
    """One mini-batch: hops with edge weights."""
    view = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    return ops.sample_pinsage(view, rule, [torch.as_tensor(seeds).to(graph.indices.dtype)], step)[0]


def tensors(hops):
    return [hops.nodes, *hops.indptrs, *hops.indices, *hops.edge_weights]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def expected(graph, rule, seeds, step=0):
    hops, weights = reference.sample_pinsage(graph, torch.as_tensor(seeds).to(graph.indices.dtype), rule, step)
    return [hops.nodes, *hops.indptrs, *hops.indices, *weights]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", RULES)
def test_hops_are_those_of_the_oracle(name, isa, use_isa):
    use_isa(isa)
    rule = RULES[name]
    for dtype, given in ((torch.int32, True), (torch.int64, True), (torch.int32, False)):
        graph = random_csc(dtype=dtype)
        graph = graph if given else CSCGraph(graph.indptr, graph.indices)
        found = sampled(graph, rule, [3, 59, 1, 20], 5)
        assert same(tensors(found), expected(graph, rule, [3, 59, 1, 20], 5)), (dtype, given)
        assert found.edge_ids == []


def neighbours(graph, rule, node, **options):
    """Of a seed: {node: weight}, in their order."""
    hops = sampled(graph, replace(rule, num_layers=1), [node], **options)
    return dict(zip(hops.nodes[hops.indices[0].long()].tolist(), hops.edge_weights[0].tolist(), strict=True))


def csc(*edges, num_nodes, dtype=torch.int32):
    src, dst = (torch.tensor(column, dtype=torch.int64) for column in zip(*edges, strict=True))
    graph = CSCGraph.from_edge_index(src, dst, num_nodes)
    return CSCGraph(graph.indptr, graph.indices.to(dtype))


@pytest.mark.parametrize("isa", ISAS)
def test_walks_that_come_nowhere_give_no_edges(isa, use_isa):
    use_isa(isa)
    graph = csc((0, 0), (1, 2), (2, 1), num_nodes=4)  # a self-loop alone; a pair; an isolated node
    rule = PinSAGERule(end_probability=0)
    assert neighbours(graph, rule, 0) == {} and neighbours(graph, rule, 3) == {}
    assert neighbours(graph, rule, 1) == {2: 1.0}  # 1 -> 2 -> 1 -> 2: the start does not count
    hops = sampled(graph, rule, [0, 3])
    assert hops.nodes.tolist() == [0, 3] and all(indices.numel() == 0 for indices in hops.indices)


@pytest.mark.parametrize("isa", ISAS)
def test_a_walk_ends_where_there_is_no_in_neighbour(isa, use_isa):
    use_isa(isa)
    graph = csc((1, 0), (2, 1), num_nodes=3)  # 0 <- 1 <- 2
    found = neighbours(graph, PinSAGERule(num_walks=3, walk_length=100, end_probability=0), 0)
    assert found == {1: 0.5, 2: 0.5}  # equally many visits: the smaller id first
    assert list(found) == [1, 2]


def test_parallel_edges_are_taken_as_often_as_there_are():
    graph = csc(*[(1, 0)] * 9, (2, 0), num_nodes=3)
    rule = PinSAGERule(num_walks=10_000, walk_length=1)
    share = neighbours(graph, rule, 0)[1]
    assert abs(share - 0.9) < 0.02  # 6.6 standard deviations


def test_ties_are_broken_by_original_ids():
    edges = [(node, 0) for node in (1, 2, 3)]
    graph = csc(*edges, num_nodes=4)
    turned = CSCGraph(graph.indptr, graph.indices, orig_ids=torch.tensor([0, 3, 2, 1]))
    rule = PinSAGERule(num_walks=300, walk_length=1, num_neighbors=3)
    for own in (graph, turned):
        found = neighbours(own, rule, 0)
        rank = own.orig_ids.tolist() if own.orig_ids is not None else [0, 1, 2, 3]
        assert list(found.items()) == sorted(found.items(), key=lambda visit: (-visit[1], rank[visit[0]]))
    kept = neighbours(csc((1, 0), (2, 1), num_nodes=3), PinSAGERule(num_neighbors=1, end_probability=0), 0)
    assert kept == {1: 1.0}  # of equally many visits; weights are shares of what is kept


def test_original_ids_may_be_long():
    """From 2^55 on few visits are not ranked in one word."""
    graph = random_csc(dtype=torch.int32)
    for first in (2**55 - 30, 2**60):  # around and above
        far = CSCGraph(graph.indptr, graph.indices, orig_ids=torch.arange(graph.num_nodes) + first)
        assert same(tensors(sampled(far, PinSAGERule(), [3, 1, 20])), expected(far, PinSAGERule(), [3, 1, 20]))


def test_no_seeds_and_no_nodes():
    for graph in (random_csc(), CSCGraph(torch.tensor([0]), torch.tensor([], dtype=torch.int64))):
        hops = sampled(graph, PinSAGERule(), torch.empty(0))
        assert hops.nodes.numel() == 0 and [p.tolist() for p in hops.indptrs] == [[0]] * 3


def test_threads_change_nothing():
    graph, seeds = random_csc(3000, 20_000, dtype=torch.int64), torch.arange(2500)
    one = sampled(graph, PinSAGERule(num_threads=1, rng_seed=3), seeds, 7)
    for threads in (2, 5):
        assert same(tensors(sampled(graph, PinSAGERule(num_threads=threads, rng_seed=3), seeds, 7)), tensors(one))


def test_many_batches_are_those_of_their_steps():
    graph, rule = random_csc(), PinSAGERule(num_threads=3)
    view = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    lists = [torch.tensor(own, dtype=torch.int32) for own in ([5, 1], [2], [], [7, 8, 9], [1])]
    many = ops.sample_pinsage(view, rule, lists, 11)
    assert all(
        same(tensors(a), tensors(sampled(graph, rule, own, 11 + i)))
        for i, (a, own) in enumerate(zip(many, lists, strict=True))
    )


def test_walks_are_those_of_the_application_ppr():
    graph, rule, step = random_csc(), PinSAGERule(num_walks=6, walk_length=4, num_neighbors=99, num_layers=2), 3
    walks = TransitSampler(graph, PPR(stop=rule.end_probability, weighted=False), rule.rng_seed)
    hops = sampled(graph, rule, range(graph.num_nodes), step)
    for hop in range(2):
        numbers = torch.arange(rule.num_walks) + rule.num_walks * hop
        ids = graph.orig_ids[:, None] + graph.num_nodes * numbers
        roots = torch.arange(graph.num_nodes)[:, None].expand_as(ids)
        paths = walks.sample(roots.reshape(-1), step, ids.reshape(-1)).vertices
        for node in range(graph.num_nodes):
            own = paths[node * rule.num_walks : (node + 1) * rule.num_walks]
            cut = [vertex for path in own for vertex in path.tolist()[1 : 1 + rule.walk_length]]
            visits = Counter(vertex for vertex in cut if vertex not in (-1, node))
            span = slice(int(hops.indptrs[hop][node]), int(hops.indptrs[hop][node + 1]))
            found = zip(hops.nodes[hops.indices[hop][span].long()].tolist(), hops.edge_weights[hop][span], strict=True)
            total = sum(visits.values())
            assert {vertex: round(float(share) * total) for vertex, share in found} == dict(visits)


def test_neighbourhoods_have_their_law():
    """Chi-square of whole neighbourhoods, weights included, over copies of a graph and steps; false alarm 1e-6."""
    edges = [(1, 0), (1, 0), (2, 0), (3, 0), (0, 1), (2, 1), (0, 2), (2, 2), (4, 2), (1, 3), (0, 3)]
    size, copies, steps = 6, 400, 50
    graph = csc(*edges, num_nodes=size)
    offsets = torch.cat([graph.indptr[:-1] + i * graph.num_edges for i in range(copies)])
    sources = torch.cat([graph.indices + i * size for i in range(copies)])
    view = SamplingGraph(torch.cat([offsets, torch.tensor([sources.numel()])]), sources)
    evidence = Evidence(FALSE_ALARM)
    for rule in (
        PinSAGERule(num_walks=1, walk_length=3, num_layers=1, rng_seed=1),
        PinSAGERule(num_walks=2, walk_length=2, num_neighbors=2, num_layers=1, end_probability=0.3, rng_seed=2),
    ):
        seen = [Counter() for _ in range(size)]
        for hops in ops.sample_pinsage(view, rule, [torch.arange(size * copies, dtype=torch.int32)] * steps):
            for node, found in enumerate(outcomes(hops, size)):
                seen[node % size][found] += 1
        for node in range(4):
            law = reference.pinsage_law(graph, rule, node)
            assert abs(sum(law.values()) - 1) < 1e-12
            chances = Counter()
            for found, chance in law.items():  # visits of 2 and 2 weigh as 1 and 1 do
                total = sum(visits for _, visits in found)
                chances[tuple((own, round(visits / total, 5)) for own, visits in found)] += chance
            assert set(seen[node]) <= set(chances)
            observed = [seen[node][found] for found in chances]
            likely = [copies * steps * chance for chance in chances.values()]
            evidence.add(pearson_p(observed, likely), lambda rule=rule, node=node: f"{rule}, node {node}")
    assert evidence.count == 8
    evidence.decide()


def outcomes(hops, size):
    """Every destination's (node in its copy of the graph, weight), in order."""
    nodes, weights = (hops.nodes[hops.indices[0].long()] % size).tolist(), hops.edge_weights[0].tolist()
    ends = hops.indptrs[0].tolist()
    for begin, end in pairwise(ends):
        yield tuple((nodes[k], round(weights[k], 5)) for k in range(begin, end))


@pytest.mark.parametrize("isa", ISAS)
def test_sources_that_are_no_nodes_are_refused(isa, use_isa):
    use_isa(isa)
    for bad in (7, -3):
        graph = SamplingGraph(torch.tensor([0, 1, 2]), torch.tensor([1, bad], dtype=torch.int32))
        with pytest.raises(ValueError, match=f"sample_pinsage.*source id {bad}"):
            ops.sample_pinsage(graph, PinSAGERule(end_probability=0), [torch.tensor([0], dtype=torch.int32)])


def test_refusals():
    graph = random_csc()
    for seeds, said in (([5, 7, 5], "node 5"), ([60], "60"), ([-1], "-1")):
        with pytest.raises(ValueError, match=f"sample_pinsage.*{said}"):
            sampled(graph, PinSAGERule(), seeds)
    with pytest.raises(ValueError, match="seeds is torch.int64 but indices is torch.int32"):
        ops.sample_pinsage(SamplingGraph(graph.indptr, graph.indices), PinSAGERule(), [torch.tensor([1])])
    with pytest.raises(ValueError, match="seeds is on meta but cpu samples"):
        ops.sample_pinsage(SamplingGraph(graph.indptr, graph.indices), PinSAGERule(), [graph.indices[:1].to("meta")])
    with pytest.raises(ValueError, match="step is -1"):
        sampled(graph, PinSAGERule(), [1], -1)
    with pytest.raises(ValueError, match=r"2000 nodes, 16777216 walks and 2147483647 hops; expected less than 2\^63"):
        sampled(random_csc(2000), PinSAGERule(num_walks=2**24, walk_length=1, first_hop=2**31 - 2, num_layers=1), [1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_walks": 0}, "num_walks is 0; expected an integer >= 1"),
        ({"walk_length": 2.5}, "walk_length is 2.5"),
        ({"num_neighbors": True}, "num_neighbors is True"),
        ({"num_layers": -1}, "num_layers is -1"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"end_probability": 1.5}, "end_probability is 1.5"),
        ({"end_probability": float("nan")}, "end_probability is nan"),
        ({"end_probability": "0.5"}, "end_probability is '0.5'"),
        ({"rng_seed": 2**63}, "rng_seed is 9223372036854775808"),
        (
            {"num_walks": 2**20, "walk_length": 17},
            "1048576 walks of 17 steps; expected at most 16777216 steps per node",
        ),
    ],
)
def test_rules_that_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        PinSAGERule(**options)
