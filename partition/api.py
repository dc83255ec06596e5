"""`fastsample_dist.partition_graph`: cut a graph that is in memory, or arrays mapped from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph, check_facts, checked_graph
from fastsample_dist.graph.inputs import ReadOptions, dgl_memory, pyg_saved
from fastsample_dist.graph.inputs.heterogeneous import TypedGraph, flatten
from fastsample_dist.graph.inputs.sizes import UNKNOWN, GraphSizes, certain_sizes
from fastsample_dist.graph.listed_rows import ListedRows
from fastsample_dist.graph.storage import BFLOAT16, SPLITS, check_output
from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.ops.checks import plain
from fastsample_dist.partition.report.quality import PartitionQuality
from fastsample_dist.partition.write import build
from fastsample_dist.partition.write.options import PartitionOptions

Column = Tensor | np.ndarray
LIBRARIES = {"dgl": ("DGLGraph",), "torch_geometric": ("Data", "HeteroData")}  # and their classes of graphs


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphFacts:
    """What a graph given as arrays does not state itself. Numbers and truth values may be NumPy's or torch's.

    Attributes:
      name: of the graph, for reports.
      num_nodes: for [2, num_edges]; by default as many as features, labels or node_type have, else the highest id + 1.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
      edge_weight: number [num_edges], for [2, num_edges].
      num_classes: labels are below it; by default the highest label + 1.
      node_type: integer [num_nodes], index into node_types; None: all nodes are of one kind.
      node_types: names of the types; by default "0", "1", ...
    Raises:
      ValueError: a value of another type, or out of range.
    """

    name: str = "graph"
    num_nodes: int | None = None
    undirected: bool = False
    edge_weight: Column | None = None
    num_classes: int | None = None
    node_type: Column | None = None
    node_types: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_facts(self, unknown=True)


_FACTS = tuple(item.name for item in fields(GraphFacts))
_BY_NODE = ("features", "labels", "node_type")  # columns with an entry per node
_OPTIONS = tuple(item.name for item in fields(PartitionOptions) if item.name != "num_parts")


def partition_graph(
    graph: CSCGraph | RawGraph | Column | Any,
    features: Column | None = None,
    labels: Column | None = None,
    splits: Mapping[str, Column] | None = None,
    num_parts: int = 1,
    *,
    output: str | Path,
    overwrite: bool = False,
    task: str | None = None,
    **options: Any,
) -> PartitionQuality:
    """Cut a graph into parts and write them, as fastsample-partition does.

    Args:
      graph: CSCGraph with original ids; integer [2, num_edges]: sources and destinations; a DGLGraph or PyG's Data or
        HeteroData as it is, whose features (ndata["feat"], "feature", "x"; data.x), labels ("label", "y"), masks
        ("train_mask", ...) and weights of edges are taken where no argument takes their place (`splits`: that of all
        masks), other data and edge types are left out with a warning, and several node types become one id space, one
        after the other; or a RawGraph, as the readers of `fastsample_dist.graph.inputs` give it, which has the
        features, labels, splits and facts in it.
      features: [num_nodes, dim] or None.
      labels: integer [num_nodes], -1: unlabelled; number [num_nodes, C], NaN: not known; or None.
      splits: {"train" | "val" | "test": node ids, or a mask bool [num_nodes]}.
      num_parts: number of parts.
      output: the partition's directory; it appears when complete.
      overwrite: replace a partition that is there.
      task: what the labels are for: "classification", "multilabel" or "regression"; None: as
        `fastsample_dist.graph.labels` infers it from their shape.
      **options: the fields of `GraphFacts` (name, num_nodes, undirected, edge_weight, num_classes, node_type,
        node_types) and of `partition.build.PartitionOptions` (method "metis", seed, assignment, passes,
        order, on_disk, feature_dtype ("int8": with a scale per row), edge_map, clusters, and buffer and memory_limit in
        bytes or as text such as "2GB").
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: anything that does not fit, in one line. TypeError: an unknown option.
      ImportError: the method's package is missing. OSError: the disk refuses.
    """
    unknown = [name for name in options if name not in (*_FACTS, *_OPTIONS)]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; expected some of {', '.join((*_FACTS, *_OPTIONS))}.")
    facts = {name: options.pop(name) for name in _FACTS if name in options}
    if splits is not None and not isinstance(splits, Mapping):
        raise ValueError(f"splits is a {type(splits).__name__}; expected a dict of {', '.join(SPLITS)}.")
    columns = {"features": features, "labels": labels, "splits": splits, "task": task}
    for name in ("memory_limit", "buffer"):
        if isinstance(options.get(name), str):
            options[name] = parse_bytes(options[name])
    narrow = isinstance(features, Tensor) and features.dtype == torch.bfloat16
    if narrow and options.get("feature_dtype", "keep") == "keep":
        options["feature_dtype"] = BFLOAT16
    chosen, given = PartitionOptions(num_parts=num_parts, **options), GraphFacts(**facts)
    overwrite = plain(overwrite)
    check_output(output, overwrite)
    _check_dense(graph=graph, features=features, labels=labels, edge_weight=given.edge_weight)
    if narrow:  # NumPy has no such type
        columns["features"] = features.float()
    if isinstance(graph, RawGraph):
        beside = [*(key for key, value in columns.items() if value is not None), *facts]
        if beside:
            raise ValueError(f"{beside[0]} was passed beside a RawGraph, which has its own; leave it out.")
        raw = graph
    elif _library_of(graph) is not None:
        build.check_request(_library_sizes(graph, columns, given), chosen, output, overwrite=overwrite)
        raw = _library_graph(graph, columns, given)
    else:
        build.check_request(_least_sizes(graph, columns, given), chosen, output, overwrite=overwrite)
        raw = _raw_graph(graph, columns, given)
    return build.build_partition(raw, chosen, output, overwrite=overwrite)


def _check_dense(**given: Any) -> None:
    """Refuse sparse matrices of torch's and SciPy's, in whose place arrays are to be passed."""
    for name, matrix in given.items():
        if isinstance(matrix, Tensor) and matrix.layout != torch.strided:
            edges, dense = "matrix.to_sparse_coo().coalesce().indices()", "to_dense()"
        elif type(matrix).__module__.startswith("scipy.sparse"):
            edges, dense = "np.vstack(matrix.nonzero())", "toarray()"
        else:
            continue
        rest = f"edges [2, num_edges]: {edges}, where rows are sources" if name == "graph" else f"{name}.{dense}"
        raise ValueError(f"{name} is a sparse matrix ({type(matrix).__name__}); pass {rest}.")


def _least_sizes(graph: CSCGraph | Column, columns: Mapping[str, Any], facts: GraphFacts) -> GraphSizes:
    """What shapes alone show of a graph, before an array is read; a shape that is wrong is refused later."""
    by_node = [columns["features"], columns["labels"], facts.node_type]
    lengths = [len(column) for column in by_node if getattr(column, "ndim", 0)]
    counts = [facts.num_nodes, getattr(graph, "num_nodes", None), *lengths]
    num_nodes = next((count for count in counts if isinstance(count, int) and count >= 1), None)
    if num_nodes is None:
        return UNKNOWN
    shape = getattr(graph, "shape", ())
    num_listed = graph.num_edges if isinstance(graph, CSCGraph) else shape[1] if len(shape) == 2 else 0
    sizes = GraphSizes(name=facts.name, num_nodes=num_nodes, num_listed=num_listed, has_labels=False)
    return replace(sizes, given_rows=isinstance(graph, CSCGraph), **_column_sizes(columns, num_nodes))


def _library_sizes(graph: Any, columns: Mapping[str, Any], facts: GraphFacts) -> GraphSizes:
    """What another library's graph shows without a pass over it; a fault in it is refused later."""
    skip = {name for name, column in {**columns, "edge_weight": facts.edge_weight}.items() if column is not None}
    common = {"name": facts.name, "undirected": facts.undirected, "skip": skip}

    def find() -> GraphSizes:
        if _library_of(graph) == "dgl":
            return dgl_memory.graph_sizes(graph, **common)
        return pyg_saved.mapping_sizes(_mapping_of(graph, facts, {**columns, "node_type": facts.node_type}), **common)

    sizes = certain_sizes(find)
    return replace(sizes, **_column_sizes(columns, sizes.num_nodes))


