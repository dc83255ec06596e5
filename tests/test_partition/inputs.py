"""Small drawn graphs for the partition tests, as RawGraph or as an input directory."""

from pathlib import Path

import numpy as np

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.generators import write_npy_graph

NUM_NODES, FEATURE_DIM, NUM_CLASSES = 60, 3, 4


def draw_raw(
    *, undirected: bool, weighted: bool = False, num_nodes: int = NUM_NODES, num_train: int = 23, seed: int = 0
) -> RawGraph:
    """A graph with communities, parallel edges, self-loops and isolated nodes; feature rows tell the node."""
    rng = np.random.default_rng(seed)
    linked = num_nodes - 3  # the last nodes have no edge
    src = rng.integers(0, linked, 4 * num_nodes)
    near = np.clip(src + rng.integers(-4, 5, len(src)), 0, linked - 1)
    dst = np.where(rng.random(len(src)) < 0.8, near, rng.integers(0, linked, len(src)))
    shuffled = rng.permutation(num_nodes)
    num_val = (num_nodes - num_train) // 2
    return RawGraph(
        name="drawn",
        num_nodes=num_nodes,
        undirected=undirected,
        edge_index=np.stack([src, dst]),
        edge_weight=np.arange(len(src), dtype=np.float32) if weighted else None,
        features=(np.arange(num_nodes)[:, None] * 10 + np.arange(FEATURE_DIM)).astype(np.float32),
        labels=np.where(np.arange(num_nodes) % 7 == 6, -1, np.arange(num_nodes) % NUM_CLASSES).astype(np.int8),
        num_classes=NUM_CLASSES,
        splits={
            "train": np.sort(shuffled[:num_train]),
            "val": np.sort(shuffled[num_train : num_train + num_val]),
            "test": np.sort(shuffled[num_train + num_val :]),
        },
    )


def write_input(path: Path, raw: RawGraph | None = None) -> Path:
    """Write a graph as an input directory; every node labelled, so that any split is legal."""
    raw = raw or draw_raw(undirected=True)
    columns = {"edge_weight": raw.edge_weight, "node_type": raw.node_type}
    write_npy_graph(
        path,
        (raw.edge_index, raw.num_nodes),
        name=raw.name,
        features=raw.features,
        labels=np.maximum(raw.labels, 0),
        splits=raw.splits,
        undirected=raw.undirected,
        arrays={name: values for name, values in columns.items() if values is not None},
        meta={"node_types": raw.node_types},
    )
    return path


def listed_edges(raw: RawGraph) -> list[tuple[int, int]]:
    """The edges that the topology must hold, sorted: (source, destination) by original ids."""
    edges = list(zip(*raw.edge_index.tolist(), strict=True))
    if raw.undirected:
        edges = list({*edges, *((dst, src) for src, dst in edges)})
    return sorted(edges)


def cut_of(edges: list[tuple[int, int]], parts: np.ndarray) -> int:
    """Edges between different parts, one by one."""
    return sum(parts[src] != parts[dst] for src, dst in edges)
