"""The oracle engine against hand-written loops over words, and the rules of steps, transits and picks."""

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph
from fastsample_dist.ops import reference
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import plain
from tests.sampling.transit.apps import Counting, Own, Together, small_graph

NULL = transit.NULL


def made(base=Own, **attributes):
    return type("Mine", (base,), attributes)()


def neighbors(graph, node):
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()


def below(graph, key, sample_id, n, node):
    """A uniform neighbour by the words of pick n of a sample."""
    row = neighbors(graph, node)
    return row[reference.below(reference.node_words(key, sample_id, n << 32), len(row))] if row else NULL


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_walk_is_one_draw_per_sample_and_step(dtype):
    graph, roots, ids = small_graph(dtype=dtype), [4, 0, 6, 4], [3, 2**62, 5, 8]
    out = plain.sample(graph, Own(), roots, rng_seed=11, step=2**33 + 1, sample_ids=torch.tensor(ids))
    for i, root in enumerate(roots):
        walk = [root]
        for k in range(3):
            key = reference.stage_key(11, 4, k, 2**33 + 1)
            walk.append(NULL if walk[-1] == NULL else below(graph, key, ids[i], 0, walk[-1]))
        assert out.vertices[i].tolist() == walk
    assert out.sample_ids.tolist() == ids
    assert out.num_steps == 3


def test_picks_of_a_step_are_numbered_transit_by_transit():
    graph, app = small_graph(), made(picks=3, num_steps=2)
    out = plain.sample(graph, app, [[6, 3], [2, NULL]], rng_seed=1)
    for i, roots in enumerate([[6, 3], [2, NULL]]):
        transits = roots
        for k in range(2):
            key = reference.stage_key(1, 4, k, 0)
            picks = [
                NULL if v == NULL else below(graph, key, i, t * 3 + j, v)
                for t, v in enumerate(transits)
                for j in range(3)
            ]
            assert out.steps[k][i].tolist() == picks
            transits = picks
    assert out.indptr.tolist() == [0, 2 + int((out.vertices[0, 2:] != NULL).sum()), out.nodes.numel()]
    assert out.nodes.tolist() == [v for row in out.vertices.tolist() for v in row if v != NULL]


def test_distinct_picks_are_made_in_rounds():
    graph = small_graph()
    out = plain.sample(graph, made(picks=4, num_steps=1, distinct=True), [6, 4, 1, 0], rng_seed=2)
    key = reference.stage_key(2, 4, 0, 0)
    for i, root in enumerate([6, 4, 1, 0]):
        picks: dict[int, int] = {}
        for attempt in range(64):
            tried = {j: below(graph, key, i, attempt * 4 + j, root) for j in range(4) if j not in picks}
            for j, v in tried.items():
                if v == NULL or v not in picks.values():
                    picks[j] = v
        assert out.steps[0][i].tolist() == [picks.get(j, NULL) for j in range(4)]
    found = [sorted(set(row) - {NULL}) for row in out.steps[0].tolist()]
    assert found == [[3, 4, 8, 9], [5, 6], [1], []]


def test_a_pick_of_nothing_is_final():
    calls = []

    def pick_once(s, transits, edges, step, draw, par):
        calls.append(draw.index)
        return NULL if draw.index == 1 else edges[0]

    out = plain.sample(small_graph(), made(next=pick_once, picks=3, num_steps=1, distinct=True, max_attempts=4), [6])
    assert out.steps[0].tolist() == [[3, NULL, NULL]]
    assert calls == [0, 1, 2, 2, 2, 2]


def test_together_the_distinct_transits_make_one_row():
    graph, seen = small_graph(), []

    def look(s, transits, edges, step, draw, par):
        seen.append(([transits[i] for i in range(len(transits))], [edges[i] for i in range(len(edges))], draw.turn))
        return edges[draw.below(len(edges))]

    out = plain.sample(graph, made(Together, next=look, num_steps=1), [[6, NULL, 4, 6], [NULL] * 4], rng_seed=3)
    row = neighbors(graph, 6) + neighbors(graph, 4)
    assert seen == [([6, 4], row, j) for j in range(4)]
    words = [reference.node_words(reference.stage_key(3, 4, 0, 0), 0, j << 32) for j in range(4)]
    assert out.steps[0].tolist() == [[row[reference.below(own, len(row))] for own in words], [NULL] * 4]


