"""What `fastsample-bench gpu` prints, as Markdown, and whether its goals are met: by the run's own numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastsample_dist.bench.gpu.gather import DEVICE, PINNED
from fastsample_dist.bench.gpu.sampling import BASELINE, CAPTURED
from fastsample_dist.ops.kernel_choice import KERNELS


@dataclass(frozen=True)
class Goal:
    """A figure that is to be reached.

    Attributes:
      text: what is to be reached, with its unit.
      bound: the value.
      is_upper: whether the figure must be below the bound, not at least as large.
      unit: what the figure is multiplied by when it is shown, and the unit's name.
    """

    text: str
    bound: float
    is_upper: bool = False
    unit: tuple[float, str] = (1.0, "x")

    def judge(self, found: float | None, where: str) -> dict:
        """{"goal", "found", "where", "met"}; found and met are None where nothing was measured."""
        met = None if found is None else found < self.bound if self.is_upper else found >= self.bound
        return {"goal": self.text, "found": found, "where": where, "met": met}

    def line(self, judged: dict) -> str:
        """One line of the report."""
        factor, name = self.unit
        if judged["met"] is None:
            return f"- not measured: {self.text}"
        word = "met" if judged["met"] else "MISSED"
        return f"- {word}: {self.text}: {judged['found'] * factor:,.2f} {name} ({judged['where']})"


def _speedup(kernel: str, of: str, bound: float) -> Goal:
    """A speedup of PGSampler over the baseline, for one kernel."""
    return Goal(f"{of}: {kernel} at least {bound:.2f}x the baseline's", bound)


SMALL, LARGE, LARGEST = (3, 10, 2048), (3, 15, 10240), (3, 20, 10240)  # hops, fanout, batch size
WHOLE_TIME = Goal("whole process of batch 2048, fanouts 10,10,10 under 200 us", 200e-6, True, (1e6, "us"))
CAPTURED_TIME = Goal("the same by a captured graph under 150 us", 150e-6, True, (1e6, "us"))
EDGE_RATE = Goal("batch 10240, fanouts 15,15,15: at least 6 G edges/s, relabelling included", 6e9, False, (1e-9, "G/s"))
# PGSampler, section V-B: the kernel gains most with large batches, fanouts and hops, the whole process at 3 hops with
# a small batch and fanout.
KERNEL_SPEEDUPS = {own: _speedup(own, "sampling kernels, batch 10240, fanouts 20,20,20", 1.57) for own in KERNELS}
WHOLE_SPEEDUPS = {own: _speedup(own, "whole process, batch 2048, fanouts 10,10,10", 2.22) for own in KERNELS}
DEVICE_GATHER = Goal("gather_rows of 128 float32 in device memory: at least 90 % of a copy", 0.90, False, (100.0, "%"))
PINNED_GATHER = Goal("gather_rows over the bus: at least 90 % of its rate", 0.90, False, (100.0, "%"))
NEXTDOOR_SPEEDUP = Goal("an application that NextDoor has: at least 1.5x its steps/s", 1.5)
GOALS = (
    WHOLE_TIME, CAPTURED_TIME, EDGE_RATE, *KERNEL_SPEEDUPS.values(), *WHOLE_SPEEDUPS.values(), DEVICE_GATHER,
    PINNED_GATHER, NEXTDOOR_SPEEDUP,
)  # fmt: skip


def sampling_goals(found: dict) -> list[dict]:
    """The goals of sampling: times judged by the best of our kernels, speedups by each of them."""
    return [
        _judge_sampler(WHOLE_TIME, found, SMALL, KERNELS, lambda entry: entry["whole_s"]["median"]),
        _judge_sampler(CAPTURED_TIME, found, SMALL, (CAPTURED,), lambda entry: entry["whole_s"]["median"]),
        _judge_sampler(EDGE_RATE, found, LARGE, KERNELS, lambda entry: entry["edges_s"]["median"]),
        *(
            _judge_sampler(goal, found, LARGEST, (own,), lambda entry: entry["speedup_kernels"])
            for own, goal in KERNEL_SPEEDUPS.items()
        ),
        *(
            _judge_sampler(goal, found, SMALL, (own,), lambda entry: entry["speedup_whole"])
            for own, goal in WHOLE_SPEEDUPS.items()
        ),
    ]


def gather_goals(found: dict) -> list[dict]:
    """The goals of gathering, judged by whole calls."""
    judged = []
    for goal, place in ((DEVICE_GATHER, DEVICE), (PINNED_GATHER, PINNED)):
        cases = [case for case in found["cases"] if case["place"] == place and case["dtype"] == "float32"]
        judged.append(goal.judge(cases[0]["of_limit"] if cases else None, place))
    return judged


def goal_lines(judged: Iterable[dict]) -> list[str]:
    """The goals as a list of Markdown."""
    goals = {goal.text: goal for goal in GOALS}
    return [goals[entry["goal"]].line(entry) for entry in judged]


def sampling_lines(found: dict) -> list[str]:
    """Tables and lines of `sampling.measure`."""
    reads = found["random_reads"]
    columns = ("hops", "fanout", "batch", "sampler", "whole us", "p10 - p90", "sampling kernels us", "all kernels us",
               "M edges", "G edges/s", "whole x", "kernels x", "of limit")  # fmt: skip
    rows = []
    for run in found["settings"]:
        for entry in run["samplers"]:
            whole = entry["whole_s"]
            rows.append((
                run["hops"], run["fanout"], run["batch_size"], entry["sampler"], _us(whole["median"]),
                f"{_us(whole['p10'])} - {_us(whole['p90'])}", _median_us(entry["sampling_kernels_s"]),
                _median_us(entry["kernels_s"]), f"{entry['edges'] / 1e6:.3f}",
                f"{entry['edges_s']['median'] / 1e9:.3f}", _times(entry["speedup_whole"]),
                _times(entry["speedup_kernels"]), f"{entry['of_limit']:.2f}",
            ))  # fmt: skip
    return [
        "## Sampling", "",
        f"Random reads of 32-byte sectors: {reads['sectors_s']['median'] / 1e9:.2f} G/s (p10 "
        f"{reads['sectors_s']['p10'] / 1e9:.2f}, p90 {reads['sectors_s']['p90'] / 1e9:.2f}; array of "
        f"{reads['array_bytes'] / 2**30:.1f} GiB, {reads['reads']:,} reads per trial).", "",
        *markdown_table(columns, rows), "",
        "whole: from seeds in device memory to the MFGs of all hops, the host's work and read-backs included; sampling "
        "kernels: those that draw neighbours and put them into their places, all hops together; x: the baseline's "
        "median over this one's; of limit: the distinct sectors of indices and indptr that the batch's hops must read, "
        f"at the random reads above, over the whole time. {BASELINE}: a block per row and host synchronisations in "
        "every hop, as DGL samples on a GPU.", "",
        *_speedup_lines(found["settings"]), *_crossover_lines(found["crossover"]),
    ]  # fmt: skip


def gather_lines(found: dict) -> list[str]:
    """Tables of `gather.measure`."""
    copy, bus = found["copy"]["bytes_s"], found["bus"]
    columns = ("rows in", "dtype", "hit rate", "MB per call", "GB/s", "p10 - p90", "limit", "of limit",
               "kernels of limit")  # fmt: skip
    rows = [
        (
            case["place"], case["dtype"], "-" if case["hit_rate"] is None else f"{case['hit_rate']:.0%}",
            f"{case['bytes'] / 1e6:,.1f}", _giga(case["bytes_s"]["median"]),
            f"{_giga(case['bytes_s']['p10'])} - {_giga(case['bytes_s']['p90'])}", case["limit"],
            f"{case['of_limit']:.0%}",
            "-" if case["kernels_of_limit"] is None else f"{case['kernels_of_limit']:.0%}",
        )
        for case in found["cases"]
    ]  # fmt: skip
    return [
        "## gather_rows", "",
        f"Copy inside device memory: {_giga(copy['median'])} GB/s read and written. Bus: copy engine "
        f"{_giga(bus['copy_bytes_s']['median'])} GB/s, a kernel reading in order "
        f"{_giga(bus['read_bytes_s']['median'])} GB/s; the limit is the better of the two.", "",
        *markdown_table(columns, rows), "",
        "Against the copy, bytes read and written count; against the bus, bytes that cross it (split: those of the "
        "rows that are not cached). GB: 10^9 bytes. Whole calls; \"kernels of limit\": by the time in kernels alone.",
    ]  # fmt: skip


def aggregate_lines(found: dict) -> list[str]:
    """Tables of `aggregate.measure`."""
    columns = ("width", "dtype", "reduce", "by", "forward us", "backward us", "forward GB/s", "this / fastsample_dist")
    rows = [
        (
            case["width"], case["dtype"], case["reduce"], way["way"], _us(way["forward_s"]["median"]),
            _us(way["backward_s"]["median"]), _giga(way["forward_bytes_s"]), f"{way['ratio']:.2f}x",
        )
        for case in found["cases"] for way in case["ways"]
    ]  # fmt: skip
    return [
        "## aggregate", "",
        f"{found['num_edges']:,} edges from {found['num_src']:,} to {found['num_dst']:,} nodes, the input-side hop of "
        "a mini-batch. Times: forward, and backward to the rows; last column: both together.", "",
        *markdown_table(columns, rows), "",
        *(f"{name} left out, first of {text}" for name, text in found["missing"].items()),
    ]  # fmt: skip


def walk_lines(found: dict) -> list[str]:
    """Table of `walk.measure`."""
    columns = ("application", "samples", "M steps per call", "by", "G steps/s", "p10 - p90", "kernels ms", "this / cpu")
    rows = []
    for case in found["cases"]:
        rates = {way["way"]: way["steps_s"] for way in case["ways"]}
        for way in case["ways"]:
            own, kernels = way["steps_s"], way["kernels_s"]
            rows.append((
                case["app"], f"{case['samples']:,}", f"{sum(case['steps']) / len(case['steps']) / 1e6:.2f}", way["way"],
                f"{own['median'] / 1e9:.3f}", f"{own['p10'] / 1e9:.3f} - {own['p90'] / 1e9:.3f}",
                "-" if kernels is None else f"{1e3 * kernels['median']:.3f}",
                f"{own['median'] / rates['cpu']['median']:.2f}x",
            ))  # fmt: skip
    return [
        "## Applications", "",
        f"Walks of {found['length']} steps (ppr: stop 0.2; node2vec: p 2, q 0.5), k-hop 25, 10; from roots in host "
        "memory to samples in device memory. cpu: this library's engine on all of torch's threads; captured: those "
        "of transit, recorded as a CUDA graph.", "",
        *markdown_table(columns, rows), "",
        *_missing_lines(found["cases"]), *_nextdoor_lines(found["nextdoor"]),
    ]  # fmt: skip


def _missing_lines(cases: Sequence[dict]) -> list[str]:
    """Which applications a package was left out of, a line per reason."""
    apps: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for reason in case["missing"].items():
            apps.setdefault(reason, []).append(case["app"])
    return [f"{name} left out of {', '.join(own)}: {why}." for (name, why), own in apps.items()]


def _nextdoor_lines(found: Sequence[dict]) -> list[str]:
    if not found:
        return []
    columns = ("application", "samples", "schedule", "G steps/s", "NextDoor, G steps/s", "this / NextDoor")
    rows = [
        (
            case["app"], f"{case['samples']:,}", way["way"], f"{way['steps_s']['median'] / 1e9:.3f}",
            f"{way['theirs_s']['median'] / 1e9:.3f}", _times(way["steps_s"]["median"] / way["theirs_s"]["median"]),
        )
        for case in found for way in case["ways"]
    ]  # fmt: skip
    return [
        "Beside NextDoor, from every node, walks of 100 steps; its clock is its own, from the first step to the last, "
        "ours that of a whole call. Its samples are no random walks: from the second step on its kernels draw the same "
        "numbers in every step.", "", *markdown_table(columns, rows),
    ]  # fmt: skip


def walk_goals(found: dict) -> list[dict]:
    """Beside NextDoor, by the better of our schedules and the better of its own."""
    judged = []
    for case in found["nextdoor"]:
        ours, theirs = (max(way[side]["median"] for way in case["ways"]) for side in ("steps_s", "theirs_s"))
        judged.append(NEXTDOOR_SPEEDUP.judge(ours / theirs, case["app"]))
    return judged or [NEXTDOOR_SPEEDUP.judge(None, "")]


def epoch_lines(found: dict) -> list[str]:
    """Tables of `epoch.measure`."""
    columns = ("way", "epoch s", "sample s", "gather s", "compute s", "sum of parts s", "this / first")
    first = found["ways"][0]["epoch_s"]["median"] if found["ways"] else 1.0
    rows = []
    for way in found["ways"]:
        parts = [way[name]["median"] for name in ("sample_s", "gather_s", "compute_s")]
        epoch = way["epoch_s"]["median"]
        shown = [f"{seconds:.3f}" for seconds in (epoch, *parts, sum(parts))]
        rows.append((way["way"], *shown, f"{epoch / first:.2f}x"))
    return [
        "## Training epoch on one GPU", "",
        f"{found['steps']} steps of {found['batch_size']} seeds, fanouts {','.join(map(str, found['fanouts']))}, "
        f"GraphSAGE of {found['hidden']} hidden columns, {found['feature_dim']} features.", "",
        *markdown_table(columns, rows), "",
        "epoch: without waiting between the parts; the parts come from epochs of their own, in which the device is "
        "waited for after each.",
        *(f"{name}: {text}" for name, text in found["missing"].items()),
    ]  # fmt: skip


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table as lines of Markdown."""
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (columns, *rows)]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:]]


