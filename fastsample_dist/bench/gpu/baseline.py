"""The baseline of `fastsample-bench gpu sampling`: DGL's way of sampling on a GPU, hop by hop.

Per hop, on the current stream: count the picks and read their sum back, allocate, sample with a block per row by
reservoir sampling, mark the nodes that appear for the first time and read their number back, allocate, relabel. That
is what PGSampler (sections II-C and V) measures as DGL, and what its figures 8 and 9 are relative to. The kernels are
csrc/bench/reservoir.cu.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.bench import native
from fastsample_dist.ops import SampledHops, SampleSpec, checks, library


@native.CUDA.mirror("FsBenchHop")
class BenchHop(Structure):
    """FsBenchHop of csrc/bench/fastsample_bench.h."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("rows", c_void_p),
        ("num_rows", c_int64),
        ("fanout", c_int64),
        ("id_type", c_int32),
        ("hop", c_int32),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
    )


@native.CUDA.mirror("FsBenchRelabel")
class BenchRelabel(Structure):
    """FsBenchRelabel."""

    _fields_ = (
        ("rows", c_void_p),
        ("sources", c_void_p),
        ("num_rows", c_int64),
        ("num_edges", c_int64),
        ("num_ids", c_int64),
        ("table", c_void_p),
        ("slots", c_void_p),
        ("id_type", c_int32),
    )


@native.CUDA.mirror("FsBenchNumbers")
class BenchNumbers(Structure):
    """FsBenchNumbers."""

    _fields_ = (("is_first", c_void_p), ("numbers", c_void_p), ("nodes", c_void_p), ("indices", c_void_p))


native.CUDA.functions(
    fs_cuda_bench_count_picks=(POINTER(BenchHop), c_void_p, c_void_p),
    fs_cuda_bench_reservoir=(POINTER(BenchHop), c_void_p, c_void_p, c_void_p, c_void_p),
    fs_cuda_bench_table_bytes=(POINTER(BenchRelabel), POINTER(c_int64)),
    fs_cuda_bench_find_first=(POINTER(BenchRelabel), c_void_p, c_void_p),
    fs_cuda_bench_number=(POINTER(BenchRelabel), POINTER(BenchNumbers), c_void_p),
)


class ReservoirSampler:
    """Uniform sampling without replacement by reservoirs, with two read-backs per hop.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges], on the same device.
    """

    def __init__(self, indptr: Tensor, indices: Tensor) -> None:
        self.indptr, self.indices, self.num_rows = indptr, indices, indptr.numel() - 1

    def sample(self, seeds: Tensor, spec: SampleSpec, step: int) -> SampledHops:
        """All hops of one mini-batch, as SamplingGraph.sample gives them; other draws, edge ids always.

        Args:
          seeds: ids of rows, distinct, on the graph's device; not checked.
          spec: uniform, without replacement; every fanout at least 1.
          step: global training step.
        """
        checks.require(
            spec.method == "uniform" and not spec.replace and min(spec.fanouts) >= 1,
            f"the reservoir baseline draws uniformly without replacement, fanouts from 1 on; asked for {spec}.",
        )
        rows, indptrs, indices, edge_ids = seeds, [], [], []
        for hop in range(len(spec.fanouts)):
            indptr, sources, edges = self.draw(rows, spec, hop, step)
            rows, local = self.relabel(rows, sources)
            indptrs.append(indptr)
            indices.append(local)
            edge_ids.append(edges)
        return SampledHops(rows, indptrs, indices, edge_ids)

    def draw(self, rows: Tensor, spec: SampleSpec, hop: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """One hop without relabelling; rows may repeat.

        Returns:
          (indptr int64 [num_rows + 1], sources [num_edges], edge_ids int64 [num_edges]).
        """
        task = BenchHop(
            self.indptr.data_ptr(), self.indices.data_ptr(), rows.data_ptr(), rows.numel(), spec.fanouts[hop],
            library.type_code(self.indices), hop, spec.rng_seed, step,
        )  # fmt: skip
        indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=rows.device)
        counts = torch.empty(rows.numel(), dtype=torch.int64, device=rows.device)
        native.call_cuda("fs_cuda_bench_count_picks", rows, byref(task), counts.data_ptr())
        torch.cumsum(counts, 0, out=indptr[1:])
        num_edges = int(indptr[-1])  # the first of the hop's read-backs
        sources = torch.empty(num_edges, dtype=self.indices.dtype, device=rows.device)
        edge_ids = torch.empty(num_edges, dtype=torch.int64, device=rows.device)
        native.call_cuda(
            "fs_cuda_bench_reservoir", rows,
            byref(task), indptr.data_ptr(), sources.data_ptr(), edge_ids.data_ptr(),
        )  # fmt: skip
        return indptr, sources, edge_ids

    def relabel(self, rows: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
        """(distinct nodes, the rows first and then in order of first appearance; local ids of the sources)."""
        num_items, device = rows.numel() + sources.numel(), rows.device
        slots = torch.empty(num_items, dtype=torch.int64, device=device)
        task = BenchRelabel(
            rows.data_ptr(), sources.data_ptr(), rows.numel(), sources.numel(), self.num_rows, None, slots.data_ptr(),
            library.type_code(rows),
        )  # fmt: skip
        table = torch.empty(table_bytes(task), dtype=torch.uint8, device=device)
        task.table = table.data_ptr()
        is_first = torch.empty(num_items, dtype=torch.int32, device=device)
        native.call_cuda("fs_cuda_bench_find_first", rows, byref(task), is_first.data_ptr())
        numbers = torch.cumsum(is_first, 0, dtype=torch.int64)
        nodes = torch.empty(int(numbers[-1]) if num_items else 0, dtype=rows.dtype, device=device)  # the second
        indices = torch.empty(sources.numel(), dtype=rows.dtype, device=device)
        to = BenchNumbers(is_first.data_ptr(), numbers.data_ptr(), nodes.data_ptr(), indices.data_ptr())
        native.call_cuda("fs_cuda_bench_number", rows, byref(task), byref(to))
        return nodes, indices


def table_bytes(task: BenchRelabel) -> int:
    """Bytes of the table that a relabelling takes."""
    out, loaded = c_int64(), native.cuda_core()
    status = loaded.fs_cuda_bench_table_bytes(byref(task), byref(out))
    library.raise_for_status(status, loaded.fs_cuda_last_error)
    return out.value
