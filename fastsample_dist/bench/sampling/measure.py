"""The measurement of `fastsample-bench sampling`: our sampler, its peers and the touch limit, in turns, in one process.

For every number of threads and every list of fanouts: each contestant warms up, then the timed batches are cut into
turns of TURN_BATCHES; in a turn each contestant samples the same batches, ours goes through all batches once by
`sample_many`, and the limit is measured. So what slows the machine down for a while slows all of them. A time covers
one call, from seeds to message flow graphs (all hops, relabelling, everything Python does), and the freeing of its
result; a rate is the contestant's own number of sampled edges divided by it.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastsample_dist import NeighborSampler, ops
from fastsample_dist.bench.graphs import GraphSource, draw_seeds
from fastsample_dist.bench.sampling.small_batches import measure_small
from fastsample_dist.bench.sampling.touch import Prefetch, TouchLimit, huge_page_bytes
from fastsample_dist.bench.timing import spread, steady
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import dgl as dgl_peer
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.sample_methods import METHODS

OURS, OURS_MANY = "fastsample_dist", "sample_many"
OURS_UNIFORM = "ours uniform"  # beside another method
BASELINES = ("dgl", "dgl-unfused")
MIN_BATCHES = 20  # fewer give no tenth and ninetieth percentile worth printing
TURN_BATCHES = 4  # warm caches for three of four batches, as in a loop of one's own
MANY_THREADS = 8  # a small batch must not pay for threads that it does not need
LEAST_READS = 1 << 18  # of a measurement of the limit


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What is run.

    Attributes:
      source: the graph.
      fanouts: configurations, each in hop order from the seeds outwards.
      threads: numbers of threads.
      batch_size: seeds per batch.
      batches: timed ones, at least MIN_BATCHES.
      warmup: batches before them, for each contestant.
      rng_seed: of the seeds, of edge weights that a graph lacks, and of every draw.
      method: one of ops.sample_methods.METHODS.
      replace: draw with replacement.
      baselines: peers, of BASELINES.
      limit: measure the touch limit.
      small: time batches of few seeds too.
    Raises:
      ValueError: values that exclude each other, or that SampleSpec refuses.
    """

    source: GraphSource
    fanouts: tuple[tuple[int, ...], ...]
    threads: tuple[int, ...]
    batch_size: int
    batches: int
    warmup: int
    rng_seed: int = 0
    method: str = "uniform"
    replace: bool = False
    baselines: tuple[str, ...] = ()
    limit: bool = False
    small: bool = False

    def __post_init__(self) -> None:
        if self.batches < MIN_BATCHES:
            raise ValueError(f"--batches is {self.batches}; expected at least {MIN_BATCHES}.")
        for fanouts in self.fanouts:
            self.spec(fanouts, 1)
            if not any(fanouts):
                raise ValueError(f"--fanouts {','.join(map(str, fanouts))} draws no edge; pass one of them above 0.")
        if self.method == "labor" and "dgl-unfused" in self.baselines:
            raise ValueError("--baseline dgl-unfused has no LABOR of its own; pass --baseline dgl with --method labor.")

    def spec(self, fanouts: Sequence[int], threads: int) -> SampleSpec:
        """How our sampler draws."""
        return SampleSpec(
            fanouts=tuple(fanouts), replace=self.replace, rng_seed=self.rng_seed, num_threads=threads,
            method=self.method,
        )  # fmt: skip

    @property
    def rivals(self) -> tuple[str, ...]:
        """What our sampler is compared with: the peers, and our own uniform sampling where it draws otherwise."""
        return self.baselines if self.method == "uniform" else (*self.baselines, OURS_UNIFORM)


@dataclass(frozen=True)
class Batches:
    """Seeds by batch, of the graph's id type; steps are counted from the first warm-up batch.

    Attributes:
      warm: before the measurement.
      timed: in it.
    """

    warm: list[Tensor]
    timed: list[Tensor]


