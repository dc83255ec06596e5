"""--verify of `fastsample-bench models`: a small batch of every case against the sampler's oracle, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch import Tensor

from fastsample_dist.bench.models.cases import ModelCase
from fastsample_dist.bench.sampling.verify import oracle_failure
from fastsample_dist.graph.csc import CSCGraph


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
        spec = dataclasses.replace(case.spec(rng_seed), edge_ids=True)
        small, found = oracle_failure(graph, spec, seeds.to(graph.indices.dtype))
        compared.append({"case": case.name, **small})
        failures += [f"{case.name}: {text}" for text in found]
    return {"compared": compared, "failures": failures}
