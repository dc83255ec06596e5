"""Synthetic graphs, tasks on them, and the writer of `npy` input directories.

- `rmat`: recursive-matrix power-law graph (Chakrabarti et al., SDM 2004). Every edge picks one of four quadrants per
  bit of its two ends; the edges are drawn in blocks, packed as dst * N + src, sorted and merged.
- `planted_communities`: classes that a GNN can learn from neighbours and features combined.
- `random_graph`: uniform directed edges.
- planted.py, by `python -m fastsample_dist.graph.generators planted`: communities and power-law degrees, written to
  disk at any size.
- `synthetic_task`: features, labels and splits for a graph that has none.

All randomness of the topologies comes from the raw stream of PCG64, which NumPy keeps the same across versions
(NEP 19), so a seed names the same graph everywhere. `python -m fastsample_dist.graph.generators rmat --help` writes
a graph from the command line.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.command import INTERRUPTED, Parser, one_line, sigterm_interrupts
from fastsample_dist.files import naming_file
from fastsample_dist.graph import planted_command
from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.graph.storage import SPLITS
from fastsample_dist.ops import checks

MAX_SCALE = 31  # packed edges need 2 * scale bits of an int64
# Temporaries of 8 MB, small beside the edges. Part of the recipe: it decides which raw draw an edge gets.
_BLOCK_EDGES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """A node classification task.

    Attributes:
      features: float32 [num_nodes, feature_dim].
      labels: int64 [num_nodes]; -1 = unlabelled.
      splits: {"train" | "val" | "test": int64 node ids, ascending}.
      num_classes: labels are below it.
    """

    features: np.ndarray
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    num_classes: int


def rmat(
    scale: int,
    edge_factor: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    seed: int,
    permute: bool = True,
    symmetrize: bool = True,
) -> CSCGraph:
    """Draw a recursive-matrix graph of 2**scale nodes from 2**scale * edge_factor edges.

    Args:
      scale: log2 of the number of nodes, 1 to MAX_SCALE.
      edge_factor: edges drawn per node; fewer remain, as self-loops and duplicates are removed.
      a: probability that both ends of an edge lie in the lower half, at every bit.
      b: source in the lower half, destination in the upper.
      c: source in the upper half, destination in the lower; the rest, 1 - a - b - c, has both in the upper.
      seed: names the graph.
      permute: shuffle the node ids, so that degree and id are unrelated.
      symmetrize: store every edge in both directions.
    Returns:
      CSCGraph without self-loops and duplicates, rows ascending; a good part of the nodes is isolated.
      Scale 21, edge factor 32, seed 1: 123,450,044 directed edges in half a minute and 2.4 GB.
    Raises:
      ValueError: scale, edge_factor or seed out of range, or probabilities that are negative or above 1 in sum.
    Source: Chakrabarti, Zhan, Faloutsos, "R-MAT", SDM 2004; a, b, c of the Graph500 benchmark.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"scale is {scale}; expected 1 to {MAX_SCALE} (2**scale nodes).")
    if edge_factor < 0:
        raise ValueError(f"edge_factor is {edge_factor}; expected 0 or more edges per node.")
    if min(a, b, c) < 0 or a + b + c > 1:
        raise ValueError(f"a, b, c are {a}, {b}, {c}; expected probabilities with a sum of at most 1.")
    num_nodes = 1 << scale
    stream = np.random.PCG64(checks.whole("seed", seed, 0))
    new_id = _permutation(stream, num_nodes).astype(np.int64) if permute else np.arange(num_nodes, dtype=np.int64)
    thresholds = [np.uint64(round(p * 2**32)) for p in (a, a + b, a + b + c)]
    keys = np.empty(num_nodes * edge_factor, dtype=np.int64)
    for lo in range(0, len(keys), _BLOCK_EDGES):
        block = keys[lo : lo + _BLOCK_EDGES]
        src, dst = _rmat_ends(stream, len(block), scale, thresholds)
        src, dst = new_id[src], new_id[dst]
        if symmetrize:  # one key per pair, the other direction is added once duplicates are gone
            src, dst = np.minimum(src, dst), np.maximum(src, dst)
        np.add(dst << scale, src, out=block)
    return _graph_of_keys(keys, num_nodes, symmetrize=symmetrize)


