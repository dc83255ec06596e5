"""The adjacency that a partitioner wants (`methods.adjacency.symmetrise`), made on disk from the stored rows.

A directed topology's rows hold every edge at its destination, in order. What is missing is the other direction:
    link_count   edges from each node                                        one pass over the rows
    link_group   every edge as a key into the bucket of its source
    link_sort    a bucket's keys and its nodes' own rows, sorted together; equal ones are merged and counted
The counts are the weights: bytes where no edge is listed more than MOST_IN_BYTES times, else int32. So 8 bytes per edge
travel through the disk, and half of what is sorted is read from where it lies.

An undirected topology has both directions; it is copied without its self-loops, or used as it is where it has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.csc import destinations
from fastsample_dist.graph.npy_files import drop_pages, map_array
from fastsample_dist.partition.external import buckets
from fastsample_dist.partition.external.buckets import KEY, BucketSort, SortNames, append, appending, read_at
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.csc import StoredTopology
from fastsample_dist.partition.external.journal import Journal
from fastsample_dist.partition.external.kernels import EdgePiece, add_degrees, sort_edges
from fastsample_dist.partition.external.mapped import mapped_columns
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.constraints import NodeWeights, heaviest, row_offsets

SORT_LINK_BYTES = 20  # per entry of a bucket: its key, its place in the row, its count, and room for the allocator
LINK_NODE_BYTES = 16  # offsets of the rows, and edges that leave a node
MOST_IN_BYTES = 127  # copies of an edge; as many may lie in the other direction
MAX_ROW_PIECE = 1 << 18  # stored edges that are turned into keys at a time, beside a bucket
_NAMES = SortNames(
    count="link_count", group="link_group", sort="link_sort", buckets="adjacency.buckets", rows="adjacency"
)
_SOURCES, _DEGREES = f"{_NAMES.rows}.sources", f"{_NAMES.rows}.degrees"


@dataclass(frozen=True, eq=False)
class StoredAdjacency:
    """Neighbour lists in files of the work directory.

    Attributes:
      degrees: int64 [num_nodes]; neighbours of each node; mapped.
      num_entries: of all rows; every pair of neighbours counts twice.
      indices: file of the neighbours, row after row.
      id_dtype: of the neighbours.
      weights: file of the stored directed edges between the two, or None: the same number for every pair.
      weight_dtype: uint8 or int32; None without.
    """

    degrees: np.ndarray
    num_entries: int
    indices: Path
    id_dtype: np.dtype
    weights: Path | None
    weight_dtype: np.dtype | None

    @contextmanager
    def mapped(self) -> Iterator[Adjacency]:
        """The adjacency with its arrays in the files; pages that were read are dropped repeatedly.

        It must not be used after the block.
        """
        columns = (self.indices, self.id_dtype), (self.weights, self.weight_dtype)
        with mapped_columns(columns, self.num_entries) as (indices, weights):
            yield Adjacency(row_offsets(self.degrees), indices, weights)


def build_adjacency(
    topology: StoredTopology,
    journal: Journal,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda count: None,
    *,
    undirected: bool,
) -> StoredAdjacency:
    """Make the adjacency of a topology on disk.

    Args:
      topology: sorted rows in the same work directory.
      journal: the entered work directory.
      budget: sizes of pieces and buckets.
      on_bytes: called with bytes of work done since its last call; `adjacency_bytes` is their sum.
      undirected: the topology holds both directions of every edge, once.
    Returns:
      StoredAdjacency: that of `methods.adjacency.symmetrise`, bit for bit, except that its weights may be bytes.
    Raises:
      ValueError: the limit is too small for the longest row; said once rows are counted.
      OSError: the disk refuses.
    """
    budget = link_budget(budget)
    make = _WithoutLoops if undirected else _BothDirections
    return make(_Rows(topology, budget.piece_edges, on_bytes), journal, budget).run()


def link_budget(budget: MemoryBudget) -> MemoryBudget:
    """The memory budget of a graph, for the passes of this file."""
    return replace(budget, sort_edge_bytes=SORT_LINK_BYTES, row_edge_bytes=0, edge_map_bytes=0)


def remove_adjacency(journal: Journal) -> None:
    """Delete the adjacency's files; those of the topology stay."""
    counted = [journal.path / name for name in (_SOURCES, _DEGREES)]  # first: without them no step counts as done
    for file in [*counted, *journal.path.glob(f"{_NAMES.rows}.*")]:
        file.unlink(missing_ok=True)


def adjacency_bytes(topology: StoredTopology, *, undirected: bool) -> int:
    """What `on_bytes` of `build_adjacency` adds up to, at most."""
    passes = 2 if undirected else 3
    keys = 0 if undirected else KEY.itemsize
    return topology.num_edges * (passes * topology.id_dtype.itemsize + keys)


