"""Text read in tiny blocks: the same edges, the right line numbers, and files that are not the text they should be."""

import gzip

import numpy as np
import pytest

from fastsample_dist.graph.inputs import text_edges
from fastsample_dist.graph.inputs.text_edges import TextEdges

BAD = ["x 1", "1", "1 2 3", "1 1.5", "-1 2", "1 70", "1 9223372036854775808", "1,2", "\u00e9 1", "1\x002"]


def edges_of(file, limit=70):
    chunks = list(TextEdges([file], limit, lambda count: None).chunks())
    return np.concatenate([np.empty((0, 2), np.int64), *chunks]).tolist()


def drawn_lines(count):
    """Lines of many lengths, and the edges they stand for."""
    rng, lines, edges = np.random.default_rng(count), [], []
    for src, dst in rng.integers(0, 70, (count, 2)).tolist():
        lines.append(["", "# comment", f"{src} {dst}  # one edge", f"  {src}\t{dst}\r", f"{src} {dst}"][len(lines) % 5])
        if lines[-1].strip() and not lines[-1].startswith("#"):
            edges.append([src, dst])
    return lines, edges


def write(path, text, packed):
    file = path / ("edges.txt.gz" if packed else "edges.txt")
    data = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(gzip.compress(data) if packed else data)
    return file


@pytest.mark.parametrize("block_bytes", [1, 3, 16, 100, 1 << 22])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_blocks_do_not_show(tmp_path, monkeypatch, block_bytes, packed, ended):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", block_bytes)
    lines, edges = drawn_lines(60)
    assert edges_of(write(tmp_path, "\n".join(lines) + "\n" * ended, packed)) == edges


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", [0, 1, 30, 59])
@pytest.mark.parametrize("packed", [False, True])
def test_line_numbers_are_right_in_any_block(tmp_path, monkeypatch, bad, place, packed):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 40)
    lines = ["# first", *drawn_lines(60)[0]]
    lines.insert(place + 1, bad)
    if place <= 1:
        lines[0] = "3 4"  # the first edge says what separates ids
    with pytest.raises(ValueError, match=rf"^\S+, line {place + 2}: (found|node id) "):
        edges_of(write(tmp_path, "\n".join(lines), packed))


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "line 1: found .*plain text .ASCII or UTF-8.; convert the file"),
        ("0 1\n".encode("utf-16"), "line 1: found .*plain text .ASCII or UTF-8.; convert the file"),
        (b"0 1\n\xe9 2\n", "line 2: found .*in ASCII or UTF-8; convert the file"),
        (gzip.compress(b"0 1\n", mtime=0), "line 1: found .*end the name of a gzip file with .gz"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        edges_of(write(tmp_path, data, False))


def test_a_file_without_lines_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 8)
    monkeypatch.setattr(text_edges, "MAX_LINE_BYTES", 100)
    with pytest.raises(ValueError, match="line 3: found more than 1.. bytes, '1111.*a line per edge"):
        edges_of(write(tmp_path, b"0 1\n2 3\n" + b"1" * 10_000, False))


def test_text_under_a_packed_name_is_refused(tmp_path):
    (tmp_path / "edges.csv.gz").write_text("0,1\n")
    with pytest.raises(ValueError, match="edges.csv.gz starts with '0,'; expected gzip data"):
        edges_of(tmp_path / "edges.csv.gz")


@pytest.mark.parametrize("damage", ["cut", "garbage", "behind"])
def test_damaged_gzip_is_refused_with_about_the_place(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 1 << 12)
    text = "".join(f"{src} {dst}\n" for src, dst in np.random.default_rng(0).integers(0, 70, (200_000, 2)).tolist())
    data = bytearray(gzip.compress(text.encode()))
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "garbage":
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(range(64))
    else:
        data += b"garbage"
    (tmp_path / "edges.txt.gz").write_bytes(data)
    with pytest.raises(ValueError, match=f"of {len(data)}: the gzip data are damaged or cut short") as refusal:
        edges_of(tmp_path / "edges.txt.gz")
    line = int(str(refusal.value).split("after line ")[1].split(" ")[0])
    assert line > (195_000 if damage == "behind" else 75_000)
