"""Seconds of an epoch of node2vec embeddings: SkipGram on 1 and 2 ranks beside torch_geometric.nn.Node2Vec.

    fastsample-partition --input GRAPH --num-parts 1 --method metis --output parts-1      (and 2 into parts-2)
    python benchmarks/node2vec_epoch.py --parts parts-1 --parts parts-2 --json FILE

One row per partition: as many ranks as it has parts, one thread each, and PyG's model with as many threads on the same
graph. Equal on both sides: walks of an epoch and of a step, their length, p and q, columns, negatives per pair, Adam
on touched rows (PyG: SparseAdam, sparse gradients), float32. Not equal, each as its library has it:

  - pairs: PyG takes the first node of a window of --context nodes and pairs it with the others of the window; SkipGram
    pairs every position with all positions up to --window steps away, before and behind. With window = context - 1 that
    is about 2.7 times as many pairs of the same distances; --window 3 beside --context 10 makes about as many pairs.
  - PyG has one table of embeddings, SkipGram two (in, out) as word2vec; negatives are uniform in PyG.
  - PyG's own walks need pyg-lib. Where that is missing its model gets SkipGram's walks, by the function that it would
    call pyg-lib with (the report says which).

--steps steps are measured after --warmup, walking included, in --rounds rounds that alternate between the two sides;
an epoch is the median step times the steps of an epoch. `cpu` is the processor time of all ranks together, which other
work on the machine changes less than the clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastsample_dist import DistContext, DistData, SkipGram, SkipGramOptions, WalkLoader
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.sampling.transit import Node2Vec
from fastsample_dist.sampling.transit.sampler import TransitSampler
from fastsample_dist.testing import run_distributed

TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What both sides train; walk_nodes counts the nodes of a walk, as PyG's walk_length does."""

    dim: int
    walk_nodes: int
    walks_per_node: int
    walks_per_step: int
    context: int
    window: int
    negatives: int
    p: float
    q: float
    lr: float
    steps: int
    warmup: int
    rng_seed: int = 0

    @property
    def app(self) -> Node2Vec:
        """The application that makes the walks."""
        return Node2Vec(self.walk_nodes - 1, p=self.p, q=self.q)


@dataclass(frozen=True)
class Measured:
    """One process: seconds per step (clock), of the processor, steps of an epoch, pairs of a step without negatives."""

    step_s: float
    cpu_s: float
    steps_per_epoch: int
    pairs: float
    walks_by: str


def measure(steps: Iterable[Callable[[], int]], settings: Settings) -> tuple[float, float, float]:
    """(seconds, processor seconds, pairs) per step of the measured ones; a step returns its pairs."""
    running = iter(steps)
    for step in islice(running, settings.warmup):
        step()
    begin_s, cpu_s, pairs = time.perf_counter(), time.process_time(), 0
    for step in islice(running, settings.steps):
        pairs += step()
    count = settings.steps
    return (time.perf_counter() - begin_s) / count, (time.process_time() - cpu_s) / count, pairs / count


def skipgram(ctx: DistContext, parts: str, settings: Settings) -> Measured:
    """SkipGram on this rank."""
    data = DistData.load(parts, ctx)
    options = SkipGramOptions(
        dim=settings.dim, window=settings.window, negatives=settings.negatives, lr=settings.lr,
        rng_seed=settings.rng_seed,
    )  # fmt: skip
    model = SkipGram(data, options)
    batch = settings.walks_per_step // data.manifest.num_parts
    loader = WalkLoader(data, settings.app, settings.walks_per_node, batch, rng_seed=settings.rng_seed)
    steps = (lambda made=made: model.step(made)[0] for made in loader)
    return Measured(*_in_order(measure(steps, settings), len(loader)), "fastsample_dist")


