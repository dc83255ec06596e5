"""Batches of few seeds: what a call costs besides the sampling itself.

The compiled core is called in one place (ops/library.py `call`); its time is taken there and subtracted from the whole
call's. What is left is the checks of the seeds, the tensors over the core's memory and the message flow graphs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from fastsample_dist.ops import library
from fastsample_dist.sampling.neighbor import NeighborSampler

SIZES = (0, 1, 10, 100)
CALLS = 400  # per size and sampler, in turns of TURN_CALLS
TURN_CALLS = 20


def measure_small(samplers: dict[int, NeighborSampler], seeds: Sequence[Tensor]) -> list[dict]:
    """Time calls of few seeds.

    Args:
      samplers: by their number of threads.
      seeds: batches to cut small ones from.
    Returns:
      [{"seeds", "threads", "call_s", "core_s", "overhead_s": medians of a call, of its time in the core, and of their
      difference, "edges": mean number of sampled edges}].
    """
    sizes = [size for size in SIZES if size <= min(batch.numel() for batch in seeds)]
    found: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
    with _core_times() as core_times:
        for first in range(0, CALLS, TURN_CALLS):
            for size in sizes:
                for threads, sampler in samplers.items():
                    calls = found.setdefault((size, threads), [])
                    for step in range(first, first + TURN_CALLS):
                        calls.append(_call(sampler, seeds[step % len(seeds)][:size].clone(), step, core_times))
    return [
        {
            "seeds": size, "threads": threads,
            "call_s": statistics.median(call for call, _, _ in calls),
            "core_s": statistics.median(core for _, core, _ in calls),
            "overhead_s": statistics.median(call - core for call, core, _ in calls),
            "edges": statistics.mean(edges for _, _, edges in calls),
        }
        for (size, threads), calls in found.items()
    ]  # fmt: skip


def _call(sampler: NeighborSampler, seeds: Tensor, step: int, core_times: list[float]) -> tuple[float, float, int]:
    """(seconds of the call, seconds of it in the core, sampled edges)."""
    core_times.clear()
    start = time.perf_counter()
    batch = sampler.sample(seeds, step)
    seconds = time.perf_counter() - start
    return seconds, sum(core_times), batch.num_edges


@contextmanager
def _core_times() -> Iterator[list[float]]:
    """Inside the block the seconds of every call of the core are appended to the list."""
    times: list[float] = []
    untimed = library.call

    def timed(function: Callable[..., int], *arguments: object) -> None:
        start = time.perf_counter()
        untimed(function, *arguments)
        times.append(time.perf_counter() - start)

    library.call = timed
    try:
        yield times
    finally:
        library.call = untimed
