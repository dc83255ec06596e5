"""The measurement of `fastsample-bench subgraphs`: whole subgraphs of every contestant, and parts of ours, in turns.

Contestants take turns of TURN subgraphs, so that what slows the machine for a while slows everybody; each subgraph is
timed for itself, and all but a turn's first find the graph in the caches as their own work left it. One thread each,
except where threads are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

import fastsample_dist as fsd
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.subgraphs.cases import SubgraphCase
from fastsample_dist.bench.subgraphs.peers import INDUCES, MODES, Drawn, Peer, write_graph
from fastsample_dist.bench.timing import steady
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.induced_subgraph import induced_subgraph
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.ops.subgraph_nodes import SubgraphNodes, subgraph_nodes
from fastsample_dist.ops.subgraph_rule import SubgraphTables
from fastsample_dist.sampling.subgraph_spec import DASHBOARD, FRONTIER, SUMS, SubgraphSpec
from fastsample_dist.testing.supervisor import Supervisor

Found = TypeVar("Found")
OURS = "fastsample_dist"
WEIGHTED = "fastsample_dist, ratio weights"
WARM_UP = 1 << 40  # number of a subgraph that is not timed
TURN = 4
POOL = 16  # subgraphs of a call where threads are compared


@dataclass(frozen=True, kw_only=True)
class SubgraphOptions:
    """What is run.

    Attributes:
      source: the graph.
      cases: methods.
      etas, clips: of the dashboards that are compared with prefix sums; a clip of None is none.
      threads: numbers of threads that a pool is drawn with.
      trials: subgraphs of every contestant.
      rng_seed: of every draw.
      baselines: peers.
    """

    source: GraphSource
    cases: tuple[SubgraphCase, ...]
    etas: tuple[float, ...] = (1.5, 2.0, 3.0)
    clips: tuple[int | None, ...] = (None, 30)
    threads: tuple[int, ...] = (1, 2)
    trials: int = 20
    rng_seed: int = 0
    baselines: tuple[Baseline, ...] = ()

    @property
    def frontier(self) -> SubgraphCase:
        """The frontier among the cases, or as it would be there."""
        sizes = {"budget": self.cases[0].budget, "frontier_size": self.cases[0].frontier_size}
        return SubgraphCase(method=FRONTIER, **sizes)


class Visitor:
    """Draws nodes alone: the walk without the induction.

    Args:
      graph: what is walked on.
      roots: int64 [num_roots].
      spec: how.
    """

    def __init__(self, graph: CSCGraph, roots: Tensor, spec: SubgraphSpec) -> None:
        self.rule = spec.rule
        self.tables = SubgraphTables.of(self.rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)
        self._graph = SamplingGraph(graph.indptr, graph.indices, orig_ids=graph.orig_ids)

    def visit(self, number: int) -> SubgraphNodes:
        """The nodes of one subgraph."""
        return subgraph_nodes(self._graph, self.rule, self.tables, number, 1)


def without_isolated_nodes(graph: CSCGraph) -> CSCGraph:
    """The graph without nodes that have no edge, so that walks of peers that begin at any node do not end there."""
    kept = graph.in_degrees() > 0
    kept[graph.indices.long()] = True
    number = (kept.cumsum(0) - 1).to(graph.indices.dtype)
    orig_ids = None if graph.orig_ids is None else graph.orig_ids[kept]
    ends = graph.indptr[1:][kept]
    graph = CSCGraph(torch.nn.functional.pad(ends, (1, 0)), number[graph.indices.long()], orig_ids=orig_ids)
    graph.advise_huge_pages(now=True)  # as CSCGraph.from_edge_index leaves its graphs
    return graph


def connected_roots(graph: CSCGraph) -> Tensor:
    """The nodes that have neighbours, int64: where every contestant that is told begins.

    Raises:
      ValueError: the graph has no edges.
    """
    roots = torch.nonzero(graph.in_degrees() > 0).reshape(-1)
    if roots.numel() == 0:
        raise ValueError("the graph has no edges; there is nothing to walk on.")
    return roots


def measure(graph: CSCGraph, options: SubgraphOptions, folder: Path, progress: Callable[[str], object]) -> dict:
    """Everything.

    Args:
      graph: in-neighbour lists.
      options: what to run.
      folder: for the peers' files.
      progress: called with a line about what is done next.
    Returns:
      {"contestants": [{"name", "method", "nodes", "edges", "whole_ms", "walk_ms" or None}],
      "parts": [{"method", "nodes", "steps", "walk_ns", "scanned", "induce_ms", "scanned_ns", "dgl_ms" or None}],
      "structures": [{"structure", "eta", "max_degree", "step_ns", "probes", "cleanups", "growths"}],
      "pool": [{"threads", "rate": {"median", "max"}}]}.
      A time is {"median", "min"}; counts are means of a subgraph, probes of a step.
    Raises:
      RuntimeError: a peer failed; with its last line.
    """
    roots = connected_roots(graph)
    if options.baselines:
        progress("writing the graph for the peers")
        write_graph(graph, roots, options.baselines, folder)
    with Supervisor() as supervisor, steady():
        peers = [Peer(supervisor, baseline, folder, options.frontier) for baseline in options.baselines]
        contestants = _contestants(graph, roots, options, peers, progress)
        parts = [_parts(graph, roots, case, options, peers, folder, progress) for case in options.cases]
        structures = _structures(graph, roots, options, progress)
        pool = _pool(graph, roots, options, progress)
    return {"contestants": contestants, "parts": parts, "structures": structures, "pool": pool}


def _contestants(
    graph: CSCGraph, roots: Tensor, options: SubgraphOptions, peers: Sequence[Peer], progress: Callable[[str], object]
) -> list[dict]:
    """Whole subgraphs: ours of every case, those of the peers that have the method."""
    draws: dict[tuple[str, str], Callable[[int], Drawn]] = {}
    for case in options.cases:
        sampler = fsd.SubgraphSampler(graph, case.spec(rng_seed=options.rng_seed), roots)
        draws[OURS, case.method] = partial(_our_subgraph, sampler)
        if case.method == FRONTIER:
            weighted = fsd.SubgraphSampler(graph, case.spec(rng_seed=options.rng_seed, weights="ratio"), roots)
            draws[WEIGHTED, case.method] = partial(_our_subgraph, weighted)
        for peer in peers:
            if case.method in MODES[peer.name]:
                draws[peer.name, case.method] = lambda _, peer=peer, case=case: peer.draw(case)
    found: dict[tuple[str, str], list[Drawn]] = {one: [] for one in draws}
    for numbers in _turns(options.trials):
        progress(f"whole subgraphs, from number {numbers[0]}")
        for one, draw in draws.items():
            drawn = [draw(number) for number in numbers]
            found[one] += drawn if numbers[0] != WARM_UP else []
    return [
        {
            "name": name, "method": method, "nodes": _mean(drawn, "nodes"), "edges": _mean(drawn, "edges"),
            "whole_ms": middle([1e3 * one.seconds for one in drawn]),
            "walk_ms": None if drawn[0].walk_s is None else middle([1e3 * one.walk_s for one in drawn]),
        }
        for (name, method), drawn in found.items()
    ]  # fmt: skip


def _turns(trials: int) -> Iterator[Sequence[int]]:
    """Numbers of the subgraphs of every turn; the first turn is not timed."""
    yield [WARM_UP]
    for first in range(0, trials, TURN):
        yield range(first, min(first + TURN, trials))


def timed(work: Callable[[], Found]) -> tuple[float, Found]:
    """(seconds, what it returned)."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def _induced_s(peer: Peer, nodes: Tensor, folder: Path) -> float:
    """Seconds of a peer that induces the subgraph of some nodes."""
    file = folder / "nodes.npy"
    np.save(file, nodes.numpy())
    return peer.induce(file).seconds


