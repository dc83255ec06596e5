"""Where the processor time of one training step goes, beside its matrix products alone; one process.

    python benchmarks/compute_step.py [--scale 19] [--steps 20] [--precision fp32|bf16] [--profiler] [--json FILE]
    python benchmarks/compute_step.py --ranks-of LAUNCHER      (started by torchrun, mpirun or fastsample-launch)

The batches are drawn before the time is taken and used in turn: RMAT of edge factor 16, 3-layer GraphSAGE, hidden 256,
100 features, dropout 0.5, fanouts 15,10,5, 1000 seeds. Times are processor time of the thread (time.thread_time), so
that other work on the machine hardly shows; medians over the steps. The parts are timed around the calls of which
ops.sage_layer is made, in steps of their own; steps without those timers and the floor (bench/epoch/floor.py: the same
products, alone) are measured in turn with them. --profiler prints torch.profiler's table of the operators, which is
wall clock. The second form prints what a launcher gives its ranks: processors, session, autogroup, and a fixed number
of products in wall clock and processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastsample_dist as fsd
from fastsample_dist.bench.conditions import conditions
from fastsample_dist.bench.epoch.floor import EpochFloor
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.graph.generators import rmat, synthetic_task
from fastsample_dist.ops.layer_cores import CPU
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.models import GraphSAGE, layer_widths

NUM_FEATURES, HIDDEN, NUM_CLASSES, FANOUTS, BATCH = 100, 256, 47, [15, 10, 5], 1000
NUM_BATCHES, PRODUCTS = 4, 60
Batch = tuple[MiniBatch, Tensor, Tensor]
PARTS = {  # part of the table: the calls of which it is made
    "matrix products": [(torch, "mm"), (Tensor, "addmm_")],
    "aggregation, own rows": [(CPU, "aggregate_concat")],
    "its gradient": [(CPU, "aggregate_concat_backward")],
    "bias, activation, dropout": [(CPU, "act_dropout")],
    "their gradient, sum of the bias's": [(CPU, "act_dropout_backward")],
    "the same with the weight's product": [(CPU, "weight_gradient")],
    "loss": [(F, "cross_entropy")],
    "optimizer": [(torch.optim.Adam, "step")],
}


def draw_batches(scale: int, dtype: torch.dtype) -> list[Batch]:
    """(batch, features, labels) of the first steps of an epoch."""
    graph = rmat(scale, 16, seed=1)
    task = synthetic_task(graph, NUM_FEATURES, NUM_CLASSES, 0.1, 1)
    features, labels = torch.as_tensor(task.features), torch.as_tensor(task.labels)
    train = torch.as_tensor(task.splits["train"])
    train = train[torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))]
    sampler = fsd.NeighborSampler(graph, FANOUTS, rng_seed=0)
    drawn = [sampler.sample(seeds, step=step) for step, seeds in enumerate(train.split(BATCH)[:NUM_BATCHES])]
    return [(batch, features[batch.input_nodes].to(dtype), labels[batch.seeds]) for batch in drawn]


class Step:
    """One training step of the model on one batch after the other."""

    def __init__(self, batches: list[Batch], precision: str) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = GraphSAGE(NUM_FEATURES, HIDDEN, NUM_CLASSES, len(FANOUTS), 0.5)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=0.006)
        self._batches, self._bf16 = batches, precision == "bf16"

    def __call__(self, number: int) -> float:
        """Processor time."""
        batch, features, labels = self._batches[number % len(self._batches)]
        begin_s = time.thread_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            loss = F.cross_entropy(self.model(batch.mfgs, features).float(), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return time.thread_time() - begin_s


@contextmanager
def timed_parts(seconds: Counter[str]) -> Iterator[None]:
    """Within the block, the calls of PARTS add their processor time to `seconds`; calls within calls count outside."""
    under_way, originals = [False], []

    def timer(part: str, call: Callable) -> Callable:
        def timed(*args: Any, **named: Any) -> Any:
            if under_way[0]:
                return call(*args, **named)
            under_way[0], begin_s = True, time.thread_time()
            try:
                return call(*args, **named)
            finally:
                seconds[part] += time.thread_time() - begin_s
                under_way[0] = False

        return timed

    for part, calls in PARTS.items():
        for owner, name in calls:
            originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, timer(part, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, call in originals:
            setattr(owner, name, call)


def measure_step(args: argparse.Namespace) -> dict[str, Any]:
    """{"step_ms", "floor_ms", "faults", "parts": {part: ms}}, medians of a step."""
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    batches = draw_batches(args.scale, dtype)
    step, comm = Step(batches, args.precision), LocalCommunicator()
    floor = EpochFloor(layer_widths(NUM_FEATURES, HIDDEN, NUM_CLASSES, len(FANOUTS)), dtype, 1)
    shapes = [[mfg.num_dst for mfg in batch.mfgs] for batch, _, _ in batches]
    for number in range(2 * NUM_BATCHES):
        step(number)
    whole_s, floors_s, parts_s, faults = [], [], [], []
    for number in range(args.steps):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        whole_s.append(step(number))
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        floors_s.append(floor.measure([shapes[number % len(shapes)]], comm).floor_cpu_s)
        seconds: Counter[str] = Counter()
        with timed_parts(seconds):
            total_s = step(number)
        seconds["the rest (autograd, Python)"] = total_s - sum(seconds.values())
        parts_s.append(seconds)
    if args.profiler:
        with torch.profiler.profile() as profile:
            for number in range(NUM_BATCHES):
                step(number)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
    names = [*PARTS, "the rest (autograd, Python)"]
    return {
        "step_ms": 1e3 * statistics.median(whole_s), "floor_ms": 1e3 * statistics.median(floors_s),
        "faults": statistics.median(faults),
        "parts": {name: 1e3 * statistics.median(seconds[name] for seconds in parts_s) for name in names},
    }  # fmt: skip


def table(found: dict[str, Any], precision: str) -> str:
    """Markdown."""
    step_ms, floor_ms = found["step_ms"], found["floor_ms"]
    lines = [f"| {precision}, processor time of a step | ms | of the step |", "|---|---|---|"]
    rows = {"step": step_ms, "floor: its matrix products alone": floor_ms, **found["parts"]}
    lines += [f"| {name} | {ms:.1f} | {ms / step_ms:.0%} |" for name, ms in rows.items()]
    return "\n".join([*lines, f"step / floor {step_ms / floor_ms:.2f}; page faults a step {found['faults']:g}"])


def rank_line(launcher: str) -> str:
    """What this rank was given, and a fixed number of products in both times."""
    rank = next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ), "0")
    halves, weight = torch.full((8192, 2 * HIDDEN), 0.03), torch.full((2 * HIDDEN, HIDDEN), 0.03)
    torch.mm(halves, weight)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(PRODUCTS):
        torch.mm(halves, weight)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    autogroup = Path("/proc/self/autogroup")
    group = autogroup.read_text().split()[0] if autogroup.exists() else "none"
    return (
        f"{launcher}, rank {rank}: {PRODUCTS} products {wall_s:.2f} s wall clock, {cpu_s:.2f} s processor time; "
        f"processors {sorted(os.sched_getaffinity(0))}, session {os.getsid(0)}, autogroup {group}"
    )


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Print the table, or the line of a rank; returns (exit status, figures for --json)."""
    torch.set_num_threads(1)
    if args.ranks_of is not None:
        print(rank_line(args.ranks_of), flush=True)
        return 0, {}
    reuse_freed_memory()
    known, found = conditions(1), measure_step(args)
    print(f"commit {known['commit']}, torch {known['torch']}, {known['processor']}, load {known['load_before']:.1f}")
    print(f"RMAT {args.scale}/16, {args.steps} steps\n\n{table(found, args.precision)}")
    return 0, {"conditions": known, **found}


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="compute_step.py", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=int, default=19)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--profiler", action="store_true", help="print torch.profiler's table too")
    parser.add_argument("--ranks-of", metavar="LAUNCHER", help="only report what it gives a rank")
    add_json(parser, "write all figures here")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))
