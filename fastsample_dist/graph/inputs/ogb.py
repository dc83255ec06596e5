"""Node-property graphs of the Open Graph Benchmark, read through the `ogb` package (imported on use).

The directory of a data set is named as ogb names it: <root>/ogbn_arxiv holds ogbn-arxiv. ogb reads it, or loads its own
cache; NaN labels, ogb's mark of unlabelled nodes in some sets, become -1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fastsample_dist.graph.datasets import RawGraph, checked_graph
from fastsample_dist.graph.inputs import ReadOptions

_SPLIT_OF = {"train": "train_idx", "valid": "val_idx", "test": "test_idx"}
_TORCH_SWITCH = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def read_ogb(path: Path, options: ReadOptions) -> RawGraph:
    """Read a node-property data set that ogb has downloaded; a reader of format `ogb`.

    Args:
      path: the data set's directory, e.g. dataset/ogbn_arxiv.
      options: with `undirected` every edge counts in both directions; otherwise edges are as ogb delivers them.
    Returns:
      RawGraph with features, labels and ogb's standard split.
    Raises:
      ImportError: the ogb package is not installed.
      ValueError: no such directory, or a set with several node types or several labels per node.
    """
    directory = path
    name = directory.absolute().name.replace("_", "-")
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; download {name} with the ogb package first.")
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise ImportError(
            f"format ogb needs the ogb package, which is not there ({error}); pip install ogb."
        ) from error
    with _whole_pickles():
        dataset = NodePropPredDataset(name=name, root=str(directory.absolute().parent))
        split = dataset.get_idx_split()
    if dataset.is_hetero:
        raise ValueError(f"{name} has several node types; expected one; convert it to an npy directory.")
    graph, labels = dataset[0]
    if labels.ndim != 2 or labels.shape[1] != 1:
        raise ValueError(f"{name} has labels of shape {labels.shape}; expected one per node, (num_nodes, 1).")
    labels = labels[:, 0]
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels).astype(np.int64)
    columns = {"labels": labels, **{_SPLIT_OF[key]: np.asarray(ids) for key, ids in split.items()}}
    if graph.get("node_feat") is not None:
        columns["features"] = graph["node_feat"]
    meta = {
        "name": name,
        "num_nodes": int(graph["num_nodes"]),
        "undirected": bool(options.undirected),
        "num_classes": int(dataset.num_classes),
    }
    return checked_graph(meta, graph["edge_index"], columns, locate=lambda column: f"{name}: {column}")


@contextmanager
def _whole_pickles() -> Iterator[None]:
    """Let ogb 1.3 load its own cache: it calls torch.load without saying that the file holds NumPy arrays, which
    torch >= 2.6 refuses unless this variable is set."""
    before = os.environ.get(_TORCH_SWITCH)
    os.environ[_TORCH_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TORCH_SWITCH]
        else:
            os.environ[_TORCH_SWITCH] = before
