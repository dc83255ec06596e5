"""`fastsample-bench gpu walk`: samples of applications by every schedule, beside the CPU's engine.

A step is a vertex that a sample has besides its roots. A call makes all samples from roots in host memory; they stay in
device memory. Walks that have ended make no further steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist import TransitSampler
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.timing import spread
from fastsample_dist.bench.walk.cases import CASES, WalkCase, with_weights
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit.samples import Samples

SCHEDULES = ("sample", "transit", "transit_flat")
CPU = "cpu"
APPS = (
    *CASES.values(),
    WalkCase(name="multi_rw", weighted=False, make=transit.MultiRW),
    WalkCase(name="khop", weighted=False, make=lambda _: transit.KHop((25, 10))),
)


@dataclass(frozen=True, kw_only=True)
class GpuWalkOptions:
    """What is run.

    Attributes:
      samples: of a call, at most.
      length: steps of a walk.
      rng_seed: of every draw, and of the weights of a graph without.
      verify: compare the samples of every schedule with the CPU's first.
    """

    samples: int
    length: int
    rng_seed: int = 0
    verify: bool = False


def measure(
    graph: CSCGraph, device: GpuDevice, timer: GpuTimer, options: GpuWalkOptions, progress: Callable[[str], object]
) -> dict:
    """Every application.

    Args:
      graph: in host memory.
    Returns:
      {"length", "samples", "cases": [{"app", "samples", "steps": of every call, "ways": [{"way": a schedule or "cpu",
      "steps_s", "kernels_s"}]}]}.
    Raises:
      RuntimeError: with `verify`, samples that are not the CPU's; one line.
    """
    graph = with_weights(graph, options.rng_seed)
    found = []
    for case in APPS:
        progress(f"sampling {case.name}")
        found.append(_measure_one(graph, case, device, timer, options))
        device.release()
    return {"length": options.length, "samples": options.samples, "cases": found}


def _measure_one(
    graph: CSCGraph, case: WalkCase, device: GpuDevice, timer: GpuTimer, options: GpuWalkOptions
) -> dict:  # fmt: skip
    roots, app = case.roots(graph, options.samples), case.make(options.length)
    on_cpu = TransitSampler(graph, app, options.rng_seed)
    calls = {CPU: lambda trial: on_cpu.sample(roots, trial)}
    for schedule, sampler in _samplers(graph, app, device, options):
        calls[schedule] = lambda trial, own=sampler: own.sample(roots, trial)
    if options.verify:
        _verify(case, calls)
    steps: list[int] = []
    seconds = timer.turns(calls, lambda way, samples: steps.append(_steps(samples, roots)) if way == CPU else None)
    return {
        "app": case.name,
        "samples": roots.shape[0],
        "steps": steps,
        "ways": [
            {
                "way": way,
                "steps_s": spread([count / own for count, own in zip(steps, seconds[way], strict=True)]),
                "kernels_s": None if way == CPU else timer.kernels(call)["all"],
            }
            for way, call in calls.items()
        ],
    }


def _samplers(
    graph: CSCGraph, app: transit.App, device: GpuDevice, options: GpuWalkOptions
) -> Iterator[tuple[str, TransitSampler]]:  # fmt: skip
    for schedule in SCHEDULES:
        yield schedule, TransitSampler(
            graph, app, options.rng_seed, device=device.torch_device, schedule=schedule
        )  # fmt: skip


def _steps(samples: Samples, roots: Tensor) -> int:
    return samples.nodes.numel() - roots.numel()


def _verify(case: WalkCase, calls: dict[str, Callable[[int], Samples]]) -> None:
    expected = calls[CPU](0).vertices
    for way, call in calls.items():
        if not torch.equal(call(0).vertices.cpu(), expected):
            raise RuntimeError(f"verify: {case.name}, schedule {way}: the samples are not the CPU's.")
