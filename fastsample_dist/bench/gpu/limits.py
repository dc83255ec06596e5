"""The limits that `fastsample-bench gpu` holds its figures against, measured in the same run by kernels of their own.

- random reads: 32-byte sectors per second from device memory, out of an array far larger than the second-level cache;
- copy: bytes read and written per second by a copy inside device memory;
- bus: bytes per second from pinned host memory, by the copy engine and by a kernel that reads in order.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_uint64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.bench import native
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer

SECTOR_BYTES = 32  # what a read of device memory moves at least
LEAST_ARRAY_BYTES = 4 << 30  # 80 times the second-level cache of an H200

native.CUDA.functions(
    fs_cuda_bench_random_sectors=(c_void_p, c_int64, c_int64, c_uint64, c_void_p, c_void_p),
    fs_cuda_bench_read_in_order=(c_void_p, c_int64, c_void_p, c_void_p),
)


def random_sectors(array: Tensor, num_reads: int, seed: int) -> Tensor:
    """Read random sectors of an array.

    Args:
      array: int64, aligned to 32 bytes; sectors beyond its last whole one are not read.
      num_reads: how many.
      seed: counter of the first read.
    Returns:
      int64 [1], not waited for: the sum modulo 2**64 of the sectors' first words.
    Raises:
      ValueError: the array holds no sector.
    """
    total = torch.empty(1, dtype=torch.int64, device=array.device)
    native.call_cuda(
        "fs_cuda_bench_random_sectors", array,
        array.data_ptr(), array.numel() * array.element_size() // SECTOR_BYTES, num_reads, seed, total.data_ptr(),
    )  # fmt: skip
    return total


def read_in_order(array: Tensor, total: Tensor | None = None) -> Tensor:
    """Read an array from its first to its last byte.

    Args:
      array: device memory, or pinned host memory; a multiple of 16 bytes.
      total: int64 [1] on the device that reads; None: on the array's.
    Returns:
      `total`, not waited for: the sum modulo 2**64 of the array's 32-bit words.
    Raises:
      ValueError: another number of bytes.
    """
    if total is None:
        total = torch.empty(1, dtype=torch.int64, device=array.device)
    native.call_cuda(
        "fs_cuda_bench_read_in_order", total, array.data_ptr(), array.numel() * array.element_size(), total.data_ptr()
    )
    return total


def random_read_limit(device: GpuDevice, timer: GpuTimer, array_bytes: int) -> dict:
    """Sectors per second, as many reads per trial as the array has sectors.

    Returns:
      {"array_bytes", "reads", "sectors_s": see `GpuTimer.rates`}.
    """
    array = device.put(torch.ones(array_bytes // 8, dtype=torch.int64))
    num_reads = array_bytes // SECTOR_BYTES
    found = timer.rates(num_reads, lambda trial: random_sectors(array, num_reads, seed=trial * num_reads))
    return {"array_bytes": array_bytes, "reads": num_reads, "sectors_s": found}


def copy_limit(device: GpuDevice, timer: GpuTimer, num_bytes: int) -> dict:
    """Bytes read and written per second by a copy inside device memory.

    Returns:
      {"bytes": read and written, "bytes_s"}.
    """
    source = device.put(torch.zeros(num_bytes, dtype=torch.uint8))
    target = torch.empty_like(source)
    return {"bytes": 2 * num_bytes, "bytes_s": timer.rates(2 * num_bytes, lambda _: target.copy_(source))}


def bus_limits(device: GpuDevice, timer: GpuTimer, num_bytes: int) -> dict:
    """Bytes per second from pinned host memory.

    Returns:
      {"bytes", "copy_bytes_s": by the copy engine, "read_bytes_s": by a kernel that reads in order, "bytes_s": the
      better of both, by their medians}.
    """
    host = device.pin(torch.zeros(num_bytes // 16 * 16, dtype=torch.uint8))
    target, total = device.put(torch.empty_like(host)), device.put(torch.zeros(1, dtype=torch.int64))
    ways: dict[str, Callable[[int], Tensor]] = {
        "copy_bytes_s": lambda _: target.copy_(host, non_blocking=True),
        "read_bytes_s": lambda _: read_in_order(host, total),
    }
    found = {name: timer.rates(host.numel(), call) for name, call in ways.items()}
    return {"bytes": host.numel(), **found, "bytes_s": max(found.values(), key=lambda rates: rates["median"])}
