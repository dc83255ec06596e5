"""Tables of `fastsample-bench sampling`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsample_dist.bench.sampling.measure import OURS, OURS_MANY, TURN_BATCHES, SamplingOptions
from fastsample_dist.graph.csc import CSCGraph

DGL_ROWS = {
    ("dgl", True): "dgl: NeighborSampler(fused=True)",
    ("dgl", False): "dgl: LaborSampler",
    ("dgl-unfused", True): "dgl-unfused: NeighborSampler(fused=False)",
}


def conditions_lines(found: dict, graph: CSCGraph, options: SamplingOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    width = str(graph.indices.dtype).removeprefix("torch.")
    peers = "".join(f", {name} {version}" for name, version in found["peers"].items())
    manner = f"{options.method}, {'with' if options.replace else 'without'} replacement"
    lines = [
        f"{options.source.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {width} ids; commit "
        f"{found['commit']}, fastsample_dist {found['fastsample_dist']}, torch {found['torch']}{peers}, Python "
        f"{found['python']}; {found['cores']} cores ({found['processor']}, {found['isa']}), load before "
        f"{found['load_before']:.1f}",
        f"{manner}; batches of {options.batch_size} distinct nodes with an in-neighbour, seed {options.rng_seed}; per "
        f"configuration {options.warmup} warm-up batches, then {options.batches} timed ones in turns of {TURN_BATCHES}",
        "a rate: a sampler's own sampled edges per second from seeds to message flow graphs of all hops, freeing them "
        f"included; edges of every hop count, as often as they are drawn; {OURS_MANY}: all timed batches in one call",
    ]
    rows = [DGL_ROWS[name, options.method != "labor"] for name in options.baselines]
    return [*lines, f"{'; '.join(rows)}; int64 ids"] if rows else lines


def rates_table(runs: Sequence[dict], options: SamplingOptions) -> Table:
    """Rates and ratios, one row per configuration and sampler."""
    table = Table(title="million sampled edges per second (medians)")
    for column in ("fanouts", "threads"):
        table.add_column(column, justify="right")
    table.add_column("sampler")
    for column in ("median", "p10", "p90", "edges/batch", "cores used"):
        table.add_column(column, justify="right")
    for baseline in options.rivals:
        table.add_column(f"/ {baseline}", justify="right")
    if options.limit:
        table.add_column("of limit", justify="right")
    for run in runs:
        for entry in run["samplers"]:
            cells = [_millions(entry[name]) for name in ("median", "p10", "p90")]
            cells += [f"{entry['edges_per_batch']:,.0f}", f"{entry['cores_used']:.2f}"]
            cells += [f"{entry['ratios'][name]:.2f}x" if name in entry["ratios"] else "-" for name in options.rivals]
            if options.limit:
                cells.append(f"{entry['of_limit']:.2f}")
            table.add_row(_name(run), str(run["threads"]), entry["sampler"], *cells)
        table.add_section()
    return table


def limits_table(runs: Sequence[dict]) -> Table:
    """The touch limit beside every configuration."""
    table = Table(title="touch limit: one random read of indices and one of a relabelling table per edge")
    for column in ("fanouts", "threads", "million edges/s", "p10", "p90", "ns per edge", "table", "prefetch"):
        table.add_column(column, justify="right")
    for run in runs:
        for limit in run["limits"]:
            table.add_row(
                _name(run), str(limit["threads"]), *(_millions(limit[name]) for name in ("median", "p10", "p90")),
                f"{1e9 / limit['median']:.1f}", _megabytes(limit["table_bytes"]),
                f"{limit['ahead']} ahead, level {limit['level']}",
            )  # fmt: skip
    return table


def small_table(found: Sequence[dict], options: SamplingOptions) -> Table:
    """Batches of few seeds."""
    table = Table(title=f"batches of few seeds, fanouts {','.join(map(str, options.fanouts[0]))} (medians, us)")
    for column in ("seeds", "threads", "edges", "whole call", "in the core", "besides"):
        table.add_column(column, justify="right")
    for entry in found:
        times = (f"{1e6 * entry[name]:.1f}" for name in ("call_s", "core_s", "overhead_s"))
        table.add_row(str(entry["seeds"]), str(entry["threads"]), f"{entry['edges']:,.0f}", *times)
    return table


def summary_lines(runs: Sequence[dict], ratios: Sequence[dict]) -> list[str]:
    """Geometric means of the ratios, memory, pages."""
    lines = [
        f"{entry['sampler']} / {entry['baseline']} with {entry['threads']} thread(s): geometric mean "
        f"{entry['geometric_mean']:.2f}x, lowest {entry['lowest']:.2f}x"
        for entry in ratios
    ]
    lines += [
        f"scratch that a thread of {OURS} keeps: {_megabytes(run['scratch_bytes'])} after batches of up to "
        f"{run['input_nodes']:,} input nodes ({_name(run)})"
        for run in runs
        if run["threads"] == runs[0]["threads"]
    ]
    total, huge = runs[-1]["indices_bytes"], runs[-1]["indices_huge_bytes"]
    if huge is not None:
        lines.append(f"indices: {_megabytes(total)}, {huge / total:.0%} of it on huge pages")
    return lines


def verify_lines(found: dict) -> list[str]:
    """What --verify found."""
    if not found["passed"]:
        return [f"verify: FAILED: {text}" for text in found["failures"]]
    oracle = ", ".join(f"{entry['seeds']} seed(s) and {entry['hops']} hop(s)" for entry in found["oracle"])
    return [
        f"verify: passed: {found['batches']} whole batches per list of fanouts, equal with every number of threads and "
        f"by sample_many; equal to the oracle on {oracle}"
    ]


def _name(run: dict) -> str:
    return ",".join(map(str, run["fanouts"]))


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
