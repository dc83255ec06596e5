"""Compiled applications against the oracle (plain.py), bit for bit: kernels alone, by hand-made tasks; the engine."""

import sys
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, TransitSampler
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import binding, plain
from fastsample_dist.sampling.transit.compile_cpu import compile_app
from fastsample_dist.testing.graphs import conformance_graph
from tests.grids import grid

from . import refused_apps
from .apps import Counting, Own, Together
from .step_driver import RaisedError, StepDriver, random_roots

pytest.importorskip("numba")
KEY = DrawKey(3, 2**33 + 5)
NODES = 64  # of conformance_graph(12)
COLUMNS = {"price": torch.arange(NODES) * 3 - 5, "rank": torch.arange(NODES).flip(0)}
EVERYTHING = transit.needs(edge_queries=True, max_weight=True, columns=COLUMNS)
VALUES = transit.params(
    offset=-7,
    share=0.25,
    unsigned=np.array([2**32 - 1, 5, 9], np.uint32),
    floats=np.array([0.5, 1.5], np.float32),
    doubles=np.array([0.125]),
    wide=np.array([2**40, -3]),
    narrow=np.array([4, -5], np.int32),
)


class Every(Own):
    """Every member of what an individual application sees, folded into a node."""

    needs, par, picks = EVERYTHING, VALUES, 2

    def next(s, transits, edges, step, draw, par):
        if draw.word() % 16 == 0:
            return transit.NULL
        bits = s.id % 1000 + s.num_roots * 3 + s.size * 5 + draw.index * 7 + draw.turn * 11 + step + transits[0]
        bits += s.root(draw.below(4)) + s.vertex(draw.below(9)) + s.prev_vertex(draw.below(4), draw.below(3))
        near = s.prev_edges(2, draw.below(2))
        far = s.row(draw.below(64))
        for row in (edges, near, far):
            bits += len(row) + int(row.total_weight * 1000) + int(row.max_weight * 1000) + row.has(draw.below(64))
            if len(row) > 0:
                own = draw.below(len(row))
                bits += row[own] + int(row.weight(own) * 1000) + row.has(row[own]) * 64
            bits += row.pick(draw)
        bits += s.price[draw.below(64)] + s.rank[transits[0]] + len(transits) + draw.word64() % 1000
        bits += par.offset + int(par.share * 8 + par.floats[1] + par.doubles[0]) + par.unsigned[0] + par.wide[-1]
        bits += par.wide[0] + par.narrow[draw.below(len(par.narrow))] + draw.coin(2**31)
        return bits % 64


class Draws(Own):
    """Bounds of all widths, a good part of them drawn again."""

    par = transit.params(bounds=np.array([1, 2, 3 * 2**30, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**61, 2**63 - 1]))

    def next(s, transits, edges, step, draw, par):
        bits = 0
        for i in range(len(par.bounds)):
            bits ^= draw.below(par.bounds[i])
        word = draw.word64()
        bits += (word < 2**62) * 2 + (word >= -1) + (2**61 > word) * 4 + (word >> 3 == word) * 8 + (word & 7) % 5  # noqa: SIM300
        return bits % 64


class Stateful(Own):
    """States of both widths, one per root, set at the start, with the transits and with every pick."""

    state: ClassVar = {"places": (np.int64, transit.ROOTS), "count": (np.int32, 2), "chosen": (np.int64, 1)}
    num_steps = 5

    def num_transits(self, step, num_roots):
        return 1

    def initial(s, draw, par):
        for i in range(s.num_roots):
            s.places[i] = s.root(i)
        s.count[1] = draw.below(7)

    def step_transits(step, s, index, draw, par):
        s.chosen[0] = draw.below(s.num_roots)
        return s.places[s.chosen[0]]

    def next(s, transits, edges, step, draw, par):
        while s.count[1] < 9:  # ends only where the state is written
            s.count[1] += 1
        s.count[0] = s.count[0] + 2**30 + 17
        if len(edges) == 0 or s.count[0] < -(2**30):
            return transit.NULL
        u = edges[draw.below(len(edges))]
        s.places[s.chosen[0]] = u
        return u


