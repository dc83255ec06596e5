"""The measurement of `fastsample-bench pinsage`: our sampler and DGL's, in turns, in one process, on the same seeds.

A neighbourhood is what one destination of one hop gets: walks, their visits, the most visited nodes and their weights.
Ours are MFGs with local ids. DGL's RandomWalkNeighborSampler (PinSAGESampler on a graph of one type) makes the
neighbourhoods of one hop without local ids, which is measured by itself; with `dgl.to_block` it makes mini-batches of
all hops. A rate is the contestant's own number of neighbourhoods divided by the seconds of a call, freeing included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastsample_dist.bench.graphs import GraphSource, draw_seeds
from fastsample_dist.bench.sampling.measure import OURS, TURN_BATCHES, Contestant, Timings, take_turn
from fastsample_dist.bench.timing import spread, steady
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import dgl
from fastsample_dist.ops import PinSAGERule, reference
from fastsample_dist.sampling.pinsage import PinSAGESampler

DGL, DGL_NEIGHBOURS = "dgl", "dgl, neighbours alone"
ORACLE_SEEDS = 20


@dataclass(frozen=True, kw_only=True)
class PinSAGEOptions:
    """What is run.

    Attributes:
      source: the graph.
      rule: a neighbourhood; rng_seed is that of seeds and draws.
      layers: hops of a batch, one run each.
      threads: numbers of threads, one run each.
      batch_size: seeds per batch.
      batches, warmup: timed ones, and those before them.
      has_peer: measure DGL too.
    """

    source: GraphSource
    rule: PinSAGERule
    layers: tuple[int, ...]
    threads: tuple[int, ...]
    batch_size: int
    batches: int
    warmup: int
    has_peer: bool

    @property
    def oracle_seeds(self) -> int:
        """Seeds of the batch that is compared with the oracle."""
        return min(ORACLE_SEEDS, self.batch_size)

    def rule_of(self, layers: int, threads: int) -> PinSAGERule:
        """Of one run."""
        rule = self.rule
        return PinSAGERule(
            num_walks=rule.num_walks, walk_length=rule.walk_length, num_neighbors=rule.num_neighbors, num_layers=layers,
            end_probability=rule.end_probability, rng_seed=rule.rng_seed, num_threads=threads,
        )  # fmt: skip


def measure(graph: CSCGraph, options: PinSAGEOptions, progress: Callable[[str], object]) -> list[dict]:
    """Every number of layers with every number of threads.

    Returns:
      [{"layers", "threads", "samplers": [{"sampler", "median", "p10", "p90", "rates": neighbourhoods per second,
      "per_batch": neighbourhoods of a batch, "ratio": our median / its}]}].
    """
    seeds = draw_seeds(graph, options.batch_size, options.warmup + options.batches, options.rule.rng_seed)
    before, runs = torch.get_num_threads(), []
    try:
        for layers in options.layers:
            for threads in options.threads:
                progress(f"{layers} layer(s) with {threads} thread(s)")
                torch.set_num_threads(threads)
                contestants = _contestants(graph, options, layers, threads)
                runs.append({"layers": layers, "threads": threads, "samplers": _race(contestants, seeds, options)})
    finally:
        torch.set_num_threads(before)
    return runs


def verify(graph: CSCGraph, options: PinSAGEOptions) -> list[str]:
    """What is wrong with the sampler that is measured, one line each: compared with the oracle, on one batch."""
    [seeds], failures = draw_seeds(graph, options.oracle_seeds, 1, options.rule.rng_seed), []
    for layers in options.layers:
        hops, weights = reference.sample_pinsage(graph, seeds, options.rule_of(layers, 1), 3)
        for threads in options.threads:
            batch = PinSAGESampler.from_rule(graph, options.rule_of(layers, threads)).sample(seeds, 3)
            pairs = [(batch.input_nodes, hops.nodes)]
            for mfg, *expected in zip(batch.mfgs[::-1], hops.indptrs, hops.indices, weights, strict=True):
                pairs += zip((mfg.indptr, mfg.indices, mfg.edge_weights), expected, strict=True)
            if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
                failures.append(f"{layers} layer(s) with {threads} thread(s): another batch than the oracle's")
    return failures


def _contestants(graph: CSCGraph, options: PinSAGEOptions, layers: int, threads: int) -> list[Contestant]:
    sampler = PinSAGESampler.from_rule(graph, options.rule_of(layers, threads))
    found = [Contestant(OURS, sampler.sample, lambda batch: sum(mfg.num_dst for mfg in batch.mfgs))]
    if options.has_peer:
        rule = options.rule
        shape = {name: getattr(rule, name) for name in ("num_walks", "walk_length", "num_neighbors", "end_probability")}
        dgl.set_rng_seed(rule.rng_seed)
        prepare = {"prepare": lambda: dgl.set_num_threads(threads), "wide_seeds": True}
        if layers == 1:
            alone = dgl.pinsage_neighbours(graph, **shape)
            found.append(
                Contestant(DGL_NEIGHBOURS, lambda ids, _: (alone(ids), ids), lambda made: len(made[1]), **prepare)
            )
        blocks = dgl.pinsage_sampler(graph, num_layers=layers, **shape)
        count = lambda made: sum(block.num_dst_nodes() for block in made)  # noqa: E731
        found.append(Contestant(DGL, lambda ids, _: blocks(ids), count, **prepare))
    return found


def _race(contestants: list[Contestant], seeds: list[torch.Tensor], options: PinSAGEOptions) -> list[dict]:
    timings = {contestant.name: Timings() for contestant in contestants}
    with steady():
        for contestant in contestants:
            take_turn(contestant, seeds[: options.warmup], 0, Timings())
        for first in range(options.warmup, len(seeds), TURN_BATCHES):
            for contestant in contestants:
                take_turn(contestant, seeds[first : first + TURN_BATCHES], first, timings[contestant.name])
    figures = [
        {"sampler": name, **spread(own.rates), "per_batch": sum(own.num_edges) / len(own.num_edges)}
        for name, own in timings.items()
    ]
    return [entry | {"ratio": figures[0]["median"] / entry["median"]} for entry in figures]
