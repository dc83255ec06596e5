"""`fastsample_dist.partition_graph`: cut a graph that is in memory, or arrays mapped from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph, checked_graph
from fastsample_dist.graph.memory_sizes import parse_bytes
from fastsample_dist.graph.storage import BFLOAT16, SPLITS
from partition import build
from partition.build import PartitionOptions
from partition.quality import PartitionQuality

Column = Tensor | np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphFacts:
    """What a graph given as arrays does not say itself.

    Attributes:
      name: of the graph, for reports.
      num_nodes: for [2, num_edges]; by default as many as features, labels or node_type have, else the highest id + 1.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
      edge_weight: number [num_edges], for [2, num_edges].
      num_classes: labels are below it; by default the highest label + 1.
      node_type: integer [num_nodes], index into node_types; None: all nodes are of one kind.
      node_types: names of the types; by default "0", "1", ...
    """

    name: str = "graph"
    num_nodes: int | None = None
    undirected: bool = False
    edge_weight: Column | None = None
    num_classes: int | None = None
    node_type: Column | None = None
    node_types: Sequence[str] | None = None


_FACTS = tuple(item.name for item in fields(GraphFacts))
_OPTIONS = tuple(item.name for item in fields(PartitionOptions) if item.name != "num_parts")


def partition_graph(
    graph: CSCGraph | RawGraph | Column,
    features: Column | None = None,
    labels: Column | None = None,
    splits: Mapping[str, Column] | None = None,
    num_parts: int = 1,
    *,
    output: str | Path,
    overwrite: bool = False,
    **options: Any,
) -> PartitionQuality:
    """Cut a graph into parts and write them, as fastsample-partition does.

    Args:
      graph: CSCGraph with original ids; integer [2, num_edges]: sources and destinations; or a RawGraph, as the
        readers of `fastsample_dist.graph.inputs` give it, which has the features, labels, splits and facts in it.
      features: [num_nodes, dim] or None.
      labels: integer [num_nodes], -1: unlabelled; or None.
      splits: {"train" | "val" | "test": node ids, or a mask bool [num_nodes]}.
      num_parts: number of parts.
      output: the partition's directory; it appears when complete.
      overwrite: replace a partition that is there.
      **options: the fields of `GraphFacts` (name, num_nodes, undirected, edge_weight, num_classes, node_type,
        node_types) and of `partition.build.PartitionOptions` (method "metis", seed, assignment, on_disk,
        feature_dtype, and memory_limit in bytes or as text such as "2GB").
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: anything that does not fit, in one line. TypeError: an option that there is not.
      ImportError: the method's package is not there. OSError: the disk refuses.
    """
    unknown = [name for name in options if name not in (*_FACTS, *_OPTIONS)]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; expected some of {', '.join((*_FACTS, *_OPTIONS))}.")
    facts = {name: options.pop(name) for name in _FACTS if name in options}
    columns = {"features": features, "labels": labels, "splits": splits}
    if isinstance(options.get("memory_limit"), str):
        options["memory_limit"] = parse_bytes(options["memory_limit"])
    if isinstance(features, Tensor) and features.dtype == torch.bfloat16:  # NumPy has no such type
        columns["features"] = features.float()
        if options.get("feature_dtype", "keep") == "keep":
            options["feature_dtype"] = BFLOAT16
    chosen = PartitionOptions(num_parts=num_parts, **options)
    if isinstance(graph, RawGraph):
        beside = [*(key for key, value in columns.items() if value is not None), *facts]
        if beside:
            raise ValueError(f"{beside[0]} was passed beside a RawGraph, which has its own; leave it out.")
        raw = graph
    else:
        raw = _raw_graph(graph, columns, GraphFacts(**facts))
    return build.partition_graph(raw, chosen, output, overwrite=overwrite)


def _raw_graph(graph: CSCGraph | Column, given: dict[str, Any], facts: GraphFacts) -> RawGraph:
    """The checked graph of arrays; `given` has features, labels and splits."""
    edges, weights, counted = _edges_of(graph, facts.edge_weight)
    if counted is not None and facts.num_nodes not in (None, counted):
        raise ValueError(f"num_nodes is {facts.num_nodes} but the graph has {counted} nodes; leave num_nodes out.")
    columns = {"edge_weight": weights, "node_type": facts.node_type}
    columns |= {key: given[key] for key in ("features", "labels")}
    columns = {key: _array(value) for key, value in columns.items() if value is not None}
    num_nodes = counted if facts.num_nodes is None else facts.num_nodes
    num_nodes = _count_nodes(edges, columns) if num_nodes is None else num_nodes
    for split, members in (given["splits"] or {}).items():
        if split not in SPLITS:
            raise ValueError(f"splits has {split!r}; expected {', '.join(SPLITS)}.")
        columns[f"{split}_idx"] = _node_ids(split, _array(members), num_nodes)
    meta = {"name": facts.name, "num_nodes": num_nodes, "undirected": facts.undirected}
    meta |= {"num_classes": facts.num_classes, "node_types": facts.node_types}
    return checked_graph(meta, edges, columns, locate=lambda column: column)


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
    for key in ("features", "labels", "node_type"):
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
