"""Input graphs: the `npy` directory, the checks that every input passes, and the topology built from its edges.

An `npy` directory holds meta.json {"name", "num_nodes", "undirected"[, "num_classes"][, "node_types"]}, edge_index.npy
[2, E] (row 0: sources, row 1: destinations) and, as far as the graph has them, edge_weight.npy [E], features.npy
[N, D], labels.npy [N] (-1: unlabelled), node_type.npy [N] (index into node_types), train_idx.npy, val_idx.npy and
test_idx.npy. Arrays stay memory-mapped; the checks read them in chunks. A graph that passes `checked_graph` can be used
without further questions.
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
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.npy_files import drop_pages, open_npy, row_chunks
from fastsample_dist.graph.row_segments import RowSegments
from fastsample_dist.graph.storage import FEATURE_DTYPES, SPLITS

logger = logging.getLogger(__name__)

META_NAME = "meta.json"
MAX_NODES = 3_000_000_000  # dst * num_nodes + src must fit in int64
MAX_NODE_TYPES = 1 << 16
_UNSTORED = ("edge_type",)


@dataclass(frozen=True, eq=False, kw_only=True)
class RawGraph:
    """A graph as the user gave it, checked; arrays may be memory-mapped.

    Attributes:
      name: name of the graph.
      num_nodes: N; node ids are 0 .. N - 1.
      undirected: every edge counts in both directions, whatever is listed.
      edge_index: integer [2, E]; row 0: sources, row 1: destinations.
      edge_weight: number [E] or None.
      features: [N, D] of a type in FEATURE_DTYPES, or None.
      labels: integer [N], -1: unlabelled; or None.
      num_classes: labels are below it; 0 without labels.
      splits: those of "train", "val", "test" that exist; int64 node ids, ascending.
      nonfinite_features: how many feature values are NaN or infinite.
      node_types: names of the node types; () when all nodes are of one kind.
      node_type: integer [N], index into node_types; None without types.
    """

    name: str
    num_nodes: int
    undirected: bool
    edge_index: np.ndarray
    edge_weight: np.ndarray | None = None
    features: np.ndarray | RowSegments | None = None
    labels: np.ndarray | None = None
    num_classes: int = 0
    splits: dict[str, np.ndarray] = field(default_factory=dict)
    nonfinite_features: int = 0
    node_types: tuple[str, ...] = ()
    node_type: np.ndarray | None = None

    def to_csc(self) -> CSCGraph:
        """Build the topology: what every part of a partition is cut from.

        Returns:
          CSCGraph over original ids. Directed: the edges as listed, parallel ones kept. Undirected: reverses are
          added and duplicates merged; of the weights listed for one pair of nodes, in whichever direction, the
          first counts for both directions, so that weights stay symmetric. Weights keep float64 and are
          float32 where that holds every value of their type.
        """
        src, dst = (_signed(row) for row in self.edge_index)
        weights = self.edge_weight
        if weights is not None:
            weights = np.asarray(weights, dtype=np.result_type(weights.dtype, np.float32))
        if self.undirected:
            src, dst, weights = _both_directions(src, dst, weights, self.num_nodes)
        weight_tensor = None if weights is None else torch.from_numpy(weights)
        return CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), self.num_nodes, weight_tensor)


def read_npy_graph(path: str | Path) -> RawGraph:
    """Map and check a directory of format `npy`.

    Args:
      path: the directory.
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
    edge_index = open_npy(directory / "edge_index.npy")

    def locate(column: str) -> str:
        return str(directory / f"{column}.npy")

    return checked_graph(meta, edge_index, read_columns(directory), locate=locate)