def _column_sizes(columns: Mapping[str, Any], num_nodes: int) -> dict[str, Any]:
    """Fields of GraphSizes that columns among the arguments give."""
    found: dict[str, Any] = {}
    features, splits = columns["features"], columns["splits"] or {}
    if getattr(features, "ndim", 0) == 2 and hasattr(features, "dtype"):  # not of pandas' DataFrame
        found |= {"feature_dim": features.shape[1], "feature_dtype": str(features.dtype).removeprefix("torch.")}
    if columns["labels"] is not None:
        found["has_labels"] = True
    ids = {name: column for name, column in splits.items() if "int" in str(getattr(column, "dtype", ""))}
    lengths = {name: len(column) for name, column in ids.items() if column.ndim}
    return {**found, "splits": {name: length for name, length in lengths.items() if 0 < length <= num_nodes}}


def _raw_graph(graph: CSCGraph | Column, given: dict[str, Any], facts: GraphFacts) -> RawGraph:
    """The checked graph of arrays; `given` has features, labels, splits and task."""
    edges, weights, counted = _edges_of(graph, facts.edge_weight)
    if counted is not None and facts.num_nodes not in (None, counted):
        raise ValueError(f"num_nodes is {facts.num_nodes} but the graph has {counted} nodes; leave num_nodes out.")
    columns = _given_columns({**given, "edge_weight": weights}, facts)
    num_nodes = counted if facts.num_nodes is None else facts.num_nodes
    by_ids = num_nodes is None and not any(key in columns for key in _BY_NODE)
    num_nodes = _count_nodes(edges, columns) if num_nodes is None else num_nodes
    columns |= _split_columns(given["splits"], num_nodes)
    meta = {"name": facts.name, "num_nodes": num_nodes, "undirected": facts.undirected}
    meta |= {"num_classes": facts.num_classes, "task": given["task"], "node_types": facts.node_types}
    meta["counted_by_ids"] = by_ids
    return checked_graph(meta, edges, columns, locate=lambda column: column)


