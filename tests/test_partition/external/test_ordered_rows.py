"""Rows copied in the order of their nodes: every entry in its place, whatever the windows, and no file left behind."""

import errno
import os

import numpy as np
import pytest

from fastsample_dist.graph.csc import row_positions
from fastsample_dist.partition.external import ordered_rows
from fastsample_dist.partition.external.ordered_rows import rows_in_order


def drawn(num_nodes: int, dtype: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr, entries, order); a third of the rows are empty, one is long."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 9, num_nodes) * (rng.random(num_nodes) < 0.7)
    degrees[num_nodes // 2] = 150
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr, rng.integers(0, 200, indptr[-1]).astype(dtype), rng.permutation(num_nodes)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("window_bytes", [1, 64, 1000, 1 << 20])  # of one row each, up to one for all
@pytest.mark.parametrize("chunk", [1, 37, 1 << 20])
def test_every_row_is_at_its_turn(dtype, window_bytes, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(ordered_rows, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(ordered_rows, "CHUNK_ENTRIES", chunk)
    indptr, entries, order = drawn(200, dtype)
    with rows_in_order(indptr, entries, order, "indices", tmp_path) as found:
        assert found.dtype == dtype
        assert (found == entries[row_positions(indptr, order)[0]]).all()
        assert [file.name for file in tmp_path.iterdir()] == [f"{ordered_rows.FILE_NAME}.indices"]
    assert list(tmp_path.iterdir()) == []


def test_there_are_no_more_windows_than_numbers_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(ordered_rows, "WINDOW_BYTES", 1)
    monkeypatch.setattr(ordered_rows, "MAX_WINDOWS", 5)
    indptr, entries, order = drawn(200, np.int32)
    assert ordered_rows._Windows(indptr, order, 4)._window_of.max() < 5
    with rows_in_order(indptr, entries, order, "indices", tmp_path) as found:
        assert (found == entries[row_positions(indptr, order)[0]]).all()


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_rows_without_entries(num_nodes, tmp_path):
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    with rows_in_order(indptr, np.empty(0, np.int32), np.arange(num_nodes), "indices", tmp_path) as found:
        assert found.shape == (0,)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_killed_run_is_replaced(tmp_path):
    (tmp_path / f"{ordered_rows.FILE_NAME}.indices").write_bytes(b"x" * 100_000)
    indptr, entries, order = drawn(50, np.int32)
    with rows_in_order(indptr, entries, order, "indices", tmp_path) as found:
        assert (found == entries[row_positions(indptr, order)[0]]).all()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(OSError, match="No space left on device.*ordered_rows"),
        rows_in_order(*drawn(50, np.int32), "indices", tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
