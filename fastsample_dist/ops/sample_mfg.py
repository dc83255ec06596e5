"""sample_mfg: all hops of a mini-batch in one call; sample_neighbors: one hop without relabelling.

Both draw for a node from the stream keyed by (rng_seed, step, hop, original id) and nothing else, so
`sample_mfg` equals `compact(sample_neighbors(...))` hop by hop, on every thread count, rank and partition.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

TAKE_ALL = -1


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """How neighbours are drawn.

    Attributes:
      fanouts: neighbours per node and hop, hop order from the seeds outwards; -1 takes all.
      replace: draw with replacement.
      rng_seed: 0 .. 2**63 - 1; key of the counter-based generator.
      num_threads: threads per call, None for torch's intra-op setting. Never changes a result.
    Raises:
      ValueError: a fanout below -1, an rng_seed out of range, num_threads below 1.
    """

    fanouts: tuple[int, ...]
    replace: bool = False
    rng_seed: int = 0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", tuple(int(fanout) for fanout in self.fanouts))
        for fanout in self.fanouts:
            checks.require(fanout >= TAKE_ALL, f"fanouts holds {fanout}; expected -1 (all neighbours) or more.")
            checks.require(
                not (self.replace and fanout == TAKE_ALL),
                "fanouts holds -1 (all neighbours), which cannot be drawn with replacement; pass replace=False.",
            )
        checks.require(0 <= self.rng_seed < 2**63, f"rng_seed is {self.rng_seed}; expected 0 to 2**63 - 1.")
        checks.require(
            self.num_threads is None or self.num_threads >= 1,
            f"num_threads is {self.num_threads}; expected at least 1, or None for torch's setting.",
        )

    @property
    def threads(self) -> int:
        """Threads that a call uses."""
        return library.num_threads() if self.num_threads is None else self.num_threads


def sample_mfg(
    indptr: Tensor, indices: Tensor, seeds: Tensor, spec: SampleSpec, *, step: int = 0, orig_ids: Tensor | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Sample all hops of one mini-batch and relabel each to a message flow graph.

    Args:
      indptr: int64 [num_nodes + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; source node ids, each row in canonical order.
      seeds: same dtype as indices, [num_seeds]; unique node ids.
      spec: fanouts, generator key, threads.
      step: 0 .. 2**63 - 1; global training step, part of the generator's key.
      orig_ids: int64 [num_nodes] original ids, None when row r is original node r.
    Returns:
      (nodes, indptrs, indices): nodes [num_nodes_of_batch] has the seeds first, then every node in order of first
      appearance; per hop (hop 0 is the seed side) int64 indptr [num_dst + 1] and local ids [num_edges] of the
      dtype of `indices`. The sources of hop h are nodes[:num_src]; they are the destinations of hop h + 1.
    Raises:
      ValueError: duplicate seeds, an id outside the graph, a dtype mismatch, damaged offsets.
    Source: FastSample, section 3.2, algorithm 1. Cost: O(sum of picks). Deterministic: yes.
    """
    nodes, indptrs, edges = torch.ops.fastsample.sample_mfg(
        indptr, indices, orig_ids, seeds, list(spec.fanouts), spec.replace, [spec.rng_seed, step], spec.threads
    )
    return nodes, indptrs, edges


