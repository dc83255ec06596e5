import zipfile

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch
from fastsample_dist.graph.inputs.archives import Archive

ARRAYS = {
    "rows": np.arange(600, dtype=np.float32).reshape(150, 4),
    "columns": np.asfortranarray(np.arange(20).reshape(4, 5)),
    "empty": np.empty((0, 3), dtype=np.int16),
    "scalar": np.array(7),
}


@pytest.fixture
def scratch(tmp_path):
    with Scratch(tmp_path / "scratch") as made:
        yield made


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ARRAYS)
def test_members_are_what_was_saved(tmp_path, scratch, save, name):
    save(tmp_path / "data.npz", **ARRAYS)
    opened = Archive(tmp_path / "data.npz", ReadOptions(scratch=scratch)).open(name)
    assert np.array_equal(opened, ARRAYS[name]) and opened.dtype == ARRAYS[name].dtype


def test_a_stored_member_is_mapped_in_place(tmp_path, scratch):
    np.savez(tmp_path / "data.npz", **ARRAYS)
    opened = Archive(tmp_path / "data.npz", ReadOptions(scratch=scratch)).open("rows")
    assert str(opened.filename) == str(tmp_path / "data.npz")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_alignment_can_be_asked_for(tmp_path, scratch, save):
    arrays = {f"padding{n}": np.zeros(n, np.uint8) for n in range(1, 8)}
    save(tmp_path / "data.npz", **arrays, ids=np.arange(9))
    opened = Archive(tmp_path / "data.npz", ReadOptions(scratch=scratch)).open("ids", aligned=True)
    assert opened.flags.aligned and opened.tolist() == list(range(9))


def test_progress_adds_up_to_what_was_packed(tmp_path, scratch):
    np.savez_compressed(tmp_path / "data.npz", **ARRAYS)
    reported = []
    archive = Archive(tmp_path / "data.npz", ReadOptions(scratch=scratch, on_bytes=reported.append))
    archive.open("rows")
    assert sum(reported) == pytest.approx(archive.packed_bytes("rows"), abs=1)


def refusal(file, scratch, name="rows") -> str:
    with pytest.raises(ValueError) as caught:
        Archive(file, ReadOptions(scratch=scratch)).open(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_archive(tmp_path, scratch):
    assert "data.npz is missing" in refusal(tmp_path / "data.npz", scratch)


def test_missing_member(tmp_path, scratch):
    np.savez(tmp_path / "data.npz", **ARRAYS)
    assert "data.npz has no edges.npy; it holds rows, columns" in refusal(tmp_path / "data.npz", scratch, "edges")


def test_truncated_archive(tmp_path, scratch):
    np.savez(tmp_path / "data.npz", **ARRAYS)
    (tmp_path / "data.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:900])
    assert "data.npz is not a readable .npz archive" in refusal(tmp_path / "data.npz", scratch)


def test_damaged_packed_member(tmp_path, scratch):
    np.savez_compressed(tmp_path / "data.npz", **ARRAYS)
    data = bytearray((tmp_path / "data.npz").read_bytes())
    data[150:170] = b"\xff" * 20
    (tmp_path / "data.npz").write_bytes(data)
    assert "data.npz: rows is not a readable .npz archive" in refusal(tmp_path / "data.npz", scratch)
    assert not list((tmp_path / "scratch").glob("*.npy"))


def test_a_header_that_promises_more_than_there_is(tmp_path, scratch):
    np.save(tmp_path / "rows.npy", ARRAYS["rows"])
    cut = (tmp_path / "rows.npy").read_bytes()[:-8]
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("rows.npy", cut)
    assert "its header says 600 values of float32" in refusal(tmp_path / "data.npz", scratch)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_python_objects_are_refused(tmp_path, scratch, save):
    save(tmp_path / "data.npz", rows=np.array([{}], dtype=object))
    assert "bject" in refusal(tmp_path / "data.npz", scratch)
