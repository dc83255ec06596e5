"""FeatureCache refuses what cannot be one; CacheReport's arithmetic; Visits against a count."""

import numpy as np
import pytest
import torch

from fastsample_dist import FeatureCache
from fastsample_dist.features import cache as caches
from fastsample_dist.features.cache import CacheReport, Visits, best_hits


@pytest.mark.parametrize(
    "given, said",
    [
        ({"capacity_bytes": -1}, "the cache's capacity_bytes is -1; expected an integer >= 0."),
        ({"capacity_bytes": "2GB"}, "the cache's capacity_bytes is '2GB'; expected an integer >= 0."),
        ({"policy": "hot"}, "the cache's policy is 'hot'; expected one of auto, vip, presample, degree, random, "),
        ({"presample_epochs": 0}, "the cache's presample_epochs is 0; expected an integer >= 1."),
        ({"lookahead": -1}, "the cache's lookahead is -1; expected an integer >= 0."),
        ({"lookahead": 101}, "the cache's lookahead is 101; expected at most 100 batches."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_out_of_range_is_refused(given, said):
    with pytest.raises(ValueError) as refused:
        FeatureCache(**{"capacity_bytes": 1000, **given})
    assert str(refused.value).startswith(said)


def test_numbers_of_numpy_and_torch_are_pythons():
    given = FeatureCache(np.int64(4000), lookahead=torch.tensor(2))
    assert given == FeatureCache(4000, lookahead=2) and given.facts() == FeatureCache(4000, lookahead=2).facts()


def test_a_cache_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(caches, "available_bytes", lambda: 3_000_000)
    FeatureCache(3_000_000).check_memory()
    with pytest.raises(ValueError) as refused:
        FeatureCache(2_000_000).check_memory(sharers=2)
    assert str(refused.value) == (
        "the cache's capacity is 2MB but 3MB of memory are available, 1.5MB for each of the 2 ranks of this machine; "
        "choose a smaller one."
    )


def test_nothing_is_made_without_capacity_or_policy():
    assert FeatureCache(1).is_on
    assert not FeatureCache(0).is_on and not FeatureCache(1, policy="none").is_on


def test_reports_add_up_and_rates_are_of_what_is_not_read_in_place():
    one = CacheReport(own=5, neighbour=2, cached=3, kept=1, exchanged=4, oracle_hits=6, row_bytes=10, cache_rows=7)
    two = CacheReport(own=1, exchanged=8, oracle_hits=2, row_bytes=10, cache_rows=6)
    both = CacheReport.total([one, two])
    assert (one.inputs, both.inputs) == (15, 24)
    assert (one.hit_rate, one.oracle_hit_rate, one.bytes_saved) == (0.5, 0.75, 40)
    assert (both.hit_rate, both.oracle_hit_rate, both.cache_rows) == (0.25, 0.5, 7)
    assert both.as_json()["hit_rate"] == 0.25 and both.as_json()["own"] == 6


def test_rates_are_unknown_where_nothing_is_asked_of_another_machine():
    report = CacheReport(own=5, neighbour=2)
    assert report.hit_rate is None and report.oracle_hit_rate is None


@pytest.mark.parametrize("num_steps", [3, 1 << 16], ids=["16 bits", "32 bits"])
def test_the_oracle_holds_what_was_visited_most(num_steps):
    rng = np.random.default_rng(1)
    visits, epochs = Visits(40, num_steps, torch.device("cpu")), np.zeros((2, 40), dtype=int)
    for epoch in range(2):
        visits.clear_epoch()
        for _ in range(3):
            nodes = rng.permutation(40)[:15]
            visits.add(torch.from_numpy(nodes))
            epochs[epoch, nodes] += 1
    in_place = [(0, 10), (12, 12), (30, 33)]
    for counts, all_epochs in ((epochs[1], False), (epochs.sum(0), True)):
        reachable = np.sort(np.delete(counts, [*range(10), 30, 31, 32]))[::-1]
        for rows in (0, 1, 5, 27, 50):
            found = visits.counts(in_place, all_epochs=all_epochs)
            assert best_hits(found, found, rows) == reachable[:rows].sum()


def test_more_than_32767_visits_are_counted_in_16_bits():
    visits = Visits(2, 40_000, torch.device("cpu"))
    for _ in range(40_000):
        visits.add(torch.tensor([1]))
    assert visits.counts([]).tolist() == [0, 40_000]


def test_ranks_that_share_a_cache_are_measured_by_the_best_for_all():
    one, two = torch.tensor([9, 0, 5, 1]), torch.tensor([0, 8, 6, 1])
    assert [best_hits(own, one + two, 2) for own in (one, two)] == [14, 6]  # nodes 0 and 2
    assert best_hits(one, one, 2) + best_hits(two, two, 2) > 20
