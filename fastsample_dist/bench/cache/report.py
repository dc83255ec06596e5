"""Tables of `fastsample-bench cache`."""

from __future__ import annotations

import statistics

from rich.table import Table

from fastsample_dist.bench.cache.accesses import CacheOptions, Run
from fastsample_dist.bench.cache.measure import ORACLE, Found


def conditions_lines(found: dict, run: Run, options: CacheOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    spec, graph = options.spec, run.graph
    train = sum(len(rank.workload.train_nodes) for rank in run.ranks)
    manner = f"{spec.method}, {'with' if spec.replace else 'without'} replacement"
    return [
        f"{options.source.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {train:,} train nodes, "
        f"{len(run.ranks)} parts; commit {found['commit']}, fastsample_dist {found['fastsample_dist']}, torch "
        f"{found['torch']}, Python {found['python']}; {found['cores']} cores ({found['processor']}, {found['isa']}), "
        f"{found['threads_per_rank']} threads, load before {found['load_before']:.1f}",
        f"fanouts {','.join(map(str, spec.fanouts))}, {manner}; {options.batch_size} seeds per rank and step, "
        f"{run.steps_per_epoch} steps an epoch, {options.epochs} epochs, which the oracle knows; seed {spec.rng_seed}",
    ]


def rates_table(found: Found, options: CacheOptions) -> Table:
    """Hit rates, percent of the oracle behind them in brackets, and seconds to score a rank."""
    table = Table(title="hits in % of the remote rows (in % of the oracle's), by cached rows in % of all nodes")
    table.add_column("policy")
    for share in options.shares:
        table.add_column(f"{100 * share:g} %", justify="right")
    for column in ("score, s", "CPU s"):
        table.add_column(column, justify="right")
    for name, figures in found.policies.items():
        cells = [
            f"{100 * rate:.1f}" + ("" if name == ORACLE else f" ({100 * part:.1f})")
            for rate, part in zip(found.rates(name), found.of_oracle(name), strict=True)
        ]
        seconds = [
            f"{statistics.median(times):.3f}" if times else "" for times in (figures.score_s, figures.score_cpu_s)
        ]
        table.add_row(name, *cells, *seconds)
    return table


def summary_lines(found: Found) -> list[str]:
    """What a step wants."""
    batches = max(1, found.num_batches)
    return [
        f"a step has {found.input_rows / batches:,.0f} inputs, {found.remote_rows / batches:,.0f} of them remote; "
        f"score: median over the ranks; {ORACLE}: the best static set for the run, its seconds are those of sampling it"
    ]


def verify_lines(found: dict) -> list[str]:
    """What --verify found."""
    if found["failures"]:
        return [f"verify: FAILED: {text}" for text in found["failures"]]
    return [f"verify: passed: {found['comparisons']} counts of hits equal to those of a simulation by sets"]
