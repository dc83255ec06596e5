"""DGL's graphs in memory as input. dgl is not imported: a graph is read through its own methods.

Data of nodes and edges are found by their usual names (heterogeneous.py); two names for one thing are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.inputs.heterogeneous import (
    FEATURE_NAMES,
    LABEL_NAMES,
    MASK_NAMES,
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    TypedGraph,
    mask_ids,
    note_left_out,
    only_of,
)
from fastsample_dist.graph.inputs.pickles import as_array
from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.inputs.typed_sizes import Shape, dgl_edges, dgl_nodes, dtype_name, typed_sizes
from fastsample_dist.graph.labels import class_labels


def typed_graph(
    graph: Any,
    *,
    name: str,
    undirected: bool = False,
    task: str | None = None,
    where: str | None = None,
    skip: Collection[str] = (),
) -> TypedGraph:
    """A DGL graph by types, node types in the order of graph.ntypes.

    Args:
      graph: a DGLGraph of one or several types; not a block.
      name: of the graph, for reports.
      undirected: every edge counts in both directions.
      task: what the labels are for, one of graph.labels.TASKS; None: inferred from their shape.
      where: where the graph comes from, for messages; its name by default.
      skip: of "features", "labels", "splits" and "edge_weight" those that are not to be taken from the graph.
    Returns:
      TypedGraph; edges of a type in the order of their ids.
    Raises:
      ValueError: no graph of DGL, a block, two names for one thing, or data that do not fit: one line.
    """
    place = name if where is None else where
    if not hasattr(graph, "canonical_etypes"):
        raise ValueError(f"{place} is a {type(graph).__name__}; expected a DGLGraph.")
    if graph.is_block:
        raise ValueError(f"{place} is a block of a mini-batch; pass the whole graph.")
    nodes = [_node_type(graph, kind, place, task, skip) for kind in graph.ntypes]
    edges = [_edge_type(graph, kind, place, skip) for kind in graph.canonical_etypes]
    return TypedGraph(name=name, nodes=nodes, edges=edges, undirected=undirected, task=task, where=place)


def graph_sizes(graph: Any, *, name: str, undirected: bool = False, skip: Collection[str] = ()) -> GraphSizes:
    """Sizes of a DGL graph by the schemes of its data, which are not read (those of a subgraph are not even made).

    Args:
      graph, name, undirected, skip: as for `typed_graph`.
    Raises:
      ValueError: two names for one thing.
    """
    nodes = [
        dgl_nodes(count, _shapes(graph.node_attr_schemes(kind), count), f"{name}: nodes of type {kind}", skip)
        for kind, count in ((kind, graph.num_nodes(kind)) for kind in graph.ntypes)
    ]
    id_dtype = dtype_name(str(graph.idtype))
    edges = [
        dgl_edges(count, id_dtype, _shapes(graph.edge_attr_schemes(kind), count), f"{name}: edges of type {kind}", skip)
        for kind, count in ((kind, graph.num_edges(kind)) for kind in graph.canonical_etypes)
    ]
    return typed_sizes(name, nodes, edges, undirected)


def _shapes(schemes: Mapping[str, Any], count: int) -> dict[str, Shape]:
    """By name: a scheme has the shape of one row."""
    return {name: Shape((count, *item.shape), dtype_name(str(item.dtype))) for name, item in schemes.items()}


def _node_type(graph: Any, kind: str, place: str, task: str | None, skip: Collection[str]) -> NodeType:
    data: Mapping[str, Tensor] = graph.nodes[kind].data
    taken = {"features": FEATURE_NAMES, "labels": LABEL_NAMES} | MASK_NAMES
    names: dict[str, str | None] = {}
    skipped: set[str] = set()
    for column, candidates in taken.items():
        if column in skip or (column in MASK_NAMES and "splits" in skip):
            skipped.update(candidates)
            continue
        names[column] = only_of(data, candidates, f"{place}: nodes of type {kind}", column)
    note_left_out(f"{place}: data of nodes of type {kind}", sorted(set(data) - set(names.values()) - skipped))

    def where(column: str) -> str:
        return f"{place}: {names.get(column) or column} of {kind}"

    def array(column: str) -> np.ndarray:
        try:
            return as_array(data[names[column]])
        except ValueError as error:
            raise ValueError(f"{where(column)} is {error}; convert it.") from error

    return NodeType(
        name=kind,
        num_nodes=graph.num_nodes(kind),
        features=array("features") if names.get("features") else None,
        labels=class_labels(where("labels"), array("labels"), task) if names.get("labels") else None,
        splits={
            split: mask_ids(where(split), array(split), graph.num_nodes(kind))
            for split in MASK_NAMES
            if names.get(split)
        },
        where=where,
    )


def _edge_type(graph: Any, kind: tuple[str, str, str], place: str, skip: Collection[str]) -> EdgeType:
    data: Mapping[str, Tensor] = graph.edges[kind].data
    wanted = "edge_weight" not in skip
    weight = only_of(data, WEIGHT_NAMES, f"{place}: edges of type {kind[1]}", "edge_weight") if wanted else None
    left = set(data) - ({weight} if wanted else set(WEIGHT_NAMES))
    note_left_out(f"{place}: data of edges of type {kind[1]}", sorted(left))
    listed = graph[kind].formats("coo")  # another graph: one that is restricted to CSR or CSC has no order "eid"
    pieces = [(f"{place}: edges of type {kind[1]}", as_array(torch.stack(listed.edges(order="eid"))))]
    weights = [as_array(data[weight]).reshape(-1)] if weight else None
    return EdgeType(source=kind[0], relation=kind[1], target=kind[2], pieces=pieces, weights=weights)