def read_object(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
      file: the file.
      keys: that it should have, for messages; they are not looked for.
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
      {"name": str, "num_nodes": int, "undirected": bool, "num_classes": int | None, "node_types": as it stands there,
      see `checked_graph`}; other keys are left out.
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
    return {key: meta.get(key) for key in ("name", "num_nodes", "undirected", "num_classes", "node_types")}


def read_columns(directory: Path) -> dict[str, np.ndarray]:
    """Map the optional .npy files of an input directory: {column: array} of those that exist.

    Raises:
      ValueError: a file is unreadable, or a symbolic link that leads nowhere.
    """
    names = ("edge_weight", "features", "labels", "node_type", *(f"{split}_idx" for split in SPLITS))
    for name in _UNSTORED:
        if (directory / f"{name}.npy").exists():
            logger.info("%s.npy is left out: partitions of format version 1 hold no edge types", directory / name)
    files = {name: directory / f"{name}.npy" for name in names}
    return {name: open_npy(file) for name, file in files.items() if os.path.lexists(file)}


def checked_graph(
    meta: dict, edge_index: np.ndarray, columns: dict[str, np.ndarray], *, locate: Callable[[str], str]
) -> RawGraph:
    """Check a graph's arrays against each other and bring them together.

    Args:
      meta: as from `read_meta`; "node_types" is a list of different names; without it types are called "0", "1", ...
      edge_index: [2, E].
      columns: as from `read_columns`; what the graph does not have is left out.
      locate: tells where a column comes from, for messages ("graph/labels.npy").
    Returns:
      RawGraph.
    Raises:
      ValueError: the first thing found wrong.
    """
    num_nodes = meta["num_nodes"]
    _check_edges(locate("edge_index"), edge_index, num_nodes)
    weights, features, labels = (columns.get(name) for name in ("edge_weight", "features", "labels"))
    if weights is not None:
        _check_weights(locate("edge_weight"), weights, edge_index.shape[1])
    nonfinite = 0
    if features is not None:
        _check_features(locate("features"), features, num_nodes)
        nonfinite = _count_nonfinite(locate("features"), features)
    num_classes = 0
    if labels is not None:
        num_classes = _check_labels(locate("labels"), labels, num_nodes, meta.get("num_classes"))
    splits = {}
    for split in SPLITS:
        column = f"{split}_idx"
        if column in columns:
            splits[split] = _checked_split(locate(column), columns[column], num_nodes)
    _check_overlaps(splits, locate)
    if labels is not None:
        _check_labelled(splits, labels, locate)
    node_type = columns.get("node_type")
    node_types = _checked_types(locate("node_type"), node_type, meta.get("node_types"), num_nodes)
    return RawGraph(
        name=meta["name"],
        num_nodes=num_nodes,
        undirected=meta["undirected"],
        edge_index=edge_index,
        edge_weight=weights,
        features=features,
        labels=labels,
        num_classes=num_classes,
        splits=splits,
        nonfinite_features=nonfinite,
        node_types=node_types,
        node_type=node_type,
    )


def _check_edges(where: str, edge_index: np.ndarray, num_nodes: int) -> None:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        hint = "; transpose it" if edge_index.ndim == 2 and edge_index.shape[1] == 2 else ""
        raise ValueError(
            f"{where} has shape {edge_index.shape}; expected (2, num_edges), row 0 sources, row 1 destinations{hint}."
        )
    _check_integer(where, edge_index)
    for end, ids in zip(("source", "destination"), edge_index, strict=True):
        position = _first_outside(ids, 0, num_nodes)
        if position is not None:
            raise ValueError(
                f"{where}: the {end} of edge {position} is {ids[position]}; expected 0 to {num_nodes - 1}; "
                "correct the edge or num_nodes."
            )


def _check_weights(where: str, weights: np.ndarray, num_edges: int) -> None:
    if weights.shape != (num_edges,):
        raise ValueError(f"{where} has shape {weights.shape}; expected ({num_edges},), one weight per listed edge.")
    if weights.dtype.kind not in "iuf":
        raise ValueError(f"{where} is {weights.dtype}; expected numbers.")
    for lo, hi in row_chunks(num_edges, weights.itemsize):
        bad = ~np.isfinite(weights[lo:hi])
        drop_pages(weights)
        if bad.any():
            position = lo + int(bad.argmax())
            raise ValueError(
                f"{where}: the weight of edge {position} is {weights[position]}; expected a finite number; correct it."
            )


def _check_features(where: str, features: np.ndarray | RowSegments, num_nodes: int) -> None:
    if features.ndim != 2 or features.shape[0] != num_nodes or features.shape[1] == 0:
        raise ValueError(
            f"{where} has shape {features.shape}; expected ({num_nodes}, dim) with dim >= 1, one row per node."
        )
    if features.dtype.name not in FEATURE_DTYPES:
        raise ValueError(f"{where} is {features.dtype}; expected one of {', '.join(FEATURE_DTYPES)}; convert it.")


def _count_nonfinite(where: str, features: np.ndarray | RowSegments) -> int:
    """Count NaN and infinite values; warn about them and go on, as real data has some."""
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
            "%s holds %d NaN and %d infinite values in %d rows, expected finite ones; going on, "
            "but what is computed from them will not be finite either",
            *(where, nans, infs, rows),
        )
    return nans + infs


