"""The subcommand `fastsample-bench roles`: its options, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fastsample_dist import command as cl
from fastsample_dist.bench import options as shared
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.roles.measure import RolesOptions, measure
from fastsample_dist.bench.roles.rank import split_ways
from fastsample_dist.bench.roles.report import conditions_lines, verdict, ways_table
from fastsample_dist.bench.screen import Screen
from fastsample_dist.device.choice import cuda_refusal
from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.testing.jobs import find_mpirun

SWITCHING = {"on": (True,), "off": (False,), "both": (True, False)}
EXAMPLES = """examples:
  fastsample-bench roles                                         splits of 2 ranks on a drawn graph
  fastsample-bench roles --device cuda --gpu-memory 2GB          the same on a GPU: a sampler's and a trainer's process
  fastsample-bench roles --graph debian --ranks 2,4 --batch-size 256 --verify --json roles.json
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "roles", help="predicted and measured epochs for every split of ranks into samplers and trainers",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train GraphSAGE by time sharing, in every split into samplers and trainers, and with roles that\n"
        "\"auto\" chooses, in turns; predict each from the times of the stages that the same run measured.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add = sub.add_argument
    shared.add_graph(sub, default="rmat:16:16")
    add("--ranks", type=cl.counts, default=(2,), help="numbers of ranks to start, 2 or more each (default: 2)")
    add("--switching", choices=SWITCHING, default="both", help="samplers train at the end (default: %(default)s)")
    add("--staleness", type=cl.integer_from(0), default=0, help="of the splits, not of auto (default: %(default)s)")
    add("--epochs", type=cl.count, default=7, help="timed ones, after one warm-up epoch (default: %(default)s)")
    add("--hidden", type=cl.count, default=128, help="columns of a hidden row (default: %(default)s)")
    add("--dropout", type=cl.share, default=0.5, help="(default: %(default)s)")
    add("--method", default="metis", help="how a generated graph is cut (default: %(default)s)")
    add("--batch-size", type=cl.count, default=128, help="seeds per task (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="one per layer (default: 15,10,5)")
    shared.add_drawing(sub)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="on cuda the ranks share the machine's GPUs, and "
        "features are read from host memory through a cache on each (default: %(default)s)")  # fmt: skip
    add("--gpu-memory", type=_size, metavar="SIZE",
        help="of its GPU that a rank's topology and cache may take (default: its share)")  # fmt: skip
    add("--threads", type=cl.count, default=1, help="per rank (default: %(default)s)")
    add("--mpi", action="store_true", help="start the ranks with mpirun")
    add("--verify", action="store_true", help="compare the losses of all ways, with a staleness of all splits; "
        "exit 1 where they differ")  # fmt: skip
    add("--deadline-s", type=cl.seconds, default=1800.0, help="for the ranks of one run (default: %(default)g)")
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Measure, print; returns (exit status, results for --json)."""
    if min(args.ranks) < 2:
        raise ValueError(f"--ranks is {','.join(map(str, args.ranks))}; roles need 2 ranks or more.")
    if args.verify and args.staleness and len(split_ways(min(args.ranks), SWITCHING[args.switching])) < 2:
        raise ValueError(
            f"--verify compares the splits of --staleness {args.staleness}, and 2 ranks have one with --switching "
            f"{args.switching}; pass --switching both, more ranks, or --staleness 0."
        )
    if args.device == "cpu" and args.gpu_memory is not None:
        raise ValueError("--gpu-memory is given with --device cpu; pass --device cuda, or leave it out.")
    if args.device == "cuda" and (refusal := cuda_refusal()):
        raise ValueError(f"--device is cuda but {refusal}.")
    if args.mpi and find_mpirun() is None:
        raise ValueError("--mpi needs mpirun beside this Python or on PATH; install it or leave --mpi out.")
    screen = Screen()
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check(options.ranks)
        found = conditions(options.threads) | ({"gpu": torch.cuda.get_device_name()} if args.device == "cuda" else {})
        runs = measure(options, screen.progress)
    screen.lines(busy_warning(found))
    repeats = f"medians of {args.epochs} epochs after one warm-up, all ways in turns"
    failures = []
    for entry in runs:
        screen.lines(conditions_lines(found, entry, vars(args), repeats))
        screen.table(ways_table(entry))
        screen.lines([verdict(entry)])
        failures += [f"{name} with {entry['ranks']} ranks" for name in entry["differences"]]
    if args.verify:
        screen.lines([f"verify: FAILED: other losses by {', '.join(failures)}" if failures else "verify: equal losses"])
    results = {"command": "roles", "conditions": found, "options": given_options(args), "runs": runs}
    return int(args.verify and bool(failures)), results


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _options(args: argparse.Namespace, work: Path) -> RolesOptions:
    return RolesOptions(
        source=GraphSource(args.graph, work, args.method), ranks=args.ranks, switching=SWITCHING[args.switching],
        settings={
            "epochs": args.epochs, "batch_size": args.batch_size, "fanouts": args.fanouts, "hidden": args.hidden,
            "dropout": args.dropout, "rng_seed": args.seed, "staleness": args.staleness, "device": args.device,
            "gpu_memory": args.gpu_memory,
        },
        threads=args.threads, mpirun=find_mpirun() if args.mpi else None, deadline_s=args.deadline_s,
    )  # fmt: skip