class EveryTogether(Together):
    """Every member of what a collective application sees, folded into a node."""

    needs, picks = transit.needs(edge_queries=True), 5

    def next(s, transits, edges, step, draw, par):
        bits = len(edges) + len(transits) * 3 + transits[draw.below(len(transits))] + s.size + edges.has(draw.below(64))
        if len(edges) > 0:
            own = draw.below(len(edges))
            bits += edges[own] + edges.transit_of(own) * 5 + int(edges.weight(own) * 1000)
        return bits % 64


INDIVIDUAL = {
    "own": (Own(), 2),
    "every": (Every(), 2),
    "draws": (Draws(), 1),
    "stateful": (Stateful(), 3),
    "counting": (Counting(), 1),
    "distinct": (type("Distinct", (Own,), {"distinct": True, "picks": 3, "max_attempts": 5})(), 1),
    "deepwalk": (transit.DeepWalk(6), 1),
    "node2vec": (transit.Node2Vec(6), 1),
    "ppr": (transit.PPR(0.2), 1),
    "multirw": (transit.MultiRW(8, by_degree=True), 4),
    "khop": (transit.KHop((3, 2), unique=True), 2),
    "mvs": (transit.MVS(), 2),
}
APPS = {**INDIVIDUAL, "together": (Together(), 3), "every together": (EveryTogether(), 3)}
# In every run those that a mistake can hardly hide from; compiling takes seconds each.
USUAL = {("every", torch.int64)}
CASES = [
    pytest.param(name, dtype, marks=[] if (name, dtype) in USUAL else [pytest.mark.grid])
    for name in APPS
    for dtype in (torch.int32, torch.int64)
]


def large_graph(dtype: torch.dtype) -> CSCGraph:
    """Rows that are hashed and rows that are scanned; weights of double precision where ids are wide."""
    graph = conformance_graph(12, dtype)
    weights = graph.weights.to(torch.float64) if dtype is torch.int64 else graph.weights
    return CSCGraph(graph.indptr, graph.indices, weights, graph.orig_ids)


def case(name, dtype):
    """A bound application, roots and ids."""
    app, num_roots = APPS[name]
    graph = large_graph(dtype)
    ids = torch.arange(70) * 12345678901 + 2
    return binding.bind(app, graph), random_roots(graph, (70, num_roots)), ids


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("options", [{}, {"pieces": 7, "reorder": True}], ids=["in order", "listed"])
def test_kernels_equal_the_oracle(name, dtype, options):
    bound, roots, ids = case(name, dtype)
    expected = plain.run(bound, roots, ids, KEY).steps
    made = StepDriver(bound, compile_app(bound), **options).run(roots, ids, KEY)
    assert len(made) == len(expected)
    for own, wanted in zip(made, expected, strict=True):
        np.testing.assert_array_equal(own, wanted.numpy())


@pytest.mark.parametrize("name", grid(["every", "stateful", "distinct"], gate=["every", "stateful"]))
@pytest.mark.parametrize("threads", [1, 2])
def test_the_engine_equals_the_oracle(name, threads):
    bound, roots, ids = case(name, torch.int64 if name == "every" else torch.int32)
    sampler = TransitSampler(bound.graph, bound.app, rng_seed=3, num_threads=threads)
    made = sampler.sample(roots, step=9, sample_ids=ids)
    expected = plain.sample(bound.graph, bound.app, roots, rng_seed=3, step=9, sample_ids=ids)
    assert torch.equal(made.vertices, expected.vertices)


@pytest.mark.grid
def test_without_weights_picks_are_uniform_and_weights_one():
    graph = conformance_graph(12)
    bound = binding.bind(Every(), CSCGraph(graph.indptr, graph.indices))
    roots, ids = random_roots(graph, (40, 2)), torch.arange(40)
    made = StepDriver(bound, compile_app(bound)).run(roots, ids, KEY)
    for own, wanted in zip(made, plain.run(bound, roots, ids, KEY).steps, strict=True):
        np.testing.assert_array_equal(own, wanted.numpy())


