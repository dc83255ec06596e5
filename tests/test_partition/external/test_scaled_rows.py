"""Rows rounded to int8 with a scale each: the bound on their error, in exact arithmetic, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest

from fastsample_dist.partition.external.journal import Journal
from fastsample_dist.partition.external.output import ResumableWriter
from fastsample_dist.partition.external.rows import FeatureRows
from fastsample_dist.partition.external.scaled_rows import scaled_rows
from fastsample_dist.partition.write import writer as write_room

TINY, LARGEST = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max


def draw(dtype, num_rows=40, dim=7):
    """Rows of every magnitude that a type has."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(num_rows, dim))
    if np.dtype(dtype).kind == "f":
        return (values * 10.0 ** rng.integers(-4, 4, size=(num_rows, 1))).astype(dtype)
    return np.abs(values * 60).astype(dtype)


def assert_within_half_a_step(rows, numbers, scales):
    for row, picked, scale in zip(rows.tolist(), numbers.tolist(), scales.tolist(), strict=True):
        for value, number in zip(row, picked, strict=True):
            assert -127 <= number <= 127
            assert abs(Fraction(value) - number * Fraction(scale)) <= Fraction(scale) / 2 * (1 + Fraction(1, 2**45))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "uint8", ">f4"])
def test_a_value_is_within_half_a_step(dtype):
    rows = draw(dtype)
    numbers, scales = scaled_rows(rows, np.arange(len(rows)))
    assert (numbers.dtype, scales.dtype) == (np.int8, np.float32)
    assert np.array_equal(scales, (np.abs(rows.astype(np.float64)).max(axis=1) / 127).astype(np.float32))
    assert_within_half_a_step(rows, numbers, scales)


def test_the_smallest_and_the_largest_rows_keep_the_bound_and_stay_finite():
    largest = np.array([TINY, 3 * TINY, 200 * TINY, 1e-37, 1.0, LARGEST, np.nextafter(LARGEST, np.float32(0))])
    rows = np.stack([largest, -largest / 3, np.zeros_like(largest)], axis=1).astype(np.float32)
    numbers, scales = scaled_rows(rows, np.arange(len(rows)))
    assert_within_half_a_step(rows, numbers, scales)
    assert np.isfinite(numbers.astype(np.float32) * scales[:, None]).all()


def test_ties_go_to_the_even_number_and_rows_of_zeros_have_scale_0():
    rows = np.array([[127, 0.5, 1.5, -2.5], [0, -0.0, 0, 0]], dtype=np.float32)
    numbers, scales = scaled_rows(rows, np.arange(2))
    assert numbers.tolist() == [[127, 0, 2, -2], [0, 0, 0, 0]] and scales.tolist() == [1, 0]
    assert scaled_rows(rows[:, :0], np.arange(2))[1].tolist() == [0, 0]


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e39, "1e\\+39")])
def test_a_value_without_a_number_is_refused_by_node(value, shown):
    rows = np.ones((300_000, 2))
    rows[200_001, 1] = value
    with pytest.raises(ValueError, match=f"feature 1 of node 400002 is {shown}, expected finite float32 values"):
        scaled_rows(rows, np.arange(300_000) * 2)


def test_features_that_are_int8_already_are_stored_as_they_are():
    rows = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    with FeatureRows(rows, "int8") as features:
        assert (features.scaled, features.row_bytes, features.stored_as) == (False, 3, "int8")
        stored = features.stored(np.array([3, 0]))
        assert np.array_equal(stored.features, rows[[3, 0]]) and stored.scales is None
    with FeatureRows(rows.astype(np.float16), "int8") as features:
        assert (features.scaled, features.row_bytes, features.stored_as) == (True, 7, "int8")
        assert features.stored(np.array([3, 0])).scales.tolist() == [np.float32(5 / 127), np.float32(6 / 127)]


def test_rows_whose_scales_a_kill_has_left_out_are_written_again(tmp_path):
    rows, owned = draw("float32"), np.arange(5, 25)
    names = {"part-0/features.npy", "part-0/scales.npy"}
    with Journal(tmp_path / "parts") as journal:
        for finished in ([], ["part-0/features.npy"], names):
            with (
                ResumableWriter(tmp_path / "parts", journal, "source") as writer,
                FeatureRows(rows, "int8") as features,
            ):
                assert writer.files.keys() == set(finished)
                write_room._write_features(writer, features, owned, "part-0", write_room.WriteOptions())
                assert writer.files.keys() == names
                found = {name: np.load(journal.path / "parts" / name) for name in names}
            numbers, scales = scaled_rows(rows[owned], owned)
            assert np.array_equal(found["part-0/features.npy"], numbers)
            assert np.array_equal(found["part-0/scales.npy"], scales)
            if not finished:
                journal.save("write", files={"part-0/features.npy": writer.files["part-0/features.npy"]})
