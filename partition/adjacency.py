"""The graph as a partitioner wants it: every pair of neighbours in both rows, no self-loops, no duplicates.

The weight of a pair is the number of stored directed edges between its two nodes, so a cut of this graph is a cut of
the stored topology: sum of the weights of cut pairs == number of stored edges between different parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastsample_dist.graph.csc import CSCGraph

CHUNK_EDGES = 1 << 22  # 32 MB of int64 at a time


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbour lists in both directions.

    Attributes:
      indptr: int64 [num_nodes + 1].
      indices: int32 | int64 [num_pairs * 2]; neighbours of v at indptr[v] .. indptr[v + 1] - 1.
      weights: int64 [num_pairs * 2], stored directed edges between the two; None: the same number for every pair.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1


def symmetrise(graph: CSCGraph, *, undirected: bool) -> Adjacency:
    """Build the adjacency of a topology.

    Args:
      graph: the topology, original ids.
      undirected: the topology holds both directions of every edge, once (as `RawGraph.to_csc` makes it).
    Returns:
      Adjacency. Cost: O(num_edges) if undirected, else a sort of 2 * num_edges keys.
    """
    num_nodes = graph.num_nodes
    src = graph.indices.numpy()
    dst = np.repeat(np.arange(num_nodes, dtype=src.dtype), graph.in_degrees().numpy())
    if undirected:
        keep = src != dst
        return Adjacency(_offsets(dst[keep], num_nodes), src[keep], None)
    apart = src != dst
    src, dst = src[apart].astype(np.int64), dst[apart].astype(np.int64)
    keys = np.concatenate([dst * num_nodes + src, src * num_nodes + dst])
    del src, dst
    keys.sort()
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    weights = np.diff(first, append=len(keys))
    rows, neighbours = np.divmod(keys[first], num_nodes)
    uniform = len(weights) == 0 or int(weights.min()) == int(weights.max())
    return Adjacency(
        _offsets(rows, num_nodes), neighbours.astype(graph.indices.numpy().dtype), None if uniform else weights
    )


def row_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of some rows stand, row after row.

    Args:
      indptr: int64 [num_rows + 1].
      rows: integer [n]; row ids, in any order.
    Returns:
      (positions int64 [m], owner int64 [m]): entry i of the result belongs to rows[owner[i]].
    """
    starts = indptr[rows]
    degrees = indptr[rows + 1] - starts
    owner = np.repeat(np.arange(len(rows)), degrees)
    ends = np.cumsum(degrees)
    positions = np.arange(len(owner), dtype=np.int64) + (starts - (ends - degrees))[owner]
    return positions, owner


def edge_chunks(degrees: np.ndarray) -> list[tuple[int, int]]:
    """Cut rows into ranges (lo, hi) of about CHUNK_EDGES entries each, at least one row, so that work on all edges
    needs memory for a chunk of them.

    Args:
      degrees: int64 [num_rows]; entries per row.
    """
    ends = np.cumsum(degrees)
    total = int(ends[-1]) if len(ends) else 0
    bounds = np.searchsorted(ends, np.arange(CHUNK_EDGES, total, CHUNK_EDGES)) + 1
    bounds = np.unique(np.concatenate([[0], bounds, [len(degrees)]]))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def _offsets(rows: np.ndarray, num_nodes: int) -> np.ndarray:
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=num_nodes), out=indptr[1:])
    return indptr
