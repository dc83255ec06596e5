"""The subcommand `fastsample-bench models`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from fastsample_dist import DistContext
from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, first_results
from fastsample_dist.bench.graphs import DEBIAN, GraphSource, load_classes, with_weights, work_folder
from fastsample_dist.bench.models import report
from fastsample_dist.bench.models.cases import CASES
from fastsample_dist.bench.models.measure import DGL, ModelsOptions, measure
from fastsample_dist.bench.models.peer import write_task
from fastsample_dist.bench.models.verify import verify
from fastsample_dist.bench.options import add_drawing, add_graph, add_model, add_verify
from fastsample_dist.bench.screen import Screen
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.interop import dgl
from fastsample_dist.pipeline.roles import Roles

QUICK = {"epochs": 1, "hidden": 16}
EXAMPLES = """examples:
  fastsample-bench models --baseline dgl --verify
  fastsample-bench models --graph rmat:17:16 --model gcn --model pinsage --ranks 2 --threads 1 --json models.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "models", help="GNNLab's four workloads: seconds per epoch, hits of the cache, accuracy, beside DGL",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train the workloads of GNNLab's evaluation (section 7.1) and, in turns, the same with DGL on the\n"
        "CPU; report seconds per epoch by part, hit rates of the feature cache, and accuracy.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub, default=DEBIAN)
    add = sub.add_argument
    add("--model", choices=CASES, action="append", default=[], help="may be repeated (default: all)")
    add("--ranks", type=cl.counts, default=(1, 2), help="numbers of ranks to start (default: 1,2)")
    add("--threads", type=cl.count, help="per rank (default: cores / most ranks, at least 1)")
    add_model(sub)
    add("--batch-size", type=cl.count, default=1000, help="seeds per step, all ranks together (default: %(default)s)")
    add("--cache-share", type=cl.share, default=0.2, help="cached rows as a share of all nodes (default: %(default)s)")
    add("--roles", metavar="S+T", help="train with S samplers and T trainers as well")
    add("--baseline", choices=(DGL,), help="the peer to run beside")
    add_verify(sub)
    add("--quick", action="store_true", help="one timed epoch with 16 hidden columns: does everything run?")
    add("--deadline-s", type=cl.seconds, default=3600.0, help="for the ranks of one run (default: %(default)g)")
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen, load_before = Screen(), os.getloadavg()[0]
    with work_folder(args.work) as work, tempfile.TemporaryDirectory(dir=work, prefix="peer-") as folder:
        options = _options(args, work)
        options.source.check(options.ranks)
        found = conditions(options.threads) | {"load_before": load_before}
        if options.has_peer:
            found[DGL] = dgl.require_dgl("--baseline dgl").__version__
        data = load_classes(options.source.parts(1, screen.progress), DistContext(LocalCommunicator()))
        screen.lines([*busy_warning(found), *report.conditions_lines(found, data, options)])
        results = first_results("models", found, args, data.manifest.name, data.manifest)
        if options.needs_weights:
            data.graph = with_weights(data.graph)
        if args.verify:
            results["verify"] = verify(
                data.graph, data.split("train"), options.cases, options.rng_seed, screen.progress
            )
            screen.lines(report.verify_lines(results["verify"]))
            if results["verify"]["failures"]:
                return 1, results
        if options.has_peer:
            write_task(data, Path(folder))
        del data
        runs = measure(options, Path(folder), screen.progress)
    screen.table(report.models_table(runs, 1 + options.epochs))
    return 0, {**results, "runs": runs}


def _options(args: argparse.Namespace, work: Path) -> ModelsOptions:
    sizes = {"epochs": args.epochs, "hidden": args.hidden} | (QUICK if args.quick else {})
    return ModelsOptions(
        source=GraphSource(args.graph, work, args.method),
        cases=tuple(CASES[name] for name in dict.fromkeys(args.model or CASES)), ranks=tuple(dict.fromkeys(args.ranks)),
        batch_size=args.batch_size, dropout=args.dropout,
        threads=args.threads or max(1, cl.usable_cores() // max(args.ranks)), cache_share=args.cache_share,
        rng_seed=args.seed, has_peer=args.baseline == DGL, roles=Roles.parse(args.roles) if args.roles else None,
        deadline_s=args.deadline_s, **sizes,
    )  # fmt: skip
