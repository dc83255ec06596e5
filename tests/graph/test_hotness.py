"""Scores of nodes: against loops in plain Python, against sampled steps, and what must not change them."""

import math
import random

import numpy as np
import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.reference.hazards import inclusion_probabilities
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.testing.statistics import Evidence, quadratic_p, tail_bound

ONE = 2**hotness.SCORE_BITS
FALSE_ALARM = 1e-9


def draw_graph(num_nodes=60, num_edges=500, *, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    src, dst = torch.from_numpy(rng.integers(0, num_nodes, (2, num_edges)))
    weights = torch.from_numpy(rng.integers(0, 101, num_edges)).float() if weighted else None
    return CSCGraph.from_edge_index(src, dst, num_nodes, weights)


def slow_vip(graph, train_nodes, batch_size, fanouts, weights, replace):
    """Hop by hop with the oracle of a hop; probabilities by math.exp."""
    hazards, total = [0] * graph.num_nodes, [0] * graph.num_nodes
    seed = batch_size / max(len(train_nodes), 1)
    for v in train_nodes.tolist():
        hazards[v] = round(min(32.0, -math.log1p(-seed) if seed < 1 else 32.0) * 2**ops.HAZARD_BITS)
    for fanout in fanouts:
        hazards = inclusion_probabilities(
            graph.indptr, graph.indices, torch.tensor(hazards), fanout, weights=weights, replace=replace
        ).tolist()
        total = [a + b for a, b in zip(total, hazards, strict=True)]
    return torch.tensor([round(-math.expm1(-hazard / 2**ops.HAZARD_BITS) * ONE) for hazard in total])


@pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
@pytest.mark.parametrize("replace", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("batch_size", [3, 100], ids=["some", "all"])
def test_vip_is_the_recurrence_hop_by_hop(weighted, replace, batch_size):
    graph = draw_graph(weighted=weighted)
    train, fanouts = torch.arange(0, 60, 3), (4, 2, 1 if replace else -1)
    method = "weighted" if weighted else "uniform"
    found = hotness.vip(graph, train, batch_size, fanouts, method=method, replace=replace)
    expected = slow_vip(graph, train, batch_size, fanouts, graph.weights, replace)
    assert torch.equal(found, expected)
    assert int(found.max()) <= ONE and len(found.unique()) > 10


def test_labor_picks_an_edge_as_probably_as_uniform_draws_do():
    graph, train = draw_graph(), torch.arange(9)
    assert torch.equal(hotness.vip(graph, train, 3, (4, 2), method="labor"), hotness.vip(graph, train, 3, (4, 2)))


def test_without_train_nodes_nothing_is_wanted():
    assert not hotness.vip(draw_graph(), torch.empty(0, dtype=torch.int64), 3, (4, 2)).any()


def test_vip_refuses_a_method_that_is_none_and_train_nodes_outside_the_graph():
    graph = CSCGraph(torch.tensor([0, 1, 1]), torch.tensor([1]))
    with pytest.raises(ValueError, match="method is 'labour'; expected 'uniform', 'weighted' or 'labor'"):
        hotness.vip(graph, torch.tensor([0]), 1, [2], method="labour")
    with pytest.raises(ValueError, match="train_nodes run from 0 to 2; expected nodes of the graph, 0 to 1"):
        hotness.vip(graph, torch.tensor([0, 2]), 1, [2])


def test_vip_by_weight_needs_weights():
    with pytest.raises(ValueError, match="method is 'weighted' but the graph has no weights"):
        hotness.vip(draw_graph(), torch.arange(3), 3, (4,), method="weighted")


# ---- against sampled steps, where hops and rows are independent

ROOTS, CHILDREN, LEAVES, BATCH, PICKS, STEPS = 8, 3, 6, 2, 2, 4000


def forest(weights=None):
    """ROOTS trees: a root has CHILDREN in-neighbours, each of these has LEAVES ones of its own."""
    children = ROOTS + np.arange(ROOTS * CHILDREN)
    leaves = ROOTS + len(children) + np.arange(len(children) * LEAVES)
    src = np.concatenate([children, leaves])
    dst = np.concatenate([np.arange(ROOTS).repeat(CHILDREN), children.repeat(LEAVES)])
    values = None if weights is None else torch.cat([torch.ones(len(children)), weights.repeat(len(children))])
    return CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), len(src) + ROOTS, values), leaves


