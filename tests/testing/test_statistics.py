"""p-values against SciPy, bounds against exact tails, and rates under the null hypothesis."""

import numpy as np
import pytest

from fastsample_dist.testing.statistics import (
    Evidence,
    chi_square_p,
    correlation_p,
    pearson_p,
    quadratic_p,
    tail_bound,
)
from tests.optional import stats


@pytest.mark.parametrize(
    ("statistic", "freedom"), [(0.0, 1), (3.0, 1), (40.0, 1), (60.0, 3), (150.0, 40), (700.0, 400)]
)
def test_chi_square_p_equals_scipy(statistic, freedom):
    assert chi_square_p(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-10)


@pytest.mark.parametrize("mean", [1e-6, 0.01, 0.5, 0.999])
def test_the_tail_bound_is_above_the_binomial_tail(mean):
    for total in range(101):
        upper, lower = stats.binom.sf(total - 1, 100, mean), stats.binom.cdf(total, 100, mean)
        assert tail_bound(total, 100, mean) >= min(upper, lower)


def test_the_tail_bound_of_what_cannot_be_is_0():
    assert tail_bound(1, 100, 0.0) == 0.0 and tail_bound(99, 100, 1.0) == 0.0
    assert tail_bound(0, 100, 0.0) == 1.0 and tail_bound(100, 100, 1.0) == 1.0


def test_pearson_p_equals_scipy_where_no_cell_is_rare():
    observed, expected = [130, 240, 330, 300], [150.0, 220.0, 330.0, 300.0]
    assert pearson_p(observed, expected) == pytest.approx(stats.chisquare(observed, expected).pvalue)


def test_rare_cells_count_as_one():
    observed, expected = [20, 40, 50, 500], [30.0, 40.0, 40.0, 500.0]
    assert pearson_p(observed, expected) == pytest.approx(stats.chisquare([110, 500], [110.0, 500.0]).pvalue)


def test_a_rare_rest_joins_the_next_cell():
    observed, expected = [10, 190, 400], [20.0, 180.0, 400.0]
    assert pearson_p(observed, expected) == pytest.approx(stats.chisquare([200, 400], [200.0, 400.0]).pvalue)
    assert pearson_p([30, 570], [20.0, 580.0]) is None


def test_quadratic_p_of_uniform_draws_is_scaled_pearson():
    degree, fanout, trials = 12, 5, 1000
    total = np.array([430, 400, 420, 410, 415, 425, 405, 418, 422, 399, 431, 425])
    share = np.full(degree, fanout / degree)
    covariance = fanout * (degree - fanout) / (degree - 1) * (np.eye(degree) / degree - 1 / degree**2)
    expected = trials * share
    scaled = np.sum((total - expected) ** 2 / expected) * (degree - 1) / (degree - fanout)
    assert quadratic_p(total, trials, share, covariance) == pytest.approx(stats.chi2.sf(scaled, degree - 1))


def test_quadratic_p_leaves_out_directions_that_hardly_vary():
    """The two counts always add up to 1 except in one trial in a million; only their difference is tested."""
    mean, covariance = np.array([0.5, 0.5]), np.array([[0.25, -0.25], [-0.25, 0.25]]) + 1e-6
    assert quadratic_p(np.array([501, 500]), 1000, mean, covariance) > 0.9


def test_p_values_keep_their_rates_under_the_null_hypothesis():
    """2,000 repetitions of 1,000 weighted draws: the share of p-values below 0.1 lies within 5 standard deviations."""
    rng, trials, share = np.random.default_rng(3), 1000, np.array([0.1, 0.2, 0.3, 0.4])
    covariance = np.diag(share) - np.outer(share, share)
    found = []
    for _ in range(2000):
        draws = np.eye(4)[rng.choice(4, size=trials, p=share)]
        total = draws.sum(axis=0)
        independent = correlation_p((draws - share)[:-1], (draws - share)[1:], (covariance, covariance))
        found.append((pearson_p(total, trials * share), quadratic_p(total, trials, share, covariance), independent))
    rates = (np.array(found) < 0.1).mean(axis=0)
    assert np.abs(rates - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 2000)


def test_evidence_decides_by_bonferroni():
    evidence = Evidence(1e-6)
    for p_value in (0.3, 2e-7, None, 0.5):
        evidence.add(p_value, lambda: "a count")
    assert evidence.count == 3
    with pytest.raises(AssertionError, match=r"a count; p-value 2.0e-07, expected at least 3.3e-07 .* 3 statistics"):
        evidence.decide()
    evidence.count = 6
    evidence.smallest_p_value = 1.7e-7
    evidence.decide()
