"""PinSAGESampler's mini-batches: structure, relabelled graphs, ranks, and what is refused."""

import pytest
import torch

from fastsample_dist import CSCGraph, DistData, DistLoader, PinSAGESampler
from fastsample_dist.ops import PinSAGERule, reference
from fastsample_dist.sampling.sampler import can_sample_many, payload_exchanges
from fastsample_dist.testing import run_distributed
from tests.ops.graphs import random_csc
from tests.parts import draw_partition

SEED, BATCH = 2**35 + 1, 23


def columns_of(batch, orig_ids=None):
    """All that is sampled, nodes by original id."""
    nodes = [batch.seeds, *(mfg.src_nodes for mfg in batch.mfgs)]
    named = [own.long() if orig_ids is None else orig_ids[own.long()] for own in nodes]
    return named + [column for mfg in batch.mfgs for column in (mfg.indptr, mfg.indices, mfg.edge_weights)]


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a.long(), b.long()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_batch_equals_the_oracle(dtype):
    graph = random_csc(dtype=dtype)
    batch = PinSAGESampler(graph, 5, 2, 4, 2, 0.25, 9).sample([5, 1, 30], step=6)
    rule = PinSAGERule(num_walks=5, walk_length=2, num_neighbors=4, num_layers=2, end_probability=0.25, rng_seed=9)
    hops, weights = reference.sample_pinsage(graph, torch.tensor([5, 1, 30], dtype=dtype), rule, 6)
    assert torch.equal(batch.input_nodes, hops.nodes) and batch.draw.rng_seed == 9 and batch.step == 6
    for mfg, indptr, indices, own in zip(batch.mfgs[::-1], hops.indptrs, hops.indices, weights, strict=True):
        assert torch.equal(mfg.indptr, indptr) and torch.equal(mfg.indices, indices)
        assert torch.equal(mfg.edge_weights, own) and mfg.edge_ids is None and not mfg.includes_dst
    assert all(torch.equal(a.dst_nodes, b.src_nodes) for a, b in zip(batch.mfgs, batch.mfgs[1:], strict=False))


def test_it_samples_many_batches_and_asks_nobody():
    sampler = PinSAGESampler(random_csc(num_edges=3000), num_threads=3, rng_seed=SEED)
    assert can_sample_many(sampler) and payload_exchanges(sampler) == 0
    lists = [[5, 1, 30], [2], [], [7, 8, 9, 10], [1]]
    for i, (batch, seeds) in enumerate(zip(sampler.sample_many(lists, first_step=11), lists, strict=True)):
        assert same(columns_of(batch), columns_of(sampler.sample(seeds, 11 + i)))


def test_a_relabelled_graph_gives_the_same_by_original_ids():
    generator = torch.Generator().manual_seed(4)
    src, dst = torch.randint(0, 80, (2, 600), generator=generator)
    graph = CSCGraph.from_edge_index(src, dst, 80)
    orig_ids = torch.randperm(80, generator=generator)
    new = torch.argsort(orig_ids)
    rows = [new[graph.indices[graph.indptr[v] : graph.indptr[v + 1]].long()] for v in orig_ids.tolist()]
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    turned = CSCGraph(indptr, torch.cat(rows).to(graph.indices.dtype), orig_ids=orig_ids)
    seeds = torch.tensor([3, 70, 12, 9])
    batch = PinSAGESampler(turned, rng_seed=SEED).sample(new[seeds], 8)
    assert same(columns_of(batch, orig_ids), columns_of(PinSAGESampler(graph, rng_seed=SEED).sample(seeds, 8)))


def test_a_hop_alone_is_that_of_the_batch():
    sampler = PinSAGESampler(random_csc(), rng_seed=5)
    batch = sampler.sample([4, 8], 3)
    for number, mfg in enumerate(reversed(batch.mfgs)):
        [own] = sampler.hop(number).sample(mfg.dst_nodes, 3).mfgs
        assert torch.equal(own.src_nodes, mfg.src_nodes) and torch.equal(own.indices, mfg.indices)
        assert torch.equal(own.edge_weights, mfg.edge_weights)


def run_rank(ctx, path, prefetch):
    """An epoch's batches, and the purposes of the exchanges."""
    data = DistData.load(path, ctx)
    loader = DistLoader(
        data, sampler=PinSAGESampler(data.graph, rng_seed=SEED), batch_size=BATCH, prefetch=prefetch, rng_seed=SEED
    )
    found = [(mb.step, columns_of(mb, data.graph.orig_ids)) for mb in loader]
    with pytest.raises(ValueError, match="num_walks") as refusal:
        DistLoader(data, sampler=PinSAGESampler(data.graph, 4 + ctx.rank), batch_size=BATCH)
    return found, set(ctx.comm.stats()), str(refusal.value)


def test_batches_of_ranks_are_those_of_one_process(tmp_path):
    drawn = draw_partition(tmp_path, 2)
    oracle = PinSAGESampler(drawn.graph, rng_seed=SEED)
    for prefetch in (0, 2):
        for found, purposes, refusal in run_distributed(2, run_rank, args=(drawn.path, prefetch)):
            assert len(found) > 1 and not {"sample_ids", "sample_reply"} & purposes
            for step, columns in found:
                assert same(columns, columns_of(oracle.sample(columns[0], step)))
            assert "ranks differ in sampler" in refusal


def test_offsets_that_walks_would_follow_out_of_the_graph_are_refused():
    graph = random_csc()
    for bad in (10**9, -1):
        indptr = graph.indptr.clone()
        indptr[20] = bad
        with pytest.raises(ValueError, match=f"indptr decreases at node {20 if bad > 0 else 19}"):
            PinSAGESampler(CSCGraph(indptr, graph.indices))


def test_refusals():
    with pytest.raises(ValueError, match="num_layers is 0"):
        PinSAGESampler(random_csc(), num_layers=0)
    with pytest.raises(ValueError, match="node ids from 0 to 60"):
        PinSAGESampler(random_csc()).sample([0, 60])


def test_something_that_is_no_graph_is_refused():
    with pytest.raises(ValueError, match=r"^graph is a NoneType; expected a CSCGraph\.$"):
        PinSAGESampler(None)
