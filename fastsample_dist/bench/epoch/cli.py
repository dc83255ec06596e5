"""The subcommand `fastsample-bench epoch`: its options, and the ranks that it measures on.

Started alone, it starts the ranks itself. Started on every rank by a launcher (fastsample-launch, which --hosts starts,
torchrun, mpirun, srun) it measures on the ranks that are there, and rank 0 reports. Exit status: 0 only when everything
ran and all losses were equal.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fastsample_dist import DistContext
from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, given_options
from fastsample_dist.bench.epoch import measure as epoch
from fastsample_dist.bench.epoch import namespaces
from fastsample_dist.bench.epoch import report as epoch_report
from fastsample_dist.bench.epoch.measure import EpochOptions
from fastsample_dist.bench.epoch.rank import epoch_rank
from fastsample_dist.bench.graphs import GraphSource, is_drawn, work_folder
from fastsample_dist.bench.options import add_training
from fastsample_dist.bench.screen import Screen
from fastsample_dist.comm.agree import agree
from fastsample_dist.comm.environment import LaunchInfo, parse_environment
from fastsample_dist.files import write_json
from fastsample_dist.graph.network import Network
from fastsample_dist.pipeline.exchange import EXCHANGES, PAIRED
from fastsample_dist.pipeline.schemes import SCHEMES
from fastsample_dist.pipeline.transport import AUTO, EXCHANGE, TRANSPORTS
from fastsample_dist.testing.jobs import find_mpirun
from fastsample_dist.testing.supervisor import run_process

MEASURED = "measured"  # in place of a network: what the runs' own ranks saw
TIMEOUT_S = 600.0  # of one collective: ranks wait for the one that checks the topology's bytes
EXAMPLES = """examples:
  fastsample-bench epoch rmat:19:16 --ranks 1,2,4
  fastsample-bench epoch parts/products-4 --ranks 1,2,4 --model-network 25Gb/s,20us --json epoch.json
  fastsample-bench epoch rmat:17:16 --ranks 2,4 --namespaces --rate 1gbit      (root, Linux)
  fastsample-bench epoch parts/products-4 --hosts hosts.txt
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "epoch", help="seconds per epoch, split into the parts of a step", epilog=EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train epochs of {vanilla, hybrid} x {prefetch depths}, check that all losses are equal, and\n"
        "report seconds per epoch by part, exchanges and bytes by purpose, and the ratio to vanilla.",
    )  # fmt: skip
    add = sub.add_argument
    add("graph", metavar="GRAPH", help="a partition's directory, or rmat:SCALE:EDGE_FACTOR")
    add("--ranks", type=cl.counts, default=(1, 2, 4), help="numbers of ranks to start (default: 1,2,4)")
    add("--prefetch", type=depths, default=(0, 2), help="depths (default: 0,2)")
    add("--schemes", type=schemes, default=("vanilla", "hybrid"), help="(default: vanilla,hybrid)")
    add("--transport", choices=TRANSPORTS, default=AUTO, help="of other ranks' rows (default: %(default)s)")
    add("--exchange", choices=EXCHANGES, default=AUTO, help="how ranks meet for rows (default: %(default)s)")
    add_training(sub)
    add("--threads", type=cl.count, help="per rank (default: cores / most ranks, at least 1)")
    add(
        "--model-network",
        metavar="SPEED,LATENCY",
        type=network,
        help="e.g. 25Gb/s,20us, or measured: predict 2 to 64 machines",
    )
    add("--mpi", action="store_true", help="start the ranks with mpirun")
    add("--hosts", metavar="FILE", help="run on these machines by fastsample-launch; GRAPH and --json are paths there")
    add("--ssh", metavar="PROGRAM", default="ssh", help="what reaches them (default: %(default)s)")
    add("--namespaces", action="store_true", help="each rank on a host of its own, in network namespaces")
    add("--rate", help="of the hosts' links, e.g. 1gbit (with --namespaces; default: unlimited)")
    add("--deadline-s", type=cl.seconds, default=3600.0, help="for the ranks of one run (default: %(default)g)")
    cl.add_json(sub)


def run(words: Sequence[str], args: argparse.Namespace) -> tuple[int, dict]:
    """Measure, print; returns (exit status, results for --json).

    Args:
      words: arguments of the command, for the ranks of --hosts.
      args: the same, parsed.
    """
    info = parse_environment(os.environ)
    if info.launcher != "none":
        return _run_joined(args, info)
    if args.hosts:
        args.json = None  # rank 0 writes it
        return run_process(launch_command(words, args), captured=False).returncode, {}
    _check_network(args)
    screen = Screen()
    with work_folder(args.work) as work:
        options = _options(args, work)
        options.source.check(options.ranks)
        if args.model_network is not None:
            epoch.check_model(options.ranks, options.configurations)
        found = conditions(options.threads)
        runs = epoch.measure(options, screen.progress)
    return 0, _report(args, screen, found, runs)


def _check_network(args: argparse.Namespace) -> None:
    """Refuse ways to start ranks that do not go together or are missing here."""
    if args.rate and not args.namespaces:
        raise ValueError("--rate limits the links of --namespaces; pass both.")
    if args.namespaces:
        namespaces.check_rate(args.rate)
        reason = namespaces.missing_reason(args.rate)
        if reason is not None:
            raise ValueError(f"--namespaces cannot run here: {reason}.")
    if args.mpi and (args.namespaces or find_mpirun() is None):
        raise ValueError("--mpi needs mpirun beside this Python or on PATH, and does not go with --namespaces.")


