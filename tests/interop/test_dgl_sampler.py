"""DGL's own samplers on our graphs: their hops are ours, their edges exist, their threads are the number given."""

import dataclasses

import pytest
import torch

from fastsample_dist.interop import dgl as peer
from tests.ops.graphs import random_csc

SEEDS = torch.tensor([7, 3, 41, 0, 19])


@pytest.fixture
def graph():
    """60 nodes, 700 edges, over original ids."""
    return dataclasses.replace(random_csc(), orig_ids=None)


def rows(graph, dst):
    """Oracle: sources of the edges into each node, by hand."""
    return [sorted(graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()) for node in dst.tolist()]


def test_the_graph_has_the_same_rows_in_one_format(dgl, graph):
    made = peer.to_graph(graph)
    assert made.formats()["created"] == ["csc"] and made.idtype == torch.int64
    indptr, indices, _ = made.adj_tensors("csc")
    assert torch.equal(indptr, graph.indptr) and torch.equal(indices, graph.indices.long())


@pytest.mark.parametrize("fused", [True, False])
def test_hops_are_in_our_order(dgl, graph, fused):
    blocks = peer.block_sampler(peer.to_graph(graph), [-1, 2], fused=fused)(SEEDS)
    assert torch.equal(blocks[-1].dstdata[dgl.NID], SEEDS)
    assert blocks[-1].num_edges() == int(graph.in_degrees()[SEEDS].sum()), "the seeds' hop takes fanouts[0]"
    nodes = blocks[-1].srcdata[dgl.NID]
    assert torch.equal(blocks[0].dstdata[dgl.NID], nodes)
    assert torch.equal(blocks[0].in_degrees(), graph.in_degrees()[nodes].clamp(max=2))


@pytest.mark.parametrize("fused", [True, False])
def test_all_neighbours_are_the_rows(dgl, graph, fused):
    (block,) = peer.block_sampler(peer.to_graph(graph), [-1], fused=fused)(SEEDS)
    src, dst = block.edges()
    names = block.srcdata[dgl.NID][src]
    assert [sorted(names[dst == i].tolist()) for i in range(len(SEEDS))] == rows(graph, SEEDS)


@pytest.mark.parametrize("fused", [True, False])
def test_with_replacement_every_row_with_an_edge_gives_the_fanout(dgl, graph, fused):
    (block,) = peer.block_sampler(peer.to_graph(graph), [40], fused=fused, replace=True)(SEEDS)
    assert torch.equal(block.in_degrees(), torch.where(graph.in_degrees()[SEEDS] > 0, 40, 0))


@pytest.mark.parametrize("fused", [True, False])
def test_weighted_draws_take_no_edge_of_weight_zero(dgl, graph, fused):
    weights = (torch.arange(graph.num_edges) % 3 > 0).float()
    weighted = dataclasses.replace(graph, weights=weights)
    (block,) = peer.block_sampler(peer.to_graph(weighted), [4], fused=fused, method="weighted")(SEEDS)
    assert block.num_edges() > 0
    assert bool((weights[block.edata[dgl.EID]] > 0).all())


def test_labor_takes_small_rows_whole(dgl, graph):
    (block,) = peer.block_sampler(peer.to_graph(graph), [1000], fused=False, method="labor")(SEEDS)
    assert torch.equal(block.in_degrees(), graph.in_degrees()[SEEDS])


@pytest.mark.parametrize("how", [{"fused": True}, {"fused": False, "replace": True}])
def test_labor_is_neither_fused_nor_with_replacement(dgl, graph, how):
    with pytest.raises(ValueError, match="neither fused nor with replacement"):
        peer.block_sampler(peer.to_graph(graph), [4], method="labor", **how)


def test_the_number_of_threads_is_set(dgl):
    before = dgl.utils.get_num_threads()
    try:
        for count in (1, 3):
            peer.set_num_threads(count)
            assert dgl.utils.get_num_threads() == count
    finally:
        peer.set_num_threads(before)


def test_a_seed_repeats_the_draws(dgl, graph):
    sample, found = peer.block_sampler(peer.to_graph(graph), [3], fused=False), []
    peer.set_num_threads(1)
    for _ in range(2):
        peer.set_rng_seed(5)
        found.append(sample(SEEDS)[0].edata[dgl.EID])
    assert torch.equal(*found)
