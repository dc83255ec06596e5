"""Layer-wise applications and clusters on a GPU: the samples and the edges of the CPU's engine, bit for bit."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops.cuda_columns import NEVER, NO_ENTRY, Columns
from fastsample_dist.sampling import arrays, transit
from fastsample_dist.sampling.transit.device_collective import DeviceCollectiveEngine, NotOnGpusError
from fastsample_dist.sampling.transit.engines import BUILT_IN
from fastsample_dist.testing import check_app, conformance_graph
from tests.grids import grid
from tests.sampling.transit.apps import small_graph
from tests.sampling.transit.test_device_engine import assert_equal

COLUMNS = ("indptr", "indices", "src_nodes", "edge_ids", "edge_weights", "orig_ids")


class Union(transit.FastGCN):
    """Destinations are sources as well."""

    record = "to_union"


class Ranked(transit.LADIES):
    """Sources are picks alone; edges have no weights."""

    record, edge_weights = "to_new", transit.App.edge_weights


class Unrecorded(transit.LADIES):
    """The transits of a step are the picks of the step before, not what is recorded."""

    record, edge_weights = None, transit.App.edge_weights


class Around(transit.Layer):
    """The edges among all vertices."""

    record = "within"


APPS = {
    "Layer": transit.Layer(9, 4),
    "FastGCN": transit.FastGCN((3, 2)),
    "FastGCN without replacement": transit.FastGCN((3, 2), replace=False),
    "union": Union((3, 2)),
    "LADIES": transit.LADIES((3, 4)),
    "LADIES of ones": transit.LADIES((30, 1, 5), weighted=False),
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


@pytest.mark.parametrize("weights", grid([None, torch.float32, torch.float64], gate=[None, torch.float64]))
@pytest.mark.parametrize("dtype", grid([torch.int32, torch.int64], gate=[torch.int32]))
def test_many_samples_equal_the_cpus(device, on_cpu, dtype, weights):
    graph, generator = large_graph(dtype, weights), torch.Generator().manual_seed(2)
    roots = torch.randint(-1, 300, (9, 20), generator=generator)
    roots[4] = -1
    key = {"step": 2**40, "sample_ids": torch.arange(9) * 10**12}
    for app in (
        transit.Layer(200, 70), transit.Layer(60, 90), transit.FastGCN((40, 64, 30)), Union((40, 30)),
        transit.FastGCN((60, 200), replace=False), transit.LADIES((40, 64, 30)), Ranked((9, 200)),
        Unrecorded((20, 9)), Around(90, 40), transit.ClusterGCN(torch.arange(300) // 4, 9),
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


def test_columns_of_weight_0_never_arrive(device, on_cpu):
    graph, roots = large_graph(torch.int32, torch.float32), torch.arange(60).view(3, 20)
    graph = dataclasses.replace(graph, weights=torch.where(graph.indices % 3 == 0, 0.0, graph.weights))
    app = transit.LADIES((400, 400))
    found, expected = fsd.TransitSampler(graph, app, 3, device=device).sample(roots), on_cpu(graph, app, roots)
    assert_equal(found, expected)
    assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)
    picks = found.steps[0].cpu()
    assert not (set(picks[picks >= 0].tolist()) - set(roots.flatten().tolist())) & set(range(0, 300, 3))


def test_entries_are_merged_into_columns_as_a_stable_sort_puts_them():
    rows = SimpleNamespace(device=torch.device("cpu"), num_nodes=10, has_orig_ids=True)
    columns, generator = Columns(rows, (torch.empty(0), torch.empty(0))), torch.Generator().manual_seed(1)
    for num_columns, num_entries in ((0, 0), (0, 9), (7, 0), (40, 90), (90, 5)):
        columns.keys = torch.randperm(100, generator=generator)[:num_columns].sort().values
        listed = torch.randint(0, 100, (num_entries,), generator=generator)
        listed[::4] = NO_ENTRY
        expected = torch.sort(torch.cat([columns.keys, listed]), stable=True)
        assert all(map(torch.equal, columns._merged(listed), expected))


def test_of_equal_times_the_smaller_original_id_is_first():
    rows = SimpleNamespace(device=torch.device("cpu"), num_nodes=10, has_orig_ids=True)
    columns = Columns(rows, (torch.empty(0), torch.empty(0)))
    columns.keys = torch.tensor([1, 3, 4, 8, 12, 15])
    times, orig_ids = torch.tensor([5, 5, 2, NEVER, 7, 7]), torch.tensor([9, 4, 6, 1, 3, 2])
    assert columns._first(times, orig_ids, 3, 4).tolist() == [[4, 3, 1, -1], [5, 2, -1, -1], [-1] * 4]
    rows.has_orig_ids = False
    assert columns._first(times, orig_ids, 2, 2).tolist() == [[4, 1], [2, 5]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_schedule_of_threads_changes_a_sample(emulated_device, on_cpu, monkeypatch, seed):
    monkeypatch.setattr(arrays, "runs_kernels", lambda _: True)
    emulated_device.set_schedule(seed)
    graph, roots = small_graph(), torch.arange(12).view(3, 4)
    fastgcn, ladies = transit.FastGCN((5, 4), replace=False), transit.LADIES((3, 4))
    for app in (transit.Layer(20, 6), fastgcn, ladies, Union((3, 3)), Around(12, 5)):
        found, expected = fsd.TransitSampler(graph, app, rng_seed=3).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


@pytest.mark.parametrize("roots", [
    pytest.param(torch.empty(0, 2).long(), id="no samples"),
    pytest.param(torch.empty(2, 0).long(), id="no roots", marks=pytest.mark.grid),
    pytest.param(torch.tensor([[-1, 5], [-1, -1]]), id="no root"),
    pytest.param(torch.tensor([[0, 0]]), id="no neighbour", marks=pytest.mark.grid),
])  # fmt: skip
def test_what_samples_may_be_like(device, on_cpu, roots):
    graph, clusters = small_graph(), transit.ClusterGCN(torch.zeros(12).long(), 1)
    layers = transit.Layer(1, 1), transit.Layer(9, 4), transit.FastGCN((2, 2)), transit.LADIES((2, 30)), Union((2,))
    for app in (*layers, Around(5, 5), clusters):
        found, expected = fsd.TransitSampler(graph, app, 3, device=device).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


def test_a_graph_without_edges(device, on_cpu):
    graph, roots = fsd.CSCGraph(torch.zeros(4).long(), torch.empty(0, dtype=torch.int32)), torch.tensor([[2, 1]])
    clusters = transit.ClusterGCN(torch.zeros(3).long(), 1)
    for app in (transit.Layer(4, 2), transit.FastGCN((2, 2)), transit.LADIES((2, 2)), clusters):
        found, expected = fsd.TransitSampler(graph, app, 3, device=device).sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)


@pytest.mark.parametrize("bad", grid([12, 2**30, -7], gate=[2**30]))
def test_an_id_that_is_no_node_is_reported_as_by_the_cpu(device, on_cpu, bad):
    graph = small_graph(weighted=False)
    indices = graph.indices.clone()
    indices[::4] = bad
    graph, roots = fsd.CSCGraph(graph.indptr, indices), torch.arange(12).view(3, 4)
    for app in (transit.Layer(20, 6), transit.LADIES((3, 3))):
        lines = []
        for sample in (
            fsd.TransitSampler(graph, app, 3, device=device).sample, lambda roots, app=app: on_cpu(graph, app, roots)
        ):  # fmt: skip
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
    """Edges are weighed in Python."""

    def edge_weights(self, edges):
        return torch.from_numpy(edges.values + edges.dst)


class RacingAhead(transit.FastGCN):
    """Picks from all nodes; what edges weigh, in Python, is read of a race."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.needs = transit.needs(race="squared")

    def edge_weights(self, edges):
        return torch.from_numpy(edges.columns * 3)


