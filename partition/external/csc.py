"""The topology sorted on disk: edges are counted per destination, grouped into buckets, and each bucket is sorted.

    count   edges into each node                                    one pass over the list; memory 8 bytes per node
    group   every edge as a 64-bit key into the region of its bucket, a range of nodes whose edges fit into memory
    sort    bucket after bucket by (destination, source); appended to rows.indices, rows.weights, rows.degrees
Where an edge map is requested, an edge's position in the list travels beside its key, into rows.edge_map.

Result: that of `RawGraph.to_csc`, bit for bit. A killed run resumes after the last piece or bucket in the journal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.files import naming_file
from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.npy_files import drop_pages, map_array
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.journal import Journal, fingerprint
from fastsample_dist.partition.external.kernels import EdgePiece, add_degrees, group_edges, read_ranges, sort_edges
from fastsample_dist.partition.methods.constraints import row_offsets

SAVE_EDGES = 1 << 26  # listed edges between two entries of the journal while grouping
MAX_BUCKETS = 1 << 15
DROP_INTERVAL_S = 0.1  # a sweep brings in less than 500 MB meanwhile
SORT_KEY_BYTES = 16  # per edge: its key, its place in the row, and room for the allocator
_KEY = np.dtype(np.uint64)


@dataclass(frozen=True, eq=False)
class StoredTopology:
    """Rows of in-edges in files of the work directory, original ids.

    Attributes:
      degrees: int64 [num_nodes]; in-edges of each node, mapped from a file.
      num_edges: number of directed edges.
      indices: file of the sources, row after row.
      id_dtype: of the sources.
      weights: file of the weights, or None.
      weight_dtype: of the weights; None without.
      edge_map: file of the edges' positions in the list, or None.
      edge_map_dtype: of the positions; None without.
    """

    degrees: np.ndarray
    num_edges: int
    indices: Path
    id_dtype: np.dtype
    weights: Path | None
    weight_dtype: np.dtype | None
    edge_map: Path | None = None
    edge_map_dtype: np.dtype | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.degrees)

    def indptr(self) -> np.ndarray:
        """Row offsets, int64 [num_nodes + 1]; computed at every call."""
        return row_offsets(self.degrees)

    @contextmanager
    def mapped(self) -> Iterator[CSCGraph]:
        """The topology as a graph whose edges stay in the files; pages that were read are dropped repeatedly.

        The graph must not be used after the block.
        """
        maps = []

        def column(file: Path | None, dtype: np.dtype | None) -> torch.Tensor | None:
            if file is None:
                return None
            if not self.num_edges:  # an empty file cannot be mapped
                return torch.from_numpy(np.empty(0, dtype=dtype))
            maps.append(map_array(file, dtype, (self.num_edges,)))
            return torch.from_numpy(np.asarray(maps[-1]))

        indices, weights = column(self.indices, self.id_dtype), column(self.weights, self.weight_dtype)
        graph = CSCGraph(torch.from_numpy(self.indptr()), indices, weights, weights_checked=True)
        ended = threading.Event()

        def drop_repeatedly() -> None:
            while not ended.wait(DROP_INTERVAL_S):
                for mapped in maps:
                    drop_pages(mapped)

        thread = threading.Thread(target=drop_repeatedly, name="fastsample-drop-pages", daemon=True)
        thread.start()
        try:
            yield graph
        finally:
            ended.set()
            thread.join()


def build_stored(
    raw: RawGraph,
    journal: Journal,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda count: None,
    *,
    edge_map: bool = False,
) -> StoredTopology:
    """Sort a graph's edges on disk.

    Args:
      raw: the graph; its edges are read in pieces.
      journal: the entered work directory.
      budget: sizes of pieces and buckets.
      on_bytes: called with bytes of work done since its last call; `sort_bytes` is their sum.
      edge_map: keep the edges' positions in the list.
    Returns:
      StoredTopology with its files in the work directory.
    Raises:
      ValueError: the limit is too small for the longest row, or an id is out of range.
      OSError: the disk refuses.
    """
    return _Builder(raw, journal, budget, on_bytes, edge_map).run()


def sort_bytes(raw: RawGraph) -> int:
    """What `on_bytes` of `build_stored` adds up to, at most."""
    listed = raw.edge_index.shape[1]
    return listed * raw.edge_index.itemsize * 4 + listed * (2 if raw.undirected else 1) * _KEY.itemsize


def weight_dtype(raw: RawGraph) -> np.dtype | None:
    """Type that the topology's weights get: float64, or float32 where that holds every value."""
    return None if raw.edge_weight is None else np.result_type(raw.edge_weight.dtype, np.float32)


