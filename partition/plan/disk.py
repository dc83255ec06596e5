"""Disk that a partition and the work on it take, from the graph's sizes: files of storage.py and external/csc.py."""

from __future__ import annotations

import math

import numpy as np

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.storage import BFLOAT16, BFLOAT16_AS
from fastsample_dist.partition.external.rows import has_scales
from fastsample_dist.partition.external.scaled_rows import SCALE_DTYPE
from fastsample_dist.partition.methods.parhip import parhip_bytes
from fastsample_dist.partition.methods.request import NO_FILES, WorkFiles

HEADER_BYTES = 128  # of an .npy file
MANIFEST_FILE_BYTES, MANIFEST_BYTES = 150, 2000  # of manifest.json: per file that it lists, and the rest
KEY_BYTES, DEGREE_BYTES, PART_BYTES, CLUSTER_BYTES, LINK_WEIGHT_BYTES = 8, 8, 4, 4, 1


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


def adjacency_work_bytes(sizes: GraphSizes, neighbours: int) -> tuple[int, int]:
    """Bytes of external/adjacency.py's files: (of all while it is made, of those that stay until parts are assigned).

    Args:
      sizes: of the graph; no edge listed more often than bytes count.
      neighbours: entries of the adjacency.
    """
    degrees = DEGREE_BYTES * sizes.num_nodes
    if sizes.undirected:
        kept = degrees + sizes.node_id_bytes * neighbours
        return kept, kept
    kept = 2 * degrees + (sizes.node_id_bytes + LINK_WEIGHT_BYTES) * neighbours
    return kept + KEY_BYTES * sizes.num_edges, kept


def method_bytes(sizes: GraphSizes, made: WorkFiles, neighbours: int, *, weighted: bool) -> tuple[int, int]:
    """Bytes of what a method makes: (while its adjacency is made, until the parts are assigned).

    Args:
      sizes: as of `adjacency_work_bytes`.
      made: which files.
      neighbours: entries of the rows that the method reads.
      weighted: these have weights.
    """
    most = kept = 0
    if made.adjacency:
        most, kept = adjacency_work_bytes(sizes, neighbours)
    if made.graph_file:
        kept += parhip_bytes(sizes.num_nodes, neighbours, sizes.node_id_bytes, weighted=weighted)
    if made.ordered_rows:
        kept += (sizes.node_id_bytes + LINK_WEIGHT_BYTES * weighted) * neighbours
    return most, kept


def work_bytes(
    sizes: GraphSizes, num_parts: int, feature_dtype: str = "keep", made: WorkFiles = NO_FILES
) -> dict[str, int]:
    """Bytes beside the output while the edges are sorted on disk: {phase: bytes at its end, at most}.

    The last phase writes the output itself there, and what was sorted stays until it is complete.

    Args:
      sizes, num_parts, feature_dtype: of the graph and what is made of it.
      made: by the method.
    """
    edges, nodes = sizes.num_edges, sizes.num_nodes
    count = DEGREE_BYTES * nodes
    group = count + (KEY_BYTES + sizes.weight_bytes + sizes.edge_map_bytes) * edges
    rows = sizes.edge_bytes * edges + DEGREE_BYTES * nodes
    assign = count + rows + (PART_BYTES + CLUSTER_BYTES * sizes.clusters) * nodes
    twice = made.adjacency and not sizes.undirected
    most, kept = method_bytes(sizes, made, 2 * edges if twice else edges, weighted=twice)
    own = {"adjacency": count + rows + most} if made.adjacency else {}
    if kept:
        own["method"] = count + rows + kept
    return {
        "count": count,
        "group": group,
        "sort": group + rows,
        **own,
        "assign": assign,
        "write": assign + output_bytes(sizes, num_parts, feature_dtype),
    }
