"""Seconds per epoch of PyTorch Geometric's GraphSAGE, fed by PyG's own loader or by GraphLearn-for-PyTorch's.

    torchrun --nproc-per-node 2 benchmarks/pyg_epoch.py --data parts-1 [--epochs 6] [--json FILE]
    torchrun --nproc-per-node 2 benchmarks/pyg_epoch.py --data parts-2 --loader graphlearn [--split-topology]

Every rank trains torch_geometric's GraphSAGE under DistributedDataParallel; layers are trimmed to what the seeds still
need, as PyG recommends. What --loader gives it:
  pyg         NeighborLoader (pyg-lib, or torch_sparse) on a graph that one machine holds: every rank takes its share of
              the training nodes and gathers features. `parts-1` is a partition into one part: its files are mapped, so
              that the ranks share one copy of the features.
  graphlearn  GraphLearn's DistNeighborLoader on the parts of a distributed run, one rank each; it samples and fetches
              features by RPC between the ranks (benchmarks/pyg_batches.py).
Both draw for a node once, at the hop that first reaches it, so their batches have fewer edges than message flow graphs
of the same fanouts; --count-mfgs counts those too, which costs memory.

Times: sample (the loader's next batch; graphlearn's has its features), fetch (features and labels), compute (forward,
backward with the all_reduce, optimizer); medians of the epochs after the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from pyg_batches import GraphLearnBatches, NeighborBatches
from torch import Tensor, nn

from fastsample_dist.bench.conditions import conditions
from fastsample_dist.command import Parser, add_json, count, fanout_list, run_command
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import pyg
from fastsample_dist.ops import checks
from fastsample_dist.sampling.neighbor import NeighborSampler

PARTS = ("sample", "fetch", "compute")
LOADERS = {"pyg": NeighborBatches, "graphlearn": GraphLearnBatches}


class Rank:
    """One process's share of the training.

    Args:
      args: of the command line.
      batches: of this rank.
      world_size: how many processes there are.
    """

    def __init__(self, args: argparse.Namespace, batches: NeighborBatches | GraphLearnBatches, world_size: int) -> None:
        self.batches = batches
        torch.manual_seed(args.seed)
        model = pyg.graph_sage(batches.feature_dim, args.hidden, batches.num_classes, len(args.fanouts), args.dropout)
        self.model = nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.006)

    def run_epoch(self) -> dict[str, float]:
        """Train on the rank's batches; seconds of the epoch and of its parts, sizes of the batches, the last loss."""
        found = dict.fromkeys((*PARTS, "edges", "inputs"), 0)
        begin_s = last_s = time.perf_counter()

        def lap(name: str) -> None:
            nonlocal last_s
            now_s = time.perf_counter()
            found[name] += now_s - last_s
            last_s = now_s

        for batch in islice(self.batches.loader, self.batches.steps):
            lap("sample")
            features, labels = self.batches.rows(batch)
            lap("fetch")
            scores = self.model(
                features, batch.edge_index,
                num_sampled_nodes_per_hop=[int(number) for number in batch.num_sampled_nodes],
                num_sampled_edges_per_hop=[int(number) for number in batch.num_sampled_edges],
            )  # fmt: skip
            loss = nn.functional.cross_entropy(scores[: batch.batch_size], labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            lap("compute")
            found["edges"] += batch.edge_index.shape[1]
            found["inputs"] += batch.num_nodes
        return {"epoch": last_s - begin_s, **found, "loss": loss.item()}


def count_mfgs(graph: CSCGraph, batches: Sequence[Tensor], fanouts: Sequence[int]) -> tuple[int, int, int]:
    """Edges, input nodes and rows of the first layer that this library's batches of these seeds have in all."""
    sampler, edges, inputs, rows = NeighborSampler(graph, fanouts, rng_seed=0), 0, 0, 0
    for step, seeds in enumerate(batches):
        batch = sampler.sample(seeds, step=step)
        edges += sum(mfg.num_edges for mfg in batch.mfgs)
        inputs, rows = inputs + batch.input_nodes.numel(), rows + batch.mfgs[0].num_dst
    return edges, inputs, rows


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Train, print the medians of rank 0; returns (exit status, figures for --json)."""
    checks.whole("--epochs", args.epochs, 2)
    checks.whole("--sampling-processes", args.sampling_processes, 0)
    if args.loader != "graphlearn" and (args.split_topology or args.sampling_processes):
        raise ValueError("--split-topology and --sampling-processes are GraphLearn's; pass --loader graphlearn too.")
    torch.set_num_threads(args.threads)
    reuse_freed_memory()
    rank, world_size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world_size > 1:
        dist.init_process_group("gloo")
    known, batches = conditions(args.threads), LOADERS[args.loader](args, rank, world_size)
    own = Rank(args, batches, world_size)
    epochs = [own.run_epoch() for _ in range(args.epochs)]
    batches.close()
    if world_size > 1:
        dist.destroy_process_group()
    medians = {name: statistics.median(epoch[name] for epoch in epochs[1:]) for name in epochs[0]}
    if rank != 0:
        args.json = None  # rank 0 writes it
    else:
        shown = ", ".join(f"{name} {medians[name]:.3f} s" for name in ("epoch", *PARTS))
        print(f"{args.loader}: {shown}; {medians['edges']:,.0f} edges, {medians['inputs']:,.0f} input nodes")
        if args.count_mfgs:
            edges, inputs, rows = count_mfgs(
                batches.graph, batches.seeds.split(args.batch_size)[: batches.steps], args.fanouts
            )
            print(f"message flow graphs: {edges:,} edges, {inputs:,} input nodes, {rows:,} rows of the first layer")
    return 0, {"conditions": known, "epochs": epochs, "medians": medians}


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="pyg_epoch.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="partition into one part, or one for every rank (graphlearn)"
    )
    parser.add_argument("--loader", choices=LOADERS, default="pyg")
    parser.add_argument("--split-topology", action="store_true", help="graphlearn: a rank holds its part's rows only")
    parser.add_argument(
        "--sampling-processes",
        type=int,
        default=0,
        help="graphlearn: of each rank; 0 samples when a batch is asked for",
    )
    parser.add_argument("--fanouts", type=fanout_list, default=(15, 10, 5))
    parser.add_argument("--batch-size", type=count, default=1000, help="seeds per rank and step")
    parser.add_argument("--hidden", type=count, default=256)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=6, help="the first one is a warm-up")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count-mfgs", action="store_true", help="count the message flow graphs of rank 0's seeds too")
    add_json(parser, "write all figures here")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))
