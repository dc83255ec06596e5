"""LADIES and FastGCN: mini-batches per second, beside their authors' definition in scipy and numpy, in one run.

    python benchmarks/layer_sampling.py --graph debian-packages=DIR --graph amazon-computers=DIR

A graph is a directory of the npy input format; one that is not there is left out, with a line. The definition is
written from the papers' algorithms as the authors' published code does its steps: slice the rows of the normalised
adjacency, squared column norms, numpy.random.choice, slice the columns, scale, normalise. Both sides make the MFGs of a
batch: the nodes of every layer and the weighted edges between them. Seconds are processor time of the calling thread,
so that other work on the machine counts little; one thread. The first batches of a run are compared with the law: the
same nodes get the same coefficients from both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

import fastsample_dist as fsd
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import MFG
from fastsample_dist.sampling.transit.sampler import TransitSampler


def adjacency(graph: fsd.CSCGraph) -> sp.csr_matrix:
    """A + I, row v holding the in-neighbours of v."""
    ones = np.ones(graph.num_edges)
    matrix = sp.csr_matrix((ones, graph.indices.numpy(), graph.indptr.numpy()), shape=(graph.num_nodes,) * 2)
    matrix.sum_duplicates()
    return (matrix + sp.identity(graph.num_nodes, format="csr")).tocsr()


class Ladies:
    """LADIES by definition (Zou et al., NeurIPS'19, algorithm 1)."""

    def __init__(self, graph: fsd.CSCGraph, sizes: tuple[int, ...]) -> None:
        matrix = adjacency(graph)
        self.rows, self.sizes = sp.diags(1.0 / np.asarray(matrix.sum(1)).ravel()) @ matrix, sizes

    def batch(self, seeds: np.ndarray, random: np.random.RandomState) -> list[sp.csr_matrix]:
        """Weighted edges of every layer, seed side first."""
        layers, nodes = [], seeds
        for size in self.sizes:
            rows = self.rows[nodes, :]
            norms = np.asarray(rows.multiply(rows).sum(0)).ravel()
            p = norms / norms.sum()
            drawn = random.choice(len(p), min(np.count_nonzero(p), size), p=p, replace=False)
            after = np.unique(np.concatenate([drawn, nodes]))
            layers.append(self.edges(nodes, after, p))
            nodes = after
        return layers

    def edges(self, nodes: np.ndarray, after: np.ndarray, p: np.ndarray) -> sp.csr_matrix:
        """P / p between two layers, rows normalised to 1."""
        scaled = self.rows[nodes, :][:, after].multiply(1.0 / p[after]).tocsr()
        return sp.diags(1.0 / np.asarray(scaled.sum(1)).ravel()) @ scaled


class Fastgcn:
    """FastGCN by definition, with replacement (Chen et al., ICLR'18, algorithm 2)."""

    def __init__(self, graph: fsd.CSCGraph, sizes: tuple[int, ...]) -> None:
        matrix = adjacency(graph)
        scale = sp.diags(1.0 / np.sqrt(np.asarray(matrix.sum(1)).ravel()))
        self.rows, self.sizes = (scale @ matrix @ scale).tocsr(), sizes
        norms = np.asarray(self.rows.multiply(self.rows).sum(0)).ravel()
        self.q = norms / norms.sum()

    def batch(self, seeds: np.ndarray, random: np.random.RandomState) -> list[sp.csr_matrix]:
        """Weighted edges of every layer, seed side first."""
        layers, nodes = [], seeds
        for size in self.sizes:
            drawn, counts = np.unique(random.choice(len(self.q), size, p=self.q), return_counts=True)
            layers.append(self.rows[nodes, :][:, drawn].multiply(counts / (self.q[drawn] * size)).tocsr())
            nodes = np.union1d(nodes, drawn)
        return layers


def compare(definition: Ladies | Fastgcn, mfgs: list[MFG], picks: list[torch.Tensor]) -> float:
    """Largest relative difference of coefficients between a batch and the definition on the same nodes."""
    worst = 0.0
    for mfg, drawn in zip(reversed(mfgs), picks, strict=True):
        src, nodes = mfg.src_nodes.numpy(), mfg.dst_nodes.numpy()
        if isinstance(definition, Ladies):
            rows = definition.rows[nodes, :]
            norms = np.asarray(rows.multiply(rows).sum(0)).ravel()
            expected = definition.edges(nodes, src, norms / norms.sum())
        else:
            counts = np.bincount(drawn.numpy(), minlength=len(definition.q))
            expected = definition.rows[nodes, :][:, src].multiply((counts / definition.q)[src] / len(drawn)).tocsr()
            expected.eliminate_zeros()
        found = sp.csr_matrix(
            (mfg.edge_weights.numpy().astype(np.float64), mfg.indices.numpy(), mfg.indptr.numpy()),
            shape=(mfg.num_dst, mfg.num_src),
        )
        found.sum_duplicates()
        difference = abs(found - expected).max() / max(abs(expected).max(), 1e-300) if expected.nnz else found.nnz
        worst = max(worst, difference)
    return worst


def seconds_per_batch(make: Callable[[int], object], batches: int, trials: int) -> float:
    """Median over trials of the processor time of a batch."""
    make(0)
    found = []
    for trial in range(trials):
        begin = time.thread_time()
        for i in range(batches):
            make(trial * batches + i + 1)
        found.append((time.thread_time() - begin) / batches)
    return statistics.median(found)


def measure(graph: fsd.CSCGraph, name: str, args: argparse.Namespace) -> dict:
    """One row of the table."""
    app, definition = {"LADIES": (transit.LADIES, Ladies), "FastGCN": (transit.FastGCN, Fastgcn)}[name]
    sizes = (args.size,) * args.layers
    theirs, random = definition(graph, sizes), np.random.RandomState(0)
    sampler = TransitSampler(graph, app(sizes), num_threads=1)
    seeds = [random.choice(graph.num_nodes, args.batch_size, replace=False) for _ in range(64)]
    roots = [torch.from_numpy(own)[None] for own in seeds]
    differences = []
    for step in range(args.verify):
        samples = sampler.sample(roots[step], step=step)
        differences.append(compare(theirs, samples.mfgs, [own[0] for own in samples.steps]))
    ours_s = seconds_per_batch(lambda i: sampler.sample(roots[i % 64], step=i).mfgs, args.batches, args.trials)
    few = max(3, args.batches // 20)
    theirs_s = seconds_per_batch(lambda i: theirs.batch(seeds[i % 64], random), few, args.trials)
    return {
        "app": name, "ours_per_s": 1 / ours_s, "definition_per_s": 1 / theirs_s, "ratio": theirs_s / ours_s,
        "largest_difference": max(differences, default=float("nan")),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", action="append", default=[], metavar="NAME=DIR", help="npy input; may be repeated")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="nodes drawn per layer")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batches", type=int, default=200, help="batches of a trial; a twentieth for the definition")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--verify", type=int, default=5, help="batches whose coefficients are compared")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    print("graph             app       batches/s  definition/s   ratio  largest difference")
    for given in args.graph:
        name, _, path = given.partition("=")
        if not Path(path, "edge_index.npy").exists():
            print(f"{name}: left out, there is no {path}/edge_index.npy")
            continue
        graph = read_npy_graph(path).to_csc()
        for app in ("LADIES", "FastGCN"):
            row = {"graph": name, **measure(graph, app, args)}
            rows.append(row)
            print(
                f"{name:17} {app:8} {row['ours_per_s']:10.0f} {row['definition_per_s']:13.1f} {row['ratio']:7.1f}  "
                f"{row['largest_difference']:.1e}",
                flush=True,
            )
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