def sampled_visits(graph, spec):
    rng = np.random.default_rng(5)
    batches = [torch.from_numpy(rng.permutation(ROOTS)[:BATCH]) for _ in range(STEPS)]
    sampler = NeighborSampler.from_spec(graph, spec)
    return hotness.counts((batch.input_nodes for batch in sampler.sample_many(batches)), graph.num_nodes)


def test_vip_is_the_law_of_uniform_batches_on_trees():
    """Every child of a seed is taken, then PICKS of its LEAVES: means and covariances of a step are known exactly."""
    graph, leaves = forest()
    p, per_root = BATCH / ROOTS * PICKS / LEAVES, CHILDREN * LEAVES
    vip = hotness.vip(graph, torch.arange(ROOTS), BATCH, (CHILDREN, PICKS))
    assert vip[leaves].tolist() == [pytest.approx(p * ONE, abs=1)] * len(leaves)
    visits = sampled_visits(graph, ops.SampleSpec(fanouts=(CHILDREN, PICKS)))[leaves].double().numpy()
    both = np.full((len(leaves), len(leaves)), BATCH * (BATCH - 1) / (ROOTS * (ROOTS - 1)) * (PICKS / LEAVES) ** 2)
    for size, chance in (
        (per_root, BATCH / ROOTS * (PICKS / LEAVES) ** 2),
        (LEAVES, BATCH / ROOTS * PICKS * (PICKS - 1) / (LEAVES * (LEAVES - 1))),
        (1, p),
    ):
        for lo in range(0, len(leaves), size):
            both[lo : lo + size, lo : lo + size] = chance
    evidence = Evidence(FALSE_ALARM)
    evidence.add(quadratic_p(visits, STEPS, np.full(len(leaves), p), both - p * p), lambda: "visits of the leaves")
    for leaf, count in enumerate(visits):
        evidence.add(tail_bound(count, STEPS, p), lambda leaf=leaf: f"visits of leaf {leaf}")
    assert evidence.count == len(leaves) + 1
    evidence.decide()


def test_vip_is_the_law_of_weighted_draws_with_replacement_on_trees():
    weights = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0, 0.0])
    graph, leaves = forest(weights)
    spec = ops.SampleSpec(
        fanouts=(64, PICKS), replace=True, method="weighted"
    )  # 64 draws miss a child in 2e-11 of rows
    expected = BATCH / ROOTS * (1 - (1 - weights.double() / 19) ** PICKS)
    vip = hotness.vip(graph, torch.arange(ROOTS), BATCH, spec.fanouts, method="weighted", replace=True)[leaves]
    assert (vip.double() / ONE).tolist() == pytest.approx(
        expected.repeat(ROOTS * CHILDREN).tolist(), rel=1e-8, abs=1e-9
    )
    evidence = Evidence(FALSE_ALARM)
    for leaf, count in zip(leaves, sampled_visits(graph, spec)[leaves].tolist(), strict=True):
        mean = float(expected[(leaf - leaves[0]) % LEAVES])
        evidence.add(tail_bound(count, STEPS, mean), lambda leaf=leaf: f"visits of leaf {leaf}")
    evidence.decide()


# ---- what does not change a score


def renumbered(graph, new):
    """The graph with node v called new[v], and its original ids kept."""
    src, dst = (
        new[graph.indices.long()],
        new[torch.repeat_interleave(torch.arange(graph.num_nodes), graph.in_degrees())],
    )
    orig_ids = new.argsort()
    rows = sorted(zip(dst.tolist(), orig_ids[src].tolist(), src.tolist(), strict=True))
    indptr = torch.tensor([0, *torch.bincount(dst, minlength=graph.num_nodes).cumsum(0).tolist()])
    return CSCGraph(indptr, torch.tensor([row[2] for row in rows], dtype=torch.int32), orig_ids=orig_ids)


