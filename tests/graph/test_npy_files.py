import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from fastsample_dist.graph.npy_files import drop_pages, map_array, npy_header, open_npy

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("array", [ROWS, np.asfortranarray(ROWS), ROWS[:0], ROWS.astype(">i8"), np.float64(3.5)])
def test_mapped_array_is_the_saved_one(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    mapped = open_npy(tmp_path / "a.npy")
    assert isinstance(mapped, np.memmap)
    assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
    assert mapped.flags.f_contiguous == np.asarray(array).flags.f_contiguous
    assert np.array_equal(mapped, array)


def test_writes_stay_in_memory_and_end_with_the_pages(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    mapped = open_npy(tmp_path / "a.npy")
    torch.from_numpy(np.asarray(mapped))[0, 0] = 9.0
    assert mapped[0, 0] == 9.0
    assert np.array_equal(np.load(tmp_path / "a.npy"), ROWS)
    drop_pages(mapped)
    assert np.array_equal(mapped, ROWS)


@pytest.mark.parametrize("offset", [0, 4, 5000, 4096])
def test_array_at_any_place_of_a_file(tmp_path, offset):
    (tmp_path / "a.bin").write_bytes(bytes(offset) + ROWS.tobytes())
    mapped = map_array(tmp_path / "a.bin", ROWS.dtype, ROWS.shape, offset=offset)
    assert np.array_equal(mapped, ROWS)
    assert (mapped.offset, mapped.filename) == (offset, (tmp_path / "a.bin").resolve())


def sparse_npy(path: Path, size: int) -> None:
    """A file of that many bytes of zeros, without blocks on disk."""
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(file, header)
        os.truncate(path, file.tell() + size)


def test_file_larger_than_memory_and_swap_is_mapped(tmp_path):
    size = 2 * (psutil.virtual_memory().total + psutil.swap_memory().total)
    try:
        sparse_npy(tmp_path / "a.npy", size)
    except OSError as error:
        pytest.skip(f"the file system has no files of {size} bytes: {error}")
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("vm.overcommit_memory is 2: the system promises no more memory than it has")
    mapped = open_npy(tmp_path / "a.npy")
    assert (mapped.shape, mapped[0], mapped[size - 1]) == ((size,), 0, 0)


@pytest.mark.parametrize("read", [open_npy, npy_header])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; expected a .npy file"),
        (b"", "is not a readable .npy file"),
        (b"PK\x03\x04 no array", "is not a readable .npy file"),
        ("truncated", r"has \d+ bytes; expected \d+: it is truncated"),
        ("objects", "it holds Python objects"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path, read, content, message):
    path = tmp_path / "a.npy"
    if content == "objects":
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    elif content == "truncated":
        np.save(path, ROWS)
        os.truncate(path, path.stat().st_size - 1)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(path)
