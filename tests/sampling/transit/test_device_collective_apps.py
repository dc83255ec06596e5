"""Collective applications of a user's own on a GPU: the samples and the recorded edges of plain Python, bit for bit;
what they do wrong in Python's words.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops import cuda_collective_apps as kernels
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import binding, plain
from fastsample_dist.sampling.transit.device_collective import DeviceCollectiveEngine
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.engines import make_device_engine
from fastsample_dist.testing import check_app, conformance_graph
from tests.grids import grid
from tests.toolchain import CSRC

from .apps import small_graph
from .test_compile_cpu import APPS
from .test_device_collective import assert_same_edges, large_graph

pytest.importorskip("numba")
KEY = DrawKey(3, 2**33 + 5)
UNIFORM, BY_WEIGHT, ENDING, DIVIDING, OUTSIDE, NO_NODE = range(6)


class Mixed(transit.App):
    """Picks in the way that par says, so that one compilation serves them all. Sample 7 fails at step 1, where it does,
    and sample 9 at step 2.
    """

    sampling_type = transit.COLLECTIVE
    max_steps, max_attempts = 30, 4

    def __init__(self, way, sizes, distinct=False, record=None, self_edges=False):
        self.way, self.sizes, self.distinct, self.record, self.self_edges = way, sizes, distinct, record, self_edges

    def steps(self):
        return transit.INF if self.way == ENDING else len(self.sizes)

    def sample_size(self, step):
        return self.sizes[step % len(self.sizes)]

    def unique(self, step):
        return self.distinct

    def prepare(self, graph, weighted):
        scale = np.arange(1, graph.num_nodes + 1)
        return transit.params(way=self.way, row_scale=1.0 / scale, column_scale=scale / 3.0)

    def next(s, transits, edges, step, draw, par):
        if len(edges) == 0 or (par.way == 2 and draw.coin(3 * 2**30)):
            return transit.NULL
        i = draw.below(len(edges))
        while par.way == 1 and draw.word() * 2.0**-32 > edges.weight(i):
            i = draw.below(len(edges))
        if par.way > 2 and ((s.id == 7 and step == 1) or (s.id == 9 and step == 2)):
            if par.way == 5:
                return 300 + draw.index
            i = len(edges) // (par.way - 3)
        return edges[i]


class LookingBack(Mixed):
    """What a function sees of the sample, folded into a pick."""

    def next(s, transits, edges, step, draw, par):
        if len(edges) == 0:
            return transit.NULL
        at = s.size * 3 + edges.transit_of(draw.below(len(edges))) + draw.index * 2 + draw.turn + s.num_roots
        v = s.vertex(at % 9)
        if at % 3 == 0 and v != transit.NULL and len(s.row(v)) > 0:
            return s.row(v)[at % len(s.row(v))]
        return s.prev_vertex(1, draw.turn) if at % 3 == 1 else transits[at % len(transits)]


class Scaled(Mixed):
    edge_weights = transit.FastGCN.edge_weights


class Weighing(Mixed):
    """What edges weigh is said in Python."""

    def edge_weights(self, edges):
        own = edges.values * (1 + edges.times_picked()) + (edges.positions + 2) * 0.5 + edges.step
        return torch.from_numpy(own / np.maximum(edges.row_sums(own), 1e-3) + len(edges.picks))


class Arriving(transit.App):
    """A LADIES of one's own: the race, with every third pick in its place from anywhere, so not among its columns."""

    sampling_type, needs = transit.COLLECTIVE, transit.needs(race="squared")

    def __init__(self, record, sizes=(4, 5), self_edges=True):
        self.record, self.sizes, self.self_edges = record, sizes, self_edges

    def steps(self):
        return len(self.sizes)

    def sample_size(self, step):
        return self.sizes[step]

    def next(s, transits, edges, step, draw, par):
        return s.root(draw.below(s.num_roots)) if draw.index % 3 == 2 else edges.ranked(draw.index)


class ByColumn(Arriving):
    edge_weights = transit.LADIES.edge_weights


class ByColumnItself(Arriving):
    def edge_weights(self, edges):
        return torch.from_numpy(edges.values / np.maximum(edges.columns, 1e-9))


class Wandering(transit.App):
    """One pick a step from the rows of vertices that it chooses itself, one after the other, until its count is over;
    asked once more, it would go on.
    """

    sampling_type, max_steps = transit.COLLECTIVE, 40
    state: ClassVar = {"seen": (np.int64, transit.ROOTS), "left": (np.int32, 1)}

    def steps(self):
        return transit.INF

    def sample_size(self, step):
        return 1

    def num_transits(self, step, num_roots):
        return 3

    def initial(s, draw, par):
        s.left[0] = 3 * draw.below(8)

    def step_transits(step, s, index, draw, par):
        s.left[0] -= 1
        if -4 < s.left[0] < 0:
            return transit.NULL
        return s.prev_vertex(1, 0) if s.left[0] % 3 == 2 else s.root(index)

    def next(s, transits, edges, step, draw, par):
        s.seen[0] += len(edges) + draw.below(5)
        return edges[s.seen[0] % len(edges)] if len(edges) > 0 else transit.NULL


