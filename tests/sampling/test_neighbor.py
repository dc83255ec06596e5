"""NeighborSampler's mini-batches: structure, and what it refuses."""

import pytest
import torch

from fastsample_dist import CSCGraph, NeighborSampler
from fastsample_dist.ops import reference
from tests.ops.graphs import random_csc


def test_mfgs_run_from_the_input_side_to_the_seed_side():
    batch = NeighborSampler(random_csc(), fanouts=[4, 3, 2], rng_seed=9).sample([5, 1, 30], step=6)
    assert batch.seeds.tolist() == [5, 1, 30]
    assert torch.equal(batch.mfgs[-1].dst_nodes, batch.seeds)
    assert torch.equal(batch.mfgs[0].src_nodes, batch.input_nodes)
    assert all(torch.equal(a.dst_nodes, b.src_nodes) for a, b in zip(batch.mfgs, batch.mfgs[1:], strict=False))


def test_a_batch_equals_the_oracle():
    graph = random_csc()
    sampler = NeighborSampler(graph, fanouts=[4, 3], rng_seed=9)
    batch = sampler.sample(torch.tensor([5, 1, 30]), step=6)
    hops = reference.sample_mfg(graph, torch.tensor([5, 1, 30], dtype=torch.int32), sampler.spec, step=6)
    assert torch.equal(batch.input_nodes, hops.nodes)
    assert all(torch.equal(mfg.indptr, p) for mfg, p in zip(batch.mfgs, reversed(hops.indptrs), strict=True))
    assert all(torch.equal(mfg.indices, e) for mfg, e in zip(batch.mfgs, reversed(hops.indices), strict=True))


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
        ({"fanouts": [2], "weighted": True}, "weighted is True; this release samples neighbours uniformly only"),
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
        ([0.5], "expected integer node ids"),
    ],
)
def test_wrong_seeds_are_refused(seeds, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(random_csc(), [2]).sample(torch.tensor(seeds))
