"""--verify of `fastsample-bench walk`: what is measured is what the applications' definitions say.

For each application: walks from some roots by our engine, with every number of threads and every schedule, equal to
those of the plain engine, which calls the application's own `next` in Python, for as many steps as that can take. With
--own the walks of the user's applications too, which draw as those do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import fastsample_dist as fsd
from fastsample_dist.bench.walk.measure import WalkOptions
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling.transit import plain

PLAIN_WALKS = 64
PLAIN_STEPS = 10


def verify(graph: CSCGraph, options: WalkOptions, progress: Callable[[str], object]) -> dict:
    """Compare our engine with the definition.

    Args:
      graph: what is walked on.
      options: of the measurement.
      progress: called with a line about what is done next.
    Returns:
      {"failures": one line each, "checks": comparisons made}.
    """
    failures, checks = [], 0
    for case in options.cases:
        progress(f"verifying {case.name}")
        roots = case.roots(graph, PLAIN_WALKS)
        expected = plain.sample(graph, case.make(PLAIN_STEPS), roots, rng_seed=options.rng_seed, step=3).vertices
        for threads in options.threads:
            for schedule in ("sample", "transit", "transit_flat"):
                sampler = fsd.TransitSampler(
                    graph, case.make(PLAIN_STEPS), rng_seed=options.rng_seed, num_threads=threads, schedule=schedule
                )
                found, checks = sampler.sample(roots, step=3).vertices, checks + 1
                if not torch.equal(found, expected):
                    failures.append(f"{case.name} with {threads} thread(s), schedule {schedule}: walks differ")
            if options.own and case.make_own is not None:
                own = case.make_own(PLAIN_STEPS)
                sampler = fsd.TransitSampler(graph, own, rng_seed=options.rng_seed, num_threads=threads)
                found, checks = sampler.sample(roots, step=3).vertices, checks + 1
                if not torch.equal(found, expected):
                    failures.append(f"{case.name} as a user's application with {threads} thread(s): walks differ")
    return {"failures": failures, "checks": checks}
