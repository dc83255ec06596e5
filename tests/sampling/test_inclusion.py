"""Probabilities to be in a subgraph: exact forms by enumeration, the approximate one against counted subgraphs, and
what the weights that are made of them estimate."""

import itertools
import math

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.graph.csc import CSCGraph, destinations
from fastsample_dist.graph.generators import rmat
from fastsample_dist.sampling.inclusion import ClusterInclusion

CLOSE = 0.06  # what a closed form may be off in a class of degrees
COUNTED = 3000
# Inclusions of a class that is compared. Were they independent, 6 % would be 6 standard deviations, a false-alarm rate
# of 2e-9 per class; walkers that move together add less than half to the deviation (4 of them, 6e-5).
LEAST_COUNT = 10_000


def tiny() -> CSCGraph:
    """Symmetric, with a self-loop, parallel edges and an isolated node."""
    src = torch.tensor([0, 0, 0, 1, 2, 3])
    dst = torch.tensor([1, 1, 2, 2, 3, 3])
    loops = src == dst
    return CSCGraph.from_edge_index(torch.cat([src, dst[~loops]]), torch.cat([dst, src[~loops]]), 5)


def outcomes(method: str, graph: CSCGraph, roots: list[int]) -> list[tuple[set[int], float]]:
    """(nodes that a draw visits, its probability)."""
    rows = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in range(graph.num_nodes)]
    if method == "node":
        total = sum(len(rows[root]) for root in roots)
        return [({root}, len(rows[root]) / total) for root in roots]
    heads = [root for root in roots if rows[root]]
    return [({head, other}, 1 / len(heads) / len(rows[head])) for head in heads for other in rows[head]]


@pytest.mark.parametrize("roots", [[0, 1, 2, 3, 4], [0, 0, 2, 4]], ids=["all", "some"])
@pytest.mark.parametrize("method", ["node", "edge"])
def test_draws_have_exact_forms(method, roots):
    graph, draws = tiny(), 3
    nodes = np.zeros(5)
    pairs = np.zeros((5, 5))
    for drawn in itertools.product(outcomes(method, graph, roots), repeat=draws):
        members = sorted(set().union(*(visited for visited, _ in drawn)))
        chance = math.prod(each for _, each in drawn)
        nodes[members] += chance
        pairs[np.ix_(members, members)] += chance
    spec = fsd.SubgraphSpec(method, draws, inclusion="closed")
    inclusion = fsd.SubgraphSampler(graph, spec, roots).inclusion
    assert inclusion.is_exact
    assert inclusion.node_probability(torch.arange(5)).tolist() == pytest.approx(nodes.tolist(), rel=1e-12)
    u, v = graph.indices, torch.from_numpy(destinations(graph.indptr.numpy(), 0, graph.num_edges))
    expected = pairs[u.numpy(), v.numpy()]
    sound = expected > 0  # of some roots, no subgraph of drawn nodes has both ends
    assert inclusion.edge_probability(u, v)[sound].tolist() == pytest.approx(expected[sound].tolist(), rel=1e-12)
    with pytest.raises(ValueError, match="there is no edge from 4 to 0"):
        inclusion.edge_probability(torch.tensor([4]), torch.tensor([0]))


@pytest.mark.parametrize(("num_clusters", "taken"), [(5, 2), (4, 4), (3, 7), (4, 1), (1, 1)])
def test_clusters_have_exact_forms(num_clusters, taken):
    same, apart, batches = 0, 0, 0
    for order in itertools.permutations(range(num_clusters)):
        for begin in range(0, num_clusters, taken):
            chosen = order[begin : begin + taken]
            batches += 1
            same += 0 in chosen
            apart += 0 in chosen and 1 in chosen
    graph = CSCGraph.from_edge_index(torch.tensor([0, 1]), torch.tensor([1, 1]), 2)
    clusters = torch.tensor([0, min(1, num_clusters - 1)])
    inclusion = ClusterInclusion(graph, clusters, num_clusters, taken)
    assert inclusion.node_probability(torch.tensor([0])).item() == pytest.approx(same / batches)
    both = inclusion.edge_probability(torch.tensor([0, 1]), torch.tensor([1, 1])).tolist()
    expected = (apart if num_clusters > 1 else same) / batches
    assert both == pytest.approx([max(expected, 2.0**-100), same / batches])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Subgraphs this small are not worth waking threads for; on a busy machine that takes most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def graph() -> CSCGraph:
    """2048 nodes, a hub of degree 543, a third of the nodes isolated."""
    return rmat(11, 8, seed=1)


def samplers(graph: CSCGraph, *arguments, **options) -> tuple[fsd.SubgraphSampler, fsd.SubgraphSampler]:
    """(by closed form, by counts of other subgraphs)."""
    closed = fsd.SubgraphSpec(*arguments, inclusion="closed", **options)
    counts = fsd.SubgraphSpec(*arguments, inclusion="counts", count_subgraphs=COUNTED, rng_seed=1, **options)
    return fsd.SubgraphSampler(graph, closed), fsd.SubgraphSampler(graph, counts)


def largest_error(closed: torch.Tensor, counted: torch.Tensor, classes: torch.Tensor) -> tuple[float, int]:
    """(largest relative error of a class with counts enough, number of such classes)."""
    errors = []
    for each in classes.unique():
        chosen = classes == each
        if float(counted[chosen].sum()) * COUNTED >= LEAST_COUNT:
            errors.append(abs(float(closed[chosen].sum() / counted[chosen].sum()) - 1))
    return max(errors), len(errors)


