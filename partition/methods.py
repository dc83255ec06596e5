"""Assigning nodes to parts: `metis` (multilevel k-way, through pymetis) and `random`.

METIS balances one number per node (pymetis hands it no more). A part costs three things: features (one row per node),
sampling work (in-edges) and training steps (train nodes). So a node weighs

    RESOLUTION * (1 + in_degree / mean in_degree + [is a train node] * num_nodes / num_train)

rounded: over the graph, each of the three sums to RESOLUTION * num_nodes, and none outweighs the others. Train nodes
are balanced exactly afterwards (balance.py).
"""

from __future__ import annotations

import logging

import numpy as np

from partition.adjacency import Adjacency

logger = logging.getLogger(__name__)

METHODS = ("metis", "random")
MAX_SEED = 2**31 - 1  # METIS may be built with 32-bit integers
RESOLUTION = 100  # a hundredth of the mean weight is the finest difference METIS sees


def random_parts(num_nodes: int, train: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Deal the shuffled train nodes, then the shuffled others, to the parts in turn; the parts sit in random order.

    Args:
      num_nodes: number of nodes.
      train: int64 [num_train]; train node ids, unique.
      num_parts: number of parts.
      seed: of NumPy's PCG64.
    Returns:
      int32 [num_nodes]; part of each node. Nodes and train nodes per part both differ by one at most, and each
      node falls to each part with the same probability.
    """
    rng = np.random.default_rng(seed)
    others = np.ones(num_nodes, dtype=bool)
    others[train] = False
    order = np.concatenate([rng.permutation(train), rng.permutation(np.flatnonzero(others))])
    parts = np.empty(num_nodes, dtype=np.int32)
    parts[order] = rng.permutation(num_parts)[np.arange(num_nodes) % num_parts]
    return parts


def metis_parts(
    adjacency: Adjacency, in_degrees: np.ndarray, train: np.ndarray, num_parts: int, seed: int
) -> np.ndarray:
    """Cut few edges while balancing nodes, in-edges and train nodes together (METIS, k-way).

    k-way and not recursive bisection: with weights as skewed as a power law's, bisection misses the balance. RMAT
    scale 19, edge factor 16, in-edges of the largest over the smallest part: 8.5 by bisection and 1.7 by k-way for 2
    parts, 12.5 and 5.8 for 4.

    Args:
      adjacency: the graph in both directions.
      in_degrees: int64 [num_nodes]; stored in-edges of each node.
      train: int64 [num_train]; train node ids, unique.
      num_parts: number of parts, at most num_nodes.
      seed: of METIS's generator; the same seed gives the same parts.
    Returns:
      int32 [num_nodes]; part of each node; no part is empty.
    Raises:
      ImportError: pymetis is not installed.
      RuntimeError: METIS fails.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            f"method metis needs pymetis, which is not there ({error}); "
            "pip install fastsample_dist[partition], or take --method random."
        ) from error
    num_nodes = adjacency.num_nodes
    if num_parts == 1:
        return np.zeros(num_nodes, dtype=np.int32)
    if len(adjacency.indices) == 0:  # nothing to cut; METIS wants at least one edge
        return random_parts(num_nodes, train, num_parts, seed)
    dtype = pymetis.zero_copy_dtype()
    if len(adjacency.indices) > np.iinfo(dtype).max:
        raise ValueError(
            f"the graph has {len(adjacency.indices)} neighbour pairs but this pymetis counts in {dtype}; "
            "take --method random or a pymetis built with 64-bit integers."
        )
    weights = adjacency.weights
    indptr, indices = (column.astype(dtype, copy=False) for column in (adjacency.indptr, adjacency.indices))
    try:
        _, assigned = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(indptr, indices),
            vweights=vertex_weights(in_degrees, train, np.iinfo(dtype).max).astype(dtype, copy=False),
            eweights=None if weights is None else weights.astype(dtype, copy=False),
            recursive=False,
            options=pymetis.Options(seed=seed),
        )
    except RuntimeError as error:  # METIS catches SIGTERM itself and then says no more than this
        raise RuntimeError(
            f"METIS stopped on {num_nodes} nodes and {len(indices)} neighbours ({error}): it was told to end, or out "
            "of memory; make room, or take --method random."
        ) from error
    parts = np.asarray(assigned, dtype=np.int32)
    _fill_empty_parts(parts, adjacency, num_parts)
    return parts


def vertex_weights(in_degrees: np.ndarray, train: np.ndarray, largest_sum: int) -> np.ndarray:
    """Integer weight of each node, see the module text.

    Args:
      in_degrees: int64 [num_nodes].
      train: int64 [num_train]; train node ids.
      largest_sum: the weights of all nodes together stay below it (METIS adds them up in one integer).
    Returns:
      int64 [num_nodes], each at least 1.
    """
    num_nodes, num_edges = len(in_degrees), int(in_degrees.sum())
    resolution = max(1, min(RESOLUTION, largest_sum // (4 * num_nodes)))  # 3 shares, and room for rounding up
    weights = np.full(num_nodes, resolution, dtype=np.int64)
    if num_edges:
        weights += np.rint(in_degrees * (resolution * num_nodes / num_edges)).astype(np.int64)
    if len(train):
        weights[train] += round(resolution * num_nodes / len(train))
    return weights


def _fill_empty_parts(parts: np.ndarray, adjacency: Adjacency, num_parts: int) -> None:
    """Give every empty part (METIS leaves some when nodes are few) the least connected node of the largest part."""
    counts = np.bincount(parts, minlength=num_parts)
    degrees = np.diff(adjacency.indptr)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        members = np.flatnonzero(parts == largest)
        parts[members[degrees[members].argmin()]] = part
        counts[largest] -= 1
        counts[part] += 1