def random_graph(num_nodes: int, num_edges: int, seed: int) -> CSCGraph:
    """Draw num_edges distinct directed edges, uniform among all pairs without self-loops.

    Returns:
      CSCGraph with exactly num_edges edges, rows ascending.
    Raises:
      ValueError: num_edges is negative or above num_nodes * (num_nodes - 1), or a seed below 0.
    """
    pairs = max(0, num_nodes) * (num_nodes - 1)
    if not 0 <= num_edges <= pairs:
        raise ValueError(f"num_edges is {num_edges}; expected 0 to {pairs} for {num_nodes} nodes.")
    stream = np.random.PCG64(checks.whole("seed", seed, 0))
    drop = 2 * num_edges > pairs  # dense: draw the pairs that stay out, so that rejection stays rare
    wanted = pairs - num_edges if drop else num_edges
    chosen = np.empty(0, dtype=np.int64)
    while len(chosen) < wanted:
        chosen = _first_distinct(np.concatenate([chosen, _below(stream, wanted - len(chosen), pairs)]))
    if drop:
        chosen = np.setdiff1d(np.arange(pairs, dtype=np.int64), chosen)
    # Pair k is destination k // (N - 1) and, among the N - 1 other nodes, source number k % (N - 1).
    dst, src = np.divmod(chosen, max(1, num_nodes - 1))
    src += src >= dst
    return CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), num_nodes)


def planted_communities(
    num_nodes: int,
    num_classes: int,
    *,
    seed: int,
    feature_dim: int = 16,
    mean_degree: float = 12.0,
    homophily: float = 0.8,
    signal: float = 1.0,
) -> tuple[CSCGraph, NodeTask]:
    """Draw a symmetric graph whose nodes prefer neighbours of their own class, with a task to learn.

    Args:
      num_nodes: number of nodes; node i has class i % num_classes.
      num_classes: number of communities.
      seed: names the graph, its features and its splits.
      feature_dim: width of the features.
      mean_degree: in-degree before duplicates and self-loops are removed.
      homophily: share of the edges drawn inside a class; the others end anywhere.
      signal: length of the class centres; the noise around them has length about 1 in each direction.
    Returns:
      (graph: symmetric, no self-loops, rows ascending; task: 60 % train, 20 % val, 20 % test of all nodes).
    Raises:
      ValueError: num_classes is below 1 or above num_nodes, homophily is not a probability, or a seed below 0.
    """
    if not 1 <= num_classes <= num_nodes:
        raise ValueError(f"num_classes is {num_classes}; expected 1 to num_nodes = {num_nodes}.")
    if not 0 <= homophily <= 1:
        raise ValueError(f"homophily is {homophily}; expected a share between 0 and 1.")
    stream = np.random.PCG64(checks.whole("seed", seed, 0))
    num_drawn = round(num_nodes * mean_degree / 2)
    src, anyone = _below(stream, num_drawn, num_nodes), _below(stream, num_drawn, num_nodes)
    kind = src % num_classes
    class_size = (num_nodes - kind + num_classes - 1) // num_classes
    own = kind + num_classes * (anyone % class_size)
    dst = np.where(_uniform(stream, num_drawn) < homophily, own, anyone)
    graph = _graph_of_keys(np.minimum(src, dst) + np.maximum(src, dst) * num_nodes, num_nodes, symmetrize=True)
    rng = np.random.default_rng(seed)
    labels = np.arange(num_nodes, dtype=np.int64) % num_classes
    features = _labelled_features(labels, feature_dim, num_classes, signal, rng)
    splits = _split(rng.permutation(num_nodes), round(0.6 * num_nodes), round(0.2 * num_nodes))
    return graph, NodeTask(features=features, labels=labels, splits=splits, num_classes=num_classes)


