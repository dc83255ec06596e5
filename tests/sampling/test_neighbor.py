"""NeighborSampler's mini-batches: structure, and what it refuses."""

import pytest
import torch

from fastsample_dist import CSCGraph, LaborSampler, NeighborSampler, SampleSpec
from fastsample_dist.ops import reference
from tests.ops.graphs import random_csc


def test_mfgs_run_from_the_input_side_to_the_seed_side():
    batch = NeighborSampler(random_csc(), fanouts=[4, 3, 2], rng_seed=9).sample([5, 1, 30], step=6)
    assert batch.seeds.tolist() == [5, 1, 30]
    assert torch.equal(batch.mfgs[-1].dst_nodes, batch.seeds)
    assert torch.equal(batch.mfgs[0].src_nodes, batch.input_nodes)
    assert all(torch.equal(a.dst_nodes, b.src_nodes) for a, b in zip(batch.mfgs, batch.mfgs[1:], strict=False))


def test_a_batch_equals_the_oracle():
    graph, spec = random_csc(), SampleSpec(fanouts=(4, 3), rng_seed=9)
    batch = NeighborSampler(graph, fanouts=[4, 3], rng_seed=9).sample(torch.tensor([5, 1, 30]), step=6)
    hops = reference.sample_mfg(graph, torch.tensor([5, 1, 30], dtype=torch.int32), spec, 6)
    assert torch.equal(batch.input_nodes, hops.nodes)
    assert all(torch.equal(mfg.indptr, p) for mfg, p in zip(batch.mfgs, reversed(hops.indptrs), strict=True))
    assert all(torch.equal(mfg.indices, e) for mfg, e in zip(batch.mfgs, reversed(hops.indices), strict=True))


def weighted_csc():
    graph = random_csc()
    weights = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(6))
    return CSCGraph(graph.indptr, graph.indices, weights, graph.orig_ids)


def test_weighted_and_labor_samplers_are_those_of_their_specs():
    graph, seeds = weighted_csc(), [5, 1, 30, 8]
    pairs = [
        (NeighborSampler(graph, [4, 3], weighted=True, rng_seed=9), {"method": "weighted"}),
        (NeighborSampler(graph, [4, 3], True, True, 9), {"method": "weighted", "replace": True}),
        (LaborSampler(graph, [4, 3], rng_seed=9), {"method": "labor"}),
        (LaborSampler(graph, [4, 3], 9, None, True), {"method": "labor", "layer_dependency": True}),
    ]
    for sampler, options in pairs:
        other = NeighborSampler.from_spec(graph, SampleSpec(fanouts=(4, 3), rng_seed=9, **options))
        assert same_batches(sampler.sample(seeds, 2), other.sample(seeds, 2))


def same_batches(left, right):
    return torch.equal(left.input_nodes, right.input_nodes) and all(
        torch.equal(a.indptr, b.indptr) and torch.equal(a.indices, b.indices)
        for a, b in zip(left.mfgs, right.mfgs, strict=True)
    )


def test_sample_many_gives_the_batches_of_sample():
    sampler = NeighborSampler(random_csc(num_edges=3000), [4, 3], num_threads=3)
    lists = [[5, 1, 30], [2], [], [7, 8, 9, 10], [1]]
    many = sampler.sample_many(lists, first_step=11)
    assert all(
        same_batches(a, sampler.sample(seeds, 11 + i)) for i, (a, seeds) in enumerate(zip(many, lists, strict=True))
    )
    assert [batch.step for batch in many] == [11, 12, 13, 14, 15]


def test_sample_many_of_nothing_is_nothing():
    assert NeighborSampler(random_csc(), [4]).sample_many([]) == []


def test_sample_many_names_the_first_refused_batch():
    sampler = NeighborSampler(random_csc(), [4], num_threads=4)
    with pytest.raises(ValueError, match="seeds holds node 2 at positions 0 and 1"):
        sampler.sample_many([[1], [2, 2], [3, 3], [4]])


def test_edge_ids_lead_to_the_edges():
    graph = weighted_csc()
    spec = SampleSpec(fanouts=(4, 3), method="weighted", edge_ids=True)
    for mfg in NeighborSampler.from_spec(graph, spec).sample([5, 1, 30]).mfgs:
        dst = torch.arange(mfg.num_dst).repeat_interleave(mfg.indptr.diff())
        assert torch.equal(graph.indices[mfg.edge_ids], mfg.src_nodes[mfg.indices])
        rows = torch.searchsorted(graph.indptr, mfg.edge_ids, right=True) - 1
        assert torch.equal(rows, mfg.dst_nodes[dst].long())


def test_labor_takes_fewer_nodes_than_uniform_sampling():
    """The point of it: 200 destinations that share 100 neighbours of 300."""
    src, dst = torch.arange(300).repeat(200), torch.arange(300, 500).repeat_interleave(300)
    graph = CSCGraph.from_edge_index(src, dst, 500)
    seeds = torch.arange(300, 500)
    uniform = NeighborSampler(graph, [10]).sample(seeds)
    labor = LaborSampler(graph, [10]).sample(seeds)
    assert labor.input_nodes.numel() < 200 + 30 and uniform.input_nodes.numel() > 200 + 250


def test_destinations_carry_their_original_ids():
    graph = random_csc()
    batch = NeighborSampler(graph, fanouts=[4, 3]).sample([5, 1])
    assert all(torch.equal(mfg.dst_orig_ids, graph.orig_ids[mfg.dst_nodes.long()]) for mfg in batch.mfgs)


def test_without_orig_ids_a_node_is_its_own_original():
    graph = CSCGraph(random_csc().indptr, random_csc().indices)
    batch = NeighborSampler(graph, fanouts=[3]).sample([7])
    assert batch.mfgs[0].dst_orig_ids.tolist() == [7]


def test_relabelling_the_graph_does_not_change_the_sample():
    """The same graph under permuted ids, rows in canonical order: equal batches by original id."""
    graph = random_csc(num_edges=3000)
    plain = CSCGraph(graph.indptr, graph.indices)
    new_of_old = torch.randperm(60, generator=torch.Generator().manual_seed(4))
    old_of_new = new_of_old.argsort()
    rows = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in old_of_new.tolist()]
    indptr = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()])
    relabelled = CSCGraph(indptr, new_of_old[torch.cat(rows).long()].int(), orig_ids=old_of_new)
    seeds = torch.tensor([3, 44, 17])
    left = NeighborSampler(plain, [5, 5, 5], rng_seed=3).sample(seeds, step=8)
    right = NeighborSampler(relabelled, [5, 5, 5], rng_seed=3).sample(new_of_old[seeds], step=8)
    assert torch.equal(left.input_nodes.long(), old_of_new[right.input_nodes.long()])
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(left.mfgs, right.mfgs, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": []}, "fanouts is empty; pass one fanout per model layer"),
        ({"fanouts": [-3]}, "fanouts holds -3"),
        ({"fanouts": [2], "weighted": True}, "the graph has no edge weights"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(random_csc(), **options)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 1], "node 1 at positions 0 and 1"),
        ([60], "seeds holds node ids from 60 to 60; expected 0 to 59"),
        ([2**32], "seeds holds node ids from 4294967296 to 4294967296; expected 0 to 59"),
        ([0.5], "expected integer node ids"),
    ],
)
def test_wrong_seeds_are_refused(seeds, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(random_csc(), [2]).sample(torch.tensor(seeds))
