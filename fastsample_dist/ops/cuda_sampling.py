"""CudaSamplingGraph: SamplingGraph on a GPU, the same batches in the same order.

The graph's arrays lie in device memory, or in pinned host memory that the device reads over the bus. All hops of a
batch are enqueued on torch's current stream; their arrays are allocated by upper bounds (rows times fanout, never more
than the graph has nodes and edges), and one read-back at the end brings the sizes. The tensors of a batch are views of
one allocation, which stays as large as the bounds for as long as one of the views lives; scratch is another one. Where
a batch can reach a large share of the graph, the nodes' places in it are found in a table of 8 bytes per node of the
graph, which a thread keeps for each stream it samples on and empties once in a million batches
(csrc/cuda/batch_layout.cuh: stamps). Where that is large and batches have few nodes, their table is a hashed one for as
many as they have had (table_room.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import NoReturn

import torch
from torch import Tensor

from fastsample_dist.ops import cooperative, cuda, library, persistent
from fastsample_dist.ops.cuda_batch import BatchLayout, EnqueuedBatch, Queue, Request, Seeds, Sizes, shorten
from fastsample_dist.ops.kernel_choice import (
    COOPERATIVE,
    KERNELS,
    PER_HOP,
    PERSISTENT,
    BatchKind,
    KernelChoice,
    KernelReport,
    check_kernel,
    kind_of,
    serves,
)  # fmt: skip
from fastsample_dist.ops.library import Refusal
from fastsample_dist.ops.read_back import HostWords
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.ops.sampling_graph import EdgeWeights, SampledHops, SamplingGraph
from fastsample_dist.ops.table_room import ALL, TableRoom

_NOTHING_WRONG = -1  # of a state word that holds the first bad position
# Words of the state, see FsCudaBatch.
_BAD_SEED, _REPEATED_SEED, _TABLE_FULL, _FIRST_HOP_WORD, _HOP_WORDS = 0, 1, 4, 8, 5
cuda.DECLARED.values(
    FS_CUDA_BAD_SEED_WORD=_BAD_SEED, FS_CUDA_REPEATED_SEED_WORD=_REPEATED_SEED, FS_CUDA_TABLE_FULL_WORD=_TABLE_FULL,
    FS_CUDA_REPLAY_WORD=5, FS_CUDA_FIRST_HOP_WORD=_FIRST_HOP_WORD, FS_CUDA_HOP_WORDS=_HOP_WORDS,
)  # fmt: skip
_KEPT_LAYOUTS = 64  # of kinds of batches


class _Tables(threading.local):
    """The calling thread's tables: kernels of two threads may interleave on one stream."""

    def __init__(self) -> None:
        self.by_stream: dict[int, Tensor] = {}


