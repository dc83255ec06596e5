"""Lines and the table of `fastsample-bench models`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsample_dist.bench.graphs import WEIGHT_LAW
from fastsample_dist.bench.models.cases import LR
from fastsample_dist.bench.models.measure import OURS, PARTS, ModelsOptions
from fastsample_dist.pipeline.data import DistData


def conditions_lines(found: dict, data: DistData, options: ModelsOptions) -> list[str]:
    """What the figures depend on, before they are taken."""
    manifest, weights = data.manifest, data.graph.weights
    dgl = f", dgl {found['dgl']}" if "dgl" in found else ""
    law = "the graph's own" if weights is not None else WEIGHT_LAW
    lines = [
        f"{options.source.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, {data.feature_dim} "
        f"features, {data.num_classes} classes, {data.split('train').numel():,} train nodes; commit {found['commit']}, "
        f"fastsample_dist {found['fastsample_dist']}, torch {found['torch']}{dgl}, Python {found['python']}; "
        f"{found['cores']} cores ({found['processor']}, {found['isa']}), load before {found['load_before']:.1f}",
        f"neighbours from the seeds outwards: {'; '.join(map(str, options.cases))}",
        f"hidden {options.hidden}, dropout {options.dropout:g}, Adam with lr {LR}; {options.batch_size} seeds a step, "
        f"all ranks together; one warm-up epoch, then {options.epochs} timed ones; seed {options.rng_seed}",
        "ours: transport exchange, nothing prefetched; accuracy after all epochs, with neighbours sampled as in "
        "training",
        f"cache: policy auto, rows of {100 * options.cache_share:g} % of the nodes; hits in % of the remote rows; one "
        "process has none, so there it is the cache that it would have were all rows remote",
    ]
    if options.roles is not None:
        lines.append(
            f"ours, in place: rows of other ranks read where they lie, no cache; ours, {options.roles}: the same with "
            "these roles"
        )
    if options.needs_weights:
        lines.append(f"edge weights: {law}")
    if options.has_peer:
        lines.append(
            "dgl: one process, as many threads as our ranks together, float32 features; its samplers without its "
            "loader; SAGEConv mean or gcn (as our GCN: the mean with the own row), for PinSAGE the layer of its "
            "example; no feature cache on the CPU"
        )
    return lines


def models_table(runs: Sequence[dict], epochs: int) -> Table:
    """One row per workload, number of ranks and contestant."""
    table = Table(title=f"seconds per epoch (medians; p10 - p90), accuracy in % after {epochs} epochs")
    for column in ("workload", "by"):
        table.add_column(column)
    columns = ("proc x threads", "epoch", "p10 - p90", "sample", "fetch", "train", "its / ours")
    for column in (*columns, "hits (best)", "val", "test"):
        table.add_column(column, justify="right")
    for run in runs:
        for number, one in enumerate(run["contestants"]):
            times, cache = one["epoch_s"], run["cache"]
            hits = "-"
            if number == 0 and cache is not None:
                hits = f"{100 * cache['hit_rate']:.1f} ({100 * cache['oracle_hit_rate']:.1f})"
            times_cells = (f"{times['median']:.2f}", f"{times['p10']:.2f} - {times['p90']:.2f}")
            table.add_row(
                run["case"], one["name"].replace(OURS, "ours"), f"{one['processes']} x {one['threads']}", *times_cells,
                *(f"{one[part]:.2f}" for part in PARTS), f"{one['ratio']:.2f}x" if number else "-", hits,
                f"{100 * one['val_acc']:.1f}", f"{100 * one['test_acc']:.1f}",
            )  # fmt: skip
        table.add_section()
    return table


def verify_lines(found: dict) -> list[str]:
    """What --verify found."""
    if found["failures"]:
        return [f"verify: FAILED: {text}" for text in found["failures"]]
    batches = ", ".join(f"{one['case']} {one['edges']} edges" for one in found["compared"])
    return [f"verify: passed: a batch of each workload equals the oracle's, bit for bit ({batches})"]
