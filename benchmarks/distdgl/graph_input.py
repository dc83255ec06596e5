"""Reads an npy input directory: meta.json, edge_index.npy, features.npy, labels.npy, train_idx.npy.

With "undirected": true in meta.json every edge counts in both directions: reverses are added and duplicates
are merged, by sorting the keys source * num_nodes + destination.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILES = ("meta.json", "edge_index.npy", "features.npy", "labels.npy", "train_idx.npy")
# The largest num_nodes whose keys source * num_nodes + destination fit int64.
MAX_NODES = 3_037_000_499


@dataclass(frozen=True)
class GraphInput:
    """A graph as both DGL modes need it.

    src, dst: int64 [num_edges]; features: float32 [num_nodes, feature_dim]; labels: int64 [num_nodes], -1
    where unlabelled; train_idx: int64 [num_train], ascending.
    """

    name: str
    num_nodes: int
    src: np.ndarray
    dst: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train_idx: np.ndarray

    @property
    def num_classes(self) -> int:
        """One more than the largest label."""
        return int(self.labels.max()) + 1

    def facts(self) -> dict[str, object]:
        """Sizes of the graph, for reports."""
        return {
            "name": self.name,
            "num_nodes": self.num_nodes,
            "num_edges": len(self.src),
            "feature_dim": self.features.shape[1],
            "num_classes": self.num_classes,
            "num_train": len(self.train_idx),
        }


def symmetrise(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Add every edge's reverse and merge duplicates.

    Args:
      src: int64 [num_edges]; sources.
      dst: int64 [num_edges]; destinations.
      num_nodes: ids are below it; at most MAX_NODES.
    Returns:
      (src, dst), sorted by (src, dst); a self-loop stays one edge.
    """
    if num_nodes > MAX_NODES:
        raise ValueError(f"num_nodes is {num_nodes}, expected at most {MAX_NODES} to merge duplicate edges")
    keys = np.concatenate([src * num_nodes + dst, dst * num_nodes + src])
    keys.sort()
    first = np.empty(len(keys), dtype=bool)
    first[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    keys = keys[first]
    return keys // num_nodes, keys % num_nodes


def read_graph(directory: str | Path) -> GraphInput:
    """Read and check an npy input directory.

    Raises:
      ValueError: a missing file, ids outside the graph, sizes that disagree, no or unlabelled train nodes.
    """
    root = Path(directory)
    missing = [name for name in FILES if not (root / name).is_file()]
    if missing:
        raise ValueError(f"{root} has no {', '.join(missing)}; expected a graph in npy format with {', '.join(FILES)}")
    meta = json.loads((root / "meta.json").read_text())
    num_nodes = int(meta["num_nodes"])
    edge_index = np.load(root / "edge_index.npy", mmap_mode="r")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index.npy has shape {list(edge_index.shape)}, expected [2, num_edges]")
    src, dst = edge_index[0].astype(np.int64), edge_index[1].astype(np.int64)
    labels = np.load(root / "labels.npy").astype(np.int64)
    features = np.load(root / "features.npy").astype(np.float32, copy=False)
    train_idx = np.sort(np.load(root / "train_idx.npy").astype(np.int64))
    for name, ids in (("edge_index.npy", src), ("edge_index.npy", dst), ("train_idx.npy", train_idx)):
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise ValueError(f"{name} holds ids {ids.min()}..{ids.max()}, expected 0..{num_nodes - 1}")
    for name, rows in (("features.npy", len(features)), ("labels.npy", len(labels))):
        if rows != num_nodes:
            raise ValueError(f"{name} has {rows} rows, expected num_nodes = {num_nodes}")
    if not len(train_idx) or labels[train_idx].min() < 0:
        raise ValueError("train_idx.npy is empty or names unlabelled nodes; expected labelled train nodes")
    if meta.get("undirected", False):
        src, dst = symmetrise(src, dst, num_nodes)
    return GraphInput(str(meta.get("name", root.name)), num_nodes, src, dst, features, labels, train_idx)


def fingerprint(directory: str | Path) -> dict[str, list[int]]:
    """Return size and modification time of every input file, which show whether finished partitions still fit."""
    root = Path(directory)
    stats = {name: (root / name).stat() for name in FILES if (root / name).is_file()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def count_cut_edges(src: np.ndarray, dst: np.ndarray, part_of: np.ndarray) -> int:
    """Count the edges whose two ends lie in different parts.

    Args:
      src: int64 [num_edges]; sources.
      dst: int64 [num_edges]; destinations.
      part_of: integer [num_nodes]; the part of every node.
    """
    return int(np.count_nonzero(part_of[src] != part_of[dst]))
