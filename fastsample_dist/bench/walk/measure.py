"""The measurement of `fastsample-bench walk`: our sampler, its peers and the touch limit, in turns.

For every application and number of threads, a trial is one run of each contestant over its walks: ours in this process,
`batch` walks a call, each peer in a process of its own, as it comes and with huge pages. What slows the machine down
for a while slows all of them; only a package makes all its trials in one process, since reading the graph takes it
longer than walking. A rate is the contestant's own number of steps (vertices added to walks) divided by the seconds of
its calls, tables not included, which are reported beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

import fastsample_dist as fsd
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.sampling.touch import huge_table, read_rate, tuned
from fastsample_dist.bench.timing import spread, steady
from fastsample_dist.bench.walk.cases import WalkCase, with_weights
from fastsample_dist.bench.walk.peers import PeerRun, has_case, program, run_peer, write_graph
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.walk_slots import read_bytes

LIMIT_READS = 1 << 22
OURS, OWN = "fastsample_dist", "a user's, by Numba"


@dataclass(frozen=True, kw_only=True)
class WalkOptions:
    """What is run.

    Attributes:
      source: the graph.
      cases: applications.
      threads: numbers of threads.
      schedules: of our engine, one row each.
      length: vertices that a walk adds.
      walks: most walks of a trial; ThunderRW's programs make all of theirs.
      batch: walks per call.
      trials: runs of every contestant.
      rng_seed: of the weights and of every draw.
      baselines: peers.
      own: the same walks as a user's application too, compiled by Numba.
      limit: measure the touch limit.
    Raises:
      ValueError: a ThunderRW directory without the programs.
    """

    source: GraphSource
    cases: tuple[WalkCase, ...]
    threads: tuple[int, ...]
    schedules: tuple[str, ...] = ("auto",)
    length: int = 80
    walks: int = 1 << 18
    batch: int = 1 << 14
    trials: int = 5
    rng_seed: int = 0
    baselines: tuple[Baseline, ...] = ()
    own: bool = False
    limit: bool = False

    def __post_init__(self) -> None:
        for baseline in self.baselines:
            for case in self.cases if baseline.directory is not None else ():
                program(baseline, case)


def load_graph(options: WalkOptions, progress: Callable[[str], object]) -> CSCGraph:
    """The graph with weights, see `with_weights`, if some are needed.

    Raises:
      ValueError: it cannot be read.
    """
    graph = options.source.topology(progress)
    if graph.weights is None and any(case.weighted for case in options.cases):
        progress("drawing edge weights")
        graph = with_weights(graph, options.rng_seed)
    return graph


def measure(graph: CSCGraph, options: WalkOptions, folder: Path, progress: Callable[[str], object]) -> list[dict]:
    """Every application with every number of threads.

    Args:
      graph: from `load_graph`.
      options: what to run.
      folder: for the peers' files.
      progress: called with a line about what is done next.
    Returns:
      Per application and number of threads {"app", "threads", "walks", "contestants": [{"name", "pages", "median",
      "p10", "p90", "rates": steps per second, "steps": of one trial or None, "ratio": ours / its, "of_limit"}],
      "limit": as a contestant or None, "tables": {"seconds", "bytes"}, "resident_bytes"}.
    """
    progress("writing the graph for the peers")
    write_graph(graph, options.baselines, folder)
    return [
        _measure_one(graph, case, threads, options, folder, progress)
        for case in options.cases
        for threads in options.threads
    ]


def _measure_one(
    graph: CSCGraph, case: WalkCase, threads: int, options: WalkOptions, folder: Path,
    progress: Callable[[str], object],
) -> dict:  # fmt: skip
    roots = case.roots(graph, options.walks)
    np.save(folder / "roots.npy", roots.numpy())
    progress(f"{case.name} with {threads} thread(s): tables")
    start = time.perf_counter()
    made = {"num_threads": threads, "rng_seed": options.rng_seed}
    samplers = {
        _ours(schedule): fsd.TransitSampler(graph, case.make(options.length), schedule=schedule, **made)
        for schedule in options.schedules
    }
    tables = {"seconds": time.perf_counter() - start, "bytes": next(iter(samplers.values())).table_bytes}
    if options.own and case.make_own is not None:
        samplers[OWN] = fsd.TransitSampler(graph, case.make_own(options.length), **made)
    peers = [(baseline, huge) for baseline in options.baselines if has_case(baseline, case) for huge in (False, True)]
    rates: dict[tuple[str, bool | None], list[float]] = {}
    steps = 0
    for trial in range(options.trials):
        for name, sampler in samplers.items():
            progress(f"{case.name} with {threads} thread(s), trial {trial + 1}: {name}")
            steps, rate = our_rate(sampler, roots, options.batch)
            rates.setdefault((name, None), []).append(rate)
        for baseline, huge in peers:
            if baseline.directory is None and trial > 0:
                continue  # it made all of them in the first
            progress(f"{case.name} with {threads} thread(s), trial {trial + 1}: {baseline.name}")
            run = PeerRun(
                case=case, length=options.length, threads=threads, folder=folder, trials=options.trials,
                batch=options.batch,
            )  # fmt: skip
            rates.setdefault((baseline.name, huge), []).extend(run_peer(baseline, run, huge=huge))
    limit = _limit(graph, case, threads, options) if options.limit else None
    return _summary(case, threads, roots.numel(), steps, rates, limit) | {
        "tables": tables, "resident_bytes": resident_bytes(),
    }  # fmt: skip


def our_rate(sampler: fsd.TransitSampler, roots: Tensor, batch: int) -> tuple[int, float]:
    """(steps, steps per second) of one run over the roots, `batch` a call; before it one that counts and warms up."""
    groups, seconds = roots.split(batch), 0.0
    steps = sum(sampler.sample(group, step=number).nodes.numel() for number, group in enumerate(groups)) - roots.numel()
    with steady():
        for number, group in enumerate(groups):
            start = time.perf_counter()
            sampler.sample(group, step=number)
            seconds += time.perf_counter() - start
    return steps, steps / seconds


def resident_bytes() -> int | None:
    """Memory of this process that is resident now; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _ours(schedule: str) -> str:
    return OURS if schedule == "auto" else f"{OURS}, {schedule}"


