"""Samplers and trainers on 8 GPUs with the stage times of the GNNLab paper: predicted, simulated, and what it reports.

    python benchmarks/roles_simulation.py [--markdown FILE] [--json FILE]

Nothing is measured: inputs are table 5 (seconds an epoch of sampling, extracting and training; GNNLab's with its larger
cache, T_SOTA's without), table 3 (train nodes) and batches of 8,000 (section 7.1). Beside them stand the answers of the
paper: the number of samplers and the epochs of table 4, and the shape of figure 15. GNNLab extracts while it trains
(section 5.2) and T_SOTA's stages add up (table 1), so factored epochs overlap and time sharing does not. An update is
over one task of every trainer (section 7.1: synchronous), and nobody switches (section 7.2).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastsample_dist.bench.roles.simulate import Simulation
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.files import write_text
from fastsample_dist.pipeline.roles import (
    EpochShape,
    Roles,
    StageTimes,
    paper_samplers,
    predict_factored,
    predict_time_sharing,
)

GPUS = 8
BATCH = 8000
TRAIN_NODES = {"PR": 197_000, "TW": 417_000, "PA": 1_200_000, "UK": 1_000_000}  # table 3


@dataclass(frozen=True)
class Workload:
    """A row of tables 5 and 4, seconds an epoch; None: out of memory.

    Attributes:
      model, data: as the paper names them.
      shared: T_SOTA's sample (G + M), extract, train.
      factored: GNNLab's sample (G + M), copy to the queue (C), extract, train.
      samplers: GNNLab's, table 4.
      epochs: T_SOTA's and GNNLab's on 8 GPUs, table 4.
    """

    model: str
    data: str
    shared: tuple[float, float, float] | None
    factored: tuple[float, float, float, float]
    samplers: int
    epochs: tuple[float | None, float]

    @property
    def tasks(self) -> int:
        """Of an epoch."""
        return math.ceil(TRAIN_NODES[self.data] / BATCH)

    @property
    def times(self) -> StageTimes:
        """Per task in GNNLab."""
        sample, copy, extract, train = (seconds / self.tasks for seconds in self.factored)
        return StageTimes(sample, extract, train, handover_s=copy)


WORKLOADS = (
    Workload("GCN", "PR", (0.30, 0.04, 1.18), (0.30, 0.09, 0.15, 1.18), 2, (0.22, 0.33)),
    Workload("GCN", "TW", (0.29, 3.68, 1.53), (0.29, 0.08, 0.76, 1.51), 2, (1.80, 0.47)),
    Workload("GCN", "PA", (0.79, 3.64, 4.00), (0.78, 0.18, 0.49, 3.82), 2, (2.46, 0.84)),
    Workload("GCN", "UK", None, (0.42, 0.14, 3.06, 3.09), 2, (None, 1.47)),
    Workload("GraphSAGE", "PR", (0.16, 0.03, 0.25), (0.16, 0.04, 0.08, 0.24), 4, (0.07, 0.11)),
    Workload("GraphSAGE", "TW", (0.12, 0.62, 0.44), (0.13, 0.03, 0.41, 0.43), 2, (0.35, 0.20)),
    Workload("GraphSAGE", "PA", (0.38, 1.42, 1.18), (0.38, 0.08, 0.28, 1.15), 2, (0.85, 0.30)),
    Workload("GraphSAGE", "UK", (0.19, 4.49, 1.08), (0.20, 0.06, 1.39, 1.01), 1, (2.01, 0.61)),
    Workload("PinSAGE", "PR", (0.16, 0.03, 1.74), (0.16, 0.04, 0.08, 1.72), 1, (0.30, 0.40)),
    Workload("PinSAGE", "TW", (0.23, 1.12, 2.60), (0.23, 0.05, 0.51, 2.52), 1, (0.98, 0.58)),
    Workload("PinSAGE", "PA", (0.54, 1.68, 6.09), (0.52, 0.09, 0.33, 6.01), 1, (1.65, 1.05)),
    Workload("PinSAGE", "UK", None, (0.52, 0.13, 3.37, 7.00), 1, (None, 1.81)),
)


def predict(work: Workload) -> dict[str, Any]:
    """One row: predictions for every number of samplers, and the paper's figures."""
    shape = EpochShape(work.tasks, fetches_ahead=True, switching=False)
    splits = {s: predict_factored(work.times, shape, s, GPUS - s) for s in range(1, GPUS)}
    best = min(splits, key=splits.__getitem__)
    simulated = Simulation(work.times, shape, Roles(best, GPUS - best)).run()
    shared_s = None
    if work.shared is not None:
        times = StageTimes(*(seconds / work.tasks for seconds in work.shared))
        shared_s = predict_time_sharing(times, EpochShape(work.tasks), GPUS)
    return {
        "model": work.model, "data": work.data, "tasks": work.tasks,
        "k": max(work.factored[2:]) / sum(work.factored[:2]),
        "rule": paper_samplers(work.times, GPUS), "paper_samplers": work.samplers, "best": best,
        "best_s": splits[best], "simulated_s": simulated, "paper_split_s": splits[work.samplers],
        "paper_s": work.epochs[1], "time_sharing_s": shared_s, "paper_time_sharing_s": work.epochs[0],
        "speedup": shared_s and shared_s / splits[best],
        "paper_speedup": work.epochs[0] and work.epochs[0] / work.epochs[1], "splits": splits,
    }  # fmt: skip


