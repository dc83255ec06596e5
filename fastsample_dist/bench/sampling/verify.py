"""--verify of `fastsample-bench sampling`: what is measured is what the contract promises.

For each list of fanouts:
- some whole batches: their seeds are those asked for, sources are destinations of the next hop, edges exist, none is
  drawn twice without replacement, each destination has as many as its row and the fanout allow;
- the same batches with each number of threads, one by one and by `sample_many`: equal in every number;
- a small batch against the oracle (ops/reference), which is slow: as many seeds and hops as it can take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.bench.sampling import measure as sampling
from fastsample_dist.bench.sampling.measure import Batches, SamplingOptions
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import TAKE_ALL, SampleSpec, reference
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.sampling.mfg import MFG, MiniBatch

WHOLE_BATCHES = 3
ORACLE_SEEDS = (16, 8, 4, 2, 1)
ORACLE_WORK = 100_000  # edges that the oracle looks at: a few seconds


def verify(graph: CSCGraph, batches: Batches, options: SamplingOptions, progress: Callable[[str], object]) -> dict:
    """Check our sampler in every configuration.

    Args:
      graph: what is sampled.
      batches: seeds; the first timed ones are used.
      options: of the measurement.
      progress: called with a line about what is done next.
    Returns:
      {"passed", "failures": one line each, "batches": whole ones checked, "oracle": [{"fanouts", "seeds", "hops",
      "edges"} compared with the oracle]}.
    """
    failures, compared = [], []
    num_usable = _usable_edges(graph, options)
    for fanouts in options.fanouts:
        name = ",".join(map(str, fanouts))
        progress(f"verifying {name}")
        seeds = batches.timed[:WHOLE_BATCHES]
        spec = dataclasses.replace(options.spec(fanouts, 1), edge_ids=True)
        sampler = sampling.our_sampler(graph, spec)
        expected = [sampler.sample(own, step) for step, own in enumerate(seeds)]
        found = [
            text
            for own, batch in zip(seeds, expected, strict=True)
            for text in structure_failures(graph, spec, own, batch, num_usable)
        ]
        found += _thread_failures(graph, fanouts, options, seeds, expected)
        small, text = oracle_failure(graph, spec, seeds[0])
        compared.append({"fanouts": list(fanouts), **small})
        failures += [f"{name}: {line}" for line in [*found, *text]]
    return {"passed": not failures, "failures": failures, "batches": WHOLE_BATCHES, "oracle": compared}


def structure_failures(
    graph: CSCGraph, spec: SampleSpec, seeds: Tensor, batch: MiniBatch, num_usable: Tensor
) -> Iterator[str]:
    """What a whole mini-batch violates, one line each.

    Args:
      graph: what was sampled.
      spec: with edge_ids.
      seeds: that were asked for.
      batch: our sampler's.
      num_usable: int64 [num_nodes]; edges of each row that may be drawn.
    """
    if not (torch.equal(batch.seeds, seeds) and torch.equal(batch.mfgs[-1].dst_nodes, seeds)):
        yield "its seeds, or the destinations of their hop, are not the seeds that were asked for"
    for above, below in zip(batch.mfgs[1:], batch.mfgs[:-1], strict=True):
        if not torch.equal(above.src_nodes, below.dst_nodes):
            yield "the sources of one hop are not the destinations of the next"
    if batch.input_nodes.unique().numel() != batch.input_nodes.numel():
        yield "a node occurs twice among the input nodes"
    for hop, (mfg, fanout) in enumerate(zip(reversed(batch.mfgs), spec.fanouts, strict=True)):
        yield from (f"hop {hop}: {text}" for text in _hop_failures(graph, spec, fanout, mfg, num_usable))


def _hop_failures(graph: CSCGraph, spec: SampleSpec, fanout: int, mfg: MFG, num_usable: Tensor) -> Iterator[str]:
    dst, edge_ids, counts = mfg.dst_nodes.long(), mfg.edge_ids, mfg.indptr.diff()
    owners = dst.repeat_interleave(counts)
    if owners.numel() != mfg.num_edges or edge_ids.numel() != mfg.num_edges:
        yield "its offsets, sources and edge ids differ in number"
        return
    in_row = (graph.indptr[owners] <= edge_ids) & (edge_ids < graph.indptr[owners + 1])
    if not bool(in_row.all()):
        yield f"{int((~in_row).sum())} edges are not in their destination's row"
    elif not torch.equal(graph.indices[edge_ids], mfg.src_nodes[mfg.indices.long()]):
        yield "edges have other sources than the graph's"
    elif graph.weights is not None and not bool((graph.weights[edge_ids] > 0).all()):
        yield "an edge of weight 0 was drawn"
    if not spec.replace and edge_ids.unique().numel() != mfg.num_edges:
        yield "an edge was drawn twice"
    usable = num_usable[dst]
    if fanout == TAKE_ALL:
        fits = counts == usable
    elif spec.replace:
        fits = counts == torch.where(usable > 0, fanout, 0)
    elif spec.traits.shares_variates:  # the number of picks is random where the row is larger than the fanout
        fits = torch.where(usable <= fanout, counts == usable, counts <= usable)
    else:
        fits = counts == usable.clamp(max=fanout)
    if not bool(fits.all()):
        place = int((~fits).nonzero()[0])
        yield f"node {int(dst[place])} has {int(counts[place])} edges of {int(usable[place])} with fanout {fanout}"


def _usable_edges(graph: CSCGraph, options: SamplingOptions) -> Tensor:
    """int64 [num_nodes]: edges of each row that may be drawn: all, or those of positive weight."""
    if not METHODS[options.method].weighted or bool((graph.weights > 0).all()):
        return graph.in_degrees()
    sums = np.concatenate([[0], np.cumsum(graph.weights.numpy() > 0, dtype=np.int64)])
    return torch.from_numpy(sums[graph.indptr.numpy()]).diff()


def _thread_failures(
    graph: CSCGraph, fanouts: Sequence[int], options: SamplingOptions, seeds: list[Tensor], expected: list[MiniBatch]
) -> Iterator[str]:
    """Batches of each number of threads, and of sample_many, that are not the expected ones."""
    for threads in options.threads:
        sampler = sampling.our_sampler(graph, options.spec(fanouts, threads))
        made = {
            "sample": [sampler.sample(own, step) for step, own in enumerate(seeds)],
            "sample_many": sampler.sample_many(seeds, first_step=0),
        }
        for call, found in made.items():
            if len(found) != len(expected) or not all(map(_are_equal, found, expected)):
                yield f"{call} with {threads} thread(s) gives other batches than one call with one thread"


def _are_equal(one: MiniBatch, other: MiniBatch) -> bool:
    return len(one.mfgs) == len(other.mfgs) and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for a, b in zip(one.mfgs, other.mfgs, strict=True)
        for name in ("indptr", "indices", "src_nodes")
    )


def oracle_failure(graph: CSCGraph, spec: SampleSpec, seeds: Tensor) -> tuple[dict, list[str]]:
    """(what was compared with the oracle: {"seeds", "hops", "edges"}; the failures found).

    Args:
      graph: what is sampled.
      spec: with edge_ids.
      seeds: of which it takes as many as the oracle can.
    """
    spec, seeds, batch = _small_batch(graph, spec, seeds)
    oracle = reference.sample_mfg(graph, seeds, spec, step=0)
    mfgs = list(reversed(batch.mfgs))
    pairs = [(batch.input_nodes, oracle.nodes)]
    for hop, mfg in enumerate(mfgs):
        pairs += [
            (mfg.indptr, oracle.indptrs[hop]), (mfg.indices, oracle.indices[hop]), (mfg.edge_ids, oracle.edge_ids[hop])
        ]  # fmt: skip
    same = all(torch.equal(ours, theirs) for ours, theirs in pairs)
    compared = {"seeds": seeds.numel(), "hops": len(mfgs), "edges": batch.num_edges}
    return compared, [] if same else [f"a batch of {seeds.numel()} seeds differs from the oracle's"]


def _small_batch(graph: CSCGraph, spec: SampleSpec, seeds: Tensor) -> tuple[SampleSpec, Tensor, MiniBatch]:
    """The largest batch that the oracle is given: fewer seeds, then fewer hops, until its work is small enough."""
    degrees = graph.in_degrees()
    for hops in range(len(spec.fanouts), 0, -1):
        shorter = dataclasses.replace(spec, fanouts=spec.fanouts[:hops])
        sampler = sampling.our_sampler(graph, shorter)
        for count in ORACLE_SEEDS:
            batch = sampler.sample(seeds[:count], 0)
            work = batch.num_edges
            if spec.traits.weighted or spec.traits.shares_variates:  # the oracle goes through whole rows
                work += sum(int(degrees[mfg.dst_nodes.long()].sum()) for mfg in batch.mfgs)
            if work <= ORACLE_WORK:
                return shorter, seeds[:count], batch
    return shorter, seeds[:1], batch