def _check_labels(where: str, labels: np.ndarray, num_nodes: int, stated_classes: int | None) -> int:
    """Check the labels and return the number of classes: the stated one, else the highest label + 1."""
    if labels.shape != (num_nodes,):
        raise ValueError(f"{where} has shape {labels.shape}; expected ({num_nodes},), one label per node.")
    _check_integer(where, labels)
    limit = np.iinfo(np.int64).max if stated_classes is None else stated_classes
    position = _first_outside(labels, -1, limit)
    if position is not None:
        classes = "or more" if stated_classes is None else f"to {stated_classes - 1} (num_classes is {stated_classes})"
        raise ValueError(
            f"{where}: the label of node {position} is {labels[position]}; expected -1 (unlabelled) or 0 {classes}; "
            "correct the label or num_classes."
        )
    return int(labels.max()) + 1 if stated_classes is None else stated_classes


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
    _check_integer(where, node_type)
    limit = MAX_NODE_TYPES if stated is None else len(stated)
    position = _first_outside(node_type, 0, limit)
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


def _checked_split(where: str, ids: np.ndarray, num_nodes: int) -> np.ndarray:
    """Check one split and return it as int64, ascending."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"{where} is {ids.dtype} of shape {ids.shape}; expected a one-dimensional list of node ids "
            "(of a mask take numpy.flatnonzero)."
        )
    position = _first_outside(ids, 0, num_nodes)
    if position is not None:
        raise ValueError(f"{where}: entry {position} is {ids[position]}; expected node ids 0 to {num_nodes - 1}.")
    ids = np.sort(ids.astype(np.int64))
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise ValueError(
            f"{where} lists node {repeated[0]} more than once ({repeated.size} repeated entries in all); "
            "expected each node once; remove the repetitions (numpy.unique)."
        )
    return ids


def _check_overlaps(splits: dict[str, np.ndarray], locate: Callable[[str], str]) -> None:
    names = list(splits)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            shared = np.intersect1d(splits[first], splits[second], assume_unique=True)
            if shared.size:
                raise ValueError(
                    f"{locate(first + '_idx')} and {locate(second + '_idx')} share {shared.size} nodes, the first is "
                    f"node {shared[0]}; expected no node in two splits; take it out of one."
                )


def _check_labelled(splits: dict[str, np.ndarray], labels: np.ndarray, locate: Callable[[str], str]) -> None:
    for split, ids in splits.items():
        unlabelled = ids[labels[ids] == -1]
        if unlabelled.size and split == "train":
            raise ValueError(
                f"{locate('train_idx')} lists {unlabelled.size} nodes without a label, the first is node "
                f"{unlabelled[0]}; expected a label for every train node; label them or take them out."
            )
        if unlabelled.size:
            logger.warning("%s lists %d nodes without a label", locate(f"{split}_idx"), unlabelled.size)


def _check_integer(where: str, values: np.ndarray) -> None:
    if values.dtype.kind not in "iu":
        raise ValueError(f"{where} is {values.dtype}; expected an integer type.")


def _first_outside(values: np.ndarray, low: int, end: int) -> int | None:
    """Position of the first value outside low .. end - 1, or None."""
    for first, last in row_chunks(len(values), max(abs(stride) for stride in values.strides)):
        chunk = values[first:last]
        inside = int(chunk.min()) >= low and int(chunk.max()) < end
        if not inside:
            outside = chunk >= end
            if values.dtype.kind == "i":
                outside |= chunk < low
            return first + int(outside.argmax())
        drop_pages(values)
    return None


def _signed(ids: np.ndarray) -> np.ndarray:
    """Ids in a contiguous native int32 or int64 array: the types that torch computes with. No copy if they are."""
    dtype = np.int32 if ids.dtype.kind == "i" and ids.itemsize == 4 else np.int64
    return np.ascontiguousarray(ids, dtype=dtype)


def _both_directions(
    src: np.ndarray, dst: np.ndarray, weights: np.ndarray | None, num_nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Edges of the undirected graph, each pair of nodes once per direction, self-loops once.

    A pair is the key low * num_nodes + high, so duplicates in either direction are equal keys.
    """
    keys = np.minimum(src, dst).astype(np.int64)
    keys *= num_nodes
    keys += np.maximum(src, dst)
    if weights is None:
        keys.sort()
    else:
        order = np.argsort(keys, kind="stable")  # stable: the first of equal keys is the first listed
        keys, weights = keys[order], weights[order]
    first = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    keys = keys[first]
    low, high = (ends.astype(src.dtype) for ends in np.divmod(keys, num_nodes))
    apart = low != high
    if weights is not None:
        weights = weights[first]
        weights = np.concatenate([weights, weights[apart]])
    return np.concatenate([low, high[apart]]), np.concatenate([high, low[apart]]), weights
