"""A CSCGraph in place of an edge list: read as one in pieces, and taken as a topology without unrolling and sorting it.

Rows that ascend, parallel edges by weight, are the topology's rows already; only rows that do not are sorted. Where
every edge counts in both directions, the rows are the topology's if each edge's reverse is there and no edge is there
twice. To see that, the edges with source < destination, in the order of the rows, are compared with the reverses of the
others, sorted. A graph that lacks reverses is unrolled like any list (`RawGraph.to_csc`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph, destinations, id_dtype, row_positions
from fastsample_dist.graph.npy_files import row_chunks

logger = logging.getLogger(__name__)


class ListedRows:
    """The edges of a graph as a list [2, num_edges], row 0: sources, row 1: destinations, in the order of its rows.

    Iterating gives the two rows; that of the destinations is computed where it is read.

    Args:
      graph: whose ids are original ones and whose offsets do not decrease; its arrays are used as they are.
    Attributes:
      graph: as given.
      shape, dtype, ndim, itemsize: as of the array [2, num_edges].
    """

    ndim = 2

    def __init__(self, graph: CSCGraph) -> None:
        self.graph, self.shape = graph, (2, graph.num_edges)
        self.sources, self.indptr = graph.indices.cpu().numpy(), graph.indptr.cpu().numpy()
        self.dtype = self.sources.dtype
        self.itemsize = self.dtype.itemsize

    def __iter__(self) -> Iterator[np.ndarray | _Destinations]:
        yield self.sources
        yield _Destinations(self.indptr, self.dtype)


class _Destinations:
    """The destination of every edge, for slices without a step or as an array."""

    def __init__(self, indptr: np.ndarray, dtype: np.dtype) -> None:
        self._indptr, self.dtype = indptr, dtype

    def __len__(self) -> int:
        return int(self._indptr[-1])

    def __getitem__(self, edges: slice) -> np.ndarray:
        lo, hi, step = edges.indices(len(self))
        assert step == 1, "destinations are read by slices without a step"
        return destinations(self._indptr, lo, max(0, hi - lo)).astype(self.dtype, copy=False)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)


def canonical_rows(
    graph: CSCGraph, weights: np.ndarray | None, places: np.ndarray | None, *, undirected: bool, name: str
) -> CSCGraph | None:
    """The topology of a graph that is given as rows: what `CSCGraph.from_edge_index` makes of its unrolled edges.

    Args:
      graph: whose ids are in range; its weights are not read.
      weights: float32 | float64 [num_edges] or None, finite and not negative.
      places: integer [num_edges], ascending, or None: the edges' places in the list; this array may be changed.
      undirected: every edge counts in both directions, and of its weights and places the first listed.
      name: of the graph, for a warning.
    Returns:
      CSCGraph that shares what need not be changed with the arguments; None where the graph is to be undirected and
      some reverse is missing or some edge is listed twice. Cost: two looks at every edge; undirected, a sort of half.
    """
    indptr = graph.indptr.cpu().numpy()
    columns = {
        "indices": graph.indices.cpu().to(id_dtype(graph.num_nodes)).numpy(),
        "weights": weights,
        "edge_map": places,
    }
    wrong = _rows_out_of_order(indptr, columns["indices"], weights)
    if len(wrong):
        columns = _with_sorted_rows(indptr, columns, wrong)
    if undirected:
        ordered = columns["weights"]
        columns = _mirrored(indptr, columns)
        if columns is None:
            return None
        if weights is not None:
            say_unlike(name, int(np.count_nonzero(columns["weights"] != ordered)))
    tensors = {name: None if column is None else torch.from_numpy(column) for name, column in columns.items()}
    return CSCGraph(torch.from_numpy(indptr), **tensors, weights_checked=True)


def say_unlike(name: str, count: int) -> None:
    """Warn of listed edges that were merged into one of another weight; `name`: of the graph."""
    if count:
        logger.warning(
            "%s: %d listed edge(s) repeat an earlier one (in either direction) with another weight; merged, the weight "
            "of the first listed is kept: where weights are meant to add up, add them up before.", name, count,
        )  # fmt: skip


def _rows_out_of_order(indptr: np.ndarray, sources: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Numbers of the rows that do not ascend by (source, weight)."""
    found = []
    for lo, hi in row_chunks(len(sources), 16):
        chunk = sources[lo : hi + 1]
        falls = chunk[1:] < chunk[:-1]
        if weights is not None:
            beside = weights[lo : hi + 1]
            falls |= (chunk[1:] == chunk[:-1]) & (beside[1:] < beside[:-1])
        places = np.flatnonzero(falls) + lo + 1
        rows = np.searchsorted(indptr, places, side="right") - 1
        found.append(rows[indptr[rows] != places])  # where a row begins nothing has to ascend
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def _with_sorted_rows(
    indptr: np.ndarray, columns: dict[str, np.ndarray | None], rows: np.ndarray
) -> dict[str, np.ndarray | None]:
    """The columns with some rows sorted by (source, weight), equal edges in their order."""
    places, owners = row_positions(indptr, rows)
    keys = [owners, columns["indices"][places]]
    if columns["weights"] is not None:
        keys.append(columns["weights"][places])
    order = places[np.lexsort(keys[::-1])]
    changed = {name: None if column is None else column.copy() for name, column in columns.items()}
    for name, column in changed.items():
        if column is not None:
            column[places] = columns[name][order]
    return changed


def _mirrored(indptr: np.ndarray, columns: dict[str, np.ndarray | None]) -> dict[str, np.ndarray | None] | None:
    """The columns with both directions of an edge alike; None unless every edge is there once in each direction.

    Of the two, that with source > destination is listed first: its row has the lower number.
    """
    sources, num_nodes = columns["indices"], len(indptr) - 1
    carried = [name for name in ("weights", "edge_map") if columns[name] is not None]
    forward, backward, places, last = [], [], ([], []), -1
    for lo, hi in row_chunks(len(sources), 32):
        src, dst = sources[lo:hi].astype(np.int64), destinations(indptr, lo, hi - lo)
        keys = dst * num_nodes + src
        if bool((np.diff(keys, prepend=last) == 0).any()):  # rows ascend, so parallel edges lie side by side
            return None
        last = keys[-1]
        forward.append(keys[src < dst])
        backward.append((src * num_nodes + dst)[src > dst])
        if carried:
            places[0].append(np.flatnonzero(src < dst) + lo)
            places[1].append(np.flatnonzero(src > dst) + lo)
    forward, backward = (np.concatenate([np.empty(0, np.int64), *keys]) for keys in (forward, backward))
    if len(forward) != len(backward):
        return None
    order = np.argsort(backward) if carried else None
    backward = np.sort(backward) if order is None else backward[order]
    if not np.array_equal(forward, backward):
        return None
    columns = dict(columns)
    for name in carried:
        later, first = (np.concatenate([np.empty(0, np.int64), *found]) for found in places)
        columns[name] = columns[name].copy()
        columns[name][later] = columns[name][first[order]]
    return columns