CASES = {
    "uniform": Mixed(UNIFORM, (4, 3, 0, 2)),
    "by weight, distinct, within": Mixed(BY_WEIGHT, (5, 6), distinct=True, record="within"),
    "uniform union": Mixed(UNIFORM, (3, 4, 2), record="to_union"),
    "until done": Mixed(ENDING, (3, 2)),
    "until done, within": Mixed(ENDING, (2,), record="within", self_edges=True),
    "scaled": Scaled(UNIFORM, (4, 3), record="to_new", self_edges=True),
    "weighing": Weighing(BY_WEIGHT, (4, 3), distinct=True, record="to_new", self_edges=True),
    "weighing the union": Weighing(UNIFORM, (3, 4), record="to_union"),
    "weighing within": Weighing(UNIFORM, (3,), record="within"),
    "arriving": Arriving(None),
    "by column": ByColumn("to_union"),
    "by column, picks alone": ByColumn("to_new", (6, 2, 4), self_edges=False),
    "by column itself": ByColumnItself("to_union", self_edges=False),
    "by column itself, picks alone": ByColumnItself("to_new"),
    "wandering": Wandering(),
}


@pytest.fixture
def device(cuda_device, device):  # cuda_device: pytest 8 would not see its parameters
    """As of conftest.py; skips on a GPU without what compiles for it."""
    if device.type == "cuda":
        pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra apps-cuda)")
    return device


def drawn_roots(num_nodes, count, num_roots=3):
    roots = torch.randint(-1, num_nodes, (count, num_roots), generator=torch.Generator().manual_seed(2))
    roots[1] = -1
    return roots, torch.arange(count) * 10**12


def assert_equals_the_oracle(bound, device, roots, ids):
    expected, engine = plain.run(bound, roots, ids, KEY), make_device_engine(bound, device)
    assert isinstance(engine, DeviceCollectiveEngine)
    found = engine.sample(roots, ids, KEY, Run())
    assert found.vertices.device.type == device.type
    assert torch.equal(found.vertices.cpu(), expected.vertices)
    assert [step.shape for step in found.steps] == [step.shape for step in expected.steps]
    if bound.app.record is None:
        assert found.mfgs_of_sample is None
        return
    assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)
    assert all(mfg.indices.device.type == device.type for mfgs in found.mfgs_of_sample for mfg in mfgs)


@pytest.mark.parametrize("app", CASES.values(), ids=CASES)
def test_samples_equal_the_oracles(device, app):
    graph = dataclasses.replace(small_graph(), orig_ids=torch.arange(12).flip(0) * 5)
    assert_equals_the_oracle(binding.bind(app, graph), device, *drawn_roots(12, 9))


