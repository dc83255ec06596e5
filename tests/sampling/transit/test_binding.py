"""Applications that are refused, each in one line; parameters and layouts."""

import ctypes

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from tests.sampling.transit.apps import Counting, Own, Together, small_graph


def made(base=Own, **attributes):
    """An application with some attributes or methods set to values."""
    return type("Mine", (base,), attributes)()


class Nothing(transit.App):
    def steps(self):
        return 1

    def sample_size(self, step):
        return 1


class NoSteps(transit.App):
    def next(s, transits, edges, step, draw, par):
        return transit.NULL


REFUSED = [
    (Own, "expected an instance of it, such as app()"),
    ("deepwalk", "an object of a subclass of transit.App"),
    (Nothing(), "Nothing has no next; define next(s, transits, edges, step, draw, par), without self"),
    (NoSteps(), "NoSteps has no steps()"),
    (made(sampling_type="both"), "expected transit.INDIVIDUAL or transit.COLLECTIVE"),
    (made(record="all"), "record is 'all'"),
    (made(record="within"), "Mine.record is 'within' but it is an individual application; expected None"),
    (made(steps=10), "Mine.steps is 10; expected a method"),
    (made(sample_size=1), "Mine.sample_size is 1; expected a method"),
    (made(unique=True), "Mine.unique is True; expected a method"),
    (made(next="x"), "Mine.next is 'x'; expected a function"),
    (made(state=[("x", np.int32, 1)]), "Mine.state is [('x', <class 'numpy.int32'>, 1)]; expected a dictionary"),
    (
        made(Together, record="to_new", step_transits=lambda step, s, i, draw, par: 0),
        "records edges and defines step_t",
    ),
    (made(max_steps=0), "max_steps is 0; expected an integer >= 1"),
    (made(needs={}), "expected transit.needs(...)"),
    (made(needs=transit.needs(race="squared")), "needs a race of an individual application"),
    (made(needs=transit.needs(columns={"x": [1, 2]})), "column x is torch.int64 of shape (2,)"),
    (made(needs=transit.needs(columns={"size": torch.zeros(12)})), "column 'size'"),
    (made(state={"id": (np.int32, 1)}), "a name that the sample does not use"),
    (made(state={"x": (np.float32, 1)}), "np.int32 or np.int64"),
    (made(state={"x": 5}), "np.int32 or np.int64"),
    (made(state={"x": (np.int32, 0)}), "entries >= 1"),
    (made(prepare=lambda self, graph, weighted: 3), "prepare returned int; expected transit.params"),
    (made(num_steps=-1), "steps() is -1; expected an integer >= 0"),
    (made(num_steps=2.5), "steps() is 2.5"),
    (made(picks=1.0), "Mine.sample_size(0) is 1.0; expected an integer >= 0, or transit.ALL"),
    (made(picks=None), "Mine.sample_size(0) is None; expected an integer >= 0, or transit.ALL"),
    (made(picks=-2), "sample_size(0) is -2; expected an integer >= 0"),
    (made(picks=transit.ALL), "is transit.ALL; that is for the last step"),
    (made(Together, picks=transit.ALL, num_steps=1), "is transit.ALL; that is for the last step"),
    (made(picks=transit.ALL, num_steps=1, distinct=True), "is transit.ALL; that is for the last step"),
    (made(picks=2**30), "expected fewer than 2^31"),
    (made(picks=2**26, num_steps=1, distinct=True), "attempts of unique picks included"),
    (made(Counting, picks=2), "has state and makes 2 picks per sample at step 0"),
    (made(Counting, picks=transit.ALL, num_steps=1), "has state and takes all neighbours at step 0; expected one pick"),
    (made(num_transits=lambda self, step, num_roots: 3), "is 3 but the step before leaves 1; define step_transits"),
]