def launch_command(words: Sequence[str], args: argparse.Namespace) -> list[str]:
    """The command that runs this one on every rank of --hosts.

    Args:
      words: this command's arguments.
      args: the same, parsed.
    """
    own = [word for word in words if not word.startswith(("--hosts=", "--ssh="))]
    for name in ("--hosts", "--ssh"):
        while name in own:
            place = own.index(name)
            del own[place : place + 2]
    launch = [sys.executable, "-m", "fastsample_dist.launch", "--hosts", args.hosts, "--ssh", args.ssh]
    return [*launch, "--", "-m", "fastsample_dist.bench.cli", *own]


def _run_joined(args: argparse.Namespace, info: LaunchInfo) -> tuple[int, dict]:
    """This process is one rank of a run that a launcher started. Collective: every rank must call this."""
    if args.namespaces or is_drawn(args.graph):
        raise ValueError(f"{info.launcher} started this process: pass a partition's directory, without --namespaces.")
    file, args.json = args.json, None  # rank 0 writes it
    with DistContext.from_env(timeout_s=min(TIMEOUT_S, args.deadline_s)) as ctx:
        args.ranks = (ctx.world_size,)
        if args.model_network is not None:
            epoch.check_model(args.ranks, [(scheme, depth) for scheme in args.schemes for depth in args.prefetch])
        options = _options(args, Path(tempfile.gettempdir()))
        torch.set_num_threads(args.threads or max(1, cl.usable_cores() // ctx.local_world_size))
        agree(ctx, lambda: options.source.check(args.ranks))
        found = conditions(torch.get_num_threads())
        own = epoch_rank(ctx, epoch.rank_settings(options, Path(args.graph)))
        results = ctx.comm.all_gather_object(own, purpose="benchmark")
        screen = Screen(quiet=ctx.rank != 0)
        report = _report(args, screen, found, [epoch.summarize(results, ctx.world_size)])
        if file is not None and ctx.rank == 0:
            write_json(file, report)
    return 0, report


def _options(args: argparse.Namespace, work: Path) -> EpochOptions:
    return EpochOptions(
        source=GraphSource(args.graph, work, args.method), ranks=args.ranks,
        configurations=tuple((scheme, depth) for scheme in args.schemes for depth in args.prefetch),
        training={
            "epochs": args.epochs, "batch_size": args.batch_size, "fanouts": args.fanouts, "hidden": args.hidden,
            "dropout": args.dropout, "lr": 0.006, "precision": args.precision, "rng_seed": args.seed,
            **ways_of(args),
        },
        threads=args.threads or max(1, cl.usable_cores() // max(args.ranks)),
        mpirun=find_mpirun() if args.mpi else None, namespaces=args.namespaces, rate=args.rate,
        deadline_s=args.deadline_s, timeout_s=min(TIMEOUT_S, args.deadline_s),
    )  # fmt: skip


def ways_of(args: argparse.Namespace) -> dict[str, str]:
    """{"transport", "exchange"} to run with: a model of a network is made of exchanges, each counted by its purpose.

    Raises:
      ValueError: others were given beside --model-network.
    """
    found = {"transport": args.transport, "exchange": args.exchange}
    if args.model_network is None:
        return found
    needed = {"transport": EXCHANGE, "exchange": PAIRED}
    for name, value in found.items():
        if value not in (AUTO, needed[name]):
            raise ValueError(f"--model-network needs --{name} {needed[name]}, not {value}; leave one of them out.")
    return needed


def _report(args: argparse.Namespace, screen: Screen, found: dict, runs: list[dict]) -> dict:
    """Print the tables; returns everything for --json."""
    where = "ranks on one machine"
    if args.namespaces:
        where = f"a host in network namespaces per rank, links {args.rate or 'unlimited'}"
    screen.lines([*busy_warning(found), epoch_report.conditions_line(found, runs[0]["graph"])])
    screen.table(epoch_report.times_table(runs, where))
    exchanged = epoch_report.comm_table(runs)
    if exchanged is not None:
        screen.table(exchanged)
    starts = ", ".join(f"{run['first_step_s']:.1f} s with {run['ranks']} rank(s)" for run in runs)
    screen.lines(
        [
            f"from the start of a process to its first step done: {starts}",
            f"losses are equal over {len(runs[0]['configurations'])} configurations, to the last bit",
        ]
    )
    results = {"command": "epoch", "conditions": found, "options": given_options(args), "runs": runs}
    if args.model_network is not None:
        threads, cores = found["threads_per_rank"], found["cores"]
        is_measured = args.model_network == MEASURED
        network = epoch.messages_of_runs(runs, epoch.NETWORK) if is_measured else Network.parse(args.model_network)
        predictions = epoch.model_network(runs, network, args.batch_size, threads / cores)
        of_processor = epoch.messages_of_runs(runs, epoch.PROCESSOR)
        title = f"{network}{', as measured' if is_measured else ''}; of a processor {of_processor}"
        screen.table(epoch_report.model_table(predictions, title))
        screen.table(epoch_report.check_table(predictions, title))
        results["model"] = predictions
    return results


def depths(text: str) -> tuple[int, ...]:
    """Argument type: "0,2" -> (0, 2), prefetch depths."""
    items = text.split(",")
    if not all(item.isdecimal() for item in items):
        raise argparse.ArgumentTypeError(f"must be a list of prefetch depths such as 0,2, not {text!r}")
    return tuple(int(item) for item in items)


def schemes(text: str) -> tuple[str, ...]:
    """Argument type: "vanilla,hybrid" -> ("vanilla", "hybrid")."""
    names = tuple(text.split(","))
    if not set(names) <= set(SCHEMES):
        raise argparse.ArgumentTypeError(f"must be a list of {' and '.join(SCHEMES)}, not {text!r}")
    return names


def network(text: str) -> str:
    """Argument type: a network that Network.parse understands, or MEASURED."""
    if text == MEASURED:
        return text
    try:
        Network.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
