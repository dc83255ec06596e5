import gzip

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch, text_edges
from fastsample_dist.graph.inputs.text_tables import read_table


@pytest.fixture
def read(tmp_path):
    with Scratch(tmp_path / "scratch") as scratch:
        yield lambda file, dtype=np.int64, **more: read_table(file, ReadOptions(scratch=scratch), dtype, **more)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 16)


def put(tmp_path, text: str, name: str = "t.csv"):
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return file


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.txt"])
def test_blocks_make_one_table(tmp_path, read, small_blocks, name):
    rows = [[n, n * n] for n in range(200)]
    file = put(tmp_path, "".join(f"{a},{b}\n" for a, b in rows), name)
    assert read(file).tolist() == rows


def test_a_table_is_mapped_and_parsed_once(tmp_path, read):
    file = put(tmp_path, "1,2\n")
    first = read(file)
    made = (tmp_path / "scratch").glob("*.npy")
    before = [item.stat().st_mtime_ns for item in made]
    read(file)
    assert isinstance(first, np.memmap)
    assert before == [item.stat().st_mtime_ns for item in (tmp_path / "scratch").glob("*.npy")]


def test_floats_and_nan(tmp_path, read):
    assert np.array_equal(
        read(put(tmp_path, "0.5,nan\n-1e3,2\n"), np.float32),
        np.array([[0.5, np.nan], [-1000, 2]], np.float32),
        equal_nan=True,
    )


@pytest.mark.parametrize("text", ["1 2\n3 4\n", "1\t2\n3\t4\n", "1  2\n\n3 4\n"])
def test_blanks(tmp_path, read, text):
    assert read(put(tmp_path, text), delimiter=" ").tolist() == [[1, 2], [3, 4]]


def test_an_empty_table_keeps_its_width(tmp_path, read):
    assert read(put(tmp_path, ""), width=2).shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("1,2\n3,4\n5\n", 3, "5"),
        ("1,2\n3,4,5\n", 2, "3,4,5"),
        ("src,dst\n1,2\n", 1, "src,dst"),
        ("1,2\n" * 30 + "1.5,2\n", 31, "1.5,2"),
        ("1,2\n99999999999999999999,1\n", 2, "99999999999999999999,1"),
        ("1,2\n\n\n3,x\n", 4, "3,x"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path, read, small_blocks, text, line, found):
    with pytest.raises(ValueError, match=rf"t\.csv, line {line}: found '{found}'; expected 2 integers"):
        read(put(tmp_path, text), width=2)


def test_a_truncated_gzip_is_named(tmp_path, read):
    file = put(tmp_path, "1,2\n" * 5000, "t.csv.gz")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"t\.csv\.gz, after line .* the gzip data are damaged or cut short"):
        read(file)


def test_what_is_no_gzip_is_named(tmp_path, read):
    (tmp_path / "t.csv.gz").write_text("1,2\n")
    with pytest.raises(ValueError, match=r"t\.csv\.gz starts with '1,'; expected gzip data"):
        read(tmp_path / "t.csv.gz")


def test_bytes_read_are_reported(tmp_path):
    file, reported = put(tmp_path, "1,2\n" * 500, "t.csv.gz"), []
    with Scratch(tmp_path / "scratch") as scratch:
        read_table(file, ReadOptions(scratch=scratch, on_bytes=reported.append), np.int64)
    assert sum(reported) == file.stat().st_size
