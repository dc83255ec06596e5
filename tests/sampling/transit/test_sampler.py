"""TransitSampler: which form samples, what it refuses, and the messages of failing applications."""

import sys
from functools import partial

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import memory_sizes, ops
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.engines import BUILT_IN, NUMBA, built_in_kind, forms_of
from fastsample_dist.testing import check_app, conformance_graph
from tests.grids import grid
from tests.sampling.transit.apps import Own, small_graph

APPS = {
    "DeepWalk": transit.DeepWalk(5),
    "PPR": transit.PPR(0.3),
    "PPR of one step": transit.PPR(1.0),
    "Node2Vec": transit.Node2Vec(5),
    "Node2Vec that goes back": transit.Node2Vec(5, p=0.01, q=1.0),
    "MultiRW": transit.MultiRW(5),
    "MultiRW by degree": transit.MultiRW(5, by_degree=True),
    "KHop": transit.KHop((3, 2)),
    "KHop unique": transit.KHop((4, 2), unique=True),
    "MVS": transit.MVS(),
}


def some_roots(app, graph):
    """Pairs of roots for applications that take several; all nodes otherwise."""
    nodes = torch.arange(graph.num_nodes)
    if isinstance(app, transit.MultiRW | transit.MVS | transit.KHop):
        return torch.stack([nodes, nodes.flip(0), torch.where(nodes % 3 == 0, -1, nodes)], 1)
    return nodes


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_a_built_in_application_passes_the_suite(app):
    graph = conformance_graph()
    report = check_app(app, graph, roots=some_roots(app, graph), forms=[BUILT_IN], law_samples=500)
    assert report.num_runs == 4 * 3 * 5 + 2 + 2
    assert report.num_law_picks >= 500


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "uniform"])
def test_node2vec_of_several_roots_passes_the_suite(weighted):
    """Every walk of a sample has its own vertex before; in every form there is."""
    graph = conformance_graph()
    roots = some_roots(transit.KHop(), graph)
    report = check_app(transit.Node2Vec(4, 0.05, 4.0, weighted), graph, roots=roots, law_samples=600)
    assert report.num_law_picks > 1000


@pytest.mark.parametrize("app", [transit.Layer(9, 4), transit.FastGCN((3, 2)), transit.LADIES((3, 2))],
                         ids=lambda app: type(app).__name__)  # fmt: skip
def test_a_built_in_layer_wise_application_passes_the_suite(app):
    graph = conformance_graph()
    roots = torch.stack([torch.arange(12), torch.arange(12).flip(0), torch.full((12,), -1)], 1)
    report = check_app(app, graph, roots=roots, forms=[BUILT_IN], law_samples=500)
    assert report.num_law_picks >= 500 * 5


def test_clusters_pass_the_suite_with_roots_of_their_own():
    graph = conformance_graph()
    app = transit.ClusterGCN(torch.arange(graph.num_nodes) % 5, 2)
    report = check_app(app, graph, forms=[BUILT_IN], law_samples=1000)
    assert (report.num_law_picks, report.num_law_roots) == (0, 1000)


@pytest.mark.grid
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_every_form_of_it_passes_on_every_kind_of_graph(app, weighted, dtype):
    pytest.importorskip("numba")
    graph = conformance_graph(5, dtype, seed=2)
    if not weighted:
        graph = fsd.CSCGraph(graph.indptr, graph.indices, None, graph.orig_ids)
    assert check_app(app, graph, roots=some_roots(app, graph)).forms == (BUILT_IN, NUMBA)


@pytest.mark.parametrize("app", APPS.values(), ids=APPS)
def test_a_graph_without_edges(app):
    graph = fsd.CSCGraph(torch.zeros(4, dtype=torch.int64), torch.empty(0).int(), torch.empty(0))
    found = fsd.TransitSampler(graph, app).sample(torch.arange(3))
    assert torch.equal(found.vertices, plain.sample(graph, app, torch.arange(3)).vertices)
    assert found.nodes.tolist() == [0, 1, 2]


class OwnNext(transit.DeepWalk):
    def next(s, transits, edges, step, draw, par):
        return edges.pick(draw)


class OwnInitial(transit.DeepWalk):
    def initial(s, draw, par):
        draw.word()


class OwnSize(transit.MVS):
    def sample_size(self, step):
        return 1


class OwnLength(transit.Node2Vec):
    def steps(self):
        return 2


class OwnState(transit.PPR):
    state = {"length": transit.PPR.state["length"], "more": transit.PPR.state["length"]}  # noqa: RUF012


@pytest.mark.parametrize("app, form", [
    (OwnNext(), NUMBA), (OwnInitial(), NUMBA), (OwnSize(), NUMBA), (OwnState(), NUMBA), (Own(), NUMBA),
    (OwnLength(), BUILT_IN), (transit.KHop(), BUILT_IN),
], ids=lambda value: getattr(type(value), "__name__", ""))  # fmt: skip
def test_a_subclass_with_functions_of_its_own_is_compiled(app, form):
    assert forms_of(transit.bind(app, small_graph()))[0] == form
    assert (built_in_kind(transit.bind(app, small_graph())) is None) == (form == NUMBA)


