"""Applications on a GPU: the samples of plain Python and of the CPU, bit for bit; what is refused, in which words."""

import dataclasses
import itertools

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops import cuda_transit
from fastsample_dist.sampling import arrays, transit
from fastsample_dist.sampling.transit.engine import SCHEDULES
from fastsample_dist.sampling.transit.engines import BUILT_IN
from fastsample_dist.testing import check_app, conformance_graph
from tests.grids import grid
from tests.sampling.transit.apps import small_graph
from tests.sampling.transit.test_sampler import APPS, some_roots


def random_graph(dtype):
    """500 nodes, some with rows long enough for buckets."""
    generator = torch.Generator().manual_seed(5)
    src, dst = torch.randint(0, 500, (9000,), generator=generator), torch.rand(9000, generator=generator) ** 3 * 500
    weights = torch.rand(9000, generator=generator)
    graph = fsd.CSCGraph.from_edge_index(src, dst.long(), 500, weights=weights)
    return dataclasses.replace(graph, indices=graph.indices.to(dtype))


def assert_equal(found, expected):
    """In every way of looking at samples."""
    assert torch.equal(found.vertices.cpu(), expected.vertices) and torch.equal(found.roots.cpu(), expected.roots)
    assert torch.equal(found.nodes.cpu(), expected.nodes) and torch.equal(found.indptr.cpu(), expected.indptr)
    assert len(found.steps) == len(expected.steps) == expected.num_steps == found.num_steps
    assert all(torch.equal(own.cpu(), other) for own, other in zip(found.steps, expected.steps, strict=True))


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_an_application_passes_the_suite(device, app):
    graph = conformance_graph()
    report = check_app(
        app, graph, roots=some_roots(app, graph), forms=[BUILT_IN], device=device, law_samples=50
    )  # fmt: skip
    assert report.num_runs == 4 * 3 * 5 + 2 + 2 + len(SCHEDULES) + 2 + 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_node2vec_of_several_roots_equals_the_cpus(device, on_cpu, dtype):
    graph, roots = random_graph(dtype), (torch.arange(900).view(300, 3) * 7 % 501) - 1
    app = transit.Node2Vec(5, p=0.05, q=4.0)
    expected = on_cpu(graph, app, roots)
    assert torch.equal(expected.vertices, transit.plain.sample(graph, app, roots, rng_seed=3).vertices)
    for schedule in SCHEDULES:
        sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule)
        assert_equal(sampler.sample(roots), expected)


MANY_SAMPLES = 1200
MANY = [
    transit.DeepWalk(12), transit.DeepWalk(12, weighted=False), transit.Node2Vec(12),
    transit.Node2Vec(6, 0.25, 4.0, False), transit.PPR(0.2), transit.PPR(0.4, weighted=False), transit.MultiRW(9),
    transit.KHop((5, 3, 2)), transit.KHop((5, 3, 2), unique=True), transit.MVS(),
]  # fmt: skip
WAYS = list(itertools.product(MANY, (torch.int32, torch.int64), SCHEDULES))
IN_GATE = [case for case in WAYS if case[1:] in ((torch.int32, "sample"), (torch.int64, "transit"))]


