"""PyG data is drawn by NeighborLoader's law: every node expanded once, at the hop that first reaches it.

NeighborLoader itself needs pyg-lib or torch-sparse, which have no wheels for every torch; its law is stated here:
`expand_once` is the walk over the batch's own draws, and `exact_law` enumerates the distribution of whole batches.
"""

import dataclasses
import itertools
from collections import Counter
from fractions import Fraction
from math import comb

import pytest
import torch

from fastsample_dist import CSCGraph, NeighborSampler, interop, ops
from fastsample_dist.testing.statistics import chi_square_p
from fastsample_dist.train.models import GraphSAGE
from tests.forked import run_code
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


def expand_once(batch):
    """Oracle: hop by hop the nodes that are new, each with what it drew in that hop; as node ids of the graph.

    Returns (nodes by hop, edges by hop as (source, destination, edge id)).
    """
    nodes, edges, reached = [batch.seeds.tolist()], [], set(batch.seeds.tolist())
    for mfg in reversed(batch.mfgs):
        own = {node: [] for node in nodes[-1]}
        ids = mfg.edge_ids.tolist()
        for number, (src, dst) in enumerate(edge_pairs(mfg)):
            if int(mfg.src_nodes[dst]) in own:
                own[int(mfg.src_nodes[dst])].append((int(mfg.src_nodes[src]), int(mfg.src_nodes[dst]), ids[number]))
        place = {int(node): number for number, node in enumerate(mfg.dst_nodes)}
        hop = [edge for node in sorted(own, key=place.__getitem__) for edge in own[node]]
        edges.append(hop)
        nodes.append(list(dict.fromkeys(src for src, _, _ in hop if src not in reached)))
        reached.update(nodes[-1])
    return nodes, edges


def as_graph_ids(data):
    """Edges of the data by hop, as (source, destination, edge id) in ids of the graph."""
    src, dst = data.n_id[data.edge_index].tolist()
    edges = iter(zip(src, dst, data.e_id.tolist(), strict=True))
    return [list(itertools.islice(edges, count)) for count in data.num_sampled_edges]


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"method": "labor"}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("fanouts", [[4], [2, 3], [2, 1, 2], [1, 1, 1, 1, 2]])
def test_every_node_is_expanded_once_at_the_hop_that_first_reaches_it(pyg, draw_batch, fanouts, dtype, options):
    batch = draw_batch(SEEDS, fanouts, dtype, edge_ids=True, **options)
    nodes, edges = expand_once(batch)
    data = interop.pyg.to_data(batch)
    assert as_graph_ids(data) == edges
    assert data.n_id.tolist() == list(itertools.chain(*nodes))
    assert data.num_sampled_nodes == list(map(len, nodes)) and len(nodes) == len(fanouts) + 1


def test_no_node_has_more_in_edges_than_one_fanout(pyg, draw_batch):
    fanouts, degrees = [4, 3, 2], random_csc().in_degrees()
    data = interop.pyg.to_data(draw_batch(SEEDS, fanouts))
    hop = torch.arange(4).repeat_interleave(torch.tensor(data.num_sampled_nodes))
    allowed = torch.tensor([*fanouts, 0])[hop]
    found = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    assert torch.equal(found, torch.minimum(allowed, degrees[data.n_id]))


ROWS = {0: [1, 2, 3], 1: [0, 3, 4], 2: [0, 5], 3: [2, 4, 5], 4: [1], 5: [], 6: [0, 1, 4]}  # node: its in-neighbours
LAW_FANOUTS, LAW_SEEDS, TRIALS, FALSE_ALARM = (2, 1, 1), [0, 6], 3000, 1e-6


def exact_law():
    """The chance of every batch under NeighborLoader: {(edges of hop 0, edges of hop 1, ...): probability}.

    A hop draws for each node that the hop before reached first: uniformly, without replacement, independently.
    """

    def draws(node, fanout):
        size = min(fanout, len(ROWS[node]))
        share = Fraction(1, comb(len(ROWS[node]), size))
        return [(frozenset((src, node) for src in own), share) for own in itertools.combinations(ROWS[node], size)]

    def outcomes(frontier, reached, fanouts):
        if not fanouts:
            return {(): Fraction(1)}
        found = Counter()
        for choice in itertools.product(*(draws(node, fanouts[0]) for node in sorted(frontier))):
            edges, chance = frozenset().union(*(own for own, _ in choice)), Fraction(1)
            for _, share in choice:
                chance *= share
            new = {src for src, _ in edges} - reached
            for rest, share in outcomes(new, reached | new, fanouts[1:]).items():
                found[(edges, *rest)] += chance * share
        return found

    return outcomes(set(LAW_SEEDS), set(LAW_SEEDS), LAW_FANOUTS)


