"""Tables of `fastsample-bench walk`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsample_dist.bench.walk.cases import STOP, P, Q
from fastsample_dist.bench.walk.measure import WalkOptions
from fastsample_dist.graph.csc import CSCGraph


def conditions_lines(found: dict, graph: CSCGraph, options: WalkOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    width = str(graph.indices.dtype).removeprefix("torch.")
    return [
        f"{options.source.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {width} ids; commit "
        f"{found['commit']}, fastsample_dist {found['fastsample_dist']}, torch {found['torch']}, Python "
        f"{found['python']}; {found['cores']} cores ({found['processor']}, {found['isa']}), load before "
        f"{found['load_before']:.1f}",
        f"walks of {options.length} steps from nodes with a neighbour; ppr: from the one node of the largest degree, "
        f"stop {STOP}; node2vec: p {P}, q {Q}; weights uniform in 1 .. 5 unless the graph has its own; at most "
        f"{options.walks:,} walks a trial, {options.batch:,} a call (thunderrw: all of its walks), {options.trials} "
        f"trials in turns, seed {options.rng_seed}",
        "a rate: steps per second of the calls, whole paths kept by all but thunderrw, which counts them; tables are "
        "made before; huge: GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
    ]


def rates_table(runs: Sequence[dict]) -> Table:
    """Rates and ratios, one row per configuration and contestant."""
    table = Table(title="million steps per second (medians)")
    for column in ("walk", "threads"):
        table.add_column(column, justify="right")
    table.add_column("contestant")
    table.add_column("pages")
    for column in ("median", "p10", "p90", "ours / its", "of limit"):
        table.add_column(column, justify="right")
    for run in runs:
        for entry in run["contestants"]:
            cells = [f"{entry[name] / 1e6:.2f}" for name in ("median", "p10", "p90")]
            share = "-" if entry["of_limit"] is None else f"{entry['of_limit']:.2f}"
            table.add_row(
                run["app"], str(run["threads"]), entry["name"], entry["pages"], *cells, f"{entry['ratio']:.2f}x", share
            )
        if run["limit"] is not None:
            limit = run["limit"]
            cells = [f"{limit[name] / 1e6:.2f}" for name in ("median", "p10", "p90")]
            table.add_row(run["app"], str(run["threads"]), "touch limit", "", *cells, "", "")
        table.add_section()
    return table


def summary_lines(runs: Sequence[dict]) -> list[str]:
    """Tables and memory, per application."""
    lines = []
    for run in runs:
        if run["threads"] == runs[0]["threads"]:
            resident = "" if run["resident_bytes"] is None else f", resident {run['resident_bytes'] / 1e6:,.0f} MB"
            tables = run["tables"]
            lines.append(
                f"{run['app']}: tables of {tables['bytes'] / 1e6:,.0f} MB made in {tables['seconds']:.1f} s{resident} "
                f"while walking; {run['steps']:,} steps a trial"
            )
    return lines


def verify_lines(found: dict) -> list[str]:
    """What --verify found."""
    if found["failures"]:
        return [f"verify: FAILED: {text}" for text in found["failures"]]
    return [f"verify: passed: {found['checks']} comparisons, bit for bit, with the application's own definition"]
