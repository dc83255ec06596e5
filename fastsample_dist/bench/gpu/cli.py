"""The subcommand `fastsample-bench gpu`: every figure that a GPU is needed for, by one command, as Markdown."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import fastsample_dist
from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import conditions as host_conditions
from fastsample_dist.bench.conditions import given_options
from fastsample_dist.bench.gpu import aggregate as gpu_aggregate
from fastsample_dist.bench.gpu import epoch as gpu_epoch
from fastsample_dist.bench.gpu import gather as gpu_gather
from fastsample_dist.bench.gpu import report as gpu_report
from fastsample_dist.bench.gpu import sampling as gpu_sampling
from fastsample_dist.bench.gpu import walk as gpu_walk
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.gpu.limits import LEAST_ARRAY_BYTES
from fastsample_dist.bench.gpu.walk_peers import NEXTDOOR, PACKAGES
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.screen import Screen
from fastsample_dist.files import check_separate, check_writable, write_json, write_text
from fastsample_dist.graph.csc import CSCGraph

PARTS = ("sampling", "gather", "aggregate", "walk", "epoch")
MIN_TRIALS = 5  # fewer give no tenth and ninetieth percentile worth printing
MIB = 1 << 20
OUTPUTS = ("part", "json", "markdown", "resume", "work")  # options that no figure depends on
EXAMPLES = """examples:
  fastsample-bench gpu --verify --markdown benchmarks/gpu-h200.md --json gpu.json --work DIR
  fastsample-bench gpu sampling --batch-sizes 2048 --fanouts 10 --hops 3
  fastsample-bench gpu gather --verify
