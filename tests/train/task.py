"""A small node classification task as a partition on disk and as the graph it was cut from; and a model for it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.generators import NodeTask, planted_communities
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.train.models import GAT, GCN, GraphSAGE, PinSAGE

KINDS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT, "pinsage": PinSAGE}
FEATURE_DIM, NUM_CLASSES = 8, 4


@dataclass(frozen=True)
class Task:
    """The graph over original ids, what is to be learnt, and the partition's directory."""

    graph: CSCGraph
    node_task: NodeTask
    path: Path

    @property
    def features(self) -> torch.Tensor:
        """float64 [num_nodes, FEATURE_DIM], by original id."""
        return torch.from_numpy(self.node_task.features).double()

    @property
    def labels(self) -> torch.Tensor:
        """int64 [num_nodes], by original id."""
        return torch.from_numpy(self.node_task.labels)


def make_task(
    directory: Path,
    num_parts: int,
    *,
    num_nodes: int = 200,
    dtype: str = "float64",
    weighted: bool = False,
    clusters: int | None = None,
) -> Task:
    """Draw communities and cut them at random into `directory`/parts; three fifths of the nodes are train nodes.

    `weighted`: edges within a community weigh 4, others 1. `clusters`: that the parts are cut into.
    """
    graph, task = planted_communities(
        num_nodes, NUM_CLASSES, seed=3, feature_dim=FEATURE_DIM, mean_degree=6, homophily=0.9, signal=2.0
    )
    dst = np.repeat(np.arange(num_nodes), graph.in_degrees().numpy())
    src = graph.indices.numpy().astype(np.int64)
    weights = np.where(task.labels[src] == task.labels[dst], 4.0, 1.0) if weighted else None
    raw = RawGraph(
        name="communities",
        num_nodes=num_nodes,
        undirected=True,
        edge_index=np.stack([src, dst]),
        edge_weight=weights,
        features=task.features.astype(dtype),
        labels=task.labels,
        num_classes=NUM_CLASSES,
        splits=task.splits,
    )
    options = PartitionOptions(num_parts=num_parts, method="random", seed=1, clusters=clusters)
    build_partition(raw, options, directory / "parts")
    return Task(graph, task, directory / "parts")


def make_targets(directory: Path, num_parts: int, kind: str) -> Path:
    """A random graph of 120 nodes with two columns of targets, functions of the features; some are missing."""
    rng = np.random.default_rng(5)
    features = rng.standard_normal((120, 6))
    targets = features[:, :2] * 2 - 1
    targets = (targets > 0).astype(np.float32) if kind == "multilabel" else targets.astype(np.float32)
    targets[rng.random(120) < 0.1, 1] = np.nan
    order = rng.permutation(120)
    raw = RawGraph(
        name=kind, num_nodes=120, undirected=True, edge_index=rng.integers(0, 120, (2, 300)), features=features,
        task=kind, targets=targets,
        splits={"train": np.sort(order[:70]), "val": np.sort(order[70:100]), "test": np.sort(order[100:])},
    )  # fmt: skip
    build_partition(
        raw, PartitionOptions(num_parts=num_parts, method="random", seed=1), directory / f"{kind}-{num_parts}"
    )
    return directory / f"{kind}-{num_parts}"


def make_model(
    kind: str, *, seed: int = 0, num_layers: int = 2, dropout: float = 0.5, **options: object
) -> torch.nn.Module:
    """A model in float64 with 16 hidden columns and freshly drawn parameters."""
    torch.manual_seed(seed)
    return KINDS[kind](FEATURE_DIM, 16, NUM_CLASSES, num_layers, dropout, **options).double()


class Centred(nn.Module):
    """Subtracts the mean over the rows of all ranks."""

    def __init__(self, comm):
        super().__init__()
        self.comm = comm

    def forward(self, rows):
        return rows - self.comm.all_reduce(rows.mean(0), purpose="mean")
