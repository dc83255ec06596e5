"""The compiled passes over edges (csrc/cpu/edge_sort.cpp, read_ranges.cpp), on NumPy arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from fastsample_dist.ops import library

_CODES = {"int32": 0, "int64": 1, "float32": 2, "float64": 3}


@dataclass(frozen=True, eq=False)
class EdgePiece:
    """Consecutive listed edges.

    Attributes:
      src, dst: int32 | int64 [n], the same type.
      weights: float32 | float64 [n] or None.
      first_edge: position of the piece in the list.
    """

    src: np.ndarray
    dst: np.ndarray
    weights: np.ndarray | None
    first_edge: int

    def as_argument(self, num_nodes: int, undirected: bool) -> library.EdgeList:
        """The structure that the compiled passes take; it points into this piece's arrays."""
        return library.EdgeList(
            self.src.ctypes.data,
            self.dst.ctypes.data,
            None if self.weights is None else self.weights.ctypes.data,
            len(self.src),
            num_nodes,
            self.first_edge,
            _CODES[self.src.dtype.name],
            _CODES["float32" if self.weights is None else self.weights.dtype.name],
            int(undirected),
        )


def add_degrees(piece: EdgePiece, undirected: bool, degrees: np.ndarray) -> None:
    """Add a piece's edges to the number of edges into each node, int64 [num_nodes]; undirected: into both ends.

    Raises:
      ValueError: an id outside 0 .. num_nodes - 1.
    """
    edges = piece.as_argument(len(degrees), undirected)
    library.call(library.core().fs_edge_degrees, ctypes.byref(edges), degrees.ctypes.data)


def group_edges(
    piece: EdgePiece, undirected: bool, bounds: np.ndarray, positions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Group a piece's edges by bucket, in listing order inside a bucket.

    Args:
      piece: the edges.
      undirected: every edge goes to both of its ends, a self-loop once.
      bounds: int64 [num_buckets + 1]; bucket b has the destinations bounds[b] .. bounds[b + 1] - 1.
      positions: int32 | int64 with room for n edges, or 2 n if undirected; its first m entries become the positions of
        the grouped edges in the list.
    Returns:
      (keys uint64 [m]: destination << 32 | source, weights [m] or None, edges per bucket int64 [num_buckets]).
    """
    edges = piece.as_argument(int(bounds[-1]), undirected)
    room = len(piece.src) * (2 if undirected else 1)
    keys = np.empty(room, dtype=np.uint64)
    weights = None if piece.weights is None else np.empty(room, dtype=piece.weights.dtype)
    counts = np.empty(len(bounds) - 1, dtype=np.int64)
    assert positions is None or len(positions) >= room, f"{len(positions)} positions for {room} edges"
    out = library.GroupedEdges(
        keys.ctypes.data, _address(weights), _address(positions), counts.ctypes.data, _position_code(positions)
    )
    function = library.core().fs_group_edges
    library.call(function, ctypes.byref(edges), bounds.ctypes.data, len(counts), ctypes.byref(out))
    used = int(counts.sum())
    return keys[:used], None if weights is None else weights[:used], counts


def sort_edges(
    keys: np.ndarray,
    weights: np.ndarray | None,
    rows: tuple[int, int],
    id_dtype: np.dtype,
    *,
    merge: bool,
    positions: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    unlike: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Sort the edges of a bucket by (destination, source), equal ones by weight and as listed, or merged to the first.

    Args:
      keys: uint64 [n]; overwritten.
      weights: [n] or None; overwritten.
      rows: (lo, hi); all destinations are in lo .. hi - 1.
      id_dtype: int32 or int64, of the sources returned.
      merge: keep the first of equal edges only.
      positions: int32 | int64 [n], of the edges in the list; its first m entries become those of the edges returned.
      counts: int32 [n], with merge: its first m entries become the numbers of equal edges that were merged into one.
      unlike: int64 [1], with merge: becomes how many edges were merged into one of another weight, those with
        source >= destination alone, so that of both directions one counts.
    Returns:
      (sources [m], weights [m] or None, in-edges of each row int64 [hi - lo]); the first two are views of the input.
    Raises:
      ValueError: an edge of another bucket.
    """
    degrees = np.zeros(rows[1] - rows[0], dtype=np.int64)
    bucket = library.EdgeBucket(
        keys.ctypes.data,
        _address(weights),
        _address(positions),
        _address(counts),
        len(keys),
        rows[0],
        len(degrees),
        _CODES[np.dtype(id_dtype).name],
        _CODES["float32" if weights is None else weights.dtype.name],
        _position_code(positions),
        int(merge),
        library.num_threads(),
        _address(unlike),
    )
    count = ctypes.c_int64()
    library.call(library.core().fs_sort_edges, ctypes.byref(bucket), degrees.ctypes.data, ctypes.byref(count))
    return keys.view(id_dtype)[: count.value], None if weights is None else weights[: count.value], degrees


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def _position_code(positions: np.ndarray | None) -> int:
    return _CODES["int32" if positions is None else positions.dtype.name]


def read_ranges(
    handle: int, begins: np.ndarray, sizes: np.ndarray, dtype: np.dtype, out: np.ndarray | None = None
) -> np.ndarray:
    """Read pieces of an open file, one after the other.

    Args:
      handle: file descriptor.
      begins, sizes: int64 [n]; in bytes, whole elements.
      dtype: of the elements.
      out: contiguous, where they go; None: a new array.
    Returns:
      [sum(sizes) / itemsize] elements.
    Raises:
      ValueError: the file ends earlier. RuntimeError: the system cannot read.
    """
    count = int(sizes.sum()) // dtype.itemsize
    out = np.empty(count, dtype=dtype) if out is None else out
    assert out.shape == (count,) and out.dtype == dtype and out.flags.c_contiguous, "out is not what is read"
    library.call(
        library.core().fs_read_ranges, handle, begins.ctypes.data, sizes.ctypes.data, len(begins), out.ctypes.data
    )
    return out
