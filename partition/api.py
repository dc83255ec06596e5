"""`fastsample_dist.partition_graph`: cut a graph that is in memory, or arrays mapped from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph, checked_graph
from fastsample_dist.graph.storage import BFLOAT16, SPLITS
from partition import build
from partition.build import PartitionOptions
from partition.external.memory import parse_bytes
from partition.quality import PartitionQuality

Column = Tensor | np.ndarray


def partition_graph(
    graph: CSCGraph | Column,
    features: Column | None = None,
    labels: Column | None = None,
    splits: Mapping[str, Column] | None = None,
    num_parts: int = 1,
    *,
    output: str | Path,
    overwrite: bool = False,
    name: str = "graph",
    num_nodes: int | None = None,
    undirected: bool = False,
    edge_weight: Column | None = None,
    num_classes: int | None = None,
    **options: Any,
) -> PartitionQuality:
    """Cut a graph into parts and write them, as fastsample-partition does.

    Args:
      graph: CSCGraph with original ids, or integer [2, num_edges]: sources and destinations.
      features: [num_nodes, dim] or None.
      labels: integer [num_nodes], -1: unlabelled; or None.
      splits: {"train" | "val" | "test": node ids, or a mask bool [num_nodes]}.
      num_parts: number of parts.
      output: the partition's directory; it appears when complete.
      overwrite: replace a partition that is there.
      name: of the graph, for reports.
      num_nodes: for [2, num_edges]; by default as many as features or labels have rows, else the highest id + 1.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
      edge_weight: number [num_edges], for [2, num_edges].
      num_classes: labels are below it; by default the highest label + 1.
      **options: further fields of `partition.build.PartitionOptions`: method ("metis"), seed, assignment, on_disk,
        feature_dtype, and memory_limit in bytes or as text ("2GB").
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: anything that does not fit, in one line. ImportError: the method's package is not there.
      OSError: the disk refuses.
    """
    if isinstance(options.get("memory_limit"), str):
        options["memory_limit"] = parse_bytes(options["memory_limit"])
    if isinstance(features, Tensor) and features.dtype == torch.bfloat16:  # NumPy has no such type
        features = features.float()
        if options.get("feature_dtype", "keep") == "keep":
            options["feature_dtype"] = BFLOAT16
    chosen = PartitionOptions(num_parts=num_parts, **options)
    edges, weights, counted = _edges_of(graph, edge_weight)
    if counted is not None and num_nodes not in (None, counted):
        raise ValueError(f"num_nodes is {num_nodes} but the graph has {counted} nodes; leave num_nodes out.")
    columns = {"edge_weight": weights, "features": features, "labels": labels}
    columns = {key: _array(value) for key, value in columns.items() if value is not None}
    num_nodes = counted if num_nodes is None else num_nodes
    num_nodes = _count_nodes(edges, columns) if num_nodes is None else num_nodes
    for split, members in (splits or {}).items():
        if split not in SPLITS:
            raise ValueError(f"splits has {split!r}; expected {', '.join(SPLITS)}.")
        columns[f"{split}_idx"] = _node_ids(split, _array(members), num_nodes)
    meta = {"name": name, "num_nodes": num_nodes, "undirected": undirected, "num_classes": num_classes}
    raw: RawGraph = checked_graph(meta, edges, columns, locate=lambda column: column)
    return build.partition_graph(raw, chosen, output, overwrite=overwrite)


def _array(column: Column) -> np.ndarray:
    """As NumPy's array; a mapped one becomes a plain view, so that its pages are left alone."""
    return np.asarray(column.detach().cpu() if isinstance(column, Tensor) else column)


def _edges_of(graph: CSCGraph | Column, edge_weight: Column | None) -> tuple[np.ndarray, Column | None, int | None]:
    """Edges [2, E], their weights, and the number of nodes where the graph tells it."""
    if not isinstance(graph, CSCGraph):
        return _array(graph), edge_weight, None
    if edge_weight is not None:
        raise ValueError("edge_weight was passed beside a CSCGraph; expected the weights inside it (weights=...).")
    if graph.orig_ids is not None:
        raise ValueError("the graph has orig_ids, so its ids are a partition's; pass the graph with original ids.")
    sources = graph.indices.numpy()
    destinations = np.repeat(np.arange(graph.num_nodes, dtype=sources.dtype), graph.in_degrees().numpy())
    return np.stack([sources, destinations]), graph.weights, graph.num_nodes


def _count_nodes(edges: np.ndarray, columns: Mapping[str, np.ndarray]) -> int:
    for key in ("features", "labels"):
        if key in columns:
            return len(columns[key])
    if not edges.size:
        raise ValueError("there is no edge, feature or label to count nodes by; pass num_nodes.")
    return int(edges.max()) + 1


def _node_ids(split: str, members: np.ndarray, num_nodes: int) -> np.ndarray:
    if members.dtype != bool:
        return members
    if members.shape != (num_nodes,):
        raise ValueError(f"the mask of {split} has shape {members.shape}; expected ({num_nodes},), one entry per node.")
    return np.flatnonzero(members)
