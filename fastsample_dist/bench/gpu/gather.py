"""`fastsample-bench gpu gather`: rows by id from device memory, from pinned host memory, and from both at once.

A rate counts what must be moved: for rows in device memory their bytes read and written, against a copy inside device
memory, which is counted alike; for rows in pinned host memory the bytes that cross the bus, against the better of the
two ways of reading an array over it in order. "split": a quarter of a pinned table is cached in device memory, and only
the other ids' rows cross the bus. Ids are drawn at random, with repetitions, and are not counted. Calls are those of a
training step: ids are known to be in range, and nothing waits for an error about a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.gpu.limits import bus_limits, copy_limit
from fastsample_dist.ops import RowCache

DEVICE, PINNED, SPLIT = "device", "pinned", "split"
HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
CACHED_ONE_IN = 4  # rows of the pinned table
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
      limit: "copy" or "bus".
      call: gathers.
      expected: computes the same on the CPU.
    """

    place: str
    dtype: torch.dtype
    hit_rate: float | None
    num_bytes: int
    limit: str
    call: Callable[[], Tensor]
    expected: Callable[[], Tensor]


def measure(device: GpuDevice, timer: GpuTimer, options: GatherOptions, progress: Callable[[str], object]) -> dict:
    """Every case.

    Returns:
      {"copy": see `copy_limit`, "bus": see `bus_limits`, "cases": [see `_measure_one`]}.
    Raises:
      RuntimeError: with `verify`, rows that are not the CPU's; one line.
    """
    progress("measuring copies")
    row_bytes = options.width * torch.float32.itemsize
    copy = copy_limit(device, timer, options.num_ids * row_bytes)
    bus = bus_limits(device, timer, options.num_ids * row_bytes)
    limits = {"copy": copy["bytes_s"]["median"], "bus": bus["bytes_s"]["median"]}
    found = []
    for case in cases(device, options):
        name = f"{options.num_ids} {case.dtype} rows, {case.place}, hit rate {case.hit_rate}"
        progress(f"gathering {name}")
        if options.verify and not torch.equal(case.call().cpu(), case.expected()):
            raise RuntimeError(f"verify: gathering {name}: the rows are not the CPU's.")
        found.append(_measure_one(timer, case, limits[case.limit]))
        device.release()
    return {"copy": copy, "bus": bus, "cases": found}


def cases(device: GpuDevice, options: GatherOptions) -> Iterator[Case]:
    """The ways of gathering, one at a time: tables of one case are gone when the next is made."""
    generator = torch.Generator().manual_seed(options.rng_seed)
    for dtype in DTYPES:
        rows = _rows(options.device_rows, options.width, dtype, generator)
        ids = torch.randint(0, options.device_rows, (options.num_ids,), generator=generator)
        yield _whole_table(device, DEVICE, rows, ids, device.put(rows))
    rows = _rows(options.host_rows, options.width, torch.float32, generator)
    pinned = device.pin(rows)
    ids = torch.randint(0, options.host_rows, (options.num_ids,), generator=generator)
    yield _whole_table(device, PINNED, rows, ids, pinned)
    num_cached = max(1, options.host_rows // CACHED_ONE_IN)
    cache = RowCache.of(rows, torch.arange(num_cached), device.torch_device)
    for hit_rate in HIT_RATES:
        ids = ids_of_hit_rate(hit_rate, options.num_ids, (num_cached, options.host_rows), generator)
        yield _split_table(device, hit_rate, rows, ids, pinned, cache)


def ids_of_hit_rate(hit_rate: float, count: int, sizes: tuple[int, int], generator: torch.Generator) -> Tensor:
    """`count` ids in random order, a share of them below sizes[0], the others from there to sizes[1]."""
    num_cached, num_rows = sizes
    num_hits = round(hit_rate * count) if num_cached < num_rows else count
    hits = torch.randint(0, num_cached, (num_hits,), generator=generator)
    others = torch.randint(num_cached, max(num_rows, num_cached + 1), (count - num_hits,), generator=generator)
    return torch.cat([hits, others])[torch.randperm(count, generator=generator)]


def _whole_table(device: GpuDevice, place: str, rows: Tensor, ids: Tensor, placed: Tensor) -> Case:
    on_device, row_bytes = device.put(ids), rows.shape[1] * rows.element_size()
    moves, limit = (2, "copy") if place == DEVICE else (1, "bus")  # read and written; over the bus once
    return Case(
        place, rows.dtype, None, moves * ids.numel() * row_bytes, limit,
        lambda: ops.gather_rows(placed, on_device, checked=False), lambda: rows[ids],
    )  # fmt: skip


def _split_table(
    device: GpuDevice, hit_rate: float, rows: Tensor, ids: Tensor, pinned: Tensor, cache: RowCache
) -> Case:
    on_device, row_bytes = device.put(ids), rows.shape[1] * rows.element_size()
    misses = int((ids >= cache.rows.shape[0]).sum())
    num_bytes, limit = (misses * row_bytes, "bus") if misses else (2 * ids.numel() * row_bytes, "copy")
    return Case(
        SPLIT, rows.dtype, hit_rate, num_bytes, limit,
        lambda: ops.gather_rows(pinned, on_device, cache, checked=False), lambda: rows[ids],
    )  # fmt: skip


def _rows(count: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rows of small whole numbers, which every dtype holds."""
    drawn = torch.randint(-100, 100, (count, width), dtype=torch.int8, generator=generator)
    return drawn.to(dtype)


def _measure_one(timer: GpuTimer, case: Case, limit: float) -> dict:
    """{"place", "dtype", "hit_rate", "limit", "bytes": per call, "bytes_s": see `spread`, "kernels_s": the same, None
    where the profiler sees no kernel, "of_limit": by the whole call, "kernels_of_limit"}."""
    rates = timer.rates(case.num_bytes, lambda _: case.call())
    kernels = timer.kernels(lambda _: case.call())["all"]
    ops.raise_deferred_errors(case.call().device)
    in_kernels = None if kernels is None or kernels["median"] == 0 else case.num_bytes / kernels["median"]
    return {
        "place": case.place, "dtype": str(case.dtype).removeprefix("torch."), "hit_rate": case.hit_rate,
        "limit": case.limit, "bytes": case.num_bytes, "bytes_s": rates, "kernels_s": kernels,
        "of_limit": rates["median"] / limit,
        "kernels_of_limit": None if in_kernels is None else in_kernels / limit,
    }  # fmt: skip
