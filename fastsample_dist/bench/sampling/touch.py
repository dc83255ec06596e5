"""The touch limit: how fast one thread, or several, can make the reads without which no edge is sampled.

Each sampled edge reads the graph's `indices` at a random place, and the relabelling table at another. `TouchLimit`
makes just these two reads, of the graph's own tensor, on the pages it lies on, and of a table as large as the
relabelling table, on huge pages; the places come from a mix of a counter (csrc/bench/random_reads.cpp). How far ahead a
read is best requested, and into which level of cache, depends on the machine: `tune` measures it.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastsample_dist.bench import native

HUGE_PAGE = 1 << 21
AHEAD = (0, 8, 16, 32, 64, 128)
TUNING_READS = 1 << 19
TUNING_TRIALS = 3
SLOT_BYTES = {torch.int32: 8, torch.int64: 16}  # of a relabelling table: a node id and its local id
_HUGE_FIELDS = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")


@native.CPU.mirror("FsRandomReads")
class RandomReads(ctypes.Structure):
    """FsRandomReads of csrc/bench/fastsample_bench.h."""

    _fields_ = (
        ("first", c_void_p),
        ("second", c_void_p),
        ("first_count", c_int64),
        ("second_count", c_int64),
        ("num_reads", c_int64),
        ("first_width", c_int32),
        ("second_width", c_int32),
        ("ahead", c_int32),
        ("into_second_level", c_int32),
        ("num_threads", c_int32),
        ("seed", c_uint64),
    )


native.CPU.functions(fs_random_reads=(ctypes.POINTER(RandomReads), ctypes.POINTER(c_uint64)))


@dataclass(frozen=True)
class Prefetch:
    """How reads are requested: so many reads before their use, into the first or the second level of cache."""

    ahead: int
    level: int


class TouchLimit:
    """Random reads of a graph's `indices` and of a table, the least that sampling as many edges costs.

    Args:
      indices: int32 | int64 [num_edges], at least one: the graph's own tensor.
      num_distinct: distinct nodes of a batch; the table has a power of two of slots, at least twice as many.
    Attributes:
      table: int64; on huge pages where the system has them.
    """

    def __init__(self, indices: Tensor, num_distinct: int) -> None:
        self.indices = indices
        slots = 1 << max(1, (2 * num_distinct - 1).bit_length())
        self.table = huge_table(slots * SLOT_BYTES[indices.dtype])

    def tune(self, threads: int) -> Prefetch:
        """The fastest way of requesting reads here, over distances and both levels of cache."""
        return tuned(self.indices, self.table, threads)

    def rate(self, num_reads: int, threads: int, way: Prefetch, seed: int) -> float:
        """Reads of each array per second; `seed` is the first counter, so runs should not overlap."""
        return read_rate(self.indices, self.table, num_reads, threads=threads, way=way, seed=seed)


def tuned(first: Tensor, second: Tensor, threads: int) -> Prefetch:
    """The fastest way of requesting reads of two tensors here, over distances and both levels of cache."""
    ways = [Prefetch(ahead, level) for ahead in AHEAD for level in (1, 2)]
    best = dict.fromkeys(ways, 0.0)
    for trial in range(TUNING_TRIALS):
        for way in ways:
            rate = read_rate(first, second, TUNING_READS, threads=threads, way=way, seed=trial * TUNING_READS)
            best[way] = max(best[way], rate)
    return max(ways, key=best.__getitem__)


def read_rate(first: Tensor, second: Tensor, num_reads: int, *, threads: int, way: Prefetch, seed: int) -> float:
    """Reads of each tensor per second; arguments as `read_sum`'s."""
    start = time.perf_counter()
    read_sum(first, second, num_reads, threads=threads, way=way, seed=seed)
    return num_reads / (time.perf_counter() - start)


def read_sum(first: Tensor, second: Tensor, num_reads: int, *, threads: int, way: Prefetch, seed: int) -> int:
    """Sum modulo 2**64 of `num_reads` random elements of each of two tensors.

    Args:
      first, second: contiguous, elements of 4 or 8 bytes, taken as unsigned integers.
      num_reads: of each.
      threads: OpenMP threads.
      way: never changes the sum.
      seed: counter of the first read.
    Raises:
      ValueError: a tensor is empty, or its elements have another size.
    """
    spec = RandomReads(
        first.data_ptr(), second.data_ptr(), first.numel(), second.numel(), num_reads, first.element_size(),
        second.element_size(), way.ahead, int(way.level == 2), threads, seed,
    )  # fmt: skip
    total = c_uint64()
    native.call("fs_random_reads", ctypes.byref(spec), ctypes.byref(total))
    return total.value


def huge_page_bytes(tensor: Tensor) -> int | None:
    """Bytes of a tensor's memory that lie on huge pages; None where the system does not say.

    The system counts by mapping: where others share the tensor's mapping, at most the tensor's own size is meant.
    """
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes, inside = 0, False
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            low, high = (int(address, 16) for address in name.split("-"))
            inside = low < end and start < high
        elif inside and name in _HUGE_FIELDS:
            kilobytes += int(rest.split()[0])
    return min(1024 * kilobytes, end - start)


def huge_table(num_bytes: int) -> Tensor:
    """int64 tensor of `num_bytes`, aligned to huge pages and asking for them, every page touched."""
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.int64)
    lead = -whole.data_ptr() % HUGE_PAGE // 8
    return whole[lead : lead + num_bytes // 8].fill_(1)
