"""Input graphs: the `npy` directory, the checks that every input passes, and the topology built from its edges.

An `npy` directory holds meta.json {"name", "num_nodes", "undirected"[, "num_classes"][, "task"][, "node_types"]},
edge_index.npy [2, E] (row 0: sources, row 1: destinations) and, where the graph has them, edge_weight.npy [E],
features.npy [N, D], labels.npy [N] (-1: unlabelled) or [N, C] (labels.py), node_type.npy [N] (index into node_types),
train_idx.npy, val_idx.npy and test_idx.npy. Arrays stay memory-mapped; the checks read them in chunks. A graph that
passes `checked_graph` can be used without further checks.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.file_names import check_names
from fastsample_dist.graph.label_classes import count_classes
from fastsample_dist.graph.labels import (
    CLASSIFICATION,
    TASK_ADVICE,
    agreed_task,
    check_task,
    checked_targets,
    class_labels,
)
from fastsample_dist.graph.listed_rows import ListedRows, canonical_rows, say_unlike
from fastsample_dist.graph.npy_files import drop_pages, open_npy, row_chunks
from fastsample_dist.graph.row_segments import RowSegments
from fastsample_dist.graph.splits import check_integer, check_labelled, check_overlaps, checked_split, first_outside
from fastsample_dist.graph.storage import FEATURE_DTYPES, SPLITS, WIDE_DTYPES
from fastsample_dist.ops import checks

logger = logging.getLogger(__name__)

META_NAME = "meta.json"
MAX_NODES = 3_000_000_000  # dst * num_nodes + src must fit in int64
MAX_NODE_TYPES = 1 << 16
INT32_MAX_EDGES = 2**31
_UNSTORED = ("edge_type",)
COLUMNS = ("edge_weight", "features", "labels", "node_type", *(f"{split}_idx" for split in SPLITS))


@dataclass(frozen=True, eq=False, kw_only=True)
class RawGraph:
    """A graph as the user gave it, checked; arrays may be memory-mapped.

    Made by hand, only what `check_facts` says is checked.

    Attributes:
      name: name of the graph.
      num_nodes: N; node ids are 0 .. N - 1.
      undirected: every edge counts in both directions, whichever is listed.
      edge_index: integer [2, E]; row 0: sources, row 1: destinations; or the rows of a graph in its place.
      edge_weight: number [E] or None.
      features: [N, D] of a type in FEATURE_DTYPES or WIDE_DTYPES, or None.
      labels: integer [N], -1: unlabelled; or None.
      num_classes: labels are below it; 0 without labels.
      splits: those of "train", "val", "test" that exist; int64 node ids, ascending.
      task: what the labels are for, one of labels.TASKS; "classification" without labels.
      targets: number [N, C]: the labels of another task (labels.py), and `labels` is None then.
      nonfinite_features: how many feature values are NaN or infinite.
      node_types: names of the node types; () when all nodes are of one kind.
      node_type: integer [N], index into node_types; None without types.
      counted_by_ids: num_nodes is not stated; it is the highest id of an edge + 1.
      input_ids: int64 or bytes (UTF-8) [N]; what node v is called in the input, where its ids were relabelled. Else
        None: v itself.
    """

    name: str
    num_nodes: int
    undirected: bool
    edge_index: np.ndarray | ListedRows
    edge_weight: np.ndarray | None = None
    features: np.ndarray | RowSegments | None = None
    labels: np.ndarray | None = None
    num_classes: int = 0
    splits: dict[str, np.ndarray] = field(default_factory=dict)
    task: str = CLASSIFICATION
    targets: np.ndarray | None = None
    nonfinite_features: int = 0
    node_types: tuple[str, ...] = ()
    node_type: np.ndarray | None = None
    counted_by_ids: bool = False
    input_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_facts(self)

    def edge_map_dtype(self) -> np.dtype:
        """Type of an edge's position in the list: int32 while every one fits, else int64."""
        return np.dtype(np.int32 if self.edge_index.shape[1] <= INT32_MAX_EDGES else np.int64)

    def rows_as_given(self, *, edge_map: bool = False) -> CSCGraph | None:
        """What `to_csc` returns, where edge_index is a graph's rows that need not be unrolled for it; else None."""
        if not isinstance(self.edge_index, ListedRows):
            return None
        weights, positions = self._carried(edge_map)
        return canonical_rows(self.edge_index.graph, weights, positions, undirected=self.undirected, name=self.name)

    def to_csc(self, *, edge_map: bool = False) -> CSCGraph:
        """Build the topology: what every part of a partition is cut from.

        Args:
          edge_map: keep the column of edge_index that each edge comes from; of merged ones the first.
        Returns:
          CSCGraph over original ids. Directed: the edges as listed, parallel ones kept. Undirected: reverses are
          added and duplicates merged; of the weights listed for one pair of nodes, in whichever direction, the
          first counts for both directions, so that weights stay symmetric. Weights keep float64 and are
          float32 where that holds every value of their type.
        """
        src, dst = (_signed(row) for row in self.edge_index)
        weights, positions = self._carried(edge_map)
        if self.undirected:
            src, dst, weights, positions = _both_directions(self, src, dst, weights, positions)
        columns = [None if column is None else checks.as_tensor(column) for column in (src, dst, weights, positions)]
        return CSCGraph.from_edge_index(
            *columns[:2], self.num_nodes, columns[2], edge_map=columns[3], weights_checked=True
        )

    def _carried(self, edge_map: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Weights as the topology stores them, and positions in the list, of every listed edge."""
        weights = self.edge_weight
        if weights is not None:
            weights = np.asarray(weights, dtype=np.result_type(weights.dtype, np.float32))
        return weights, np.arange(self.edge_index.shape[1], dtype=self.edge_map_dtype()) if edge_map else None


def check_facts(facts: Any, *, unknown: bool = False) -> None:
    """Make numbers and truth values of a graph's dataclass Python's own, and refuse those that no graph has.

    Args:
      facts: has name, num_nodes, undirected, num_classes.
      unknown: num_nodes and num_classes may be None.
    Raises:
      ValueError: a name that is not text, an `undirected` that is no truth value, a number out of range.
    """
    checks.make_plain(facts)
    if not isinstance(facts.name, str):
        raise ValueError(f"name is {facts.name!r}; expected text.")
    checks.flag("undirected", facts.undirected)
    for name, least, most in (("num_nodes", 1, MAX_NODES), ("num_classes", 0, None)):
        value = getattr(facts, name)
        if value is not None or not unknown:
            object.__setattr__(facts, name, checks.whole(name, value, least, most))


def read_npy_graph(path: str | Path, task: str | None = None) -> RawGraph:
    """Map and check a directory of format `npy`.

    Args:
      path: the directory.
      task: what the labels are for, where meta.json does not state it.
    Returns:
      RawGraph; arrays are memory-mapped.
    Raises:
      ValueError: a file is missing or unreadable, or a value is not what the format asks for: one line with
        the value found, the value expected and what to do.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; pass the directory that holds meta.json.")
    meta = read_meta(directory)
    meta["task"] = agreed_task(str(directory / META_NAME), meta["task"], task)
    check_npy_names(directory)
    edge_index = open_npy(directory / "edge_index.npy")

    def locate(column: str) -> str:
        return str(directory / f"{column}.npy")

    return checked_graph(meta, edge_index, read_columns(directory), locate=locate)


def read_object(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
      file: the file.
      keys: those it should have, for messages; they are not checked.
    Raises:
      ValueError: the file is missing or holds something else.
    """
    expected = f"expected an object with {', '.join(keys)}"
    if not file.is_file():
        raise ValueError(f"{file} is missing; {expected}.")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); write it again.") from error
    if not isinstance(document, dict):
        raise ValueError(f"{file} holds a {type(document).__name__}; {expected}.")
    return document


def read_meta(directory: Path) -> dict:
    """Read meta.json.

    Returns:
      {"name": str, "num_nodes": int, "undirected": bool, "num_classes": int | None, "task": str | None, "node_types":
      as written there, see `checked_graph`}; other keys are left out.
    Raises:
      ValueError: the file or a key is missing, or a value has the wrong type.
    """
    file = directory / META_NAME
    meta = read_object(file, ("name", "num_nodes", "undirected"))
    for key, kind in (("name", str), ("num_nodes", int), ("undirected", bool)):
        value = meta.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = f"{key} is {json.dumps(value)}" if key in meta else f"there is no {key}"
            raise ValueError(f"{file}: {found}; expected {key} as {kind.__name__}; correct the file.")
    classes = meta.get("num_classes")
    if classes is not None and (not isinstance(classes, int) or isinstance(classes, bool) or classes < 0):
        raise ValueError(f"{file}: num_classes is {json.dumps(classes)}; expected an integer >= 0, or leave it out.")
    if not 1 <= meta["num_nodes"] <= MAX_NODES:
        raise ValueError(f"{file}: num_nodes is {meta['num_nodes']}; expected 1 to {MAX_NODES}.")
    check_task(str(file), meta.get("task"))
    return {key: meta.get(key) for key in ("name", "num_nodes", "undirected", "num_classes", "task", "node_types")}


def check_npy_names(directory: Path, *, edges: bool = True, noted: bool = True) -> None:
    """Refuse a directory with a file whose name is almost that of a column.

    Args:
      directory: the input.
      edges: edge_index.npy is one of them; else the edges are in a list of another format.
      noted: see `check_names`.
    Raises:
      ValueError: such a file.
    """
    check_names(directory, (*(("edge_index",) if edges else ()), *COLUMNS, *_UNSTORED), noted=noted)


def read_columns(directory: Path) -> dict[str, np.ndarray]:
    """Map the optional .npy files of an input directory: {column: array} of those that exist.

    Raises:
      ValueError: a file is unreadable, or is a symbolic link that leads nowhere.
    """
    for name in _UNSTORED:
        if (directory / f"{name}.npy").exists():
            logger.info("%s.npy is left out: partitions of format version 1 hold no edge types", directory / name)
    files = {name: directory / f"{name}.npy" for name in COLUMNS}
    return {name: open_npy(file) for name, file in files.items() if os.path.lexists(file)}


def checked_graph(
    meta: dict, edge_index: np.ndarray | ListedRows, columns: dict[str, np.ndarray], *, locate: Callable[[str], str]
) -> RawGraph:
    """Check a graph's arrays against each other and combine them.

    Args:
      meta: as from `read_meta`, "task" may be missing; "node_types" is a list of different names; without it types are
        called "0", "1", ...; "counted_by_ids" as in RawGraph.
      edge_index: [2, E], or a graph's rows.
      columns: as from `read_columns`, and "input_ids"; what the graph does not have is left out.
      locate: returns where a column comes from, for messages ("graph/labels.npy").
    Returns:
      RawGraph.
    Raises:
      ValueError: the first thing found wrong.
    """
    num_nodes = meta["num_nodes"]
    _check_edges(locate("edge_index"), edge_index, num_nodes)
    weights, features = columns.get("edge_weight"), columns.get("features")
    if weights is not None:
        _check_weights(locate("edge_weight"), weights, edge_index.shape[1])
    nonfinite = 0
    if features is not None:
        _check_features(locate("features"), features, num_nodes)
        nonfinite = _count_nonfinite(locate("features"), features)
    label_fields = _checked_labels(locate("labels"), columns.get("labels"), meta)
    splits = {}
    for split in SPLITS:
        column = f"{split}_idx"
        if column in columns:
            splits[split] = checked_split(locate(column), columns[column], num_nodes)
    check_overlaps(splits, locate)
    if "train" in splits and not splits["train"].size:
        logger.warning("%s lists no node: nothing can be trained on this graph", locate("train_idx"))
    check_labelled(splits, label_fields, locate)
    node_type = columns.get("node_type")
    node_types = _checked_types(locate("node_type"), node_type, meta.get("node_types"), num_nodes)
    return RawGraph(
        name=meta["name"],
        num_nodes=num_nodes,
        undirected=meta["undirected"],
        edge_index=edge_index,
        edge_weight=weights,
        features=features,
        splits=splits,
        nonfinite_features=nonfinite,
        node_types=node_types,
        node_type=node_type,
        **label_fields,
        counted_by_ids=bool(meta.get("counted_by_ids")) and features is node_type is None and not label_fields,
        input_ids=columns.get("input_ids"),
    )


def _check_edges(where: str, edge_index: np.ndarray | ListedRows, num_nodes: int) -> None:
    if isinstance(edge_index, ListedRows):
        edge_index.graph.validate()
        return
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = "; transpose it" if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(
            f"{where} has shape {edge_index.shape}; expected (2, num_edges), row 0 sources, row 1 destinations{hint}."
        )
    check_integer(where, edge_index)
    for end, ids in zip(("source", "destination"), edge_index, strict=True):
        position = first_outside(ids, 0, num_nodes)
        if position is not None:
            raise ValueError(
                f"{where}: the {end} of edge {position} is {ids[position]}; expected 0 to {num_nodes - 1}; "
                "correct the edge or num_nodes."
            )


def _check_weights(where: str, weights: np.ndarray, num_edges: int) -> None:
    if weights.shape != (num_edges,):
        raise ValueError(f"{where} has shape {weights.shape}; expected ({num_edges},), one weight per listed edge.")
    if weights.dtype.kind not in "iuf" or weights.itemsize > 8:
        raise ValueError(f"{where} is {weights.dtype}; expected numbers of up to 64 bits; convert it.")
    for lo, hi in row_chunks(num_edges, weights.itemsize):
        bad = ~(np.isfinite(weights[lo:hi]) & (weights[lo:hi] >= 0))
        drop_pages(weights)
        if bad.any():
            position = lo + int(bad.argmax())
            raise ValueError(
                f"{where}: the weight of edge {position} is {weights[position]}; expected a finite number, 0 or more "
                "(edges are drawn in proportion to it); correct it, or leave the weights out."
            )


def _check_features(where: str, features: np.ndarray | RowSegments, num_nodes: int) -> None:
    if features.ndim != 2 or features.shape[0] != num_nodes or features.shape[1] == 0:
        raise ValueError(
            f"{where} has shape {features.shape}; expected ({num_nodes}, dim) with dim >= 1, one row per node."
        )
    if features.dtype.name not in (*FEATURE_DTYPES, *WIDE_DTYPES):
        raise ValueError(f"{where} is {features.dtype}; expected one of {', '.join(FEATURE_DTYPES)}; convert it.")


def _count_nonfinite(where: str, features: np.ndarray | RowSegments) -> int:
    """Count NaN and infinite values; warn about them, as real data has some."""
    if features.dtype.kind != "f":
        return 0
    nans = infs = rows = 0
    for lo, hi in row_chunks(len(features), features.shape[1] * features.itemsize):
        finite = np.isfinite(features[lo:hi])
        if not finite.all():
            chunk_nans = int(np.isnan(features[lo:hi]).sum())
            nans += chunk_nans
            infs += int((~finite).sum()) - chunk_nans
            rows += int((~finite.all(axis=1)).sum())
        drop_pages(features)
    if rows:
        logger.warning(
            "%s holds %d NaN and %d infinite values in %d rows, expected finite ones; continuing, "
            "but what is computed from them will not be finite either",
            *(where, nans, infs, rows),
        )
    return nans + infs


def _checked_labels(where: str, labels: np.ndarray | None, meta: dict) -> dict[str, Any]:
    """The fields of RawGraph about labels, checked: labels and num_classes, or targets and task; {} without labels."""
    task = check_task(meta["name"], meta.get("task"))
    if labels is None:
        if task in (None, CLASSIFICATION):
            return {}
        raise ValueError(f"the task is {task} but {meta['name']} has no labels; expected them in {where}.")
    single = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)
    # Floats in a single column need a task: they may be classes or not.
    labels = labels.reshape(-1) if single and task is None else class_labels(where, labels, task)
    if labels.ndim == 2:
        return {"targets": labels, "task": checked_targets(where, labels, meta["num_nodes"], task)}
    return {
        "labels": labels,
        "num_classes": _check_labels(where, labels, meta["num_nodes"], meta.get("num_classes")),
    }


def _check_labels(where: str, labels: np.ndarray, num_nodes: int, stated_classes: int | None) -> int:
    """Check the labels and return the number of classes: the stated one, else that of `count_classes`."""
    if labels.shape != (num_nodes,):
        raise ValueError(f"{where} has shape {labels.shape}; expected ({num_nodes},), one label per node.")
    if labels.dtype.kind == "f":
        raise ValueError(f"{where} is {labels.dtype}; expected an integer type for classes; {TASK_ADVICE}.")
    check_integer(where, labels)
    limit = int(np.iinfo(labels.dtype).max) + 1 if stated_classes is None else stated_classes
    position = first_outside(labels, -1, limit)
    if position is not None:
        classes = "or more" if stated_classes is None else f"to {stated_classes - 1} (num_classes is {stated_classes})"
        raise ValueError(
            f"{where}: the label of node {position} is {labels[position]}; expected -1 (unlabelled) or 0 {classes}; "
            "correct the label or num_classes."
        )
    return count_classes(where, labels) if stated_classes is None else stated_classes


def _checked_types(where: str, node_type: np.ndarray | None, stated: Any, num_nodes: int) -> tuple[str, ...]:
    """Check the nodes' types and return the types' names."""
    if stated is not None:
        strings = isinstance(stated, (list, tuple)) and all(isinstance(name, str) and name for name in stated)
        if not strings or len(set(stated)) < len(stated):
            raise ValueError(f"node_types is {_shortened(stated)}; expected a list of different names, one per type.")
        if stated and node_type is None:
            raise ValueError(
                f"node_types names {len(stated)} types but there is no node_type; give every node its type ({where}), "
                "or leave node_types out."
            )
    if node_type is None:
        return ()
    stated = stated or None
    if node_type.shape != (num_nodes,):
        raise ValueError(f"{where} has shape {node_type.shape}; expected ({num_nodes},), one type per node.")
    check_integer(where, node_type)
    limit = MAX_NODE_TYPES if stated is None else len(stated)
    position = first_outside(node_type, 0, limit)
    if position is not None:
        names = "" if stated is None else f" (node_types has {len(stated)} names)"
        raise ValueError(
            f"{where}: the type of node {position} is {node_type[position]}; expected 0 to {limit - 1}{names}; "
            "correct the type or node_types."
        )
    if stated is not None:
        return tuple(stated)
    highest = 0
    for lo, hi in row_chunks(num_nodes, node_type.itemsize):
        highest = max(highest, int(node_type[lo:hi].max()))
        drop_pages(node_type)
    return tuple(map(str, range(highest + 1)))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _signed(ids: np.ndarray) -> np.ndarray:
    """Ids in a contiguous native int32 or int64 array: the types that torch computes with. A copy only if needed."""
    dtype = np.int32 if ids.dtype.kind == "i" and ids.dtype.itemsize == 4 else np.int64
    return np.ascontiguousarray(ids, dtype=dtype)


def _both_directions(
    raw: RawGraph, src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None, positions: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Edges of the undirected graph, each pair of nodes once per direction, self-loops once; weights and positions of
    the first that was listed; of others' weights there is a warning.

    A pair is the key low * num_nodes + high, so duplicates in either direction are equal keys.
    """
    num_nodes = raw.num_nodes
    keys = np.minimum(src, dst).astype(np.int64)
    keys *= num_nodes
    keys += np.maximum(src, dst)
    carried = [weights, positions]
    if all(column is None for column in carried):
        keys.sort()
    else:
        order = np.argsort(keys, kind="stable")  # stable: the first of equal keys is the first listed
        keys, carried = keys[order], [column if column is None else column[order] for column in carried]
    first = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    if carried[0] is not None:
        say_unlike(raw.name, _count_unlike(carried[0], first))
    keys = keys[first]
    low, high = (ends.astype(src.dtype) for ends in np.divmod(keys, num_nodes))
    apart = low != high
    for number, column in enumerate(carried):
        if column is not None:
            column = column[first]
            carried[number] = np.concatenate([column, column[apart]])
    return np.concatenate([low, high[apart]]), np.concatenate([high, low[apart]]), *carried


def _count_unlike(weights: np.ndarray, first: np.ndarray) -> int:
    """How many weights are not that of the last place up to theirs where `first` is true; it is at place 0."""
    count = begin = 0
    for lo, hi in row_chunks(len(weights), 32):
        begins = np.where(first[lo:hi], np.arange(lo, hi), begin)
        np.maximum.accumulate(begins, out=begins)
        count += int(np.count_nonzero(weights[lo:hi] != weights[begins]))
        begin = int(begins[-1])
    return count