@pytest.mark.parametrize("app, message", REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_an_application_is_refused(app, message):
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        plain.sample(small_graph(), app, [1, 2])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def asked_of(app, method, monkeypatch):
    """Steps that the plan of an application asks a method about, and the plan's picks."""
    asked, answer = [], getattr(type(app), method)

    def counted(self, step, *more):
        asked.append(step)
        return answer(self, step, *more)

    counted.__dict__.update(answer.__dict__)
    monkeypatch.setattr(type(app), method, counted)
    return asked, transit.bind(app, small_graph()).plan(1).widths


@pytest.mark.parametrize("app, method", [
    (transit.DeepWalk(1000), "sample_size"), (transit.PPR(0.01), "sample_size"), (transit.Node2Vec(1000), "unique"),
    (transit.MultiRW(1000), "num_transits"),
], ids=lambda value: value if isinstance(value, str) else type(value).__name__)  # fmt: skip
def test_steps_that_are_alike_are_not_all_asked_about(app, method, monkeypatch):
    asked, picks = asked_of(app, method, monkeypatch)
    assert asked == [0, 1] and set(picks) == {1} and len(picks) >= 1000


def test_every_step_is_asked_about_where_answers_may_differ(monkeypatch):
    grows = made(sample_size=lambda self, step: 1 + (step == 5), num_steps=7)
    asked, picks = asked_of(grows, "sample_size", monkeypatch)
    assert asked == [*range(7)] and picks == [1, 1, 1, 1, 1, 2, 2]


def test_weights_are_wanted_of_a_graph_that_has_some():
    with pytest.raises(ValueError, match="DeepWalk needs edge weights but the graph has none"):
        transit.bind(transit.DeepWalk(weighted=True), small_graph(weighted=False))


@pytest.mark.parametrize("weighted, uses", [(None, True), (True, True), (False, False)])
def test_weights_are_used_if_there_are_some_or_as_asked(weighted, uses):
    assert transit.bind(transit.DeepWalk(weighted=weighted), small_graph()).weighted is uses


@pytest.mark.parametrize("make", [
    lambda: transit.DeepWalk(-1),
    lambda: transit.DeepWalk(5.5),
    lambda: transit.Node2Vec("5"),
    lambda: transit.DeepWalk(True),
    lambda: transit.KHop(5),
    lambda: transit.KHop("55"),
    lambda: transit.KHop(np.array([2.0])),
    lambda: transit.LADIES(64),
    lambda: transit.bind(transit.DeepWalk(10**9), small_graph()).plan(1),
    lambda: transit.PPR(0.0),
    lambda: transit.PPR(1.5),
    lambda: transit.Node2Vec(p=0.0),
    lambda: transit.Node2Vec(q=float("nan")),
    lambda: transit.Node2Vec(p=1e-11),
    lambda: transit.Node2Vec(q=1e7),
    lambda: transit.ClusterGCN(torch.tensor([0, 1, -1])),
    lambda: transit.ClusterGCN(torch.tensor([0, 1]), num_clusters=3),
    lambda: transit.KHop((3, transit.ALL)),
    lambda: transit.needs(weights="maybe"),
    lambda: transit.needs(race="cubed"),
    lambda: transit.params(x=[[1]]),
    lambda: transit.params(x=np.zeros(2, np.uint64)),
    lambda: transit.params(x=2**63),
    lambda: transit.params(words=1),
])  # fmt: skip
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="expected|choose|too far apart"):
        make()


@pytest.mark.parametrize("make", [
    lambda value: transit.DeepWalk(5, weighted=value),
    lambda value: transit.Node2Vec(5, weighted=value),
    lambda value: transit.LADIES((3,), weighted=value),
    lambda value: transit.FastGCN((3,), weighted=value),
    lambda value: transit.FastGCN((3,), replace=value),
    lambda value: transit.MultiRW(5, by_degree=value),
    lambda value: transit.KHop((3,), unique=value),
])  # fmt: skip
def test_a_flag_of_an_application_is_a_truth_value(make):
    for value in ("false", 0, 1, 0.0):
        with pytest.raises(ValueError, match=rf"^\w+ is {value!r}; expected True or False"):
            make(value)
    make(np.True_), make(torch.tensor(False))


def test_edge_weights_are_left_out_where_numpy_says_so():
    graph = fsd.CSCGraph.from_edge_index(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, torch.tensor([1.0, 2.0]))
    for app in (transit.LADIES, transit.FastGCN, transit.DeepWalk):
        assert not app(weighted=np.False_).weighted(graph) and app(weighted=np.True_).weighted(graph)
    with pytest.raises(ValueError, match="weights is 0; expected True, False or"):
        transit.needs(weights=0)


def test_numbers_of_an_application_may_be_arrays_of_numpy_and_torch():
    for sizes in (np.array([3, 2]), torch.tensor([3, 2], dtype=torch.int32)):
        assert transit.KHop(sizes).sizes == transit.LADIES(sizes).sizes == (3, 2)
    walk = transit.Node2Vec(np.int64(5), np.float32(0.5), torch.tensor(2.0))
    assert (walk.length, walk.p, walk.q) == (5, 0.5, 2.0)
    assert transit.PPR(np.float32(0.5)).stop == 0.5
    layer = transit.Layer(torch.tensor(20), np.int64(6))
    assert (layer.final_size, layer.step_size) == (20, 6)


