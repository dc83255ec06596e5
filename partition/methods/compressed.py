"""How much memory a graph takes once KaMinPar has compressed it, found without KaMinPar.

A row is its ids in ascending order: the first as its difference from the node, the others as gaps, in bytes of 7 bits;
a run of three ids or more is its begin and its length; behind each id the weight's difference from the one before,
where there are weights (Salwasser, Seemaier, Gottesbueren, Sanders, "Tera-scale multilevel graph partitioning", IPDPS
2025). Rows of 10,000 neighbours and more are stored in pieces, which hardly changes their bytes.
"""

from __future__ import annotations

import numpy as np

RUN_LENGTH = 3  # of consecutive ids, at least
RUN_BYTES = 3  # of a run: where it begins, and how long it is


def compressed_bytes(nodes: np.ndarray, neighbours: np.ndarray, weights: np.ndarray | None) -> int:
    """Bytes of some rows: their ids, weights and degrees.

    Args:
      nodes: int64 [num_entries]; whose row an entry is in, ascending.
      neighbours: int64 [num_entries]; ascending in every row, each once.
      weights: integers [num_entries]; None: there are none.
    """
    if len(nodes) == 0:
        return 0
    begins = np.concatenate([[True], nodes[1:] != nodes[:-1]])
    gaps = np.diff(neighbours, prepend=0) - 1
    bytes_of = np.where(begins, _varint_bytes(_zigzag(neighbours - nodes)), _varint_bytes(gaps))
    run = np.cumsum(begins | (gaps != 0)) - 1  # of which run an entry is
    lengths = np.bincount(run)
    total = int(bytes_of[lengths[run] < RUN_LENGTH].sum()) + RUN_BYTES * int(np.count_nonzero(lengths >= RUN_LENGTH))
    if weights is not None:
        before = np.concatenate([[0], weights[:-1]])
        before[begins] = 0
        total += int(_varint_bytes(_zigzag(weights - before)).sum())
    degrees = np.diff(np.flatnonzero(begins), append=len(nodes))
    return total + int(_varint_bytes(2 * degrees).sum())


def _varint_bytes(values: np.ndarray) -> np.ndarray:
    """Bytes of numbers of at least 0, 7 bits in each."""
    return (np.frexp(np.maximum(values, 1).astype(np.float64))[1] + 6) // 7


def _zigzag(values: np.ndarray) -> np.ndarray:
    return np.where(values >= 0, 2 * values, -2 * values - 1)
