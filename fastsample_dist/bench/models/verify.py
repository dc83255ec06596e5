"""--verify of `fastsample-bench models`: a small batch of every case against the sampler's oracle, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fastsample_dist.bench.models.cases import ModelCase, WalkCase
from fastsample_dist.bench.sampling.verify import oracle_failure
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import reference

WALK_SEEDS = 16  # the oracle walks step by step


def verify(
    graph: CSCGraph, seeds: Tensor, cases: Sequence[ModelCase], rng_seed: int, progress: Callable[[str], object]
) -> dict:
    """Compare.

    Args:
      graph: with weights where a case draws by them.
      seeds: of which a case takes as many as the oracle can.
      cases: which.
      rng_seed: of the draws.
      progress: called with a line about what is done next.
    Returns:
      {"compared": [{"case", "seeds", "hops", "edges"}], "failures": one line each}.
    """
    compared, failures = [], []
    for case in cases:
        progress(f"verifying {case.name}")
        own = seeds.to(graph.indices.dtype)
        if isinstance(case, WalkCase):
            small, found = _walk_failure(graph, case, own[:WALK_SEEDS], rng_seed)
        else:
            small, found = oracle_failure(graph, dataclasses.replace(case.spec(rng_seed), edge_ids=True), own)
        compared.append({"case": case.name, **small})
        failures += [f"{case.name}: {text}" for text in found]
    return {"compared": compared, "failures": failures}


def _walk_failure(graph: CSCGraph, case: WalkCase, seeds: Tensor, rng_seed: int) -> tuple[dict, list[str]]:
    """As `oracle_failure`, of walks."""
    batch = case.sampler(graph, rng_seed).sample(seeds)
    hops, weights = reference.sample_pinsage(graph, seeds, case.rule(rng_seed))
    pairs = [(batch.input_nodes, hops.nodes)]
    for mfg, *expected in zip(reversed(batch.mfgs), hops.indptrs, hops.indices, weights, strict=True):
        pairs += zip((mfg.indptr, mfg.indices, mfg.edge_weights), expected, strict=True)
    same = all(torch.equal(ours, theirs) for ours, theirs in pairs)
    compared = {"seeds": seeds.numel(), "hops": case.num_layers, "edges": batch.num_edges}
    return compared, [] if same else [f"a batch of {seeds.numel()} seeds differs from the oracle's"]
