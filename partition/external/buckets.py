"""Edges from any source, sorted on disk: grouped into buckets, ranges of nodes whose edges fit into memory, which are
then sorted one after the other.

    group   every edge as a 64-bit key into the region of its bucket in a file
    sort    bucket after bucket; what comes of it is appended to files of rows
A killed run resumes after the last piece or bucket in the journal. csc.py sorts the graph's list of edges this way,
adjacency.py the edges of the stored rows in the other direction.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.partition.external.bounds import bucket_bounds, bucket_sizes
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.journal import Journal
from fastsample_dist.partition.external.kernels import EdgePiece, group_edges, read_ranges
from fastsample_dist.partition.methods.constraints import NodeWeights, heaviest

SAVE_EDGES = 1 << 26  # edges read between two entries of the journal
KEY = np.dtype(np.uint64)


@dataclass(frozen=True)
class SortNames:
    """What one sort calls its own: steps of the journal, and how its files begin (a dot and the column follow)."""

    count: str
    group: str
    sort: str
    buckets: str
    rows: str


class BucketSort(ABC):
    """One run of the passes; what is sorted, and how, is a subclass's.

    Args:
      names: of steps and files.
      source: plain values that change when the edges do.
      journal: the entered work directory.
      budget: sizes of pieces and buckets.
      on_bytes: called with bytes of work done since its last call.
      undirected: every edge of `_pieces` is grouped in both directions, a self-loop once.
    """

    def __init__(
        self,
        names: SortNames,
        source: Any,
        journal: Journal,
        budget: MemoryBudget,
        on_bytes: Callable[[int], None],
        *,
        undirected: bool,
    ) -> None:
        self._names, self._source, self._journal = names, source, journal
        self._budget, self._on_bytes, self._undirected = budget, on_bytes, undirected
        self._found: dict[str, Any] = {}  # kept with the state of the step "sort"

    @abstractmethod
    def _bucket_dtypes(self) -> dict[str, np.dtype]:
        """Columns of an edge in a bucket: "keys", and "weights" and "positions" where there are such."""

    @abstractmethod
    def _row_dtypes(self) -> dict[str, np.dtype]:
        """Columns with an entry per sorted edge; one is "indices"."""

    @abstractmethod
    def _degrees(self) -> tuple[NodeWeights, np.ndarray]:
        """Edges of each node: those that are in memory while its bucket is sorted, at most, and int64 [num_nodes] those
        of them that are grouped."""

    @abstractmethod
    def _pieces(self, position: int) -> Iterator[tuple[int, EdgePiece]]:
        """The edges to group from a position on: (position after the piece, piece)."""

    @abstractmethod
    def _sorted_bucket(
        self, files: dict[str, int], place: tuple[int, int], rows: tuple[int, int]
    ) -> dict[str, np.ndarray | None]:
        """The columns of `_row_dtypes` and "degrees" of a bucket's nodes rows[0] .. rows[1] - 1.

        Args:
          files: descriptors of the buckets' columns.
          place: the bucket's first grouped edge in them, and how many there are.
        """

    def _run_passes(self) -> int:
        """Group and sort, as far as that is not done; the number of sorted edges."""
        if not self._journal.begin(self._names.sort, self._source).get("done"):
            bounds, sizes = self._group()
            self._sort(bounds, sizes)
        state = self._journal.begin(self._names.sort, self._source)
        self._found = state.get("found", {})
        for name in self._bucket_dtypes():
            self._bucket_file(name).unlink(missing_ok=True)
        return state["num_edges"]

    def _bucket_file(self, name: str) -> Path:
        return self._journal.path / f"{self._names.buckets}.{name}"

    def _row_file(self, name: str) -> Path:
        return self._journal.path / f"{self._names.rows}.{name}"

    def _group(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the buckets, and grouped edges in each."""
        totals, grouped = self._degrees()
        state = self._journal.begin(self._names.group, self._source)
        room = max(self._budget.bucket_edges, heaviest(totals, len(grouped))[1])
        if state and state["bucket_edges"] > room:  # made within a larger limit
            self._journal.restart(self._names.group)
            self._journal.begin(self._names.sort, self._source)
            state = {}
        room = state.get("bucket_edges", room)
        bounds = bucket_bounds(totals, len(grouped), room)
        ends = np.concatenate([[0], np.cumsum(bucket_sizes(grouped, bounds))])
        del totals, grouped
        if not state.get("done"):
            self._group_from(state.get("position", 0), state.get("cursors"), bounds, ends, room)
        return bounds, np.diff(ends)

    def _group_from(
        self, position: int, cursors: list[int] | None, bounds: np.ndarray, ends: np.ndarray, room: int
    ) -> None:
        filled = ends[:-1].copy() if cursors is None else np.array(cursors, dtype=np.int64)
        saved, position_dtype = position, self._bucket_dtypes().get("positions")
        with self._bucket_files() as files:
            for stop, piece in self._pieces(position):
                most = len(piece.src) * (2 if self._undirected else 1)
                positions = None if position_dtype is None else np.empty(most, dtype=position_dtype)
                keys, weights, counts = group_edges(piece, self._undirected, bounds, positions)
                del piece
                grouped = {"keys": keys, "weights": weights, "positions": positions}
                starts = np.cumsum(counts) - counts
                for bucket in np.flatnonzero(counts):
                    lo, hi, place = starts[bucket], starts[bucket] + counts[bucket], int(filled[bucket])
                    for name, handle in files.items():
                        with naming_file(self._bucket_file(name)):
                            write_at(handle, grouped[name][lo:hi], place)
                filled += counts
                if stop - saved >= SAVE_EDGES:
                    saved = stop
                    self._sync(files.values())
                    self._journal.save(self._names.group, bucket_edges=room, position=stop, cursors=filled.tolist())
            self._sync(files.values())
        assert (filled == ends[1:]).all(), "an edge was counted and not grouped, or the other way round"
        self._journal.save(self._names.group, bucket_edges=room, done=True)

    def _sort(self, bounds: np.ndarray, sizes: np.ndarray) -> None:
        state = self._journal.begin(self._names.sort, self._source)
        first, num_edges, self._found = state.get("bucket", 0), state.get("num_edges", 0), state.get("found", {})
        starts = np.cumsum(sizes) - sizes
        with ExitStack() as opened:
            out = {
                name: opened.enter_context(appending(self._row_file(name), num_edges * dtype.itemsize))
                for name, dtype in self._row_dtypes().items()
            }
            out["degrees"] = opened.enter_context(appending(self._row_file("degrees"), int(bounds[first]) * 8))
            files = opened.enter_context(self._bucket_files())
            for bucket in range(first, len(sizes)):
                rows = int(bounds[bucket]), int(bounds[bucket + 1])
                columns = self._sorted_bucket(files, (int(starts[bucket]), int(sizes[bucket])), rows)
                num_edges += len(columns["indices"])
                for name, file in out.items():
                    append(file, columns[name])
                self._on_bytes(int(sizes[bucket]) * KEY.itemsize)
                del columns
                self._sync(file.fileno() for file in out.values())
                done = bucket + 1 == len(sizes)
                state = {"bucket": bucket + 1, "num_edges": num_edges, "found": self._found, "done": done}
                self._journal.save(self._names.sort, **state)

    def _sync(self, handles: Iterable[int]) -> None:
        with naming_file(self._journal.path):
            for handle in handles:
                os.fdatasync(handle)

    @contextmanager
    def _bucket_files(self) -> Iterator[dict[str, int]]:
        handles: dict[str, int] = {}
        try:
            for name in self._bucket_dtypes():
                handles[name] = os.open(self._bucket_file(name), os.O_RDWR | os.O_CREAT, 0o666)
            yield handles
        finally:
            for handle in handles.values():
                os.close(handle)


@contextmanager
def appending(path: Path, length: int) -> Iterator[Any]:
    """A file open for writing after its first `length` bytes, the rest cut off."""
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        with naming_file(path):
            file.truncate(length)
        file.seek(length)
        yield file


def append(file: Any, values: np.ndarray) -> None:
    """Write all values at the place of a file that `appending` has opened."""
    data = memoryview(values).cast("B") if values.size else memoryview(b"")
    with naming_file(file.name):
        while len(data):
            data = data[file.write(data) :]


def write_at(handle: int, values: np.ndarray, position: int) -> None:
    """Write whole elements at an element's place."""
    data = memoryview(values).cast("B")
    offset = position * values.itemsize
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


def read_at(handle: int, dtype: np.dtype, position: int, count: int, out: np.ndarray | None = None) -> np.ndarray:
    """Whole elements from an element's place; `out`: where they go, [count] of the type."""
    begins, sizes = (np.array([value * dtype.itemsize], dtype=np.int64) for value in (position, count))
    return read_ranges(handle, begins, sizes, dtype, out)
