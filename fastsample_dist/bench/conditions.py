"""The conditions under which figures were taken, besides the options."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

from fastsample_dist import __version__
from fastsample_dist.command import usable_cores
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import isa

BUSY_LOAD = 0.5


def conditions(threads: int) -> dict:
    """What the figures depend on besides the options."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "fastsample_dist": __version__, "commit": commit.stdout.strip() or None, "torch": torch.__version__,
        "numpy": np.__version__, "python": platform.python_version(), "processor": _processor(), "isa": isa(),
        "cores": usable_cores(), "threads_per_rank": threads, "kernel": platform.release(),
        "load_before": os.getloadavg()[0], "unix_time": time.time(),
    }  # fmt: skip


def busy_warning(found: dict) -> list[str]:
    """A line about other work on this machine, where there was any before the run."""
    load = found["load_before"]
    return [f"warning: load average {load:.1f} before the run: other work slows it"] if load > BUSY_LOAD else []


def given_options(args: argparse.Namespace) -> dict:
    """The options of a run as JSON takes them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def first_results(command: str, found: dict, args: argparse.Namespace, name: str, graph: CSCGraph) -> dict:
    """What the results of a benchmark on one graph begin with, for --json; `found` are its conditions."""
    size = {"name": name, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    return {"command": command, "conditions": found, "options": given_options(args), "graph": size}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
