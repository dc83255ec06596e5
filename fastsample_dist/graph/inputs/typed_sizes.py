"""Sizes of a graph by types, as `heterogeneous.flatten` joins them: from counts, shapes and types of numbers alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fastsample_dist.graph.inputs.heterogeneous import FEATURE_NAMES, LABEL_NAMES, WEIGHT_NAMES, only_of
from fastsample_dist.graph.inputs.sizes import GraphSizes, num_targets


class Shape(NamedTuple):
    """Of an array: its extents, and NumPy's name of its type of numbers as it is read (bfloat16 becomes float32)."""

    extents: tuple[int, ...]
    dtype: str


class NodeShapes(NamedTuple):
    """Nodes of one type: how many, and their columns; None without."""

    count: int
    features: Shape | None
    labels: Shape | None


class EdgeShapes(NamedTuple):
    """Edges of one type: how many, the type of their ids, and their weights; None without."""

    count: int
    id_dtype: str
    weights: Shape | None


def shape_of(array: Any) -> Shape:
    """Shape of a tensor or NumPy's array, which is not read.

    Raises:
      ValueError: it is neither.
    """
    if not isinstance(array, Tensor | np.ndarray):
        raise ValueError(f"found a {type(array).__name__}; expected a tensor.")
    return Shape(tuple(array.shape), dtype_name(str(array.dtype)))


def dtype_name(name: str) -> str:
    """NumPy's name of the type that numbers of a type are read as."""
    name = name.removeprefix("torch.")
    return "float32" if name == "bfloat16" else name


def dgl_nodes(count: int, data: Mapping[str, Shape], place: str, skip: Collection[str] = ()) -> NodeShapes:
    """Nodes of a type in DGL, whose columns are found by their usual names.

    Args:
      count: of nodes.
      data: by name.
      place: whose data, for messages.
      skip: of "features" and "labels" those that are not to be taken.
    Raises:
      ValueError: two names for one thing.
    """
    wanted = {"features": FEATURE_NAMES, "labels": LABEL_NAMES}
    names = {key: None if key in skip else only_of(data, usual, place, key) for key, usual in wanted.items()}
    return NodeShapes(count, *(data[name] if name else None for name in names.values()))


def dgl_edges(
    count: int, id_dtype: str, data: Mapping[str, Shape], place: str, skip: Collection[str] = ()
) -> EdgeShapes:
    """Edges of a type in DGL; as `dgl_nodes`, with "edge_weight"."""
    name = None if "edge_weight" in skip else only_of(data, WEIGHT_NAMES, place, "edge_weight")
    return EdgeShapes(count, id_dtype, data[name] if name else None)


def typed_sizes(name: str, nodes: Sequence[NodeShapes], edges: Sequence[EdgeShapes], undirected: bool) -> GraphSizes:
    """Sizes of the types together.

    Raises:
      ValueError: features that are no matrix.
    """
    num_nodes = max(1, sum(item.count for item in nodes))
    features, labels = (
        next((column for column in columns if column is not None), None)
        for columns in ([item.features for item in nodes], [item.labels for item in nodes])
    )
    if features is not None and len(features.extents) != 2:
        raise ValueError(f"{name} has features of shape {features.extents}; expected (num_nodes, dim).")
    weights = [item.weights for item in edges]
    joined = "int32" if num_nodes < 2**31 else "int64"
    return GraphSizes(
        name=name,
        num_nodes=num_nodes,
        num_listed=sum(item.count for item in edges),
        undirected=undirected,
        id_dtype=edges[0].id_dtype if len(nodes) == len(edges) == 1 else joined,
        weight_dtype=None if None in weights or not weights else np.result_type(*(w.dtype for w in weights)).name,
        feature_dim=0 if features is None else features.extents[1],
        feature_dtype="" if features is None else features.dtype,
        has_labels=labels is not None,
        num_targets=0 if labels is None else num_targets(labels.extents, None),
    )
