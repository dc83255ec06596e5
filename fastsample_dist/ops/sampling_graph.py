"""SamplingGraph: a graph's arrays, checked once, ready to be sampled from again and again by the compiled core.

The operators of sample_mfg.py make one per call; a sampler keeps one. What the core returns is its own memory: the
tensors are views of it, without a copy, and the last of them to be freed returns it for the next batch.

Memory of the core, besides the batches themselves: every thread that samples keeps scratch, at most 22 bytes (int32
ids; 43 with int64) per distinct node of its largest batch and 16 bytes per destination of its largest hop
(`ops.sampler_scratch_bytes()` says how much); weighted draws add 16 to 32 bytes per in-edge of the longest row whose
weight lies in so few edges that alias draws give up. Of freed batches up to 256 MiB are kept for the next ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import POINTER
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.alias_tables import WEIGHT_DTYPES, AliasTables
from fastsample_dist.ops.owned_memory import OwnedMemory
from fastsample_dist.ops.sample_spec import SampleSpec

BatchPointer = POINTER(library.MiniBatchMemory)


@dataclass(frozen=True, eq=False)
class SampledHops:
    """All hops of a mini-batch; hop 0 is the seed side.

    Attributes:
      nodes: [num_nodes] of the graph's id dtype; the seeds, then every node in order of first appearance. The sources
        of hop h are nodes[:num_src]; they are the destinations of hop h + 1.
      indptrs: per hop, int64 [num_dst + 1]; CSC offsets.
      indices: per hop, [num_edges] of the graph's id dtype; local source ids.
      edge_ids: per hop, int64 [num_edges], position of each pick in the graph's indices; empty without spec.edge_ids.
      edge_weights: per hop, float [num_edges], coefficients that the sampler computed; empty where it computes none.
    """

    nodes: Tensor
    indptrs: list[Tensor]
    indices: list[Tensor]
    edge_ids: list[Tensor]
    edge_weights: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class EdgeWeights:
    """Weights of a graph's edges and the tables that drawing by weight needs.

    Attributes:
      weights: float32 | float64 [num_edges]; finite, not negative.
      tables: of `ops.alias_tables`.
    """

    weights: Tensor
    tables: AliasTables


class SamplingGraph:
    """In-neighbour lists in the form that the core reads, in host memory.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; source ids, may exceed num_rows (a slice of a larger graph).
      orig_ids: int64 [num_rows] original ids of the rows, None when row r is original node r.
      src_orig_ids: int64 [num_sources] original ids by source id, for method "labor" on a slice; None takes orig_ids.
      weights: for a method that draws by weight.
    Raises:
      ValueError: a wrong dtype or shape, a tensor that is not contiguous; when it samples, one that is elsewhere.
    """

    device = torch.device("cpu")  # that samples

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        orig_ids: Tensor | None = None,
        src_orig_ids: Tensor | None = None,
        weights: EdgeWeights | None = None,
    ) -> None:
        checks.vector("indptr", indptr, (torch.int64,))
        checks.vector("indices", indices, checks.ID_DTYPES)
        checks.require(indptr.numel() >= 1, "indptr is empty; expected num_nodes + 1 offsets.")
        self.num_rows, self.dtype = indptr.numel() - 1, indices.dtype
        if orig_ids is not None:
            checks.vector("orig_ids", orig_ids, (torch.int64,), self.num_rows)
        if src_orig_ids is not None:
            checks.vector("src_orig_ids", src_orig_ids, (torch.int64,))
        self._has_weights = weights is not None
        self._kept = [indptr, indices, orig_ids, src_orig_ids]
        weight_view = None if weights is None else ctypes.pointer(self._weight_view(weights, indices.numel()))
        for tensor in self._kept:
            checks.require(
                tensor is None or tensor.is_contiguous(), "indptr, indices, ids and weights must be contiguous tensors."
            )
        self._view = library.Graph(
            library.address(indptr),
            library.address(indices),
            library.address(orig_ids),
            library.address(src_orig_ids),
            weight_view,
            self.num_rows,
            0 if src_orig_ids is None else src_orig_ids.numel(),
            indices.numel(),
            library.type_code(indices),
        )
        self._elsewhere = next((kept.device for kept in self._kept if kept is not None and not kept.is_cpu), None)

    @property
    def view(self) -> library.Graph:
        """The graph as the compiled core takes it, while this object lives.

        Raises:
          ValueError: an array that is not in host memory.
        """
        if self._elsewhere is not None:
            raise ValueError(f"the graph has an array on {self._elsewhere}; expected host memory: move it there.")
        return self._view

    def sample(self, seeds: Tensor, spec: SampleSpec, step: int) -> SampledHops:
        """All hops of one mini-batch; see `ops.sample_mfg`."""
        self._check(spec)
        seeds = self.row_ids("seeds", seeds)
        batch = BatchPointer()
        library.call(
            library.core().fs_sample_mfg,
            self.view, spec.arguments(step), seeds.data_ptr(), seeds.numel(), ctypes.byref(batch),
        )  # fmt: skip
        return self.hops(batch, spec.edge_ids)

    def sample_many(self, seeds: Sequence[Tensor], spec: SampleSpec, first_step: int) -> list[SampledHops]:
        """Many mini-batches at once, one per thread: number i is that of seeds[i] at step first_step + i.

        Raises:
          ValueError: as `sample`; the line is that of the first batch that is refused.
        """
        self._check(spec)
        kept = [self.row_ids("seeds", own) for own in seeds]
        batches = (BatchPointer * len(kept))()
        library.call(
            library.core().fs_sample_many,
            self.view, spec.arguments(first_step), (ctypes.c_void_p * len(kept))(*(own.data_ptr() for own in kept)),
            (ctypes.c_int64 * len(kept))(*(own.numel() for own in kept)), len(kept), batches,
        )  # fmt: skip
        return [self.hops(batch, spec.edge_ids) for batch in batches]

    def neighbors(self, rows: Tensor, spec: SampleSpec, hop: int, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """One hop without relabelling; see `ops.sample_neighbors`."""
        self._check(spec)
        rows = self.row_ids("rows", rows)
        batch = BatchPointer()
        library.call(
            library.core().fs_sample_neighbors,
            self.view, spec.arguments(step, hop), rows.data_ptr(), rows.numel(), ctypes.byref(batch),
        )  # fmt: skip
        return self._hop(batch, spec.edge_ids)

    def induced(self, nodes: Tensor, edge_ids: bool, num_threads: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """All edges between some nodes; see `ops.induced_subgraph`."""
        nodes = self.row_ids("nodes", nodes)
        batch = BatchPointer()
        library.call(
            library.core().fs_induced_subgraph,
            self.view, nodes.data_ptr(), nodes.numel(), edge_ids, num_threads, ctypes.byref(batch),
        )  # fmt: skip
        return self._hop(batch, edge_ids)

    def row_ids(self, name: str, rows: Tensor) -> Tensor:
        """Node ids as the core takes them: one dimension of the graph's id dtype.

        Raises:
          ValueError: another dtype or shape; neither in host memory nor on a device of the kind that samples.
        """
        is_readable = rows.is_cpu or rows.device.type == self.device.type
        if rows.dtype == self.dtype and rows.dim() == 1 and is_readable:  # a small batch notices every microsecond
            return rows.contiguous()
        checks.require(
            rows.dtype == self.dtype, f"{name} is {rows.dtype} but indices is {self.dtype}; they must agree."
        )
        checks.require(is_readable, f"{name} is on {rows.device} but {self.device} samples; pass {name}.cpu().")
        return checks.vector(name, rows, checks.ID_DTYPES)

    def _weight_view(self, weights: EdgeWeights, num_edges: int) -> library.WeightTables:
        table, num_positive = weights.tables.table, weights.tables.num_positive
        checks.vector("weights", weights.weights, WEIGHT_DTYPES, num_edges)
        checks.require(
            table.dtype == torch.int32 and tuple(table.shape) == (num_edges, 2),
            f"table is {table.dtype} of shape {tuple(table.shape)}; expected int32 of ({num_edges}, 2).",
        )
        if num_positive is not None:
            checks.vector("num_positive", num_positive, (torch.int64,), self.num_rows)
        self._kept += [weights.weights, table, num_positive]
        return library.WeightTables(
            library.address(weights.weights),
            library.address(table),
            library.address(num_positive),
            library.type_code(weights.weights),
        )

    def _check(self, spec: SampleSpec) -> None:
        if spec.traits.weighted and not self._has_weights:
            raise ValueError(
                f"method is {spec.method!r} but the graph has no weights; build it with weights, one per edge."
            )

    def _hop(self, batch: ctypes._Pointer, edge_ids: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Offsets, ids and positions of a batch of one hop."""
        hops = self.hops(batch, edge_ids)
        return hops.indptrs[0], hops.indices[0], hops.edge_ids[0] if edge_ids else None

    def hops(self, batch: ctypes._Pointer, edge_ids: bool = False, edge_weights: bool = False) -> SampledHops:
        """The hops of a mini-batch that the library returned, as views of its memory."""
        owner = OwnedMemory(batch, library.core().fs_mini_batch_free)
        found, dtype = batch.contents, self.dtype
        hops = SampledHops(owner.tensor(found.nodes, found.num_nodes, dtype), [], [], [])
        for num_dst, _, num_edges, indptr, picks, ids, weights in _hop_fields(found.num_hops, found.hops):
            hops.indptrs.append(owner.tensor(indptr, num_dst + 1, torch.int64))
            hops.indices.append(owner.tensor(picks, num_edges, dtype))
            if edge_ids:
                hops.edge_ids.append(owner.tensor(ids, num_edges, torch.int64))
            if edge_weights:
                hops.edge_weights.append(owner.tensor(weights, num_edges, torch.float32))
        return hops


def _hop_fields(num_hops: int, address: int) -> Iterator[tuple[int, ...]]:
    """library.HOP_FIELDS of every hop, read at once."""
    width = len(library.HOP_FIELDS)
    fields = (ctypes.c_int64 * (width * num_hops)).from_address(address)[:]
    return zip(*[iter(fields)] * width, strict=True)
