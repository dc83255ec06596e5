"""Blocks hold the MFGs' edges, ids and rows exactly, and DGL computes on them what our aggregate computes."""

import dataclasses

import pytest
import torch

from fastsample_dist import interop, ops
from tests.forked import run_code
from tests.ops.graphs import random_csc

HIDE_DGL = """
import sys
sys.modules["dgl"] = None  # makes `import dgl` fail
from fastsample_dist.interop import dgl
try:
    dgl.to_blocks(None)
except ImportError as error:
    print(error)
"""

SEEDS = [7, 3, 41, 0, 59]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_block_edges_are_the_mfg_edges_in_order(dgl, draw_batch, dtype):
    batch = draw_batch(SEEDS, [4, 3, 2], dtype)
    for block, mfg in zip(interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        src, dst = block.edges(order="eid")
        assert torch.equal(src, mfg.indices)
        assert torch.equal(dst.long(), torch.arange(mfg.num_dst).repeat_interleave(mfg.indptr.diff()))


def test_block_node_ids_are_the_mfg_node_ids(dgl, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    for block, mfg in zip(interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        assert torch.equal(block.srcdata[dgl.NID], mfg.src_nodes)
        assert torch.equal(block.dstdata[dgl.NID], mfg.dst_nodes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_ids_are_those_of_the_graph_as_dgls(dgl, draw_batch, dtype):
    batch, graph = draw_batch(SEEDS, [4, 3], dtype, edge_ids=True), random_csc(dtype=dtype)
    src, dst = interop.dgl.to_graph(graph).formats("coo").edges(order="eid")
    for block, mfg in zip(interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        edges = block.edata[dgl.EID]
        ends = block.edges(order="eid")
        assert torch.equal(edges, mfg.edge_ids) and edges.dtype == torch.int64
        assert torch.equal(src[edges], block.srcdata[dgl.NID][ends[0].long()].long())
        assert torch.equal(dst[edges], block.dstdata[dgl.NID][ends[1].long()].long())


def test_without_edge_ids_blocks_have_none(dgl, draw_batch):
    assert all(dgl.EID not in block.edata for block in interop.dgl.to_blocks(draw_batch(SEEDS, [4, 3])))


def test_stored_weights_of_the_edges_are_edge_data(dgl, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    assert all("weight" not in block.edata for block in interop.dgl.to_blocks(batch))
    batch.mfgs = [dataclasses.replace(mfg, edge_values=torch.rand(mfg.num_edges)) for mfg in batch.mfgs]
    for block, mfg in zip(interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        assert torch.equal(block.edata["weight"], mfg.edge_values)


def test_coefficients_of_the_sampler_are_edge_data(dgl, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    assert all("coefficient" not in block.edata for block in interop.dgl.to_blocks(batch))
    batch.mfgs = [dataclasses.replace(mfg, edge_weights=torch.rand(mfg.num_edges)) for mfg in batch.mfgs]
    for block, mfg in zip(interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        assert torch.equal(block.edata["coefficient"], mfg.edge_weights)


def test_features_are_on_the_first_block_and_labels_on_the_last(dgl, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    batch.features = torch.randn(batch.input_nodes.numel(), 8)
    batch.labels = torch.arange(len(SEEDS))
    first, last = interop.dgl.to_blocks(batch)
    assert torch.equal(first.srcdata["feat"], batch.features)
    assert torch.equal(last.dstdata["label"], batch.labels)
    assert "feat" not in last.srcdata


def test_an_empty_batch_gives_empty_blocks(dgl, draw_batch):
    blocks = interop.dgl.to_blocks(draw_batch([], [4, 3]))
    assert [(block.num_src_nodes(), block.num_dst_nodes(), block.num_edges()) for block in blocks] == [(0, 0, 0)] * 2


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_message_passing_on_a_block_is_our_aggregate(dgl, draw_batch, reduce):
    batch = draw_batch(SEEDS, [4, 3])
    block, mfg = interop.dgl.to_blocks(batch)[0], batch.mfgs[0]
    block.srcdata["x"] = torch.randn(mfg.num_src, 8, dtype=torch.float64)
    block.update_all(dgl.function.copy_u("x", "m"), getattr(dgl.function, reduce)("m", "h"))
    ours = ops.aggregate(mfg.indptr, mfg.indices, block.srcdata["x"], reduce=reduce)
    torch.testing.assert_close(block.dstdata["h"], ours, rtol=1e-12, atol=1e-12)


def test_two_sage_layers_on_blocks_equal_the_same_weights_on_aggregate(dgl, draw_batch):
    from dgl.nn import SAGEConv

    torch.manual_seed(0)
    batch = draw_batch(SEEDS, [4, 3])
    layers = [SAGEConv(8, 6, "mean").double(), SAGEConv(6, 4, "mean").double()]
    theirs = ours = torch.randn(batch.input_nodes.numel(), 8, dtype=torch.float64)
    for layer, block, mfg in zip(layers, interop.dgl.to_blocks(batch), batch.mfgs, strict=True):
        theirs = layer(block, theirs)
        mean = ops.aggregate(mfg.indptr, mfg.indices, ours, reduce="mean")
        ours = layer.fc_self(ours[: mfg.num_dst]) + layer.fc_neigh(mean)
    torch.testing.assert_close(theirs, ours, rtol=1e-12, atol=1e-12)


def test_what_is_no_batch_is_refused(dgl):
    with pytest.raises(ValueError, match="batch is a int; expected a MiniBatch, as samplers and loaders give it"):
        interop.dgl.to_blocks(3)


def test_what_is_no_graph_is_refused(dgl):
    with pytest.raises(ValueError, match=r"^graph is a int; expected a CSCGraph\.$"):
        interop.dgl.to_graph(3)


def test_without_dgl_the_error_names_the_extra():
    run = run_code(HIDE_DGL)
    assert run.returncode == 0, run.stderr
    assert "pip install fastsample_dist[dgl]" in run.stdout


def test_row_sums_and_seed_weights_are_data_of_destinations(dgl, saint_batch):
    batch, blocks = saint_batch, interop.dgl.to_blocks(saint_batch)
    assert all(
        torch.equal(block.dstdata["row_sum"], mfg.row_sums) for block, mfg in zip(blocks, batch.mfgs, strict=True)
    )
    assert torch.equal(blocks[-1].dstdata["seed_weight"], batch.seed_weights)
    assert "seed_weight" not in blocks[0].dstdata
