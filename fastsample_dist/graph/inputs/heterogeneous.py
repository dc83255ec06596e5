"""Graphs of other libraries in one id space: node types one after the other, edge types joined.

Type t owns the ids offsets[t] .. offsets[t + 1] - 1, its nodes in their order. Features of all types that have them
have one width and one type, the other types get rows of zeros; labels and splits come from the types that have them.
Parallel edges of different types are kept. A graph of one node type and one piece of edges is handed on as it is,
mapped; several pieces are joined into one file, chunk by chunk, with their ids checked piece by piece.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.datasets import RawGraph, checked_graph
from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.graph.npy_files import drop_pages, open_npy, row_chunks
from fastsample_dist.graph.row_segments import RowSegments
from fastsample_dist.graph.storage import SPLITS

logger = logging.getLogger(__name__)

# Names under which libraries and their users keep a node's or an edge's data, the most common first.
FEATURE_NAMES = ("feat", "x", "features", "feature", "node_feat")
LABEL_NAMES = ("label", "y", "labels")
WEIGHT_NAMES = ("weight", "edge_weight", "weights", "w")
MASK_NAMES = {
    "train": ("train_mask",),
    "val": ("val_mask", "valid_mask", "validation_mask"),
    "test": ("test_mask",),
}
_ID_LIMIT = 2**31


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeType:
    """Nodes of one type.

    Attributes:
      name: of the type.
      num_nodes: how many.
      features: [num_nodes, dim] or None.
      labels: integer [num_nodes], -1: unlabelled; [num_nodes, C] for other tasks (graph/labels.py); or None.
      splits: those of "train", "val", "test" that it has; ids within the type.
      where: where a column ("features", "labels", "train", ...) comes from, for messages.
    """

    name: str
    num_nodes: int
    features: np.ndarray | RowSegments | None = None
    labels: np.ndarray | None = None
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    where: Callable[[str], str]


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeType:
    """Edges of one type.

    Attributes:
      source, relation, target: its name; source and target are node types.
      pieces: integer [2, n] arrays that follow each other, ids within the types, with where they come from.
      weights: numbers [n] for each piece; None without.
    """

    source: str
    relation: str
    target: str
    pieces: Sequence[tuple[str, np.ndarray]]
    weights: Sequence[np.ndarray] | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return sum(edges.shape[1] for _, edges in self.pieces)


@dataclass(frozen=True, eq=False, kw_only=True)
class TypedGraph:
    """A graph by types.

    Attributes:
      name: of the graph.
      nodes: types in the order of their ids.
      edges: types.
      undirected: every edge counts in both directions.
      num_classes: labels are below it; None: the highest label + 1.
      task: what the labels are for; None: not stated.
      sources: files it is made from; joined arrays are made again when one changes.
      where: the input, for messages.
    """

    name: str
    nodes: Sequence[NodeType]
    edges: Sequence[EdgeType]
    undirected: bool
    num_classes: int | None = None
    task: str | None = None
    sources: Sequence[Path] = ()
    where: str


def flatten(
    graph: TypedGraph, scratch: Scratch | None = None, *, given: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> RawGraph:  # fmt: skip
    """The graph in one id space, checked.

    Args:
      graph: the graph by types.
      scratch: for joined arrays; None: they are made in memory.
      given: columns of `checked_graph` that take the place of the graph's own, in the one id space.
      facts: entries of its meta, likewise.
    Returns:
      RawGraph.
    Raises:
      ValueError: types or pieces that do not fit each other, an id outside its type, or what `checked_graph` refuses.
    """
    meta, edge_index, columns = flattened(graph, scratch)
    given = given or {}
    meta, columns = {**meta, **(facts or {})}, {**columns, **given}
    places = {"edge_index": graph.edges[0].pieces[0][0]} if _is_single(graph) else {}
    if len(graph.nodes) == 1:
        only = graph.nodes[0]
        places |= {column: only.where(column) for column in ("features", "labels")}
        places |= {f"{split}_idx": only.where(split) for split in SPLITS}
    places |= {column: column for column in given}

    def locate(column: str) -> str:
        return places.get(column, f"{graph.where}: {column}")

    return checked_graph(meta, edge_index, columns, locate=locate)


def flattened(graph: TypedGraph, scratch: Scratch | None) -> tuple[dict[str, Any], np.ndarray, dict[str, Any]]:
    """What `checked_graph` takes: (meta, edge_index, columns); with several node types meta["node_types"] has their
    names and columns["node_type"] the index of each node's."""
    _check_types(graph)
    for nodes in graph.nodes:
        _check_nodes(nodes)
    offsets = np.cumsum([0, *(nodes.num_nodes for nodes in graph.nodes)])
    meta = {
        "name": graph.name,
        "num_nodes": int(offsets[-1]),
        "undirected": graph.undirected,
        "num_classes": graph.num_classes,
        "task": graph.task,
    }
    columns = {
        "features": _joined_features(graph.nodes),
        "labels": _joined_labels(graph.nodes),
        "edge_weight": _joined_weights(graph, scratch),
    }
    for split in SPLITS:
        parts = [
            nodes.splits[split].astype(np.int64) + offset
            for nodes, offset in zip(graph.nodes, offsets.tolist(), strict=False)
            if split in nodes.splits
        ]
        columns[f"{split}_idx"] = np.concatenate(parts) if parts else None
    if len(graph.nodes) > 1:
        meta["node_types"] = [nodes.name for nodes in graph.nodes]
        small = np.uint8 if len(graph.nodes) <= 256 else np.uint16
        columns["node_type"] = np.repeat(np.arange(len(graph.nodes), dtype=small), np.diff(offsets))
    if len(graph.edges) > 1:
        logger.warning("%s: %d edge types are joined; partitions do not store edge types", graph.name, len(graph.edges))
    edge_index = joined_edges(graph, offsets, scratch)
    return meta, edge_index, {key: value for key, value in columns.items() if value is not None}