def _library_of(graph: Any) -> str | None:
    """ "dgl" or "torch_geometric" where the graph is an object of that library, else None; nothing is imported.

    Raises:
      ValueError: an object of the library that is not a graph, such as a data set.
    """
    if isinstance(graph, Tensor):  # PyG's EdgeIndex is one
        return None
    bases = [(base.__module__.split(".")[0], base.__name__) for base in type(graph).__mro__]
    for library, classes in LIBRARIES.items():
        if any(home == library for home, _ in bases):
            if not any(home == library and name in classes for home, name in bases):
                raise ValueError(
                    f"graph is a {type(graph).__name__} of {library}; expected its {' or '.join(classes)}; of a data "
                    "set pass dataset[0]."
                )
            return library
    return None


def _library_graph(graph: Any, given: dict[str, Any], facts: GraphFacts) -> RawGraph:
    """The checked graph of another library's object; arguments take precedence."""
    columns = _given_columns({**given, "edge_weight": facts.edge_weight}, facts)
    skip = {*columns} | ({"splits"} if given["splits"] is not None else set())
    reading = ReadOptions(undirected=facts.undirected, task=given["task"])
    typed = _typed(graph, facts, reading, columns, skip)
    num_nodes = sum(nodes.num_nodes for nodes in typed.nodes)
    if facts.num_nodes not in (None, num_nodes):
        raise ValueError(f"num_nodes is {facts.num_nodes} but the graph has {num_nodes} nodes; leave num_nodes out.")
    if len(typed.nodes) > 1 and (facts.node_type is not None or facts.node_types is not None):
        raise ValueError("node_type was passed beside a graph that has node types of its own; leave it out.")
    meta = {"num_classes": facts.num_classes, "node_types": facts.node_types}
    meta = {key: value for key, value in meta.items() if value is not None}
    return flatten(typed, given={**columns, **_split_columns(given["splits"], num_nodes)}, facts=meta)


