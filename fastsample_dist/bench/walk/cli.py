"""The subcommand `fastsample-bench walk`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, first_results
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing, add_graph, add_verify
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.screen import Screen
from fastsample_dist.bench.walk import measure as walk
from fastsample_dist.bench.walk import report
from fastsample_dist.bench.walk.cases import CASES
from fastsample_dist.bench.walk.peers import THUNDERRW, check_packages
from fastsample_dist.bench.walk.verify import verify
from fastsample_dist.sampling.transit.engine import SCHEDULES

EXAMPLES = """examples:
  fastsample-bench walk --graph rmat:21:32 --threads 1,2 --limit --verify --baseline thunderrw=build/random_walk
  fastsample-bench walk --graph parts/products-4 --app deepwalk --app node2vec --baseline dgl --json walk.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "walk", help="million steps of random walks per second, beside ThunderRW, DGL and PyG",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Walk with this library and its peers, in turns, from the same nodes, and report million steps\n"
        "per second, the ratio to each peer as it comes and on huge pages, and the share of the touch limit.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub)
    add = sub.add_argument
    add("--app", choices=CASES, action="append", default=[], help="may be repeated (default: all)")
    add("--threads", type=cl.counts, default=(1,), help="numbers of threads, for everyone (default: 1)")
    add("--schedule", choices=SCHEDULES, action="append", default=[], help="of our engine; may be repeated")
    add("--length", type=cl.count, default=80, help="steps of a walk (default: %(default)s)")
    add("--walks", type=cl.count, default=1 << 18, help="most walks of a trial (default: %(default)s)")
    add("--batch-size", type=cl.count, default=1 << 14, help="walks per call (default: %(default)s)")
    add("--trials", type=cl.count, default=5, help="runs of every contestant (default: %(default)s)")
    add(
        "--baseline", action="append", default=[], metavar="PEER",
        help="dgl, pyg, or thunderrw=DIR with its programs; may be repeated; each runs as it comes and on huge pages",
    )  # fmt: skip
    add("--own", action="store_true", help="the walks as a user's applications too, compiled by Numba (extra [apps])")
    add("--limit", action="store_true", help="measure the touch limit too")
    add_verify(sub)
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen = Screen()
    found = conditions(max(args.threads))
    del found["threads_per_rank"]  # each run states its own
    with work_folder(args.work) as work, tempfile.TemporaryDirectory(dir=work, prefix="peers-") as folder:
        options = _options(args, work)
        options.source.check_topology()
        check_packages(options.baselines, options.cases)
        graph = walk.load_graph(options, screen.progress)
        screen.lines([*busy_warning(found), *report.conditions_lines(found, graph, options)])
        results = first_results("walk", found, args, options.source.name, graph)
        if args.verify:
            results["verify"] = verify(graph, options, screen.progress)
            screen.lines(report.verify_lines(results["verify"]))
            if results["verify"]["failures"]:
                return 1, results
        runs = walk.measure(graph, options, Path(folder), screen.progress)
    screen.table(report.rates_table(runs))
    screen.lines(report.summary_lines(runs))
    return 0, {**results, "runs": runs}


def _options(args: argparse.Namespace, work: Path) -> walk.WalkOptions:
    return walk.WalkOptions(
        source=GraphSource(args.graph, work), cases=tuple(CASES[name] for name in dict.fromkeys(args.app or CASES)),
        threads=tuple(dict.fromkeys(args.threads)), schedules=tuple(dict.fromkeys(args.schedule or ["auto"])),
        length=args.length, walks=args.walks, batch=args.batch_size, trials=args.trials, rng_seed=args.seed,
        baselines=tuple(dict.fromkeys(Baseline.parse(text, THUNDERRW) for text in args.baseline)), own=args.own,
        limit=args.limit,
    )  # fmt: skip