@pytest.mark.parametrize(
    ("app", "dtype", "schedule"),
    grid(WAYS, gate=IN_GATE, several=True),
    ids=lambda value: value if isinstance(value, (str, torch.dtype)) else type(value).__name__,
)
def test_many_samples_equal_the_cpus(device, on_cpu, app, dtype, schedule):
    graph, roots = random_graph(dtype), torch.arange(MANY_SAMPLES) % 500
    key = {"step": 2**40, "sample_ids": torch.arange(MANY_SAMPLES) * 10**12}
    found = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule).sample(roots, **key)
    assert found.vertices.device.type == device.type
    assert_equal(found, on_cpu(graph, app, roots, **key))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_all_sizes_are_read_by_lanes_and_by_blocks(device, on_cpu, dtype, weighted):
    """Runs of few picks, of one tile and of several; rows that fit into shared memory, and longer ones."""
    degrees = [0, 1, 3, 20, 400, 900, 5000]
    src = torch.cat([torch.arange(own) % 5000 for own in degrees])
    dst = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees))
    graph = fsd.CSCGraph.from_edge_index(src, dst, 5000, weights=1 + src.float() % 7)
    graph = dataclasses.replace(graph, indices=graph.indices.to(dtype))
    roots = torch.cat([torch.full((count,), node) for node in range(7) for count in (1, 40, 400)])[torch.randperm(3087)]
    for app in (transit.DeepWalk(1, weighted=weighted), transit.KHop((6,)), transit.Node2Vec(2, weighted=weighted)):
        expected = on_cpu(graph, app, roots)
        for schedule in SCHEDULES:
            sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule)
            assert_equal(sampler.sample(roots), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "app", [transit.DeepWalk(5), transit.PPR(0.3), transit.Layer(4, 3)], ids=lambda app: type(app).__name__
)
def test_roots_and_ids_may_be_on_the_device(device, on_cpu, app, dtype):
    graph, roots, ids = small_graph(), torch.tensor([4, 3, -1, 2, 11]), torch.tensor([9, 0, 4, 7, 2**30])
    sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule="sample")
    there = roots.to(device, dtype)
    found, by_position = sampler.sample(there, 5, ids.to(device, dtype)), sampler.sample(there, 5)
    assert_equal(found, on_cpu(graph, app, roots, step=5, sample_ids=ids))
    assert_equal(by_position, on_cpu(graph, app, roots, step=5))
    for own, expected in ((found, ids), (by_position, torch.arange(5))):
        assert own.sample_ids.is_cpu and own.sample_ids.dtype == torch.int64 and torch.equal(own.sample_ids, expected)
    for wrong in (-2, 12):
        with pytest.raises(ValueError, match=f"roots holds node ids from {min(wrong, -1)} to {max(wrong, 11)}; expec"):
            sampler.sample(torch.cat([there, there[:1] * 0 + wrong]))
    with pytest.raises(ValueError, match=r"sample_ids has shape \(5,\), smallest -1; expected 5 integers >= 0"):
        sampler.sample(there, 5, ids.to(device, dtype).clamp(max=0) - 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_walks_that_meet_no_dead_end_fill_their_room(device, on_cpu, schedule):
    ring = fsd.CSCGraph(torch.arange(8), torch.arange(7, dtype=torch.int32).roll(1))
    roots, app = torch.arange(700) % 7, transit.PPR(0.1)
    sampler = fsd.TransitSampler(ring, app, rng_seed=3, device=device, schedule=schedule)
    found = sampler.sample(roots)
    assert found.num_steps > 20 and (found.nodes >= 0).all()
    assert_equal(found, on_cpu(ring, app, roots))


@pytest.mark.parametrize("schedule", ["sample", "transit"])
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_distinct_picks_equal_the_cpus(device, on_cpu, attempts, schedule):
    """Of few picks by a warp, of more by a block, of many in device memory; rows shorter than what is asked of them."""
    graph, generator = random_graph(torch.int32), torch.Generator().manual_seed(8)
    roots = torch.randint(-1, 500, (30, 2), generator=generator)
    for sizes in ((3, 4), (9, 7), (25, 8), (150,), (300,)):
        app = transit.KHop(sizes, unique=True)
        app.max_attempts = attempts
        sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule)
        assert_equal(sampler.sample(roots), on_cpu(graph, app, roots))


@pytest.mark.parametrize("seed", grid([1, 2, 3], gate=[1]))
def test_no_schedule_of_threads_changes_a_pick(emulated_device, on_cpu, monkeypatch, seed):
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    emulated_device.set_schedule(seed)
    graph, roots, unique = small_graph(), torch.arange(12), transit.KHop((4, 20), unique=True)
    for app in (transit.Node2Vec(6), transit.PPR(0.3), transit.KHop((3, 2)), transit.MultiRW(5), unique):
        for schedule in SCHEDULES:
            sampler = fsd.TransitSampler(graph, app, rng_seed=3, schedule=schedule)
            assert_equal(sampler.sample(roots), on_cpu(graph, app, roots))


def test_steps_have_slots_for_walks_that_are_not_over(emulated_device, monkeypatch):
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    graph = random_graph(torch.int32)
    roots = torch.nonzero(graph.in_degrees() > 0).flatten()[:400]
    sampler = fsd.TransitSampler(graph, transit.PPR(0.4), rng_seed=3, schedule="transit_flat")
    of_keys = emulated_device.grids(lambda: sampler.sample(roots))[-2:2:-2]  # the last step's first
    assert of_keys[0] == 1 and of_keys[-1] == -(-roots.numel() // 64) and of_keys == sorted(of_keys)


@pytest.mark.parametrize("roots", [torch.empty(0, dtype=torch.int64), torch.tensor([-1, 5, -1]), torch.tensor([0, 0])],
                         ids=["no samples", "no root", "no neighbour"])  # fmt: skip
@pytest.mark.parametrize("app", [
    transit.DeepWalk(4), transit.DeepWalk(0), transit.PPR(0.3), transit.KHop((2, 2)), transit.MultiRW(3), transit.MVS(),
    transit.KHop((2, 2), unique=True),
], ids=["DeepWalk", "no steps", "PPR", "KHop", "MultiRW", "MVS", "KHop unique"])  # fmt: skip
def test_what_samples_may_be_like(device, on_cpu, app, roots):
    graph = small_graph()
    for schedule in SCHEDULES:
        found = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule).sample(roots)
        assert_equal(found, on_cpu(graph, app, roots))