def _typed(
    graph: Any, facts: GraphFacts, reading: ReadOptions, given: Mapping[str, np.ndarray], skip: set[str]
) -> TypedGraph:
    """The graph by types, without the columns to skip."""
    if _library_of(graph) == "dgl":
        return dgl_memory.typed_graph(graph, name=facts.name, undirected=facts.undirected, task=reading.task, skip=skip)
    return pyg_saved.typed_graph(_mapping_of(graph, facts, given), reading, name=facts.name, skip=skip)


def _mapping_of(graph: Any, facts: GraphFacts, given: Mapping[str, Any]) -> dict[Any, Any]:
    """The plain form of PyG's object, with the number of nodes that facts or given columns state where it has none."""
    mapping = dict(graph.to_dict())
    if "edge_index" in mapping and not pyg_saved.says_num_nodes(mapping):
        lengths = [len(given[key]) for key in _BY_NODE if getattr(given.get(key), "ndim", 0)]
        mapping["num_nodes"] = next(iter(lengths), None) if facts.num_nodes is None else facts.num_nodes
    return mapping


def _given_columns(given: Mapping[str, Any], facts: GraphFacts) -> dict[str, np.ndarray]:
    """Columns of `checked_graph` among the arguments, without splits."""
    columns = {"edge_weight": given["edge_weight"], "node_type": facts.node_type}
    columns |= {key: given[key] for key in ("features", "labels")}
    return {key: _array(key, value) for key, value in columns.items() if value is not None}


def _split_columns(splits: Mapping[str, Column] | None, num_nodes: int) -> dict[str, np.ndarray]:
    columns = {}
    for split, members in (splits or {}).items():
        if split not in SPLITS:
            raise ValueError(f"splits has {split!r}; expected {', '.join(SPLITS)}.")
        columns[f"{split}_idx"] = _node_ids(split, _array(split, members), num_nodes)
    return columns


def _array(name: str, column: Column) -> np.ndarray:
    """As NumPy's array; a mapped one becomes a plain view, so that its pages are left alone.

    Raises:
      ValueError: it is no array, and nothing that can become one.
    """
    try:
        array = np.asarray(column.detach().cpu() if isinstance(column, Tensor) else column)
    except (TypeError, ValueError) as error:  # bfloat16, rows of unequal length
        raise ValueError(f"{name} cannot become an array ({str(error).splitlines()[0]}); convert it.") from error
    if array.dtype == object or array.ndim == 0:
        expected = "edges [2, num_edges], a CSCGraph, or a graph of DGL or PyG" if name == "graph" else "an array"
        raise ValueError(f"{name} is a {type(column).__name__}; expected {expected}.")
    return array


def _edges_of(
    graph: CSCGraph | Column, edge_weight: Column | None
) -> tuple[np.ndarray | ListedRows, Column | None, int | None]:
    """Edges [2, E], their weights, and the number of nodes where the graph states it."""
    if not isinstance(graph, CSCGraph):
        return _array("graph", graph), edge_weight, None
    if edge_weight is not None:
        raise ValueError("edge_weight was passed beside a CSCGraph; expected the weights inside it (weights=...).")
    if graph.orig_ids is not None:
        raise ValueError("the graph has orig_ids, so its ids are a partition's; pass the graph with original ids.")
    return ListedRows(graph), graph.weights, graph.num_nodes


def _count_nodes(edges: np.ndarray, columns: Mapping[str, np.ndarray]) -> int:
    for key in _BY_NODE:
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
