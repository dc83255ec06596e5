"""PyTorch Geometric's Data and HeteroData: saved by torch.save, or as the plain mapping that `to_dict` gives.

A file holds the object itself, or, as InMemoryDataset.save writes it, (mapping, slices, class). torch_geometric is
neither needed nor run: its classes are replaced by records (pickles.py), whose state is such a mapping.

    Data        {"x": ..., "edge_index": ..., "edge_attr": ..., "y": ..., "train_mask": ...}
    HeteroData  {"paper": {"x": ...}, ("author", "writes", "paper"): {"edge_index": ...}}
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.heterogeneous import (
    MASK_NAMES,
    EdgeType,
    NodeType,
    TypedGraph,
    flatten,
    mask_ids,
    note_left_out,
    only_of,
)
from fastsample_dist.graph.inputs.pickles import Record, as_array, check_mappable, load_saved, stand_in
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.graph.inputs.sizes import GraphSizes, NodesUnknownError
from fastsample_dist.graph.inputs.typed_sizes import EdgeShapes, NodeShapes, shape_of, typed_sizes
from fastsample_dist.graph.labels import class_labels

logger = logging.getLogger(__name__)

_CLASSES = {
    name: stand_in(f"torch_geometric.data.{name}")
    for name in (
        *("data.Data", "data.DataEdgeAttr", "data.DataTensorAttr", "hetero_data.HeteroData"),
        *("storage.BaseStorage", "storage.NodeStorage", "storage.EdgeStorage", "storage.GlobalStorage"),
        *("storage.AttrType", "feature_store.TensorAttr", "graph_store.EdgeAttr", "graph_store.EdgeLayout"),
    )
}
_HETERO = _CLASSES["hetero_data.HeteroData"]
_PER_NODE = ("x", "y", *(name for names in MASK_NAMES.values() for name in names))
_KEPT = {*_PER_NODE, "edge_index", "edge_attr", "edge_weight", "num_nodes"}
_WEIGHTS = ("edge_weight", "edge_attr")
EdgeKey = tuple[str, str, str]  # source, relation, target
_ONLY_EDGES = ("", "", "")  # those of a Data
_NOT_DATA = ("pre_filter.pt", "pre_transform.pt")


def read_pyg(path: Path, options: ReadOptions) -> RawGraph:
    """Read a saved Data or HeteroData; a reader of format `pyg`.

    Args:
      path: the .pt file, or the directory of a data set with one file in it or in processed/.
      options: with `undirected` every edge counts in both directions; otherwise edges are as stored.
    Returns:
      RawGraph; features stay mapped where the file allows it.
    Raises:
      ValueError: nothing like it is there, it asks for anything that safe loading does not run, or a value is not
        what is expected.
    """
    file = _find_file(path)
    return from_mapping(_mapping_of(file), options, file=file)


def pyg_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of a saved Data or HeteroData, by the shapes of its tensors, which stay unread in the file.

    Raises:
      ValueError: as `read_pyg`, as far as shapes show; or a file whose tensors cannot be left unread.
      NodesUnknownError: nodes that only their edges count.
    """
    file = _find_file(path)
    check_mappable(file)
    return mapping_sizes(_mapping_of(file), undirected, name=_graph_name(file), where=str(file))


