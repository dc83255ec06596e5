"""ParHIP's binary graph format, which KaMinPar reads compressed: written from neighbour lists that may be mapped.

header    uint64 [3]: version bits, nodes, entries
offsets   uint64 [num_nodes + 1]; of the rows, in bytes from the beginning of the file
ids       int32 | int64 [num_entries]; neighbours, row after row
nodes     int32 | int64 [num_nodes]; weights
edges     int32 [num_entries]; weights, unless all are equal
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastsample_dist.partition.methods.adjacency import CHUNK_EDGES, Adjacency
from fastsample_dist.partition.methods.constraints import NodeWeights, node_chunks

# Bits of the header's first word: what is left out, or is 32 bits wide.
NO_EDGE_WEIGHTS, NARROW_IDS, NARROW_NODE_WEIGHTS, NARROW_EDGE_WEIGHTS = 1, 8, 16, 32
HEADER_BYTES, OFFSET_BYTES, WEIGHT_BYTES = 24, 8, 4


def parhip_bytes(num_nodes: int, num_entries: int, id_bytes: int, *, weighted: bool) -> int:
    """Size of the file, at most (a node of 2**31 in-edges makes it larger by 4 bytes per node).

    Args:
      num_nodes: of the graph.
      num_entries: neighbours in all rows.
      id_bytes: of a neighbour's id.
      weighted: the entries have weights.
    """
    entry = id_bytes + WEIGHT_BYTES * weighted
    return HEADER_BYTES + OFFSET_BYTES * (num_nodes + 1) + WEIGHT_BYTES * num_nodes + entry * num_entries


def write_parhip(path: Path, adjacency: Adjacency, weights: NodeWeights) -> None:
    """Write a graph, a chunk at a time.

    Args:
      path: of the file.
      adjacency: both directions of every pair; its columns may be mapped from files.
      weights: of the nodes, integers from 0; each is written as 1 more.
    """
    wide = any(int(weights[nodes].max()) >= 2**31 - 1 for nodes in node_chunks(adjacency.num_nodes))
    version = NARROW_EDGE_WEIGHTS | (0 if wide else NARROW_NODE_WEIGHTS)
    version |= NARROW_IDS if adjacency.indices.dtype == np.int32 else 0
    version |= NO_EDGE_WEIGHTS if adjacency.weights is None else 0
    header = np.array([version, adjacency.num_nodes, len(adjacency.indices)], dtype=np.uint64)
    with path.open("wb") as file:
        file.write(header.data)
        for values in _columns(adjacency, weights, np.dtype(np.int64 if wide else np.int32)):
            file.write(np.ascontiguousarray(values).data)  # not by tofile, which loses the disk's refusal


def _columns(adjacency: Adjacency, weights: NodeWeights, weight_dtype: np.dtype) -> Iterator[np.ndarray]:
    """What follows the header, piece by piece."""
    width = adjacency.indices.itemsize
    first = HEADER_BYTES + OFFSET_BYTES * len(adjacency.indptr)
    for nodes in node_chunks(adjacency.num_nodes):
        yield (adjacency.indptr[nodes] * width + first).astype(np.uint64)
    yield (adjacency.indptr[-1:] * width + first).astype(np.uint64)
    yield from _chunks(adjacency.indices)
    for nodes in node_chunks(adjacency.num_nodes):
        yield (weights[nodes] + 1).astype(weight_dtype)
    if adjacency.weights is not None:
        for values in _chunks(adjacency.weights):
            yield values.astype(np.int32, copy=False)


def _chunks(column: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(column), CHUNK_EDGES):
        yield column[begin : begin + CHUNK_EDGES]