def test_an_application_of_ones_own_names_the_extra_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"Own is an application of your own.*pip install fastsample_dist\[apps\]"):
        fsd.TransitSampler(small_graph(), Own())


def test_built_in_applications_need_no_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    out = fsd.TransitSampler(small_graph(), transit.DeepWalk(3), rng_seed=2).sample([4, 6], step=1)
    assert torch.equal(out.vertices, plain.sample(small_graph(), transit.DeepWalk(3), [4, 6], 2, 1).vertices)


@pytest.mark.parametrize("options, message", [
    ({"rng_seed": -1}, "rng_seed is -1"),
    ({"rng_seed": 2**63}, "expected an integer from 0 to 2**63 - 1"),
    ({"num_threads": 0}, "num_threads is 0"),
    ({"schedule": "walks"}, "schedule is 'walks'; expected 'auto', 'sample', 'transit' or 'transit_flat'"),
    ({"device": "tpu"}, "device is 'tpu'; expected \"cpu\", \"cuda\""),
])  # fmt: skip
def test_options_are_refused(options, message):
    with pytest.raises(ValueError) as caught:
        fsd.TransitSampler(small_graph(), transit.DeepWalk(3), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("step", [-1, 1.5, "1", None, 2**63, 2**64])
def test_a_step_that_is_none_is_refused(step):
    graph, app = small_graph(), transit.DeepWalk(3)
    for sample in (fsd.TransitSampler(graph, app).sample, partial(plain.sample, graph, app)):
        with pytest.raises(ValueError, match=rf"step is {step!r}; expected an integer from 0 to 2\*\*63 - 1"):
            sample([1], step=step)


def test_a_number_of_samples_stands_for_roots_alone():
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(3))
    assert len(sampler.sample(num_samples=3)) == 3
    with pytest.raises(ValueError, match="num_samples is 3 beside roots"):
        sampler.sample([1], num_samples=3)


def test_samples_that_do_not_fit_are_refused_before_one_is_made(monkeypatch):
    """1.6 GB, of which 1 GB is free; a size that is not certain (all neighbours, walks until they are done) is not."""
    graph, roots = small_graph(weighted=False), torch.zeros(200, dtype=torch.int64)
    samplers = [fsd.TransitSampler(graph, app) for app in (transit.KHop((1000, 1000)), transit.MVS())]
    samplers.append(fsd.TransitSampler(graph, transit.PPR(0.3)))
    monkeypatch.setattr(memory_sizes, "available_bytes", lambda: 10**9)
    message = "200 samples of KHop with 1 roots and 1001000 picks each take at least 1.61GB, but 1GB of memory are free"
    with pytest.raises(ValueError, match=message):
        samplers[0].sample(roots)
    with pytest.raises(
        ValueError, match="1000000000000 samples of MVS with 1 roots and 0 picks each take at least 8TB"
    ):
        samplers[1].sample(num_samples=10**12)
    assert [len(sampler.sample(roots)) for sampler in samplers[1:]] == [200, 200]
    assert len(samplers[0].sample(roots[:100])) == 100


@pytest.mark.parametrize("name", ["all neighbours", "walks"])
def test_samples_of_no_known_size_that_do_not_fit_are_refused(name):
    """8 TB of a million neighbours of each of a million roots; 3 TB of walks of 100,000 steps, on average."""
    if name == "walks":
        sampler = fsd.TransitSampler(fsd.CSCGraph(torch.arange(2), torch.zeros(1).int()), transit.PPR(1e-5))
        roots = torch.zeros(4 * 10**6).long()
    else:
        graph = fsd.CSCGraph(torch.tensor([0, 10**6]), torch.zeros(10**6).int())
        sampler, roots = fsd.TransitSampler(graph, transit.MVS()), torch.zeros(1, 10**6).long()
    message = r"samples have \d+ vertices, which take [\d.]+ GB, but [\d.]+ GB of memory are free; make them in several"
    with pytest.raises(ValueError, match=message):
        sampler.sample(roots)


def test_tables_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory_sizes, "available_bytes", lambda: 100)
    with pytest.raises(ValueError, match="walk slots .* 100B of memory"):
        fsd.TransitSampler(small_graph(), transit.DeepWalk(3))
    fsd.TransitSampler(small_graph(weighted=False), transit.DeepWalk(3))


def test_a_copy_of_the_neighbours_changes_nothing_and_is_counted():
    graph = small_graph(weighted=False)
    own, copied = (fsd.TransitSampler(graph, transit.DeepWalk(3), 5, copy_indices=copy) for copy in (False, True))
    assert (own.table_bytes, copied.table_bytes) == (0, graph.indices.nbytes)
    assert torch.equal(own.sample(range(12)).vertices, copied.sample(range(12)).vertices)