@pytest.mark.parametrize("roots, message", [
    ([1, 12], "roots holds node ids from 1 to 12; expected 0 to 11"),
    ([-2], "roots holds node ids from -2 to -2"),
    ([1.5], "roots is torch.float32; expected integers"),
    ([[[1]]], r"roots has shape (1, 1, 1)"),
    (None, "there are no roots; pass them, or num_samples"),
    ("abc", "roots is 'abc'; expected integers: a tensor, or a list of them."),
    ({"a": 1}, "roots is {'a': 1}; expected integers"),
    ([None], "roots is [None]; expected integers"),
    ([[1, 2], [3]], "roots is [[1, 2], [3]]; expected integers"),
    ([2**70], "roots is [1180591620717411303424]; expected integers"),
    (np.array([[1, "a" * 40]], dtype=object), "expected integers: a tensor, or a list of them."),
    ([1 + 2j], "roots is torch.complex64; expected integers."),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_roots_are_refused(roots, message):
    with pytest.raises(ValueError) as caught:
        plain.sample(small_graph(), Own(), roots)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("ids", [*map(torch.tensor, ([1], [1, -1], [[1, 2]], [0.5, 1.5])), "ab", [None, 1]])
def test_sample_ids_are_refused(ids):
    for roots in ([1, 2], None):
        with pytest.raises(ValueError, match="sample_ids"):
            plain.sample(small_graph(), Own(), roots, sample_ids=ids, num_samples=None if roots else 2)


@pytest.mark.parametrize("count", ["ab", -1, 1.5, True])
def test_a_number_of_samples_is_an_integer(count):
    with pytest.raises(ValueError, match=f"num_samples is {count!r}; expected an integer >= 0"):
        plain.sample(small_graph(), Own(), num_samples=count)


def test_what_a_device_samples_from_comes_not_to_the_host():
    bound, meta = transit.bind(transit.DeepWalk(2), small_graph()), torch.device("meta")  # where nothing can be read
    roots, ids = plain.given_roots(
        bound, torch.zeros(5, dtype=torch.int32, device=meta), DrawKey(0), None, None, check_ids=False, device=meta
    )  # fmt: skip
    assert roots.device == ids.device == meta and roots.dtype == ids.dtype == torch.int64
    assert roots.shape == (5, 1) and ids.shape == (5,)
    assert bound.ids(None, 3).tolist() == [0, 1, 2]


def test_parameters_become_words_in_their_order():
    par = transit.params(a=-3, b=0.5, c=torch.tensor([7, 8], dtype=torch.int32), d=True)
    words = par.words()
    assert par.kinds == (("a", "int"), ("b", "float"), ("c", "int32"), ("d", "int"))
    assert words[[0, 3, 4]].tolist() == [-3, 2, 1]
    assert words[1:2].view(np.float64).tolist() == [0.5]
    assert list((ctypes.c_int32 * 2).from_address(int(words[2]))) == [7, 8]
    assert (par.a, par.b, par.plain().c) == (-3, 0.5, (7, 8))
    with pytest.raises(AttributeError, match="no parameter 'e'"):
        par.e  # noqa: B018


def test_states_have_their_words_in_order():
    app = made(Own, state={"a": (np.int32, 2), "b": (np.int64, transit.ROOTS), "c": (np.int64, 1)})
    layout = transit.bind(app, small_graph()).layout
    assert layout.offsets(num_roots=5) == [0, 2, 7, 8]
    assert layout == transit.bind(app, small_graph()).layout
    assert hash(layout) == hash(transit.bind(app, small_graph()).layout)


@pytest.mark.parametrize("app", [transit.DeepWalk(3), transit.FastGCN((2,))], ids=lambda app: type(app).__name__)
@pytest.mark.parametrize("roots, found", [([1, 12], "1 to 12"), ([-2, 3], "-2 to 3"), ([2**40], "1099511627776 to")])
def test_roots_that_the_core_refuses_are_refused_in_the_same_words(app, roots, found):
    sampler, expected = (
        fsd.TransitSampler(small_graph(), app),
        rf"^roots holds node ids from {found}.*; expected 0 to 11, or",
    )
    with pytest.raises(ValueError, match=expected):
        sampler.sample(torch.tensor(roots)[None] if isinstance(app, transit.FastGCN) else roots)
    assert len(sampler.sample([1])) == 1
