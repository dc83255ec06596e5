"""Tables of `fastsample-bench epoch`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fastsample_dist.bench.epoch.measure import label

PARTS = ("sample_s", "fetch_s", "compute_s", "gradients_s", "idle_s")


def times_table(runs: Sequence[dict], where: str) -> Table:
    """Seconds per epoch and their parts, one row per number of ranks and configuration, beside the floor: the matrix
    products alone and the gradients' all_reduce alone.
    """
    table = Table(title=f"seconds per epoch, {where} (medians; with prefetching sample and fetch run beside the rest)")
    table.add_column("ranks", justify="right")
    table.add_column("scheme")
    columns = ("epoch", "sample", "fetch", "compute", "gradients", "idle", "floor", "all_reduce", "epoch / both")
    for column in (*columns, "vanilla / this", "exchanges/step"):
        table.add_column(column, justify="right")
    for run in runs:
        for entry in run["configurations"]:
            ratio = entry["ratio_to_vanilla"]
            table.add_row(
                str(run["ranks"]), label(entry), _shown(entry["epoch_s"]), *(_shown(entry[name]) for name in PARTS),
                _shown(run["floor_s"]), _shown(run["all_reduce_s"]), f"{entry['ratio_to_floor']:.2f}x",
                "-" if ratio is None else f"{ratio:.2f}x", f"{entry['exchanges']:g}",
            )  # fmt: skip
        table.add_section()
    return table


def comm_table(runs: Sequence[dict]) -> Table | None:
    """Calls and kB sent per step and rank, by purpose; None when no run had two ranks."""
    several = [run for run in runs if run["ranks"] > 1]
    if not several:
        return None
    table = Table(title="per step and rank: calls / kB sent, by purpose (1 kB = 1000 bytes)")
    table.add_column("ranks", justify="right")
    table.add_column("scheme")
    purposes = sorted({name for run in several for entry in run["configurations"] for name in entry["comm"]})
    for purpose in purposes:
        table.add_column(purpose, justify="right")
    for run in several:
        for entry in run["configurations"]:
            cells = [entry["comm"].get(purpose) for purpose in purposes]
            shown = [
                "-" if cell is None else f"{cell['calls']:.3g} / {cell['bytes_sent'] / 1e3:,.1f}" for cell in cells
            ]
            table.add_row(str(run["ranks"]), label(entry), *shown)
        table.add_section()
    return table


def model_table(predictions: Sequence[dict], network: str) -> Table:
    """Predicted seconds per epoch by number of machines."""
    table = Table(title=f"alpha-beta model for {network}: seconds per epoch, one rank per machine")
    table.add_column("scheme")
    machines = list(predictions[0]["epoch_s"])
    for number in machines:
        table.add_column(f"{number} machines", justify="right")
    for entry in predictions:
        table.add_row(label(entry), *(_shown(entry["epoch_s"][number]) for number in machines))
    return table


def check_table(predictions: Sequence[dict], network: str) -> Table:
    """Predicted beside measured milliseconds per step, for the numbers of ranks that were run."""
    table = Table(title=f"the same model for the runs above: milliseconds per step, predicted for {network} / measured")
    table.add_column("scheme")
    for step in predictions[0]["steps"]:
        table.add_column(f"{step['ranks']} ranks", justify="right")
    for entry in predictions:
        cells = [
            f"{1e3 * step['predicted_s']:.1f} / {1e3 * step['measured_s']:.1f} "
            f"({step['predicted_s'] / step['measured_s'] - 1:+.0%})"
            for step in entry["steps"]
        ]
        table.add_row(label(entry), *cells)
    return table


def conditions_line(found: dict, graph: dict) -> str:
    """The conditions in one line."""
    return (
        f"{graph['name']} ({graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges); commit {found['commit']}, "
        f"torch {found['torch']}, Python {found['python']}, {found['cores']} cores ({found['processor']}, "
        f"{found['isa']}), {found['threads_per_rank']} thread(s) per rank, load before {found['load_before']:.1f}"
    )


def _shown(seconds: float) -> str:
    """Seconds with two decimals, three below one second."""
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}"
