"""What an application's functions see: draws, rows, states."""

from itertools import islice

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph
from fastsample_dist.ops import reference
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit.binding import StateField
from fastsample_dist.sampling.transit.values import CombinedRow, Draw, Sample, State, Tables
from fastsample_dist.testing.statistics import Evidence, pearson_p
from tests.sampling.transit.apps import Counting, Own, small_graph

KEY = reference.stage_key(5, 4, 1, 0)


def tables(app=None, graph=None):
    return Tables(transit.bind(app or transit.Node2Vec(), graph or small_graph()))


def test_words_are_those_of_the_sample_and_the_pick():
    draw, words = Draw(KEY, 7, 3), islice(reference.node_words(KEY, 7, 3 << 32), 5)
    first = [draw.word(), draw.word(), draw.word()]
    assert [*first, *divmod(draw.word64(), 2**32)[::-1]] == list(words)


@pytest.mark.parametrize("n", [1, 3, 2**32 - 1, 2**32, 2**40 + 1])
def test_below_is_the_exact_bounded_draw(n):
    draw, words = Draw(KEY, 7, 0), reference.node_words(KEY, 7)
    assert [draw.below(n) for _ in range(20)] == [reference.below(words, n) for _ in range(20)]


def test_below_nothing_is_refused():
    with pytest.raises(ValueError, match=r"draw.below\(0\): expected 1 or more"):
        Draw(KEY, 0, 0).below(0)


def thirds(below, count=3000):
    """Evidence about draws below 3 * 2^30 by their remainder: without rejection one of three comes twice as often."""
    evidence, seen = Evidence(1e-6), np.zeros(3)
    for sample in range(count):
        seen[below(Draw(KEY, sample, 0), 3 * 2**30) % 3] += 1
    evidence.add(pearson_p(seen, np.full(3, count / 3)), lambda: "remainders")
    return evidence


def test_a_draw_below_a_bound_that_is_no_power_of_two_is_uniform():
    thirds(Draw.below).decide()


def test_a_bounded_draw_without_rejection_is_found():
    with pytest.raises(AssertionError, match="remainders"):
        thirds(lambda draw, n: draw.word() * n >> 32).decide()


def test_a_coin_falls_below_its_threshold_alone():
    word = Draw(KEY, 3, 0).word()
    assert [Draw(KEY, 3, 0).coin(threshold) for threshold in (0, word, word + 1, 2**32)] == [False, False, True, True]


def test_a_row_reads_its_edges():
    row, graph = tables().row(4), small_graph()
    assert [row[i] for i in range(len(row))] == [5, 5, 6]
    weights = graph.weights[graph.indptr[4] : graph.indptr[5]].double().tolist()
    assert [row.weight(i) for i in range(3)] == weights
    assert row.total_weight == weights[0] + weights[1] + weights[2]
    assert [row.has(v) for v in (5, 6, 7)] == [True, True, False]


def test_a_pick_is_an_alias_draw():
    graph, row = small_graph(), tables().row(6)
    table = reference.alias_row(graph.weights[graph.indptr[6] : graph.indptr[7]].double().tolist())
    for sample in range(50):
        words = reference.node_words(KEY, sample)
        slot = reference.below(words, 4)
        slot = slot if next(words) < table.thresholds[slot] else table.aliases[slot]
        assert row.pick(Draw(KEY, sample, 0)) == row[slot]


def test_without_weights_a_pick_is_one_bounded_draw_and_weights_are_one():
    row = tables(transit.DeepWalk(weighted=False)).row(6)
    assert row.pick(Draw(KEY, 3, 0)) == row[Draw(KEY, 3, 0).below(4)]
    assert (row.weight(0), row.total_weight) == (1.0, 4.0)


@pytest.mark.parametrize("node", [0, 11, transit.NULL], ids=["no edges", "weights of zero", "no vertex"])
def test_where_nothing_can_be_picked_nothing_is_drawn(node):
    draw = Draw(KEY, 3, 0)
    assert tables().row(node).pick(draw) == transit.NULL
    assert draw.word() == Draw(KEY, 3, 0).word()


