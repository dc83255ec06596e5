"""`--clusters K`: dense groups of nodes inside the parts, for training on unions of clusters (Cluster-GCN).

Each part is cut for itself by METIS, its nodes alone balanced, over the edges inside the part. So a cluster is in one
part, and the clusters of a part have consecutive numbers, in the order of the parts: part p has the numbers
ends[p - 1] .. ends[p] - 1. K is shared out over the parts by their nodes.

One part's edges are in memory at a time, whether the topology is in memory or on disk; rows are read in chunks.
Source: Chiang et al., "Cluster-GCN", KDD'19, section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.partition.external.csc import StoredTopology
from fastsample_dist.partition.external.rows import TopologyRows
from fastsample_dist.partition.methods.adjacency import edge_chunks, symmetrise
from fastsample_dist.partition.methods.constraints import node_dtype
from fastsample_dist.partition.methods.metis import cut_nodes, require_metis
from fastsample_dist.partition.methods.request import MissingPackageError, check_num_clusters
from fastsample_dist.partition.write.grouping import group_nodes


def require_for_clusters() -> None:
    """Refuse where METIS is not there.

    Raises:
      MissingPackageError: neither cmeel-metis nor pymetis is installed.
    """
    try:
        require_metis()
    except MissingPackageError as error:
        raise MissingPackageError(f"--clusters: {error}, or leave --clusters out.") from error


def clusters_per_part(part_nodes: np.ndarray, clusters: int) -> np.ndarray:
    """How many of the clusters each part gets: in proportion to its nodes, at least one and at most one per node.

    Args:
      part_nodes: int64 [num_parts]; nodes of each part. A part without nodes gets none.
      clusters: in all; from the number of parts to the number of nodes.
    Returns:
      int64 [num_parts] with the sum `clusters`: one each, and the rest one by one to the part with the most nodes per
      cluster (D'Hondt's rule; of equal ones the first).
    """
    shares = (part_nodes > 0).astype(np.int64)
    # Whole shares first; a part's final number is at least that, so only the few that remain are dealt singly.
    sure = np.floor(part_nodes * ((clusters - len(part_nodes)) / part_nodes.sum())).astype(np.int64)
    shares = np.maximum(shares, np.minimum(sure, part_nodes))
    while shares.sum() < clusters:
        room = np.where(shares < part_nodes, part_nodes / (shares + 1), -1.0)
        shares[room.argmax()] += 1
    return shares


def assign_clusters(
    topology: CSCGraph | StoredTopology,
    parts: np.ndarray,
    clusters: int,
    *,
    undirected: bool,
    seed: int,
    check: Callable[[int, int], None] = lambda nodes, edges: None,
) -> np.ndarray:
    """Cut every part into clusters.

    Args:
      topology: of the whole graph.
      parts: integer [num_nodes]; part of each row of the topology.
      clusters: in all.
      undirected: the topology holds both directions of every edge, once.
      seed: of METIS.
      check: called with (nodes, edges inside) of a part before it is cut; raises where memory does not suffice.
    Returns:
      int32 [num_nodes]; cluster of each row. Every number 0 .. clusters - 1 occurs.
    Raises:
      ValueError: see `request.check_num_clusters`. MissingPackageError, RuntimeError: as `methods.metis.assign_metis`.
    """
    num_nodes, num_parts = len(parts), int(parts.max()) + 1
    check_num_clusters(clusters, num_parts, num_nodes)
    by_part, ends = group_nodes(lambda chunk: parts[chunk], num_nodes, num_parts)
    shares = clusters_per_part(np.diff(ends, prepend=0), clusters)
    local = np.empty(num_nodes, dtype=node_dtype(num_nodes))
    found, first = np.empty(num_nodes, dtype=np.int32), 0
    with TopologyRows(topology) as rows:
        for part, share in enumerate(shares.tolist()):
            members = by_part[ends[part - 1] if part else 0 : ends[part]]
            if share in (1, len(members)):  # nothing to choose
                found[members] = first + np.arange(len(members)) % share
            else:
                local[members] = np.arange(len(members), dtype=local.dtype)
                inside = _inside(rows, parts, part, members, local)
                check(len(members), inside.num_edges)
                adjacency = symmetrise(inside, undirected=undirected)
                found[members] = first + cut_nodes(adjacency, share, seed)
            first += share
    return found


def _inside(rows: TopologyRows, parts: np.ndarray, part: int, members: np.ndarray, local: np.ndarray) -> CSCGraph:
    """The edges among a part's members, by their numbers in `local`."""
    degrees = np.diff(rows.indptr)[members]
    counts, sources = np.zeros(len(members) + 1, dtype=np.int64), []
    for lo, hi in edge_chunks(degrees):
        chunk = rows.read("indices", members[lo:hi])
        kept = parts[chunk] == part
        owners = np.repeat(np.arange(hi - lo), degrees[lo:hi])
        counts[lo + 1 : hi + 1] = np.bincount(owners[kept], minlength=hi - lo)
        sources.append(local[chunk[kept]])
    indices = np.concatenate(sources) if sources else np.empty(0, dtype=local.dtype)
    return CSCGraph(torch.from_numpy(np.cumsum(counts)), torch.from_numpy(indices))
