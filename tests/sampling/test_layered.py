"""The hop loop: over a local source it returns the bits of the fused call, over owners those of both."""

import pytest
import torch

from fastsample_dist import CSCGraph, NeighborSampler, SampleSpec, ops
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.sampling.layered import LayeredSampler, LocalHops, Picks
from fastsample_dist.sampling.vanilla import VanillaSampler
from fastsample_dist.testing import conformance_graph, run_distributed

GRAPH = conformance_graph()  # 28 nodes, weights, original ids far apart
RANGES = torch.tensor([0, 11, 11, 28])  # a rank that owns nothing
FIELDS = ("indptr", "indices", "src_nodes", "edge_ids", "edge_values", "dst_orig_ids")
METHODS = {
    "uniform": {},
    "replace": {"replace": True},
    "weighted": {"method": "weighted"},
    "labor": {"method": "labor"},
    "labor, one variate per step": {"method": "labor", "layer_dependency": True},
    "edge ids": {"edge_ids": True},
}
methods = pytest.mark.parametrize("draws", METHODS.values(), ids=METHODS.keys())


def spec_of(draws):
    return SampleSpec(fanouts=(3, -1, 2) if "replace" not in draws else (3, 1, 2), rng_seed=7, **draws)


def assert_same(found, expected):
    assert torch.equal(found.input_nodes, expected.input_nodes) and torch.equal(found.seeds, expected.seeds)
    for one, other in zip(found.mfgs, expected.mfgs, strict=True):
        assert (one.num_dst, one.draw.rng_seed, one.draw.step) == (other.num_dst, other.draw.rng_seed, other.draw.step)
        for name in FIELDS:
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None and right is None) or torch.equal(left, right), name


def layered(graph, spec, edge_values=False):
    source = LocalHops(graph, spec, edge_values=edge_values)
    return LayeredSampler(source, len(spec.fanouts), rng_seed=spec.rng_seed, orig_ids=graph.orig_ids)


@methods
@pytest.mark.parametrize("num_seeds", [0, 1, 9])
def test_the_loop_over_the_own_graph_returns_the_bits_of_the_fused_call(draws, num_seeds):
    spec, seeds = spec_of(draws), torch.randperm(28, generator=torch.Generator().manual_seed(1))[:num_seeds].int()
    valued = spec.edge_ids
    fused = NeighborSampler.from_spec(GRAPH, spec, edge_values=valued)
    for step in (0, 5):
        assert_same(layered(GRAPH, spec, valued).sample(seeds, step), fused.sample(seeds, step))


def own_rows(rank):
    """This rank's slice of the graph, and the position of its first edge."""
    lo, hi = RANGES[rank].item(), RANGES[rank + 1].item()
    first, end = GRAPH.indptr[lo].item(), GRAPH.indptr[hi].item()
    indptr = GRAPH.indptr[lo : hi + 1] - first
    return CSCGraph(indptr, GRAPH.indices[first:end], GRAPH.weights[first:end], GRAPH.orig_ids[lo:hi]), first


def sample_on_ranks(ctx, draws):
    spec, (own, first_edge) = spec_of(draws), own_rows(ctx.rank)
    sampler = VanillaSampler(
        own, PartitionBook(RANGES), ctx.comm, spec, GRAPH.orig_ids, first_edge=first_edge, edge_values=spec.edge_ids
    )
    seeds = torch.arange(RANGES[ctx.rank], RANGES[ctx.rank + 1])
    batch = sampler.sample(seeds, 5)
    fused = NeighborSampler.from_spec(GRAPH, spec, edge_values=spec.edge_ids).sample(seeds, 5)
    assert_same(batch, fused)
    assert all(mfg.checked for mfg in batch.mfgs)
    calls = {purpose: found["calls"] for purpose, found in ctx.comm.stats().items()}
    assert calls["sample_ids"] == calls["sample_reply"] == 2 and sampler.num_payload_exchanges() == 4
    return batch.num_edges


