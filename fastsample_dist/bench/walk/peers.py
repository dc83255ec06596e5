"""The peers: each walks in a process of its own, so that its memory is its own and can be put on huge pages.

A peer is named on the command line: `thunderrw=DIR` (a directory with its programs deepwalk.out, ppr.out and
node2vec.out, which the user has built), `dgl` and `pyg` (installed packages, run by peer_process.py). Every peer runs
twice: as it comes, and with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, which puts what malloc gives on huge pages without
a change to the peer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.bench.peers import PACKAGES, Baseline, require_packages, write_columns
from fastsample_dist.bench.walk.cases import STOP, P, Q, WalkCase
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import last_line, run_process

HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
THUNDERRW = "thunderrw"
PEER_PROCESS = "fastsample_dist.bench.walk.peer_process"
_THROUGHPUT = re.compile(r"(?<!\d )Throughput \(steps per second\): ([0-9.]+)")


def program(baseline: Baseline, case: WalkCase) -> Path | None:
    """ThunderRW's program for an application; None: it has none.

    Raises:
      ValueError: the directory lacks it.
    """
    if case.name == "uniform":
        return None
    return baseline.program(f"{case.name}.out", "the directory of its programs, such as build/random_walk")


@dataclass(frozen=True, kw_only=True)
class PeerRun:
    """What a peer is asked for.

    Attributes:
      case: the application.
      length: vertices that a walk adds.
      threads: that walk.
      folder: with the graph's files.
      trials: timed runs of a package, in one process; a program makes one run for each call.
      batch: walks per call of a package.
    """

    case: WalkCase
    length: int
    threads: int
    folder: Path
    trials: int
    batch: int


def write_graph(graph: CSCGraph, baselines: Sequence[Baseline], folder: Path) -> None:
    """Write the graph as the peers read it: .npy files for packages, ThunderRW's own format.

    ThunderRW: b_degree.bin (uint32 4, int32 nodes, int64 edges, int32 degrees), b_adj.bin (int32 neighbours) and
    b_edge_weight.bin (doubles).

    Raises:
      ValueError: the graph has more nodes than ThunderRW's int32 ids can tell apart.
    """
    if any(baseline.name in PACKAGES for baseline in baselines):
        write_columns(graph, folder)
    if any(baseline.name == THUNDERRW for baseline in baselines):
        if graph.num_nodes >= 2**31:
            raise ValueError(f"the graph has {graph.num_nodes} nodes; ThunderRW's ids end at 2**31 - 1.")
        with (folder / "b_degree.bin").open("wb") as file:
            np.array([4], np.uint32).tofile(file)
            np.array([graph.num_nodes], np.int32).tofile(file)
            np.array([graph.num_edges], np.int64).tofile(file)
            graph.in_degrees().to(torch.int32).numpy().tofile(file)
        graph.indices.to(torch.int32).numpy().tofile(folder / "b_adj.bin")
        if graph.weights is not None:
            graph.weights.to(torch.float64).numpy().tofile(folder / "b_edge_weight.bin")


def has_case(baseline: Baseline, case: WalkCase) -> bool:
    """Whether the peer has the application: ThunderRW has no uniform walks, PyG none by weight and none that end."""
    if baseline.name == THUNDERRW:
        return case.name != "uniform"
    return baseline.name == "dgl" or case.name in ("uniform", "node2vec")


def check_packages(baselines: Sequence[Baseline], cases: Sequence[WalkCase]) -> None:
    """Refuse packages that would walk and cannot be run.

    Raises:
      ImportError: one, or something that it needs, is missing.
    """
    packages = [baseline for baseline in baselines if baseline.directory is None]
    asked = [baseline.name for baseline in packages if any(has_case(baseline, case) for case in cases)]
    require_packages(asked, PEER_PROCESS)


def run_peer(baseline: Baseline, run: PeerRun, *, huge: bool) -> list[float]:
    """Steps per second of the peer, one figure per trial.

    Raises:
      RuntimeError: it failed; with its last line.
    """
    environment = {**own_environment(), "OMP_NUM_THREADS": str(run.threads), **(HUGE if huge else {})}
    if baseline.name == THUNDERRW:
        return [_thunderrw_rate(baseline, run, environment)]
    words = [sys.executable, "-m", PEER_PROCESS, baseline.name, run.case.name]
    words += [str(value) for value in (run.folder, run.length, run.threads, run.trials, run.batch)]
    done = run_process(words, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{baseline.name} ended with {done.returncode}: {last_line(done)}")
    return json.loads(done.stdout.splitlines()[-1])["rates"]


def _thunderrw_rate(baseline: Baseline, run: PeerRun, environment: dict[str, str]) -> float:
    """One run of its program over all its walks; its own clock, which is the walls' clock."""
    options = {"deepwalk": ("-ew",), "ppr": ("-sp", str(STOP)), "node2vec": ("-p", str(P), "-q", str(Q))}[run.case.name]
    length = () if run.case.one_root else ("-l", str(run.length))
    ran = program(baseline, run.case)
    words = [str(ran), "-f", str(run.folder), "-n", str(run.threads), *options, *length]
    done = run_process(words, env=environment)
    found = _THROUGHPUT.findall(done.stdout) or _THROUGHPUT.findall(done.stderr)
    if done.returncode != 0 or not found:
        raise RuntimeError(f"{ran.name} ended with {done.returncode}: {last_line(done)}")
    return float(found[-1])
