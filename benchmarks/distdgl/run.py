"""Measures an epoch of DistDGL 1.1.3 on one host whose machines are Linux namespaces. See README.md.

run.py checks its arguments, starts session.py as the first process of new pid, mount and network
namespaces, waits for its result at most --deadline-s seconds, and prints and writes the figures. When
run.py ends, for any reason, the session ends, and with it the kernel removes everything it created.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from graph_input import FILES
from report import build_result, format_table
from settings import Settings

HERE = Path(__file__).resolve().parent
sys.path.append(
    str(HERE.parents[1])
)  # DGL's environment need not have fastsample_dist: these modules need nothing else
from fastsample_dist.command import Parser, add_json, run_command  # noqa: E402
from fastsample_dist.testing.supervisor import Supervisor  # noqa: E402

IDLE_LOAD = 0.5


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(prog="run.py", description="Measure an epoch of DistDGL 1.1.3 on machines made of namespaces.")
    parser.add_argument("--graph", required=True, metavar="NPY_DIR", help="input graph in npy format")
    parser.add_argument("--work", required=True, metavar="DIR", help="partitions, logs; kept for the next run")
    add_json(parser, "write the result as JSON")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--machines", type=int, default=2, help="each with one server (default 2)")
    mode.add_argument("--single", action="store_true", help="one-process DGL with its fused sampler instead")
    parser.add_argument("--trainers", type=int, default=1, help="on each machine (default 1)")
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs, after one warm-up epoch (default 5)")
    parser.add_argument("--batch-size", type=int, default=1000, help="seeds per trainer and step (default 1000)")
    parser.add_argument("--fanouts", default="15,10,5", help="per hop, from the seeds outwards (default 15,10,5)")
    parser.add_argument("--layers", type=int, default=3, help="layers; one fanout each (default 3)")
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers (default 256)")
    parser.add_argument("--dropout", type=float, default=0.5, help="0 leaves the operator out (default 0.5)")
    parser.add_argument("--lr", type=float, default=0.006, help="Adam's learning rate (default 0.006)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default 1)")
    parser.add_argument("--rate", help="bandwidth of every link in tc's notation, e.g. 1gbit (default: unlimited)")
    parser.add_argument("--repartition", action="store_true", help="do not use finished partitions in --work")
    parser.add_argument("--deadline-s", type=float, default=1800.0, help="kill everything after this (default 1800)")
    return parser


def build_settings(args: argparse.Namespace) -> Settings:
    """Return checked settings.

    Raises:
      ValueError: a value outside its range, or a graph directory without the files needed.
    """
    try:
        fanouts = tuple(int(fanout) for fanout in args.fanouts.split(","))
    except ValueError as error:
        raise ValueError(f"--fanouts is {args.fanouts!r}, expected numbers like 15,10,5") from error
    if len(fanouts) != args.layers:
        raise ValueError(f"--fanouts has {len(fanouts)} entries but --layers is {args.layers}; pass one per layer")
    graph = Path(args.graph).resolve()
    missing = [name for name in FILES if not (graph / name).is_file()]
    if missing:
        raise ValueError(f"--graph {graph} has no {', '.join(missing)}; expected a graph in npy format")
    return Settings(
        graph=str(graph),
        work=str(Path(args.work).resolve()),
        machines=0 if args.single else args.machines,
        trainers=args.trainers,
        epochs=args.epochs,
        batch_size=args.batch_size,
        fanouts=fanouts,
        hidden=args.hidden,
        dropout=args.dropout,
        lr=args.lr,
        seed=args.seed,
        rate=args.rate,
        repartition=args.repartition,
        deadline_s=args.deadline_s,
    )


def check_tools(settings: Settings) -> None:
    """Raise RuntimeError if a program that builds the machines is missing."""
    needed = ["unshare"]
    if not settings.single:
        needed += ["nsenter", "ip", "mount", *(["tc"] if settings.rate else [])]
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"cannot find {', '.join(missing)}; install util-linux and iproute2")


def namespace_command() -> list[str]:
    """Return the command that starts another as process 1 of new namespaces and kills it when it ends."""
    options = ["--fork", "--pid", "--mount", "--mount-proc", "--net", "--kill-child=KILL"]
    if os.geteuid() != 0:
        options += ["--user", "--map-root-user"]
    return ["unshare", *options, "--"]


def run_session(settings: Settings) -> dict:
    """Run session.py in its namespaces and return what it wrote.

    Raises:
      RuntimeError: the measurement failed, or took longer than the deadline.
    """
    work = Path(settings.work)
    work.mkdir(parents=True, exist_ok=True)
    settings_path, result_path = work / "settings.json", work / "result.json"
    settings.write(settings_path)
    result_path.unlink(missing_ok=True)
    arguments = ["--settings", str(settings_path), "--result", str(result_path)]
    command = [*namespace_command(), sys.executable, str(HERE / "session.py"), *arguments]
    with Supervisor() as supervisor:
        # Nothing is ever written to its standard input: its end tells the session that this process has ended.
        supervisor.start("session", command, stdin=subprocess.PIPE)
        status = supervisor.watch(settings.deadline_s)["session"]
    if status is None:
        raise RuntimeError(f"no result after {settings.deadline_s:.0f} s; see {work / 'logs'}")
    if not result_path.is_file():
        raise RuntimeError(
            f"the session ended with exit code {status} and no result; if unshare was refused, run as "
            "root or allow unprivileged user namespaces"
        )
    result = json.loads(result_path.read_text())
    if "error" in result:
        raise RuntimeError(result["error"])
    return result


def describe_conditions(settings: Settings, load: float) -> dict:
    """Return what the figures depend on.

    Args:
      settings: of this run.
      load: the one-minute load average before the run.
    """
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")}
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "settings": asdict(settings),
        "warm_up_epochs": 1,
        "threads_per_process": 1,
        "dgl": version("dgl"),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
        "cpu": sorted(models),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": load,
        "unix_time": time.time(),
    }


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Measure and print the table; returns (exit status, result for --json)."""
    settings = build_settings(args)
    check_tools(settings)
    load = os.getloadavg()[0]
    if load > IDLE_LOAD:
        print(f"warning: load average {load:.1f}; other work on this machine slows the figures down", flush=True)
    conditions = describe_conditions(settings, load)
    result = build_result(run_session(settings), conditions)
    print(format_table(result))
    return 0, result


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))
