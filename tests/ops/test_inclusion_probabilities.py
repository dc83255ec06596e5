"""inclusion_probabilities: equal to the loop in plain Python, whatever the threads, numbering and order of edges."""

import math
import random

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops.reference import hazards as reference
from fastsample_dist.ops.reference.hazards import inclusion_probabilities

UNIT = 2**ops.HAZARD_BITS
CERTAIN = 32 * UNIT


def draw_graph(rng, num_nodes, num_edges, dtype=torch.int32):
    degrees = [0] * num_nodes
    for _ in range(num_edges):
        degrees[rng.randrange(num_nodes)] += 1
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.tensor([rng.randrange(num_nodes) for _ in range(num_edges)], dtype=dtype)


def hazard(probability):
    return CERTAIN if probability == 1 else round(-math.log1p(-probability) * UNIT)


def drawn_hazards(rng, num_nodes):
    kinds = (0, 1, rng.randrange(2**40), rng.randrange(2**50), CERTAIN, ops.MOST_HAZARD)
    return torch.tensor([rng.choice(kinds) for _ in range(num_nodes)])


def drawn_weights(rng, num_edges, dtype):
    return torch.tensor(
        [rng.choice((0.0, 1.0, rng.random() * 10.0 ** rng.randint(-20, 20))) for _ in range(num_edges)], dtype=dtype
    )


@pytest.mark.parametrize("replace", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("weight", [None, torch.float32, torch.float64], ids=["uniform", "float32", "float64"])
def test_equals_the_loop_over_edges(weight, replace):
    rng = random.Random(f"{weight} {replace}")
    for _ in range(60):
        num_nodes, num_edges = rng.randint(1, 12), rng.randint(0, 60)
        indptr, indices = draw_graph(rng, num_nodes, num_edges, rng.choice((torch.int32, torch.int64)))
        weights = None if weight is None else drawn_weights(rng, num_edges, weight)
        before, fanout = (
            drawn_hazards(rng, num_nodes),
            rng.choice((0, 1, 2, 3, 5, 100) if replace else (-1, 0, 1, 3, 5)),
        )
        expected = inclusion_probabilities(indptr, indices, before, fanout, weights=weights, replace=replace)
        for threads in (1, 3):
            found = ops.inclusion_probabilities(
                indptr, indices, before, fanout, weights=weights, replace=replace, num_threads=threads
            )
            assert torch.equal(found, expected)


def test_the_polynomials_are_exp_and_log():
    rng = random.Random(0)
    for x in [*(10.0 ** rng.uniform(-9, 1.5) for _ in range(2000)), 0.0]:
        assert reference.exp_negative(x) == pytest.approx(math.exp(-x), rel=1e-15, abs=2e-16)
    for y in [*(10.0 ** rng.uniform(-14, 0) for _ in range(2000)), 1.0]:
        assert reference.minus_log(y) == pytest.approx(-math.log(y), rel=1e-15, abs=2e-16)


# ---- what a hop means


def one_row(degree, before, fanout, **options):
    """Hazards of the neighbours 1 .. degree of node 0, the only destination."""
    indptr = torch.tensor([0, *[degree] * (degree + 1)])
    hazards = torch.zeros(degree + 1, dtype=torch.int64)
    hazards[0] = hazard(before)
    return ops.inclusion_probabilities(indptr, torch.arange(1, degree + 1), hazards, fanout, **options)[1:]


def probabilities(hazards):
    return -torch.expm1(-hazards.double() / UNIT)


@pytest.mark.parametrize("before", [1e-3, 0.5])
def test_uniform_picks_reach_a_neighbour_in_f_of_d_cases(before):
    assert probabilities(one_row(8, before, 3)) == pytest.approx(before * 3 / 8, abs=1e-13)


def test_with_replacement_a_neighbour_is_missed_by_every_pick():
    assert probabilities(one_row(8, 0.5, 3, replace=True)) == pytest.approx(0.5 * (1 - (7 / 8) ** 3), abs=1e-13)


@pytest.mark.parametrize("fanout", [-1, 8, 9])
@pytest.mark.parametrize("before", [1e-9, 0.25, 1], ids=str)
def test_where_all_are_taken_a_neighbour_is_as_probable_as_the_destination(fanout, before):
    assert one_row(8, before, fanout).tolist() == [hazard(before)] * 8
    weights = torch.tensor([1.0, 2, 3, 4, 5, 6, 0, 0])
    assert one_row(8, before, fanout, weights=weights).tolist() == [hazard(before)] * 6 + [0, 0]


def test_weighted_with_replacement_follows_the_shares():
    weights = torch.tensor([1.0, 2.0, 3.0, 0.0])
    expected = [0.5 * (1 - (1 - w / 6) ** 4) for w in weights.tolist()]
    assert probabilities(one_row(4, 0.5, 4, weights=weights, replace=True)).tolist() == pytest.approx(
        expected, abs=1e-13
    )


@pytest.mark.parametrize("fanout", [1, 5, 19])
@pytest.mark.parametrize("span", [1, 100, 1e12], ids="{:g}".format)
def test_weighted_chances_of_a_row_add_up_to_the_fanout(fanout, span):
    rng = random.Random(7)
    weights = torch.tensor([span ** rng.random() for _ in range(20)], dtype=torch.float64)
    chances = 2 * probabilities(one_row(20, 0.5, fanout, weights=weights))
    assert float(chances.sum()) == pytest.approx(fanout, rel=1e-11)
    assert bool((chances[weights.argsort()].diff() >= 0).all())


def test_ways_to_a_node_are_independent():
    indptr, indices = torch.tensor([0, 1, 2, 2]), torch.tensor([2, 2])
    before = torch.tensor([hazard(0.25), hazard(0.5), 0])
    found = ops.inclusion_probabilities(indptr, indices, before, 1)
    assert probabilities(found)[2] == pytest.approx(1 - 0.75 * 0.5, abs=1e-14)


# ---- what does not change a result


def test_numbering_parts_and_order_of_edges_do_not_show():
    rng = random.Random(2)
    num_nodes, num_edges = 300, 4000
    indptr, indices = draw_graph(rng, num_nodes, num_edges)
    before = drawn_hazards(rng, num_nodes)
    plain = ops.inclusion_probabilities(indptr, indices, before, 4, num_threads=1)
    new = torch.tensor(rng.sample(range(num_nodes), num_nodes))  # node v is called new[v]
    rows = [indices[indptr[v] : indptr[v + 1]] for v in range(num_nodes)]
    order = new.argsort()  # the row of new node i was that of order[i]
    moved = [new[rows[int(v)].long()].int() for v in order]
    moved = [row[torch.tensor(rng.sample(range(len(row)), len(row)), dtype=torch.int64)] for row in moved]
    moved_indptr = torch.tensor([0, *(len(row) for row in moved)]).cumsum(0)
    renamed = ops.inclusion_probabilities(moved_indptr, torch.cat(moved), before[order], 4, num_threads=2)
    assert torch.equal(renamed[new], plain)


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_do_not_show_where_sums_are_cut(threads):
    num_nodes = 3000  # all point to node 0: its sum passes the limit
    indptr, indices = torch.arange(num_nodes + 1), torch.zeros(num_nodes, dtype=torch.int32)
    before = torch.full((num_nodes,), CERTAIN)
    one = ops.inclusion_probabilities(indptr, indices, before, 1, num_threads=1)
    assert int(one[0]) == ops.MOST_HAZARD
    assert torch.equal(ops.inclusion_probabilities(indptr, indices, before, 1, num_threads=threads), one)


# ---- edges of what is accepted


def test_a_graph_without_edges_or_nodes():
    assert ops.inclusion_probabilities(
        torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.tensor([CERTAIN, 0, 5]), 3
    ).tolist() == [0, 0, 0]
    assert len(
        ops.inclusion_probabilities(
            torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64), 3
        )
    ) == 0  # fmt: skip


