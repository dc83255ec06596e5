"""The compiled passes on their own: pieces of a file, and what is refused."""

import os

import numpy as np
import pytest

from fastsample_dist.partition.external.kernels import EdgePiece, add_degrees, group_edges, read_ranges, sort_edges


def read(path, ranges):
    begins, sizes = (np.array(column, dtype=np.int64) for column in zip(*ranges, strict=True))
    handle = os.open(path, os.O_RDONLY)
    try:
        return read_ranges(handle, begins, sizes, np.dtype(np.uint8)).tobytes()
    finally:
        os.close(handle)


@pytest.mark.parametrize("spread", [10, 5_000, 3_000_000])
@pytest.mark.parametrize("ascending", [True, False])
def test_pieces_of_a_file_come_in_the_order_asked_for(spread, ascending, tmp_path):
    rng = np.random.default_rng(spread)
    data = rng.integers(0, 256, 100 * spread + 4000, dtype=np.uint8).tobytes()
    (tmp_path / "data").write_bytes(data)
    begins = rng.integers(0, 100 * spread, 60)
    begins = np.sort(begins) if ascending else begins
    ranges = [(int(begin), int(rng.integers(0, 4000))) for begin in begins]
    assert read(tmp_path / "data", ranges) == b"".join(data[begin : begin + size] for begin, size in ranges)


def test_piece_larger_than_a_span(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 5_000_000, dtype=np.uint8).tobytes()
    (tmp_path / "data").write_bytes(data)
    assert (
        read(tmp_path / "data", [(3, 10), (13, 4_000_000), (4_000_020, 7)])
        == data[3:4_000_013] + data[4_000_020:4_000_027]
    )


def test_end_of_the_file_is_refused(tmp_path):
    (tmp_path / "data").write_bytes(b"0123456789")
    with pytest.raises(ValueError, match="the file ends at byte 10; expected 2 more"):
        read(tmp_path / "data", [(4, 8)])


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
@pytest.mark.parametrize("end", ["source", "destination"])
def test_id_out_of_range_is_refused_with_its_position(bad, end):
    ids = np.array([0, 1, bad], dtype=np.int32)
    fine = np.zeros(3, dtype=np.int32)
    piece = EdgePiece(*((ids, fine) if end == "source" else (fine, ids)), None, 100)
    with pytest.raises(ValueError, match=f"the {end} of edge 102 is {bad}; expected 0 to 4"):
        add_degrees(piece, False, np.zeros(5, dtype=np.int64))
    with pytest.raises(ValueError, match=f"the {end} of edge 102 is {bad}; expected 0 to 4"):
        group_edges(piece, False, np.array([0, 5]))


def test_edge_of_another_bucket_is_refused():
    keys = np.array([7 << 32 | 1], dtype=np.uint64)
    with pytest.raises(ValueError, match="an edge of node 7 in a bucket of nodes 0 to 4"):
        sort_edges(keys, None, (0, 5), np.dtype(np.int32), merge=False)


def test_many_buckets_keep_the_listing_order():
    rng = np.random.default_rng(1)
    num_nodes = 200_000
    src, dst = rng.integers(0, num_nodes, (2, 50_000))
    bounds = np.unique(np.concatenate([[0, num_nodes], rng.integers(0, num_nodes, 5000)]))
    keys, weights, counts = group_edges(EdgePiece(src, dst, np.arange(50_000, dtype=np.float64), 0), False, bounds)
    buckets = np.searchsorted(bounds, dst, side="right") - 1
    order = np.argsort(buckets, kind="stable")
    assert np.array_equal(counts, np.bincount(buckets, minlength=len(bounds) - 1))
    assert np.array_equal(weights, order.astype(np.float64))
    assert np.array_equal(keys, (dst[order].astype(np.uint64) << np.uint64(32)) | src[order].astype(np.uint64))