def _our_subgraph(sampler: fsd.SubgraphSampler, number: int) -> Drawn:
    seconds, subgraph = timed(partial(sampler.sample, number))
    return Drawn(seconds=seconds, nodes=subgraph.nodes.numel(), edges=subgraph.indices.numel())


def _parts(
    graph: CSCGraph, roots: Tensor, case: SubgraphCase, options: SubgraphOptions, peers: Sequence[Peer], folder: Path,
    progress: Callable[[str], object],
) -> dict:  # fmt: skip
    """Walk and induction of one method apart, the latter beside a peer's on the same nodes."""
    progress(f"{case.method}: walk and induction")
    visitor = Visitor(graph, roots, case.spec(rng_seed=options.rng_seed))
    degrees = graph.in_degrees()
    inducing = [peer for peer in peers if peer.name in INDUCES]
    walk_ns, induce_ms, scanned_ns, theirs_ms, sizes = [], [], [], [], []
    for numbers in _turns(options.trials):
        visits = [timed(partial(visitor.visit, number)) for number in numbers]
        drawn = [found.nodes[0] for _, found in visits]
        induced = [timed(partial(induced_subgraph, graph.indptr, graph.indices, nodes)) for nodes in drawn]
        theirs_s = [_induced_s(peer, nodes, folder) for peer in inducing for nodes in drawn]
        if numbers[0] == WARM_UP:
            continue
        theirs_ms += [1e3 * seconds for seconds in theirs_s]
        for (walk_s, found), (induce_s, _), nodes in zip(visits, induced, drawn, strict=True):
            steps, scanned = int(found.steps[0]), int(degrees[nodes.long()].sum())
            sizes.append((nodes.numel(), steps, scanned))
            walk_ns.append(1e9 * walk_s / max(steps, 1))
            induce_ms.append(1e3 * induce_s)
            scanned_ns.append(1e9 * induce_s / max(scanned, 1))
    nodes, steps, scanned = np.mean(sizes, axis=0).tolist()
    return {
        "method": case.method, "nodes": nodes, "steps": steps, "walk_ns": middle(walk_ns), "scanned": scanned,
        "induce_ms": middle(induce_ms), "scanned_ns": middle(scanned_ns),
        "dgl_ms": middle(theirs_ms) if theirs_ms else None,
    }  # fmt: skip


