"""Accuracy of GraphSAGE trained on subgraphs, beside neighbour sampling, and against seconds.

    python benchmarks/subgraph_accuracy.py --graph debian=PARTS1,PARTS2 --graph amazon=PARTS1 \
        [--seeds 0,1,2] [--only NAME] [--keep DIR] [--svg FILE] [--json FILE]

PARTS1 and PARTS2 are partitions of one graph for one rank and two (fastsample-partition); runs on two ranks are left
out where PARTS2 is not given, and take the first of several seeds. Every run is `fastsample-train`, one thread per
rank: GraphSAGE of 3 layers, hidden 256, dropout 0.5, Adam with lr 0.006, evaluated after every epoch with all
neighbours, which is not in the seconds. --keep keeps the report of every run, and takes it from there when it is asked
for again, so that a table can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.bench.conditions import conditions
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.files import write_text
from fastsample_dist.page import BLUE, GREY, ORANGE, legend_above, new_figure, require_matplotlib, svg
from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import last_line, run_process

MODEL = ("--layers=3", "--hidden=256", "--dropout=0.5", "--lr=0.006", "--eval=full", "--threads=1")
FRONTIER = ("--sampler=frontier", "--budget=8000", "--frontier-size=1000")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to train.

    Attributes:
      name: in the table.
      options: of fastsample-train.
      ranks: that train; a step has as many subgraphs, or 1000 seeds in all. (Twice the subgraphs a step make half the
        steps an epoch: on two ranks twice the epochs are as many steps.)
      epochs: by graph.
      every_seed: all seeds, else the first one.
      colour, line: in the plot.
    """

    name: str
    options: tuple[str, ...]
    ranks: int
    epochs: dict[str, int]
    every_seed: bool
    colour: str
    line: str


def neighbours(ranks: int) -> tuple[str, ...]:
    """Options of neighbour sampling with 1000 seeds a step."""
    return ("--fanouts=15,10,5", f"--batch-size={1000 // ranks}")