def mapping_sizes(
    mapping: Mapping[Any, Any],
    undirected: bool | None = None,
    *,
    name: str = "data",
    where: str | None = None,
    skip: Collection[str] = (),
) -> GraphSizes:
    """Sizes of the plain form of Data or HeteroData, by the shapes of its tensors.

    Args:
      mapping, name, skip: as for `typed_graph`.
      undirected: every edge counts in both directions.
      where: the input, for messages; its name by default.
    Raises:
      ValueError: edges that are not [2, num_edges].
      NodesUnknownError: nodes that only their edges count.
    """
    place = name if where is None else where
    nodes, edges = _stores_of(mapping)
    shapes = [getattr(store.get("edge_index"), "shape", ()) for store in edges.values()]
    if any(len(shape) != 2 for shape in shapes):
        raise ValueError(f"{place} has edges of shape {[*map(tuple, shapes)]}; expected (2, num_edges) of each type.")
    counts = {key: _stated_count(store) for key, store in nodes.items()}
    for key in {end for source, _, target in edges for end in (source, target)}:
        counts.setdefault(key, None)
    sizes = typed_sizes(
        name,
        [_node_shapes(count or 0, nodes.get(key, {}), skip) for key, count in counts.items()],
        [_edge_shapes(store, skip) for store in edges.values()],
        bool(undirected),
    )
    if None in counts.values():
        message = f"the number of nodes in {place} is unknown before it is read; pass --num-nodes and --num-edges."
        raise NodesUnknownError(message, replace(sizes, least_nodes=sizes.num_nodes))
    return sizes


def from_mapping(
    mapping: Mapping[Any, Any], options: ReadOptions | None = None, *, file: Path | None = None, name: str = "data"
) -> RawGraph:
    """A graph from the plain form of Data or HeteroData.

    Args:
      mapping: attributes; or, for a HeteroData, attributes by node type and by (source, relation, target).
      options: `undirected`, `task`, and `scratch` for joined edges; None: as stored, joined in memory.
      file: that it was loaded from; None: it was in memory.
      name: of the graph, and of the input in messages, if it was in memory.
    Returns:
      RawGraph.
    Raises:
      ValueError: a value is not what is expected.
    """
    scratch = None if file is None or options is None else options.scratch
    return flatten(typed_graph(mapping, options, file=file, name=name), scratch)


def typed_graph(
    mapping: Mapping[Any, Any],
    options: ReadOptions | None = None,
    *,
    file: Path | None = None,
    name: str = "data",
    skip: Collection[str] = (),
) -> TypedGraph:
    """As `from_mapping`, by types and not checked yet.

    Args:
      mapping, options, file, name: as for `from_mapping`.
      skip: of "features", "labels", "splits" and "edge_weight" those that are not to be taken from the mapping.
    Raises:
      ValueError: a value is not what is expected; two names for one split.
    """
    where = name if file is None else str(file)
    scratch = None if file is None or options is None else options.scratch
    view = _View(file, where, scratch, options and options.task, skip)
    node_stores, edge_stores = _stores_of(mapping)
    for key, store in {**node_stores, **({} if _ONLY_EDGES in edge_stores else edge_stores)}.items():
        others = sorted(str(name) for name, value in store.items() if name not in _KEPT and value is not None)
        note_left_out(f"{where}: {'__'.join(key) if isinstance(key, tuple) else key}".removesuffix(": "), others)
    edges = [view.edge_type(key, store) for key, store in edge_stores.items()]
    for key in sorted({end for item in edges for end in (item.source, item.target)} - set(node_stores)):
        node_stores[key] = {}
    return TypedGraph(
        name=name if file is None else _graph_name(file),
        nodes=[view.node_type(key, store, edges) for key, store in node_stores.items()],
        edges=edges,
        undirected=bool(options and options.undirected),
        task=options and options.task,
        sources=[] if file is None else [file],
        where=where,
    )


def _stores_of(mapping: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[EdgeKey, Any]]:
    """Attributes by node type and by (source, relation, target); a Data has one of each, without names."""
    if not any(isinstance(key, tuple) for key in mapping):
        return {"": mapping}, {_ONLY_EDGES: mapping}
    nodes = {key: value for key, value in mapping.items() if isinstance(key, str) and _is_store(value)}
    nodes.pop("_global_store", None)
    return nodes, {key: value for key, value in mapping.items() if isinstance(key, tuple)}


def _stated_count(store: Mapping[str, Any]) -> int | None:
    """Nodes of a store, stated or by the first thing with an entry for each; None: neither is there."""
    if isinstance(store.get("num_nodes"), int):
        return store["num_nodes"]
    return next((len(store[name]) for name in _PER_NODE if _has_rows(store.get(name))), None)