@methods
def test_the_loop_over_owners_returns_the_bits_of_the_fused_call(draws):
    assert sum(run_distributed(3, sample_on_ranks, args=(draws,))) > 0


class Ring:
    """Every node has picked the next one, in whatever dtype is asked."""

    def neighbors(self, nodes, hop, step):
        return Picks(torch.arange(nodes.numel() + 1), (nodes + 1).short())


@pytest.mark.parametrize("seeds", [[], [3, 7], torch.tensor([3, 7], dtype=torch.int32)], ids=str)
def test_any_source_is_sampled_and_seeds_keep_their_dtype(seeds):
    batch = LayeredSampler(Ring(), 2, rng_seed=3).sample(seeds, 4)
    dtype = seeds.dtype if isinstance(seeds, torch.Tensor) else torch.int64
    assert batch.input_nodes.dtype == batch.mfgs[0].indices.dtype == dtype
    assert batch.input_nodes.tolist() == ([3, 7, 4, 8, 5, 9] if len(seeds) else [])
    assert (batch.draw.rng_seed, batch.step, batch.mfgs[0].edge_ids) == (3, 4, None)


class DamagedOffsets:
    """Every node has more picks than there are."""

    def neighbors(self, nodes, hop, step):
        return Picks(2 * torch.arange(nodes.numel() + 1), nodes + 1)


def test_offsets_of_a_foreign_source_are_looked_at_by_the_operators():
    [mfg] = LayeredSampler(DamagedOffsets(), 1).sample([3, 7]).mfgs
    with pytest.raises(ValueError, match="indptr"):
        ops.aggregate(mfg.indptr, mfg.indices, torch.rand(4, 2), checked=mfg.checked)


def test_no_hop_is_refused():
    with pytest.raises(ValueError, match="num_hops is 0; expected an integer >= 1"):
        LayeredSampler(Ring(), 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_seeds_may_be_unsigned(dtype):
    seeds, sampler = torch.tensor([3, 17, 0]), NeighborSampler(GRAPH, [3, 1], rng_seed=7)
    for found, expected in zip(sampler.sample(seeds.to(dtype)).mfgs, sampler.sample(seeds).mfgs, strict=True):
        assert torch.equal(found.src_nodes, expected.src_nodes) and torch.equal(found.indices, expected.indices)


def test_seeds_that_are_not_integers_are_refused():
    with pytest.raises(ValueError, match=r"seeds is torch.float32; expected integer node ids\."):
        LayeredSampler(Ring(), 1).sample(torch.tensor([1.5]))


def refuse_seeds(ctx):
    own, _ = own_rows(ctx.rank)
    sampler = VanillaSampler(own, PartitionBook(RANGES), ctx.comm, spec_of({}), GRAPH.orig_ids)
    with pytest.raises(ValueError, match=f"from 28 to 28; in the vanilla scheme rank {ctx.rank} can only start from"):
        sampler.sample(torch.tensor([28]))


def test_the_vanilla_scheme_refuses_seeds_of_other_ranks():
    run_distributed(3, refuse_seeds)


class OwnRows:
    """Every node picks itself, with a coefficient of the hop."""

    includes_dst = True

    def neighbors(self, nodes, hop, step):
        weights = torch.full((nodes.numel(),), hop + 1.0)
        return Picks(torch.arange(nodes.numel() + 1), nodes, edge_weights=weights)


def test_coefficients_and_held_destinations_reach_the_mfgs():
    mfgs = LayeredSampler(OwnRows(), 2).sample([4, 2]).mfgs
    assert [mfg.edge_weights.tolist() for mfg in mfgs] == [[2.0, 2.0], [1.0, 1.0]]  # the input side first
    assert all(mfg.includes_dst for mfg in mfgs)
    assert not any(mfg.includes_dst for mfg in LayeredSampler(Ring(), 2).sample([4, 2]).mfgs)
