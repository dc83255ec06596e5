"""cluster_nodes: a pass in which nodes join the clusters of their neighbours, within a bound."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.neighbours import Neighbours, _Neighbours, address, array

CLUSTER_CODES = {"heaviest": 0, "alike": 1}
MOST_BOUND = 1 << 30  # what the nodes of a cluster may weigh together at most
library.DECLARED.values(FS_JOIN_HEAVIEST=CLUSTER_CODES["heaviest"], FS_JOIN_ALIKE=CLUSTER_CODES["alike"])


@library.DECLARED.mirror("FsClustering")
class _Clustering(Structure):
    """FsClustering."""

    _fields_ = (
        ("node_weights", c_void_p),
        ("within", c_void_p),
        ("bound", c_int32),
        ("rule", c_int32),
        ("rng_seed", c_uint64),
    )


library.DECLARED.prototypes["fs_cluster_nodes"] = (
    POINTER(_Neighbours), POINTER(_Clustering), c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p,
    POINTER(c_int64),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterRule:
    """Which clusters nodes join.

    Attributes:
      rule: "heaviest": a node takes the label to which the sum of its links' weights is largest, of those with room.
        "alike": a node that is alone joins others that are and whose heaviest label is the same.
      node_weights: int32 [num_nodes], >= 1.
      bound: what the nodes of a label may weigh together, 1 .. MOST_BOUND.
      within: int32 [num_nodes]; neighbours with another number do not count. None: all do.
      rng_seed: of the draw between labels of equal sums.
    """

    rule: str
    node_weights: np.ndarray
    bound: int
    within: np.ndarray | None = None
    rng_seed: int = 0


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of nodes, changed in place.

    Attributes:
      labels: int32 [num_nodes]; 0 .. num_nodes - 1.
      loads: int32 [num_nodes]; what the nodes of each label weigh together.
      open: int32 [num_nodes], for "alike": -1 before the first turn of the pass.
    """

    labels: np.ndarray
    loads: np.ndarray
    open: np.ndarray | None = None


def cluster_nodes(
    graph: Neighbours,
    rule: ClusterRule,
    clusters: Clusters,
    turns: tuple[int, int] | None = None,
    *,
    num_threads: int | None = None,
) -> int:
    """Let the nodes of some turns join clusters, one after the other.

    Args:
      graph: neighbour lists.
      rule: which clusters; csrc/include/fastsample_clusters.h has the law.
      clusters: changed in place.
      turns: first and end; None: all.
      num_threads: that read rows; the result is the same with any number.
    Returns:
      Number of nodes that changed their label.
    Raises:
      ValueError: an id, label, offset or bound out of range, a shape or dtype mismatch.
    Source: Meyerhenke, Sanders and Schulz, SEA 2014, section 3. Cost: O(entries). Deterministic: yes.
    """
    checks.require(rule.rule in CLUSTER_CODES, f"rule is {rule.rule!r}; expected {' or '.join(CLUSTER_CODES)}.")
    checks.require(0 <= rule.rng_seed < 2**64, f"rng_seed is {rule.rng_seed}; expected 0 to 2^64 - 1.")
    checks.require(1 <= rule.bound <= MOST_BOUND, f"bound is {rule.bound}; expected 1 to {MOST_BOUND}.")
    checks.require(rule.rule != "alike" or clusters.open is not None, "open is None; rule alike needs it.")
    columns = {
        "node_weights": rule.node_weights, "within": rule.within, "labels": clusters.labels, "loads": clusters.loads,
        "open": clusters.open,
    }  # fmt: skip
    for name, column in columns.items():
        if column is not None:
            array(name, column, (np.int32,), graph.num_nodes)
    (first, last), num_threads = turns or (0, graph.num_nodes), library.num_threads(num_threads)
    spec = _Clustering(
        address(rule.node_weights), address(rule.within), rule.bound, CLUSTER_CODES[rule.rule], rule.rng_seed
    )
    moved = ctypes.c_int64()
    library.call(
        library.core().fs_cluster_nodes, byref(graph.argument()), byref(spec), first, last, num_threads,
        address(clusters.labels), address(clusters.loads), address(clusters.open), byref(moved),
    )  # fmt: skip
    return moved.value