def test_the_set_is_the_same_whatever_the_threads_and_the_numbering():
    graph = draw_graph(400, 5000)
    new = torch.tensor(random.Random(1).sample(range(400), 400))
    moved = renumbered(graph, new)
    train = torch.arange(0, 400, 4)
    scores = {
        "vip": lambda g, train, threads: hotness.vip(g, train, 7, (5, 3), num_threads=threads),
        "degree": lambda g, *_: hotness.degree(g),
        "random": lambda g, *_: hotness.random(hotness.original_ids(g), 3),
    }
    for name, score in scores.items():
        first = score(graph, train, 1)
        assert torch.equal(score(graph, train, 4), first), name
        assert torch.equal(score(moved, new[train], 3)[new], first), name
        for count in (1, 57, 400):
            plain = hotness.hottest(first, hotness.original_ids(graph), count)
            other = hotness.hottest(score(moved, new[train], 2), hotness.original_ids(moved), count)
            assert torch.equal(moved.orig_ids[other], plain), name


# ---- the other scores


def test_counts_are_steps_that_want_a_node():
    batches = [torch.tensor([0, 2], dtype=torch.int32), torch.tensor([2]), torch.tensor([], dtype=torch.int64)]
    assert hotness.counts(iter(batches), 4).tolist() == [1, 0, 2, 0]


def test_the_prior_ranks_what_counts_do_not():
    found = hotness.with_prior(torch.tensor([2, 0, 0, 1]), torch.tensor([0, ONE // 4, ONE // 2, ONE]), 3)
    assert found.tolist() == [2 * ONE, 3 * ONE // 4, 3 * ONE // 2, 4 * ONE]


def test_degrees_are_out_edges_counted_in_chunks(monkeypatch):
    graph = draw_graph(50, 1000)
    monkeypatch.setattr(hotness, "_EDGES_AT_ONCE", 64)
    assert hotness.degree(graph).tolist() == np.bincount(graph.indices, minlength=50).tolist()
    assert torch.equal(hotness.degree(graph, undirected=True), graph.in_degrees())


def test_random_scores_follow_seed_and_original_id():
    ids = torch.tensor([7, 5, 3])
    found = hotness.random(ids, 1)
    assert found[1] == hotness.random(ids[1:], 1)[0] and not torch.equal(found, hotness.random(ids, 2))
    many = hotness.random(torch.arange(10_000), 1)
    assert int(many.min()) >= 1 and int(many.max()) <= ONE and abs(float(many.double().mean()) / ONE - 0.5) < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_hottest_is_the_sorted_list(seed):
    generator = torch.Generator().manual_seed(seed)
    scores, orig_ids = torch.randint(0, 5, (50,), generator=generator), torch.randperm(50, generator=generator)
    able = torch.rand(50, generator=generator) < 0.7
    for candidates in (None, able):
        nodes = [v for v in range(50) if scores[v] > 0 and (candidates is None or candidates[v])]
        expected = sorted(nodes, key=lambda v: (-int(scores[v]), int(orig_ids[v])))
        for count in (0, 1, 7, 30, 60):
            assert hotness.hottest(scores, orig_ids, count, candidates).tolist() == expected[:count]


@pytest.mark.parametrize("seed", range(4))
def test_places_are_those_in_the_list(seed, monkeypatch):
    monkeypatch.setattr(hotness, "_NODES_AT_ONCE", 16)
    generator = torch.Generator().manual_seed(seed)
    most = (3, 3, 40, 2**62)[seed]
    scores, orig_ids = torch.randint(0, most, (90,), generator=generator), torch.randperm(90, generator=generator)
    able = torch.rand(90, generator=generator) < 0.7
    for candidates, count in ((None, 90), (able, 30), (able, 1), (None, 0)):
        nodes = torch.randperm(90, generator=generator)[:count]
        listed = hotness.hottest(scores, orig_ids, 90, candidates).tolist()
        expected = [listed.index(node) if node in listed else -1 for node in nodes.tolist()]
        assert hotness.places(scores, orig_ids, nodes, candidates).tolist() == expected


def test_vip_is_scored_in_chunks_alike(monkeypatch):
    graph = draw_graph(200, 2000)
    whole = hotness.vip(graph, torch.arange(0, 200, 7), 5, (4, 3))
    monkeypatch.setattr(hotness, "_NODES_AT_ONCE", 16)
    assert torch.equal(hotness.vip(graph, torch.arange(0, 200, 7), 5, (4, 3)), whole)


def test_hottest_of_no_nodes_is_none():
    none = torch.empty(0, dtype=torch.int64)
    assert hotness.hottest(none, none, 3).tolist() == []
