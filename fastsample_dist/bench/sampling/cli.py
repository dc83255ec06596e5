"""The subcommand `fastsample-bench sampling`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, first_results
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing, add_graph, add_verify
from fastsample_dist.bench.sampling import measure as sampling
from fastsample_dist.bench.sampling import report
from fastsample_dist.bench.sampling.measure import BASELINES, MIN_BATCHES, SamplingOptions
from fastsample_dist.bench.sampling.verify import verify
from fastsample_dist.bench.screen import Screen
from fastsample_dist.ops.sample_methods import METHODS

EXAMPLES = """examples:
  fastsample-bench sampling --graph rmat:21:32 --threads 1,2 --baseline dgl --baseline dgl-unfused --limit --verify
  fastsample-bench sampling --graph parts/products-4 --fanouts 15,10,5 --fanouts 25,10 --json sampling.json
  fastsample-bench sampling --graph rmat:21:32 --method weighted --baseline dgl
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "sampling", help="million sampled edges per second, beside DGL and beside the memory's own limit",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sample mini-batches with this library and its peers, in turns, on the same seeds, and report\n"
        "million sampled edges per second, the ratio to each peer, and the share of the touch limit.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub)
    add = sub.add_argument
    add("--batch-size", type=cl.count, default=1000, help="seeds per batch (default: %(default)s)")
    add(
        "--fanouts", type=cl.fanout_list, action="append",
        help="one per hop, from the seeds outwards; -1 takes all, written --fanouts=-1,5; repeat for several lists "
        "(default: 15,10,5)",
    )  # fmt: skip
    add("--threads", type=cl.counts, default=(1,), help="numbers of threads, for every sampler (default: 1)")
    add("--baseline", choices=BASELINES, action="append", default=[], help="a peer to run beside; may be repeated")
    add("--limit", action="store_true", help="measure the touch limit too")
    add("--small", action="store_true", help="time batches of 0, 1, 10 and 100 seeds too: what a call itself costs")
    add_verify(sub)
    add("--batches", type=cl.count, default=MIN_BATCHES, help=f"timed ones, at least {MIN_BATCHES} (the default)")
    add("--warmup", type=cl.count, default=5, metavar="N", help="batches before them (default: %(default)s)")
    add("--method", choices=METHODS, default="uniform", help="(default: %(default)s)")
    add("--replace", action="store_true", help="draw with replacement")
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen = Screen()
    load_before = os.getloadavg()[0]
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check_topology()
        peers = sampling.check_baselines(options)
        graph = sampling.load_graph(options, screen.progress)
    batches = sampling.draw_batches(graph, options)
    found = conditions(max(options.threads)) | {"load_before": load_before, "peers": peers}
    del found["threads_per_rank"]  # each run states its own
    screen.lines([*busy_warning(found), *report.conditions_lines(found, graph, options)])
    results = first_results("sampling", found, args, options.source.name, graph)
    if args.verify:
        results["verify"] = verify(graph, batches, options, screen.progress)
        screen.lines(report.verify_lines(results["verify"]))
        if not results["verify"]["passed"]:
            return 1, results
    runs = sampling.measure(graph, batches, options, screen.progress)
    ratios = sampling.ratio_summary(runs)
    screen.table(report.rates_table(runs, options))
    if options.limit:
        screen.table(report.limits_table(runs))
    if options.small:
        results["small"] = sampling.measure_few_seeds(graph, batches, options)
        screen.table(report.small_table(results["small"], options))
    screen.lines(report.summary_lines(runs, ratios))
    return 0, {**results, "runs": runs, "ratios": ratios}


def _options(args: argparse.Namespace, work: Path) -> SamplingOptions:
    return SamplingOptions(
        source=GraphSource(args.graph, work), fanouts=tuple(dict.fromkeys(args.fanouts or [(15, 10, 5)])),
        threads=tuple(dict.fromkeys(args.threads)), batch_size=args.batch_size, batches=args.batches,
        warmup=args.warmup, rng_seed=args.seed, method=args.method, replace=args.replace,
        baselines=tuple(dict.fromkeys(args.baseline)), limit=args.limit, small=args.small,
    )  # fmt: skip