def test_no_result_is_nan_at_the_limits():
    tiny = torch.tensor([5e-324, 1.7e308, 1e-300, 1.0, 1.0], dtype=torch.float64)
    for fanout in (1, 2, 4):
        for replace in (False, True):
            found = one_row(5, 1, fanout, weights=tiny, replace=replace)
            assert bool(((found >= 0) & (found <= CERTAIN)).all())


REFUSED = {
    "a fanout below -1": (dict(fanout=-2), r"fanouts holds -2; expected -1"),
    "all with replacement": (dict(fanout=-1, replace=True), "cannot be drawn with replacement"),
    "a negative hazard": (dict(hazards=torch.tensor([0, -1])), "the hazard of node 1 is -1; expected 0 to"),
    "a source outside": (dict(indices=torch.tensor([0, 2])), r"id 2 at position 1; expected 0 to 1"),
    "a negative weight": (dict(weights=torch.tensor([1.0, -2.0])), "the weight of edge 1 is -2; expected a finite"),
    "a weight that is not a number": (dict(weights=torch.tensor([1.0, math.nan])), "the weight of edge 1 is"),
    "too few hazards": (dict(hazards=torch.tensor([1])), "hazards has 1 entries; expected 2"),
    "too few weights": (dict(weights=torch.tensor([1.0])), "weights has 1 entries; expected 2"),
    "offsets that decrease": (dict(indptr=torch.tensor([0, 3, 2])), "3"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("threads", [1, 2])
def test_refuses(change, message, threads):
    given = dict(
        indptr=torch.tensor([0, 1, 2]), indices=torch.tensor([1, 0]), hazards=torch.tensor([5, 5]), fanout=1
    ) | change  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ops.inclusion_probabilities(**given, num_threads=threads)
