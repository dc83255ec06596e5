"""What `fastsample-partition` does besides cutting a graph, as commands: carry out, print, report for --json."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastsample_dist.files import check_separate, check_writable
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.memory_sizes import resident_bytes
from fastsample_dist.page import require_matplotlib
from fastsample_dist.partition.plan.command import plan_input, plan_lines, plan_options
from fastsample_dist.partition.plan.prediction import make_plan
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.report.inspection import make_report, traffic_lines, traffic_options, write_html
from fastsample_dist.partition.write.repartition import repartition


def run_check(args: argparse.Namespace, progress: Progress) -> tuple[int, dict[str, Any]]:
    """Carry out --check and print the findings and the verdict.

    Returns:
      (exit status, report for --json).
    """
    manifest = read_manifest(args.check)
    findings = check_partition(args.check, progress=progress)
    for finding in findings:
        print(finding)
    verdict = "sound" if not findings else f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    size = sum(record["bytes"] for record in manifest.files.values())
    print(f"{args.check}: {verdict} ({manifest.num_parts} parts, {len(manifest.files)} files, {size:,} bytes)")
    records = [
        {"file": item.file, "position": item.position, "text": item.text, "count": item.count} for item in findings
    ]
    return int(bool(findings)), {"path": args.check, "num_parts": manifest.num_parts, "findings": records}


def run_inspect(args: argparse.Namespace, progress: Progress) -> tuple[int, dict[str, Any]]:
    """Carry out --inspect.

    Returns:
      (exit status, report for --json).
    Raises:
      ValueError: a damaged partition, an option out of place, a page that cannot be written.
      ImportError: --html without matplotlib.
    """
    from fastsample_dist.partition.report.display import print_report

    options = traffic_options(args)
    if args.html:
        require_matplotlib("--html", "--json")
        check_writable("--html", Path(args.html))
        check_separate((option, Path(file)) for option, file in (("--json", args.json), ("--html", args.html)) if file)
    report = make_report(args.inspect, options, progress)
    print_report(report)
    if "traffic" in report:
        print("\n".join(traffic_lines(report["traffic"])))
    if args.html:
        write_html(args.html, report)
        print(f"page: {args.html}")
    return 0, report


def run_repartition(args: argparse.Namespace, progress: Progress) -> tuple[int, dict[str, Any]]:
    """Carry out --repartition and print the new partition's figures.

    Returns:
      (exit status, report for --json).
    Raises:
      ValueError: --output is missing, NEW_P is not a number, OLD_P is not the number of parts there, or what
        `repartition` refuses.
    """
    from fastsample_dist.partition.report.display import print_report

    path, count = args.repartition
    if args.output is None:
        raise ValueError("--repartition needs --output; pass the directory of the new partition.")
    num_parts = _number_of_parts("NEW_P", count)
    if args.input is not None:
        stated, path = _number_of_parts("OLD_P", path), args.input
        found = read_manifest(path).num_parts
        if found != stated:
            raise ValueError(f"--repartition's OLD_P is {stated} but {path} has {found} parts; pass {found}.")
    if args.seed is not None and args.clusters is None:
        raise ValueError("--seed goes with --repartition only for --clusters; leave it out.")
    quality = repartition(
        path,
        num_parts,
        args.output,
        clusters=args.clusters,
        seed=args.seed or 0,
        overwrite=bool(args.overwrite),
        progress=progress,
    )
    report = {"path": args.output, **quality.to_json(), "repartitioned_from": path}
    print_report(report)
    return 0, report


def _number_of_parts(which: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--repartition's {which} is {text!r}; expected a number of parts, such as 8.") from None


def run_plan(args: argparse.Namespace, progress: Progress) -> tuple[int, dict[str, Any]]:
    """Carry out --plan and print the plan.

    Returns:
      (exit status, plan for --json).
    Raises:
      ValueError: options that do not go together, or an input whose sizes are unknown before it is read.
    """
    base = resident_bytes()  # of this program, before anything is looked at
    options = plan_options(args)
    given = plan_input(args)
    with progress.step("plan"):
        plan = make_plan(given, options, base)
    for line in plan_lines(plan):
        print(line)
    return 0, plan


# By the option that asks for it; each takes (arguments, progress) and returns (exit status, report).
TASKS = {"plan": run_plan, "inspect": run_inspect, "check": run_check, "repartition": run_repartition}
