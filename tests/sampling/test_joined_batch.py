"""join_batches: joined one by one, subgraphs are the batch that the sampler makes of all of them."""

import pytest
import torch

from fastsample_dist import SubgraphSampler, SubgraphSpec
from fastsample_dist.graph.generators import planted_communities
from fastsample_dist.sampling.joined_batch import join_batches
from fastsample_dist.sampling.mfg import OWN_TENSORS, DrawKey

NUMBERS, LOSS = [3, 4, 9], torch.arange(0, 120, 3)


def same(one, other):
    return (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("weights", ["none", "ratio", "saint"])
def test_the_union_of_single_subgraphs_is_the_batch_of_all(weights, num_layers):
    graph, _ = planted_communities(120, 3, seed=1, feature_dim=2, mean_degree=5, homophily=0.8, signal=1.0)
    sampler = SubgraphSampler(graph, SubgraphSpec("frontier", 30, 8, weights=weights, rng_seed=5))
    expected = sampler.batch(NUMBERS, num_layers, loss_nodes=LOSS, step=7)
    singles = [sampler.batch([number], num_layers, loss_nodes=LOSS, step=7) for number in NUMBERS]
    joined = join_batches([*singles, sampler.batch([], num_layers, loss_nodes=LOSS, step=7)], DrawKey(5, 7))
    assert (joined.draw.rng_seed, joined.step, len(joined.mfgs)) == (5, 7, num_layers)
    for name in ("seeds", "input_nodes", "seed_weights"):
        assert same(getattr(joined, name), getattr(expected, name)), name
    for mfg, wanted in zip(joined.mfgs, expected.mfgs, strict=True):
        assert mfg.num_dst == wanted.num_dst and mfg.draw is joined.draw
        assert all(same(getattr(mfg, name), getattr(wanted, name)) for name in OWN_TENSORS)
