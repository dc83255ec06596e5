"""Packed lists: .gz, .xz and .zst read the same, and one that is cut short is named as such."""

import gzip
import lzma
import sys

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, input_sizes, read_graph, text_edges
from fastsample_dist.graph.inputs.edgelist import read_edgelist

EDGES = np.random.default_rng(0).integers(0, 70, (50_000, 2))
TEXT = "".join(f"{src} {dst}\n" for src, dst in EDGES.tolist()).encode()
MESSAGES = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}


def packed(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        pyarrow = pytest.importorskip("pyarrow", reason=".zst is read with pyarrow, which is not installed")
        return pyarrow.compress(data, codec="zstd", asbytes=True)
    return {".gz": gzip.compress, ".xz": lzma.compress}[suffix](data)


@pytest.mark.parametrize("suffix", MESSAGES)
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".txt"])
def test_every_packing_of_every_kind_is_read(tmp_path, suffix, kind):
    file = tmp_path / f"edges{kind}{suffix}"
    file.write_bytes(packed(TEXT, suffix))
    reported = []
    raw = read_graph(file, options=ReadOptions(on_bytes=reported.append))  # the format is recognised from the name
    assert raw.name == "edges" and np.array_equal(raw.edge_index, EDGES.T)
    assert sum(reported) == file.stat().st_size
    assert input_sizes(file).num_nodes >= 70


@pytest.mark.parametrize("suffix", MESSAGES)
def test_two_packed_pieces_in_one_file_are_one_list(tmp_path, suffix):
    (tmp_path / f"edges.txt{suffix}").write_bytes(packed(TEXT, suffix) + packed(b"1 2\n", suffix))
    raw = read_edgelist(tmp_path / f"edges.txt{suffix}", ReadOptions())
    assert raw.edge_index[:, -1].tolist() == [1, 2] and raw.edge_index.shape[1] == len(EDGES) + 1


@pytest.mark.parametrize("suffix", MESSAGES)
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_a_truncated_file_is_named_as_truncated(tmp_path, monkeypatch, suffix, share):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 1 << 12)
    data = packed(TEXT, suffix)
    data = data[: int(share * len(data)) - 1]
    (tmp_path / f"edges.txt{suffix}").write_bytes(data)
    with pytest.raises(ValueError, match=r"after line \d+ and byte") as refusal:
        read_edgelist(tmp_path / f"edges.txt{suffix}", ReadOptions())
    text = str(refusal.value)
    assert f"edges.txt{suffix}, after line" in text and f"of {len(data)}: the {MESSAGES[suffix]} data" in text
    assert "the file is truncated: " in text and text.endswith("copy or make the file again.") and "\n" not in text


@pytest.mark.parametrize("suffix", MESSAGES)
def test_an_empty_file_is_named(tmp_path, suffix):
    (tmp_path / f"edges.txt{suffix}").touch()
    with pytest.raises(ValueError, match=rf"edges.txt{suffix} is empty \(0 bytes\); expected {MESSAGES[suffix]} data"):
        read_edgelist(tmp_path / f"edges.txt{suffix}", ReadOptions())


@pytest.mark.parametrize("suffix", MESSAGES)
def test_plain_text_under_a_packed_name_is_refused(tmp_path, suffix):
    (tmp_path / f"edges.txt{suffix}").write_bytes(TEXT)
    with pytest.raises(ValueError, match=f"edges.txt{suffix} starts with .*; expected {MESSAGES[suffix]} data; take "):
        read_edgelist(tmp_path / f"edges.txt{suffix}", ReadOptions())


@pytest.mark.parametrize("suffix", MESSAGES)
def test_packed_text_under_a_plain_name_is_refused(tmp_path, suffix):
    (tmp_path / "edges.txt").write_bytes(packed(b"0 1\n", suffix))
    with pytest.raises(ValueError, match=f"end the name of a {MESSAGES[suffix]} file with {suffix}"):
        read_edgelist(tmp_path / "edges.txt", ReadOptions())


def test_zstd_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "edges.txt.zst").write_bytes(packed(TEXT, ".zst"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"edges.txt.zst needs the pyarrow package.*fastsample_dist\[formats\]"):
        read_edgelist(tmp_path / "edges.txt.zst", ReadOptions())