def first_of(data: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of some usual names that the data have; None if they have none."""
    return next((name for name in names if name in data), None)


def only_of(data: Mapping[str, Any], names: Sequence[str], where: str, column: str) -> str | None:
    """The one among some usual names that the data have; None if they have none.

    Args:
      data: by name.
      names: usual for this column.
      where: whose data, for messages.
      column: what is looked for: "features", "labels", a split, or "edge_weight".
    Raises:
      ValueError: they have several.
    """
    found = [name for name in names if name in data]
    if len(found) > 1:
        argument = "splits" if column in MASK_NAMES else column
        raise ValueError(
            f"{where} have {' and '.join(found)}, all usual names of {column}; keep one of them, or pass {argument}= "
            "to partition_graph."
        )
    return found[0] if found else None


def mask_ids(where: str, mask: np.ndarray, num_nodes: int) -> np.ndarray:
    """Ids that a mask selects.

    Args:
      where: for messages.
      mask: bool or 0 and 1, [num_nodes] or [num_nodes, 1].
      num_nodes: of the type.
    Raises:
      ValueError: another shape, or several splits side by side.
    """
    if mask.ndim == 2 and mask.shape[1] > 1:
        raise ValueError(
            f"{where} has shape {mask.shape}, {mask.shape[1]} splits; expected one, ({num_nodes},); keep one column, "
            "such as mask[:, 0], and save it again."
        )
    flat = mask.reshape(-1)
    if mask.shape[:1] != (num_nodes,) or mask.size != num_nodes or flat.dtype.kind not in "biu":
        raise ValueError(f"{where} is {mask.dtype} of shape {mask.shape}; expected a mask of shape ({num_nodes},).")
    if flat.dtype.kind != "b" and flat.size and not (flat.min() >= 0 and flat.max() <= 1):
        raise ValueError(f"{where} has values {flat.min()} to {flat.max()}; expected a mask of 0 and 1.")
    return np.flatnonzero(flat)


def note_left_out(where: str, names: Sequence[str]) -> None:
    """Log which data of an input a partition does not take."""
    if names:
        logger.warning("%s: %s left out; partitions do not store it", where, ", ".join(map(str, names)))


def _is_single(graph: TypedGraph) -> bool:
    return len(graph.nodes) == 1 and len(graph.edges) == 1 and len(graph.edges[0].pieces) == 1


def _check_types(graph: TypedGraph) -> None:
    names = [nodes.name for nodes in graph.nodes]
    if not names or not any(edges.pieces for edges in graph.edges):
        raise ValueError(f"{graph.where} has {len(names)} node types and no edges; expected both.")
    if len(set(names)) != len(names):
        raise ValueError(f"{graph.where} lists a node type twice in {', '.join(names)}; expected each once.")
    for edges in graph.edges:
        for end in (edges.source, edges.target):
            if end not in names:
                raise ValueError(
                    f"{graph.where}: edges {edges.source}:{edges.relation}:{edges.target} join {end!r}; expected node "
                    f"types {', '.join(names)}."
                )


def _check_nodes(nodes: NodeType) -> None:
    for column, values in (("features", nodes.features), ("labels", nodes.labels)):
        if values is not None and len(values) != nodes.num_nodes:
            raise ValueError(
                f"{nodes.where(column)} has {len(values)} rows; expected {nodes.num_nodes}, one per node"
                f"{f' of type {nodes.name}' if nodes.name else ''}."
            )
    for split, ids in nodes.splits.items():
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"{nodes.where(split)} is {ids.dtype} of shape {ids.shape}; expected a list of node ids.")
        if ids.size and not (ids.min() >= 0 and ids.max() < nodes.num_nodes):
            wrong = int(np.argmax((ids < 0) | (ids >= nodes.num_nodes)))
            raise ValueError(
                f"{nodes.where(split)}: entry {wrong} is {ids[wrong]}; expected node ids 0 to {nodes.num_nodes - 1}."
            )


def _joined_features(nodes: Sequence[NodeType]) -> np.ndarray | RowSegments | None:
    having = [item for item in nodes if item.features is not None]
    if not having:
        return None
    first = having[0]
    for item in having:
        rows, model = item.features, first.features
        if rows.ndim != 2:
            raise ValueError(
                f"{item.where('features')} has shape {rows.shape}; expected a row per node, (num_nodes, dim)."
            )
        if rows.shape[1:] != model.shape[1:] or rows.dtype != model.dtype:
            raise ValueError(
                f"{item.where('features')} has {rows.dtype} features of shape {rows.shape}, {first.where('features')} "
                f"{model.dtype} of shape {model.shape}; expected one type and width for all; convert them."
            )
    if len(nodes) == 1:
        return first.features
    without = [item.name for item in nodes if item.features is None]
    if without:
        logger.info("no features: nodes of type %s get zeros", ", ".join(without))
    return RowSegments([part for item in nodes for part in _segments(item)])


def _segments(nodes: NodeType) -> list[np.ndarray | int]:
    if nodes.features is None:
        return [nodes.num_nodes]
    return nodes.features.segments if isinstance(nodes.features, RowSegments) else [nodes.features]


def _joined_labels(nodes: Sequence[NodeType]) -> np.ndarray | None:
    having = [item for item in nodes if item.labels is not None]
    if len(nodes) == 1 or not having:
        return having[0].labels if having else None
    first = having[0]
    for item in having:
        if item.labels.shape[1:] != first.labels.shape[1:]:
            raise ValueError(
                f"{item.where('labels')} has labels of shape {item.labels.shape}, {first.where('labels')} of shape "
                f"{first.labels.shape}; expected as many columns for all; keep the labels of one type."
            )
    columns = first.labels.shape[1:]
    missing = np.nan if columns else -1  # targets of a type without labels are not known
    dtype = np.result_type(np.float32 if columns else np.int8, *(item.labels for item in having))
    parts = [np.full((n.num_nodes, *columns), missing, dtype=dtype) if n.labels is None else n.labels for n in nodes]
    return np.concatenate(parts)


def _joined_weights(graph: TypedGraph, scratch: Scratch | None) -> np.ndarray | None:
    having = [edges for edges in graph.edges if edges.weights is not None]
    if not having:
        return None
    if len(having) < len(graph.edges):
        names = ", ".join(edges.relation for edges in graph.edges if edges.weights is None)
        logger.warning("%s: edges of type %s have no weight, so those of the others are left out", graph.name, names)
        return None
    parts = [part for edges in having for part in edges.weights]
    for (where, piece), part in zip((p for edges in having for p in edges.pieces), parts, strict=True):
        if part.shape != (piece.shape[1],) or part.dtype.kind not in "iuf":
            raise ValueError(
                f"the weights of {where} are {part.dtype} of shape {part.shape}; expected numbers of shape "
                f"({piece.shape[1]},), one per edge."
            )
    if len(parts) == 1:
        return parts[0]
    return _join([[(0, part) for part in parts]], np.result_type(*parts), scratch, ("edge_weight.npy", graph.sources))


def joined_edges(graph: TypedGraph, offsets: np.ndarray, scratch: Scratch | None) -> np.ndarray:
    """All edges in one id space, int32 or int64 [2, num_edges]; `offsets` are the types' first ids.

    Raises:
      ValueError: a piece that is not a list of edges, or an id outside its type.
    """
    if _is_single(graph):
        return graph.edges[0].pieces[0][1]
    start = dict(zip((nodes.name for nodes in graph.nodes), offsets.tolist(), strict=False))
    count = {nodes.name: nodes.num_nodes for nodes in graph.nodes}
    rows: list[list[tuple[int, Any]]] = [[], []]
    for row, end in enumerate(("source", "target")):
        for edges in graph.edges:
            name = getattr(edges, end)
            for where, piece in edges.pieces:
                if piece.ndim != 2 or piece.shape[0] != 2 or piece.dtype.kind not in "iu":
                    raise ValueError(
                        f"{where} is {piece.dtype} of shape {piece.shape}; expected integers of shape (2, num_edges)."
                    )
                rows[row].append((start[name], _Checked(piece[row], count[name], f"{where}: the {end}")))
    dtype = np.dtype(np.int32 if offsets[-1] < _ID_LIMIT else np.int64)
    return _join(rows, dtype, scratch, ("edge_index.npy", graph.sources))


class _Checked:
    """Ids of one end of a piece of edges, looked at as they are read."""

    def __init__(self, ids: np.ndarray, num_nodes: int, where: str) -> None:
        self._ids, self._num_nodes, self._where = ids, num_nodes, where

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, rows: slice) -> np.ndarray:
        ids = self._ids[rows]
        if ids.size and not (ids.min() >= 0 and ids.max() < self._num_nodes):
            wrong = int(np.argmax((ids < 0) | (ids >= self._num_nodes)))
            raise ValueError(
                f"{self._where} of edge {rows.start + wrong} is {ids[wrong]}; expected 0 to {self._num_nodes - 1}; "
                "correct the edge or the number of nodes."
            )
        return ids

    def drop_pages(self) -> None:
        drop_pages(self._ids)


def _join(
    rows: Sequence[Sequence[tuple[int, Any]]],
    dtype: np.dtype,
    scratch: Scratch | None,
    made: tuple[str, Sequence[Path]],
) -> np.ndarray:
    """An array made of blocks, in a file of the scratch directory, or in memory without one.

    Args:
      rows: for each row its blocks in order, (what to add, values [n]); one row gives a flat array.
      dtype: of the array.
      scratch: where; None: memory.
      made: name of the file, and the files it is made from.
    """
    length = sum(len(values) for _, values in rows[0])
    shape = (length,) if len(rows) == 1 else (len(rows), length)
    chunks = (chunk for blocks in rows for chunk in _converted(blocks, np.dtype(dtype)))
    if scratch is None:
        return np.concatenate([np.empty(0, dtype=dtype), *chunks]).reshape(shape)

    def write(path: Path) -> None:
        with path.open("xb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for chunk in chunks:
                file.write(chunk.data.cast("B"))

    return open_npy(scratch.made(made[0], made[1], write))


def _converted(blocks: Sequence[tuple[int, Any]], dtype: np.dtype) -> Iterator[np.ndarray]:
    for offset, values in blocks:
        for lo, hi in row_chunks(len(values), dtype.itemsize):
            chunk = values[lo:hi].astype(dtype)
            chunk += dtype.type(offset)
            yield chunk
            drop_pages(values)