"""


@dataclass(frozen=True)
class Run:
    """What all parts of a run share.

    Attributes:
      args: parsed.
      device, timer: what measures.
      source: of the graph.
      graph: its topology.
      progress: called with a line about what is done next.
    """

    args: argparse.Namespace
    device: GpuDevice
    timer: GpuTimer
    source: GraphSource
    graph: CSCGraph
    progress: Callable[[str], object]


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "gpu", help="sampling, gather_rows, aggregate, applications and a training epoch on one GPU, beside baselines",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure the GPU kernels, their baselines and the device's own limits in one run, and say which\n"
        "goals the figures meet. Exit status: 0 when everything ran and --verify found nothing, goals met or not.",
    )  # fmt: skip
    add = sub.add_argument
    add("part", nargs="?", choices=("all", *PARTS), default="all", help="what to run (default: %(default)s)")
    add("--graph", default="rmat:21:32", help="a partition of one part, or rmat:SCALE:EDGE_FACTOR (default: "
        "%(default)s)")  # fmt: skip
    add(
        "--batch-sizes",
        type=cl.counts,
        default=gpu_sampling.BATCH_SIZES,
        help="of sampling (default: 2048,4096,8192,10240)",
    )
    add("--fanouts", type=cl.counts, default=gpu_sampling.FANOUTS, help="of sampling, each for all hops "
        "(default: 10,15,20)")  # fmt: skip
    add("--hops", type=cl.counts, default=gpu_sampling.HOPS, help="of sampling (default: 2,3)")
    add("--read-mib", type=cl.count, default=LEAST_ARRAY_BYTES // MIB, metavar="MIB",
        help="array whose sectors are read at random; far more than the caches (default: %(default)s)")  # fmt: skip
    add("--rows", type=cl.count, default=1 << 22, help="of the tables of gather (default: %(default)s)")
    add("--ids", type=cl.count, default=1 << 22, help="rows that a call gathers (default: %(default)s)")
    add("--batch-size", type=cl.count, default=1000, help="of aggregate and epoch (default: %(default)s)")
    add("--widths", type=cl.counts, default=(128, 256), help="columns of aggregate's rows (default: 128,256)")
    add("--walks", type=cl.count, default=1 << 18, help="samples of a call of walk (default: %(default)s)")
    add("--length", type=cl.count, default=100, help="steps of its walks (default: %(default)s)")
    add("--baseline", action="append", default=[], metavar="PEER",
        help="of walk: dgl, pyg, cugraph, or nextdoor=DIR with its programs; may be repeated")  # fmt: skip
    add("--epochs", type=cl.count, default=3, help="timed ones of each way, after one warm-up (default: %(default)s)")
    add("--workers", type=cl.integer_from(0), default=None, metavar="N",
        help="processes of torch_geometric's loader, 0: none but this one (default: the cores)")  # fmt: skip
    add("--trials", type=cl.count, default=20, help=f"timed calls, at least {MIN_TRIALS} (default: %(default)s)")
    add("--warmup", type=cl.count, default=5, metavar="N", help="calls before them (default: %(default)s)")
    add("--verify", action="store_true", help="compare with the CPU before a case is timed; exit 1 where it differs")
    add_drawing(sub)
    add("--resume", metavar="FILE", type=Path, help="keep the results of every part that has ended in FILE, and take "
        "from it those of the same program, device, torch and options")  # fmt: skip
    add("--markdown", metavar="FILE", type=Path, help="write the report here too")
    cl.add_json(sub)


def run(args: argparse.Namespace, make_device: Callable[[], GpuDevice] = GpuDevice) -> tuple[int, dict]:
    """Measure, print; returns (exit status, results for --json).

    Args:
      args: of `add_command`.
      make_device: makes the device, or refuses.
    """
    if args.trials < MIN_TRIALS:
        raise ValueError(f"--trials is {args.trials}; expected at least {MIN_TRIALS}.")
    _baselines(args)
    named = (("--json", args.json), ("--markdown", args.markdown), ("--resume", args.resume))
    files = [(option, file) for option, file in named if file is not None]
    check_separate(files)
    for option, file in files:
        check_writable(option, file)
    device = make_device()
    with work_folder(args.work) as work:
        results, lines = _measure(args, device, work, Screen(stderr=True).progress)
    report = "\n".join(lines) + "\n"
    print(report, end="")
    if args.markdown is not None:
        write_text(args.markdown, report)
    return 0, results


def _measure(
    args: argparse.Namespace, device: GpuDevice, work: Path, progress: Callable[[str], object]
) -> tuple[dict, list[str]]:
    """(results, lines of the report)."""
    source = GraphSource(args.graph, work, method="random")
    if args.part in ("all", "epoch"):
        source.check((1,))
    else:
        source.check_topology()
    conditions = _conditions(args, device)
    graph = source.topology(progress)
    run = Run(args, device, GpuTimer(device, args.warmup, args.trials), source, graph, progress)
    conditions["graph"] = {
        "name": args.graph, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges,
        "id_type": str(graph.indices.dtype).removeprefix("torch."),
    }  # fmt: skip
    results: dict = {"command": "gpu", "conditions": conditions, "goals": []}
    body: list[str] = []
    kept = _KeptParts(args, conditions)
    for part in PARTS if args.part == "all" else (args.part,):
        measure, lines, goals = STEPS[part]
        if part not in kept.parts:
            kept.add(part, measure(run))
            device.release()
        results[part] = kept.parts[part]
        results["goals"] += goals(results[part])
        body += [*lines(results[part]), ""]
    conditions["device_after"] = device.conditions()
    head = ["# fastsample-bench gpu", "", *gpu_report.conditions_lines(conditions), ""]
    return results, [*head, *gpu_report.goal_lines(results["goals"]), "", *body]


class _KeptParts:
    """Results of the parts that have ended, by part; those of an earlier run among them if that was like this one.

    Args:
      args: of the command line; --resume names the file, or none.
      conditions: of this run.
    """

    def __init__(self, args: argparse.Namespace, conditions: dict) -> None:
        device, host = conditions["device"], conditions["host"]
        options = {name: value for name, value in given_options(args).items() if name not in OUTPUTS}
        key = {"program": _digest_of_program(), "torch": host["torch"], "device": device["device"], "options": options}
        self._file, self._key = args.resume, json.loads(json.dumps(key))
        self.parts: dict[str, dict] = {}
        if self._file is not None and self._file.exists():
            self.parts = self._read()

    def add(self, part: str, found: dict) -> None:
        """A part has ended."""
        self.parts[part] = found
        if self._file is not None:
            write_json(self._file, {"key": self._key, "parts": self.parts})

    def _read(self) -> dict[str, dict]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return found["parts"] if found["key"] == self._key else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--resume {self._file} does not hold parts of `fastsample-bench gpu` ({error}); name another file."
            ) from error


def _digest_of_program() -> str:
    """Of the package's modules and libraries, changes that are not committed among them."""
    found, root = hashlib.sha256(), Path(fastsample_dist.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".so"):
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _conditions(args: argparse.Namespace, device: GpuDevice) -> dict:
    return {
        "device": device.conditions(), "host": host_conditions(torch.get_num_threads()),
        "rng_seed": args.seed, "warmup": args.warmup, "trials": args.trials,
        "verified": args.verify,
    }  # fmt: skip


