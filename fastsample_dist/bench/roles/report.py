"""What `fastsample-bench roles` prints."""

from __future__ import annotations

from rich.table import Table

from fastsample_dist.memory_sizes import format_size


def conditions_lines(found: dict, run: dict, options: dict, repeats: str) -> list[str]:
    """What the figures of one number of ranks depend on.

    Args:
      found: see bench/conditions.py.
      run: see `summarize`.
      options: of the command.
      repeats: of epochs, in words.
    """
    graph, times = run["graph"], run["times"]
    stages = (("sample", "sample_s"), ("fetch", "fetch_s"), ("train", "train_s"), ("copy to the queue", "handover_s"))
    device = "" if options["device"] == "cpu" else f"; on {found['gpu']}, {_memory_of(options)}"
    if times["fetch_factored_s"] is not None:
        stages = (*stages, ("fetch on ranks that only train", "fetch_factored_s"))
    updates = f"an update {1e3 * times['update_s']:.2f}, the sum of gradients over ranks {1e3 * times['sum_s']:.2f}"
    updates += f", waiting for the slowest {1e3 * times['skew_s']:.2f}"
    return [
        f"{graph['name']}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges; commit {found['commit']}, torch "
        f"{found['torch']}, {found['cores']} cores ({found['processor']}, {found['isa']}), "
        f"{found['threads_per_rank']} thread(s) per rank, load before {found['load_before']:.1f}",
        f"{run['ranks']} ranks, {run['tasks']} tasks of {options['batch_size']} seeds an epoch, fanouts "
        f"{','.join(map(str, options['fanouts']))}, hidden {options['hidden']}, staleness {options['staleness']}; "
        f"{repeats}{device}",
        "measured medians per task, ms: "
        + ", ".join(f"{name} {1e3 * times[key]:.2f}" for name, key in stages)
        + f"; of a step: {updates}; a rank alone takes {run['alone']:.2f} of that",
    ]


def ways_table(run: dict) -> Table:
    """Predicted beside measured, one row per way of sharing the work."""
    table = Table(title=f"seconds of an epoch, {run['ranks']} ranks")
    table.add_column("roles")
    for column in ("predicted", "median", "p10", "p90", "error", "to none", "by standbys"):
        table.add_column(column, justify="right")
    has_caches = any(way["hit_rate"] is not None for way in run["ways"])
    for column in ("cached rows", "hits") if has_caches else ():
        table.add_column(column, justify="right")
    none_s = run["ways"][0]["epoch_s"]["median"]
    for way in run["ways"]:
        name = way["name"] if way["error"] is not None else f"{way['name']}: {way['roles']}"
        predicted = ("", "") if way["error"] is None else (f"{way['predicted_s']:.3f}", f"{100 * way['error']:+.1f} %")
        spread = [f"{way['epoch_s'][key]:.3f}" for key in ("median", "p10", "p90")]
        ratio = f"{way['epoch_s']['median'] / none_s:.2f}x"
        cells = [name, predicted[0], *spread, predicted[1], ratio, f"{way['stood_by']:.0f}"]
        if has_caches:
            has_one = way["hit_rate"] is not None
            cells += [f"{way['cache_rows']:,}", f"{100 * way['hit_rate']:.1f} %"] if has_one else ["", ""]
        table.add_row(*cells)
    return table


def _memory_of(options: dict) -> str:
    size = options["gpu_memory"]
    return f"{'its share' if size is None else format_size(size)} of the memory for each rank's topology and cache"


def verdict(run: dict) -> str:
    """What was chosen, what was best, and what the paper's rule says."""
    where = "within" if run["auto"]["is_best"] else "above"
    return (
        f"predicted best {run['predicted_best']}, measured best {run['best']}, GNNLab's rule {run['paper']} "
        f"sampler(s); auto took {run['auto']['roles']}, its median is {where} the best row's p10-p90"
    )
