import numpy as np
import pytest

from fastsample_dist.graph.row_segments import RowSegments

TOP = np.arange(6, dtype=np.float32).reshape(3, 2)
BOTTOM = np.arange(10, 14, dtype=np.float32).reshape(2, 2)
WHOLE = np.concatenate([TOP, np.zeros((4, 2), np.float32), BOTTOM])


@pytest.fixture
def rows():
    return RowSegments([TOP, 4, BOTTOM])


def test_facts_are_those_of_the_whole_array(rows):
    assert (rows.shape, rows.dtype, rows.ndim, rows.itemsize) == (WHOLE.shape, WHOLE.dtype, 2, 4)
    assert (rows.size, len(rows)) == (WHOLE.size, 9)


@pytest.mark.parametrize(("lo", "hi"), [(0, 9), (0, 3), (2, 8), (3, 7), (8, 9), (5, 5), (7, 99)])
def test_slice(rows, lo, hi):
    assert np.array_equal(rows[lo:hi], WHOLE[lo:hi])


def test_positions_in_any_order(rows):
    positions = np.array([8, 0, 4, 4, 2, 7])
    assert np.array_equal(rows[positions], WHOLE[positions])


def test_no_positions(rows):
    assert rows[np.empty(0, dtype=np.int64)].shape == (0, 2)


def test_empty_segments_do_not_count():
    assert np.array_equal(RowSegments([0, TOP[:0], TOP, 0])[np.array([2, 0])], TOP[[2, 0]])


@pytest.mark.parametrize("other", [np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float16), np.zeros(2, np.float32)])
def test_arrays_that_do_not_fit_are_refused(other):
    with pytest.raises(ValueError, match="expected one width and one type"):
        RowSegments([TOP, other])


def test_zeros_alone_are_refused():
    with pytest.raises(ValueError, match="at least one array"):
        RowSegments([3])