@pytest.fixture
def one_thread():
    """Thousands of tiny operators: torch's threads would wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_batches_have_neighbor_loaders_law(pyg, one_thread):
    src, dst = zip(*((src, node) for node, row in ROWS.items() for src in row), strict=True)
    graph = CSCGraph.from_edge_index(torch.tensor(src), torch.tensor(dst), len(ROWS))
    sampler, law = NeighborSampler(graph, LAW_FANOUTS, rng_seed=11), exact_law()
    assert sum(law.values()) == 1 and len(law) > 100
    seen = Counter()
    for step in range(TRIALS):
        data = interop.pyg.to_data(sampler.sample(LAW_SEEDS, step))
        pairs = iter(zip(*data.n_id[data.edge_index].tolist(), strict=True))
        seen[tuple(frozenset(itertools.islice(pairs, count)) for count in data.num_sampled_edges)] += 1
    assert seen.keys() <= law.keys(), "a batch that NeighborLoader never gives"
    expected = {key: TRIALS * float(share) for key, share in law.items()}
    assert min(expected.values()) >= 5, "too few trials for the chi-square limit"
    statistic = sum((seen[key] - mean) ** 2 / mean for key, mean in expected.items())
    assert chi_square_p(statistic, len(law) - 1) > FALSE_ALARM


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"method": "labor"}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_ids_name_the_edges_of_the_graph(pyg, draw_batch, dtype, options):
    graph = random_csc(dtype=dtype)
    data = interop.pyg.to_data(draw_batch(SEEDS, [4, 3, 5], dtype, edge_ids=True, **options))
    src, dst = data.n_id[data.edge_index]
    assert data.e_id.dtype == torch.int64 and data.num_edges > 0
    assert torch.equal(graph.indices[data.e_id].long(), src)
    assert torch.equal(torch.searchsorted(graph.indptr, data.e_id, right=True) - 1, dst)


def test_what_is_no_batch_is_refused(pyg):
    with pytest.raises(ValueError, match="batch is a int; expected a MiniBatch, as samplers and loaders give it"):
        interop.pyg.to_data(3)


def test_edge_ids_change_nothing_else(pyg, draw_batch):
    plain, named = (interop.pyg.to_data(draw_batch(SEEDS, [4, 3], edge_ids=wanted)) for wanted in (False, True))
    assert torch.equal(plain.edge_index, named.edge_index) and "e_id" not in plain
    assert plain.num_sampled_edges == named.num_sampled_edges


def test_an_empty_batch_has_no_edge_ids(pyg, draw_batch):
    data = interop.pyg.to_data(draw_batch([], [4, 3], edge_ids=True))
    assert data.e_id.shape == (0,) and data.edge_index.shape == (2, 0)


def test_ids_counts_features_and_labels(pyg, draw_batch):
    batch = draw_batch(SEEDS, [4, 3])
    batch.features = batch.input_nodes[:, None] * torch.ones(8)
    batch.labels = torch.arange(len(SEEDS))
    data = interop.pyg.to_data(batch)
    assert data.n_id.dtype == torch.int64 and data.n_id[: len(SEEDS)].tolist() == SEEDS
    assert data.n_id.unique().numel() == data.num_nodes < batch.input_nodes.numel(), "nothing was drawn twice"
    assert torch.equal(data.input_id, torch.tensor(SEEDS))
    assert data.batch_size == len(SEEDS)
    assert data.num_nodes == sum(data.num_sampled_nodes)
    assert torch.equal(data.x, data.n_id[:, None] * torch.ones(8))
    assert torch.equal(data.y, batch.labels)


def test_stored_weights_go_with_their_edges(pyg, draw_batch):
    batch = draw_batch(SEEDS, [4, 3], edge_ids=True)
    assert "edge_weight" not in interop.pyg.to_data(batch)
    batch.mfgs = [dataclasses.replace(mfg, edge_values=mfg.edge_ids / 8) for mfg in batch.mfgs]
    data = interop.pyg.to_data(batch)
    assert torch.equal(data.edge_weight, data.e_id / 8)


def test_coefficients_of_the_sampler_go_with_their_edges(pyg, draw_batch):
    batch = draw_batch(SEEDS, [4, 3], edge_ids=True)
    assert "edge_coefficient" not in interop.pyg.to_data(batch)
    seed_side = batch.mfgs[-1]
    batch.mfgs[-1] = dataclasses.replace(seed_side, edge_weights=seed_side.edge_ids / 8)
    data = interop.pyg.to_data(batch)
    of_seeds = data.num_sampled_edges[0]
    assert torch.equal(data.edge_coefficient[:of_seeds], data.e_id[:of_seeds] / 8)
    assert data.edge_coefficient[of_seeds:].eq(1).all() and data.edge_coefficient.shape == data.e_id.shape


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


def models(num_layers):
    """PyG's GraphSAGE (mean) and ours with its parameters."""
    from torch_geometric.nn import GraphSAGE as PygSAGE

    torch.manual_seed(0)
    theirs = PygSAGE(8, 6, num_layers, 4).double().eval()
    ours = GraphSAGE(8, 6, 4, num_layers, 0.0).double().eval()
    with torch.no_grad():
        for conv, layer in zip(theirs.convs, ours.layers, strict=True):
            layer.linear.weight.copy_(torch.cat([conv.lin_r.weight, conv.lin_l.weight], dim=1))
            layer.linear.bias.copy_(conv.lin_l.bias)
    return theirs, ours