def test_together_next_is_asked_where_no_transit_has_neighbours():
    out = plain.sample(small_graph(), made(Together, next=lambda *_: 5, num_steps=1, picks=2), [0])
    assert out.steps[0].tolist() == [[5, 5]]


def test_all_neighbours_in_their_order():
    graph = small_graph()
    out = plain.sample(graph, transit.MVS(), [[4, 0], [6, 4], [0, NULL]])
    rows = [neighbors(graph, 4), neighbors(graph, 6) + neighbors(graph, 4), []]
    assert out.steps[0].tolist() == [row + [NULL] * (7 - len(row)) for row in rows]
    assert [out.nodes[a:b].tolist() for a, b in zip(out.indptr, out.indptr[1:], strict=False)] == [
        [4, 0, *rows[0]], [6, 4, *rows[1]], [0]
    ]  # fmt: skip


def test_samples_end_when_they_have_no_transit():
    graph = small_graph()
    app = made(Counting, num_steps=transit.INF)
    out = plain.sample(graph, app, [6, 0, 4], rng_seed=5)
    assert out.num_steps == max(int((row != NULL).sum()) for row in out.vertices) - 1
    assert out.steps[-1].shape == (3, 1)
    assert out.vertices[1].tolist() == [0] + [NULL] * out.num_steps


def test_states_are_set_before_the_first_step_and_kept():
    graph = small_graph()
    out = plain.sample(graph, made(Counting, num_steps=2), [1] * 30, rng_seed=5)
    drawn = [reference.below(reference.node_words(reference.stage_key(5, 6, 0, 0), i), 7) for i in range(30)]
    # 2^30 + drawn, then twice that: from the second on the sign bit is set
    assert out.vertices.tolist() == [[1, 1, NULL]] * 30
    assert len(set(drawn)) > 3
    seen = []

    def look(s, transits, edges, step, draw, par):
        seen.append((s.id, step, s.count[0], s.count[1]))
        s.count[0] = s.count[0] + 1
        return edges[0]

    plain.sample(graph, made(Counting, next=look, num_steps=2), [1] * 30, rng_seed=5)
    assert seen == [(i, k, k, drawn[i]) for i in range(30) for k in range(2)]


def test_transits_are_chosen_by_the_application():
    def choose(step, s, index, draw, par):
        return s.vertex(draw.below(s.num_roots)) if index else NULL

    graph, app = small_graph(), made(step_transits=choose, num_transits=lambda self, step, num_roots: 2)
    out = plain.sample(graph, app, [[6, 3, 5]], rng_seed=4)
    for k in range(3):
        words = reference.node_words(reference.stage_key(4, 5, k, 0), 0, 1 << 32)
        node = [6, 3, 5][reference.below(words, 3)]
        assert out.steps[k].tolist() == [[NULL, below(graph, reference.stage_key(4, 4, k, 0), 0, 1, node)]]


def failing(step_of, what):
    def pick(s, transits, edges, step, draw, par):
        if s.id != 17 or step != step_of:
            return edges[0]
        return what()

    return pick