def test_edges_that_an_application_weighs_itself_are_the_cpus(device, on_cpu):
    graph, roots = small_graph(), torch.arange(12).view(3, 4)
    for app in (Weighing(torch.arange(12) % 5, 2), RacingAhead((4, 5))):
        sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device)
        found, expected = sampler.sample(roots), on_cpu(graph, app, roots)
        assert_equal(found, expected)
        assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


class Endless(transit.Layer):
    record = "to_new"


class Borrowed(transit.FastGCN):
    """Weights by columns that no race has."""

    edge_weights = transit.LADIES.edge_weights


class Surrounded(transit.FastGCN):
    """Weights by the picks of a step, of edges that are those of none."""

    record = "within"


@pytest.mark.parametrize(("app", "line"), [
    (Endless(), "Endless has record 'to_new' and steps() == INF; GPUs record the edges of a number of steps"),
    (Borrowed((2, 2)), "Borrowed has record 'to_new', needs(race=None) and the edge_weights of LADIES, which are those "
     'of a race; expected record "to_new" or "to_union", and race "squared".'),
    (Surrounded((2, 2)), "Surrounded has record 'within' and the edge_weights of FastGCN, which are those of a step's "
     'picks; expected record "to_new" or "to_union".'),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_what_a_gpu_does_not_sample_is_refused(device, app, line):
    with pytest.raises(NotOnGpusError) as refused:
        fsd.TransitSampler(small_graph(), app, device=device)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