@dataclass(frozen=True)
class Contestant:
    """A sampler in the measurement.

    Attributes:
      name: as in the tables.
      sample: (seeds, step) -> its mini-batch.
      num_edges: sampled edges of what `sample` returned.
      prepare: called before its turn, outside the time.
      wide_seeds: it takes int64 seeds.
    """

    name: str
    sample: Callable[[Tensor, int], Any]
    num_edges: Callable[[Any], int]
    prepare: Callable[[], object] = lambda: None
    wide_seeds: bool = False


@dataclass
class Timings:
    """What was measured of one contestant.

    Attributes:
      rates: sampled edges per second, by batch (by call for sample_many).
      num_edges: sampled edges per batch.
      busy_s, wall_s: processor time of all threads, and time, of all calls.
    """

    rates: list[float] = field(default_factory=list)
    num_edges: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    wall_s: float = 0.0

    def add(self, call: Callable[[], Any], num_edges: Callable[[Any], int], batches: int = 1) -> int:
        """Time one call and the freeing of its result; returns its sampled edges."""
        busy, start = time.process_time(), time.perf_counter()
        result = call()
        middle = time.perf_counter()
        edges = num_edges(result)
        again = time.perf_counter()
        del result
        end = time.perf_counter()
        seconds = (middle - start) + (end - again)
        self.busy_s += time.process_time() - busy
        self.wall_s += end - start
        self.rates.append(edges / seconds)
        self.num_edges.append(edges / batches)
        return edges


def our_sampler(graph: CSCGraph, spec: SampleSpec) -> NeighborSampler:
    """The sampler under test."""
    return NeighborSampler.from_spec(graph, spec)


def check_baselines(options: SamplingOptions) -> dict[str, str]:
    """Versions of the peers' packages.

    Raises:
      ImportError: one is missing; the message names the extra to install.
    """
    if not options.baselines:
        return {}
    return {"dgl": dgl_peer.require_dgl(f"--baseline {options.baselines[0]}").__version__}


def load_graph(options: SamplingOptions, progress: Callable[[str], object]) -> CSCGraph:
    """The graph, with edge weights where the method needs them: uniform in (0, 1] where it has none.

    Raises:
      ValueError: it cannot be read, or it has no edges.
    """
    graph = options.source.topology(progress)
    if graph.num_edges == 0:
        raise ValueError(f"{options.source.name} has no edges; there is nothing to sample.")
    if not METHODS[options.method].weighted:
        return dataclasses.replace(graph, weights=None)
    if graph.weights is None:
        progress("drawing edge weights")
        generator = torch.Generator().manual_seed(options.rng_seed)
        graph = dataclasses.replace(graph, weights=1 - torch.rand(graph.num_edges, generator=generator))
    return graph


def draw_batches(graph: CSCGraph, options: SamplingOptions) -> Batches:
    """Seeds: distinct random nodes with in-neighbours, every batch its own.

    Raises:
      ValueError: the graph has fewer such nodes than a batch.
    """
    drawn = draw_seeds(graph, options.batch_size, options.warmup + options.batches, options.rng_seed)
    return Batches(warm=drawn[: options.warmup], timed=drawn[options.warmup :])


