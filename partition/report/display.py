"""What `fastsample-partition` shows: progress of the steps and the tables of the report (the only use of rich)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from fastsample_dist.command import make_console
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.multiplicity import EdgeCounts

try:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Table
except ImportError as error:
    raise ImportError(
        f"fastsample-partition shows its report with rich, which is not there ({error}); pip install rich."
    ) from error

LOG_INTERVAL_S = 10.0  # between two lines about a step that takes long
LOG_WIDTH = 118  # of tables in a log or a pipe, where there is no terminal to ask
_LABELS = {
    "read": "read and check the graph",
    "topology": "build the topology",
    "adjacency": "build the adjacency",
    "order": "put the nodes in order",
    "assign": "assign nodes to parts",
    "balance": "balance train nodes",
    "cluster": "cut the parts into clusters",
    "write": "write the parts",
    "verify": "verify checksums",
    "measure": "measure the partition",
    "check": "check the partition",
    "repartition": "write the new parts",
    "traffic": "sample batches",
    "plan": "make the plan",
}

_COUNTED_IN_BYTES = ("topology", "adjacency", "write", "verify", "check", "repartition")


class StepDisplay(Progress):
    """Shows steps: on a terminal with a bar and the time left, otherwise a plain line at the end of each.

    Where there is no terminal, a step that counts bytes prints every LOG_INTERVAL_S how far it has got and the time
    left.

    Args:
      around: {step: context manager factory} entered around a step. Such a step gets no moving bar: it may end the
        process, and a bar would leave the terminal's cursor hidden.
    Attributes:
      seconds: {step: seconds} of the finished steps.
      most_held: the most bytes reported to `memory_held`.
    """

    def __init__(self, around: Mapping[str, Callable[[], AbstractContextManager[None]]] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.most_held = 0
        self._around = around or {}
        self._console = _console()
        self._bar: Bar | None = None
        self._log = _StepLog("", self._console)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show one step and take its time."""
        label, begin = _LABELS[name], time.perf_counter()
        self._log = _StepLog(label, self._console)
        if name in self._around:
            if self._console.is_terminal:
                self._console.print(f"{label} ...")
            shown = self._around[name]()
        else:
            shown = (
                self._moving_bar(label, counts_bytes=name in _COUNTED_IN_BYTES)
                if self._console.is_terminal
                else nullcontext()
            )
        with shown:
            yield
        self.seconds[name] = time.perf_counter() - begin
        self._console.print(f"{label}: {self.seconds[name]:.1f} s", highlight=False)

    def bytes_total(self, count: int) -> None:
        """Give the bar of the running step a length."""
        self._log.total = count
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=count)

    def bytes_done(self, count: int) -> None:
        """Move the bar of the running step."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)
        elif not self._console.is_terminal:
            self._log.add(count)

    def memory_held(self, count: int) -> None:
        """Keep the most."""
        self.most_held = max(self.most_held, count)

    @contextmanager
    def _moving_bar(self, label: str, counts_bytes: bool) -> Iterator[None]:
        amount = (DownloadColumn(), TimeRemainingColumn()) if counts_bytes else ()
        with Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            *amount,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        ) as self._bar:
            self._bar.add_task(label, total=None)
            try:
                yield
            finally:
                self._bar = None


class _StepLog:
    """Plain lines about one step: how far it has got, and how long the rest will take at this pace."""

    def __init__(self, label: str, console: Console) -> None:
        self.total = 0
        self._label, self._console, self._done = label, console, 0
        self._begin = self._told = time.perf_counter()

    def add(self, count: int) -> None:
        self._done += count
        now = time.perf_counter()
        if now - self._told >= LOG_INTERVAL_S and 0 < self._done < self.total:
            self._told = now
            left = (now - self._begin) * (self.total - self._done) / self._done
            self._console.print(
                f"{self._label}: {self._done / self.total:.0%}, about {left:.0f} s left", highlight=False
            )


def print_report(report: Mapping[str, Any]) -> None:
    """Print the tables of a report (the same dict that --json writes) to standard output."""
    console = _console()
    for line in _summary(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_parts_table(report))
    for line in _type_lines(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(_files_table(report))


def format_bytes(count: int) -> str:
    """Bytes in decimal units with three or four digits: 999 B, 1.20 kB, 38.9 MB."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"


def origin_words(report: Mapping[str, Any]) -> str:
    """How many parts, and how they were made: method, seed and the options that were given."""
    given = {**report["stats"].get("options", {})}
    if "buffer" in given:
        given["buffer"] = format_bytes(given["buffer"])
    options = "".join(f", {name} {value}" for name, value in sorted(given.items()))
    return f"{report['num_parts']}, by {report['method']}, seed {report['seed']}{options}"


