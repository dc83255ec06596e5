"""The subcommand `fastsample-bench features`: its options, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.bench.features.measure import FeaturesOptions, measure
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.screen import Screen
from fastsample_dist.pipeline.transport import EXCHANGE, SHARED
from fastsample_dist.testing.jobs import find_mpirun

WAYS = (EXCHANGE, SHARED)
EXAMPLES = """examples:
  fastsample-bench features rmat:18:16 --transport --ranks 2,4 --verify
  fastsample-bench features parts/products-4 --transport shared --ranks 4 --mpi --json features.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "features", help="milliseconds per fetch of feature rows, by transport", epilog=EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fetch the feature rows of the same sampled batches by exchange, in place on the machine that the\n"
        "ranks share, and from one table that holds all rows (the floor), in turns.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add = sub.add_argument
    add("graph", metavar="GRAPH", help="a partition's directory, or rmat:SCALE:EDGE_FACTOR")
    add(
        "--transport", metavar="WAYS", nargs="?", type=ways, const=WAYS, default=WAYS,
        help="a list of exchange and shared, beside the floor (default: both)",
    )  # fmt: skip
    add("--ranks", type=cl.counts, default=(2, 4), help="numbers of ranks to start (default: 2,4)")
    add("--batch-size", type=cl.count, default=1000, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="from the seeds outwards (default: 15,10,5)")
    add("--steps", type=cl.count, default=9, help="batches that are fetched (default: %(default)s)")
    add("--repeats", type=cl.count, default=9, help="passes over them, for every way (default: %(default)s)")
    add("--threads", type=cl.count, help="per rank (default: cores / most ranks, at least 1)")
    add("--seed", type=int, default=0, help="of sampling (default: %(default)s)")
    add("--method", default="metis", help="how a generated graph is cut (default: %(default)s)")
    add("--work", metavar="DIR", type=Path, help="keeps generated graphs (default: a temporary directory)")
    add("--mpi", action="store_true", help="start the ranks with mpirun")
    add("--verify", action="store_true", help="compare the rows of all ways bit for bit; exit 1 where they differ")
    add("--deadline-s", type=cl.seconds, default=1800.0, help="for the ranks of one run (default: %(default)g)")
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Measure, print; returns (exit status, results for --json)."""
    if args.mpi and find_mpirun() is None:
        raise ValueError("--mpi needs mpirun beside this Python or on PATH; install it or leave --mpi out.")
    screen = Screen()
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check(options.ranks)
        found = conditions(options.threads)
        runs = measure(options, screen.progress)
    screen.lines([*busy_warning(found), *conditions_lines(found, args, runs)])
    screen.table(ways_table(runs))
    failures = [f"{name} with {entry['ranks']} ranks" for entry in runs for name in entry["differences"]]
    if args.verify:
        screen.lines([f"verify: FAILED: other rows by {', '.join(failures)}" if failures else "verify: rows are equal"])
    results = {"command": "features", "conditions": found, "options": given_options(args), "runs": runs}
    return int(bool(failures)), results


def _options(args: argparse.Namespace, work: Path) -> FeaturesOptions:
    return FeaturesOptions(
        source=GraphSource(args.graph, work, args.method), ranks=args.ranks,
        settings={
            "transports": list(args.transport), "batch_size": args.batch_size, "fanouts": args.fanouts,
            "steps": args.steps, "repeats": args.repeats, "rng_seed": args.seed, "verify": args.verify,
        },
        threads=args.threads or max(1, cl.usable_cores() // max(args.ranks)),
        mpirun=find_mpirun() if args.mpi else None, deadline_s=args.deadline_s,
    )  # fmt: skip


def conditions_lines(found: dict, args: argparse.Namespace, runs: list[dict]) -> list[str]:
    """What the figures depend on."""
    graph = runs[0]["graph"]
    return [
        f"{graph['name']}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges, rows of {runs[0]['row_bytes']} "
        f"B; commit {found['commit']}, torch {found['torch']}, {found['cores']} cores ({found['processor']}, "
        f"{found['isa']}), {found['threads_per_rank']} thread(s) per rank, load before {found['load_before']:.1f}",
        f"ranks under {'mpirun' if args.mpi else 'torch.distributed'}; {args.steps} steps of batch {args.batch_size}, "
        f"{args.repeats} repeats in turns; wall: the slowest rank's of a step; processor: of all threads of a rank",
    ]


def ways_table(runs: list[dict]) -> Table:
    """Milliseconds of a step's fetch, one row per number of ranks and way."""
    table = Table(title="milliseconds per fetch")
    for column in ("ranks", "rows", "of other ranks"):
        table.add_column(column, justify="right")
    table.add_column("way")
    for column in ("wall, median", "p10", "p90", "processor", "to own"):
        table.add_column(column, justify="right")
    for entry in runs:
        for name, figures in entry["ways"].items():
            wall = [f"{figures['wall_ms'][key]:.2f}" for key in ("median", "p10", "p90")]
            table.add_row(
                str(entry["ranks"]), f"{entry['inputs']:,.0f}", f"{entry['remote']:,.0f}", name, *wall,
                f"{figures['cpu_ms']['median']:.2f}", f"{figures['ratio_to_own']:.2f}x",
            )  # fmt: skip
        table.add_section()
    return table


def ways(text: str) -> tuple[str, ...]:
    """Argument type: "exchange,shared" -> ("exchange", "shared")."""
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= set(WAYS):
        raise argparse.ArgumentTypeError(f"must be a list of {' and '.join(WAYS)}, not {text!r}")
    return names
