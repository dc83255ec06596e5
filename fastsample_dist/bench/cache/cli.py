"""The subcommand `fastsample-bench cache`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastsample_dist import command as cl
from fastsample_dist.bench.cache import report
from fastsample_dist.bench.cache.accesses import CacheOptions, load_run
from fastsample_dist.bench.cache.measure import measure
from fastsample_dist.bench.cache.verify import verify
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing, add_graph, add_verify
from fastsample_dist.bench.screen import Screen
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.library import num_threads
from fastsample_dist.ops.sample_methods import METHODS

EXAMPLES = """examples:
  fastsample-bench cache --graph parts
  fastsample-bench cache --graph rmat:18:16 --method weighted --shares 1,5,10 --verify --json cache.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "cache", help="hit rates of every cache policy, in percent of the best static set",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sample the epochs of a run, one process standing for the rank of every part, and count which of\n"
        "the remote rows caches of each policy and size would have held. A graph without train nodes gets a tenth\n"
        "of its connected nodes; one without weights gets weights 1 to 100 by source node where they are needed.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub)
    add = sub.add_argument
    add("--num-parts", type=cl.count, default=4, help="that a graph is cut into, by METIS (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="hop order from the seeds (default: 15,10,5)")
    add("--batch-size", type=cl.count, default=1000, help="seeds per rank and step (default: %(default)s)")
    add("--method", choices=METHODS, default="uniform", help="how neighbours are drawn (default: %(default)s)")
    add("--replace", action="store_true", help="draw with replacement")
    add("--train-share", type=cl.share, metavar="SHARE", help="so many of the train nodes, such as 0.1")
    add("--epochs", type=cl.count, default=10, help="of the run, all known to the oracle (default: %(default)s)")
    add(
        "--shares", type=cl.percentages, default=(0.01, 0.05, 0.1, 0.2, 0.4), metavar="P,P,...",
        help="cached rows in percent of all nodes (default: 1,5,10,20,40)",
    )  # fmt: skip
    add("--lookahead", type=cl.count, default=2, help="steps that a cache may know ahead (default: %(default)s)")
    add_verify(sub)
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen = Screen()
    found = conditions(num_threads())
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check_topology()
        results = {"command": "cache", "conditions": found, "options": given_options(args)}
        if args.verify:
            results["verify"] = verify(options)
            screen.lines(report.verify_lines(results["verify"]))
            if results["verify"]["failures"]:
                return 1, results
        loaded = load_run(options, screen.progress)
        screen.lines([*busy_warning(found), *report.conditions_lines(found, loaded, options)])
        measured = measure(loaded, options, screen.progress)
    screen.table(report.rates_table(measured, options))
    screen.lines(report.summary_lines(measured))
    graph = {"name": args.graph, "num_nodes": loaded.graph.num_nodes, "num_edges": loaded.graph.num_edges}
    return 0, {**results, "graph": graph, "steps_per_epoch": loaded.steps_per_epoch, **measured.to_json()}


def _options(args: argparse.Namespace, work: Path) -> CacheOptions:
    spec = SampleSpec(fanouts=args.fanouts, replace=args.replace, rng_seed=args.seed, method=args.method)
    return CacheOptions(
        source=GraphSource(args.graph, work), num_parts=args.num_parts, spec=spec, batch_size=args.batch_size,
        epochs=args.epochs, shares=args.shares, lookahead=args.lookahead, train_share=args.train_share,
    )  # fmt: skip
