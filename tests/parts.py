"""Small partitions for the tests: a drawn graph whose feature rows and labels tell the original id."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition

FEATURE_DIM, NUM_CLASSES = 6, 5


@dataclass(frozen=True)
class DrawnGraph:
    """A graph over original ids, and its partition's directory."""

    graph: CSCGraph
    features: np.ndarray
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    path: Path


def draw_partition(
    directory: Path,
    num_parts: int,
    *,
    num_nodes: int = 240,
    num_edges: int = 3000,
    num_train: int = 101,
    feature_dtype: str = "float32",
    stored_as: str = "keep",
    seed: int = 5,
    weights: np.ndarray | None = None,
    num_types: int = 0,
) -> DrawnGraph:
    """Draw a directed graph with parallel edges and isolated nodes and cut it at random into `directory`/parts.

    `weights` [num_edges]: of the edges as they are drawn, one after another. `num_types`: node v has type
    v % 7 % num_types; 0: no types. `stored_as`: the type that features are converted to.
    """
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(0, num_nodes - 10, size=(2, num_edges))
    features = (np.arange(num_nodes)[:, None] + np.arange(FEATURE_DIM) / 8).astype(feature_dtype)
    labels = np.arange(num_nodes) % NUM_CLASSES
    shuffled = rng.permutation(num_nodes)
    splits = {
        "train": np.sort(shuffled[:num_train]),
        "val": np.sort(shuffled[num_train : num_train + 30]),
        "test": np.sort(shuffled[num_train + 30 :]),
    }
    raw = RawGraph(
        name="drawn",
        num_nodes=num_nodes,
        undirected=False,
        edge_index=edge_index,
        edge_weight=weights,
        features=features,
        labels=labels,
        num_classes=NUM_CLASSES,
        splits=splits,
        node_types=tuple(f"kind {kind}" for kind in range(num_types)),
        node_type=np.arange(num_nodes) % 7 % num_types if num_types else None,
    )
    path = directory / "parts"
    options = PartitionOptions(num_parts=num_parts, method="random", seed=seed, feature_dtype=stored_as)
    build_partition(raw, options, path)
    src, dst = torch.from_numpy(edge_index)
    listed = None if weights is None else torch.from_numpy(weights)
    graph = CSCGraph.from_edge_index(src, dst, num_nodes, listed, weights_checked=True)  # some tests want bad ones
    return DrawnGraph(graph, features, labels, splits, path)