class _Rows:
    """The stored rows of a topology, a piece at a time.

    Args:
      topology: whose file is read.
      step: edges of a piece.
      on_bytes: called with the bytes of every piece.
    """

    def __init__(self, topology: StoredTopology, step: int, on_bytes: Callable[[int], None]) -> None:
        self.topology, self.indptr, self.step, self.on_bytes = topology, topology.indptr(), step, on_bytes

    def pieces(
        self, first: int, last: int, *, step: int | None = None, before: int = 0
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Edges first .. last - 1: (position after the piece, sources, destinations int64).

        Args:
          step: edges of a piece, if not that of all.
          before: a piece begins with so many edges of the one before it, where there are as many.
        """
        topology, step = self.topology, step or self.step
        with _opened(topology.indices) as handle:
            for lo in range(first, last, step):
                hi, begin = min(last, lo + step), max(0, lo - before)
                sources = read_at(handle, topology.id_dtype, begin, hi - begin)
                self.on_bytes((hi - lo) * topology.id_dtype.itemsize)
                yield hi, sources, destinations(self.indptr, begin, hi - begin)

    def describe(self) -> dict[str, Any]:
        """Plain values for the journal; the steps before tell which topology it is."""
        return {"num_nodes": self.topology.num_nodes, "num_edges": self.topology.num_edges}


class _BothDirections(BucketSort):
    """The rows of a directed topology and, in buckets, its edges from their sources' side."""

    def __init__(self, rows: _Rows, journal: Journal, budget: MemoryBudget) -> None:
        super().__init__(_NAMES, rows.describe(), journal, budget, rows.on_bytes, undirected=False)
        self._rows, self._topology = rows, rows.topology

    def run(self) -> StoredAdjacency:
        counted = self._count()
        self._budget.check(counted["longest_row"], "neighbours")
        self._weight_dtype = np.dtype(np.int32 if counted["repeated"] else np.uint8)
        num_entries = self._run_passes()
        uniform = len(set(self._found.get("extremes", ()))) < 2
        if uniform:
            self._row_file("weights").unlink(missing_ok=True)
        return StoredAdjacency(
            map_array(self._row_file("degrees"), np.dtype(np.int64), (self._topology.num_nodes,)),
            num_entries,
            self._row_file("indices"),
            self._topology.id_dtype,
            None if uniform else self._row_file("weights"),
            None if uniform else self._weight_dtype,
        )

    def _count(self) -> dict[str, Any]:
        state, file = _counted(self._journal, self._source, _SOURCES)
        if state:
            return state
        leaving, repeated = np.zeros(self._topology.num_nodes, dtype=np.int64), False
        position = 0
        for stop, sources, rows in self._rows.pieces(0, self._topology.num_edges, before=MOST_IN_BYTES):
            repeated = repeated or _lies_apart(sources, rows, MOST_IN_BYTES)
            new = len(sources) - (stop - position)
            add_degrees(self._reversed(sources[new:], rows[new:], stop), False, leaving)
            position = stop
        with appending(file, 0) as written:
            append(written, leaving)
        both = _Sum(leaving, self._topology.degrees)
        state = {"longest_row": heaviest(both, len(leaving))[1], "repeated": repeated, "done": True}
        self._journal.save(_NAMES.count, **state)
        return state

    def _degrees(self) -> tuple[NodeWeights, np.ndarray]:
        leaving = map_array(self._journal.path / _SOURCES, np.dtype(np.int64), (self._topology.num_nodes,))
        return _Sum(leaving, self._topology.degrees), leaving

    def _pieces(self, position: int) -> Iterator[tuple[int, EdgePiece]]:
        for stop, sources, rows in self._rows.pieces(position, self._topology.num_edges):
            yield stop, self._reversed(sources, rows, stop)

    def _reversed(self, sources: np.ndarray, rows: np.ndarray, stop: int) -> EdgePiece:
        """Edges from the side of their sources, self-loops left out."""
        first = stop - len(sources)
        rows = rows.astype(sources.dtype, copy=False)
        apart = sources != rows
        if not apart.all():
            sources, rows = sources[apart], rows[apart]
        return EdgePiece(rows, sources, None, first)

    def _bucket_dtypes(self) -> dict[str, np.dtype]:
        return {"keys": KEY}

    def _row_dtypes(self) -> dict[str, np.dtype]:
        return {"indices": self._topology.id_dtype, "weights": self._weight_dtype}

    def _sorted_bucket(
        self, files: dict[str, int], place: tuple[int, int], rows: tuple[int, int]
    ) -> dict[str, np.ndarray | None]:
        keys = self._keys_of_rows(files, place, rows)
        counts = np.empty(len(keys), dtype=np.int32)
        ids, _, degrees = sort_edges(keys, None, rows, self._topology.id_dtype, merge=True, counts=counts)
        counts = counts[: len(ids)]
        if len(counts):
            extremes = [int(counts.min()), int(counts.max()), *self._found.get("extremes", ())]
            self._found = {"extremes": [min(extremes), max(extremes)]}
        return {"indices": ids, "weights": counts.astype(self._weight_dtype, copy=False), "degrees": degrees}

    def _keys_of_rows(self, files: dict[str, int], place: tuple[int, int], rows: tuple[int, int]) -> np.ndarray:
        """The grouped edges of some nodes, and those of their own rows."""
        first, last = (int(self._rows.indptr[row]) for row in rows)
        keys = np.empty(place[1] + last - first, dtype=KEY)
        read_at(files["keys"], KEY, *place, out=keys[: place[1]])
        filled = place[1]
        for _, sources, owners in self._rows.pieces(first, last, step=min(self._rows.step, MAX_ROW_PIECE)):
            apart = sources != owners
            if not apart.all():
                sources, owners = sources[apart], owners[apart]
            part = keys[filled : filled + len(sources)]
            np.left_shift(owners.view(np.uint64), np.uint64(32), out=part)
            part |= sources.view(f"u{sources.itemsize}")
            filled += len(part)
        return keys[:filled]


class _Sum:
    """Two columns of numbers per node, mapped or not, added up where they are looked at."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self._first, self._second = first, second

    def __getitem__(self, nodes: slice | np.ndarray) -> np.ndarray:
        return np.asarray(self._first[nodes] + self._second[nodes])

    def drop_pages(self) -> None:
        drop_pages(self._first)
        drop_pages(self._second)


class _WithoutLoops:
    """The rows of an undirected topology, which holds a self-loop once, in that node's row."""

    def __init__(self, rows: _Rows, journal: Journal, budget: MemoryBudget) -> None:
        self._rows, self._topology, self._journal = rows, rows.topology, journal

    def run(self) -> StoredAdjacency:
        topology, counted = self._topology, self._count()
        if not counted["loops"]:
            return StoredAdjacency(
                topology.degrees, topology.num_edges, topology.indices, topology.id_dtype, None, None
            )
        file = self._journal.path / f"{_NAMES.rows}.indices"
        self._copy(file)
        degrees = map_array(self._journal.path / _DEGREES, np.dtype(np.int64), (topology.num_nodes,))
        return StoredAdjacency(degrees, topology.num_edges - counted["loops"], file, topology.id_dtype, None, None)

    def _count(self) -> dict[str, Any]:
        state, file = _counted(self._journal, self._rows.describe(), _DEGREES)
        if state:
            return state
        degrees, loops = np.array(self._topology.degrees), 0
        drop_pages(self._topology.degrees)
        for _, sources, rows in self._rows.pieces(0, self._topology.num_edges):
            nodes = rows[sources == rows]
            degrees[nodes] -= 1
            loops += len(nodes)
        if loops:
            with appending(file, 0) as written:
                append(written, degrees)
        self._journal.save(_NAMES.count, loops=loops, done=True)
        return {"loops": loops}

    def _copy(self, path: Path) -> None:
        state = self._journal.begin(_NAMES.sort, self._rows.describe())
        position, num_entries, last = state.get("position", 0), state.get("num_entries", 0), self._topology.num_edges
        if state.get("done"):
            return
        saved = position
        with appending(path, num_entries * self._topology.id_dtype.itemsize) as file:
            for stop, sources, rows in self._rows.pieces(position, last):
                kept = sources[sources != rows]
                append(file, kept)
                num_entries += len(kept)
                if stop - saved >= buckets.SAVE_EDGES or stop == last:
                    saved = stop
                    with naming_file(path):
                        os.fdatasync(file.fileno())
                    state = {"position": stop, "num_entries": num_entries, "done": stop == last}
                    self._journal.save(_NAMES.sort, **state)


def _counted(journal: Journal, source: Any, name: str) -> tuple[dict[str, Any], Path]:
    """(state of the first step, its file); the state is empty where the file is gone: the adjacency was deleted."""
    state, file = journal.begin(_NAMES.count, source), journal.path / name
    if state and state.get("loops") != 0 and not file.exists():
        journal.restart(_NAMES.count)
        state = {}
    return state, file


def _lies_apart(sources: np.ndarray, rows: np.ndarray, distance: int) -> bool:
    """Whether some edge of sorted rows lies that far from an equal one, so that there are more than so many of it."""
    far = (sources[distance:] == sources[:-distance]) & (rows[distance:] == rows[:-distance])
    return bool(far.any())


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
