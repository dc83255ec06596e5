"""Turns the trainers' events into the result: one record per epoch, medians with p10 and p90, and a table.

An epoch lasts as long as its slowest trainer. Its phases are means over the trainers, each of which adds up
to that trainer's own epoch. Counts and bytes are sums over the trainers or machines.
"""

from __future__ import annotations

import statistics

PHASES = ("sample_s", "copy_s", "forward_s", "backward_s", "optimizer_s", "other_s")
SUMMED = ("seeds", "sampled_edges", "input_nodes", "remote_inputs", "received_bytes")


def merge_epoch(records: list[dict]) -> dict:
    """Merge the records that the trainers made of the same epoch.

    Args:
      records: one per trainer, as training.train_epoch returns them.
    Returns:
      epoch_s (maximum), the phases (means), the counts (sums), loss (mean over seeds), remote_input_share and
      received_bytes_per_machine in rank order.
    """
    records = sorted(records, key=lambda record: record["rank"])
    merged = {"epoch": records[0]["epoch"], "epoch_s": max(record["epoch_s"] for record in records)}
    merged |= {name: statistics.fmean(record[name] for record in records) for name in PHASES}
    merged |= {name: sum(record[name] for record in records) for name in SUMMED}
    merged["steps"] = records[0]["steps"]
    merged["layer_rows"] = [sum(rows) for rows in zip(*(record["layer_rows"] for record in records), strict=True)]
    merged["loss"] = sum(record["loss_sum"] for record in records) / merged["seeds"]
    merged["remote_input_share"] = merged["remote_inputs"] / merged["input_nodes"]
    merged["received_bytes_per_machine"] = [record["received_bytes"] for record in records]
    return merged


def merge_epochs(events: list[dict]) -> list[dict]:
    """Return one merged record per timed epoch, in order."""
    by_epoch: dict[int, list[dict]] = {}
    for event in events:
        if event["event"] == "epoch":
            by_epoch.setdefault(event["epoch"], []).append(event)
    return [merge_epoch(by_epoch[epoch]) for epoch in sorted(by_epoch)]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie, interpolated linearly between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def summarise(epochs: list[dict]) -> dict[str, dict[str, float]]:
    """Return {"median", "p10", "p90"} over the epochs for every time, count and share."""
    names = ("epoch_s", *PHASES, *SUMMED, "steps", "remote_input_share", "loss")
    spread = {"median": 0.5, "p10": 0.1, "p90": 0.9}
    return {
        name: {label: percentile([epoch[name] for epoch in epochs], share) for label, share in spread.items()}
        for name in names
    }


def count_busy_cores(clocks: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the mean number of cores in use during the timed epochs, by the measured processes and by
    others.

    Others include the kernel's work for the network that no process is charged for.
    """
    begin, end = clocks["warm"], clocks["memory_begin"]
    wall, host, own = (end[name] - begin[name] for name in ("wall_s", "host_s", "own_s"))
    return {"measured": own / wall, "others": max(host - own, 0.0) / wall}


def build_result(raw: dict, conditions: dict) -> dict:
    """Return the machine-readable result.

    Args:
      raw: what session.py wrote.
      conditions: what the figures depend on: versions, machine, settings.
    Raises:
      ValueError: no timed epoch or no memory sample.
    """
    epochs = merge_epochs(raw["events"])
    if not epochs or not raw["pss_samples"]:
        raise ValueError(f"the run gave {len(epochs)} timed epochs and {len(raw['pss_samples'])} memory samples")
    ready_s = max(event["at_s"] for event in raw["events"] if event["event"] == "ready")
    return {
        "benchmark": "distdgl",
        "conditions": conditions,
        "graph": raw["graph"],
        "partition": raw["partition"],
        "startup_s": ready_s - raw["started_s"],
        "summary": summarise(epochs),
        "pss_bytes": {
            "median": int(statistics.median(raw["pss_samples"])),
            "peak": max(raw["pss_samples"]),
            "samples": len(raw["pss_samples"]),
        },
        "busy_cores": count_busy_cores(raw["clocks"]),
        "epochs": epochs,
        "exit_codes": raw["exit_codes"],
    }


def format_table(result: dict) -> str:
    """Return the result as a table for people: medians, and p10..p90 of every time."""
    summary = result["summary"]

    def row(label: str, name: str) -> str:
        spread = summary[name]
        return f"  {label:<24}{spread['median']:>9.2f} s   ({spread['p10']:.2f} .. {spread['p90']:.2f})"

    settings = result["conditions"]["settings"]
    machines = settings["machines"]
    trainers = machines * settings["trainers"]
    mode = f"{machines} machines, {machines} servers + {trainers} trainers" if machines else "one process, fused=True"
    lines = [
        f"DistDGL {result['conditions']['dgl']}: {mode}, one thread per process, dropout {settings['dropout']}, "
        f"links {settings['rate'] or 'unlimited'}",
        f"median of {len(result['epochs'])} epochs of {summary['steps']['median']:.0f} steps (p10 .. p90)",
        row("epoch", "epoch_s"),
        row("sample", "sample_s"),
        row("feature copy", "copy_s"),
        row("forward", "forward_s"),
        row("backward + all_reduce" if machines else "backward", "backward_s"),
        row("optimizer", "optimizer_s"),
        row("other", "other_s"),
        f"  {'sampled edges':<24}{summary['sampled_edges']['median'] / 1e6:>9.2f} M",
        f"  {'input nodes':<24}{summary['input_nodes']['median'] / 1e6:>9.2f} M",
    ]
    if machines:
        lines += [
            f"  {'remote inputs':<24}{100 * summary['remote_input_share']['median']:>9.1f} %",
            f"  {'received, all machines':<24}{summary['received_bytes']['median'] / 1e6:>9.1f} MB",
        ]
    pss, cores = result["pss_bytes"], result["busy_cores"]
    lines += [
        f"  {'summed PSS':<24}{pss['median'] / 1e9:>9.2f} GB  (peak {pss['peak'] / 1e9:.2f})",
        f"  {'start-up':<24}{result['startup_s']:>9.1f} s",
        f"  {'busy cores':<24}{cores['measured']:>9.2f}    (others {cores['others']:.2f})",
    ]
    return "\n".join(lines)