SUBGRAPH_EPOCHS = {"debian": 30, "amazon": 100}  # 3 subgraphs are an epoch of amazon-computers
ROWS = (
    Row(
        name="frontier, ratio weights", options=(*FRONTIER, "--weights=ratio"), ranks=1, epochs=SUBGRAPH_EPOCHS,
        every_seed=True, colour=BLUE, line="-",
    ),
    Row(
        name="frontier, no weights", options=(*FRONTIER, "--weights=none"), ranks=1, epochs=SUBGRAPH_EPOCHS,
        every_seed=True, colour=GREY, line="-",
    ),
    Row(
        name="neighbours 15,10,5", options=neighbours(1), ranks=1, epochs={"debian": 10, "amazon": 20},
        every_seed=False, colour=ORANGE, line="-",
    ),
    Row(
        name="frontier, ratio weights", options=(*FRONTIER, "--weights=ratio"), ranks=2, epochs={"debian": 60},
        every_seed=False, colour=BLUE, line="--",
    ),
    Row(
        name="neighbours 15,10,5", options=neighbours(2), ranks=2, epochs={"debian": 10}, every_seed=False,
        colour=ORANGE, line="--",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the runs of a row found: a report of fastsample-train per seed."""

    row: Row
    graph: str
    reports: list[dict]

    def mean(self, name: str) -> float:
        """Of "val_acc" or "test_acc" after the last epoch."""
        return statistics.mean(report[name] for report in self.reports)

    def per_epoch(self, name: str) -> float:
        """Median of one of the seconds of an epoch."""
        return statistics.median(epoch[name] for report in self.reports for epoch in report["epochs"])


def train(row: Row, graph: str, parts: Path, seed: int, keep: Path) -> dict:
    """The report of one run, made or found in `keep`.

    Raises:
      RuntimeError: the run failed; with its last line.
    """
    words = "-".join(name.strip(",").replace(" ", "_") for name in row.name.split(", "))
    report = keep / f"{graph}-{words}-{row.ranks}-{seed}.json"
    if not report.exists():
        options = (f"--data={parts}", f"--epochs={row.epochs[graph]}", f"--seed={seed}", *MODEL, *row.options)
        start = [sys.executable, "-m", "fastsample_dist.train"]
        if row.ranks > 1:
            start[2:3] = ["torch.distributed.run", "--standalone", f"--nproc-per-node={row.ranks}", "-m", start[2]]
        done = run_process([*start, *options, f"--json={report}"], env=own_environment())
        if done.returncode != 0:
            raise RuntimeError(f"{row.name} on {graph}, seed {seed} ended with {done.returncode}: {last_line(done)}")
    found = json.loads(report.read_text(encoding="utf-8"))
    print(f"{graph}, {row.name}, {row.ranks} rank(s), seed {seed}: test {found['test_acc']:.4f}", flush=True)
    return found


def table(trained: Sequence[Trained]) -> str:
    """Markdown."""
    lines = [
        "| graph | trained with | ranks | epochs | steps | val | test | test, lowest to highest (seeds) | s an epoch "
        "| sampling |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in trained:
        tests = [report["test_acc"] for report in one.reports]
        seconds, sampling = one.per_epoch("seconds"), one.per_epoch("sample_s")
        lines.append(
            f"| {one.graph} | {one.row.name} | {one.row.ranks} | {one.row.epochs[one.graph]} | "
            f"{one.reports[0]['steps']} | {one.mean('val_acc'):.4f} | {one.mean('test_acc'):.4f} | "
            f"{min(tests):.4f} - {max(tests):.4f} ({len(tests)}) | {seconds:.2f} | {sampling / seconds:.1%} |"
        )
    return "\n".join(lines)


def plot(trained: Sequence[Trained]) -> str:
    """Accuracy on validation nodes against the seconds of training, the first seed of every row, as SVG."""
    graphs = list(dict.fromkeys(one.graph for one in trained))
    figure, axes = new_figure(len(graphs))
    for ax, graph in zip(axes, graphs, strict=True):
        for one in trained:
            if one.graph != graph:
                continue
            seconds, values, so_far = [], [], 0.0
            for epoch in one.reports[0]["epochs"]:
                so_far += epoch["seconds"]
                seconds.append(so_far)
                values.append(epoch["val_acc"])
            label = f"{one.row.name}, {one.row.ranks} rank(s)"
            ax.plot(seconds, values, one.row.line, color=one.row.colour, label=label)
        ax.set_xlabel(f"{graph}: seconds of training")
        ax.set_ylabel("accuracy, validation nodes")
        legend_above(ax, 1)
    return svg(figure, "accuracy against seconds")


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Train, print the table; returns (exit status, figures for --json)."""
    if args.svg is not None:
        require_matplotlib("--svg", "--json")
    seeds = [int(text) for text in args.seeds.split(",")]
    graphs = dict(text.split("=", 1) for text in args.graph)
    unknown = [name for name in graphs if name not in SUBGRAPH_EPOCHS]
    if unknown:
        raise ValueError(f"--graph names {unknown[0]!r}; expected {' or '.join(SUBGRAPH_EPOCHS)}.")
    trained = []
    with tempfile.TemporaryDirectory() as folder:
        keep = args.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        for graph, partitions in graphs.items():
            parts = dict(enumerate(map(Path, partitions.split(",")), start=1))
            for row in ROWS:
                if graph in row.epochs and row.ranks in parts and (args.only is None or args.only in row.name):
                    own = seeds if row.every_seed else seeds[:1]
                    reports = [train(row, graph, parts[row.ranks], seed, keep) for seed in own]
                    trained.append(Trained(row=row, graph=graph, reports=reports))
    print(f"\n{table(trained)}")
    if args.svg is not None:
        write_text(args.svg, plot(trained))
    rows = [
        {"graph": one.graph, "name": one.row.name, "ranks": one.row.ranks, "reports": one.reports} for one in trained
    ]
    return 0, {"conditions": conditions(1), "rows": rows}


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="subgraph_accuracy.py", description=__doc__.splitlines()[0])
    parser.add_argument("--graph", action="append", required=True, metavar="NAME=PARTS1[,PARTS2]")
    parser.add_argument("--seeds", default="0,1,2", help="(default: %(default)s)")
    parser.add_argument("--only", metavar="NAME", help="rows whose name has this in it")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="keeps the reports of the runs (default: they are not)"
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write accuracy against seconds here")
    add_json(parser, "write all figures here")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))
