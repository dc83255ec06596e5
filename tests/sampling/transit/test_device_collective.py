"""Layer-wise applications and clusters on a GPU: the samples and the edges of the CPU's engine, bit for bit."""

import dataclasses

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.sampling import arrays, transit
from fastsample_dist.sampling.transit.device_collective import DeviceCollectiveEngine
from fastsample_dist.sampling.transit.engines import BUILT_IN
from fastsample_dist.testing import check_app, conformance_graph
from tests.sampling.transit.apps import small_graph
from tests.sampling.transit.test_device_engine import assert_equal

COLUMNS = ("indptr", "indices", "src_nodes", "edge_ids", "edge_weights", "orig_ids")


class Union(transit.FastGCN):
    """Destinations are sources as well."""

    record = "to_union"


class Around(transit.Layer):
    """The edges among all vertices."""

    record = "within"


APPS = {
    "Layer": transit.Layer(9, 4),
    "FastGCN": transit.FastGCN((3, 2)),
    "FastGCN without replacement": transit.FastGCN((3, 2), replace=False),
    "union": Union((3, 2)),
    "around": Around(9, 4),
}


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_an_application_passes_the_suite(device, app):
    graph = conformance_graph()
    roots = torch.stack([torch.arange(12), torch.arange(12).flip(0), torch.full((12,), -1)], 1)
    check_app(app, graph, roots=roots, forms=[BUILT_IN], device=device, law_samples=50)


def test_clusters_pass_the_suite(device):
    graph = conformance_graph()
    app = transit.ClusterGCN(torch.arange(graph.num_nodes) % 5, 2)
    check_app(app, graph, forms=[BUILT_IN], device=device, law_samples=50)


def large_graph(dtype, weights, seed=5):
    """300 nodes whose ids are not original; a hub, parallel edges and self-loops."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, 300, (6000,), generator=generator), torch.rand(6000, generator=generator) ** 3 * 300
    dst[:700] = 7
    given = None if weights is None else torch.rand(6000, generator=generator).to(weights)
    graph = fsd.CSCGraph.from_edge_index(src, dst.long(), 300, weights=given)
    return dataclasses.replace(graph, indices=graph.indices.to(dtype), orig_ids=torch.arange(300) * 3)


def assert_same_edges(found, expected):
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert len(own) == len(other)
        for one, two in zip(own, other, strict=True):
            assert one.num_dst == two.num_dst and one.includes_dst == two.includes_dst
            for name in COLUMNS:
                left, right = getattr(one, name), getattr(two, name)
                assert left is right is None or torch.equal(left.cpu(), right), name


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_many_samples_equal_the_cpus(device, on_cpu, dtype, weights):
    graph, generator = large_graph(dtype, weights), torch.Generator().manual_seed(2)
    roots = torch.randint(-1, 300, (9, 20), generator=generator)
    roots[4] = -1
    key = {"step": 2**40, "sample_ids": torch.arange(9) * 10**12}
    for app in (
        transit.Layer(200, 70), transit.Layer(60, 90), transit.FastGCN((40, 64, 30)), Union((40, 30)),
        transit.FastGCN((60, 200), replace=False), Around(90, 40), transit.ClusterGCN(torch.arange(300) // 4, 9),
    ):  # fmt: skip
        sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device)
        assert isinstance(sampler._engine, DeviceCollectiveEngine)
        found, expected = sampler.sample(roots, **key), on_cpu(graph, app, roots, **key)
        assert found.vertices.device.type == device.type
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)
            assert found.mfgs_of_sample[0][0].indices.device.type == device.type
        else:
            assert found.mfgs_of_sample is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_schedule_of_threads_changes_a_sample(emulated_device, on_cpu, monkeypatch, seed):
    monkeypatch.setattr(arrays, "runs_kernels", lambda _: True)
    emulated_device.set_schedule(seed)
    graph, roots = small_graph(), torch.arange(12).view(3, 4)
    for app in (transit.Layer(20, 6), transit.FastGCN((5, 4), replace=False), Union((3, 3)), Around(12, 5)):
        found, expected = fsd.TransitSampler(graph, app, rng_seed=3).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


@pytest.mark.parametrize("roots", [
    torch.empty(0, 2).long(), torch.empty(2, 0).long(), torch.tensor([[-1, 5], [-1, -1]]), torch.tensor([[0, 0]]),
], ids=["no samples", "no roots", "no root", "no neighbour"])  # fmt: skip
def test_what_samples_may_be_like(device, on_cpu, roots):
    graph, clusters = small_graph(), transit.ClusterGCN(torch.zeros(12).long(), 1)
    for app in (transit.Layer(1, 1), transit.Layer(9, 4), transit.FastGCN((2, 2)), Union((2,)), Around(5, 5), clusters):
        found, expected = fsd.TransitSampler(graph, app, 3, device=device).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


def test_a_graph_without_edges(device, on_cpu):
    graph, roots = fsd.CSCGraph(torch.zeros(4).long(), torch.empty(0, dtype=torch.int32)), torch.tensor([[2, 1]])
    for app in (transit.Layer(4, 2), transit.FastGCN((2, 2)), transit.ClusterGCN(torch.zeros(3).long(), 1)):
        found, expected = fsd.TransitSampler(graph, app, 3, device=device).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)


@pytest.mark.parametrize("bad", [12, 2**30, -7])
def test_an_id_that_is_no_node_is_reported_as_by_the_cpu(device, on_cpu, bad):
    graph = small_graph(weighted=False)
    indices = graph.indices.clone()
    indices[::4] = bad
    graph, roots, lines = fsd.CSCGraph(graph.indptr, indices), torch.arange(12).view(3, 4), []
    app = transit.Layer(20, 6)
    for sample in (fsd.TransitSampler(graph, app, 3, device=device).sample, lambda roots: on_cpu(graph, app, roots)):
        with pytest.raises(ValueError, match=str(bad)) as raised:
            sample(roots)
        lines.append(str(raised.value))
    assert lines[0] == lines[1]


def test_an_application_that_never_ends_is_refused_as_by_the_cpu(device, on_cpu):
    graph, roots, lines, app = small_graph(), torch.arange(12).view(3, 4), [], transit.Layer(20, 6)
    app.max_steps = 2
    for sample in (fsd.TransitSampler(graph, app, 3, device=device).sample, lambda roots: on_cpu(graph, app, roots)):
        with pytest.raises(RuntimeError, match="has not ended after 2 steps") as raised:
            sample(roots)
        lines.append(str(raised.value))
    assert lines[0] == lines[1]


class Weighing(transit.ClusterGCN):
    def edge_weights(self, edges):
        return torch.ones(len(edges.src))


class Endless(transit.Layer):
    record = "to_new"


def test_what_a_gpu_does_not_sample_is_refused(device):
    for app in (transit.LADIES((2, 2)), Weighing(torch.zeros(12).long(), 1), Endless()):
        with pytest.raises(ValueError, match="is sampled on the CPU; .* Layer, FastGCN and ClusterGCN; leave the dev"):
            fsd.TransitSampler(small_graph(), app, device=device)
