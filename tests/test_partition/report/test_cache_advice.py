"""The advised size of a cache: the knee of curves that are drawn by hand."""

import numpy as np
import pytest

from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.partition.report.cache_advice import SavedRows, advice_text, advise, place_bytes


def curve(*gains):
    """Of a list whose first nodes save this much each."""
    return SavedRows(np.arange(len(gains)), np.array(gains, dtype=np.float64))


def test_the_knee_is_where_a_node_saves_less_than_its_share():
    """Of 10 nodes, each 10 % of all, the first three save 40, 30 and 12 % of the rows, the next ones 6 % each."""
    found = advise("vip", [curve(40, 30, 12, 6, 6, 6)], 10, 100)
    assert (found.rows, found.share, found.policy) == (3, 0.3, "vip")
    assert found.saved == pytest.approx(0.82)
    assert found.capacity_bytes == 3 * 100 + 4 * 10  # more than a quarter: a list of all nodes


def test_machines_are_added_up_node_by_node():
    one, other = curve(50, 1), curve(30, 20, 19)
    assert advise("vip", [one, other], 10, 8).rows == 3  # 80, 21 and 19 of 120 rows
    assert advise("vip", [one], 10, 8).rows == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_knee_is_that_of_the_whole_curve(seed):
    """Against the curve written out, a number of rows saved for every number of cached nodes."""
    drawn, num_nodes = np.random.default_rng(seed), 500
    saved, whole = [], np.zeros(num_nodes + 1)
    for _ in range(3):
        places = np.sort(drawn.choice(num_nodes // 2, 60, replace=False))
        rows = drawn.integers(1, 50, 60).astype(np.float64)
        saved.append(SavedRows(places, rows))
        whole += [rows[places < cached].sum() for cached in range(num_nodes + 1)]
    found = advise("vip", saved, num_nodes, 4)
    assert found.rows == np.argmax(whole / whole[-1] - np.arange(num_nodes + 1) / num_nodes)
    assert found.saved == pytest.approx(whole[found.rows] / whole[-1], abs=1e-12)
    assert [saved[0].of_first(cached) for cached in (0, num_nodes)] == [0.0, saved[0].rows.sum()]


def test_without_remote_rows_or_features_there_is_no_advice():
    assert advise("vip", [curve(), curve(0)], 10, 100) is None
    assert advise("vip", [curve(3)], 10, 0) is None


@pytest.mark.parametrize(("rows", "expected"), [(0, 16), (1, 16), (2, 32), (25, 512), (26, 400)])
def test_places_are_hashed_up_to_a_quarter_of_the_nodes(rows, expected):
    assert place_bytes(rows, 100) == expected


def test_the_option_asks_for_the_bytes_rounded_up():
    found = advise("vip", [curve(*[1000] * 40, *[1] * 60)], 100_000, 123_457)
    size = parse_bytes(found.option.removeprefix("--cache "))
    assert found.capacity_bytes <= size < 1.01 * found.capacity_bytes
    assert f"{found.rows:,} rows" in advice_text(found.to_json()) and found.option in advice_text(found.to_json())
