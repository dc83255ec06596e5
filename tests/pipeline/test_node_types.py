"""Graphs with node types: every node's type on every rank, and the batches of one process whatever the layout."""

import pytest
import torch

from fastsample_dist import DistData, NeighborSampler
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition
from tests.pipeline.test_schemes import FANOUTS, SEED, run_rank


def types_seen(ctx, path):
    """(names, original id of every node, its type)"""
    data = DistData.load(path, ctx)
    ids = torch.arange(data.num_nodes, dtype=torch.int32).reshape(2, -1)
    return data.node_types, data.orig_ids(ids).flatten(), data.node_type(ids)


@pytest.mark.parametrize("num_parts", [2, 6])
def test_every_rank_knows_every_nodes_type(tmp_path, num_parts):
    path = draw_partition(tmp_path, num_parts, num_types=3).path
    for names, orig_ids, types in run_distributed(2, types_seen, args=(path,)):
        assert names == ("kind 0", "kind 1", "kind 2")
        assert types.dtype == torch.int64 and types.shape == (2, 120)
        assert torch.equal(types.flatten(), orig_ids % 7 % 3)


def refusals(ctx, path, ids):
    with pytest.raises(ValueError) as caught:
        DistData.load(path, ctx).node_type(torch.tensor(ids))
    return str(caught.value)


@pytest.mark.parametrize(
    ("num_types", "ids", "message"),
    [(3, [0, 240], "node ids run from 0 to 240; expected 0 to 239"), (0, [0], "has no node types; partition an input")],
)
def test_types_that_are_not_there_are_refused(tmp_path, num_types, ids, message):
    path = draw_partition(tmp_path, 2, num_types=num_types).path
    assert message in run_distributed(1, refusals, args=(path, ids))[0]


@pytest.mark.parametrize(
    ("num_parts", "world_size"), grid([(1, 1), (2, 2), (3, 3), (6, 3)], gate=[(2, 2), (6, 3)], several=True)
)
def test_batches_of_a_typed_graph_are_those_of_one_process(tmp_path, num_parts, world_size):
    drawn = draw_partition(tmp_path, num_parts, num_types=3)
    oracle = NeighborSampler(drawn.graph, FANOUTS[2], rng_seed=SEED)
    seeds = []
    for rank in run_distributed(world_size, run_rank, args=(drawn.path, ("hybrid", "vanilla"), FANOUTS[2])):
        for batch in [*rank["hybrid"][0], *rank["vanilla"][0]]:
            expected = oracle.sample(batch.seeds, batch.step)
            assert torch.equal(batch.input_ids, expected.input_nodes.long())
            for (indptr, indices), mfg in zip(batch.edges, expected.mfgs, strict=True):
                assert torch.equal(indptr, mfg.indptr) and torch.equal(indices, mfg.indices)
            assert torch.equal(batch.features, torch.from_numpy(drawn.features)[batch.input_ids])
            assert torch.equal(batch.labels, torch.from_numpy(drawn.labels)[batch.seeds])
            seeds.append(batch.seeds)
    assert torch.equal(torch.cat(seeds).sort().values, torch.from_numpy(drawn.splits["train"]).repeat_interleave(4))