@pytest.mark.parametrize("spec", [("frontier", 300, 40), ("frontier", 300, 200), ("node", 250), ("edge", 150)], ids=str)
def test_closed_forms_are_within_6_percent_of_counts(graph, spec):
    closed, counted = samplers(graph, *spec)
    degrees = graph.in_degrees()
    classes = torch.where(degrees > 0, torch.log2(degrees.clamp(min=1).double()).floor(), -1).long()
    nodes = torch.arange(graph.num_nodes)
    error, compared = largest_error(
        closed.inclusion.node_probability(nodes), counted.inclusion.node_probability(nodes), classes
    )
    assert error < CLOSE and compared >= 8
    u, v = graph.indices, torch.from_numpy(destinations(graph.indptr.numpy(), 0, graph.num_edges))
    ends = torch.stack([classes[u.long()], classes[v]]).sort(0).values
    error, compared = largest_error(
        closed.inclusion.edge_probability(u, v), counted.inclusion.edge_probability(u, v), ends[0] * 100 + ends[1]
    )
    assert error < CLOSE and compared >= 25


def test_loops_move_no_walker():
    """A ring of 100 hubs with 10 leaves each, 4 loops at every leaf: a leaf is left for its hub alone. A
    closed form whose walkers leave by loops too finds 40 % more of the hubs."""
    num_hubs, per_hub, loops = 100, 10, 4
    hubs, leaves = torch.arange(num_hubs), num_hubs + torch.arange(num_hubs * per_hub)
    near, others = hubs.repeat_interleave(per_hub), leaves.repeat_interleave(loops)
    ends = torch.cat([near, leaves, others, hubs, hubs.roll(1)]), torch.cat([leaves, near, others, hubs.roll(1), hubs])
    graph = CSCGraph.from_edge_index(*ends, num_hubs * (per_hub + 1))
    closed, counted = samplers(graph, "frontier", 100, 10)
    nodes = torch.arange(graph.num_nodes)
    found = [sampler.inclusion.node_probability(nodes) for sampler in (closed, counted)]
    error, compared = largest_error(*found, nodes < num_hubs)
    assert error < CLOSE and compared == 2


def test_ratio_weights_estimate_the_mean_over_all_neighbours(graph):
    """Averaged over subgraphs, the weighted mean of a row is near the mean of the whole row; the plain mean is not, as
    neighbours of high degree are in more subgraphs. x is the logarithm of the degree; rows of 16 neighbours and more.
    The bound is a fifth, the ratio here is 0.05 with a deviation of 0.01: no false alarm."""
    sampler = fsd.SubgraphSampler(graph, fsd.SubgraphSpec("frontier", 500, 60))
    x = torch.log(graph.in_degrees().double() + 1)
    full = fsd.ops.aggregate(graph.indptr, graph.indices, x[:, None], reduce="mean")[:, 0]
    sums = {name: torch.zeros(graph.num_nodes, dtype=torch.float64) for name in ("weighted", "plain")}
    seen = torch.zeros(graph.num_nodes)
    for found in sampler.sample_many(0, 400):
        nodes, own = found.nodes.long(), x[found.nodes.long()][:, None]
        kept = found.indptr.diff() > 0
        for name, weights in (("weighted", found.edge_weights.double()), ("plain", None)):
            total = fsd.ops.aggregate(found.indptr, found.indices, own, weights)[:, 0]
            by = graph.in_degrees()[nodes] if weights is not None else found.indptr.diff()
            sums[name][nodes[kept]] += (total / by.clamp(min=1))[kept]
        seen[nodes[kept]] += 1
    rows = (graph.in_degrees() >= 16) & (seen >= 30)
    bias = {name: float((sums[name] / seen - full)[rows].mean().abs()) for name in sums}
    assert int(rows.sum()) > 300
    assert bias["weighted"] < bias["plain"] / 5 and bias["plain"] > 0.2


@pytest.mark.parametrize("spec", [("node", 250), ("edge", 150)], ids=str)
def test_saint_weights_are_unbiased(graph, spec):
    """Sums over subgraphs of aggregates / P(v), and of weighted losses, have the mean of the whole graph: 400 of each,
    within 4.5 standard errors (false-alarm rate 7e-6 each)."""
    sampler = fsd.SubgraphSampler(graph, fsd.SubgraphSpec(*spec, weights="saint"))
    degrees = graph.in_degrees()
    x, losses = torch.log(degrees.double() + 1), 1 / (degrees.double() + 1)
    loss_nodes = torch.nonzero(degrees > 0).reshape(-1)[::3]
    means = float(sampler.inclusion.node_probability(loss_nodes).mean())
    aggregates, batch_losses = [], []
    for number in range(400):
        batch = sampler.batch(number, num_layers=2, loss_nodes=loss_nodes)
        square, nodes = batch.mfgs[0], batch.input_nodes.long()
        total = fsd.ops.aggregate(square.indptr, square.indices, x[nodes][:, None], square.edge_weights.double())[:, 0]
        aggregates.append(float((total / sampler.inclusion.node_probability(nodes)).sum()))
        batch_losses.append(float((batch.seed_weights * losses[batch.seeds.long()]).sum()))
    full = float(fsd.ops.aggregate(graph.indptr, graph.indices, x[:, None]).sum())
    for found, expected in ((aggregates, full), (batch_losses, means * float(losses[loss_nodes].sum()))):
        error = (np.mean(found) - expected) / (np.std(found, ddof=1) / math.sqrt(len(found)))
        assert abs(error) < 4.5