@pytest.mark.parametrize("schedule", ["auto", "sample", "transit", "transit_flat"])
def test_schedules_and_threads_change_nothing(schedule):
    graph, app = small_graph(), transit.KHop((3, 3), unique=True)
    found = fsd.TransitSampler(graph, app, 5, num_threads=2, schedule=schedule).sample(torch.arange(12), step=7)
    expected = plain.sample(graph, app, torch.arange(12), 5, 7)
    assert torch.equal(found.vertices, expected.vertices)
    assert all(torch.equal(a, b) for a, b in zip(found.steps, expected.steps, strict=True))
    assert torch.equal(found.indptr, expected.indptr) and torch.equal(found.nodes, expected.nodes)


class Failing(Own):
    def next(s, transits, edges, step, draw, par):
        if s.id == 17 and step == 2:
            return edges[len(edges)]
        if s.id == 18 and step == 1:
            return 99
        return edges[0]


class Endless(transit.PPR):
    """Walks of hundreds of steps in an application that allows five."""

    def __init__(self):
        super().__init__(0.001)
        self.max_steps = 5


@pytest.mark.parametrize("ids, message", [
    ([3, 17], "next raised IndexError (edges[1]: expected 0 to 0) in sample 17 at step 2"),
    ([17, 18], "next returned node 99 for sample 18 at step 1; expected 0 to 11 or transit.NULL (-1)"),
])  # fmt: skip
def test_a_compiled_application_fails_in_the_words_of_plain_python(ids, message):
    pytest.importorskip("numba")
    for sample in (
        fsd.TransitSampler(small_graph(), Failing()).sample,
        lambda *a, **k: plain.sample(small_graph(), Failing(), *a, **k),
    ):
        with pytest.raises(RuntimeError) as caught:
            sample([1, 1], sample_ids=torch.tensor(ids))
        assert str(caught.value) == message


def test_a_built_in_application_that_never_ends_is_refused():
    graph = small_graph()
    with pytest.raises(RuntimeError) as caught:
        fsd.TransitSampler(graph, Endless()).sample([4, 1])
    with pytest.raises(RuntimeError) as expected:
        plain.sample(graph, Endless(), [4, 1])
    assert str(caught.value) == str(expected.value)
    assert "has not ended after 5 steps" in str(caught.value)


@pytest.mark.grid
def test_rows_of_millions_of_edges():
    """Node 0 has 2^24 + 3 neighbours, all others node 0 alone."""
    degree, num_nodes = 2**24 + 3, 1000
    indptr = torch.cat([torch.tensor([0]), degree + torch.arange(num_nodes)])
    indices = torch.cat([torch.arange(degree, dtype=torch.int32) % num_nodes, torch.zeros(num_nodes - 1).int()])
    graph = fsd.CSCGraph(indptr, indices)
    for app in (transit.DeepWalk(6), transit.KHop((5, 5), unique=True)):
        found = fsd.TransitSampler(graph, app, 3).sample(torch.arange(40))
        assert torch.equal(found.vertices, plain.sample(graph, app, torch.arange(40), 3).vertices)


@pytest.fixture(scope="module")
def rows_of_many_nodes():
    """64 rows of 40 neighbours among 2^24 rows, for ids of both types: their walk slots are written differently."""
    num_nodes, generator = 2**24, torch.Generator().manual_seed(8)
    hubs = num_nodes - 1 - torch.arange(64).flip(0) * (num_nodes // 64)
    degrees = torch.zeros(num_nodes + 1, dtype=torch.int64)
    degrees[hubs + 1] = 40
    rows = [hubs[torch.randperm(64, generator=generator)[:40]].sort().values for _ in hubs]
    weights = torch.rand(64 * 40, generator=generator)
    weights[:80] = torch.arange(80) % 2
    weights[80:120] = 0
    return hubs, {
        dtype: fsd.CSCGraph(degrees.cumsum(0), torch.cat(rows).to(dtype), weights)
        for dtype in (torch.int32, torch.int64)
    }


CUT_OFF = [
    (transit.DeepWalk(40), None), (transit.DeepWalk(40), "scalar"), (transit.PPR(0.03), None),
    (transit.Node2Vec(40), None), (OwnNext(40), None),
]  # fmt: skip


@pytest.mark.parametrize(
    "app, isa",
    grid(CUT_OFF, gate=CUT_OFF[:2], several=True),
    ids=lambda value: value or "widest" if isinstance(value, str | None) else type(value).__name__,
)
def test_a_threshold_that_a_slots_word_cuts_off_decides_as_a_whole(app, isa, rows_of_many_nodes):
    """The words hold 14 bits of a threshold: of half a million draws some 30 are decided by the others."""
    hubs, graphs = rows_of_many_nodes
    before = ops.isa()
    ops.set_isa(isa or before)
    try:
        short, long = (
            fsd.TransitSampler(graph, app, 6, num_threads=2).sample(hubs.repeat(200)) for graph in graphs.values()
        )
    finally:
        ops.set_isa(before)
    assert torch.equal(short.nodes, long.nodes) and torch.equal(short.indptr, long.indptr)
    assert short.nodes.numel() > 250_000
