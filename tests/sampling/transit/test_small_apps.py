"""Random small applications on random small graphs: every compiled form equals plain Python, failures included."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.engine import SCHEDULES, Run
from fastsample_dist.sampling.transit.engines import forms_of, make_engine
from tests.optional import given, settings, st

KEY = DrawKey(rng_seed=2**63 - 1, step=2**40)
UNIFORM, WEIGHTED, NEAR, COIN, LOOK_BACK, STATE, COLUMN, FAILING, OUTSIDE = range(9)


class Drawn(transit.App):
    """An application whose shape and behaviour are parameters, so that one compilation serves them all."""

    state: ClassVar = {"small": (np.int32, 2), "wide": (np.int64, transit.ROOTS)}

    def __init__(self, mode, sizes, distinct, ends, columns):
        self.sizes, self.distinct, self.ends = sizes, distinct, ends
        self.par = transit.params(mode=mode, coin=2**31, share=0.75, table=np.array([3, -1, 2], np.int32))
        self.needs = transit.needs(edge_queries=True, max_weight=True, columns={"column": columns})
        self.max_steps, self.max_attempts = 40, 3
        if mode != STATE:
            self.state = {}

    def steps(self):
        return transit.INF if self.ends else len(self.sizes)

    def sample_size(self, step):
        return 1 if self.ends else self.sizes[step]

    def unique(self, step):
        return self.distinct


class Stateless(Drawn):
    state: ClassVar = {}

    def next(s, transits, edges, step, draw, par):  # noqa: C901 (one function, hence one compilation)
        mode = par.mode
        if len(edges) == 0:
            return transit.NULL
        if mode == 0:
            return edges[draw.below(len(edges))]
        if mode == 1:
            return edges.pick(draw)
        if mode == 2:
            u = edges.pick(draw)
            if u != transit.NULL and s.prev_edges(2, 0).has(u):
                return transits[0]
            return u
        if mode == 3:
            if draw.coin(par.coin):
                return transit.NULL
            return edges[len(edges) - 1 - draw.below(len(edges))]
        if mode == 4:
            i = draw.below(s.size)
            v = s.vertex(i)
            if v == transit.NULL:
                return s.root(0)
            row = s.row(v)
            if len(row) == 0 or row.total_weight < par.share * row.max_weight:
                return v
            return row[draw.below(len(row))]
        if mode == 6:
            if s.column[edges[0]] + par.table[s.id % 3] > draw.index:
                return edges[0]
            return s.prev_vertex(1, draw.turn)
        if mode == 7:
            if s.id == 2 and step == 1:
                raise ValueError
            return edges[draw.index % len(edges)]
        if s.id == 1 and step == 1:
            return 2**40
        return edges[0]


class WithState(Drawn):
    def initial(s, draw, par):
        s.small[1] = draw.word() + 2**31 - 1
        for i in range(s.num_roots):
            s.wide[i] = s.root(i)

    def step_transits(step, s, index, draw, par):
        return s.wide[draw.below(s.num_roots)]

    def num_transits(self, step, num_roots):
        return 1

    def next(s, transits, edges, step, draw, par):
        s.small[0] = s.small[0] + s.small[1]
        if s.small[0] % 3 == 1 or len(edges) == 0:
            return transit.NULL
        s.wide[0] = edges[draw.below(len(edges))]
        return s.wide[0]


@st.composite
def graphs(draw, kinds=((False, torch.int32), (False, torch.int64), (True, torch.int32), (True, torch.int64))):
    """Graphs of some kinds: (weighted, dtype of ids)."""
    weighted, dtype = draw(st.sampled_from(kinds))
    num_nodes = draw(st.integers(1, 12))
    edges = draw(st.lists(st.tuples(*[st.integers(0, num_nodes - 1)] * 2), max_size=60))
    src, dst = (torch.tensor([edge[i] for edge in edges], dtype=torch.int64) for i in range(2))
    weights = None
    if weighted:
        weights = torch.tensor(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=len(edges),
                                             max_size=len(edges))), dtype=torch.float32)  # fmt: skip
    graph = CSCGraph.from_edge_index(src, dst, num_nodes, weights)
    return CSCGraph(graph.indptr, graph.indices.to(dtype), graph.weights)


@st.composite
def cases(draw):
    """(application, graph, roots, ids)."""
    kinds = ((True, torch.int32),)  # each is compiled
    graph, mode = draw(graphs(kinds)), draw(st.integers(0, 8))
    num_roots = draw(st.integers(1, 3))
    ends = draw(st.booleans()) and mode in (COIN, STATE)
    sizes = draw(st.lists(st.integers(0, 3), max_size=3))
    if mode == STATE:
        sizes = [min(size, 1) for size in sizes]
    columns = torch.arange(graph.num_nodes) % 5 - 2
    app = (WithState if mode == STATE else Stateless)(mode, sizes, mode != STATE and draw(st.booleans()), ends, columns)
    node = st.integers(-1, graph.num_nodes - 1)
    roots = draw(st.lists(st.lists(node, min_size=num_roots, max_size=num_roots), max_size=6))
    ids = draw(st.lists(st.sampled_from([0, 1, 2, 3, 2**40, 2**63 - 1]), min_size=len(roots), max_size=len(roots)))
    return app, graph, torch.tensor(roots, dtype=torch.int64).reshape(-1, num_roots), torch.tensor(ids).long()


def outcome(sample):
    """Vertices, or the message of the failure."""
    try:
        samples = sample()
    except RuntimeError as error:
        return str(error)
    return samples.num_steps, samples.vertices.tolist(), samples.indptr.tolist(), samples.nodes.tolist()


@given(case=cases(), run=st.builds(Run, st.integers(1, 3), st.sampled_from(SCHEDULES), st.integers(0, 5)))
@settings(max_examples=50, deadline=None)
def test_an_application_is_the_same_compiled(case, run):
    pytest.importorskip("numba")
    app, graph, roots, ids = case
    bound = transit.bind(app, graph)
    expected = outcome(lambda: plain.run(bound, roots, ids, KEY))
    for form in forms_of(bound):
        assert outcome(lambda form=form: make_engine(bound, form).sample(roots, ids, KEY, run)) == expected


BUILT_IN = st.one_of(
    st.builds(transit.DeepWalk, st.integers(0, 5), st.sampled_from([None, False])),
    st.builds(transit.PPR, st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from([None, False])),
    st.builds(transit.Node2Vec, st.integers(0, 5), st.sampled_from([0.1, 1.0, 4.0]), st.sampled_from([0.25, 1.0, 3.0])),
    st.builds(transit.MultiRW, st.integers(0, 5), st.booleans()),
    st.builds(transit.KHop, st.lists(st.integers(0, 4), max_size=3), st.booleans()),
    st.builds(transit.MVS),
)


@given(app=BUILT_IN, graph=graphs(), run=st.builds(Run, st.integers(1, 3), st.sampled_from(SCHEDULES),
                                                    st.integers(0, 5)), data=st.data())  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_built_in_application_equals_its_definition(app, graph, run, data):
    num_roots = 1 if isinstance(app, transit.PPR) else data.draw(st.integers(1, 3))
    node = st.integers(-1, graph.num_nodes - 1)
    rows = data.draw(st.lists(st.lists(node, min_size=num_roots, max_size=num_roots), max_size=6))
    roots, bound = torch.tensor(rows, dtype=torch.int64).reshape(-1, num_roots), transit.bind(app, graph)
    ids = torch.arange(len(roots)) * 2**33
    expected = outcome(lambda: plain.run(bound, roots, ids, KEY))
    found = outcome(lambda: make_engine(bound, forms_of(bound)[0]).sample(roots, ids, KEY, run))
    assert found == expected
