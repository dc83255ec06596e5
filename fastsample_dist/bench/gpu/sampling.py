"""`fastsample-bench gpu sampling`: figures 8 and 9 of PGSampler, measured again with this library's kernels.

For every number of hops, fanout and batch size, in turns on the same seeds: the library's kernels (per_hop, persistent,
cooperative, auto, once it has chosen one of them, and captured: per_hop, recorded as a CUDA graph) and the baseline
that stands for DGL (baseline.py). Whole process: from seeds in device memory to message flow graphs of all hops,
everything the host does included. Sampling kernels: those that draw neighbours and put them into their places, of all
hops, as PGSampler's figure 8 counts them; what only counts and relabels is left out. The cooperative kernel does all of
that in one, and has no such share.

The least that a batch must read is counted, too: the distinct 32-byte sectors of `indices` and `indptr` that each hop's
edges and rows lie in. Against the random reads that the device managed in the same run this is a fraction of its limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product

import torch
from torch import Tensor

from fastsample_dist.bench.gpu.baseline import ReservoirSampler
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.gpu.limits import SECTOR_BYTES, random_read_limit
from fastsample_dist.bench.graphs import draw_seeds
from fastsample_dist.bench.timing import spread
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import CapturedSampler, SampledHops, SampleSpec, SamplingGraph
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.kernel_choice import KERNELS

BASELINE, AUTO, CAPTURED = "reservoir", "auto", "captured"
AUTO_BATCHES = 32  # after so many batches of a kind "auto" has chosen its kernel
# PGSampler, section V-A3.
BATCH_SIZES, FANOUTS, HOPS = (2048, 4096, 8192, 10240), (10, 15, 20), (2, 3)
SAMPLING_KERNELS = ("sample_", "copy_recorded", "reservoir")  # how their names begin; the second of "persistent"

Sample = Callable[[Tensor, SampleSpec, int], SampledHops]


@dataclass(frozen=True, kw_only=True)
class GpuSamplingOptions:
    """What is run.

    Attributes:
      batch_sizes, fanouts, hops: every combination; a fanout holds for all hops.
      rng_seed: of the seeds and of every draw.
      verify: compare with the CPU's batches before a combination is timed.
      limit_bytes: of the array whose sectors are read at random.
    """

    batch_sizes: tuple[int, ...] = BATCH_SIZES
    fanouts: tuple[int, ...] = FANOUTS
    hops: tuple[int, ...] = HOPS
    rng_seed: int = 0
    verify: bool = False
    limit_bytes: int

    @property
    def settings(self) -> list[tuple[int, int, int]]:
        """(hops, fanout, batch size)."""
        return list(product(self.hops, self.fanouts, self.batch_sizes))


@dataclass(frozen=True, eq=False)
class Samplers:
    """Everything that samples one graph.

    Attributes:
      graph: in device memory.
      on_cpu: the oracle.
      on_device: by name, the library's kernels and the baseline.
    """

    graph: CSCGraph
    on_cpu: SamplingGraph
    on_device: dict[str, Sample] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: CSCGraph, device: GpuDevice) -> Samplers:
        """The samplers of a graph whose arrays are copied to the device."""
        indptr, indices = device.put(graph.indptr), device.put(graph.indices)
        orig_ids = None if graph.orig_ids is None else device.put(graph.orig_ids)
        samplers = {
            kernel: CudaSamplingGraph(indptr, indices, orig_ids, kernel=kernel).sample for kernel in (*KERNELS, AUTO)
        }
        samplers[CAPTURED] = Replays(CudaSamplingGraph(indptr, indices, orig_ids), device)
        samplers[BASELINE] = ReservoirSampler(indptr, indices).sample
        on_cpu = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
        return cls(CSCGraph(indptr, indices), on_cpu, samplers)


class Replays:
    """Samples by recorded kernels: those of the kind of batch that was asked for last.

    Args:
      graph: on the device.
      device: that samples.
    """

    def __init__(self, graph: CudaSamplingGraph, device: GpuDevice) -> None:
        self._graph, self._device = graph, device
        self._kind: tuple[SampleSpec, int] | None = None
        self._captured: CapturedSampler | None = None

    def __call__(self, seeds: Tensor, spec: SampleSpec, step: int) -> SampledHops:
        """See CapturedSampler; records first where the kind is another one."""
        kind = (spec, seeds.numel())
        if self._captured is None or kind != self._kind:
            self._captured = None  # its memory is the next one's
            most = self._graph.batch_bytes(seeds.numel(), spec)
            self._captured = CapturedSampler(
                self._graph, spec, seeds.numel(), max_bytes=most, recorder=self._device.recorder()
            )
            self._kind = kind
        return self._captured.sample(seeds, step)


def measure(
    graph: CSCGraph, device: GpuDevice, timer: GpuTimer, options: GpuSamplingOptions, progress: Callable[[str], object]
) -> dict:
    """Every setting.

    Returns:
      {"random_reads": see `random_read_limit`, "settings": [see `_measure_one`], "crossover": see `crossover`}.
    Raises:
      ValueError: the graph has fewer nodes with in-neighbours than a batch.
      RuntimeError: with `verify`, batches that are not the CPU's; one line.
    """
    progress("measuring random reads")
    limit = random_read_limit(device, timer, options.limit_bytes)
    samplers, runs = Samplers.of(graph, device), []
    for hops, fanout, batch_size in options.settings:
        progress(f"sampling {hops} hops of fanout {fanout}, batches of {batch_size}")
        seeds = draw_seeds(graph, batch_size, timer.warmup + timer.trials, options.rng_seed)
        spec = SampleSpec(fanouts=(fanout,) * hops, rng_seed=options.rng_seed)
        if options.verify:
            verify(samplers, device, spec, seeds[0])
        found = _measure_one(samplers, timer, spec, [device.put(own) for own in seeds], limit["sectors_s"]["median"])
        runs.append({"hops": hops, "fanout": fanout, "batch_size": batch_size, **found})
    return {"random_reads": limit, "settings": runs, "crossover": crossover(runs)}


def verify(samplers: Samplers, device: GpuDevice, spec: SampleSpec, seeds: Tensor) -> None:
    """One batch of every sampler: ours equal to the CPU's in every number, the baseline's well formed.

    Raises:
      RuntimeError: one line, with the sampler and what differs.
    """
    spec = replace(spec, edge_ids=True)
    expected = samplers.on_cpu.sample(seeds, spec, 0)
    for name, sample in samplers.on_device.items():
        found = sample(device.put(seeds), spec, 0)
        failures = baseline_failures(samplers.graph, found, spec) if name == BASELINE else differences(found, expected)
        text = next(iter(failures), None)
        if text is not None:
            raise RuntimeError(f"verify: fanouts {spec.fanouts}, {seeds.numel()} seeds, {name}: {text}.")


def differences(found: SampledHops, expected: SampledHops) -> Iterator[str]:
    """Where a batch is not the expected one."""
    if not torch.equal(found.nodes.cpu(), expected.nodes):
        yield "its nodes are not the CPU's"
    for name in ("indptrs", "indices", "edge_ids"):
        for hop, (one, other) in enumerate(zip(getattr(found, name), getattr(expected, name), strict=True)):
            if not torch.equal(one.cpu(), other):
                yield f"{name} of hop {hop} are not the CPU's"


def baseline_failures(graph: CSCGraph, found: SampledHops, spec: SampleSpec) -> Iterator[str]:
    """What a batch of the baseline violates; its draws are its own, so there is nothing to be equal to.

    Args:
      graph: on the batch's device, as everything that is compared.
      found: the batch.
      spec: how it was drawn.
    """
    degrees, nodes = graph.in_degrees(), found.nodes.long()
    if nodes.unique().numel() != nodes.numel():
        yield "a node occurs twice among its nodes"
    for hop, fanout in enumerate(spec.fanouts):
        indptr, indices, edge_ids = (part[hop] for part in (found.indptrs, found.indices, found.edge_ids))
        rows = nodes[: indptr.numel() - 1]
        owners = rows.repeat_interleave(indptr.diff())
        if not torch.equal(indptr.diff(), degrees[rows].clamp(max=fanout)):
            yield f"hop {hop} has rows with another number of edges than degree and fanout allow"
        elif not bool(((graph.indptr[owners] <= edge_ids) & (edge_ids < graph.indptr[owners + 1])).all()):
            yield f"hop {hop} has edges outside their rows"
        elif edge_ids.unique().numel() != edge_ids.numel():
            yield f"hop {hop} has an edge twice"
        elif not torch.equal(nodes[indices.long()], graph.indices[edge_ids].long()):
            yield f"hop {hop} has edges with other sources than the graph's"


def least_sectors(graph: CSCGraph, hops: SampledHops) -> int:
    """Distinct 32-byte sectors of `indices` and `indptr` that each hop must read, over all hops.

    Args:
      graph: whose offsets begin at a sector's first byte, as its sources do.
      hops: of one batch, with edge ids.
    """
    per_sector, count = SECTOR_BYTES // graph.indices.element_size(), 0
    for indptr, edge_ids in zip(hops.indptrs, hops.edge_ids, strict=True):
        rows = hops.nodes[: indptr.numel() - 1].long()
        offsets = torch.cat([rows, rows + 1]) // (SECTOR_BYTES // graph.indptr.element_size())
        count += (edge_ids // per_sector).unique().numel() + offsets.unique().numel()
    return count


def _measure_one(
    samplers: Samplers, timer: GpuTimer, spec: SampleSpec, seeds: Sequence[Tensor], sectors_s: float
) -> dict:
    """One setting.

    Args:
      samplers: that take part.
      timer: of the run.
      spec: how they draw.
      seeds: by trial, in device memory; the trial is the step.
      sectors_s: random reads of the device.
    Returns:
      {"sectors": of `least_sectors`, "samplers": [see `summarize`]}.
    """
    edges: dict[str, list[int]] = {name: [] for name in samplers.on_device}

    def count_edges(name: str, hops: SampledHops) -> None:
        edges[name].append(sum(indices.numel() for indices in hops.indices))

    calls = {
        name: partial(lambda sample, trial: sample(seeds[trial], spec, trial), sample)
        for name, sample in samplers.on_device.items()
    }
    for trial in range(AUTO_BATCHES):
        calls[AUTO](trial % len(seeds))
    calls[CAPTURED](0)  # records
    whole = timer.turns(calls, count_edges)
    groups = {"sampling": is_sampling, "all": lambda _: True}
    kernels = {name: timer.kernels(call, groups) for name, call in calls.items()}
    with_ids = samplers.on_device[KERNELS[0]](seeds[0], replace(spec, edge_ids=True), 0)
    sectors = least_sectors(samplers.graph, with_ids)
    return {"sectors": sectors, "samplers": summarize(whole, kernels, edges, sectors / sectors_s)}


def is_sampling(kernel: str) -> bool:
    """Whether a kernel draws neighbours, or puts drawn ones into their places."""
    return kernel.startswith(SAMPLING_KERNELS)


def summarize(
    whole: dict[str, list[float]], kernels: dict[str, dict[str, dict | None]], edges: dict[str, list[int]],
    least_s: float,
) -> list[dict]:  # fmt: skip
    """The figures of each sampler of a setting.

    Args:
      whole: by sampler, seconds of each trial.
      kernels: by sampler, seconds in "sampling" kernels and in "all", as `GpuTimer.kernels` gives them.
      edges: by sampler, sampled edges of each trial.
      least_s: seconds that the least reads of a batch take at the device's limit.
    Returns:
      [{"sampler", "whole_s", "sampling_kernels_s", "kernels_s": see `spread` (the last two None where the profiler
      sees no such kernel), "edges", "edges_s": sampled edges per second of the whole process, "speedup_whole",
      "speedup_kernels": over the baseline, "of_limit"}].
    """
    base_whole, base_kernels = statistics.median(whole[BASELINE]), kernels[BASELINE]["sampling"]
    found = []
    for name, seconds in whole.items():
        own, median = kernels[name]["sampling"], statistics.median(seconds)
        if own is not None and own["median"] == 0:  # one kernel does everything
            own = None
        are_known = own is not None and base_kernels is not None
        found.append({
            "sampler": name, "whole_s": spread(seconds), "sampling_kernels_s": own, "kernels_s": kernels[name]["all"],
            "edges": statistics.mean(edges[name]),
            "edges_s": spread([count / time for count, time in zip(edges[name], seconds, strict=True)]),
            "speedup_whole": base_whole / median,
            "speedup_kernels": base_kernels["median"] / own["median"] if are_known else None,
            "of_limit": least_s / median,
        })  # fmt: skip
    return found


def crossover(runs: Sequence[dict]) -> dict | None:
    """The number of sampled edges from which another of our kernels is the fastest one.

    Every bound between two settings is tried, any two kernels below and above it, and the choice whose whole times add
    up to the least is taken.

    Args:
      runs: of `measure`.
    Returns:
      {"below", "from": kernels, "edges": the bound, 0 where one kernel is always taken, "lost": how much longer the
      choice takes than the fastest kernel of each setting, summed over the settings, as a fraction}; None where a
      kernel is missing.
    """
    times = sorted(
        (by_name[KERNELS[0]]["edges"], *(by_name[name]["whole_s"]["median"] for name in KERNELS))
        for by_name in ({entry["sampler"]: entry for entry in run["samplers"]} for run in runs)
        if all(name in by_name for name in KERNELS)
    )
    if not times:
        return None
    best = sum(min(own) for _, *own in times)
    choices = []
    for split, (low, high) in product(range(len(times)), permutations(range(len(KERNELS)), 2)):
        taken = sum(own[low if place < split else high] for place, (_, *own) in enumerate(times))
        choices.append((taken, split, KERNELS[low], KERNELS[high]))
    taken, split, low, high = min(choices)
    return {"below": low, "from": high, "edges": times[split][0] if split else 0, "lost": taken / best - 1}