FAULTS = [
    (made(next=failing(2, lambda: 1 // 0)), "next raised ZeroDivisionError (integer division or modulo by zero) in "
     "sample 17 at step 2"),
    (made(next=failing(1, lambda: 99)), "next returned node 99 for sample 17 at step 1; expected 0 to 11 or transit."
     "NULL (-1)"),
    (made(next=failing(0, lambda: 1.5)), "next returned node 1.5 for sample 17 at step 0"),
    (made(next=failing(0, lambda: None)), "next returned node None for sample 17"),
    (made(next=failing(0, lambda: -2)), "next returned node -2 for sample 17"),
    (made(step_transits=lambda *_: 12), "step_transits returned node 12 for sample 3 at step 0"),
    (made(step_transits=lambda *_: {}[3]), "step_transits raised KeyError (3) in sample 3 at step 0"),
    (made(initial=lambda *_: [][0]), "initial raised IndexError (list index out of range) in sample 3 at step 0"),
    (made(num_steps=transit.INF, max_steps=5), "sample 3 has not ended after 5 steps; return transit.NULL in the end"),
]  # fmt: skip


@pytest.mark.parametrize("app, message", FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_what_an_application_does_wrong_is_named(app, message):
    with pytest.raises(RuntimeError) as caught:
        plain.sample(small_graph(), app, [1, 6], sample_ids=torch.tensor([3, 17]))
    assert message in str(caught.value)


def test_of_several_failures_the_first_step_counts():
    def late(s, transits, edges, step, draw, par):
        if step == 4 - s.id:
            raise KeyError(s.id)
        return edges[0]

    with pytest.raises(RuntimeError, match="in sample 3 at step 1"):
        plain.sample(small_graph(), made(next=late, num_steps=5), [1, 1, 1, 1])


def test_a_sample_may_take_as_many_steps_as_allowed():
    app = made(next=lambda s, transits, edges, step, draw, par: NULL if step == 4 else edges[0], num_steps=transit.INF)
    app.max_steps = 5
    assert plain.sample(small_graph(), app, [1]).vertices.tolist() == [[1, 1, 1, 1, 1]]


@pytest.mark.parametrize("app", [Own(), made(num_steps=transit.INF), Together(), transit.MVS(), transit.MultiRW(2)])
@pytest.mark.parametrize("roots", [[], torch.empty(0, 3, dtype=torch.int64)], ids=["no samples", "none of three roots"])
def test_no_samples(app, roots):
    out = plain.sample(small_graph(), app, roots)
    assert (len(out), out.nodes.numel(), out.indptr.tolist(), out.vertices.shape[0]) == (0, 0, [0], 0)


@pytest.mark.parametrize("app", [Own(), made(num_steps=transit.INF), Together(), transit.MVS(), transit.MultiRW(2)])
def test_samples_without_roots(app):
    out = plain.sample(small_graph(), app, torch.empty(2, 0, dtype=torch.int64))
    assert out.indptr.tolist() == [0, 0, 0]


@pytest.mark.parametrize("base", [Own, Together])
def test_no_picks(base):
    out = plain.sample(small_graph(), made(base, picks=0), [1, 2])
    assert [tuple(step.shape) for step in out.steps] == [(2, 0)] * 3


def test_samples_of_equal_ids_and_roots_are_equal():
    out = plain.sample(small_graph(), Own(), [6, 6, 6], sample_ids=torch.tensor([4, 4, 5]))
    assert out.vertices[0].tolist() == out.vertices[1].tolist()


def test_roots_of_its_own_depend_on_the_sample_id():
    whole = plain.sample(small_graph(), Own(), num_samples=40, rng_seed=3)
    half = plain.sample(small_graph(), Own(), rng_seed=3, sample_ids=torch.arange(20, 40))
    assert torch.equal(whole.vertices[20:], half.vertices)
    assert len(set(whole.roots[:, 0].tolist())) > 6


def test_clusters_are_roots():
    clusters = torch.arange(12) % 4
    out = plain.sample(small_graph(), transit.ClusterGCN(clusters, 2), num_samples=50, rng_seed=3)
    chosen = [sorted(set(clusters[row].tolist())) for row in out.roots]
    assert all(
        len(pair) == 2 and row.tolist() == sorted(row.tolist()) for pair, row in zip(chosen, out.roots, strict=True)
    )
    assert len(set(map(tuple, chosen))) == 6
    assert out.vertices.shape == (50, 6)


def test_a_graph_without_nodes_has_no_roots():
    graph = CSCGraph(torch.tensor([0]), torch.empty(0, dtype=torch.int32))
    assert len(plain.sample(graph, Own(), [])) == 0
    with pytest.raises(ValueError, match="no nodes to take roots from"):
        plain.sample(graph, Own(), num_samples=1)


def test_survival_thresholds_are_powers():
    table = transit.PPR(0.01).par.survival
    assert np.abs(table[:300] / 2.0**63 - 0.99 ** np.arange(1, 301)).max() < 1e-15
    assert (np.diff(table) <= 0).all() and table[-1] == 1 and 4300 < table.size < 4400
    assert transit.PPR(1.0).par.survival.size == 0
    assert transit.PPR(0.5).par.survival.tolist() == [2**k for k in range(62, -1, -1)]


@pytest.mark.parametrize("p, q, back, near, far", [
    (2.0, 0.5, 2**30, 2**31, 2**32), (1.0, 1.0, 2**32, 2**32, 2**32), (0.25, 4.0, 2**32, 2**30, 2**28),
])  # fmt: skip
def test_node2vec_thresholds(p, q, back, near, far):
    par = transit.Node2Vec(p=p, q=q).par
    assert (par.back, par.near, par.far) == (back, near, far)
    assert (par.low, par.high) == (min(back, near, far), 2**32)
