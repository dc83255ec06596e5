"""What nodes weigh in the constraints that parts are balanced by, read from what a request holds already.

A constraint is looked up by nodes: `weights[nodes]`, with ids or a slice, gives their integers. So the five constraints
take a byte per node together, that of the splits, whatever is balanced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from fastsample_dist.graph.csc import INT32_MAX_NODES
from fastsample_dist.graph.npy_files import drop_pages, row_chunks
from fastsample_dist.graph.storage import SPLITS

NODES_AT_ONCE_BYTES = 64  # of temporaries per node of a chunk, at most


class NodeWeights(Protocol):
    """What each node weighs; an array of integers [num_nodes] is one too."""

    def __getitem__(self, nodes: slice | np.ndarray) -> np.ndarray:
        """Integers, one for each of the nodes."""


class InDegrees:
    """Stored in-edges of each node.

    Args:
      indptr: int64 [num_nodes + 1].
    """

    def __init__(self, indptr: np.ndarray) -> None:
        self._begins, self._ends = indptr[:-1], indptr[1:]

    def __getitem__(self, nodes: slice | np.ndarray) -> np.ndarray:
        return self._ends[nodes] - self._begins[nodes]


class InSplit:
    """1 for the nodes of a split.

    Args:
      kinds: see `split_bits`.
      bit: of the split.
    """

    def __init__(self, kinds: np.ndarray, bit: int) -> None:
        self._kinds, self._bit = kinds, bit

    def __getitem__(self, nodes: slice | np.ndarray) -> np.ndarray:
        return self._kinds[nodes] >> self._bit & 1


def row_offsets(degrees: np.ndarray) -> np.ndarray:
    """int64 [num_nodes + 1]; where each row begins, and the end.

    Args:
      degrees: int64 [num_nodes]; entries of each row. Pages of a mapped file are dropped once they are read.
    """
    indptr = np.zeros(len(degrees) + 1, dtype=np.int64)
    for chunk in node_chunks(len(degrees)):
        ends = indptr[chunk.start + 1 : chunk.stop + 1]
        np.cumsum(degrees[chunk], out=ends)
        ends += indptr[chunk.start]
        drop_pages(degrees)
    return indptr


def split_bits(splits: Mapping[str, np.ndarray], num_nodes: int) -> np.ndarray:
    """uint8 [num_nodes]; bit k: the node is in SPLITS[k].

    Args:
      splits: node ids of those of SPLITS that exist.
      num_nodes: number of nodes.
    """
    kinds = np.zeros(num_nodes, dtype=np.uint8)
    for bit, split in enumerate(SPLITS):
        if split in splits:
            kinds[splits[split]] |= 1 << bit
    return kinds


def node_dtype(num_nodes: int) -> np.dtype:
    """int32 while every node id fits, else int64."""
    return np.dtype(np.int32 if num_nodes <= INT32_MAX_NODES else np.int64)


def node_chunks(num_nodes: int) -> Iterator[slice]:
    """All nodes, so many at a time that temporaries of some words per node stay small."""
    for lo, hi in row_chunks(num_nodes, NODES_AT_ONCE_BYTES):
        yield slice(lo, hi)


def part_sums(parts: np.ndarray, weights: NodeWeights, num_parts: int) -> np.ndarray:
    """What the nodes of each part weigh together, float64 [num_parts]; exact below 2**53."""
    sums = np.zeros(num_parts)
    for chunk in node_chunks(len(parts)):
        sums += np.bincount(parts[chunk], weights[chunk], minlength=num_parts)
    return sums


def part_counts(parts: np.ndarray, num_parts: int) -> np.ndarray:
    """Nodes of each part, int64 [num_parts]."""
    counts = np.zeros(num_parts, dtype=np.int64)
    for chunk in node_chunks(len(parts)):
        counts += np.bincount(parts[chunk], minlength=num_parts)
    return counts


def heaviest(weights: NodeWeights, num_nodes: int) -> tuple[int, int]:
    """(node, its weight): the first of those that weigh most."""
    found, most = 0, -1
    for chunk in node_chunks(num_nodes):
        values = weights[chunk]
        place = int(values.argmax())
        if values[place] > most:
            found, most = chunk.start + place, int(values[place])
        drop_pages(weights)
    return found, most
