"""Applications of a user's own on a GPU: the samples of plain Python, bit for bit, under every schedule; what they do
wrong in Python's words.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops import cuda_apps
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.sampling import arrays, transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import binding, plain
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp
from fastsample_dist.sampling.transit.device_apps import DeviceAppEngine
from fastsample_dist.sampling.transit.engine import SCHEDULES, Run
from fastsample_dist.sampling.transit.individual import app_in_numbers
from fastsample_dist.testing import check_app, conformance_graph
from tests.grids import grid
from tests.toolchain import CSRC

from .apps import Counting, Own, small_graph
from .test_compile_cpu import INDIVIDUAL, Stateful, case

pytest.importorskip("numba")
KEY = DrawKey(3, 2**33 + 5)


class Wandering(Own):
    """Two walkers that choose where to go on; runs until both are lost, some for more steps than a chunk has."""

    state: ClassVar = {"left": (np.int64, 1)}
    max_steps = 90

    def steps(self):
        return transit.INF

    def num_transits(self, step, num_roots):
        return 1

    def initial(s, draw, par):
        s.left[0] = 1 + draw.below(60)

    def step_transits(step, s, index, draw, par):
        s.left[0] -= 1
        if s.left[0] <= 0:
            return transit.NULL
        return s.root(draw.below(2)) if step % 7 == 0 else s.prev_vertex(1, 0)

    def next(s, transits, edges, step, draw, par):
        return edges.pick(draw)


class Branching(Own):
    """Three picks from every vertex, distinct, until a coin ends all of a sample: several picks in a step of INF."""

    max_steps, distinct = 4, True

    def steps(self):
        return transit.INF

    def sample_size(self, step):
        return 3

    def next(s, transits, edges, step, draw, par):
        return transit.NULL if step > s.id % 3 else edges.pick(draw)


class Surroundings(Own):
    """All neighbours of vertices that it chooses, some of them left out."""

    num_steps = 2

    def num_transits(self, step, num_roots):
        return num_roots if step == 0 else 3

    def sample_size(self, step):
        return 1 if step == 0 else transit.ALL

    def step_transits(step, s, index, draw, par):
        return s.vertex(draw.below(4))

    def next(s, transits, edges, step, draw, par):
        if draw.coin(2**30):
            return transit.NULL
        return edges[draw.turn] if step == 1 else edges.pick(draw)


OWN = {"wandering": (Wandering(), 2), "branching": (Branching(), 1), "surroundings": (Surroundings(), 2)}
CASES = [(name, dtype) for name in (*INDIVIDUAL, *OWN) for dtype in (torch.int32, torch.int64)]
# In every run those that a mistake can hardly hide from; compiling takes seconds.
USUAL = [("every", torch.int64), ("distinct", torch.int32)]


@pytest.fixture
def device(cuda_device, device):  # cuda_device: pytest 8 would not see its parameters
    """As of conftest.py; skips on a GPU without what compiles for it."""
    if device.type == "cuda":
        pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra apps-cuda)")
    return device


def bound_case(name, dtype):
    """A bound application, roots and ids."""
    if name in INDIVIDUAL:
        return case(name, dtype)
    app, num_roots = OWN[name]
    bound, roots, ids = case("own", dtype)
    generator = torch.Generator().manual_seed(2)
    roots = torch.randint(-1, bound.graph.num_nodes, (len(ids), num_roots), generator=generator)
    return binding.bind(app, bound.graph), roots, ids


def assert_equal(found, expected):
    """In every way of looking at samples."""
    assert torch.equal(found.vertices.cpu(), expected.vertices)
    assert torch.equal(found.nodes.cpu(), expected.nodes) and torch.equal(found.indptr.cpu(), expected.indptr)
    assert [step.shape for step in found.steps] == [step.shape for step in expected.steps]


@pytest.mark.parametrize(("name", "dtype"), grid(CASES, gate=USUAL, several=True, long=True))
def test_samples_equal_the_oracles(device, name, dtype):
    bound, roots, ids = bound_case(name, dtype)
    expected, engine = plain.run(bound, roots, ids, KEY), DeviceAppEngine(bound, device)
    for schedule in SCHEDULES:
        found = engine.sample(roots, ids, KEY, Run(schedule=schedule))
        assert found.vertices.device.type == device.type
        assert_equal(found, expected)


@pytest.mark.parametrize("seed", grid([1, 2, 3], gate=[1]))
def test_no_schedule_of_threads_changes_a_pick(emulated_device, seed):
    emulated_device.set_schedule(seed)
    for name in ("stateful", "distinct", "surroundings"):
        bound, roots, ids = bound_case(name, torch.int32)
        roots, ids = roots[:20], ids[:20]
        expected, engine = plain.run(bound, roots, ids, KEY), DeviceAppEngine(bound, torch.device("cpu"))
        for schedule in ("sample", "transit"):
            assert_equal(engine.sample(roots, ids, KEY, Run(schedule=schedule)), expected)


@pytest.mark.parametrize("app", [Own(), Counting(), Surroundings()], ids=lambda app: type(app).__name__)
def test_an_application_passes_the_suite(device, app):
    report = check_app(app, conformance_graph(), device=device, law_samples=50)
    assert report.num_runs == 4 * 3 * 5 + 2 + len(SCHEDULES) + 2 + 1 + 1 + 1


@pytest.mark.parametrize("schedule", ["sample", "transit"])
def test_what_a_gpu_does_not_start_is_reported(emulated_device, schedule):
    bound, roots, ids = bound_case("distinct", torch.int32)
    engine, call = DeviceAppEngine(bound, torch.device("cpu")), (roots[:4], ids[:4], KEY, Run(schedule=schedule))
    expected = engine.sample(*call)
    assert set(emulated_device.failures(lambda: engine.sample(*call))) == {"app_steps: out of memory"}
    assert_equal(engine.sample(*call), expected)


def test_walks_take_one_launch_and_other_steps_one_each(emulated_device):
    def launches(app, num_roots, schedule):
        bound = binding.bind(app, small_graph())
        engine, roots = DeviceAppEngine(bound, torch.device("cpu")), torch.zeros(5, num_roots, dtype=torch.int64)
        before = emulated_device.num_launches()
        engine.sample(roots, torch.arange(5), KEY, Run(schedule=schedule))
        return emulated_device.num_launches() - before

    assert launches(Own(), 1, "sample") == 2  # what all begin with, walks
    assert launches(Stateful(), 3, "sample") == 3
    assert launches(Own(), 2, "sample") == 1 + 3
    assert launches(Own(), 1, "transit") == 1 + 2 * 3


@pytest.mark.parametrize(("name", "num_roots", "schedule", "kernels"), [
    ("own", 1, "auto", ["walk"]),
    ("own", 1, "transit_flat", ["make_picks"]),
    ("own", 2, "sample", ["make_picks"]),
    ("distinct", 1, "sample", ["keep_distinct", "make_picks"]),
    ("stateful", 3, "sample", ["start_samples", "chosen_walk"]),
    ("stateful", 3, "transit", ["start_samples", "choose_transits", "make_picks"]),
    ("surroundings", 2, "sample", ["choose_transits", "take_rows", "make_picks"]),
])  # fmt: skip
def test_a_cubin_has_the_kernels_that_a_call_needs(name, num_roots, schedule, kernels):
    bound = bound_case(name, torch.int32)[0]
    app = app_in_numbers(bound, bound.plan(num_roots), NextKind.CALLBACK, None, CompiledApp(0, None, None))
    found = cuda_apps.kernels_of(app, bound.step_transits is not None, bound.initial is not None, schedule)
    assert list(found) == [f"fs_app_{kernel}" for kernel in kernels]
    source = (CSRC / "cuda" / "app_kernels.cuh").read_text()
    assert all(f"FS_APP_KERNEL void {kernel}(" in source for kernel in found)


@pytest.mark.parametrize("roots", [torch.empty(0, 1).long(), torch.tensor([[-1], [5], [-1]]), torch.tensor([[0], [0]])],
                         ids=["no samples", "no root", "no neighbour"])  # fmt: skip
def test_what_samples_may_be_like(device, roots):
    standing = type("Standing", (Own,), {"num_steps": 0})()
    nothing = type("Nothing", (Own,), {"picks": 0})()
    for app in (Own(), standing, nothing, Counting(), Surroundings()):
        bound, ids = binding.bind(app, small_graph()), torch.arange(len(roots))
        own = roots.expand(-1, 2) if app.num_steps == 2 else roots
        expected, engine = plain.run(bound, own, ids, KEY), DeviceAppEngine(bound, device)
        for schedule in ("sample", "transit"):
            assert_equal(engine.sample(own, ids, KEY, Run(schedule=schedule)), expected)


class Failing(Own):
    """Does what par.way says, for sample 7 at step 1, and for sample 9 at step 2."""

    par, needs = transit.params(way=0), transit.needs()

    def initial(s, draw, par):
        if par.way == 5 and s.id == 7:
            s.row(12)

    def step_transits(step, s, index, draw, par):
        if par.way == 4 and s.id == 7 and step == 1:
            return 99
        return s.prev_vertex(1, index)

    def next(s, transits, edges, step, draw, par):
        if (s.id == 7 and step == 1) or (s.id == 9 and step == 2):
            if par.way == 0:
                return 7 // (par.way * step)
            if par.way == 1:
                return s.row(99)[0]
            if par.way == 2:
                return -2
            if par.way == 3:
                return 12
        return 6


class Endless(Own):
    max_steps = 20

    def steps(self):
        return transit.INF

    def next(s, transits, edges, step, draw, par):
        return 6 if s.id > 2 else transit.NULL


@pytest.mark.parametrize("schedule", ["sample", "transit"])
@pytest.mark.parametrize(("way", "line"), [
    (0, "next raised ZeroDivisionError (integer division or modulo by zero) in sample 7 at step 1"),
    (1, "next raised IndexError (row(99): the graph has nodes 0 to 11) in sample 7 at step 1"),
    (2, "next returned node -2 for sample 7 at step 1; expected 0 to 11"),
    (3, "next returned node 12 for sample 7 at step 1; expected 0 to 11"),
    (4, "step_transits returned node 99 for sample 7 at step 1; expected 0 to 11"),
    (5, "initial raised IndexError (row(12): the graph has nodes 0 to 11) in sample 7 at step 0"),
])  # fmt: skip
def test_what_an_application_does_wrong_is_reported_in_pythons_words(device, way, line, schedule):
    app = Failing()
    app.par = transit.params(way=way)
    with pytest.raises(RuntimeError) as raised:
        fsd.TransitSampler(small_graph(), app, device=device, schedule=schedule).sample(torch.full((12,), 6))
    assert str(raised.value).startswith(line)


@pytest.mark.parametrize("app", [Endless(), type("Many", (Endless,), {"picks": 1, "num_transits": lambda *_: 1})()])
def test_an_application_that_never_ends_is_reported_as_by_the_cpu(device, on_cpu, app):
    lines = []
    for sample in (
        fsd.TransitSampler(small_graph(), app, rng_seed=3, device=device).sample,
        lambda roots: on_cpu(small_graph(), app, roots),
    ):
        with pytest.raises(RuntimeError) as raised:
            sample(torch.full((12,), 6))
        lines.append(str(raised.value))
    assert lines[0] == lines[1] == plain.never_ended(3, 20)


def test_the_library_refuses_steps_that_there_are_not(emulated_device, monkeypatch):
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    bound = binding.bind(Own(), small_graph())
    engine, roots, ids = DeviceAppEngine(bound, torch.device("cpu")), torch.zeros(1, 1).long(), torch.zeros(1).long()
    app, request = engine._app(bound.plan(1)), cuda_apps.TransitRequest()
    code = cuda_apps.AppCode(torch.zeros(1).long(), False, False, None)
    run = cuda_apps.AppRun(engine._inputs, app, code, roots, ids, request)
    with pytest.raises(ValueError, match="app_steps: steps 1 to 4 of 3"):
        run._enqueue(1, 4)
    for wrong in (dataclasses.replace(app, next_kind=1), dataclasses.replace(app, sample_sizes=[2, 1, 1])):
        with pytest.raises(ValueError, match="app_steps: "):
            grouped = cuda_apps.TransitRequest(schedule="transit")
            wrong_run = cuda_apps.AppRun(engine._inputs, wrong, code, roots, ids, grouped)
            wrong_run._steps.by_walks = 1
            wrong_run.enqueue()
    with pytest.raises(ValueError, match="load_app: the emulator runs no cubin"):
        cuda_apps.loaded(b"", torch.device("cpu"))
