"""Disk that a partition and the work on it take, from the graph's sizes: files of storage.py and external/csc.py."""

from __future__ import annotations

import math

import numpy as np

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.storage import BFLOAT16, BFLOAT16_AS
from fastsample_dist.partition.external.rows import has_scales
from fastsample_dist.partition.external.scaled_rows import SCALE_DTYPE
from fastsample_dist.partition.methods.kaminpar import LOG_BYTES
from fastsample_dist.partition.methods.parhip import parhip_bytes
from fastsample_dist.partition.methods.request import NO_FILES, WorkFiles

HEADER_BYTES = 128  # of an .npy file
MANIFEST_FILE_BYTES, MANIFEST_BYTES = 150, 2000  # of manifest.json: per file that it lists, and the rest
KEY_BYTES, DEGREE_BYTES, PART_BYTES, CLUSTER_BYTES = 8, 8, 4, 4
LINK_WEIGHT_BYTES = 4  # of an entry of the adjacency of a directed graph, at most
NARROW_LINK_BYTES = 1  # where no edge is listed more than external.adjacency.MOST_IN_BYTES times


def feature_row_bytes(sizes: GraphSizes, feature_dtype: str = "keep") -> int:
    """Bytes of a stored feature row, its scale included; 0 without features.

    Args:
      sizes: of the graph.
      feature_dtype: one of `external.rows.FEATURE_CHOICES`.
    """
    if not sizes.feature_dim:
        return 0
    stored = sizes.feature_dtype if feature_dtype == "keep" else feature_dtype
    scale_bytes = SCALE_DTYPE.itemsize if _has_scales(sizes, feature_dtype) else 0
    return sizes.feature_dim * np.dtype(BFLOAT16_AS if stored == BFLOAT16 else stored).itemsize + scale_bytes


def _has_scales(sizes: GraphSizes, feature_dtype: str) -> bool:
    kept = sizes.feature_scales and feature_dtype == "keep"
    return kept or bool(sizes.feature_dim and has_scales(sizes.feature_dtype, feature_dtype))


def topology_file_bytes(sizes: GraphSizes) -> int:
    """Bytes of PARTS/topology, at most."""
    files = 3 + bool(sizes.weight_bytes) + sizes.edge_map + sizes.clusters
    nodes = (16 + CLUSTER_BYTES * sizes.clusters) * sizes.num_nodes + 8
    return sizes.edge_bytes * sizes.num_edges + nodes + HEADER_BYTES * files


def output_bytes(sizes: GraphSizes, num_parts: int, feature_dtype: str = "keep") -> int:
    """Bytes of a finished partition, at most."""
    columns = bool(sizes.feature_dim) + _has_scales(sizes, feature_dtype) + sizes.has_labels + len(sizes.splits)
    rows = (feature_row_bytes(sizes, feature_dtype) + sizes.label_row_bytes) * sizes.num_nodes
    parts = rows + 8 * sum(sizes.splits.values()) + HEADER_BYTES * columns * num_parts
    manifest = MANIFEST_BYTES + MANIFEST_FILE_BYTES * (4 + sizes.edge_map + sizes.clusters + columns * num_parts)
    return topology_file_bytes(sizes) + parts + manifest + num_parts * math.ceil(math.log10(sizes.num_nodes + 1))


def adjacency_work_bytes(sizes: GraphSizes, neighbours: int, weight_bytes: int) -> tuple[int, int]:
    """Bytes of external/adjacency.py's files: (of all while it is made, of those that stay until parts are assigned).

    Args:
      sizes: of the graph.
      neighbours: entries of the adjacency.
      weight_bytes: of an entry's weight; 0: all are equal. Of a directed graph weights are written before that is
        known. An undirected one has none.
    """
    degrees = DEGREE_BYTES * sizes.num_nodes
    if sizes.undirected:
        kept = degrees + sizes.node_id_bytes * neighbours
        return kept, kept
    rows = 2 * degrees + sizes.node_id_bytes * neighbours
    written = max(weight_bytes, NARROW_LINK_BYTES)
    return rows + written * neighbours + KEY_BYTES * sizes.num_edges, rows + weight_bytes * neighbours


def method_bytes(sizes: GraphSizes, made: WorkFiles, neighbours: int, weight_bytes: int) -> tuple[int, int]:
    """Bytes of what a method makes: (while its adjacency is made, until the parts are assigned, these included).

    Args:
      sizes: of the graph.
      made: which files.
      neighbours: entries of the rows that the method reads.
      weight_bytes: of an entry's weight in these; 0 without.
    """
    most = kept = 0
    if made.adjacency:
        most, kept = adjacency_work_bytes(sizes, neighbours, weight_bytes)
    beside = PART_BYTES * sizes.num_nodes  # the parts are there before what was read is deleted
    if made.graph_file:
        file_bytes = parhip_bytes(sizes.num_nodes, neighbours, sizes.node_id_bytes, weighted=weight_bytes > 0)
        beside += file_bytes + LOG_BYTES
    if made.ordered_rows:
        beside = max(beside, (sizes.node_id_bytes + weight_bytes) * neighbours)
    return most, kept + beside


def work_bytes(
    sizes: GraphSizes,
    num_parts: int,
    feature_dtype: str = "keep",
    made: WorkFiles = NO_FILES,
    *,
    link_weight_bytes: int = LINK_WEIGHT_BYTES,
) -> dict[str, int]:
    """Bytes beside the output while the edges are sorted on disk: {phase: bytes at its end, at most}.

    The last phase writes the output itself there, and what was sorted stays until it is complete.

    Args:
      sizes, num_parts, feature_dtype: of the graph and what is made of it.
      made: by the method.
      link_weight_bytes: of an entry of the adjacency of a directed graph: LINK_WEIGHT_BYTES or NARROW_LINK_BYTES.
    """
    edges, nodes = sizes.num_edges, sizes.num_nodes
    count = DEGREE_BYTES * nodes
    group = count + (KEY_BYTES + sizes.weight_bytes + sizes.edge_map_bytes) * edges
    rows = sizes.edge_bytes * edges + DEGREE_BYTES * nodes
    assign = count + rows + (PART_BYTES + CLUSTER_BYTES * sizes.clusters) * nodes
    twice = made.adjacency and not sizes.undirected
    most, kept = method_bytes(sizes, made, 2 * edges if twice else edges, link_weight_bytes if twice else 0)
    own = {"adjacency": count + rows + most} if made.adjacency else {}
    if made != NO_FILES:
        own["method"] = count + rows + kept
    return {
        "count": count,
        "group": group,
        "sort": group + rows,
        **own,
        "assign": assign,
        "write": assign + output_bytes(sizes, num_parts, feature_dtype),
    }