def measure(
    graph: CSCGraph, batches: Batches, options: SamplingOptions, progress: Callable[[str], object]
) -> list[dict]:
    """Every number of threads with every list of fanouts; returns what `_measure_one` returns for each.

    Args:
      graph: from `load_graph`.
      batches: from `draw_batches`.
      options: what to run.
      progress: called with a line about what is done next.
    """
    peers_graph = None
    if options.baselines:
        progress("handing the graph to dgl")
        dgl_peer.set_rng_seed(options.rng_seed)
        peers_graph = dgl_peer.to_graph(graph)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in options.threads:
            torch.set_num_threads(threads)
            for fanouts in options.fanouts:
                progress(f"sampling {','.join(map(str, fanouts))} with {threads} thread(s)")
                sampler = our_sampler(graph, options.spec(fanouts, threads))
                peers = [_dgl_contestant(name, peers_graph, fanouts, threads, options) for name in options.baselines]
                if OURS_UNIFORM in options.rivals:
                    uniform = our_sampler(graph, dataclasses.replace(sampler.spec, method="uniform"))
                    peers.append(Contestant(OURS_UNIFORM, uniform.sample, lambda batch: batch.num_edges))
                limit_threads = sorted({1, threads}) if options.limit else []
                figures = _measure_one(graph, sampler, peers, batches, limit_threads)
                runs.append({"fanouts": list(fanouts), "threads": threads, **figures})
    finally:
        torch.set_num_threads(before)
    return runs


def measure_few_seeds(graph: CSCGraph, batches: Batches, options: SamplingOptions) -> list[dict]:
    """Batches of few seeds, with one thread and with MANY_THREADS; see `measure_small`."""
    samplers = {threads: our_sampler(graph, options.spec(options.fanouts[0], threads)) for threads in (1, MANY_THREADS)}
    with steady():
        return measure_small(samplers, batches.timed)


def _measure_one(
    graph: CSCGraph, sampler: NeighborSampler, peers: Sequence[Contestant], batches: Batches,
    limit_threads: Sequence[int],
) -> dict:  # fmt: skip
    """One configuration.

    Args:
      graph, sampler, peers, batches: what takes part.
      limit_threads: measure the limit with so many threads each; the last is the samplers' own number.
    Returns:
      {"samplers": [see `summarize`], "limits": [{"threads", "median", "p10", "p90", "rates": edges per second,
      "ahead", "level", "table_bytes"}], "scratch_bytes": what one calling thread of our sampler keeps between calls,
      "input_nodes": of the largest of the first batches, "indices_bytes", "indices_huge_bytes"}.
    """
    contestants = [Contestant(OURS, sampler.sample, lambda batch: batch.num_edges), *peers]
    timings = {name: Timings() for name in (OURS, OURS_MANY, *(peer.name for peer in peers))}
    scratch_bytes, num_distinct = _scratch(sampler, batches)
    limits = [_Limit(graph.indices, num_distinct, threads) for threads in limit_threads]
    own_step = len(batches.warm)
    with steady():
        for contestant in contestants:
            take_turn(contestant, batches.warm, 0, Timings())
        sampler.sample_many(batches.warm, first_step=0)
        for first in range(0, len(batches.timed), TURN_BATCHES):
            turn = batches.timed[first : first + TURN_BATCHES]
            edges = [take_turn(one, turn, own_step + first, timings[one.name]) for one in contestants]
            timings[OURS_MANY].add(
                lambda: sampler.sample_many(batches.timed, first_step=own_step),
                lambda made: sum(batch.num_edges for batch in made), len(batches.timed),
            )  # fmt: skip
            for limit in limits:
                limit.measure(max(edges[0], LEAST_READS))
    return {
        "samplers": summarize(timings, limits[-1].rates if limits else None),
        "limits": [limit.summary() for limit in limits], "scratch_bytes": scratch_bytes, "input_nodes": num_distinct,
        "indices_bytes": graph.indices.numel() * graph.indices.element_size(),
        "indices_huge_bytes": huge_page_bytes(graph.indices),
    }  # fmt: skip


