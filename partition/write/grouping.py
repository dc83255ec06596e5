"""Nodes in the order of a key: a counting sort, a chunk of nodes at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastsample_dist.partition.methods.constraints import node_chunks, node_dtype


def group_nodes(
    key_of: Callable[[slice], np.ndarray], num_nodes: int, num_groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort nodes by a key, those of one key by id.

    Args:
      key_of: from a range of nodes to their keys, integers 0 .. num_groups - 1; called twice for each range.
      num_nodes: number of nodes.
      num_groups: number of keys.
    Returns:
      (nodes int32 | int64 [num_nodes], ends int64 [num_groups]): those with key k are nodes[ends[k - 1] : ends[k]].
      Memory beside them: a chunk.
    """
    sizes = np.zeros(num_groups, dtype=np.int64)
    for chunk in node_chunks(num_nodes):
        sizes += np.bincount(key_of(chunk), minlength=num_groups)
    ends = np.cumsum(sizes)
    nodes, filled = np.empty(num_nodes, dtype=node_dtype(num_nodes)), ends - sizes
    kind = np.uint16 if num_groups <= 2**16 else np.int64  # NumPy's stable sort of 16-bit keys is a radix sort
    for chunk in node_chunks(num_nodes):
        keys = key_of(chunk).astype(kind)
        order = np.argsort(keys, kind="stable")
        counts = np.bincount(keys, minlength=num_groups)
        places = np.arange(len(keys)) + np.repeat(filled - (np.cumsum(counts) - counts), counts)
        nodes[places] = order + chunk.start
        filled += counts
    return nodes, ends
