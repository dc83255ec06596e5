"""Tables of `fastsample-bench subgraphs`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsample_dist.bench.subgraphs.cases import WALK_LENGTH
from fastsample_dist.bench.subgraphs.layers import NEIGHBOURS, LayerOptions, ratios
from fastsample_dist.bench.subgraphs.measure import OURS, POOL, TURN, WEIGHTED, SubgraphOptions
from fastsample_dist.bench.subgraphs.peers import IPDPS19
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.subgraph_spec import FRONTIER


def conditions_lines(found: dict, graph: CSCGraph, options: SubgraphOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    width, case = str(graph.indices.dtype).removeprefix("torch."), options.frontier
    return [
        f"{options.source.name} without isolated nodes: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {width} "
        f"ids; commit "
        f"{found['commit']}, fastsample_dist {found['fastsample_dist']}, torch {found['torch']}, Python "
        f"{found['python']}; {found['cores']} cores ({found['processor']}, {found['isa']}), load before "
        f"{found['load_before']:.1f}",
        f"subgraphs of {case.budget:,} visits: a frontier of {case.frontier_size:,}; draws of nodes; "
        f"{case.budget // (WALK_LENGTH + 1):,} walks of {WALK_LENGTH} hops; draws of {case.budget // 2:,} edges; "
        f"{options.trials} subgraphs of everyone in turns of {TURN}, "
        f"seed {options.rng_seed}",
        "one thread; without weights unless it says so; medians and, in brackets, minima",
    ]


def contestants_table(contestants: Sequence[dict]) -> Table:
    """Whole subgraphs; the ratio is to our frontier, and to our sampler of the same method."""
    table = Table(title="milliseconds per subgraph, walk and induction")
    table.add_column("method")
    table.add_column("contestant")
    for column in ("nodes", "edges", "of it the walk", "ms", "its / our frontier", "its / ours"):
        table.add_column(column, justify="right")
    ours = {one["method"]: one["whole_ms"] for one in contestants if one["name"] == OURS}
    for one in contestants:
        ratios = [_ratio(one["whole_ms"], ours.get(method)) for method in (FRONTIER, one["method"])]
        walk = "" if one["walk_ms"] is None else _both(one["walk_ms"])
        sizes = (f"{one['nodes']:,.0f}", f"{one['edges']:,.0f}")
        table.add_row(one["method"], one["name"], *sizes, walk, _both(one["whole_ms"]), *ratios)
    return table


def parts_table(parts: Sequence[dict]) -> Table:
    """Walk and induction apart."""
    table = Table(title="walk and induction of ours, and DGL's node_subgraph of the same nodes")
    table.add_column("method")
    names = ("nodes", "steps", "ns per step", "scanned edges", "induction, ms", "ns per scanned edge")
    for column in (*names, "dgl, ms", "its / ours"):
        table.add_column(column, justify="right")
    for one in parts:
        theirs = one["dgl_ms"]
        table.add_row(
            one["method"], f"{one['nodes']:,.0f}", f"{one['steps']:,.0f}", _both(one["walk_ns"], 1),
            f"{one['scanned']:,.0f}", _both(one["induce_ms"]), _both(one["scanned_ns"]),
            "" if theirs is None else _both(theirs), "" if theirs is None else _ratio(theirs, one["induce_ms"]),
        )  # fmt: skip
    return table


def structures_table(structures: Sequence[dict]) -> Table:
    """Two structures of one law, by the clip of degrees, which changes the law."""
    table = Table(title="frontier sampling: prefix sums and the paper's dashboard")
    table.add_column("degrees up to")
    table.add_column("structure")
    for column in ("eta", "ns per step", "probes per step", "cleanups per subgraph", "growths"):
        table.add_column(column, justify="right")
    for one in structures:
        clip = "any" if one["max_degree"] is None else str(one["max_degree"])
        cells = ("", "", "")
        if one["eta"] is not None:
            cells = (f"{one['probes']:.2f}", f"{one['cleanups']:.1f}", f"{one['growths']:.1f}")
        eta = "" if one["eta"] is None else f"{one['eta']:g}"
        table.add_row(clip, one["structure"], eta, _both(one["step_ns"], 1), *cells)
    return table


def summary_lines(measured: dict) -> list[str]:
    """Threads, and the ratios to the best of every peer."""
    pool = measured["pool"]
    first = pool[0]["rate"]
    rates = "; ".join(
        f"{one['threads']} thread(s) {one['rate']['median']:,.0f} subgraphs/s (most {one['rate']['max']:,.0f}; "
        f"{one['rate']['median'] / first['median']:.2f}x, {one['rate']['max'] / first['max']:.2f}x)"
        for one in pool
    )
    return [f"frontier, {POOL} subgraphs a call: {rates}", *_best_lines(measured["contestants"])]


def _best_lines(contestants: Sequence[dict]) -> list[str]:
    whole = {(one["name"], one["method"]): one["whole_ms"] for one in contestants}
    ours, lines = whole.get((OURS, FRONTIER)), []
    theirs = [one["name"] for one in contestants if one["name"] not in (OURS, WEIGHTED)]
    for name in dict.fromkeys(theirs if ours is not None else ()):
        method = min((m for n, m in whole if n == name), key=lambda m: whole[name, m]["median"])
        kind = "its frontier" if name == IPDPS19 else f"its fastest ({method})"
        lines.append(f"{name}: {kind} takes {_ratio(whole[name, method], ours)} the time of our frontier")
    return lines


def layers_lines(found: dict, data: DistData, options: LayerOptions) -> list[str]:
    """What the figures of layers depend on."""
    manifest = data.manifest
    return [
        f"{options.source.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges; commit {found['commit']}, "
        f"fastsample_dist {found['fastsample_dist']}, torch {found['torch']}, Python {found['python']}; "
        f"{found['cores']} cores ({found['processor']}, {found['isa']}), load before {found['load_before']:.1f}",
        f"GraphSAGE, hidden {options.hidden}, Adam, one process, one thread; subgraphs: one frontier of "
        f"{options.frontier_size:,} with {options.budget:,} visits a step, ratio weights; neighbours: fanout "
        f"{options.fanout} in every layer, {options.batch_size:,} seeds a step; {options.turns} turns of "
        f"{options.steps} steps each, seed {options.rng_seed}",
    ]


def layers_table(found: Sequence[dict]) -> Table:
    """What a trained node costs."""
    table, compared = Table(title="per trained node, by the number of layers"), ratios(found)
    table.add_column("layers", justify="right")
    table.add_column("sampler")
    names = ("trained nodes a step", "rows fetched", "edges", "us (medians, minima)", "sampling", "us, its / subgraphs")
    for column in (*names, "rows, its / subgraphs"):
        table.add_column(column, justify="right")
    for one in found:
        ratio = compared[one["layers"]] if one["sampler"] == NEIGHBOURS else None
        table.add_row(
            str(one["layers"]), one["sampler"], f"{one['trained']:,.0f}", f"{one['rows']:,.2f}", f"{one['edges']:,.0f}",
            _both(one["node_us"], 1), f"{one['sample_share']:.1%}",
            *(("", "") if ratio is None else (f"{ratio['time']:.1f}x", f"{ratio['rows']:.1f}x")),
        )  # fmt: skip
    return table


def verify_lines(found: dict) -> list[str]:
    """What --verify found."""
    if found["failures"]:
        return [f"verify: FAILED: {text}" for text in found["failures"]]
    return [f"verify: passed: {found['checks']} comparisons with the oracles, bit for bit"]


def _both(found: dict, digits: int = 2) -> str:
    return f"{found['median']:,.{digits}f} ({found['min']:,.{digits}f})"


def _ratio(theirs: dict, ours: dict | None) -> str:
    if ours is None:
        return ""
    return f"{theirs['median'] / ours['median']:.1f}x ({theirs['min'] / ours['min']:.1f}x)"
