"""The subcommand `fastsample-bench pinsage`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.table import Table

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, first_results
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing, add_graph, add_verify
from fastsample_dist.bench.pinsage.measure import DGL, PinSAGEOptions, measure, verify
from fastsample_dist.bench.screen import Screen
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import dgl
from fastsample_dist.ops import PinSAGERule

EXAMPLES = """examples:
  fastsample-bench pinsage --graph rmat:21:16 --threads 1,2 --layers 1,3 --baseline dgl --verify
  fastsample-bench pinsage --graph debian --num-walks 10 --walk-length 2 --baseline dgl --json pinsage.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "pinsage", help="PinSAGE's neighbourhoods per second, beside DGL",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sample PinSAGE's neighbourhoods with this library and with DGL, in turns, on the same seeds, and\n"
        "report neighbourhoods per second and the ratio.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub)
    add, rule = sub.add_argument, PinSAGERule  # the class has the defaults; an object needs the compiled core
    add("--num-walks", type=cl.count, default=rule.num_walks, help="per node and hop (default: %(default)s)")
    add("--walk-length", type=cl.count, default=rule.walk_length, help="steps at most (default: %(default)s)")
    add("--num-neighbors", type=cl.count, default=rule.num_neighbors, help="that are kept (default: %(default)s)")
    add("--end-probability", type=float, default=rule.end_probability, help="after a step (default: %(default)s)")
    add("--layers", type=cl.counts, default=(1, 3), help="hops of a batch (default: 1,3)")
    add("--threads", type=cl.counts, default=(1,), help="numbers of threads, for both (default: 1)")
    add("--batch-size", type=cl.count, default=1000, help="seeds per batch (default: %(default)s)")
    add("--batches", type=cl.count, default=20, help="timed ones (default: %(default)s)")
    add("--warmup", type=cl.count, default=3, metavar="N", help="batches before them (default: %(default)s)")
    add("--baseline", choices=(DGL,), help="the peer to run beside")
    add_verify(sub)
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen, found = Screen(), conditions(max(args.threads))
    del found["threads_per_rank"]  # each run states its own
    if args.baseline is not None:
        found[DGL] = dgl.require_dgl("--baseline dgl").__version__
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check_topology()
        graph = dataclasses.replace(options.source.topology(screen.progress), weights=None)
    screen.lines([*busy_warning(found), *conditions_lines(found, graph, options)])
    results = first_results("pinsage", found, args, options.source.name, graph)
    if args.verify:
        failures = verify(graph, options)
        results["verify"] = {"failures": failures}
        passed = f"verify: passed: batches of {options.oracle_seeds} seeds equal the oracle's"
        screen.lines([f"verify: FAILED: {text}" for text in failures] or [passed])
        if failures:
            return 1, results
    runs = measure(graph, options, screen.progress)
    screen.table(rates_table(runs))
    return 0, {**results, "runs": runs}


def conditions_lines(found: dict, graph: CSCGraph, options: PinSAGEOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    rule, peer = options.rule, f", dgl {found[DGL]}" if options.has_peer else ""
    return [
        f"{options.source.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; commit {found['commit']}, "
        f"torch {found['torch']}{peer}, Python {found['python']}; {found['cores']} cores ({found['processor']}, "
        f"{found['isa']}), load before {found['load_before']:.1f}",
        f"{rule.num_walks} walks of at most {rule.walk_length} steps per node and hop, ended with probability "
        f"{rule.end_probability:g} after a step (the same law as dgl's), the {rule.num_neighbors} most visited; "
        f"batches of {options.batch_size} distinct nodes with an in-neighbour, seed {rule.rng_seed}; "
        f"{options.warmup} warm-up batches, then {options.batches} timed ones in turns",
    ]


def rates_table(runs: list[dict]) -> Table:
    """Rates and ratios, one row per run and sampler."""
    table = Table(title="thousand neighbourhoods per second (medians)")
    for column in ("layers", "threads"):
        table.add_column(column, justify="right")
    table.add_column("sampler")
    for column in ("median", "p10", "p90", "per batch", "ours / its"):
        table.add_column(column, justify="right")
    for run in runs:
        for entry in run["samplers"]:
            cells = [f"{entry[name] / 1e3:,.0f}" for name in ("median", "p10", "p90")]
            table.add_row(
                str(run["layers"]), str(run["threads"]), entry["sampler"], *cells, f"{entry['per_batch']:,.0f}",
                f"{entry['ratio']:.1f}x",
            )  # fmt: skip
        table.add_section()
    return table


def _options(args: argparse.Namespace, work: Path) -> PinSAGEOptions:
    rule = PinSAGERule(
        num_walks=args.num_walks, walk_length=args.walk_length, num_neighbors=args.num_neighbors,
        end_probability=args.end_probability, rng_seed=args.seed,
    )  # fmt: skip
    return PinSAGEOptions(
        source=GraphSource(args.graph, work), rule=rule, layers=tuple(dict.fromkeys(args.layers)),
        threads=tuple(dict.fromkeys(args.threads)), batch_size=args.batch_size, batches=args.batches,
        warmup=args.warmup, has_peer=args.baseline is not None,
    )  # fmt: skip