def summarize(timings: dict[str, Timings], limit_rates: Sequence[float] | None = None) -> list[dict]:
    """The figures of each contestant of a configuration.

    Args:
      timings: by name, ours first.
      limit_rates: of the touch limit with as many threads, where it was measured.
    Returns:
      [{"sampler", "median", "p10", "p90", "rates": edges per second, "edges_per_batch", "cores_used": processor time
      per time, "ratios": {baseline: our median / its median}, empty for baselines, "of_limit": median / the
      limit's median or None}].
    """
    medians = {name: statistics.median(timing.rates) for name, timing in timings.items()}
    peers = [name for name in timings if name not in (OURS, OURS_MANY)]
    limit = None if limit_rates is None else statistics.median(limit_rates)
    return [
        {
            "sampler": name, **spread(timing.rates), "edges_per_batch": statistics.mean(timing.num_edges),
            "cores_used": timing.busy_s / timing.wall_s,
            "ratios": {} if name in peers else {peer: medians[name] / medians[peer] for peer in peers},
            "of_limit": None if limit is None else medians[name] / limit,
        }
        for name, timing in timings.items()
    ]  # fmt: skip


def ratio_summary(runs: Sequence[dict]) -> list[dict]:
    """Over the lists of fanouts, per number of threads and baseline.

    Returns:
      [{"threads", "sampler", "baseline", "geometric_mean", "lowest"}] of our samplers' ratios.
    """
    ratios: dict[tuple[int, str, str], list[float]] = {}
    for run in runs:
        for entry in run["samplers"]:
            for baseline, ratio in entry["ratios"].items():
                ratios.setdefault((run["threads"], entry["sampler"], baseline), []).append(ratio)
    return [
        {
            "threads": threads, "sampler": sampler, "baseline": baseline,
            "geometric_mean": statistics.geometric_mean(found), "lowest": min(found),
        }
        for (threads, sampler, baseline), found in ratios.items()
    ]  # fmt: skip


class _Limit:
    """The touch limit beside one configuration, with a number of threads."""

    def __init__(self, indices: Tensor, num_distinct: int, threads: int) -> None:
        self.touch, self.threads = TouchLimit(indices, num_distinct), threads
        self.rates: list[float] = []
        self._way: Prefetch = self.touch.tune(threads)
        self._counter = 1 << 32  # after those of the tuning

    def measure(self, num_reads: int) -> None:
        self.rates.append(self.touch.rate(num_reads, self.threads, self._way, self._counter))
        self._counter += num_reads

    def summary(self) -> dict:
        return {
            "threads": self.threads, **spread(self.rates), "ahead": self._way.ahead, "level": self._way.level,
            "table_bytes": self.touch.table.numel() * 8,
        }  # fmt: skip


def _dgl_contestant(
    name: str, graph: Any, fanouts: Sequence[int], threads: int, options: SamplingOptions
) -> Contestant:
    fused = name == "dgl" and options.method != "labor"
    sample = dgl_peer.block_sampler(graph, fanouts, fused=fused, replace=options.replace, method=options.method)
    return Contestant(
        name, lambda seeds, _: sample(seeds), lambda blocks: sum(block.num_edges() for block in blocks),
        prepare=lambda: dgl_peer.set_num_threads(threads), wide_seeds=True,
    )  # fmt: skip


def take_turn(contestant: Contestant, seeds: Sequence[Tensor], first_step: int, into: Timings) -> int:
    """Time a contestant on some batches; returns its sampled edges."""
    contestant.prepare()
    edges = 0
    for number, own in enumerate([ids.long() if contestant.wide_seeds else ids for ids in seeds]):
        edges += into.add(lambda: contestant.sample(own, first_step + number), contestant.num_edges)  # noqa: B023
    gc.collect()
    return edges


def _scratch(sampler: NeighborSampler, batches: Batches) -> tuple[int, int]:
    """(bytes that a thread keeps between calls after the first batches, input nodes of the largest of them)."""

    def sample() -> tuple[int, int]:
        first = (batches.warm + batches.timed)[:TURN_BATCHES]
        input_nodes = [sampler.sample(seeds, step).input_nodes.numel() for step, seeds in enumerate(first)]
        return ops.sampler_scratch_bytes(), max(input_nodes)

    with ThreadPoolExecutor(1) as fresh:  # scratch belongs to a thread, and this one's may come from larger batches
        return fresh.submit(sample).result()
