"""PyG data holds the union of the hops' edges and computes what the whole graph computes when nothing is left out."""

import subprocess
import sys

import pytest
import torch

from fastsample_dist import interop, ops
from tests.ops.graphs import random_csc

HIDE_PYG = """
import sys
sys.modules["torch_geometric"] = None  # makes the import fail
from fastsample_dist.interop import pyg
try:
    pyg.to_data(None)
except ImportError as error:
    print(error)
"""

SEEDS = [7, 3, 41, 0, 59]


@pytest.fixture
def pyg():
    """The torch_geometric package; skips where it is missing."""
    return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")


def edge_pairs(mfg):
    """Oracle: (source, destination) of every edge of an MFG, by hand."""
    return [
        (int(src), dst)
        for dst in range(mfg.num_dst)
        for src in mfg.indices[int(mfg.indptr[dst]) : int(mfg.indptr[dst + 1])]
    ]


def columns(edge_index):
    return list(map(tuple, edge_index.t().tolist()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_hop_is_the_mfg(pyg, draw_batch, dtype):
    batch = draw_batch(SEEDS, [4], dtype)
    data = interop.pyg.to_data(batch)
    assert columns(data.edge_index) == edge_pairs(batch.mfgs[0])
    assert data.edge_index.dtype == torch.int64


def test_each_hop_adds_the_pairs_that_no_earlier_hop_listed(pyg, draw_batch):
    batch = draw_batch(SEEDS, [4, 3, 5])
    expected, counts = [], []
    for mfg in reversed(batch.mfgs):  # from the seeds outwards
        new = [pair for pair in edge_pairs(mfg) if pair not in set(expected)]
        expected, counts = expected + new, [*counts, len(new)]
    data = interop.pyg.to_data(batch)
    assert columns(data.edge_index) == expected
    assert data.num_sampled_edges == counts
    assert sum(counts) < batch.num_edges, "the batch repeats no pair: the test shows nothing"


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"method": "labor"}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_ids_name_the_edges_of_the_graph(pyg, draw_batch, dtype, options):
    graph = random_csc(dtype=dtype)
    data = interop.pyg.to_data(draw_batch(SEEDS, [4, 3, 5], dtype, edge_ids=True, **options))
    src, dst = data.n_id[data.edge_index]
    assert data.e_id.dtype == torch.int64 and data.num_edges > 0
    assert torch.equal(graph.indices[data.e_id].long(), src)
    assert torch.equal(torch.searchsorted(graph.indptr, data.e_id, right=True) - 1, dst)


def test_edge_ids_change_nothing_else(pyg, draw_batch):
    plain, named = (interop.pyg.to_data(draw_batch(SEEDS, [4, 3], edge_ids=wanted)) for wanted in (False, True))
    assert torch.equal(plain.edge_index, named.edge_index) and "e_id" not in plain
    assert plain.num_sampled_edges == named.num_sampled_edges


def test_an_empty_batch_has_no_edge_ids(pyg, draw_batch):
    data = interop.pyg.to_data(draw_batch([], [4, 3], edge_ids=True))
    assert data.e_id.shape == (0,) and data.edge_index.shape == (2, 0)


def test_ids_counts_features_and_labels(pyg, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    batch.features = torch.randn(batch.input_nodes.numel(), 8)
    batch.labels = torch.arange(len(SEEDS))
    data = interop.pyg.to_data(batch)
    assert torch.equal(data.n_id, batch.input_nodes.long())
    assert torch.equal(data.input_id, torch.tensor(SEEDS))
    assert data.batch_size == len(SEEDS)
    assert data.num_nodes == sum(data.num_sampled_nodes) == batch.input_nodes.numel()
    assert data.num_sampled_nodes[:2] == [len(SEEDS), batch.mfgs[1].num_src - len(SEEDS)]
    assert torch.equal(data.x, batch.features)
    assert torch.equal(data.y, batch.labels)


def test_an_empty_batch_gives_an_empty_graph(pyg, draw_batch):
    data = interop.pyg.to_data(draw_batch([], [4, 3]))
    assert data.edge_index.shape == (2, 0)
    assert (data.num_nodes, data.batch_size) == (0, 0)


def test_a_batch_without_features_has_no_x_and_no_y(pyg, draw_batch):
    data = interop.pyg.to_data(draw_batch(SEEDS, [4]))
    assert "x" not in data and "y" not in data


def test_mean_sage_on_one_hop_equals_aggregate(pyg, draw_batch):
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(0)
    batch = draw_batch(SEEDS, [4])
    data, mfg = interop.pyg.to_data(batch), batch.mfgs[0]
    layer = SAGEConv(8, 6, aggr="mean").double()
    x = torch.randn(mfg.num_src, 8, dtype=torch.float64)
    mean = ops.aggregate(mfg.indptr, mfg.indices, x, reduce="mean")
    ours = layer.lin_l(mean) + layer.lin_r(x[: mfg.num_dst])
    torch.testing.assert_close(layer(x, data.edge_index)[: len(SEEDS)], ours, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trim", [False, True])
def test_two_sum_layers_over_all_neighbours_equal_the_whole_graph(pyg, draw_batch, trim):
    from torch_geometric.nn import GraphConv
    from torch_geometric.utils import trim_to_layer

    torch.manual_seed(0)
    graph, data = random_csc(), interop.pyg.to_data(draw_batch(SEEDS, [-1, -1]))
    layers = [GraphConv(8, 6, aggr="add").double(), GraphConv(6, 4, aggr="add").double()]
    features = torch.randn(graph.num_nodes, 8, dtype=torch.float64)
    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    whole, whole_edges = features, torch.stack([graph.indices.long(), dst])
    part, part_edges = features[data.n_id], data.edge_index
    for depth, layer in enumerate(layers):
        if trim:
            part, part_edges, _ = trim_to_layer(depth, data.num_sampled_nodes, data.num_sampled_edges, part, part_edges)
        whole, part = layer(whole, whole_edges).relu(), layer(part, part_edges).relu()
    torch.testing.assert_close(part[: len(SEEDS)], whole[torch.tensor(SEEDS)], rtol=1e-12, atol=1e-12)


def test_without_torch_geometric_the_error_names_the_extra():
    run = subprocess.run([sys.executable, "-c", HIDE_PYG], capture_output=True, text=True, check=True)
    assert "pip install fastsample_dist[pyg]" in run.stdout