def test_a_graph_without_edges(device):
    graph = fsd.CSCGraph(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    for app in (transit.DeepWalk(2), transit.Node2Vec(2), transit.PPR(0.5)):
        found = fsd.TransitSampler(graph, app, device=device).sample([2, 1])
        assert found.nodes.tolist() == [2, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bad", grid([12, 2**30, -7], gate=[12]))
@pytest.mark.parametrize("app", [
    transit.DeepWalk(6, weighted=False), transit.PPR(0.1, weighted=False), transit.KHop((3, 2)), transit.MultiRW(6),
    transit.MVS(), transit.KHop((6, 9), unique=True),
], ids=lambda app: type(app).__name__)  # fmt: skip
def test_an_id_that_is_no_node_is_reported_as_by_the_cpu(device, on_cpu, app, bad, schedule):
    graph = small_graph(weighted=False)
    indices = graph.indices.clone()
    indices[::4] = bad
    graph, lines = fsd.CSCGraph(graph.indptr, indices), []
    for sample in (
        fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule).sample,
        lambda roots: on_cpu(graph, app, roots),
    ):
        with pytest.raises(RuntimeError) as raised:
            sample(torch.arange(12))
        lines.append(str(raised.value))
    assert lines[0] == lines[1] and f"returned node {bad} for sample" in lines[0]


@pytest.mark.parametrize("schedule", ["sample", "transit", "transit_flat"])
@pytest.mark.parametrize("app", [
    transit.DeepWalk(2), transit.PPR(0.3), transit.MultiRW(2), transit.MVS(), transit.KHop((2, 150), unique=True),
], ids=lambda app: type(app).__name__)  # fmt: skip
def test_what_a_gpu_does_not_start_is_reported(emulated_device, monkeypatch, app, schedule):
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    sampler = fsd.TransitSampler(small_graph(), app, rng_seed=3, schedule=schedule)
    expected = sampler.sample([4, 3, 2])
    lines = emulated_device.failures(lambda: sampler.sample([4, 3, 2]))
    assert set(lines) == {"transit_sample: out of memory"}
    assert_equal(sampler.sample([4, 3, 2]), expected)


def test_the_library_refuses_what_it_has_no_kernel_for(device):
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=device)
    engine = sampler._engine
    app = engine._app(engine.bound.plan(1))
    roots, ids, request = torch.zeros(1, 1).long(), torch.zeros(1).long(), cuda_transit.TransitRequest()
    for wrong in ({"next_kind": 6}, {"next_kind": 7, "unique": [True, False]}, {"until_done": True}):
        with pytest.raises(ValueError, match="transit_sample: "):
            cuda_transit.SampleRun(engine._inputs, dataclasses.replace(app, **wrong), roots, ids, request).enqueue()


@pytest.mark.parametrize(("app", "roots", "first"), [
    (transit.DeepWalk(3), [4, 4, 4, 4], "sample"), (transit.PPR(0.4), [4, 4, 4, 4], "sample"),
    (transit.KHop((3, 2)), [4, 3, 2, -1], "sample"), (transit.KHop((3, 2)), [4, 4, 2, 2], "transit"),
], ids=["a walk", "PPR", "distinct roots", "repeated roots"])  # fmt: skip
def test_auto_takes_the_schedules_in_turn_then_the_faster(device, on_cpu, app, roots, first):
    graph, roots = small_graph(), torch.tensor(roots)
    sampler, expected = fsd.TransitSampler(graph, app, rng_seed=3, device=device), on_cpu(graph, app, roots)
    for _ in range(20):
        assert_equal(sampler.sample(roots), expected)
    sampler.sample(roots[:1])
    report, of_one = sampler.schedule_report()
    assert list(report.num_batches.values()) == [7, 7] and next(iter(report.num_batches)) == first
    assert set(report.num_batches) == {"sample", "transit"} and report.kernel in report.num_batches
    assert (report.kind.num_roots, report.kind.most_samples, of_one.kind.most_samples) == (1, 4, 1)


def test_what_has_one_schedule_measures_none(device):
    for app, schedule in ((transit.MVS(), "auto"), (transit.Layer(4, 2), "auto"), (transit.DeepWalk(2), "transit")):
        sampler = fsd.TransitSampler(small_graph(), app, device=device, schedule=schedule)
        sampler.sample([1, 2])
        assert sampler.schedule_report() == []
