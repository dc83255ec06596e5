"""A copy of mapped rows in the order in which their nodes are visited, made by reading and writing front to back.

A pass in another order than that of the file reads rows that lie scattered in it: from a disk that costs a page or more
for each. The copy is made once, so that every pass reads a file front to back.

    spread   the rows in the order of the file, each into the window of its turn; a window is a run of turns whose rows
             fit into memory, and in it the rows lie by node
    sort     window after window is read, put in order of the turns and written back

Both read the rows once and write them once. Memory: a window, a chunk, and 2 bytes per node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.csc import row_positions
from fastsample_dist.partition.external.kernels import read_ranges
from fastsample_dist.partition.external.mapped import mapped_columns

FILE_NAME = "ordered_rows"
WINDOW_BYTES = 1 << 26  # so many bytes of rows are put in order in memory
CHUNK_ENTRIES = 1 << 21  # and so many entries are picked at a time
MAX_WINDOWS = 1 << 16  # windows are numbered in 16 bits
NODE_BYTES = 2  # per node: its window
FIXED_BYTES = WINDOW_BYTES + 32 * CHUNK_ENTRIES  # entries with their places and owners


@contextmanager
def rows_in_order(
    indptr: np.ndarray, entries: np.ndarray, order: np.ndarray, name: str, work: Path
) -> Iterator[np.ndarray]:
    """Entries of rows, those of the node that comes first in front; in a file that is there inside the block.

    Args:
      indptr: int64 [num_nodes + 1]; offsets of the rows.
      entries: [num_entries]; read front to back.
      order: int64 [num_nodes]; the nodes, each once.
      name: of the column, for the file's name.
      work: the directory for the file.
    Yields:
      The entries in order of the turns, mapped; pages that were read are dropped repeatedly.
    Raises:
      OSError: the disk refuses; it names the file.
    """
    file = work / f"{FILE_NAME}.{name}"
    windows = _Windows(indptr, order, entries.dtype.itemsize)
    try:
        with naming_file(file):
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                windows.spread(entries, handle)
                windows.sort(entries.dtype, handle)
            finally:
                os.close(handle)
        with mapped_columns([(file, entries.dtype)], len(entries)) as (ordered,):
            yield ordered
    finally:
        file.unlink(missing_ok=True)


class _Windows:
    """Runs of turns, at least one, of about so many bytes of rows.

    Args:
      indptr, order: as of `rows_in_order`.
      itemsize: bytes of an entry.
    """

    def __init__(self, indptr: np.ndarray, order: np.ndarray, itemsize: int) -> None:
        self._indptr, self._order = indptr, order
        room = max(WINDOW_BYTES // itemsize, -(-int(indptr[-1]) // (MAX_WINDOWS - 1)), 1)
        self._window_of = np.empty(len(order), dtype=np.uint16)  # by node
        counts = np.zeros(int(indptr[-1]) // room + 1, dtype=np.int64)  # entries of each window
        turns = np.zeros(len(counts), dtype=np.int64)
        begin = 0
        for lo in range(0, len(order), CHUNK_ENTRIES):
            nodes = order[lo : lo + CHUNK_ENTRIES]
            degrees = indptr[nodes + 1] - indptr[nodes]
            ends = begin + np.cumsum(degrees)
            windows = (ends - degrees) // room
            windows = np.minimum(windows, len(counts) - 1)  # rows without entries at the end
            self._window_of[nodes] = windows
            counts += np.bincount(windows, degrees, minlength=len(counts)).astype(np.int64)
            turns += np.bincount(windows, minlength=len(counts))
            begin = int(ends[-1])
        self._begins = np.concatenate([[0], np.cumsum(counts)])  # of each window in the file
        self._turns = np.concatenate([[0], np.cumsum(turns)])

    def spread(self, entries: np.ndarray, handle: int) -> None:
        """Write every row into its window, rows by node."""
        cursors = self._begins[:-1].copy()
        for lo, hi in _row_chunks(self._indptr):
            windows = self._window_of[lo:hi]
            rows = lo + np.argsort(windows, kind="stable")  # of 16-bit numbers: a radix sort
            degrees = self._indptr[rows + 1] - self._indptr[rows]
            counts = np.bincount(self._window_of[rows], degrees, minlength=len(cursors)).astype(np.int64)
            picked = entries[row_positions(self._indptr, rows)[0]]
            ends = np.cumsum(counts)
            for window in np.flatnonzero(counts):
                _write(handle, picked[ends[window] - counts[window] : ends[window]], int(cursors[window]))
            cursors += counts

    def sort(self, dtype: np.dtype, handle: int) -> None:
        """Put the rows of every window in order of the turns."""
        for window, begin in enumerate(self._begins[:-1].tolist()):
            nodes = self._order[self._turns[window] : self._turns[window + 1]]
            by_node = np.argsort(nodes)
            degrees = self._indptr[nodes + 1] - self._indptr[nodes]
            offsets = np.concatenate([[0], np.cumsum(degrees[by_node])])
            place = np.empty(len(nodes), dtype=np.int64)  # of each turn's row in the window
            place[by_node] = np.arange(len(nodes))
            size = np.array([offsets[-1] * dtype.itemsize])
            rows = read_ranges(handle, np.array([begin * dtype.itemsize]), size, dtype)
            for lo, hi in _row_chunks(np.concatenate([[0], np.cumsum(degrees)])):
                picked = rows[row_positions(offsets, place[lo:hi])[0]]
                _write(handle, picked, begin)
                begin += len(picked)


def _row_chunks(indptr: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges (lo, hi) of rows, at least one, of at most CHUNK_ENTRIES entries and rows where no row has more."""
    lo = 0
    while lo < len(indptr) - 1:
        hi = int(np.searchsorted(indptr, indptr[lo] + CHUNK_ENTRIES, side="right")) - 1
        hi = min(max(hi, lo + 1), lo + CHUNK_ENTRIES)
        yield lo, hi
        lo = hi


def _write(handle: int, values: np.ndarray, position: int) -> None:
    """Write whole elements at an element's place."""
    data, offset = memoryview(values).cast("B") if len(values) else b"", position * values.itemsize
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
