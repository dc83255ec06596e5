"""FeatureRows of columns in several pieces: what the plain array gives, and no pages left behind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.graph.row_segments import RowSegments
from fastsample_dist.partition.external import rows as external_rows
from fastsample_dist.partition.external.rows import FeatureRows
from tests.test_partition.resident import resident_kb

NODES = np.array([11, 0, 5, 5, 6, 2, 8, 3])


def pieces(path: Path, dtype: str) -> tuple[RowSegments, np.ndarray]:
    """Mapped, zeros, in memory, mapped with an offset, a view of a mapped file; and the array they form."""
    values = (np.random.default_rng(0).normal(size=(13, 3)) * 20).astype(dtype)
    values[3:5] = 0
    np.save(path / "top.npy", values[:3])
    (path / "raw.bin").write_bytes(b"12345" + values[7:10].tobytes())
    np.save(path / "wide.npy", np.repeat(values[10:], 2, axis=0))
    raw = np.memmap(path / "raw.bin", dtype=dtype, mode="r", offset=5, shape=(3, 3))
    segments = [open_npy(path / "top.npy"), 2, values[5:7], raw, open_npy(path / "wide.npy")[::2]]
    return RowSegments(segments), values


def bits(rows: np.ndarray) -> list:
    return rows.view(np.uint8).tolist() if rows.size else []


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", ">f4", "int8"])
def test_rows_are_those_of_the_array(tmp_path, dtype):
    segments, values = pieces(tmp_path, dtype)
    with FeatureRows(segments) as features:
        assert (features.dim, features.stored_as) == (3, np.dtype(dtype).name)
        assert features.read(NODES).dtype == features.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(features.read(NODES), values[NODES])
        assert features.read(NODES[:0]).shape == (0, 3)


@pytest.mark.parametrize("choice", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", "int8"])
def test_rows_are_converted(tmp_path, dtype, choice):
    segments, values = pieces(tmp_path, dtype)
    native = torch.from_numpy(values.astype(np.dtype(dtype).newbyteorder("=")))
    wanted = native[NODES].to(getattr(torch, choice))
    with FeatureRows(segments, choice) as features:
        assert bits(features.read(NODES)) == bits(wanted.view(torch.uint8).numpy())


def test_value_too_large_is_named_by_its_node():
    segments = RowSegments([2, np.array([[0, 1], [70_000, 2]], dtype=np.float32)])
    with FeatureRows(segments, "float16") as features, pytest.raises(ValueError, match="feature 0 of node 3 is 70000"):
        features.read(np.array([0, 3, 2]))


def test_few_files_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(external_rows, "MAX_OPEN", 2)
    segments, values = pieces(tmp_path, "float32")
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("open files are reported by Linux only")
    before = len(list(descriptors.iterdir()))
    with FeatureRows(segments) as features:
        for node in NODES:
            assert np.array_equal(features.read(np.array([node])), values[[node]])
            assert len(list(descriptors.iterdir())) <= before + 2
    assert len(list(descriptors.iterdir())) == before


def test_no_pages_of_the_files_stay(tmp_path):
    np.save(tmp_path / "large.npy", np.ones((100_000, 16), dtype=np.float32))
    np.save(tmp_path / "view.npy", np.ones((100_000, 16), dtype=np.float32))
    segments = RowSegments([5, open_npy(tmp_path / "large.npy"), open_npy(tmp_path / "view.npy")[::2]])
    with FeatureRows(segments) as features:
        assert features.read(np.arange(len(segments))).sum() == 150_000 * 16
    assert resident_kb(tmp_path / "large.npy", tmp_path / "view.npy") == [0, 0]
