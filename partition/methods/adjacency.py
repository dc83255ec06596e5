"""The graph as a partitioner wants it: every pair of neighbours in both rows, no self-loops, no duplicates.

The weight of a pair is the number of stored directed edges between its two nodes, so a cut of this graph is a cut of
the stored topology: sum of the weights of cut pairs == number of stored edges between different parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fastsample_dist.graph.csc import CSCGraph

CHUNK_EDGES = 1 << 22  # 32 MB of int64 at a time
SAMPLED_EDGES = 1 << 12  # a share is found to within 2.5 % of all edges (3 standard errors)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbour lists.

    Attributes:
      indptr: int64 [num_nodes + 1].
      indices: int32 | int64 [num_entries]; neighbours of v at indptr[v] .. indptr[v + 1] - 1.
      weights: int32 [num_entries], stored directed edges between the two; None: the same number for every pair.
      symmetric: every pair is in both rows (`symmetrise`).
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None
    symmetric: bool = True

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1


def rows_of(graph: CSCGraph, *, undirected: bool) -> Adjacency:
    """The stored neighbour lists of a topology as they are, self-loops included; nothing is copied.

    Args:
      graph: the topology, original ids.
      undirected: the topology holds both directions of every edge.
    """
    return Adjacency(graph.indptr.numpy(), graph.indices.numpy(), None, symmetric=undirected)


def symmetrise(graph: CSCGraph, *, undirected: bool) -> Adjacency:
    """Build the adjacency of a topology.

    Args:
      graph: the topology, original ids.
      undirected: the topology holds both directions of every edge, once (as `RawGraph.to_csc` makes it).
    Returns:
      Adjacency. Undirected without self-loops: the topology's own arrays. Else at most twice the topology's indices
      and as many int32 weights, beside chunks of CHUNK_EDGES; cost: a sort, and a look at all edges per chunk.
    """
    if undirected:
        return _without_loops(rows_of(graph, undirected=True))
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    num_nodes = graph.num_nodes
    both = np.diff(indptr)
    for lo in range(0, len(indices), CHUNK_EDGES):
        both += np.bincount(indices[lo : lo + CHUNK_EDGES], minlength=num_nodes)
    neighbours = np.empty(2 * len(indices), dtype=indices.dtype)
    weights = np.empty(2 * len(indices), dtype=np.int32)
    counts = np.zeros(num_nodes + 1, dtype=np.int64)  # of row v at v + 1
    filled = 0
    for lo, hi in edge_chunks(both):
        keys = np.concatenate(list(_keys_of_rows(indptr, indices, lo, hi)))
        keys.sort()
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
        rows, sources = np.divmod(keys[first], num_nodes)
        counts[lo + 1 : hi + 1] = np.bincount(rows - lo, minlength=hi - lo)
        weights[filled : filled + len(first)] = np.diff(first, append=len(keys))
        neighbours[filled : filled + len(first)] = sources
        filled += len(first)
    weights = weights[:filled]
    uniform = filled == 0 or int(weights.min()) == int(weights.max())
    return Adjacency(np.cumsum(counts), neighbours[:filled], None if uniform else weights)


def estimate_neighbours(graph: CSCGraph, *, undirected: bool) -> int:
    """How many entries `symmetrise` gives, about: the share of edges whose reverse is stored too is sampled.

    Args:
      graph, undirected: as of `symmetrise`; rows ascend.
    Returns:
      num_edges .. 2 * num_edges. Deterministic: yes. Cost: SAMPLED_EDGES searches in a row.
    """
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    if undirected or not len(indices):
        return len(indices)
    positions = np.random.default_rng(0).integers(0, len(indices), SAMPLED_EDGES)
    owners = np.searchsorted(indptr, positions, side="right") - 1
    both = 0
    for source, owner in zip(indices[positions].tolist(), owners.tolist(), strict=True):
        row = indices[indptr[source] : indptr[source + 1]]
        place = int(np.searchsorted(row, owner))
        both += place < len(row) and int(row[place]) == owner
    return round(len(indices) * (2 - both / SAMPLED_EDGES))


def _without_loops(rows: Adjacency) -> Adjacency:
    """The rows without their self-loops; the same arrays where there are none."""
    degrees = np.diff(rows.indptr)
    kept, counts = [], np.zeros(rows.num_nodes + 1, dtype=np.int64)
    for lo, hi in edge_chunks(degrees):
        sources = rows.indices[rows.indptr[lo] : rows.indptr[hi]]
        owners = np.repeat(np.arange(lo, hi, dtype=sources.dtype), degrees[lo:hi])
        loops = sources == owners
        counts[lo + 1 : hi + 1] = degrees[lo:hi] - np.bincount(owners[loops] - lo, minlength=hi - lo)
        kept.append(sources[~loops] if loops.any() else sources)  # without loops: a view
    if int(counts.sum()) == len(rows.indices):
        return rows
    return Adjacency(np.cumsum(counts), np.concatenate(kept), None)


def _keys_of_rows(indptr: np.ndarray, indices: np.ndarray, lo: int, hi: int) -> Iterator[np.ndarray]:
    """row * num_nodes + neighbour of both directions of every edge but self-loops, for the rows lo .. hi - 1."""
    num_nodes = len(indptr) - 1
    sources = indices[indptr[lo] : indptr[hi]].astype(np.int64)
    owners = np.repeat(np.arange(lo, hi, dtype=np.int64), np.diff(indptr[lo : hi + 1]))
    apart = sources != owners
    yield owners[apart] * num_nodes + sources[apart]
    for begin in range(0, len(indices), CHUNK_EDGES):  # the other direction: edges whose source is such a row
        sources = indices[begin : begin + CHUNK_EDGES]
        at = np.flatnonzero((sources >= lo) & (sources < hi))
        owners = np.searchsorted(indptr, at + begin, side="right") - 1
        sources = sources[at].astype(np.int64)
        apart = sources != owners
        yield sources[apart] * num_nodes + owners[apart]


def edge_chunks(degrees: np.ndarray, chunk_edges: int | None = None) -> list[tuple[int, int]]:
    """Cut rows into ranges (lo, hi) of about so many entries each, at least one row, so that work on all edges needs
    memory for a chunk of them.

    Args:
      degrees: int64 [num_rows]; entries per row.
      chunk_edges: entries of a chunk; CHUNK_EDGES by default.
    """
    ends = np.cumsum(degrees)
    total = int(ends[-1]) if len(ends) else 0
    step = chunk_edges or CHUNK_EDGES
    bounds = np.searchsorted(ends, np.arange(step, total, step)) + 1
    bounds = np.unique(np.concatenate([[0], bounds, [len(degrees)]]))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