def test_maxima_and_membership_must_be_asked_for():
    row = tables(Own()).row(4)
    for read in (lambda: row.max_weight, lambda: row.has(5)):
        with pytest.raises(ValueError, match="not among the needs of Own"):
            read()
    app = Own()
    app.needs = transit.needs(max_weight=True)
    graph = small_graph()
    assert tables(app).row(4).max_weight == graph.weights[graph.indptr[4] : graph.indptr[5]].double().max()
    assert tables(app).row(0).max_weight == 0.0


def test_combined_rows_stand_one_behind_the_other():
    own = tables()
    row = CombinedRow([own.row(node) for node in (4, 0, 7)])
    assert [row[i] for i in range(len(row))] == [5, 5, 6, 10, 11]
    assert [row.transit_of(i) for i in range(5)] == [0, 0, 0, 2, 2]
    assert [row.weight(i) for i in range(5)] == [*(own.row(4).weight(i) for i in range(3)), own.row(7).weight(0),
                                                  own.row(7).weight(1)]  # fmt: skip
    assert [row.has(v) for v in (6, 11, 7)] == [True, True, False]
    with pytest.raises(ValueError, match="ranked needs"):
        row.ranked(0)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.row(4)[3],
        lambda t: t.row(4)[-1],
        lambda t: t.row(4).weight(3),
        lambda t: t.row(12),
        lambda t: t.row(-2),
        lambda t: CombinedRow([t.row(4)])[3],
        lambda t: State(StateField("x", np.int32, 2), 2)[2],
    ],
)
def test_an_index_outside_is_refused(read):
    with pytest.raises(IndexError, match="expected 0 to|has nodes 0 to 11"):
        read(tables())


def test_an_index_into_nothing_says_that_there_is_nothing():
    with pytest.raises(IndexError, match=r"^edges\[0\]: there are none$"):
        tables().row(0)[0]


def test_rows_are_read_by_position_alone():
    with pytest.raises(TypeError):
        list(tables().row(4))
    with pytest.raises(TypeError):
        5 in tables().row(4)  # noqa: B015


@pytest.mark.parametrize("dtype, bits", [(np.int32, 32), (np.int64, 64)])
def test_states_wrap_to_their_width(dtype, bits):
    state = State(StateField("x", dtype, 1), 1)
    state[0] = 2 ** (bits - 1) + 5
    assert state[0] == -(2 ** (bits - 1)) + 5


def test_a_sample_shows_what_came_before():
    s = Sample(tables(Counting()), 9, [4, 5, -1])
    s.add([6, -1])
    s.add([8, 9])
    s.at(2, slot=1)
    assert (s.id, s.num_roots, s.root(0), s.root(2), s.root(3)) == (9, 3, 4, -1, -1)
    assert [s.prev_vertex(i, 0) for i in (0, 1, 2, 3, 4)] == [-1, 8, 6, 4, -1]
    assert [s.prev_vertex(1, pos) for pos in (-1, 1, 2)] == [-1, 9, -1]
    assert [s.vertex(j) for j in range(-1, 9)] == [-1, 4, 5, -1, 6, -1, 8, 9, -1, -1]
    assert s.size == 2 + 1 + 2 + 1
    s.at(1)
    assert (s.size, s.prev_vertex(1, 0), s.vertex(5)) == (3, 6, -1)
    row = s.prev_edges(1, 0)
    assert [row[i] for i in range(len(row))] == [3, 4, 8, 9]
    assert len(s.prev_edges(1, 1)) == 0


def test_a_sample_has_no_attributes_but_its_own():
    s = Sample(tables(Counting()), 9, [4])
    with pytest.raises(AttributeError, match="declare it in state"):
        s.total  # noqa: B018
    with pytest.raises(AttributeError):
        s.total = 3
    s.count[0] = 3
    assert (s.count[0], s.count[1]) == (3, 0)


def test_columns_are_given_by_original_id():
    app, order = Own(), torch.tensor([30, 10, 20])
    app.needs = transit.needs(columns={"x": torch.tensor([1, 2, 3])})
    graph = CSCGraph(torch.tensor([0, 0, 0, 0]), torch.empty(0, dtype=torch.int32), orig_ids=order)
    s = Sample(tables(app, graph), 0, [0])
    assert [s.x[v] for v in range(3)] == [3, 1, 2]
    with pytest.raises(IndexError):
        s.x[3]
