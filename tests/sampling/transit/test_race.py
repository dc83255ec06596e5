"""The exponential race: its logarithm against 60 decimal digits, its law by enumeration."""

import math
import random
from collections import Counter
from decimal import Decimal, getcontext

import pytest

from fastsample_dist.ops import reference
from fastsample_dist.ops.reference.streams import RACE
from fastsample_dist.sampling.transit import race
from fastsample_dist.testing.statistics import Evidence, pearson_p, tail_bound
from tests.grids import grid

FALSE_ALARM = 1e-6


def words():
    """Ends, powers of two and their neighbours, and drawn words of every length."""
    generator = random.Random(1)
    drawn = [generator.getrandbits(length) for length in range(1, 65) for _ in range(15)]
    powers = [2**i + near for i in range(64) for near in (-1, 0, 1)]
    return [0, 2**64 - 1, 2**64 - 2, *powers, *drawn]


def test_the_logarithm_is_off_by_less_than_is_said():
    getcontext().prec = 60
    for word in words():
        exact = -(Decimal(word | 1) / Decimal(2**64)).ln() * 2**race.LOG_BITS
        assert abs(race.race_log(word) - exact) < race.LOG_ERROR


def test_the_logarithm_never_exceeds_64_bits_and_falls_as_the_word_grows():
    logs = [race.race_log(word) for word in sorted(words(), reverse=True)]
    assert logs == sorted(logs) and logs[0] >= 0 and logs[-1] < 2**64
    assert logs[-1] == pytest.approx(64 * math.log(2) * 2**race.LOG_BITS)


def test_vertices_without_weight_never_arrive_and_equal_times_go_by_original_id():
    key = reference.stage_key(1, RACE, 0, 0)
    assert race.rank({5: 0.0, 6: 1.0, 7: 0.0}, int, key, 0, 3) == [6]
    assert race.rank({5: 2.0, 6: 3.0}, lambda node: 9, key, 0, 2) == [6, 5]  # one word: the heavier is first
    assert race.rank({5: 2.0, 6: 2.0, 4: 2.0}, lambda node: 9, key, 0, 3) == [5, 6, 4]  # stable, though no id repeats


@pytest.mark.parametrize("wanted", grid([1, 2, 3], gate=[2]))
def test_the_first_to_arrive_have_the_law_of_successive_draws(wanted):
    """Law by enumeration; false-alarm rate 1e-6 over all statistics of a case; samples 0 .. 7999."""
    weights = {10: 1.0, 11: 0.5, 12: 4.0, 13: 1e-3, 14: 2.5}
    key, trials = reference.stage_key(3, RACE, 2, 5), 8000
    seen = Counter(tuple(sorted(race.rank(weights, int, key, sample, wanted))) for sample in range(trials))
    law = reference.pick_distribution(list(weights.values()), wanted, method="weighted")
    expected = {tuple(10 + i for i in outcome): p for outcome, p in law.items()}
    assert set(seen) <= set(expected)
    evidence = Evidence(FALSE_ALARM)
    outcomes = list(expected)
    p_value = pearson_p([seen[own] for own in outcomes], [trials * expected[own] for own in outcomes])
    evidence.add(p_value, lambda: f"sets of {wanted}")
    for own in outcomes:
        evidence.add(tail_bound(seen[own], trials, expected[own]), lambda own=own: f"set {own}: {seen[own]}")
    assert evidence.count > 1
    evidence.decide()
