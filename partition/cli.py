"""The command `fastsample-partition`: cut a graph into parts, or report on a finished partition.

Everything about the graph goes to standard output: a line per step (a progress bar on a terminal), then the report.
Warnings and the one line of an error go to standard error. Exit status: 0 done, 1 refused or failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from fastsample_dist.command import Parser, add_json, run_command, signal_handled
from fastsample_dist.graph.inputs import FORMATS, ReadOptions, least_sizes, read_graph
from fastsample_dist.graph.labels import TASKS
from fastsample_dist.memory_sizes import parse_bytes, resident_bytes
from fastsample_dist.ops import checks
from fastsample_dist.partition.cli_edges import EDGE_LIST_OPTIONS, add_edge_list_options, edge_list_options
from fastsample_dist.partition.cli_streaming import STREAM_OPTIONS, add_stream_options, stream_options
from fastsample_dist.partition.external.journal import WorkInUseError, input_scratch, work_directory
from fastsample_dist.partition.external.rows import FEATURE_CHOICES
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.plan import command as plan_report
from fastsample_dist.partition.report import check
from fastsample_dist.partition.report import inspection as reporting
from fastsample_dist.partition.write import repartition
from fastsample_dist.partition.write.build import build_partition
from fastsample_dist.partition.write.checks import check_request
from fastsample_dist.partition.write.options import PartitionOptions

if TYPE_CHECKING:
    from fastsample_dist.partition.report.display import StepDisplay

PROGRAM = "fastsample-partition"
_INPUT_OPTIONS = (
    *("format", "undirected", "task", "num_parts", "method", "seed", "output", "overwrite"),
    *("assignment", *STREAM_OPTIONS, "memory_limit", "threads", "on_disk", "feature_dtype", "edge_map", "clusters"),
    *EDGE_LIST_OPTIONS,
)
_REPORT_OPTIONS = ("html", "num_batches", "fanouts", "batch_size")
# The options of each task, --json aside: what is not here does not go with it.
_OPTIONS_OF = {
    "plan": (
        *("input", "format", "undirected", "task", "num_parts", "memory_limit", "feature_dtype", *EDGE_LIST_OPTIONS),
        *(*STREAM_OPTIONS, "edge_map", "clusters", "num_batches", "fanouts", "batch_size", *plan_report.PLAN_OPTIONS),
    ),
    "repartition": ("input", "output", "overwrite", "clusters", "seed"),
    "input": _INPUT_OPTIONS,
    "inspect": _REPORT_OPTIONS,
    "check": (),
}
_TASKS = tuple(_OPTIONS_OF)  # --plan and --repartition go with --input and come first
_EPILOG = """examples:
  fastsample-partition --input data/cora --num-parts 2 --output parts/cora-2
  fastsample-partition --input edges.csv --format edgelist --undirected --num-parts 4 --output parts/edges-4
  fastsample-partition --input users.csv.zst --header --weight-column 3 --relabel --num-parts 4 --output parts/users
  fastsample-partition --input data/web --num-parts 8 --method random --memory-limit 2GB --output parts/web-8
  fastsample-partition --input data/web --num-parts 8 --method ldg --order bfs --passes 3 --output parts/web-8
  fastsample-partition --plan --input data/web --num-parts 8 --fanouts 15,10,5 --hosts-memory 64GB
  fastsample-partition --plan --num-nodes 111059956 --num-edges 1615685872 --feature-dim 128 --num-parts 16
  fastsample-partition --inspect parts/cora-2 --fanouts 15,10,5 --html report.html
  fastsample-partition --check parts/cora-2
  fastsample-partition --repartition parts/cora-2 4 --output parts/cora-4
  fastsample-partition --input data/cora --num-parts 2 --clusters 40 --output parts/cora-2
  fastsample-partition --repartition parts/cora-2 2 --clusters 40 --output parts/cora-2-clusters
  fastsample-partition --repartition 2 4 --input parts/cora-2 --output parts/cora-4