def _console() -> Console:
    shown = {"file": sys.stdout, "highlight": True}
    console = make_console(**shown, width=None)
    return console if console.is_terminal else make_console(**shown, width=LOG_WIDTH)


def _summary(report: Mapping[str, Any]) -> Iterator[str]:
    kind = "undirected, both directions stored" if report["undirected"] else "directed"
    yield f"{report['path']}: {report['name']}, format version {report['version']}"
    yield f"  nodes      {report['num_nodes']:,}"
    yield f"  edges      {report['num_edges']:,} ({kind}); largest in-degree {report['max_in_degree']:,}"
    yield f"  parts      {origin_words(report)}"
    for line in EdgeCounts(**report["edge_counts"]).lines():
        yield f"             {line}"
    if report["feature_dim"] is None:
        yield "  features   none"
    else:
        bad = report["stats"].get("nonfinite_features", 0)
        suffix = " with a scale per row" if report["feature_scales"] else ""
        suffix += f", {bad:,} values not finite" if bad else ""
        yield f"  features   {report['feature_dim']} x {report['feature_dtype']}{suffix}"
    if report["num_targets"]:
        yield f"  labels     {report['num_targets']} per node, {report['task']}"
    else:
        yield f"  classes    {report['num_classes'] or 'none'}"
    cut = report["edge_cut"]
    yield f"  edge cut   {cut['edges']:,} of {report['num_edges']:,} stored edges ({cut['fraction']:.2%})"
    if report["clusters"] is not None:
        clusters = report["clusters"]
        yield (
            f"  clusters   {clusters['number']:,} of {clusters['smallest']:,} to {clusters['largest']:,} nodes; "
            f"{clusters['edges_inside']:,} edges inside ({clusters['fraction_inside']:.2%})"
        )
    if report["stats"].get("train_nodes_moved"):
        yield f"  balance    {report['stats']['train_nodes_moved']:,} train nodes moved between parts"
    if "files_verified" in report:
        yield f"  checksums  {report['files_verified']} files verified"
    if "seconds" in report:
        yield f"  time       {report['seconds']['total']:.1f} s"
        yield f"  memory     {format_bytes(report['peak_resident_bytes'])} peak resident"


def _type_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Nodes of each type, in all and part by part."""
    if not report["node_types"]:
        return

    def counts(of_types: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in of_types.items())

    parts = [part["node_types"] for part in report["parts"]]
    yield f"nodes by type: {counts({name: sum(part[name] for part in parts) for name in report['node_types']})}"
    for number, part in enumerate(parts):
        yield f"  part {number}: {counts(part)}"


def _parts_table(report: Mapping[str, Any]) -> Table:
    splits = list(report["parts"][0]["splits"])
    table = Table(title="parts", title_justify="left")
    for heading in ("part", "nodes", "in-edges", "cut", "halo nodes", *splits, "own files"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in report["parts"]:
        cut = part["cut_in_edges"] / part["in_edges"] if part["in_edges"] else 0.0
        table.add_row(
            str(part["part"]),
            f"{part['nodes']:,}",
            f"{part['in_edges']:,}",
            f"{cut:.1%}",
            f"{part['halo_nodes']:,}",
            *(f"{part['splits'][split]:,}" for split in splits),
            format_bytes(part["bytes"]),
        )
    table.add_section()

    def ratio(column: str) -> str:
        return f"{report['balance'][column]:.3f}" if column in report["balance"] else "-"

    table.add_row("max/mean", ratio("nodes"), ratio("in_edges"), "", ratio("halo_nodes"), *map(ratio, splits), "")
    return table


def _files_table(report: Mapping[str, Any]) -> Table:
    sizes: dict[str, list[int]] = {}
    for name, count in report["bytes"]["files"].items():
        folder, _, file = name.partition("/")
        sizes.setdefault(name if folder == "topology" else f"part-*/{file}", []).append(count)
    table = Table(title="files", title_justify="left")
    for heading in ("file", "number", "largest", "total"):
        table.add_column(heading, justify="left" if heading == "file" else "right", no_wrap=True)
    for name, counts in sorted(sizes.items(), reverse=True):
        table.add_row(name, str(len(counts)), format_bytes(max(counts)), format_bytes(sum(counts)))
    table.add_section()
    every = list(report["bytes"]["files"].values())
    table.add_row("all", str(len(every)), format_bytes(max(every)), format_bytes(sum(every)))
    return table