@pytest.mark.grid
@pytest.mark.parametrize("weights", [None, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", [name for name in CASES if name != "wandering"])
def test_samples_of_other_types_equal_the_oracles(device, name, dtype, weights):
    assert_equals_the_oracle(binding.bind(CASES[name], large_graph(dtype, weights)), device, *drawn_roots(300, 7, 20))


@pytest.mark.grid
def test_every_member_that_a_function_sees_is_the_oracles(device):
    graph = conformance_graph(12)
    for app in (APPS["every together"][0], LookingBack(UNIFORM, (3, 4, 2), record="to_union")):
        assert_equals_the_oracle(binding.bind(app, graph), device, *drawn_roots(graph.num_nodes, 40))


@pytest.mark.parametrize("roots", [
    pytest.param(torch.empty(0, 2).long(), id="no samples"),
    pytest.param(torch.empty(2, 0).long(), id="no roots"),
    pytest.param(torch.tensor([[-1, 5], [-1, -1]]), id="no root"),
    pytest.param(torch.tensor([[0, 0]]), id="no neighbour"),
])  # fmt: skip
def test_what_samples_may_be_like(device, roots):
    for name in ("uniform", "until done", "weighing", "weighing within", "by column itself"):
        bound, ids = binding.bind(CASES[name], small_graph()), torch.arange(len(roots))
        assert_equals_the_oracle(bound, device, roots, ids)


@pytest.mark.parametrize("seed", grid([1, 2, 3], gate=[1]))
def test_no_schedule_of_threads_changes_a_pick(emulated_device, seed):
    emulated_device.set_schedule(seed)
    for name in ("until done", "weighing", "by column"):
        bound = binding.bind(CASES[name], small_graph())
        assert_equals_the_oracle(bound, torch.device("cpu"), *drawn_roots(12, 5))


@pytest.mark.grid
@pytest.mark.parametrize("name", ["by weight, distinct, within", "by column itself", "wandering"])
def test_an_application_passes_the_suite(device, name):
    graph = conformance_graph()
    check_app(CASES[name], graph, roots=drawn_roots(graph.num_nodes, 12)[0], device=device, law_samples=50)


def test_what_a_gpu_does_not_start_is_reported(emulated_device):
    bound = binding.bind(CASES["uniform"], small_graph())
    engine, call = make_device_engine(bound, torch.device("cpu")), (*drawn_roots(12, 4), KEY, Run())
    expected = engine.sample(*call)
    lines = set(emulated_device.failures(lambda: engine.sample(*call)))
    assert lines == {"app_steps: out of memory", "collective_sample: out of memory"}
    assert torch.equal(engine.sample(*call).vertices, expected.vertices)


def test_a_step_of_picks_takes_one_launch_more_than_its_lists(emulated_device):
    def launches(app):
        engine, roots = make_device_engine(binding.bind(app, small_graph()), torch.device("cpu")), drawn_roots(12, 5)
        before = emulated_device.num_launches()
        engine.sample(*roots, KEY, Run())
        return emulated_device.num_launches() - before

    assert launches(Mixed(UNIFORM, (4, 3, 2))) == 3 * 3  # members, degrees, picks
    assert launches(Mixed(UNIFORM, (4, 3), record="to_new")) == 1 + 2 * (1 + 1 + 1 + 2)  # edges: counted, then placed


def test_a_cubin_has_the_kernels_that_a_call_needs():
    source = (CSRC / "cuda" / "app_kernels.cuh").read_text()
    found = kernels.kernels_of(True, True)
    assert found == ("fs_app_start_samples", "fs_app_choose_transits", "fs_app_fill_slots")
    assert kernels.kernels_of(False, False) == found[2:]
    assert all(f"FS_APP_KERNEL void {kernel}(" in source for kernel in found)


@pytest.mark.parametrize(("way", "line"), [
    (DIVIDING, "next raised ZeroDivisionError (integer division or modulo by zero) in sample 7 at step 1"),
    (OUTSIDE, "next raised IndexError (edges["),
    (NO_NODE, "next returned node 300 for sample 7 at step 1; expected 0 to 11"),
])  # fmt: skip
def test_what_an_application_does_wrong_is_reported_in_pythons_words(device, way, line):
    roots, lines = torch.full((12, 1), 6), []
    bound = binding.bind(Mixed(way, (3, 3, 3), record="to_union"), small_graph())
    for sample in (
        lambda *call: make_device_engine(bound, device).sample(*call, Run()), lambda *call: plain.run(bound, *call),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as raised:
            sample(roots, torch.arange(12), KEY)
        lines.append(str(raised.value))
    assert lines[0] == lines[1] and lines[0].startswith(line)


def test_an_application_that_never_ends_is_reported_as_by_the_cpu(device, on_cpu):
    app, lines = Mixed(ENDING, (9,)), []
    app.max_steps = 2
    for sample in (
        fsd.TransitSampler(small_graph(), app, rng_seed=3, device=device).sample,
        lambda roots: on_cpu(small_graph(), app, roots),
    ):
        with pytest.raises(RuntimeError, match="has not ended after 2 steps") as raised:
            sample(torch.full((12,), 6))
        lines.append(str(raised.value))
    assert lines[0] == lines[1]


@pytest.mark.grid
@pytest.mark.parametrize("bad", [12, 2**30, -7])
def test_an_id_that_is_no_node_is_reported_as_by_the_cpu(device, on_cpu, bad):
    graph = small_graph(weighted=False)
    indices = graph.indices.clone()
    indices[::4] = bad
    graph, roots = dataclasses.replace(graph, indices=indices), torch.arange(12).view(3, 4)
    for app in (CASES["uniform"], CASES["arriving"]):
        lines = []
        for sample in (
            fsd.TransitSampler(graph, app, 3, device=device).sample, lambda roots, app=app: on_cpu(graph, app, roots)
        ):  # fmt: skip
            with pytest.raises((ValueError, RuntimeError), match=str(bad)) as raised:
                sample(roots)
            lines.append(str(raised.value))
        assert lines[0] == lines[1]


def test_the_library_refuses_a_function_that_there_is_not(emulated_device):
    bound = binding.bind(CASES["uniform"], small_graph())
    engine, roots = make_device_engine(bound, torch.device("cpu")), drawn_roots(12, 2)
    run = engine.own_run(bound.plan(3), *roots, KEY)
    with pytest.raises(ValueError, match=r"app_steps: function 3; expected 0 \(next\) to 2 \(initial\)"):
        run._enqueue(3, 0)