def _sampling(run: Run) -> dict:
    args = run.args
    options = gpu_sampling.GpuSamplingOptions(
        batch_sizes=args.batch_sizes, fanouts=args.fanouts, hops=args.hops, rng_seed=args.seed, verify=args.verify,
        limit_bytes=args.read_mib * MIB,
    )  # fmt: skip
    return gpu_sampling.measure(run.graph, run.device, run.timer, options, run.progress)


def _gather(run: Run) -> dict:
    args = run.args
    options = gpu_gather.GatherOptions(
        device_rows=args.rows, host_rows=args.rows, num_ids=args.ids, rng_seed=args.seed, verify=args.verify
    )
    return gpu_gather.measure(run.device, run.timer, options, run.progress)


def _aggregate(run: Run) -> dict:
    args = run.args
    options = gpu_aggregate.AggregateOptions(
        batch_size=args.batch_size, widths=args.widths, rng_seed=args.seed, verify=args.verify
    )
    return gpu_aggregate.measure(run.graph, run.device, run.timer, options, run.progress)


def _walk(run: Run) -> dict:
    args = run.args
    options = gpu_walk.GpuWalkOptions(
        samples=args.walks, length=args.length, rng_seed=args.seed, verify=args.verify, work=run.source.work,
        baselines=_baselines(args),
    )  # fmt: skip
    return gpu_walk.measure(run.graph, run.device, run.timer, options, run.progress)


def _baselines(args: argparse.Namespace) -> tuple[Baseline, ...]:
    return tuple(dict.fromkeys(Baseline.parse(text, NEXTDOOR, PACKAGES) for text in args.baseline))


def _epoch(run: Run) -> dict:
    args = run.args
    options = gpu_epoch.GpuEpochOptions(
        batch_size=args.batch_size, epochs=args.epochs, rng_seed=args.seed,
        workers=cl.usable_cores() if args.workers is None else args.workers,
    )  # fmt: skip
    return gpu_epoch.measure(run.source.parts(1, run.progress), run.device, options, run.progress)


def _no_goals(_: dict) -> list[dict]:
    return []


# By part: what measures it, the lines of the report, the goals.
STEPS: dict[str, tuple[Callable[[Run], dict], Callable[[dict], list[str]], Callable[[dict], list[dict]]]] = {
    "sampling": (_sampling, gpu_report.sampling_lines, gpu_report.sampling_goals),
    "gather": (_gather, gpu_report.gather_lines, gpu_report.gather_goals),
    "aggregate": (_aggregate, gpu_report.aggregate_lines, _no_goals),
    "walk": (_walk, gpu_report.walk_lines, gpu_report.walk_goals),
    "epoch": (_epoch, gpu_report.epoch_lines, _no_goals),
}