def conditions_lines(found: dict) -> list[str]:
    """What the figures depend on, as a list of Markdown."""
    device, host, graph = found["device"], found["host"], found["graph"]
    after = found["device_after"]
    clocks = ", ".join(
        f"{name} {device[field]} before and {after.get(field)} after (at most {device.get(most)})"
        for name, field, most in (
            ("SM clock", "clocks_sm", "clocks_max_sm"), ("memory clock", "clocks_mem", "clocks_max_mem")
        )
        if field in device
    )  # fmt: skip
    return [
        f"- {device['device']}, {device['memory_bytes'] / 2**30:.0f} GiB, {device['multiprocessors']} multiprocessors, "
        f"capability {device['capability']}, driver {device.get('driver_version', 'unknown')}"
        + (f", power limit {device['power_limit']}; {clocks}" if clocks else ""),
        f"- commit {host['commit']}, fastsample_dist {host['fastsample_dist']}, torch {host['torch']} (CUDA "
        f"{device['cuda_of_torch']}), Python {host['python']}; {host['cores']} cores ({host['processor']}, "
        f"{host['isa']}), load before {host['load_before']:.1f}",
        f"- {graph['name']}: {graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges, {graph['id_type']} ids; seed "
        f"{found['rng_seed']}; {found['warmup']} warm-up calls, then {found['trials']} timed; medians by CUDA events",
        "- verified against the CPU before timing" if found["verified"] else "- not verified in this run",
    ]  # fmt: skip


