"""The topology sorted on disk: edges are counted per destination, grouped into buckets, and each bucket is sorted.

    count   edges into each node                                    one pass over the list; memory 8 bytes per node
    group   every edge as a 64-bit key into the region of its bucket, a range of nodes whose edges fit into memory
    sort    bucket after bucket by (destination, source); appended to rows.indices, rows.weights, rows.degrees
Where an edge map is requested, an edge's position in the list travels beside its key, into rows.edge_map.

Result: that of `RawGraph.to_csc`, bit for bit. A killed run resumes after the last piece or bucket in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.listed_rows import say_unlike
from fastsample_dist.graph.npy_files import drop_pages, map_array
from fastsample_dist.partition.external.buckets import KEY, BucketSort, SortNames, append, appending, read_at
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.journal import Journal, fingerprint
from fastsample_dist.partition.external.kernels import EdgePiece, add_degrees, sort_edges
from fastsample_dist.partition.external.mapped import mapped_columns
from fastsample_dist.partition.external.sampled_rows import SampledRows
from fastsample_dist.partition.methods.constraints import row_offsets

SORT_KEY_BYTES = 16  # per edge: its key, its place in the row, and room for the allocator
_NAMES = SortNames(count="count", group="group", sort="sort", buckets="buckets", rows="rows")


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
        columns = (self.indices, self.id_dtype), (self.weights, self.weight_dtype)
        with mapped_columns(columns, self.num_edges) as arrays:
            indices, weights = (None if column is None else torch.from_numpy(column) for column in arrays)
            yield CSCGraph(torch.from_numpy(self.indptr()), indices, weights, weights_checked=True)


def build_stored(
    raw: RawGraph,
    journal: Journal,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda count: None,
    *,
    edge_map: bool = False,
    check_links: Callable[[int], None] | None = None,
    check_compressed: Callable[[int], None] | None = None,
) -> StoredTopology:
    """Sort a graph's edges on disk.

    Args:
      raw: the graph; its edges are read in pieces.
      journal: the entered work directory.
      budget: sizes of pieces and buckets.
      on_bytes: called with bytes of work done since its last call; `sort_bytes` is their sum.
      edge_map: keep the edges' positions in the list.
      check_links: called with the most edges of one node in both directions once they are counted, before any is
        sorted; what it raises ends the work. None: they are not counted.
      check_compressed: called then with about how many bytes the graph takes compressed (sampled_rows.py), as
        check_links is. None: its rows are not sampled.
    Returns:
      StoredTopology with its files in the work directory.
    Raises:
      ValueError: the limit is too small for the longest row, or an id is out of range.
      OSError: the disk refuses.
    """
    return _Builder(raw, journal, budget, on_bytes, edge_map).run(check_links, check_compressed)


def sort_bytes(raw: RawGraph) -> int:
    """What `on_bytes` of `build_stored` adds up to, at most."""
    listed = raw.edge_index.shape[1]
    return listed * raw.edge_index.itemsize * 4 + listed * (2 if raw.undirected else 1) * KEY.itemsize


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


class _Builder(BucketSort):
    """One run of the three passes."""

    def __init__(
        self, raw: RawGraph, journal: Journal, budget: MemoryBudget, on_bytes: Callable[[int], None], edge_map: bool
    ) -> None:
        source = {
            "edges": fingerprint(raw.edge_index),
            "weights": fingerprint(raw.edge_weight),
            "num_nodes": raw.num_nodes,
            "undirected": raw.undirected,
        }
        if edge_map:
            source["edge_map"] = True
        super().__init__(_NAMES, source, journal, budget, on_bytes, undirected=raw.undirected)
        self._raw = raw
        self._weight_dtype = weight_dtype(raw)
        self._map_dtype = raw.edge_map_dtype() if edge_map else None
        self._id_dtype = np.dtype(np.int32 if id_dtype(raw.num_nodes) == torch.int32 else np.int64)

    def run(
        self, check_links: Callable[[int], None] | None, check_compressed: Callable[[int], None] | None
    ) -> StoredTopology:
        counted = self._count(both_ends=check_links is not None, sampled=check_compressed is not None)
        try:
            self._budget.check(counted["longest_row"])
            for check, name in ((check_links, "most_links"), (check_compressed, "compressed_bytes")):
                if check is not None and name in counted:  # not where a run without it has counted
                    check(counted[name])
        except ValueError:
            if not self._journal.begin(self._names.group, self._source):  # nothing is worth keeping
                self._journal.restart(self._names.count)
            raise
        num_edges = self._run_passes()
        say_unlike(self._raw.name, self._found.get("unlike", 0))
        weighted, mapped = self._weight_dtype is not None, self._map_dtype is not None
        return StoredTopology(
            map_array(self._row_file("degrees"), np.dtype(np.int64), (self._raw.num_nodes,)),
            num_edges,
            self._row_file("indices"),
            self._id_dtype,
            self._row_file("weights") if weighted else None,
            self._weight_dtype,
            self._row_file("edge_map") if mapped else None,
            self._map_dtype,
        )

    def _count(self, *, both_ends: bool, sampled: bool) -> dict[str, Any]:
        state = self._journal.begin(self._names.count, self._source)
        if state:
            return state
        undirected = self._raw.undirected
        degrees = np.zeros(self._raw.num_nodes, dtype=np.int64)
        leaving = np.zeros_like(degrees) if both_ends and not undirected else None
        rows = SampledRows(self._raw.edge_index.shape[1], undirected=undirected) if sampled else None
        for _, piece in self._listed(0, with_weights=False):
            add_degrees(piece, undirected, degrees)
            if rows is not None:
                rows.add(piece.src, piece.dst)
            if leaving is not None:
                apart = piece.src != piece.dst
                add_degrees(EdgePiece(piece.dst[apart], piece.src[apart], None, piece.first_edge), False, leaving)
        with appending(self._journal.path / "degrees", 0) as file:
            append(file, degrees)
        state = {"longest_row": int(degrees.max()), "done": True}
        if leaving is not None:
            leaving += degrees
            state["most_links"] = int(leaving.max())
        if rows is not None:
            state["compressed_bytes"] = rows.compressed_bytes()
        self._journal.save(self._names.count, **state)
        return state

    def _degrees(self) -> tuple[np.ndarray, np.ndarray]:
        degrees = map_array(self._journal.path / "degrees", np.dtype(np.int64), (self._raw.num_nodes,))
        return degrees, degrees

    def _sorted_bucket(
        self, files: dict[str, int], place: tuple[int, int], rows: tuple[int, int]
    ) -> dict[str, np.ndarray | None]:
        dtypes = self._bucket_dtypes()
        read = {name: read_at(handle, dtypes[name], *place) for name, handle in files.items()}
        positions, unlike = read.get("positions"), np.zeros(1, dtype=np.int64)
        ids, weights, degrees = sort_edges(
            read["keys"],
            read.get("weights"),
            rows,
            self._id_dtype,
            merge=self._raw.undirected,
            positions=positions,
            unlike=unlike,
        )
        self._found = {"unlike": self._found.get("unlike", 0) + int(unlike[0])}
        edge_map = None if positions is None else positions[: len(ids)]
        return {"indices": ids, "weights": weights, "edge_map": edge_map, "degrees": degrees}

    def _bucket_dtypes(self) -> dict[str, np.dtype]:
        return _present({"keys": KEY, "weights": self._weight_dtype, "positions": self._map_dtype})

    def _row_dtypes(self) -> dict[str, np.dtype]:
        return _present({"indices": self._id_dtype, "weights": self._weight_dtype, "edge_map": self._map_dtype})

    def _pieces(self, position: int) -> Iterator[tuple[int, EdgePiece]]:
        return self._listed(position, with_weights=True)

    def _listed(self, position: int, *, with_weights: bool) -> Iterator[tuple[int, EdgePiece]]:
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


def _present(dtypes: dict[str, np.dtype | None]) -> dict[str, np.dtype]:
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}