@pytest.mark.parametrize("fanouts", [[4], [4, 3], [3, 2, 2], [-1, 2], [-1, -1, -1]])
def test_a_trimmed_model_gives_the_seeds_what_the_whole_one_gives(pyg, draw_batch, fanouts):
    batch = draw_batch(SEEDS, fanouts)
    batch.features = torch.randn(batch.input_nodes.numel(), 8, dtype=torch.float64)
    model, data = models(len(fanouts))[0], interop.pyg.to_data(batch)
    trimmed = model(
        data.x, data.edge_index, num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )  # fmt: skip
    whole = model(data.x, data.edge_index)
    torch.testing.assert_close(trimmed[: len(SEEDS)], whole[: len(SEEDS)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fanouts", [[4], [-1, -1], [-1, -1, -1]])
def test_where_nothing_is_drawn_twice_pygs_model_gives_what_ours_gives(pyg, draw_batch, fanouts):
    batch = draw_batch(SEEDS, fanouts)
    batch.features = torch.randn(batch.input_nodes.numel(), 8, dtype=torch.float64)
    (theirs, ours), data = models(len(fanouts)), interop.pyg.to_data(batch)
    found = theirs(data.x, data.edge_index)[: len(SEEDS)]
    torch.testing.assert_close(found, ours(batch.mfgs, batch.features), rtol=1e-12, atol=1e-12)


def test_without_torch_geometric_the_error_names_the_extra():
    run = run_code(HIDE_PYG)
    assert run.returncode == 0, run.stderr
    assert "pip install fastsample_dist[pyg]" in run.stdout


def test_a_loader_without_what_it_samples_with_is_refused_before_its_workers_start(pyg, monkeypatch):
    for name in ("WITH_PYG_LIB", "WITH_TORCH_SPARSE"):
        monkeypatch.setattr(f"torch_geometric.typing.{name}", False)
    with pytest.raises(ImportError, match="pyg_lib or torch_sparse, and neither can be imported; install one"):
        interop.pyg.neighbor_loader(random_csc(), torch.arange(9), fanouts=[2], batch_size=3, workers=2)


def test_a_subgraph_goes_with_its_row_sums_and_seed_weights(pyg, saint_batch):
    data, graph = interop.pyg.to_data(saint_batch), random_csc()
    expanded = sum(data.num_sampled_nodes[:-1])
    assert expanded > data.batch_size
    assert torch.equal(data.row_sum[:expanded], graph.in_degrees()[data.n_id[:expanded]].float())
    assert not data.row_sum[expanded:].any() and data.row_sum.numel() == data.num_nodes
    assert torch.equal(data.seed_weight, saint_batch.seed_weights)