class Ranked(Together):
    needs = transit.needs(race="squared")

    def next(s, transits, edges, step, draw, par):
        return edges.ranked(draw.index)


def test_a_ranking_is_read_up_to_its_end():
    bound = binding.bind(Ranked(), large_graph(torch.int32))
    roots, driver = torch.tensor([[5, 6], [8, 8]]), StepDriver(bound, compile_app(bound))
    driver.ranking = np.array([[7, 3, -1], [4, -1, -1]])
    made = driver.run(roots, torch.arange(2), KEY)
    np.testing.assert_array_equal(made[0], [[7, 3, -1, -1], [4, -1, -1, -1]])


class Failing(Own):
    """Does what par.way says, for sample 17 at step 1."""

    picks, par, needs = 2, transit.params(way=0), EVERYTHING

    def next(s, transits, edges, step, draw, par):
        if s.id == 17 and step == 1 and draw.index == 3:
            if par.way == 0:
                return 7 // (step - 1)
            if par.way == 1:
                return edges[len(edges)]
            if par.way == 2:
                return edges.weight(-1) > 0
            if par.way == 3:
                return len(s.row(64))
            if par.way == 4:
                return s.price[-1]
            if par.way == 5:
                return transits[1]
            if par.way == 6:
                return draw.below(0)
            raise ValueError("enough")
        return transits[0]


WAYS = ["ZeroDivisionError", *["IndexError"] * 5, "ValueError", "ValueError"]


@pytest.mark.parametrize(("way", "error"), list(enumerate(WAYS)))
def test_an_exception_is_reported_with_its_slot_sample_and_step(way, error):
    app = Failing()
    app.par = transit.params(way=way)
    graph = large_graph(torch.int32)
    bound, roots = binding.bind(app, graph), torch.full((20, 1), 8)
    with pytest.raises(RaisedError) as raised:
        StepDriver(bound, compile_app(bound)).run(roots, torch.arange(20), KEY)
    assert raised.value.args == (1, 17 * 4 + 3)
    with pytest.raises(RuntimeError, match=rf"next raised {error} .* in sample 17 at step 1"):
        TransitSampler(graph, app).sample(roots)


@pytest.mark.parametrize(("line", "function", "reason"), refused_apps.cases(), ids=lambda value: str(value)[:20])
def test_a_function_that_cannot_be_compiled_is_refused_with_line_and_reason(line, function, reason):
    bound = binding.bind(type("Refused", (Own,), {"next": function})(), large_graph(torch.int32))
    with pytest.raises(ValueError) as refused:
        compile_app(bound)
    assert str(refused.value).startswith(f"refused_apps.py:{line}: next cannot be compiled: ")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_applications_of_equal_functions_layout_and_types_are_compiled_once():
    first, again = Failing(), Failing()
    again.par = transit.params(way=3)
    graph = large_graph(torch.int32)
    compiled = compile_app(binding.bind(first, graph))
    assert compile_app(binding.bind(again, large_graph(torch.int32))) == compiled
    assert compile_app(binding.bind(Own(), graph)).next != compiled.next
    assert compiled.step_transits is None and compiled.initial is None


def test_threads_share_a_kernel():
    bound, roots, ids = case("every", torch.int64)
    compiled, made = compile_app(bound), {}

    def run(half):
        for _ in range(5):
            made[half] = StepDriver(bound, compiled, pieces=9).run(roots[half::2], ids[half::2], KEY)

    threads = [threading.Thread(target=run, args=(half,)) for half in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = plain.run(bound, roots, ids, KEY).steps
    for half in (0, 1):
        for own, wanted in zip(made[half], expected, strict=True):
            np.testing.assert_array_equal(own, wanted[half::2].numpy())


def test_without_numba_the_extra_is_named(monkeypatch):
    bound = binding.bind(Own(), large_graph(torch.int32))
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"Own .*`pip install fastsample_dist\[apps\]`"):
        compile_app(bound)