def _node_shapes(count: int, store: Mapping[str, Any], skip: Collection[str]) -> NodeShapes:
    columns = (None if key in skip else store.get(name) for key, name in (("features", "x"), ("labels", "y")))
    return NodeShapes(count, *(None if column is None else shape_of(column) for column in columns))


def _edge_shapes(store: Mapping[str, Any], skip: Collection[str]) -> EdgeShapes:
    """Edges of a store; attributes of several columns are no weights."""
    edges = shape_of(store["edge_index"])
    names = () if "edge_weight" in skip else _WEIGHTS
    weights = next((shape_of(store[name]) for name in names if store.get(name) is not None), None)
    several = weights is not None and (len(weights.extents) > 2 or weights.extents[1:] > (1,))
    return EdgeShapes(edges.extents[1], edges.dtype, None if several else weights)


def says_num_nodes(store: Mapping[str, Any]) -> bool:
    """Whether a store has its number of nodes, stated or by something with an entry for each."""
    return store.get("num_nodes") is not None or any(_has_rows(store.get(name)) for name in _PER_NODE)


def _has_rows(value: Any) -> bool:
    """Whether a value can have an entry for each node; a single number, such as a label of the graph, cannot."""
    return value is not None and getattr(value, "ndim", 1) > 0


class _View:
    """Attributes of one saved or given object as arrays."""

    def __init__(
        self, file: Path | None, where: str, scratch: Scratch | None, task: str | None, skip: Collection[str] = ()
    ) -> None:
        self._file, self._where, self._scratch, self._task, self._skip = file, where, scratch, task, skip

    def node_type(self, key: str, store: Mapping[str, Any], edges: list[EdgeType]) -> NodeType:
        """Nodes of a store; by the edges where nothing else gives their number."""
        prefix = f"{key}." if key else ""
        features, labels = (
            None if column in self._skip else self._array(prefix, store, name)
            for column, name in (("features", "x"), ("labels", "y"))
        )
        nodes = f"{self._where}: nodes{f' of type {key}' if key else ''}"
        stored = {name: value for name, value in store.items() if value is not None}
        wanted = {} if "splits" in self._skip else MASK_NAMES
        masks = {split: only_of(stored, names, nodes, split) for split, names in wanted.items()}
        arrays = {split: self._array(prefix, store, name) for split, name in masks.items() if name}
        arrays = {split: mask for split, mask in arrays.items() if mask is not None}
        count = _stated_count(store)
        count = self._count_by_edges(key, edges) if count is None else count
        places = {
            "features": f"{prefix}x",
            "labels": f"{prefix}y",
            **{s: f"{prefix}{n}" for s, n in masks.items() if n},
        }

        def where(column: str) -> str:
            return f"{self._where}: {places.get(column, column)}"

        return NodeType(
            name=key,
            num_nodes=count,
            features=features,
            labels=None if labels is None else class_labels(where("labels"), labels, self._task),
            splits={split: mask_ids(where(split), mask, count) for split, mask in arrays.items()},
            where=where,
        )

    def edge_type(self, key: tuple[str, str, str], store: Mapping[str, Any]) -> EdgeType:
        """Edges of a store, with its weights."""
        prefix = f"{'__'.join(key)}." if any(key) else ""
        edge_index = self._array(prefix, store, "edge_index")
        if edge_index is None:
            other = next((name for name in ("adj_t", "adj") if store.get(name) is not None), None)
            found = f"{prefix}{other}" if other else f"no {prefix}edge_index"
            raise ValueError(
                f"{self._where} has {found}; expected edge_index [2, num_edges]; save the data without ToSparseTensor."
            )
        if edge_index.ndim != 2:
            raise ValueError(
                f"{self._where}: {prefix}edge_index has shape {edge_index.shape}; expected (2, num_edges)."
            )
        weights = None if "edge_weight" in self._skip else self._array(prefix, store, "edge_weight")
        attributes = self._array(prefix, store, "edge_attr")
        if attributes is not None:
            fits = attributes.ndim == 1 or (attributes.ndim == 2 and attributes.shape[1] == 1)
            if fits and weights is None and "edge_weight" not in self._skip:
                weights = attributes
            else:
                note_left_out(self._where, [f"{prefix}edge_attr of shape {attributes.shape}"])
        return EdgeType(
            source=key[0],
            relation=key[1],
            target=key[2],
            pieces=[(f"{self._where}: {prefix}edge_index", edge_index)],
            weights=None if weights is None else [weights.reshape(-1)],
        )

    def _array(self, prefix: str, store: Mapping[str, Any], name: str) -> np.ndarray | None:
        value = store.get(name)
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, Tensor):
            raise ValueError(f"{self._where}: {prefix}{name} is a {type(value).__name__}; expected a tensor.")
        if value.dtype == torch.bfloat16:
            logger.info(
                "%s: %s%s is bfloat16 and read as float32; --feature-dtype bfloat16 stores it as it was",
                *(self._where, prefix, name),
            )
        try:
            return as_array(value, self._file, self._scratch, f"{prefix}{name}")
        except ValueError as error:
            raise ValueError(f"{self._where}: {prefix}{name} is {error}; convert it.") from error

    def _count_by_edges(self, key: str, edges: list[EdgeType]) -> int:
        highest = -1
        for item in edges:
            for row, end in enumerate((item.source, item.target)):
                if end == key:
                    highest = max(highest, *(int(ids[row].max()) for _, ids in item.pieces if ids.shape[1]), -1)
        named = f" of type {key}" if key else ""
        logger.info("%s: nodes%s are counted by the highest id of an edge, %d", self._where, named, highest)
        return highest + 1


