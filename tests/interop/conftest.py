"""The dgl package, and a drawn mini-batch without a sampler: the operator and `assemble` are enough."""

from collections.abc import Callable

import pytest
import torch

from fastsample_dist import SubgraphSampler, SubgraphSpec, ops
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from tests.ops.graphs import random_csc


@pytest.fixture
def dgl():
    """The dgl package; skips where it is missing or does not fit the installed torch."""
    try:
        import dgl
    except (ImportError, OSError) as error:
        pytest.skip(f"dgl cannot be imported: {error}")
    return dgl


@pytest.fixture
def draw_batch() -> Callable[..., MiniBatch]:
    """draw_batch(seeds, fanouts, dtype=..., **spec) samples a mini-batch of a 60-node multigraph."""

    def draw(seeds: list[int], fanouts: list[int], dtype: torch.dtype = torch.int32, **options: object) -> MiniBatch:
        graph = random_csc(dtype=dtype)
        spec = ops.SampleSpec(fanouts=fanouts, rng_seed=5, **options)
        hops = ops.sample_mfg(
            graph.indptr, graph.indices, torch.tensor(seeds, dtype=dtype), spec, step=3, orig_ids=graph.orig_ids
        )
        return assemble(hops, graph.orig_ids, DrawKey(rng_seed=5, step=3))

    return draw


@pytest.fixture
def saint_batch() -> MiniBatch:
    """Two subgraphs of the 60-node multigraph, with row sums and weights of seeds."""
    spec = SubgraphSpec("frontier", 40, 8, weights="saint", count_subgraphs=20)
    return SubgraphSampler(random_csc(), spec).batch([0, 1], num_layers=2, loss_nodes=range(0, 60, 3))