def synthetic_task(graph: CSCGraph, feature_dim: int, num_classes: int, train_fraction: float, seed: int) -> NodeTask:
    """Make features, labels and splits for a benchmark graph.

    Labels are uniform; features are normal around a centre per class, so a loss falls but proves nothing about the
    topology. Splits come from the nodes that have an in-neighbour: training seeds without one would measure nothing.

    Args:
      graph: gives the number of nodes and which of them are isolated.
      feature_dim: width of the features.
      num_classes: number of labels.
      train_fraction: share of the connected nodes in "train"; "val" and "test" get as many each, or half
        of the rest if that is less.
      seed: names the task.
    Raises:
      ValueError: train_fraction is not between 0 and 1, feature_dim or num_classes is below 1, or seed below 0.
    """
    if not 0 < train_fraction <= 1:
        raise ValueError(f"train_fraction is {train_fraction}; expected a share above 0, at most 1.")
    if feature_dim < 1 or num_classes < 1:
        raise ValueError(f"feature_dim, num_classes are {feature_dim}, {num_classes}; expected 1 or more each.")
    rng = np.random.default_rng(checks.whole("seed", seed, 0))
    labels = rng.integers(num_classes, size=graph.num_nodes)
    features = _labelled_features(labels, feature_dim, num_classes, 1.0, rng)
    connected = np.flatnonzero(graph.in_degrees().numpy() > 0)
    num_train = round(train_fraction * len(connected))
    num_eval = min(num_train, (len(connected) - num_train) // 2)
    splits = _split(rng.permutation(connected)[: num_train + 2 * num_eval], num_train, num_eval)
    return NodeTask(features=features, labels=labels, splits=splits, num_classes=num_classes)


def write_npy_graph(
    directory: str | Path,
    graph: CSCGraph | tuple[np.ndarray, int],
    *,
    name: str,
    features: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    splits: dict[str, np.ndarray] | None = None,
    undirected: bool = False,
    arrays: dict[str, np.ndarray] | None = None,
    meta: dict[str, Any] | None = None,
) -> None:
    """Write an `npy` input directory; it appears complete or not at all.

    Args:
      directory: the new directory; its parent must exist.
      graph: CSCGraph over original ids (its weights become edge_weight.npy), or (edge_index [2, E], num_nodes).
      name: name of the graph.
      features: [num_nodes, feature_dim] or None.
      labels: integer [num_nodes], -1 = unlabelled; or None.
      splits: node ids of those of "train", "val", "test" that exist.
      undirected: meaning of the edges: each counts in both directions. A symmetric CSCGraph lists both already.
      arrays: more columns by file name without ".npy", e.g. {"edge_type": ...}.
      meta: more keys of meta.json; name, num_nodes, num_edges and undirected are set here.
    Raises:
      ValueError: the directory exists, the graph is a relabelled one, or a split has another name.
    """
    columns = dict(arrays or {})
    if isinstance(graph, CSCGraph):
        if graph.orig_ids is not None:
            raise ValueError("graph carries orig_ids, so its ids are relabelled; pass the graph over original ids.")
        num_nodes, columns["edge_index"] = graph.num_nodes, _edge_index(graph)
        if graph.weights is not None:
            columns["edge_weight"] = graph.weights.numpy()
    else:
        columns["edge_index"], num_nodes = graph
    unknown = sorted(set(splits or {}) - set(SPLITS))
    if unknown:
        raise ValueError(f"splits holds {unknown[0]!r}; expected some of {', '.join(SPLITS)}.")
    columns |= {f"{split}_idx": ids for split, ids in (splits or {}).items()}
    columns |= {key: value for key, value in (("features", features), ("labels", labels)) if value is not None}
    own = {"name": name, "num_nodes": num_nodes, "num_edges": columns["edge_index"].shape[1], "undirected": undirected}
    with new_directory(directory) as partial:
        for column, given in columns.items():
            values = np.asarray(given)
            with NpyWriter(partial / f"{column}.npy", values.dtype, values.shape) as file:
                file.append(values)
        text = json.dumps({**own, **{k: v for k, v in (meta or {}).items() if k not in own}}, indent=1)
        with naming_file(partial / "meta.json"):
            (partial / "meta.json").write_text(text + "\n", encoding="utf-8")


@contextmanager
def new_directory(directory: str | Path) -> Iterator[Path]:
    """Give the block a hidden sibling to fill; it takes its final name when the block ends without an exception.

    Args:
      directory: the final name.
    Returns:
      A context manager that yields the hidden directory.
    Raises:
      ValueError: the directory exists already, or its parent does not.
    """
    final = Path(directory).absolute()
    if final.exists():
        raise ValueError(f"{directory} exists; expected a new directory: remove it or pass another name.")
    if not final.parent.is_dir():
        raise ValueError(f"{final.parent} is not a directory; create it first.")
    partial = final.with_name(f".{final.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir()
    try:
        yield partial
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _rmat_ends(
    stream: np.random.PCG64, count: int, scale: int, thresholds: list[np.uint64]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw sources and destinations of `count` edges, highest bit first; int64 each."""
    src, dst = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for _ in range(scale):
        draw = _uint32(stream, count)
        lower_half = draw < thresholds[1]  # quadrants a, b: the source's bit is 0
        src <<= 1
        src += ~lower_half
        dst <<= 1
        dst += (lower_half & (draw >= thresholds[0])) | (draw >= thresholds[2])  # quadrants b, d
    return src, dst


def _graph_of_keys(keys: np.ndarray, num_nodes: int, *, symmetrize: bool) -> CSCGraph:
    """Graph of the edges dst * num_nodes + src, merged, without self-loops; `keys` is overwritten.

    With symmetrize every pair occurs in one direction only (src <= dst) and the other is added here.
    """
    keys.sort()
    keep = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    for lo in range(0, len(keys), _BLOCK_EDGES):
        dst, src = np.divmod(keys[lo : lo + _BLOCK_EDGES], num_nodes)
        keep[lo : lo + _BLOCK_EDGES] &= dst != src
    keys = keys[keep]
    del keep
    if symmetrize:
        both = np.empty(2 * len(keys), dtype=np.int64)
        both[: len(keys)] = keys
        for lo in range(0, len(keys), _BLOCK_EDGES):
            dst, src = np.divmod(keys[lo : lo + _BLOCK_EDGES], num_nodes)
            np.add(src * num_nodes, dst, out=both[len(keys) + lo : len(keys) + lo + len(dst)])
        keys = both
        keys.sort()
    indptr = np.searchsorted(keys, np.arange(num_nodes + 1, dtype=np.int64) * num_nodes)
    indices = np.empty(len(keys), dtype=np.int32 if id_dtype(num_nodes) == torch.int32 else np.int64)
    for lo in range(0, len(keys), _BLOCK_EDGES):
        indices[lo : lo + _BLOCK_EDGES] = keys[lo : lo + _BLOCK_EDGES] % num_nodes
    return CSCGraph(torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices))


def _edge_index(graph: CSCGraph) -> np.ndarray:
    """Edges [2, E] of a graph in the type of its indices; row 0: sources, row 1: destinations."""
    edges = np.empty((2, graph.num_edges), dtype=graph.indices.numpy().dtype)
    edges[0] = graph.indices.numpy()
    edges[1] = np.repeat(np.arange(graph.num_nodes, dtype=edges.dtype), graph.in_degrees().numpy())
    return edges


def _labelled_features(
    labels: np.ndarray, feature_dim: int, num_classes: int, signal: float, rng: np.random.Generator
) -> np.ndarray:
    """Standard normal noise around one centre of length `signal` per class; float32 [len(labels), feature_dim]."""
    centres = rng.standard_normal((num_classes, feature_dim), dtype=np.float32)
    centres *= signal / np.linalg.norm(centres, axis=1, keepdims=True)
    features = rng.standard_normal((len(labels), feature_dim), dtype=np.float32)
    for lo in range(0, len(labels), _BLOCK_EDGES):
        features[lo : lo + _BLOCK_EDGES] += centres[labels[lo : lo + _BLOCK_EDGES]]
    return features


def _split(shuffled: np.ndarray, num_train: int, num_val: int) -> dict[str, np.ndarray]:
    parts = np.split(shuffled.astype(np.int64), [num_train, num_train + num_val])
    return {split: np.sort(part) for split, part in zip(SPLITS, parts, strict=True)}


def _uint32(stream: np.random.PCG64, count: int) -> np.ndarray:
    """`count` numbers below 2**32, two from each 64-bit draw, low half first."""
    return stream.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]


def _uniform(stream: np.random.PCG64, count: int) -> np.ndarray:
    """`count` float64 in [0, 1) of 53 bits."""
    return (stream.random_raw(count) >> np.uint64(11)) * 2.0**-53


def _below(stream: np.random.PCG64, count: int, bound: int) -> np.ndarray:
    """`count` int64 below `bound`; raw draws above the largest multiple of `bound` are drawn again: no bias."""
    draws = stream.random_raw(count)
    limit = np.uint64(2**64 // bound * bound - 1)
    while (rejected := np.flatnonzero(draws > limit)).size:
        draws[rejected] = stream.random_raw(rejected.size)
    return (draws % np.uint64(bound)).astype(np.int64)


def _permutation(stream: np.random.PCG64, count: int) -> np.ndarray:
    """A uniform permutation of 0 .. count - 1: the order of `count` 64-bit draws, equal ones as they come."""
    return np.argsort(stream.random_raw(count), kind="stable")


def _first_distinct(values: np.ndarray) -> np.ndarray:
    """Distinct values in order of first appearance."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fastsample_dist.graph.generators", description="Write a synthetic graph as an npy directory."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "rmat", help="power-law graph: ids permuted, symmetrised, without duplicates and self-loops"
    )
    command.add_argument("--scale", type=int, required=True, help="log2 of the number of nodes")
    command.add_argument("--edge-factor", type=int, required=True, help="edges drawn per node")
    command.add_argument("--features", type=int, default=0, help="feature dimension; 0: topology only (default)")
    command.add_argument("--classes", type=int, default=2, help="number of labels (default %(default)s)")
    command.add_argument("--train-fraction", type=float, default=0.1, help="of the connected nodes (default 0.1)")
    command.add_argument("--seed", type=int, default=1, help="names the graph and its task (default %(default)s)")
    command.add_argument("--output", type=Path, required=True, help="new directory")
    planted_command.add_options(
        commands.add_parser("planted", help="communities and power-law degrees, of any size, within a memory limit")
    )
    return parser


def _write_rmat(args: argparse.Namespace) -> str:
    """Write the graph that the options name; returns a line about it."""
    start = time.perf_counter()
    if args.output.exists():  # found out before the work, not after
        raise ValueError(f"{args.output} exists; expected a new directory: remove it or pass another name.")
    graph = rmat(args.scale, args.edge_factor, seed=args.seed)
    columns: dict[str, Any] = {}
    meta: dict[str, Any] = {"source": f"rmat, scale {args.scale}, edge factor {args.edge_factor}, seed {args.seed}"}
    if args.features:
        task = synthetic_task(graph, args.features, args.classes, args.train_fraction, args.seed)
        columns = {"features": task.features, "labels": task.labels, "splits": task.splits}
        meta["num_classes"] = task.num_classes
    write_npy_graph(args.output, graph, name=f"rmat-{args.scale}-{args.edge_factor}", meta=meta, **columns)
    seconds = time.perf_counter() - start
    return f"{args.output}: {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, {seconds:.1f} s"


def main(argv: list[str] | None = None) -> int:
    """Write the graph that the command line asks for; 0, or 1 after one line on stderr, or 130 when interrupted."""
    args = None
    try:
        with sigterm_interrupts():
            args = _parser().parse_args(argv)
            print({"rmat": _write_rmat, "planted": planted_command.write}[args.command](args))
        return 0
    except (ValueError, OSError, MemoryError, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        left = planted_command.remains(args.output) if args is not None and args.command == "planted" else ""
        parts = ["interrupted" if interrupted else one_line(error), left]
        print(f"generators: {'; '.join(filter(None, parts))}", file=sys.stderr)
        return INTERRUPTED if interrupted else 1


if __name__ == "__main__":
    sys.exit(main())
