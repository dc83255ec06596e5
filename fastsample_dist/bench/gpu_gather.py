"""`fastsample-bench gpu gather`: rows by id from device memory, from pinned host memory, and from both at once.

A rate counts what must be moved: for rows in device memory their bytes read and written, against a copy inside device
memory, which is counted alike; for rows in pinned host memory the bytes that cross the bus, against the better of the
two ways of copying an array over it in order. With a cache of some rows in device memory only the misses cross the bus.
Ids are drawn at random, with repetitions, and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.bench.gpu_device import Clock, GpuDevice
from fastsample_dist.bench.gpu_limits import bus_limits, copy_limit

DEVICE, PINNED, SPLIT = "device", "pinned", "split"
HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
DTYPES = (torch.float32, torch.bfloat16, torch.int8)


@dataclass(frozen=True, kw_only=True)
class GatherOptions:
    """What is run.

    Attributes:
      width: elements of a row.
      device_rows, host_rows: of the tables in device and in pinned host memory.
      num_ids: rows that a call gathers.
      rng_seed: of ids and rows.
      verify: compare every timed call's result with the CPU's first.
    """

    width: int = 128
    device_rows: int
    host_rows: int
    num_ids: int
    rng_seed: int = 0
    verify: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    """One timed way of gathering.

    Attributes:
      place: "device", "pinned" or "split".
      dtype: of the rows.
      hit_rate: share of the ids whose rows are in the cache.
      num_bytes: that the limit counts, per call.
      call: gathers.
      expected: computes the same on the CPU.
    """

    place: str
    dtype: torch.dtype
    hit_rate: float | None
    num_bytes: int
    call: Callable[[], Tensor]
    expected: Callable[[], Tensor]


def measure(device: GpuDevice, clock: Clock, options: GatherOptions, say: Callable[[str], object]) -> dict:
    """Every case.

    Returns:
      {"copy": see `copy_limit`, "bus": see `bus_limits`, "cases": [{"place", "dtype", "hit_rate", "bytes": per call,
      "whole_s", "kernels_s": see `spread`, the latter None where the profiler sees no kernel, "bytes_s", "of_limit":
      by the whole call, "kernels_of_limit"}]}.
    Raises:
      RuntimeError: with `verify`, rows that are not the CPU's; one line.
    """
    say("measuring copies")
    row_bytes = options.width * torch.float32.itemsize
    copy = copy_limit(device, clock, options.num_ids * row_bytes)
    bus = bus_limits(device, clock, options.num_ids * row_bytes)
    limits = {DEVICE: copy["bytes_s"]["median"], PINNED: bus["bytes_s"]["median"], SPLIT: bus["bytes_s"]["median"]}
    found = []
    for case in cases(device, options):
        name = f"{options.num_ids} {case.dtype} rows, {case.place}, hit rate {case.hit_rate}"
        say(f"gathering {name}")
        if options.verify and not torch.equal(case.call().cpu(), case.expected()):
            raise RuntimeError(f"verify: gathering {name}: the rows are not the CPU's.")
        found.append(_measure_one(clock, case, limits[case.place]))
    return {"copy": copy, "bus": bus, "cases": found}


def cases(device: GpuDevice, options: GatherOptions) -> Iterator[Case]:
    """The ways of gathering, one at a time: tables of one case are gone when the next is made."""
    generator = torch.Generator().manual_seed(options.rng_seed)
    for dtype in DTYPES:
        rows = _rows(options.device_rows, options.width, dtype, generator)
        ids = torch.randint(0, options.device_rows, (options.num_ids,), generator=generator)
        yield _whole_table(device, DEVICE, rows, ids, device.put(rows))
    rows = _rows(options.host_rows, options.width, torch.float32, generator)
    ids = torch.randint(0, options.host_rows, (options.num_ids,), generator=generator)
    yield _whole_table(device, PINNED, rows, ids, device.pin(rows))


def _whole_table(device: GpuDevice, place: str, rows: Tensor, ids: Tensor, placed: Tensor) -> Case:
    on_device = device.put(ids)
    moves = 2 if place == DEVICE else 1  # read and written; over the bus once
    num_bytes = moves * ids.numel() * rows.shape[1] * rows.element_size()
    return Case(place, rows.dtype, None, num_bytes, lambda: ops.gather_rows(placed, on_device), lambda: rows[ids])


def _rows(count: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rows of small whole numbers, which every dtype holds."""
    drawn = torch.randint(-100, 100, (count, width), dtype=torch.int8, generator=generator)
    return drawn.to(dtype)


def _measure_one(clock: Clock, case: Case, limit: float) -> dict:
    rates = clock.rates(case.num_bytes, lambda _: case.call())
    kernels = clock.kernels(lambda _: case.call())["all"]
    in_kernels = None if kernels is None or kernels["median"] == 0 else case.num_bytes / kernels["median"]
    return {
        "place": case.place, "dtype": str(case.dtype).removeprefix("torch."), "hit_rate": case.hit_rate,
        "bytes": case.num_bytes, "bytes_s": rates, "kernels_s": kernels,
        "of_limit": rates["median"] / limit,
        "kernels_of_limit": None if in_kernels is None else in_kernels / limit,
    }  # fmt: skip
