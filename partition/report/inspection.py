"""`fastsample-partition --inspect PARTS`: figures of a finished partition, as tables, JSON and an HTML page.

The partition's own figures are counted from its files (quality.py). With --fanouts the traffic of training is measured
by sampling (traffic.py). --html writes both, with plots, as one page (html.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastsample_dist.files import write_text
from fastsample_dist.graph.storage import read_manifest, verify_files
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.cache_advice import advice_text
from fastsample_dist.partition.report.html import render_html
from fastsample_dist.partition.report.quality import measure_partition
from fastsample_dist.partition.report.traffic import TrafficOptions, measure_traffic

DEFAULT_BATCH_SIZE = 1000
_SHOWN_SHARES = (0, 0.01, 0.05, 0.1, 0.2, 0.5)


def make_report(
    path: str | Path, traffic: TrafficOptions | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Verify a partition's checksums and count its figures.

    Args:
      path: the partition's directory, with all parts in it.
      traffic: measure the traffic of training too.
      progress: gets the steps "verify", "measure" and, with traffic, "traffic".
    Returns:
      The figures as plain values for JSON; "traffic" only when it was requested.
    Raises:
      ValueError: a file is missing, damaged or foreign (by name); traffic without train nodes.
    """
    progress = progress or Progress()
    manifest = read_manifest(path)
    with progress.step("verify"):
        progress.bytes_total(sum(record["bytes"] for record in manifest.files.values()))
        for name, record in manifest.files.items():
            verify_files(path, manifest, [name])
            progress.bytes_done(record["bytes"])
    with progress.step("measure"):
        quality = measure_partition(path, manifest)
    report = {"path": str(path), **quality.to_json(), "files_verified": len(manifest.files)}
    if traffic is not None:
        with progress.step("traffic"):
            progress.bytes_total(manifest.num_parts)  # what is shown is the share that is done; here of the parts
            on_part = partial(progress.bytes_done, 1)
            report["traffic"] = measure_traffic(path, manifest, traffic, on_part=on_part).to_json()
    return report


def write_html(path: str | Path, report: Mapping[str, Any]) -> None:
    """Write a report as an HTML page; the file appears when complete.

    Raises:
      ImportError: matplotlib is not installed.
      OSError: the disk refuses.
    """
    write_text(Path(path), render_html(report))


def traffic_lines(traffic: Mapping[str, Any]) -> Iterator[str]:
    """The traffic of a report in words and columns, for the terminal."""
    from fastsample_dist.partition.report.display import format_bytes

    options, rows, epoch = traffic["options"], traffic["remote_rows_per_step"], traffic["epoch_bytes"]
    fanouts = ",".join(map(str, options["fanouts"]))
    yield f"traffic, one machine per part, fanouts {fanouts}, {options['batch_size']:,} seeds per step"
    yield "  part  steps/epoch   input rows  remote rows  +- error  remote  batches"
    for part in traffic["parts"]:
        share = part["remote_rows"] / part["input_rows"] if part["input_rows"] else 0.0
        yield (
            f"  {part['part']:>4}  {part['steps']:>11,}  {part['input_rows']:>11,.0f}  {part['remote_rows']:>11,.0f}"
            f"  {part['remote_rows_error']:>8,.0f}  {share:>6.1%}  {part['batches']:>7,}"
        )
    yield f"  remote rows per step and machine  {rows['mean']:,.0f} (standard error {rows['standard_error']:,.0f})"
    error = format_bytes(round(epoch["standard_error_of_hybrid"]))
    yield f"  bytes per epoch, hybrid           {format_bytes(round(epoch['hybrid']))} (standard error {error})"
    yield f"  bytes per epoch, vanilla          {format_bytes(round(epoch['vanilla']))}"
    points = {policy: {point["share"]: point for point in curve} for policy, curve in traffic["cache"].items()}
    yield "  cached nodes per machine  " + "".join(f"{100 * share:>9g} %" for share in _SHOWN_SHARES)
    for policy, curve in points.items():
        sizes = (format_bytes(round(curve[share]["epoch_bytes"])) for share in _SHOWN_SHARES)
        yield f"  bytes per epoch, {policy:<9}" + "".join(f"{size:>11}" for size in sizes)
    if traffic["cache_advice"] is not None:
        yield f"  advice: {advice_text(traffic['cache_advice'])}"


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what --inspect takes besides --json: --html and --num-batches."""
    parser.add_argument("--html", metavar="FILE", help="inspect: write the report as a self-contained page with plots")
    parser.add_argument(
        "--num-batches",
        metavar="N",
        type=int,
        help="inspect with --fanouts: batches that are sampled per part to measure traffic (default: 32)",
    )


def add_sampling_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of the training whose traffic is measured: --fanouts and --batch-size."""
    parser.add_argument(
        "--fanouts", metavar="F,F,...", help="neighbours per node and hop from the seeds outwards, such as 15,10,5"
    )
    parser.add_argument(
        "--batch-size", metavar="B", type=int, help=f"seeds per machine and step (default: {DEFAULT_BATCH_SIZE})"
    )


def parse_fanouts(text: str) -> tuple[int, ...]:
    """15,10,5 -> (15, 10, 5).

    Raises:
      ValueError: anything other than integers between commas.
    """
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise ValueError(
            f"--fanouts is {text!r}; expected integers with commas between them, such as 15,10,5."
        ) from None


def traffic_options(args: argparse.Namespace) -> TrafficOptions | None:
    """What the options ask to measure; None without --fanouts.

    Raises:
      ValueError: a value out of range, or an option that needs --fanouts.
    """
    if args.fanouts is None:
        for name in ("batch_size", "num_batches"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} goes with --fanouts only; pass --fanouts 15,10,5.")
        return None
    given = {} if args.num_batches is None else {"num_batches": args.num_batches}
    batch_size = DEFAULT_BATCH_SIZE if args.batch_size is None else args.batch_size
    return TrafficOptions(fanouts=parse_fanouts(args.fanouts), batch_size=batch_size, **given)