def _structures(
    graph: CSCGraph, roots: Tensor, options: SubgraphOptions, progress: Callable[[str], object]
) -> list[dict]:
    """Prefix sums and dashboards of one law each: nanoseconds, probes and cleanups."""
    made = {}
    for clip in options.clips:
        for structure, eta in ((SUMS, None), *((DASHBOARD, eta) for eta in options.etas)):
            shape = {"structure": structure, "max_degree": clip} | ({} if eta is None else {"eta": eta})
            spec = options.frontier.spec(rng_seed=options.rng_seed, **shape)
            made[structure, eta, clip] = Visitor(graph, roots, spec)
    times: dict = {one: [] for one in made}
    counts: dict = {one: [] for one in made}
    for numbers in _turns(options.trials):
        progress(f"structures, from number {numbers[0]}")
        for one, visitor in made.items():
            for seconds, found in [timed(partial(visitor.visit, number)) for number in numbers]:
                if numbers[0] == WARM_UP:
                    continue
                steps = max(int(found.steps[0]), 1)
                times[one].append(1e9 * seconds / steps)
                counts[one].append([int(found.probes[0]) / steps, int(found.cleanups[0]), int(found.growths[0])])
    return [
        {"structure": structure, "eta": eta, "max_degree": clip, "step_ns": middle(times[structure, eta, clip])}
        | dict(
            zip(("probes", "cleanups", "growths"), np.mean(counts[structure, eta, clip], axis=0).tolist(), strict=True)
        )
        for structure, eta, clip in made
    ]


def _pool(graph: CSCGraph, roots: Tensor, options: SubgraphOptions, progress: Callable[[str], object]) -> list[dict]:
    """Subgraphs per second of `sample_many` with every number of threads, in turns."""
    progress("the pool")
    samplers = {
        threads: fsd.SubgraphSampler(
            graph, options.frontier.spec(rng_seed=options.rng_seed, num_threads=threads), roots
        )
        for threads in options.threads
    }
    rates: dict[int, list[float]] = {threads: [] for threads in samplers}
    for trial in range(-1, options.trials):
        for threads, sampler in samplers.items():
            start = time.perf_counter()
            sampler.sample_many((trial + 1) * POOL, POOL)
            if trial >= 0:
                rates[threads].append(POOL / (time.perf_counter() - start))
    return [
        {"threads": threads, "rate": {"median": statistics.median(found), "max": max(found)}}
        for threads, found in rates.items()
    ]


def middle(values: Sequence[float]) -> dict[str, float]:
    """{"median", "min"}: the least is what the work costs where nothing else runs."""
    return {"median": statistics.median(values), "min": min(values)}


def _mean(drawn: Sequence[Drawn], name: str) -> float:
    return statistics.mean(getattr(one, name) for one in drawn)