def pyg(ctx: DistContext, parts: str, settings: Settings, threads: int) -> Measured:
    """PyG's model and loader in one process with so many threads."""
    from torch_geometric.nn.models import node2vec

    torch.set_num_threads(threads)
    graph = DistData.load(parts, ctx).graph
    sampler = TransitSampler(graph, settings.app, rng_seed=settings.rng_seed)

    class Model(node2vec.Node2Vec):
        """The model with SkipGram's walks, for an environment without pyg-lib."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.num_nodes, self.EPS = graph.num_nodes, 1e-15
            self.rowptr, self.col = graph.indptr, graph.indices
            self.embedding_dim, self.walk_length = settings.dim, settings.walk_nodes - 1
            self.context_size, self.walks_per_node = settings.context, settings.walks_per_node
            self.p, self.q, self.num_negative_samples = settings.p, settings.q, settings.negatives
            self.embedding = torch.nn.Embedding(graph.num_nodes, settings.dim, sparse=True)
            self.calls = 0

        def random_walk_fn(self, rowptr: Tensor, col: Tensor, start: Tensor, *_: object) -> Tensor:
            """Walks from these nodes."""
            self.calls += 1
            walks = sampler.sample(start, step=self.calls).vertices
            return torch.where(walks < 0, start.view(-1, 1), walks)  # PyG stays where a walk ends

    has_walks = bool(node2vec.WITH_PYG_LIB)
    model: Any = Model()
    if has_walks:
        dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.in_degrees())
        model = node2vec.Node2Vec(
            torch.stack([dst, graph.indices.long()]), settings.dim, settings.walk_nodes, settings.context,
            settings.walks_per_node, settings.p, settings.q, settings.negatives, graph.num_nodes, sparse=True,
        )  # fmt: skip
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=settings.lr)
    loader = model.loader(batch_size=settings.walks_per_step // settings.walks_per_node, shuffle=True)

    def step(positive: Tensor, negative: Tensor) -> int:
        optimizer.zero_grad()
        model.loss(positive, negative).backward()
        optimizer.step()
        return positive.shape[0] * (positive.shape[1] - 1)

    steps = (lambda made=made: step(*made) for made in loader)
    measured = _in_order(measure(steps, settings), len(loader))
    return Measured(*measured, "pyg-lib" if has_walks else "fastsample_dist")


def _in_order(measured: tuple[float, float, float], steps_per_epoch: int) -> tuple[float, float, int, float]:
    step_s, cpu_s, pairs = measured
    return step_s, cpu_s, steps_per_epoch, pairs


def compare(parts: str, settings: Settings, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, for as many ranks or threads as there are parts."""
    ranks = read_manifest(Path(parts)).num_parts
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(run_distributed(ranks, skipgram, TIMEOUT_S, (parts, settings), verify_exchanges=False))
        theirs += run_distributed(1, _pyg_on_one_part, TIMEOUT_S, (parts, settings, ranks), verify_exchanges=False)
    steps = ours[0][0].steps_per_epoch
    epoch_s = statistics.median(max(one.step_s for one in run) for run in ours) * steps
    cpu_s = statistics.median(sum(one.cpu_s for one in run) for run in ours) * steps
    pyg_steps = theirs[0].steps_per_epoch
    pyg_s = statistics.median(one.step_s for one in theirs) * pyg_steps
    pyg_cpu_s = statistics.median(one.cpu_s for one in theirs) * pyg_steps
    return {
        "ranks_or_threads": ranks,
        "skipgram": {"epoch_s": epoch_s, "cpu_s": cpu_s, "pairs_per_step": sum(one.pairs for one in ours[0])},
        "pyg": {
            "epoch_s": pyg_s, "cpu_s": pyg_cpu_s, "pairs_per_step": theirs[0].pairs, "walks_by": theirs[0].walks_by,
        },
        "times_as_fast": pyg_s / epoch_s, "times_as_fast_by_cpu": pyg_cpu_s / cpu_s,
    }  # fmt: skip


def _pyg_on_one_part(ctx: DistContext, parts: str, settings: Settings, threads: int) -> Measured:
    return pyg(ctx, parts, settings, threads)


def run(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Measure and print a table; (exit status, results)."""
    found = conditions(1)
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__ if name != "rng_seed"})
    rows = [compare(parts, settings, args.rounds) for parts in args.parts]
    print("| ranks / threads | SkipGram s | cpu s | pairs/step | PyG s | cpu s | pairs/step | times as fast | by cpu |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [str(row["ranks_or_threads"])]
        for side in (row["skipgram"], row["pyg"]):
            cells += [f"{side['epoch_s']:.1f}", f"{side['cpu_s']:.1f}", f"{side['pairs_per_step']:.0f}"]
        print("| " + " | ".join([*cells, f"{row['times_as_fast']:.1f}", f"{row['times_as_fast_by_cpu']:.1f}"]) + " |")
    print(f"PyG's walks are made by {rows[0]['pyg']['walks_by']}.", *busy_warning(found), sep="\n")
    return 0, {"conditions": found, "options": given_options(args), "rows": rows}


def main(argv: list[str] | None = None) -> int:
    """The command on its own arguments or given ones; returns the exit status."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", action="append", required=True, help="a partition; several for several rows")
    for name, default in (
        ("dim", 128), ("walk-nodes", 20), ("walks-per-node", 10), ("walks-per-step", 1280), ("context", 10),
        ("window", 9), ("negatives", 1), ("steps", 10), ("warmup", 2), ("rounds", 3),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, real in (("p", 1.0), ("q", 1.0), ("lr", 0.01)):
        parser.add_argument(f"--{name}", type=float, default=real)
    add_json(parser)
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
