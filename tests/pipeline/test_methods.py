"""Every way of drawing through the loader: hybrid, vanilla and one process give the same mini-batches bit for bit.

The oracle is a sampler on the unpartitioned graph, fed each rank's seeds by original id.
"""

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader, LaborSampler, NeighborSampler, SampleSpec
from fastsample_dist.pipeline.schemes import make_sampler
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition
from tests.waiting import ENOUGH_S

SEED, BATCH, FANOUTS, NUM_EDGES = 2**35 + 1, 11, (4, 3, 2), 3000
METHODS = {
    "replaced": {"replace": True},
    "weighted": {"method": "weighted"},
    "weighted and replaced": {"method": "weighted", "replace": True},
    "labor": {"method": "labor"},
    "labor of one layer": {"method": "labor", "layer_dependency": True},
}


def draw_weights():
    """A quarter is 0, and some outweigh all the rest."""
    rng = np.random.default_rng(1)
    weights = rng.random(NUM_EDGES)
    weights[rng.random(NUM_EDGES) < 0.25] = 0
    weights[rng.random(NUM_EDGES) < 0.05] = 1e12
    return weights


def make_oracle(graph, method):
    """The sampler of one process, by its own arguments rather than the loader's."""
    return {
        "replaced": lambda: NeighborSampler(graph, FANOUTS, replace=True, rng_seed=SEED),
        "weighted": lambda: NeighborSampler(graph, FANOUTS, weighted=True, rng_seed=SEED),
        "weighted and replaced": lambda: NeighborSampler(graph, FANOUTS, weighted=True, replace=True, rng_seed=SEED),
        "labor": lambda: LaborSampler(graph, FANOUTS, rng_seed=SEED),
        "labor of one layer": lambda: LaborSampler(graph, FANOUTS, rng_seed=SEED, layer_dependency=True),
    }[method]()


def run_rank(ctx, path):
    """{(scheme, method): [(seeds, inputs, edges, step) of every batch]}, by original id."""
    data = DistData.load(path, ctx)
    seen = {}
    for scheme in ("hybrid", "vanilla"):
        for method, options in METHODS.items():
            loader = DistLoader(data, FANOUTS, BATCH, scheme=scheme, rng_seed=SEED, **options)
            seen[scheme, method] = [
                (
                    data.orig_ids(mb.seeds),
                    data.orig_ids(mb.input_nodes),
                    [(mfg.indptr, mfg.indices) for mfg in mb.mfgs],
                    mb.step,
                )
                for mb in loader
            ]
    return seen


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(what was drawn, what every rank saw) by world size; each run is started once."""
    done = {}

    def get(world_size):
        if world_size not in done:
            drawn = draw_partition(tmp_path_factory.mktemp("drawn"), world_size, weights=draw_weights())
            done[world_size] = drawn, run_distributed(world_size, run_rank, args=(drawn.path,))
        return done[world_size]

    return get


@pytest.mark.parametrize("world_size", grid([1, 2, 3, 4], gate=[1, 3]))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_batches_equal_those_of_one_process(runs, world_size, scheme, method):
    drawn, ranks = runs(world_size)
    oracle = make_oracle(drawn.graph, method)
    for rank in ranks:
        for seeds, inputs, edges, step in rank[scheme, method]:
            expected = oracle.sample(seeds, step)
            assert torch.equal(inputs, expected.input_nodes.long())
            for (indptr, indices), mfg in zip(edges, expected.mfgs, strict=True):
                assert torch.equal(indptr, mfg.indptr) and torch.equal(indices, mfg.indices)


def test_the_methods_make_different_batches(runs):
    """Else the test above could not tell which of them the loader had passed on."""
    (rank,) = runs(1)[1]
    first = {method: tuple(rank["hybrid", method][0][1].tolist()) for method in METHODS}
    assert len(set(first.values())) == len(METHODS)


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_both_schemes_name_the_edges_of_the_stored_topology(runs, ctx, scheme):
    data = DistData.load(runs(1)[0].path, ctx)
    spec = SampleSpec(fanouts=FANOUTS, edge_ids=True, method="weighted")
    batch = make_sampler(data, scheme, spec, ctx.comm).sample(data.split("train")[:BATCH])
    for mfg in batch.mfgs:
        assert torch.equal(data.graph.indices[mfg.edge_ids], mfg.src_nodes[mfg.indices.long()])
        assert bool((data.graph.weights[mfg.edge_ids] > 0).all())


def refusal(ctx, path, scheme, options):
    try:
        DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, scheme=scheme, **options)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method is 'magic'; expected 'uniform', 'weighted' or 'labor'."),
        ({"method": "labor", "replace": True}, "method 'labor' takes every edge at most once, but replace is True"),
        ({"layer_dependency": True}, "layer_dependency is True, but method 'uniform' has no variates to share"),
    ],
)
def test_options_that_exclude_each_other_are_refused(runs, ctx, options, message):
    assert message in refusal(ctx, runs(1)[0].path, "hybrid", options)


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_weighted_needs_a_partition_with_weights(tmp_path, ctx, scheme):
    path = draw_partition(tmp_path, 1).path
    assert "the graph has no edge weights" in refusal(ctx, path, scheme, {"method": "weighted"})


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_a_negative_weight_in_one_part_is_refused_on_all_ranks(tmp_path, scheme):
    weights = draw_weights()
    weights[17] = -1.5
    path = draw_partition(tmp_path, 3, weights=weights).path
    errors = run_distributed(3, refusal, args=(path, scheme, {"method": "weighted"}), timeout_s=ENOUGH_S)
    assert errors[0] is not None and "-1.5" in errors[0] and errors == [errors[0]] * 3
