"""`fastsample-bench gpu walk`: samples of applications by every schedule, recorded and not, beside the CPU's engine.

A step is a vertex that a sample has besides its roots, or an edge that it records. A call makes all samples from roots
in host memory; they stay in device memory. Walks that have ended make no further steps. Applications that pick for all
transits of a sample together know no schedule: they are run by one, with samples that are batches. walk_peers.py has
the peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastsample_dist import TransitSampler
from fastsample_dist.bench.gpu import walk_peers
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.timing import spread
from fastsample_dist.bench.walk.cases import CASES, WalkCase, with_weights
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit.captured import CapturedTransit
from fastsample_dist.sampling.transit.samples import Samples

SCHEDULES = ("sample", "transit", "transit_flat")
CPU, CAPTURED = "cpu", "captured"  # the kernels of "transit", which are many a step, replayed as a CUDA graph
APPS = (
    *CASES.values(),
    WalkCase(name="multi_rw", weighted=False, make=transit.MultiRW),
    WalkCase(name="khop", weighted=False, make=lambda _: transit.KHop(walk_peers.FANOUTS)),
    WalkCase(name="khop_unique", weighted=False, make=lambda _: transit.KHop(walk_peers.FANOUTS, unique=True)),
)
BATCH, BATCHES = 512, 16  # roots of a sample, and samples, at most
CLUSTERS, TOGETHER = 1500, 20  # of the graph, about as many as Cluster-GCN takes, and of a sample


@dataclass(frozen=True, kw_only=True)
class GpuWalkOptions:
    """What is run.

    Attributes:
      samples: of a call, at most.
      length: steps of a walk.
      rng_seed: of every draw, and of the weights of a graph without.
      verify: compare the samples of every schedule with the CPU's first.
      baselines: peers.
      work: where files for peers are written.
    """

    samples: int
    length: int
    rng_seed: int = 0
    verify: bool = False
    baselines: tuple[Baseline, ...] = ()
    work: Path = Path()


def measure(
    graph: CSCGraph, device: GpuDevice, timer: GpuTimer, options: GpuWalkOptions, progress: Callable[[str], object]
) -> dict:
    """Every application.

    Args:
      graph: in host memory.
    Returns:
      {"length", "samples", "cases": [{"app", "samples", "steps": of every call, "ways": [{"way": a schedule,
      "captured", "cpu" or a package, "steps_s", "kernels_s"}], "missing": {package: why}}], "nextdoor": [{"app",
      "samples", "ways": [{"way": a schedule, "steps_s", "theirs_s"}]}]}.
    Raises:
      RuntimeError: with `verify`, samples that are not the CPU's; NextDoor has failed; one line.
    """
    graph = with_weights(graph, options.rng_seed)
    found = []
    for name, app, roots in _cases(graph, options):
        progress(f"sampling {name}")
        found.append(_measure_one(graph, (name, app, roots), device, timer, options))
        device.release()
    nextdoor = []
    for baseline in (own for own in options.baselines if own.name == walk_peers.NEXTDOOR):
        nextdoor = _beside_nextdoor(graph, baseline, device, timer, options, progress)
    return {"length": options.length, "samples": options.samples, "cases": found, "nextdoor": nextdoor}


def _cases(graph: CSCGraph, options: GpuWalkOptions) -> Iterator[tuple[str, transit.App, Tensor]]:
    """Name, application and roots."""
    for case in APPS:
        yield case.name, case.make(options.length), case.roots(graph, options.samples)
    nodes = CASES["uniform"].roots(graph, BATCH * BATCHES)
    batches = nodes[: max(1, len(nodes) // BATCH) * BATCH].view(-1, min(BATCH, len(nodes)))
    yield "layer", transit.Layer(), batches
    yield "fastgcn", transit.FastGCN((BATCH,) * 3, weighted=False), batches
    yield "ladies", transit.LADIES((BATCH,) * 3, weighted=False), batches
    count = min(CLUSTERS, graph.num_nodes)
    clusters = transit.ClusterGCN(torch.arange(graph.num_nodes) * count // graph.num_nodes, min(TOGETHER, count))
    yield "cluster_gcn", clusters, clusters.initial_roots(graph, torch.arange(BATCHES), options.rng_seed, 0)


def _measure_one(
    graph: CSCGraph, case: tuple[str, transit.App, Tensor], device: GpuDevice, timer: GpuTimer, options: GpuWalkOptions
) -> dict:  # fmt: skip
    name, app, roots = case
    on_cpu = TransitSampler(graph, app, options.rng_seed)
    calls = {CPU: lambda trial: on_cpu.sample(roots, trial)}
    for way, sampler in _samplers(graph, app, roots, device, options):
        calls[way] = lambda trial, own=sampler: own.sample(roots, trial)
    if options.verify:
        _verify(name, calls)
    walkers, missing = _package_walkers(graph, name, device, options)
    there = roots.to(device.torch_device)
    calls.update({peer: lambda _, own=walk: own(there) for peer, walk in walkers.items()})
    steps: dict[str, list[int]] = {way: [] for way in (CPU, *walkers)}

    def count(way: str, samples: Samples | Tensor) -> None:
        if way in steps:
            steps[way].append(int((samples >= 0).sum()) if way in walkers else _steps(samples, roots))

    seconds = timer.turns(calls, count)
    rates = {
        way: [made / own for made, own in zip(steps.get(way, steps[CPU]), seconds[way], strict=True)] for way in calls
    }
    return {
        "app": name,
        "samples": roots.shape[0],
        "steps": steps[CPU],
        "ways": [
            {
                "way": way,
                "steps_s": spread(rates[way]),
                "kernels_s": None if way == CPU else timer.kernels(call)["all"],
            }
            for way, call in calls.items()
        ],
        "missing": missing,
    }


def _package_walkers(
    graph: CSCGraph, name: str, device: GpuDevice, options: GpuWalkOptions
) -> tuple[dict[str, Callable[[Tensor], Tensor]], dict[str, str]]:
    """(by package its function of roots on the device, by package why it has none)."""
    walkers, missing = {}, {}
    for package in (own.name for own in options.baselines if own.name in walk_peers.PACKAGES):
        try:
            walkers[package] = walk_peers.package_walker(package, name, graph, options.length, device.torch_device)
        except (ImportError, ValueError) as error:
            missing[package] = str(error)
    return walkers, missing


def _beside_nextdoor(
    graph: CSCGraph, baseline: Baseline, device: GpuDevice, timer: GpuTimer, options: GpuWalkOptions,
    progress: Callable[[str], object],
) -> list[dict]:  # fmt: skip
    """Its programs, each schedule beside ours, from all nodes."""
    file, found = options.work / "nextdoor-edges.bin", []
    progress("writing the graph for NextDoor")
    walk_peers.write_edges(graph, file)
    try:
        roots = torch.arange(graph.num_nodes)
        for program, case in walk_peers.NEXTDOOR_CASES:
            app, ways = case.make(walk_peers.STEPS), []
            for schedule in SCHEDULES:
                progress(f"sampling {case.name}, {schedule}, and by NextDoor")
                sampler = TransitSampler(
                    graph, app, options.rng_seed, device=device.torch_device, schedule=schedule
                )  # fmt: skip
                steps: list[int] = []
                seconds = timer.turns(
                    {schedule: lambda trial, own=sampler: own.sample(roots, trial)},
                    lambda _, samples, into=steps: into.append(_steps(samples, roots)),
                )[schedule]
                device.release()
                theirs = walk_peers.nextdoor_rates(baseline, program, file, schedule, timer.trials)
                rates = [made / own for made, own in zip(steps, seconds, strict=True)]
                ways.append({"way": schedule, "steps_s": spread(rates), "theirs_s": spread(theirs)})
            found.append({"app": case.name, "samples": graph.num_nodes, "ways": ways})
    finally:
        file.unlink(missing_ok=True)
    return found


def _samplers(
    graph: CSCGraph, app: transit.App, roots: Tensor, device: GpuDevice, options: GpuWalkOptions
) -> Iterator[tuple[str, TransitSampler | CapturedTransit]]:
    for schedule in SCHEDULES[:1] if app.sampling_type == transit.COLLECTIVE else SCHEDULES:
        sampler = TransitSampler(graph, app, options.rng_seed, device=device.torch_device, schedule=schedule)
        yield schedule, sampler
        if schedule == "transit" and sampler.can_capture:
            shape = roots.reshape(len(roots), -1).shape
            yield CAPTURED, sampler.captured(*shape, recorder=device.recorder())


def _steps(samples: Samples, roots: Tensor) -> int:
    picks = samples.nodes.numel() - int((roots >= 0).sum())
    return picks + sum(mfg.indices.numel() for mfgs in samples.mfgs_of_sample or [] for mfg in mfgs)


def _verify(name: str, calls: dict[str, Callable[[int], Samples]]) -> None:
    expected = _contents(calls[CPU](0))
    for way, call in calls.items():
        found = _contents(call(0))
        if len(found) != len(expected) or not all(map(torch.equal, found, expected)):
            raise RuntimeError(f"verify: {name}, schedule {way}: the samples are not the CPU's.")


def _contents(samples: Samples) -> list[Tensor]:
    """What is compared of samples, on the host."""
    found = [samples.vertices]
    for mfg in [mfg for mfgs in samples.mfgs_of_sample or [] for mfg in mfgs]:
        found += [mfg.src_nodes, mfg.indptr, mfg.indices, *([] if mfg.edge_weights is None else [mfg.edge_weights])]
    return [tensor.cpu() for tensor in found]
