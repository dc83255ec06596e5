"""Cutting nodes into buckets, ranges whose edges fit into memory, without more than a chunk of running sums."""

from __future__ import annotations

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages
from fastsample_dist.partition.methods.constraints import NodeWeights, node_chunks

MAX_BUCKETS = 1 << 15


def bucket_bounds(degrees: NodeWeights, num_nodes: int, room: int) -> np.ndarray:
    """Cut the nodes into ranges of at most `room` edges each; only a node that has more is a range of its own.

    Args:
      degrees: edges of each node. Pages of a mapped file are dropped once they are read.
      num_nodes: number of nodes.
      room: edges.
    Returns:
      int64 [num_buckets + 1], ascending from 0 to num_nodes.
    Raises:
      ValueError: more than MAX_BUCKETS.
    """
    bounds, begun, total = [0], 0, 0  # edges before the bucket that is being filled, and before the chunk
    for chunk in node_chunks(num_nodes):
        ends = total + np.cumsum(degrees[chunk])
        while True:
            place = int(np.searchsorted(ends, begun + room, side="right"))  # the first node that does not fit
            if chunk.start + place == bounds[-1]:
                place += 1
            if place >= len(ends):
                break
            begun = int(ends[place - 1]) if place else total
            bounds.append(chunk.start + place)
        total = int(ends[-1])
        drop_pages(degrees)
    bounds.append(num_nodes)
    if len(bounds) > MAX_BUCKETS:
        raise ValueError(
            f"{total} edges would take {len(bounds) - 1} buckets of {room}; expected at most {MAX_BUCKETS}; "
            "pass a larger --memory-limit."
        )
    return np.array(bounds, dtype=np.int64)


def bucket_sizes(degrees: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """int64 [num_buckets]; edges of the nodes bounds[b] .. bounds[b + 1] - 1."""
    sizes = np.zeros(len(bounds) - 1, dtype=np.int64)
    for chunk in node_chunks(len(degrees)):
        first, last = np.searchsorted(bounds, [chunk.start, chunk.stop - 1], side="right") - 1
        inside = np.maximum(bounds[first : last + 1] - chunk.start, 0)
        sizes[first : last + 1] += np.add.reduceat(degrees[chunk], inside)
        drop_pages(degrees)
    return sizes
