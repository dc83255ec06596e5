"""The first layer's rows: written once and read by its mean, or read by the mean where they are stored.

    python benchmarks/first_layer.py [--scale 19] [--steps 25] [--json FILE]

Today the rows of a batch are brought together (ops.merge_rows: [num_inputs, 100] is written) and the first layer reads
them from there. `gather_aggregate` would read them where they are. Its best case is measured here with operators that
exist: all rows in one table, places known, so that reading directly is ops.aggregate on the whole table with node ids
as indices, and ops.gather_rows for the destinations' own rows. Several tables, received rows or a conversion cost more
per row read. Processor time of one thread, medians over steps in which the ways take turns; both give the same bits
where nothing is converted, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from torch import Tensor

import fastsample_dist as fsd
from fastsample_dist import ops
from fastsample_dist.bench.conditions import conditions
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.graph.generators import rmat
from fastsample_dist.sampling.mfg import MFG

NUM_FEATURES, FANOUTS, BATCH, NUM_BATCHES = 100, [15, 10, 5], 1000, 4
WAYS = ("rows written", "mean of them", "together", "read directly")


def written(table: Tensor, places: Tensor, mfg: MFG, dtype: torch.dtype) -> tuple[Tensor, float, float]:
    """([own | mean], seconds to write the rows, seconds of the layer)."""
    received = table[:0]
    begin_s = time.thread_time()
    rows = ops.merge_rows(table, received, places, dtype)
    middle_s = time.thread_time()
    both = ops.aggregate_concat(mfg.indptr, mfg.indices, rows, checked=True)
    return both, middle_s - begin_s, time.thread_time() - middle_s


def direct(table: Tensor, mfg: MFG, sources: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """([own | mean], seconds); `sources` are the rows of the table by edge."""
    begin_s = time.thread_time()
    own = ops.gather_rows(table, mfg.src_nodes[: mfg.num_dst]).to(dtype)
    mean = ops.aggregate(mfg.indptr, sources, table, reduce="mean", checked=True).to(dtype)
    seconds = time.thread_time() - begin_s
    return torch.cat([own, mean], 1), seconds


def measure_dtypes(mfgs: list[MFG], num_nodes: int, pair: tuple[torch.dtype, torch.dtype], steps: int) -> dict:
    """Milliseconds of every way; `pair` is (stored dtype, dtype of the step)."""
    stored, dtype = pair
    table = torch.randn(num_nodes, NUM_FEATURES).to(stored)
    places = [mfg.src_nodes.long() for mfg in mfgs]
    sources = [mfg.src_nodes[mfg.indices.long()] for mfg in mfgs]
    times: list[tuple[float, float, float, float]] = []
    for step in range(steps + NUM_BATCHES):
        mfg = mfgs[step % len(mfgs)]
        expected, write_s, layer_s = written(table, places[step % len(mfgs)], mfg, dtype)
        found, direct_s = direct(table, mfg, sources[step % len(mfgs)], dtype)
        assert stored != dtype or torch.equal(found, expected), "the two ways differ"
        if step >= NUM_BATCHES:
            times.append((write_s, layer_s, write_s + layer_s, direct_s))
    return {way: 1e3 * statistics.median(values) for way, values in zip(WAYS, zip(*times, strict=True), strict=True)}


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Print the table; returns (exit status, figures for --json)."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    graph = rmat(args.scale, 16, seed=1)
    seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: NUM_BATCHES * BATCH]
    sampler = fsd.NeighborSampler(graph, FANOUTS, rng_seed=0)
    mfgs = [sampler.sample(batch, step=step).mfgs[0] for step, batch in enumerate(seeds.split(BATCH))]
    known = conditions(1)
    pairs = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)]
    figures = {
        f"{str(stored)[6:]}, step in {str(dtype)[6:]}": measure_dtypes(
            mfgs, graph.num_nodes, (stored, dtype), args.steps
        )
        for stored, dtype in pairs
    }
    reads = statistics.mean((mfg.num_edges + mfg.num_dst) / mfg.num_src for mfg in mfgs)
    print(f"commit {known['commit']}, torch {known['torch']}, {known['processor']}, load {known['load_before']:.1f}")
    print(f"RMAT {args.scale}/16, {args.steps} steps; a row is read {reads:.1f} times\n")
    print("| stored rows | " + " | ".join(f"{way}, ms" for way in WAYS) + " |\n" + "|---" * 5 + "|")
    for name, row in figures.items():
        print(f"| {name} | " + " | ".join(f"{row[way]:.1f}" for way in WAYS) + " |")
    return 0, {"conditions": known, "reads_per_row": reads, "ms": figures}


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="first_layer.py", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=19)
    parser.add_argument("--steps", type=int, default=25)
    add_json(parser, "write all figures here")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))