"""


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = Parser(
        prog=PROGRAM,
        description="Cut a graph into parts for distributed training, or inspect a finished partition.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--input", metavar="DIR", help="the graph to cut")
    task.add_argument("--inspect", metavar="PARTS", help="verify a finished partition and report on it")
    check.add_options(task)
    _add_input_options(parser.add_argument_group("the graph"))
    add_edge_list_options(parser)
    _add_cut_options(parser.add_argument_group("the cut"))
    add_stream_options(parser)
    _add_resource_options(parser.add_argument_group("memory, disk, threads"))
    _add_stored_options(parser.add_argument_group("what is stored"))
    repartition.add_options(parser)
    plan_report.add_options(parser)
    reporting.add_options(parser)
    reporting.add_sampling_options(parser)
    add_json(parser, "write the report as JSON too")
    return parser


def _add_input_options(group: argparse._ArgumentGroup) -> None:
    """What the graph is read as."""
    group.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help="of the input; recognised from the names of its files if not given. "
        + "; ".join(f"{name}: {item.summary}" for name, item in FORMATS.items()),
    )
    group.add_argument(
        "--undirected",
        action="store_true",
        default=None,
        help="every edge counts in both directions (npy states it in meta.json)",
    )
    group.add_argument(
        "--task",
        choices=TASKS,
        help="what the labels are for (default: as meta.json says; else a single column has classes, several are for "
        "multilabel when all values are 0, 1 or missing, and for regression when not)",
    )


def _add_cut_options(group: argparse._ArgumentGroup) -> None:
    """How it is cut, and where to."""
    group.add_argument("--num-parts", metavar="P", type=int, help="number of parts")
    methods = "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items())
    group.add_argument("--method", choices=tuple(METHODS), help=f"default: metis. {methods}")
    group.add_argument("--assignment", metavar="FILE", help="method file: the part of each node, .npy or text")
    group.add_argument("--seed", metavar="S", type=int, help="the same seed gives the same files (default: 0)")
    group.add_argument("--output", metavar="PARTS", help="directory to write; appears when complete")
    group.add_argument("--overwrite", action="store_true", default=None, help="replace a partition at --output")


def _add_resource_options(group: argparse._ArgumentGroup) -> None:
    """What the work may take."""
    group.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="memory to stay within, such as 2GB (default: the program itself and four fifths of what is available); "
        "what does not fit is sorted on disk beside the output, and a run that was killed resumes when it is started "
        "again",
    )
    group.add_argument(
        "--threads",
        metavar="T",
        type=int,
        help="that sort, read and cut (default: as many as OMP_NUM_THREADS says, or there are cores); of the methods "
        "kaminpar alone may give other parts with another number",
    )
    group.add_argument(
        "--on-disk",
        action="store_true",
        default=None,
        help="sort on disk even where memory would do (as large graphs are)",
    )


def _add_stored_options(group: argparse._ArgumentGroup) -> None:
    """What the partition holds beside the graph's own columns."""
    group.add_argument(
        "--feature-dtype",
        choices=FEATURE_CHOICES,
        help="store features as this type (default: keep the input's); int8: rounded, with a scale per row",
    )
    group.add_argument(
        "--edge-map",
        action="store_true",
        default=None,
        help="store for every edge its place in the input, so that features of the input's edges can be joined",
    )
    group.add_argument(
        "--clusters",
        metavar="K",
        type=int,
        help="cut the parts into K clusters in all, for training on unions of clusters (ClusterGCN); by METIS inside "
        "each part, so that a cluster lies in one part",
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
      argv: arguments without the program's name; those of the process by default.
    Returns:
      Exit status.
    """
    with _logs_shown():
        return run_command(make_parser(), _carry_out, argv, _remains)


def _carry_out(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """(exit status, report) of the requested task."""
    from fastsample_dist.partition.cli_tasks import TASKS

    _check_combination(args)
    for task, run in TASKS.items():
        if getattr(args, task) is not None:
            return run(args, _display(args))
    with _threads(args.threads):
        return 0, _partition(args)


def _partition(args: argparse.Namespace) -> dict[str, Any]:
    from fastsample_dist.partition.report.display import print_report

    options = PartitionOptions(
        num_parts=args.num_parts,
        method=args.method or "metis",
        seed=args.seed or 0,
        assignment=args.assignment,
        **stream_options(args),
        memory_limit=None if args.memory_limit is None else _memory_limit(args.memory_limit),
        on_disk=bool(args.on_disk),
        feature_dtype=args.feature_dtype or "keep",
        edge_map=bool(args.edge_map),
        clusters=args.clusters,
    )
    edges = edge_list_options(args)
    known = least_sizes(args.input, args.format, ReadOptions(undirected=args.undirected, edges=edges))
    plan = check_request(known, options, args.output, overwrite=bool(args.overwrite))
    display = _display(args, {"assign": options.method})
    begin = time.perf_counter()
    with input_scratch(args.output) as scratch:
        with display.step("read"):
            reading = ReadOptions(
                undirected=args.undirected,
                task=args.task,
                scratch=scratch,
                on_total=display.bytes_total,
                on_bytes=display.bytes_done,
                edges=edges,
                room_bytes=plan.limit - resident_bytes(),
            )
            raw = read_graph(args.input, args.format, reading)
        quality = build_partition(raw, options, args.output, overwrite=bool(args.overwrite), progress=display)
    seconds = {**display.seconds, "total": time.perf_counter() - begin}
    memory = {"peak_resident_bytes": max(resident_bytes(peak=True), display.most_held)}
    report = {"path": args.output, **quality.to_json(), "seconds": seconds, **memory}
    print_report(report)
    return report


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Inside the block so many threads work; None: as many as before."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(checks.whole("--threads", number, 1, checks.MOST_THREADS))
    try:
        yield
    finally:
        if number is not None:
            torch.set_num_threads(before)


def _display(args: argparse.Namespace, methods: Mapping[str, str] = MappingProxyType({})) -> StepDisplay:
    """Shows the steps; `methods`: {step: the method that it runs}, that of clusters left out.

    Where no Python handler would run, Ctrl-C ends the process at once; the input's scratch files stay behind then.
    """
    from fastsample_dist.partition.report.display import StepDisplay

    def at_once() -> AbstractContextManager[None]:
        return signal_handled(signal.SIGINT, signal.SIG_DFL)

    methods = {**methods, **({} if args.clusters is None else {"cluster": "metis"})}
    return StepDisplay(around={step: at_once for step, name in methods.items() if METHODS[name].blocks_signals()})


def _check_combination(args: argparse.Namespace) -> None:
    task = next((name for name in _OPTIONS_OF if getattr(args, name) is not None), None)
    if task is None:
        asked = " ".join(f"--{name}" for name in (*_TASKS[2:], *_TASKS[:2]))
        raise ValueError(f"one of the arguments {asked} is required; see {PROGRAM} --help.")
    for name in (*_TASKS, *_INPUT_OPTIONS, *_REPORT_OPTIONS, *plan_report.PLAN_OPTIONS):
        if name == task:
            continue
        if name not in _OPTIONS_OF[task] and getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} does not go with --{task}; leave it out.")
    if task != "input":
        return
    for name in ("num_parts", "output"):
        if getattr(args, name) is None:
            raise ValueError(f"--input needs --{name.replace('_', '-')}; see {PROGRAM} --help.")


def _memory_limit(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"--memory-limit {error}") from error


def _remains(args: argparse.Namespace | None, error: BaseException) -> str:
    """Where the unfinished work on the output is kept, as a sentence; nothing when there is none."""
    nothing = "no partial output is left." if isinstance(error, KeyboardInterrupt) else ""
    if args is None or not args.output or isinstance(error, WorkInUseError):
        return nothing
    work = work_directory(args.output)
    try:
        kept = work.is_dir()
    except OSError:  # an impossible name: nothing was made
        kept = False
    if not kept:
        return nothing
    if not args.overwrite and os.path.lexists(args.output):  # as after a kill once the output was complete
        return f"work is kept in {work}: the same command with --overwrite resumes from it, or delete it."
    return f"unfinished work is kept in {work}: the same command resumes from it, or delete it."


class _PlainLines(logging.Handler):
    """Warnings to standard error, notes to standard output."""

    def emit(self, record: logging.LogRecord) -> None:
        serious = record.levelno >= logging.WARNING
        kind = "warning" if serious else "note"
        print(f"{PROGRAM}: {kind}: {record.getMessage()}", file=sys.stderr if serious else sys.stdout, flush=True)


@contextmanager
def _logs_shown() -> Iterator[None]:
    handler = _PlainLines(logging.INFO)
    loggers = [logging.getLogger(name) for name in ("fastsample_dist", "partition")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