def _find_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for directory in (path / "processed", path):
        found = [file for file in sorted(directory.glob("*.pt")) if file.name not in _NOT_DATA]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found)
            raise ValueError(f"{directory} holds {len(found)} .pt files ({names}); expected one; pass the file itself.")
    raise ValueError(f"{path} holds no .pt file; expected a saved Data or HeteroData; pass the file itself.")


def _mapping_of(file: Path) -> Mapping[Any, Any]:
    """The plain form of what a file holds."""
    saved, kind = load_saved(file, [*_CLASSES.values()]), None
    if isinstance(saved, tuple) and 2 <= len(saved) <= 4:
        slices, kind = saved[1], saved[2] if len(saved) > 2 else None
        count = _count_graphs(slices)
        if count > 1:
            raise ValueError(f"{file} holds {count} graphs; expected one; save that one by torch.save.")
        saved = saved[0]
    if isinstance(saved, Record):
        if isinstance(saved, _HETERO):
            return {**_stores(saved, "_node_store_dict"), **_stores(saved, "_edge_store_dict")}
        state = saved.state.get("_store", saved)
        return state.state.get("_mapping", state.state) if isinstance(state, Record) else state
    if isinstance(saved, Mapping) and (kind is _HETERO or "edge_index" in saved or any(map(_is_store, saved.values()))):
        return saved
    raise ValueError(
        f"{file} holds a {type(saved).__name__}; expected a saved Data, HeteroData or data set of one graph."
    )


def _count_graphs(slices: Any) -> int:
    """How many graphs a data set's slices cut its attributes into; by attribute, or by type and attribute."""
    if isinstance(slices, Mapping):
        return max((_count_graphs(value) for value in slices.values()), default=1)
    return len(slices) - 1 if isinstance(slices, Tensor) else 1


def _stores(saved: Record, name: str) -> dict[Any, Any]:
    return {key: store.state.get("_mapping", {}) for key, store in saved.state.get(name, {}).items()}


def _is_store(value: Any) -> bool:
    return isinstance(value, Mapping)


def _graph_name(file: Path) -> str:
    """The file's name; for processed/data.pt that of the data set's directory."""
    return file.absolute().parent.parent.name if file.parent.name == "processed" else file.stem