def _judge_sampler(
    goal: Goal, found: dict, setting: tuple[int, int, int], judges: Sequence[str],
    figure: Callable[[dict], float | None],
) -> dict:  # fmt: skip
    hops, fanout, batch_size = setting
    candidates = [
        (value, entry["sampler"])
        for run in found["settings"] if (run["hops"], run["fanout"], run["batch_size"]) == (hops, fanout, batch_size)
        for entry in run["samplers"] if entry["sampler"] in judges and (value := figure(entry)) is not None
    ]  # fmt: skip
    if not candidates:
        return goal.judge(None, "")
    return goal.judge(*(min(candidates) if goal.is_upper else max(candidates)))


def _speedup_lines(runs: Sequence[dict]) -> list[str]:
    """PGSampler's figures 8 and 9 as one table: a row per kernel, hops and fanout, a column per batch size."""
    batch_sizes = sorted({run["batch_size"] for run in runs})
    cells: dict[tuple, dict[int, str]] = {}
    for run in runs:
        for entry in run["samplers"]:
            if entry["sampler"] in KERNELS:
                row = cells.setdefault((entry["sampler"], run["hops"], run["fanout"]), {})
                row[run["batch_size"]] = f"{_times(entry['speedup_kernels'])} / {_times(entry['speedup_whole'])}"
    rows = [(*row, *(own.get(size, "-") for size in batch_sizes)) for row, own in sorted(cells.items())]
    return [
        f"Speedup over {BASELINE}, by batch size: sampling kernels / whole process.", "",
        *markdown_table(("sampler", "hops", "fanout", *map(str, batch_sizes)), rows), "",
    ]  # fmt: skip


def _crossover_lines(found: dict | None) -> list[str]:
    if found is None:
        return []
    if found["edges"] == 0:
        text = f"{found['from']} at every setting"
    else:
        text = f"{found['below']} below {found['edges']:,.0f} sampled edges, {found['from']} from there on"
    return [f"Crossover: {text}; this choice takes {found['lost']:.1%} longer than the fastest kernel of each setting."]


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def _median_us(spread: dict | None) -> str:
    return "-" if spread is None else _us(spread["median"])


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _giga(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:,.1f}"
