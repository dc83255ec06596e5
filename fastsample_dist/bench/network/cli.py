"""The subcommand `fastsample-bench network`: its options, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.bench.epoch import namespaces
from fastsample_dist.bench.graphs import GraphSource, is_drawn, work_folder
from fastsample_dist.bench.network.measure import UNLIMITED, NetworkOptions, measure
from fastsample_dist.bench.network.rows import DEFAULT, Row
from fastsample_dist.bench.options import add_training
from fastsample_dist.bench.screen import Screen

TIMEOUT_S = 600.0  # of one collective
EXAMPLES = """examples:
  fastsample-bench network rmat:18:16 --rates unlimited,1gbit,10gbit
  fastsample-bench network parts/debian-4 --int8 parts/debian-4-int8 --rates 1gbit --json network.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "network", help="seconds and bytes per epoch over slow links, by what saves them", epilog=EXAMPLES,
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train epochs on hosts in network namespaces (root, Linux), several ranks on each, with links of\n"
        "each rate: nothing saved, then with a cache, smaller rows, rows that follow the batches, rails and one\n"
        "meeting of all ranks a step.",
    )  # fmt: skip
    add = sub.add_argument
    add("graph", metavar="GRAPH", help="a partition's directory, or rmat:SCALE:EDGE_FACTOR")
    add("--int8", metavar="PARTS", type=Path, help="the same partition with int8 rows (default: made of rmat:...)")
    add("--hosts", type=cl.count, default=2, help="(default: %(default)s)")
    add("--ranks-per-host", type=cl.count, default=2, help="(default: %(default)s)")
    add("--rates", type=rates, default=(UNLIMITED, "1gbit", "10gbit"), help="(default: unlimited,1gbit,10gbit)")
    add(
        "--rows", type=rows, default=tuple(map(Row, DEFAULT)), metavar="ROWS",
        help=f"what is on, row by row (default: {','.join(DEFAULT)})",
    )  # fmt: skip
    add("--cache", metavar="SHARE", type=cl.share, default=0.1, help="cached nodes of all nodes (default: %(default)g)")
    add("--prefetch", type=int, default=2, help="batches made ahead (default: %(default)s)")
    add_training(sub)
    add("--threads", type=cl.count, help="per rank (default: cores / ranks, at least 1)")
    add("--deadline-s", type=cl.seconds, default=3600.0, help="for the ranks of one run (default: %(default)g)")
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Measure, print; returns (exit status, results for --json)."""
    limited = [rate for rate in args.rates if rate != UNLIMITED]
    reason = namespaces.missing_reason(limited[0] if limited else None)
    if reason is not None:
        raise ValueError(f"hosts in namespaces cannot be made here: {reason}.")
    if not is_drawn(args.graph) and args.int8 is None and any(row.has("int8") for row in args.rows):
        raise ValueError("--rows has int8, but no partition with such rows is given; pass --int8 PARTS.")
    screen = Screen()
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check((options.num_ranks,))
        found = conditions(options.threads)
        runs = measure(options, screen.progress)
    screen.lines([*busy_warning(found), conditions_line(args, found, runs[0]["rows"][0]["graph"])])
    screen.table(rows_table(runs))
    given = given_options(args) | {"rows": [row.name for row in args.rows]}
    return 0, {"command": "network", "conditions": found, "options": given, "runs": runs}


def _options(args: argparse.Namespace, work: Path) -> NetworkOptions:
    return NetworkOptions(
        source=GraphSource(args.graph, work, args.method), int8_parts=args.int8, hosts=args.hosts,
        ranks_per_host=args.ranks_per_host, rates=args.rates, rows=args.rows,
        settings={
            "cache_share": args.cache, "prefetch": args.prefetch, "epochs": args.epochs, "batch_size": args.batch_size,
            "fanouts": args.fanouts, "hidden": args.hidden, "dropout": args.dropout, "lr": 0.006,
            "precision": args.precision, "rng_seed": args.seed,
        },
        threads=args.threads or max(1, cl.usable_cores() // (args.hosts * args.ranks_per_host)),
        deadline_s=args.deadline_s, timeout_s=min(TIMEOUT_S, args.deadline_s),
    )  # fmt: skip


def conditions_line(args: argparse.Namespace, found: dict, graph: dict) -> str:
    """What the figures depend on."""
    return (
        f"{graph['name']}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges; {args.hosts} hosts with "
        f"{args.ranks_per_host} ranks each, batch {args.batch_size}, prefetch {args.prefetch}, cache of "
        f"{100 * args.cache:g} % of the nodes; commit {found['commit']}, torch {found['torch']}, {found['cores']} "
        f"cores ({found['processor']}, {found['isa']}), {found['threads_per_rank']} thread(s) per rank, load before "
        f"{found['load_before']:.1f}"
    )


def rows_table(runs: list[dict]) -> Table:
    """Seconds and bytes of an epoch, one line per rate and row."""
    table = Table(title="per epoch; features: ids, rows, plans that ranks sent; link: all that left the hosts")
    table.add_column("rate")
    table.add_column("on")
    for column in ("seconds", "features MB", "fewer", "link MB", "row B", "hit rate", "exchanges/step"):
        table.add_column(column, justify="right")
    for run_ in runs:
        for entry in run_["rows"]:
            hits = entry["hit_rate"]
            table.add_row(
                run_["rate"], entry["name"], f"{entry['epoch_s']:.2f}", f"{entry['feature_bytes'] / 1e6:.2f}",
                f"{entry['times_fewer_bytes']:.2f}x", f"{entry['link_bytes'] / 1e6:.2f}", str(entry["row_bytes"]),
                "-" if hits is None else f"{100 * hits:.1f} %", f"{entry['calls']:.2f}",
            )  # fmt: skip
        table.add_section()
    return table


def rates(text: str) -> tuple[str, ...]:
    """Argument type: "unlimited,1gbit" -> ("unlimited", "1gbit")."""
    found = tuple(text.split(","))
    for rate in found:
        if rate != UNLIMITED:
            try:
                namespaces.check_rate(rate)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
    return found


def rows(text: str) -> tuple[Row, ...]:
    """Argument type: "off,cache+rails" -> (Row("off"), Row("cache+rails"))."""
    try:
        return tuple(Row(name) for name in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