def sample_neighbors(
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    spec: SampleSpec,
    *,
    hop: int,
    step: int = 0,
    orig_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample `spec.fanouts[hop]` in-neighbours of each row, without relabelling.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; source ids, may exceed num_rows (a slice of a larger graph).
      rows: same dtype as indices, [n]; row numbers, repeats allowed.
      spec: fanouts, generator key, threads.
      hop: which fanout, and part of the generator's key.
      step: global training step, part of the generator's key.
      orig_ids: int64 [num_rows] original ids of the rows, None when row r is original node r.
    Returns:
      (indptr int64 [n + 1], neighbours [indptr[-1]] of the dtype of `indices`).
    Raises:
      ValueError: a row outside 0 .. num_rows - 1, a dtype mismatch, damaged offsets.
    Source: FastSample, section 3.3. Cost: O(n + picks). Deterministic: yes.
    """
    return torch.ops.fastsample.sample_neighbors(
        indptr, indices, orig_ids, rows, spec.fanouts[hop], spec.replace, [spec.rng_seed, step, hop], spec.threads
    )


def _graph_view(indptr: Tensor, indices: Tensor, orig_ids: Tensor | None) -> library.Graph:
    """FsGraph over the tensors; the caller keeps them alive during the call."""
    checks.vector("indptr", indptr, (torch.int64,))
    checks.vector("indices", indices, checks.ID_DTYPES)
    checks.require(indptr.numel() >= 1, "indptr is empty; expected num_nodes + 1 offsets.")
    checks.require(indptr.is_contiguous() and indices.is_contiguous(), "indptr and indices must be contiguous tensors.")
    num_rows = indptr.numel() - 1
    if orig_ids is not None:
        checks.vector("orig_ids", orig_ids, (torch.int64,), num_rows)
        checks.require(orig_ids.is_contiguous(), "orig_ids must be a contiguous tensor.")
    return library.Graph(
        library.address(indptr),
        library.address(indices),
        library.address(orig_ids),
        num_rows,
        indices.numel(),
        library.type_code(indices),
    )


def _arguments(
    fanouts: list[int], replace: bool, key: tuple[int, int], first_hop: int, threads: int
) -> library.SampleArguments:
    rng_seed, step = key
    checks.require(step >= 0, f"step is {step}; expected 0 or more.")
    array = (ctypes.c_int64 * len(fanouts))(*fanouts)
    return library.SampleArguments(array, len(fanouts), first_hop, int(replace), threads, rng_seed, step)


def _row_ids(name: str, rows: Tensor, indices: Tensor) -> Tensor:
    checks.require(
        rows.dtype == indices.dtype, f"{name} is {rows.dtype} but indices is {indices.dtype}; they must agree."
    )
    return checks.vector(name, rows, checks.ID_DTYPES)


class _BatchOwner:
    """Frees a mini-batch of the library when the last tensor over its memory is gone."""

    def __init__(self, batch: ctypes._Pointer) -> None:
        weakref.finalize(self, library.core().fs_mini_batch_free, batch)

    def tensor(self, pointer: int, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor over the library's memory, without a copy; it keeps this owner alive."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype, count=count)


def _sample_mfg_cpu(
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    seeds: Tensor,
    fanouts: list[int],
    replace: bool,
    key: list[int],
    num_threads: int,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    graph = _graph_view(indptr, indices, orig_ids)
    seeds = _row_ids("seeds", seeds, indices)
    arguments = _arguments(fanouts, replace, (key[0], key[1]), 0, num_threads)
    batch = ctypes.POINTER(library.MiniBatchMemory)()
    library.call(library.core().fs_sample_mfg, graph, arguments, seeds.data_ptr(), seeds.numel(), ctypes.byref(batch))
    owner = _BatchOwner(batch)
    found = batch.contents
    nodes = owner.tensor(found.nodes, found.num_nodes, indices.dtype)
    hops = [found.hops[h] for h in range(found.num_hops)]
    indptrs = [owner.tensor(hop.indptr, hop.num_dst + 1, torch.int64) for hop in hops]
    edges = [owner.tensor(hop.indices, hop.num_edges, indices.dtype) for hop in hops]
    return nodes, indptrs, edges


def _sample_neighbors_cpu(
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    rows: Tensor,
    fanout: int,
    replace: bool,
    key: list[int],
    num_threads: int,
) -> tuple[Tensor, Tensor]:
    graph = _graph_view(indptr, indices, orig_ids)
    rows = _row_ids("rows", rows, indices)
    arguments = _arguments([fanout], replace, (key[0], key[1]), key[2], num_threads)
    picks = torch.empty(rows.numel() + 1, dtype=torch.int64)
    library.call(
        library.core().fs_sample_neighbors_indptr, graph, arguments, rows.data_ptr(), rows.numel(), picks.data_ptr()
    )
    neighbors = torch.empty(int(picks[-1]), dtype=indices.dtype)
    library.call(
        library.core().fs_sample_neighbors,
        graph, arguments, rows.data_ptr(), rows.numel(), picks.data_ptr(), neighbors.data_ptr(),
    )  # fmt: skip
    return picks, neighbors


SCHEMAS = {
    "sample_mfg": (
        "(Tensor indptr, Tensor indices, Tensor? orig_ids, Tensor seeds, int[] fanouts, bool replace, int[] key, "
        "int num_threads) -> (Tensor, Tensor[], Tensor[])",
        _sample_mfg_cpu,
    ),
    "sample_neighbors": (
        "(Tensor indptr, Tensor indices, Tensor? orig_ids, Tensor rows, int fanout, bool replace, int[] key, "
        "int num_threads) -> (Tensor, Tensor)",
        _sample_neighbors_cpu,
    ),
}