def sort_edge_bytes(weight_bytes: int, position_bytes: int = 0) -> int:
    """Memory per edge of a bucket while it is sorted, at most.

    Args:
      weight_bytes: of a weight; 0 without.
      position_bytes: of an entry of the edge map; 0 without.
    """
    if not weight_bytes and not position_bytes:
        return SORT_KEY_BYTES
    widest = max(4, weight_bytes, position_bytes)
    entry = -(-(4 + weight_bytes + position_bytes) // widest) * widest
    stable = 0 if position_bytes else entry // 2  # positions put equal edges in order
    return SORT_KEY_BYTES - 4 + weight_bytes + position_bytes + entry + stable


class _Builder:
    """One run of the three passes."""

    def __init__(
        self, raw: RawGraph, journal: Journal, budget: MemoryBudget, on_bytes: Callable[[int], None], edge_map: bool
    ) -> None:
        self._raw, self._journal, self._budget, self._on_bytes = raw, journal, budget, on_bytes
        self._weight_dtype = weight_dtype(raw)
        self._map_dtype = raw.edge_map_dtype() if edge_map else None
        self._id_dtype = np.dtype(np.int32 if id_dtype(raw.num_nodes) == torch.int32 else np.int64)
        self._source = {
            "edges": fingerprint(raw.edge_index),
            "weights": fingerprint(raw.edge_weight),
            "num_nodes": raw.num_nodes,
            "undirected": raw.undirected,
        }
        if edge_map:
            self._source["edge_map"] = True

    def run(self) -> StoredTopology:
        counted = self._count()
        try:
            self._budget.check(counted["longest_row"])
        except ValueError:
            self._journal.restart("count")  # nothing is worth keeping
            raise
        if not self._journal.begin("sort", self._source).get("done"):
            bounds, sizes = self._group()
            self._sort(bounds, sizes)
        for name in ("keys", "weights", "positions"):
            self._file(f"buckets.{name}").unlink(missing_ok=True)
        weighted, mapped = self._weight_dtype is not None, self._map_dtype is not None
        return StoredTopology(
            map_array(self._file("rows.degrees"), np.dtype(np.int64), (self._raw.num_nodes,)),
            self._journal.begin("sort", self._source)["num_edges"],
            self._file("rows.indices"),
            self._id_dtype,
            self._file("rows.weights") if weighted else None,
            self._weight_dtype,
            self._file("rows.edge_map") if mapped else None,
            self._map_dtype,
        )

    def _file(self, name: str) -> Path:
        return self._journal.path / name

    def _count(self) -> dict[str, Any]:
        state = self._journal.begin("count", self._source)
        if state:
            return state
        degrees = np.zeros(self._raw.num_nodes, dtype=np.int64)
        for _, piece in self._pieces(0, with_weights=False):
            add_degrees(piece, self._raw.undirected, degrees)
        with _appending(self._file("degrees"), 0) as file:
            _append(file, degrees)
        state = {"longest_row": int(degrees.max()), "done": True}
        self._journal.save("count", **state)
        return state

    def _group(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the buckets and edges in each."""
        degrees = np.fromfile(self._file("degrees"), dtype=np.int64)
        state = self._journal.begin("group", self._source)
        room = max(self._budget.bucket_edges, int(degrees.max()))
        if state and state["bucket_edges"] > room:  # made within a larger limit
            self._journal.restart("group")
            self._journal.begin("sort", self._source)
            state = {}
        room = state.get("bucket_edges", room)
        bounds = _bucket_bounds(degrees, room)
        ends = np.concatenate([[0], np.cumsum(degrees)])[bounds]
        del degrees
        if not state.get("done"):
            self._group_from(state.get("position", 0), state.get("cursors"), bounds, ends, room)
        return bounds, np.diff(ends)

    def _group_from(
        self, position: int, cursors: list[int] | None, bounds: np.ndarray, ends: np.ndarray, room: int
    ) -> None:
        filled = ends[:-1].copy() if cursors is None else np.array(cursors, dtype=np.int64)
        saved = position
        with self._bucket_files() as files:
            for stop, piece in self._pieces(position, with_weights=True):
                positions = self._positions(len(piece.src) * (2 if self._raw.undirected else 1))
                keys, weights, counts = group_edges(piece, self._raw.undirected, bounds, positions)
                del piece
                grouped = {"keys": keys, "weights": weights, "positions": positions}
                starts = np.cumsum(counts) - counts
                for bucket in np.flatnonzero(counts):
                    lo, hi, place = starts[bucket], starts[bucket] + counts[bucket], int(filled[bucket])
                    for name, handle in files.items():
                        with naming_file(self._file(f"buckets.{name}")):
                            _write_at(handle, grouped[name][lo:hi], place)
                filled += counts
                if stop - saved >= SAVE_EDGES:
                    saved = stop
                    self._sync(files.values())
                    self._journal.save("group", bucket_edges=room, position=stop, cursors=filled.tolist())
            self._sync(files.values())
        assert (filled == ends[1:]).all(), "an edge was counted and not grouped, or the other way round"
        self._journal.save("group", bucket_edges=room, done=True)

    def _sort(self, bounds: np.ndarray, sizes: np.ndarray) -> None:
        state = self._journal.begin("sort", self._source)
        first, num_edges = state.get("bucket", 0), state.get("num_edges", 0)
        starts = np.cumsum(sizes) - sizes
        dtypes = {"indices": self._id_dtype, "weights": self._weight_dtype, "edge_map": self._map_dtype}
        with ExitStack() as opened:
            out = {
                name: opened.enter_context(_appending(self._file(f"rows.{name}"), num_edges * dtype.itemsize))
                for name, dtype in dtypes.items()
                if dtype is not None
            }
            out["degrees"] = opened.enter_context(_appending(self._file("rows.degrees"), int(bounds[first]) * 8))
            files = opened.enter_context(self._bucket_files())
            for bucket in range(first, len(sizes)):
                rows = int(bounds[bucket]), int(bounds[bucket + 1])
                columns = self._sorted_bucket(files, (int(starts[bucket]), int(sizes[bucket])), rows)
                num_edges += len(columns["indices"])
                for name, file in out.items():
                    _append(file, columns[name])
                self._on_bytes(int(sizes[bucket]) * _KEY.itemsize)
                del columns
                self._sync(file.fileno() for file in out.values())
                self._journal.save("sort", bucket=bucket + 1, num_edges=num_edges, done=bucket + 1 == len(sizes))

    def _sorted_bucket(
        self, files: dict[str, int], place: tuple[int, int], rows: tuple[int, int]
    ) -> dict[str, np.ndarray | None]:
        """Columns of the rows of a bucket; `place`: its first edge and how many there are."""
        dtypes = self._bucket_dtypes()
        read = {name: _read_at(handle, dtypes[name], *place) for name, handle in files.items()}
        positions = read.get("positions")
        ids, weights, degrees = sort_edges(
            read["keys"],
            read.get("weights"),
            rows,
            self._id_dtype,
            merge=self._raw.undirected,
            positions=positions,
        )
        edge_map = None if positions is None else positions[: len(ids)]
        return {"indices": ids, "weights": weights, "edge_map": edge_map, "degrees": degrees}

    def _positions(self, room: int) -> np.ndarray | None:
        return None if self._map_dtype is None else np.empty(room, dtype=self._map_dtype)

    def _bucket_dtypes(self) -> dict[str, np.dtype]:
        """What there is of an edge in a bucket."""
        dtypes = {"keys": _KEY, "weights": self._weight_dtype, "positions": self._map_dtype}
        return {name: dtype for name, dtype in dtypes.items() if dtype is not None}

    def _pieces(self, position: int, *, with_weights: bool) -> Iterator[tuple[int, EdgePiece]]:
        """Listed edges from a position on: (position after the piece, piece)."""
        edges, weights = self._raw.edge_index, self._raw.edge_weight if with_weights else None
        dtype = np.int32 if edges.dtype.kind == "i" and edges.dtype.itemsize == 4 else np.int64
        num_edges, step = edges.shape[1], self._budget.piece_edges
        for lo in range(position, num_edges, step):
            hi = min(num_edges, lo + step)
            piece = EdgePiece(
                *(np.array(row[lo:hi], dtype=dtype) for row in edges),
                None if weights is None else np.array(weights[lo:hi], dtype=self._weight_dtype),
                lo,
            )
            drop_pages(edges)
            if weights is not None:
                drop_pages(weights)
            self._on_bytes((hi - lo) * 2 * edges.itemsize)
            yield hi, piece

    def _sync(self, handles: Iterable[int]) -> None:
        with naming_file(self._journal.path):
            for handle in handles:
                os.fdatasync(handle)

    @contextmanager
    def _bucket_files(self) -> Iterator[dict[str, int]]:
        handles: dict[str, int] = {}
        try:
            for name in self._bucket_dtypes():
                handles[name] = os.open(self._file(f"buckets.{name}"), os.O_RDWR | os.O_CREAT, 0o666)
            yield handles
        finally:
            for handle in handles.values():
                os.close(handle)


def _bucket_bounds(degrees: np.ndarray, room: int) -> np.ndarray:
    """Cut the nodes into ranges of at most `room` edges each (a node has no more): int64 [num_buckets + 1]."""
    ends = np.cumsum(degrees)
    bounds, done = [0], 0
    while bounds[-1] < len(ends):
        lo = bounds[-1]
        hi = max(lo + 1, int(np.searchsorted(ends, done + room, side="right")))
        bounds.append(hi)
        done = int(ends[hi - 1])
    if len(bounds) > MAX_BUCKETS:
        raise ValueError(
            f"{done} edges would take {len(bounds) - 1} buckets of {room}; expected at most {MAX_BUCKETS}; "
            "pass a larger --memory-limit."
        )
    return np.array(bounds, dtype=np.int64)


@contextmanager
def _appending(path: Path, length: int) -> Iterator[Any]:
    """A file open for writing after its first `length` bytes, the rest cut off."""
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        with naming_file(path):
            file.truncate(length)
        file.seek(length)
        yield file


def _append(file: Any, values: np.ndarray) -> None:
    data = memoryview(values).cast("B") if values.size else memoryview(b"")
    with naming_file(file.name):
        while len(data):
            data = data[file.write(data) :]


def _write_at(handle: int, values: np.ndarray, position: int) -> None:
    """Write whole elements at an element's place."""
    data = memoryview(values).cast("B")
    offset = position * values.itemsize
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


def _read_at(handle: int, dtype: np.dtype, position: int, count: int) -> np.ndarray:
    begins, sizes = (np.array([value * dtype.itemsize], dtype=np.int64) for value in (position, count))
    return read_ranges(handle, begins, sizes, dtype)