ANSWERS = (
    ("model", "model", "s"), ("data", "data", "s"), ("tasks", "tasks", "d"), ("K", "k", ".2f"),
    ("samplers, table 4", "paper_samplers", "d"), ("rule on table 5", "rule", "d"), ("least predicted", "best", "d"),
    ("epoch there", "best_s", ".3f"), ("simulated", "simulated_s", ".3f"),
    ("epoch at table 4's", "paper_split_s", ".3f"), ("measured, table 4", "paper_s", ".2f"),
)  # fmt: skip
SPEEDUPS = (
    ("model", "model", "s"), ("data", "data", "s"), ("time sharing, predicted", "time_sharing_s", ".2f"),
    ("T_SOTA, table 4", "paper_time_sharing_s", ".2f"), ("roles, predicted", "best_s", ".2f"),
    ("GNNLab, table 4", "paper_s", ".2f"), ("speedup, predicted", "speedup", ".2f"),
    ("speedup, table 4", "paper_speedup", ".2f"),
)  # fmt: skip


def table(rows: list[dict[str, Any]], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Markdown lines: a column is its title, its name in the rows, and the format of its values; None: a dash."""
    cells = [[f"{row[name]:{form}}" if row[name] is not None else "-" for _, name, form in columns] for row in rows]
    titles = [title for title, _, _ in columns]
    lines = ["| " + " | ".join(line) + " |" for line in [titles, *cells]]
    return [lines[0], "|---" * len(columns) + "|", *lines[1:]]


def figure_15() -> list[str]:
    """Predicted epochs of GCN on PA by samplers and trainers."""
    work = next(work for work in WORKLOADS if (work.model, work.data) == ("GCN", "PA"))
    shape = EpochShape(work.tasks, fetches_ahead=True, switching=False)
    rows = [
        {"samplers": s}
        | {f"{t} T": predict_factored(work.times, shape, s, t) if s + t <= GPUS else None for t in range(1, GPUS)}
        for s in (1, 2, 3)
    ]
    return table(rows, [("samplers", "samplers", "d"), *((f"{t} T", f"{t} T", ".2f") for t in range(1, GPUS))])


def page(rows: list[dict[str, Any]]) -> str:
    """The tables, for benchmarks/roles-simulation.md."""
    parts = ["### Samplers", *table(rows, ANSWERS), "", "### Speedups", *table(rows, SPEEDUPS)]
    return "\n".join([*parts, "", "### GCN on PA by GPUs", *figure_15()]) + "\n"


def make_parser() -> Parser:
    """The options."""
    parser = Parser(prog="roles_simulation.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables there, too")
    add_json(parser)
    return parser


def report(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Predict and print; returns (exit status, rows for --json)."""
    rows = [predict(work) for work in WORKLOADS]
    text = page(rows)
    print(text, end="")
    if args.markdown is not None:
        write_text(args.markdown, text)
    return 0, {"rows": rows}


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), report, None))
