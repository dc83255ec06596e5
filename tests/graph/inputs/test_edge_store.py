import numpy as np
import pytest

from fastsample_dist.graph import npy_files
from fastsample_dist.graph.inputs.edge_store import gather_edges, highest_id, write_edges
from fastsample_dist.graph.npy_files import open_npy

LAST_NARROW = 2**31 - 1
LISTS = {
    "none": [],
    "empty": [np.empty((0, 2), np.int64)],
    "narrow": [np.array([[0, 1], [2, LAST_NARROW]]), np.array([[5, 6]])],
    "wide first": [np.array([[0, 2**31]]), np.array([[5, 6]])],
    "wide later": [
        np.arange(200).reshape(-1, 2),
        np.empty((0, 2), np.int64),
        np.array([[7, 2**31]]),
        np.array([[5, 6]]),
    ],
}


@pytest.fixture(params=LISTS)
def chunks(request):
    return LISTS[request.param]


def whole(chunks):
    return np.concatenate([np.empty((0, 2), np.int64), *chunks]).T


def test_file_and_memory_hold_the_chunks(chunks, tmp_path, monkeypatch):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", 24)  # widening goes in several steps
    write_edges(tmp_path / "edges.npy", iter(chunks))
    stored, gathered = open_npy(tmp_path / "edges.npy"), gather_edges(iter(chunks))
    assert stored.shape == gathered.shape == whole(chunks).shape
    assert np.array_equal(stored, whole(chunks)) and np.array_equal(gathered, whole(chunks))


def test_type_is_the_narrowest_that_holds_all(chunks, tmp_path):
    write_edges(tmp_path / "edges.npy", iter(chunks))
    wanted = np.int64 if whole(chunks).max(initial=0) > LAST_NARROW else np.int32
    assert open_npy(tmp_path / "edges.npy").dtype == gather_edges(iter(chunks)).dtype == wanted


def test_highest_id_of_all_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", 24)
    write_edges(tmp_path / "edges.npy", iter(LISTS["wide later"]))
    assert highest_id(open_npy(tmp_path / "edges.npy")) == 2**31