def _limit(graph: CSCGraph, case: WalkCase, threads: int, options: WalkOptions) -> dict | None:
    """The touch limit of a step: one random read of the offsets and one of the neighbours, or of a table of the size of
    what picks read of the walk slots, on huge pages; None for node2vec, whose reads depend on what was drawn.
    """
    if case.name == "node2vec":
        return None
    touched = huge_table(read_bytes(graph.indices.dtype) * graph.num_edges) if case.weighted else graph.indices
    way = tuned(graph.indptr, touched, threads)
    rates = [
        read_rate(graph.indptr, touched, LIMIT_READS, threads=threads, way=way, seed=trial * LIMIT_READS)
        for trial in range(options.trials)
    ]
    return {"ahead": way.ahead, "level": way.level, **spread(rates)}


def _summary(
    case: WalkCase, threads: int, walks: int, steps: int, rates: dict[tuple[str, bool | None], list[float]],
    limit: dict | None,
) -> dict:  # fmt: skip
    contestants = []
    ours = None
    for (name, huge), found in rates.items():
        entry = {"name": name, "pages": {None: "ours", False: "as it comes", True: "huge"}[huge], **spread(found)}
        ours = ours or entry["median"]
        entry["ratio"] = ours / entry["median"]
        entry["of_limit"] = None if limit is None else entry["median"] / limit["median"]
        contestants.append(entry)
    return {
        "app": case.name, "threads": threads, "walks": walks, "steps": steps, "contestants": contestants,
        "limit": limit,
    }  # fmt: skip
