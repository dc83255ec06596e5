"""CudaSamplingGraph: SamplingGraph on a GPU, the same batches in the same order.

The graph's arrays lie in device memory, or in pinned host memory that the device reads over the bus. All hops of a
batch are enqueued on torch's current stream; their arrays are allocated by upper bounds (rows times fanout, never more
than the graph has nodes and edges), and one read-back at the end tells the sizes. The tensors of a batch are views of
those arrays, which stay as large as the bounds for as long as one of the views lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.ops.sampling_graph import SampledHops, SamplingGraph

MAX_HOPS = 16
_NOTHING_WRONG = -1  # of a state word that holds the first bad position
_BAD_SEED, _REPEATED_SEED = 0, 1  # words of the state, see FsCudaBatch
_FIRST_HOP_WORD, _HOP_WORDS = 3, 4
_ALIGNMENT = 256  # bytes; of the pieces of an allocation


class Sizes(Structure):
    """FsCudaSampleSizes."""

    _fields_ = (
        ("max_nodes", c_int64),
        ("max_rows", c_int64 * MAX_HOPS),
        ("max_edges", c_int64 * MAX_HOPS),
        ("state_words", c_int64),
        ("workspace_bytes", c_int64),
    )


class Seeds(Structure):
    """FsCudaSeeds."""

    _fields_ = (("ids", c_void_p), ("count", c_int64), ("step", c_void_p))


class Batch(Structure):
    """FsCudaBatch."""

    _fields_ = (
        ("nodes", c_void_p),
        ("indptr", c_void_p * MAX_HOPS),
        ("indices", c_void_p * MAX_HOPS),
        ("edge_ids", c_void_p * MAX_HOPS),
        ("workspace", c_void_p),
    )


cuda.declare(
    fs_cuda_sample_sizes=(
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, c_int32, POINTER(Sizes),
    ),
    fs_cuda_sample_mfg=(
        POINTER(library.Graph), POINTER(library.SampleArguments), POINTER(Seeds), POINTER(Sizes), POINTER(Batch),
        c_void_p,
    ),
    fs_cuda_sample_neighbors=(
        POINTER(library.Graph), POINTER(library.SampleArguments), POINTER(Seeds), POINTER(Sizes), POINTER(Batch),
        c_void_p,
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EnqueuedBatch:
    """A batch whose kernels have been enqueued: its arrays at the size of their bounds.

    Attributes:
      seeds: of the batch; kept until the kernels have read them.
      spec, step: how it is drawn.
      nodes: [max_nodes] of the graph's id dtype, empty without relabelling.
      indptrs: per hop, int64 [max_rows + 1].
      indices: per hop, [max_edges] of the graph's id dtype.
      edge_ids: per hop, int64 [max_edges], or empty.
      workspace: uint8; starts with the state words.
      sizes: the bounds.
    """

    seeds: Tensor
    spec: SampleSpec
    step: int
    nodes: Tensor
    indptrs: list[Tensor]
    indices: list[Tensor]
    edge_ids: list[Tensor]
    workspace: Tensor
    sizes: Sizes

    @property
    def state(self) -> Tensor:
        """int64 [state_words] on the device; complete when the enqueued work is."""
        return self.workspace[: 8 * self.sizes.state_words].view(torch.int64)


class CudaSamplingGraph(SamplingGraph):
    """In-neighbour lists that a GPU samples from.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; source ids.
      orig_ids: int64 [num_rows] original ids of the rows, None when row r is original node r.
      device: that samples; None takes that of `indices`. The arrays are on it or in pinned host memory.
    Raises:
      ValueError: as SamplingGraph; offsets that decrease; an array that the device cannot read.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        orig_ids: Tensor | None = None,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(indptr, indices, orig_ids)
        self.device = torch.device(device or indices.device)
        for name, array in (("indptr", indptr), ("indices", indices), ("orig_ids", orig_ids)):
            _check_readable(name, array, self.device)
        degrees = indptr.diff()
        checks.require(not bool((degrees < 0).any()), "indptr decreases; expected non-decreasing offsets.")
        self.max_degree = int(degrees.max()) if degrees.numel() else 0

    def sample(self, seeds: Tensor, spec: SampleSpec, step: int) -> SampledHops:
        """All hops of one mini-batch; see `ops.sample_mfg`. Waits for the batch's kernels once, at the end."""
        return self.finish(self.enqueue(seeds, spec, step))

    def sample_many(self, seeds: Sequence[Tensor], spec: SampleSpec, first_step: int) -> list[SampledHops]:
        """Many mini-batches: all are enqueued before the first is waited for."""
        batches = [self.enqueue(own, spec, first_step + number) for number, own in enumerate(seeds)]
        return [self.finish(batch) for batch in batches]

    def neighbors(self, rows: Tensor, spec: SampleSpec, hop: int, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """One hop without relabelling; see `ops.sample_neighbors`."""
        rows = self._on_device("rows", rows)
        arguments = spec.arguments(step, hop)
        batch = self._enqueue("fs_cuda_sample_neighbors", self._allocate(rows, spec, step, arguments, False), arguments)
        num_edges, bad_row = (int(word) for word in batch.state[_FIRST_HOP_WORD : _FIRST_HOP_WORD + 2].tolist())
        if bad_row != _NOTHING_WRONG:
            self._refuse_row("sample_neighbors", int(rows[bad_row]))
        edge_ids = batch.edge_ids[0][:num_edges] if spec.edge_ids else None
        return batch.indptrs[0], batch.indices[0][:num_edges], edge_ids

    def enqueue(
        self, seeds: Tensor, spec: SampleSpec, step: int, *, step_on_device: Tensor | None = None
    ) -> EnqueuedBatch:
        """Enqueue the kernels of one mini-batch on the current stream, without waiting for anything.

        Args:
          seeds: [num_seeds] of the graph's id dtype.
          spec: how neighbours are drawn.
          step: global training step.
          step_on_device: int64 [1] in device memory, read by the kernels in place of `step`: so that a captured CUDA
            graph can be replayed for other steps.
        Raises:
          ValueError: what can be refused without reading the seeds.
        """
        seeds = self._on_device("seeds", seeds)
        arguments = spec.arguments(step)
        batch = self._allocate(seeds, spec, step, arguments, True)
        return self._enqueue("fs_cuda_sample_mfg", batch, arguments, step_on_device)

    def finish(self, batch: EnqueuedBatch) -> SampledHops:
        """Wait for a batch's kernels and cut its arrays to size.

        Raises:
          ValueError: as `ops.sample_mfg`.
        """
        state = batch.state.tolist()
        self._check_state(state, batch)
        hops = SampledHops(batch.nodes, [], [], [])
        num_dst = num_nodes = batch.seeds.numel()
        for hop, (indptr, indices) in enumerate(zip(batch.indptrs, batch.indices, strict=True)):
            num_edges, _, _, num_nodes = _hop_state(state, hop)
            hops.indptrs.append(indptr[: num_dst + 1])
            hops.indices.append(indices[:num_edges])
            if batch.edge_ids:
                hops.edge_ids.append(batch.edge_ids[hop][:num_edges])
            num_dst = num_nodes
        return SampledHops(batch.nodes[:num_nodes], hops.indptrs, hops.indices, hops.edge_ids)

    def _sizes(self, num_rows: int, arguments: library.SampleArguments, relabels: bool) -> Sizes:
        sizes = Sizes()
        status = cuda.core().fs_cuda_sample_sizes(
            self._view, arguments, num_rows, self.max_degree, int(relabels), byref(sizes)
        )
        library.raise_for_status(status, cuda.core().fs_cuda_last_error)
        return sizes

    def _allocate(
        self, rows: Tensor, spec: SampleSpec, step: int, arguments: library.SampleArguments, relabels: bool
    ) -> EnqueuedBatch:
        """One allocation of ids, one of offsets (and edge ids), one of scratch."""
        checks.require(
            spec.method == "uniform",
            f"method is {spec.method!r}, but a GPU draws uniformly only; sample on the CPU, or pass method='uniform'.",
        )
        sizes, num_hops = self._sizes(rows.numel(), arguments, relabels), arguments.num_hops
        most_rows, most_edges = sizes.max_rows[:num_hops], sizes.max_edges[:num_hops]
        nodes, *indices = self._pieces([sizes.max_nodes, *most_edges], self.dtype)
        edge_ids = most_edges if spec.edge_ids else []
        offsets = self._pieces([count + 1 for count in most_rows] + edge_ids, torch.int64)
        workspace = torch.empty(sizes.workspace_bytes, dtype=torch.uint8, device=self.device)
        return EnqueuedBatch(rows, spec, step, nodes, offsets[:num_hops], indices, offsets[num_hops:], workspace, sizes)

    def _enqueue(
        self,
        name: str,
        batch: EnqueuedBatch,
        arguments: library.SampleArguments,
        step_on_device: Tensor | None = None,
    ) -> EnqueuedBatch:
        described = Batch(nodes=batch.nodes.data_ptr(), workspace=batch.workspace.data_ptr())
        for hop, indptr in enumerate(batch.indptrs):
            described.indptr[hop] = indptr.data_ptr()
            described.indices[hop] = batch.indices[hop].data_ptr()
            if batch.edge_ids:
                described.edge_ids[hop] = batch.edge_ids[hop].data_ptr()
        given = Seeds(batch.seeds.data_ptr(), batch.seeds.numel(), library.address(step_on_device))
        cuda.call(name, batch.workspace, self._view, arguments, given, batch.sizes, described)
        return batch

    def _pieces(self, counts: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
        step = _ALIGNMENT // dtype.itemsize
        padded = [-(-count // step) * step for count in counts]
        memory = torch.empty(sum(padded), dtype=dtype, device=self.device)
        pieces = memory.split(padded)
        return [piece[:count] for piece, count in zip(pieces, counts, strict=True)]

    def _on_device(self, name: str, ids: Tensor) -> Tensor:
        """Checked row ids on the device."""
        return self.row_ids(name, ids).to(self.device, non_blocking=True)

    def _check_state(self, state: list[int], batch: EnqueuedBatch) -> None:
        bad, repeated, *_ = state
        if bad != _NOTHING_WRONG:
            seed = int(batch.seeds[bad])
            if seed >= 0:
                self._refuse_row("sample_mfg", seed)
            raise ValueError(f"sample_mfg: seed {seed} at position {bad} is negative")
        if repeated != _NOTHING_WRONG:
            seed = int(batch.seeds[repeated])
            first = int((batch.seeds == seed).nonzero()[0])
            raise ValueError(
                f"sample_mfg: seeds holds node {seed} at positions {first} and {repeated}; expected each seed once"
            )
        for hop in range(len(batch.indptrs)):
            _, _, bad_edge, _ = _hop_state(state, hop)
            if bad_edge != _NOTHING_WRONG:
                self._refuse_source(batch, hop, bad_edge)

    def _refuse_source(self, batch: EnqueuedBatch, hop: int, edge: int) -> NoReturn:
        if not batch.edge_ids:  # the draw is repeated, this time with the positions that it reads
            batch = self.enqueue(batch.seeds, replace(batch.spec, edge_ids=True), batch.step)
        source = int(self._kept[1][batch.edge_ids[hop][edge]])
        if source < 0:
            raise ValueError(f"sample_mfg: the graph holds the negative source id {source}")
        raise ValueError(f"sample_mfg: the graph holds the source id {source}; expected 0 to {self.num_rows - 1}")

    def _refuse_row(self, operation: str, row: int) -> NoReturn:
        raise ValueError(f"{operation}: node id {row} is outside 0 to {self.num_rows - 1}")


def _hop_state(state: list[int], hop: int) -> list[int]:
    """num_edges, first bad row, first bad edge, num_src."""
    first = _FIRST_HOP_WORD + _HOP_WORDS * hop
    return state[first : first + _HOP_WORDS]


def _check_readable(name: str, array: Tensor | None, device: torch.device) -> None:
    if array is None or array.device == device:
        return
    checks.require(
        array.device.type == "cpu" and array.is_pinned(),
        f"{name} is on {array.device} but {device} samples; move it there, or pin it in host memory.",
    )
