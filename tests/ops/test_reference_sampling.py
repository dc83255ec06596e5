"""The oracles of sampling, against each other and against what their definitions say."""

import math
from itertools import islice, product

import pytest
import torch

from fastsample_dist.ops import reference
from tests.grids import grid

ROWS = [
    [1.0],
    [1.0, 1.0],
    [1.0, 2.0, 3.0, 4.0],
    [0.0, 5.0, 0.0, 1.0, 0.0],
    [1e-6, 1.0, 1e3, 5.0, 0.0, 2.0],
    [0.3, 1.0, 7.0, 1e-12, 4.0, 4.0, 9.5, 0.01],
]
LAWS = [
    {},
    {"replace": True},
    {"method": "weighted"},
    {"method": "weighted", "replace": True},
    {"method": "labor"},
]
rows = pytest.mark.parametrize("weights", ROWS, ids=str)
laws = pytest.mark.parametrize("law", LAWS, ids=str)


def words_of(*words):
    """A stream that ends."""
    return iter(words)


def table_probabilities(table):
    """Probability of every position: slots are equally likely, and so are the 2^32 words."""
    degree = len(table.thresholds)
    found = [0.0] * degree
    for slot, (threshold, alias) in enumerate(zip(table.thresholds, table.aliases, strict=True)):
        found[slot] += threshold / 2**32 / degree
        found[alias] += (2**32 - threshold) / 2**32 / degree
    return found


@rows
def test_an_alias_table_stands_for_its_weights(weights):
    found = table_probabilities(reference.alias_row(weights))
    assert found == pytest.approx([weight / sum(weights) for weight in weights], abs=2.0**-32)


@rows
def test_an_alias_table_never_leads_to_weight_0(weights):
    found = table_probabilities(reference.alias_row(weights))
    assert all(p == 0.0 for p, weight in zip(found, weights, strict=True) if weight == 0.0)


def test_rounding_never_leads_to_weight_0():
    """Three equal weights and zeros: shares that are not exact in binary."""
    for zeros in range(1, 40):
        found = table_probabilities(reference.alias_row([0.1, 0.1, 0.1] + [0.0] * zeros))
        assert sum(found[:3]) == pytest.approx(1.0) and sum(found[3:]) == 0.0


def test_alias_tables_hold_the_rows_one_after_the_other():
    table, num_positive = reference.alias_tables(torch.tensor([0, 2, 2, 5]), torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0]))
    assert table.tolist() == [[-(2**31), 1], [-1, 1], [0, 0], [0, 1], [0, 2]]  # 2**31 and 2**32 - 1 as signed
    assert num_positive.tolist() == [2, 0, 0]


def test_weighted_picks_throw_repeats_away():
    slot_0, slot_1 = (1, 0), (2**31, 0)  # a slot of three, and a word below its threshold
    words = words_of(*slot_0, *slot_0, *slot_1)
    assert reference.weighted_pick(words, [1.0, 1.0, 1.0], 2, replace=False) == [0, 1]


def test_weighted_picks_end_in_the_tree_after_4_draws_per_pick():
    """8 alias draws that all take position 0, then 2 words of all ones: the last position of positive weight."""
    words = words_of(*[1, 0] * 8, 2**32 - 1, 2**32 - 1)
    assert reference.weighted_pick(words, [1.0, 1.0, 1.0, 0.0], 2, replace=False) == [0, 2]


@pytest.mark.parametrize(("x", "position"), [(0.0, 1), (0.24, 1), (0.26, 2), (0.74, 2), (0.76, 4), (0.999, 4)])
def test_the_tree_draws_by_weight(x, position):
    """Weights 1, 2, 1 are left at positions 1, 2, 4 when position 0 is gone."""
    variate = int(x * 2**64)
    words = words_of(*[1, 0] * 8, variate % 2**32, variate >> 32)
    assert reference.weighted_pick(words, [4.0, 1.0, 2.0, 0.0, 1.0], 2, replace=False) == [0, position]


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_picks_of_a_row_without_weight_are_none(replace):
    assert reference.weighted_pick(words_of(), [0.0, 0.0], 3, replace=replace) == []


def test_weighted_take_all_leaves_out_weight_0():
    assert reference.weighted_pick(words_of(), [0.5, 0.0, 2.0], -1, replace=False) == [0, 2]
    assert reference.weighted_pick(words_of(), [0.5, 0.0, 2.0], 2, replace=False) == [0, 2]


def test_layer_picks_compare_integers():
    """Degree 3, fanout 1: the limit 2^32 / 3 lies between two words."""
    limit = 2**32 // 3
    assert reference.layer_pick([limit, limit + 1, 0], 1) == [0, 2]
    assert reference.layer_pick([2**32 - 1] * 3, 3) == [0, 1, 2]
    assert reference.layer_pick([0, 0], 0) == []


def test_node_words_differ_by_domain_and_stage():
    keys = [reference.stage_key(7, domain, stage, 3) for domain, stage in product((1, 3), (0, 2**32 - 1))]
    assert len({tuple(islice(reference.node_words(key, 5), 4)) for key in keys}) == 4


@laws
@rows
@pytest.mark.parametrize("fanout", [0, 1, 2, 4])
def test_the_outcomes_of_a_law_add_up_to_1(weights, fanout, law):
    assert math.fsum(reference.pick_distribution(weights, fanout, **law).values()) == pytest.approx(1.0, abs=1e-12)


@laws
@rows
@pytest.mark.parametrize("fanout", [0, 1, 2, 4])
def test_outcomes_and_moments_are_one_law(weights, fanout, law):
    sources = [min(position, 2) for position in range(len(weights))]  # from the third on, one source
    outcomes = reference.pick_distribution(weights, fanout, sources, **law)
    picks = torch.zeros(len(outcomes), len(weights), dtype=torch.float64)
    for row, outcome in enumerate(outcomes):
        for position in outcome:
            picks[row, position] += 1
    p = torch.tensor(list(outcomes.values()), dtype=torch.float64)
    mean, covariance = reference.inclusion_moments(weights, fanout, sources, **law)
    torch.testing.assert_close(p @ picks, mean, rtol=0, atol=1e-9)  # LABOR's words are multiples of 2^-32
    torch.testing.assert_close(picks.T @ (p[:, None] * picks) - torch.outer(mean, mean), covariance, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fanout", grid([2, 10, 20], gate=[10]))
def test_the_race_of_a_long_row_takes_the_fanout(fanout):
    """40 weights from 1e-8 to 1: too many sets to list, but the means add up and the rows of the covariance vanish."""
    weights = torch.logspace(-8, 0, 40, dtype=torch.float64).tolist()
    mean, covariance = reference.inclusion_moments(weights, fanout, method="weighted")
    assert float(mean.sum()) == pytest.approx(fanout, abs=1e-9)
    assert float(covariance.sum(1).abs().max()) < 1e-9
    assert float(mean.diff().min()) > -1e-12


def test_inclusion_of_equal_weights_is_uniform():
    found = reference.inclusion_probabilities([2.0] * 6, 4, method="weighted")
    torch.testing.assert_close(found, torch.full((6,), 4 / 6, dtype=torch.float64))


def test_inclusion_of_labor_is_a_multiple_of_a_word():
    assert float(reference.inclusion_probabilities([1.0] * 3, 1, method="labor")[0]) == (2**32 // 3 + 1) / 2**32