class CudaSamplingGraph(SamplingGraph):
    """In-neighbour lists that a GPU samples from.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; source ids.
      orig_ids: int64 [num_rows] original ids of the rows, None when row r is original node r.
      src_orig_ids: int64 [num_sources] original ids by source id, for method "labor" on a slice; None takes orig_ids.
      weights: for a method that draws by weight.
      device: that samples; None takes that of `indices`. The arrays are on it or in pinned host memory.
      kernel: "per_hop"; "persistent": one launch draws for all hops (persistent.py); "cooperative": one launch does all
        steps of all hops (cooperative.py); "auto": the one that was fastest in the first batches of a kind
        (kernel_choice.py), per hop where the others do not serve.
      queue: of the persistent kernel; its timeout_s is the cooperative kernel's, too.
    Raises:
      ValueError: as SamplingGraph; offsets that decrease; an array that the device cannot read.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        orig_ids: Tensor | None = None,
        src_orig_ids: Tensor | None = None,
        weights: EdgeWeights | None = None,
        *,
        device: torch.device | None = None,
        kernel: str = PER_HOP,
        queue: persistent.QueueOptions | None = None,
    ) -> None:
        check_kernel(kernel)
        super().__init__(indptr, indices, orig_ids, src_orig_ids, weights)
        self.device = torch.device(device or indices.device)
        for array in self._kept:
            _check_readable(array, self.device)
        self._check_offsets(indptr, indices.numel())
        degrees = indptr.diff()
        self._indices, self._num_sources = indices, self._view.num_sources or self.num_rows
        self.max_degree = int(degrees.max()) if degrees.numel() else 0
        self._kernel, self._queue = kernel, (queue or persistent.QueueOptions()).arguments()
        self._choice: KernelChoice[BatchKind] = KernelChoice(cuda.timer(self.device))
        self._tables, self._room = _Tables(), TableRoom(self.num_rows)
        self._layout = lru_cache(_KEPT_LAYOUTS)(self._measure)  # by _measure's arguments

    def sample(self, seeds: Tensor, spec: SampleSpec, step: int) -> SampledHops:
        """All hops of one mini-batch; see `ops.sample_mfg`. Waits for the batch's kernels once, at the end."""
        return self.finish(self.enqueue(seeds, spec, step))

    def sample_many(self, seeds: Sequence[Tensor], spec: SampleSpec, first_step: int) -> list[SampledHops]:
        """Many mini-batches: all are enqueued before the first is waited for."""
        batches = [self.enqueue(own, spec, first_step + number) for number, own in enumerate(seeds)]
        states = [batch.read_state() for batch in batches]
        return [self.finish(batch, state) for batch, state in zip(batches, states, strict=True)]

    def neighbors(self, rows: Tensor, spec: SampleSpec, hop: int, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """One hop without relabelling; see `ops.sample_neighbors`."""
        rows = self.on_device("rows", rows)
        arguments = spec.arguments(step, hop)
        request = Request(rows, spec, step)
        layout = self._layout(rows.numel(), spec, request.kernel, hop, ALL)
        batch = self._allocate(request, layout, cuda.current_stream(self.device))
        self._call("fs_cuda_sample_neighbors", batch, arguments, stream=batch.stream)
        num_edges, bad_row, _, bad_scan, _ = _hop_state(batch.read_state()(), 0)
        if bad_row != _NOTHING_WRONG:
            self._refuse_row("sample_neighbors", int(rows[bad_row]))
        if bad_scan != _NOTHING_WRONG:
            self._refuse_source_of("sample_neighbors", int(rows[bad_scan]))
        hops = layout.arrays(batch.memory)
        shorten(hops, [rows.numel()], [num_edges], 0)
        return hops.indptrs[0], hops.indices[0], hops.edge_ids[0] if spec.edge_ids else None

    def enqueue(
        self,
        seeds: Tensor,
        spec: SampleSpec,
        step: int,
        *,
        replay: Tensor | None = None,
        table: Tensor | None = None,
    ) -> EnqueuedBatch:
        """Enqueue the kernels of one mini-batch on the current stream, without waiting for anything.

        Args:
          seeds: [num_seeds] of the graph's id dtype.
          spec: how neighbours are drawn.
          step: global training step.
          replay: int64 [3] in pinned host memory (`cuda_batch.Replay`), read by the kernels in place of seeds and
            step: so that a captured CUDA graph can be replayed for others. Then "auto" samples per hop, and the id
            table has room for all nodes that can come: a replay is not sampled again.
          table: of `new_table`, which nothing else uses meanwhile; None: the calling thread's for the current stream.
        Raises:
          ValueError: what can be refused without reading the seeds.
        """
        request = Request(self.on_device("seeds", seeds), spec, step, replay, self._kernel)
        if self._kernel != "auto":
            return self._enqueue(request, table)
        if replay is not None or not all(serves(kernel, spec) for kernel in KERNELS):
            return self._enqueue(request.by(PER_HOP), table)
        return self._choice.run(
            kind_of(spec, request.ids.numel()), lambda: KERNELS,
            lambda kernel: self._enqueue(request.by(kernel), table),
        )  # fmt: skip

    def new_table(self, num_seeds: int, spec: SampleSpec) -> Tensor | None:
        """A table for batches of so many seeds: int64 on the device; None where they need none that stays."""
        words = self._largest_layout(num_seeds, spec).sizes.table_words
        return torch.full((words,), -1, dtype=torch.int64, device=self.device) if words else None

    def kernel_report(self) -> list[KernelReport]:
        """What "auto" has measured and chosen, by kind of batch."""
        return self._choice.report()

    def enqueue_into(self, batch: EnqueuedBatch, stream: torch.cuda.Stream | None = None) -> None:
        """Enqueue the kernels of a batch once more on the current stream, into the arrays that it has.

        Args:
          batch: enqueued before, on whichever stream.
          stream: the current one, where the caller knows it.
        """
        arguments = batch.request.spec.arguments(batch.request.step)
        if batch.request.kernel == PERSISTENT:
            self._call("fs_cuda_persistent_mfg", batch, arguments, self._queue, stream=stream)
        elif batch.request.kernel == COOPERATIVE:
            self._call("fs_cuda_cooperative_mfg", batch, arguments, self._queue.patience_ns, stream=stream)
        else:
            self._call("fs_cuda_sample_mfg", batch, arguments, stream=stream)

    def hand_out(self, batch: EnqueuedBatch, state: HostWords) -> None:
        """Enqueue, behind all kernels of a batch with a replay, copies of its arrays, at their sizes, into the memory
        that the replay says, and of its state words.
        """
        described = batch.layout.described(batch.memory, batch.workspace, batch.table)
        given = self._view, batch.request.spec.arguments(batch.request.step), batch.layout.sizes, described
        cuda.call("fs_cuda_hand_out", batch.workspace, *given, state.address)

    def finish(self, batch: EnqueuedBatch, state: Callable[[], list[int]] | None = None) -> SampledHops:
        """Wait for a batch's kernels and cut its arrays to size.

        Args:
          batch: whose kernels have been enqueued.
          state: of `read_back`, begun behind them; None: it is begun now.
        Raises:
          ValueError: as `ops.sample_mfg`.
        """
        state = state or batch.read_state()
        hops, num_hops = batch.layout.arrays(batch.memory), batch.layout.num_hops  # made while kernels run
        bad_words = _bad_words(num_hops)
        words = state()
        if max(bad_words(words)) != _NOTHING_WRONG:
            if words[_TABLE_FULL] != _NOTHING_WRONG:
                batch = self._enqueue(batch.request, None, whole_table=True)
                hops, words = batch.layout.arrays(batch.memory), batch.read_state()()
            self._check_state(words, batch)
        if batch.request.kernel == PERSISTENT:
            persistent.check_end(words)
        elif batch.request.kernel == COOPERATIVE:
            cooperative.check_end(words)
        num_seeds, end = batch.request.ids.numel(), _FIRST_HOP_WORD + _HOP_WORDS * num_hops
        edges = words[_FIRST_HOP_WORD:end:_HOP_WORDS]
        *rows, num_nodes = num_seeds, *words[_FIRST_HOP_WORD + _HOP_WORDS - 1 : end : _HOP_WORDS]
        shorten(hops, rows, edges, num_nodes)
        self._room.note(batch.request.spec, num_seeds, num_nodes)
        return hops

    def batch_bytes(self, num_seeds: int, spec: SampleSpec) -> int:
        """Most device memory, in bytes, that a batch of so many seeds takes with its scratch."""
        layout = self._largest_layout(num_seeds, spec)
        return 8 * (layout.num_words + layout.sizes.table_words) + layout.sizes.workspace_bytes

    def _largest_layout(self, num_seeds: int, spec: SampleSpec) -> BatchLayout:
        kernel = PERSISTENT if self._kernel == "auto" else self._kernel
        return self._layout(num_seeds, spec, kernel if serves(kernel, spec) else PER_HOP, None, ALL)

    def _measure(self, num_rows: int, spec: SampleSpec, kernel: str, hop: int | None, expected: int) -> BatchLayout:
        """The layout of a kind of batch: of all hops, or of one without relabelling; expected: see `TableRoom`."""
        self._check(spec)
        sizes, arguments = Sizes(), spec.arguments(0) if hop is None else spec.arguments(0, hop)
        given, core = (self._view, arguments, num_rows, self.max_degree, expected), cuda.core()
        with cuda.current(self.device):  # the size of one launch's grid depends on it
            if kernel == PERSISTENT:
                status = core.fs_cuda_persistent_sizes(*given, byref(sizes))
            elif kernel == COOPERATIVE:
                status = core.fs_cuda_cooperative_sizes(*given, byref(sizes))
            else:
                status = core.fs_cuda_sample_sizes(*given, int(hop is None), byref(sizes))
        library.raise_for_status(status, cuda.core().fs_cuda_last_error)
        return BatchLayout(sizes, arguments.num_hops, self.dtype, edge_ids=spec.edge_ids)

    def _enqueue(self, request: Request, table: Tensor | None, *, whole_table: bool = False) -> EnqueuedBatch:
        num_seeds, spec = request.ids.numel(), request.spec
        expected = ALL if whole_table or request.replay is not None else self._room.expected(spec, num_seeds)
        stream = cuda.current_stream(self.device)
        batch = self._allocate(request, self._layout(num_seeds, spec, request.kernel, None, expected), stream)
        batch.table = self._own_table(batch) if table is None else table
        self.enqueue_into(batch, stream)
        return batch

    def _own_table(self, batch: EnqueuedBatch) -> Tensor | None:
        """The calling thread's for the batch's stream, which serves all kinds of batches; None where none stays."""
        if not batch.layout.sizes.table_words:
            return None
        tables, key = self._tables.by_stream, 0 if batch.stream is None else batch.stream.cuda_stream
        if key not in tables:
            tables[key] = self.new_table(batch.request.ids.numel(), batch.request.spec)
        return tables[key]

    def _allocate(self, request: Request, layout: BatchLayout, stream: torch.cuda.Stream | None) -> EnqueuedBatch:
        """One allocation of what the batch is, one of scratch, which ends with the batch."""
        memory = torch.empty(layout.num_words, dtype=torch.int64, device=self.device)
        workspace = torch.empty(layout.workspace_words, dtype=torch.int64, device=self.device)
        return EnqueuedBatch(request, layout, memory, workspace, None, stream)

    def _call(
        self, name: str, batch: EnqueuedBatch, arguments: library.SampleArguments, *options: Queue | int,
        stream: torch.cuda.Stream | None,
    ) -> None:  # fmt: skip
        ids, replay = batch.request.ids, batch.request.replay
        given = Seeds(ids.data_ptr(), ids.numel(), library.address(replay))
        described = batch.layout.described(batch.memory, batch.workspace, batch.table)
        sizes = batch.layout.sizes
        cuda.call(name, batch.workspace, self._view, arguments, given, sizes, described, *options, stream=stream)

    def _check_offsets(self, indptr: Tensor, num_edges: int) -> None:
        """Refuse offsets that decrease or leave the graph: the kernels follow them unchecked."""
        first, last = indptr[:-1], indptr[1:]
        bad = (first < 0) | (last < first) | (last > num_edges)
        if not bool(bad.any()):
            return
        row = int(bad.nonzero()[0])
        library.refuse(Refusal.OFFSETS, "sample_mfg", row, int(first[row]), int(last[row]), num_edges)

    def on_device(self, name: str, ids: Tensor) -> Tensor:
        """Row ids on the device: of the graph's dtype, one after another.

        Raises:
          ValueError: another shape or dtype.
        """
        ids = self.row_ids(name, ids)
        return ids if ids.device == self.device else ids.to(self.device, non_blocking=True)

    def _check_state(self, state: list[int], batch: EnqueuedBatch) -> None:
        bad, repeated = state[_BAD_SEED], state[_REPEATED_SEED]
        if bad != _NOTHING_WRONG:
            seed = int(batch.request.ids[bad])
            if seed >= 0:
                self._refuse_row("sample_mfg", seed)
            library.refuse(Refusal.NEGATIVE_SEED, "sample_mfg", seed, bad)
        if repeated != _NOTHING_WRONG:
            seed = int(batch.request.ids[repeated])
            first = int((batch.request.ids == seed).nonzero()[0])
            library.refuse(Refusal.REPEATED_SEED, "sample_mfg", seed, first, repeated)
        for hop in range(len(batch.layout.hops)):
            _, _, bad_edge, bad_scan, _ = _hop_state(state, hop)
            if bad_scan != _NOTHING_WRONG:
                self._refuse_source_of("sample_mfg", batch.node(bad_scan))
            if bad_edge != _NOTHING_WRONG:
                self._refuse_edge(batch, hop, bad_edge)

    def _refuse_edge(self, batch: EnqueuedBatch, hop: int, edge: int) -> NoReturn:
        if batch.layout.hops[hop].edge_ids is None:  # the draw is repeated, this time with the positions that it reads
            asked = batch.request
            batch = self._enqueue(replace(asked, spec=replace(asked.spec, edge_ids=True)), None, whole_table=True)
        place = batch.layout.hops[hop].edge_ids
        assert place is not None
        self._refuse_source("sample_mfg", int(self._indices[batch.memory[place + edge]]), self._num_sources)

    def _refuse_source_of(self, operation: str, row: int) -> NoReturn:
        first, last = (int(offset) for offset in self._kept[0][row : row + 2])
        sources = self._indices[first:last]
        outside = (sources < 0) | (sources >= self._num_sources)
        self._refuse_source(operation, int(sources[outside][0]), self._num_sources)

    def _refuse_source(self, operation: str, source: int, num_sources: int) -> NoReturn:
        if source < 0:
            library.refuse(Refusal.NEGATIVE_SOURCE, operation, source)
        library.refuse(Refusal.SOURCE, operation, source, num_sources - 1)

    def _refuse_row(self, operation: str, row: int) -> NoReturn:
        library.refuse(Refusal.ROW, operation, row, self.num_rows - 1)


def _hop_state(state: list[int], hop: int) -> list[int]:
    """num_edges, first row that does not exist, first bad edge, first row with a bad neighbour, num_src."""
    first = _FIRST_HOP_WORD + _HOP_WORDS * hop
    return state[first : first + _HOP_WORDS]


@lru_cache
def _bad_words(num_hops: int) -> itemgetter[tuple[int, ...]]:
    """What takes, out of a batch's state words, those that hold the first bad position of something."""
    firsts = [_FIRST_HOP_WORD + _HOP_WORDS * hop for hop in range(num_hops)]
    of_hops = [first + number for first in firsts for number in range(1, _HOP_WORDS - 1)]
    return itemgetter(_BAD_SEED, _REPEATED_SEED, _TABLE_FULL, *of_hops)


def _check_readable(array: Tensor | None, device: torch.device) -> None:
    if array is None or cuda.can_read(array, device):
        return
    raise ValueError(
        f"the graph has an array on {array.device} but {device} samples; move it there, or pin it in host memory."
    )
