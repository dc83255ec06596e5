"""What a mini-batch on a GPU is made of: the structures of fastsample_cuda.h, and the tensors behind them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops.read_back import read_back
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.ops.sampling_graph import SampledHops

MAX_HOPS = 16
ALIGNMENT = 256  # bytes; of the arrays of a batch
cuda.DECLARED.values(FS_CUDA_MAX_HOPS=MAX_HOPS)


@cuda.DECLARED.mirror("FsCudaSampleSizes")
class Sizes(Structure):
    """FsCudaSampleSizes."""

    _fields_ = (
        ("max_nodes", c_int64),
        ("max_degree", c_int64),
        ("max_rows", c_int64 * MAX_HOPS),
        ("max_edges", c_int64 * MAX_HOPS),
        ("max_tasks", c_int64),
        ("grid_blocks", c_int64),
        ("state_words", c_int64),
        ("table_nodes", c_int64),
        ("table_words", c_int64),
        ("workspace_bytes", c_int64),
    )


@cuda.DECLARED.mirror("FsCudaReplay")
class Replay(Structure):
    """FsCudaReplay."""

    _fields_ = (("step", c_uint64), ("ids", c_void_p), ("moved_by", c_int64))


@cuda.DECLARED.mirror("FsCudaSeeds")
class Seeds(Structure):
    """FsCudaSeeds."""

    _fields_ = (("ids", c_void_p), ("count", c_int64), ("replay", c_void_p))


@cuda.DECLARED.mirror("FsCudaBatch")
class Batch(Structure):
    """FsCudaBatch."""

    _fields_ = (
        ("nodes", c_void_p),
        ("indptr", c_void_p * MAX_HOPS),
        ("indices", c_void_p * MAX_HOPS),
        ("edge_ids", c_void_p * MAX_HOPS),
        ("workspace", c_void_p),
        ("table", c_void_p),
    )


@cuda.DECLARED.mirror("FsCudaQueueOptions")
class Queue(Structure):
    """FsCudaQueueOptions."""

    _fields_ = (("least_fetch", c_int64), ("most_fetch", c_int64), ("patience_ns", c_uint64))


_BATCH = (
    POINTER(library.Graph), POINTER(library.SampleArguments), POINTER(Seeds), POINTER(Sizes), POINTER(Batch),
)  # fmt: skip
cuda.DECLARED.functions(
    fs_cuda_sample_sizes=(
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, c_int64, c_int32, POINTER(Sizes),
    ),
    fs_cuda_persistent_sizes=(
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, c_int64, POINTER(Sizes),
    ),
    fs_cuda_cooperative_sizes=(
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, c_int64, POINTER(Sizes),
    ),
    fs_cuda_sample_mfg=(*_BATCH, c_void_p),
    fs_cuda_persistent_mfg=(*_BATCH, POINTER(Queue), c_void_p),
    fs_cuda_cooperative_mfg=(*_BATCH, c_uint64, c_void_p),
    fs_cuda_sample_neighbors=(*_BATCH, c_void_p),
    fs_cuda_hand_out=(
        POINTER(library.Graph), POINTER(library.SampleArguments), POINTER(Sizes), POINTER(Batch), c_void_p, c_void_p,
    ),
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Request:
    """What a batch is made of.

    Attributes:
      ids: the seeds on the device, of the graph's id dtype; of one hop alone its rows.
      spec: how neighbours are drawn.
      step: global training step.
      replay: None, or int64 [3] in pinned host memory (`Replay`) that the kernels read in place of `ids` and `step`.
      kernel: of kernel_choice.KERNELS.
    """

    ids: Tensor
    spec: SampleSpec
    step: int
    replay: Tensor | None = None
    kernel: str = "per_hop"

    def by(self, kernel: str) -> Request:
        """The same request, made by this kernel from now on."""
        self.kernel = kernel
        return self


class HopPlaces(NamedTuple):
    """Where the arrays of a hop begin in a batch's memory: in int64 words, indices in ids; edge_ids None: none."""

    indptr: int
    indices: int
    edge_ids: int | None


class BatchLayout:
    """Where the arrays of a batch lie in its memory, one after another.

    Args:
      sizes: the bounds of the arrays.
      num_hops: of the batch.
      dtype: of ids.
      edge_ids: whether it has positions of edges.
    Attributes:
      sizes, num_hops, dtype: the same.
      num_words, workspace_words: int64 words of the memory, and of the scratch.
      nodes: where the nodes begin, in ids.
      hops: of every hop.
    """

    def __init__(self, sizes: Sizes, num_hops: int, dtype: torch.dtype, *, edge_ids: bool) -> None:
        self.sizes, self.num_hops, self.dtype = sizes, num_hops, dtype
        self.workspace_words = -(-sizes.workspace_bytes // 8)
        rows, edges, width = sizes.max_rows[:num_hops], sizes.max_edges[:num_hops], dtype.itemsize
        counts = [count + 1 for count in rows] + (edges if edge_ids else [])
        *words, ids_begin = accumulate(_padded(counts, torch.int64), initial=0)
        self.nodes, *indices, end = accumulate(
            _padded([sizes.max_nodes, *edges], dtype), initial=8 * ids_begin // width
        )
        self.num_words = end * width // 8
        self.hops = [
            HopPlaces(words[hop], indices[hop], words[num_hops + hop] if edge_ids else None) for hop in range(num_hops)
        ]
        self._word_rooms = [after - begin for begin, after in pairwise([*words, ids_begin, self.num_words])]
        self._id_rooms = [self.nodes, *(after - begin for begin, after in pairwise([self.nodes, *indices, end]))]
        # Batch, as bytes: pointers to the nodes and to the arrays of so many hops, nothing for the other hops.
        pointers, rest = f"{num_hops}P", f"{8 * (MAX_HOPS - num_hops)}x"
        of_edge_ids = pointers + rest if edge_ids else f"{8 * MAX_HOPS}x"
        self._form = struct.Struct(f"P {2 * (pointers + rest)} {of_edge_ids} 2P")
        in_words, in_ids = [8 * place for place in words], [width * place for place in [self.nodes, *indices]]
        self._offsets = [in_ids[0], *in_words[:num_hops], *in_ids[1:], *in_words[num_hops:]]

    def described(self, memory: Tensor, workspace: Tensor, table: Tensor | None) -> Batch:
        """The arrays as the library takes them."""
        first = memory.data_ptr()
        arrays = [first + offset for offset in self._offsets]
        return Batch.from_buffer_copy(self._form.pack(*arrays, workspace.data_ptr(), library.address(table) or 0))

    def arrays(self, memory: Tensor) -> SampledHops:
        """Views of the arrays, each as large as its room: those of a batch whose sizes are not known yet.

        One call cuts all of a dtype, which takes a third of a call for each. To torch they are no views of the memory,
        which is what its "unsafe" says: gradients would miss that they share it, and integers have none.
        """
        *words, _ = memory.unsafe_split_with_sizes(self._word_rooms)
        _, nodes, *indices = memory.view(self.dtype).unsafe_split_with_sizes(self._id_rooms)
        return SampledHops(nodes, words[: self.num_hops], indices, words[self.num_hops :])


def _padded(counts: Sequence[int], dtype: torch.dtype) -> list[int]:
    """So many elements that the next array begins at a multiple of ALIGNMENT."""
    step = ALIGNMENT // dtype.itemsize
    return [-(-count // step) * step for count in counts]


@dataclass(eq=False, slots=True)
class EnqueuedBatch:
    """A batch whose kernels have been enqueued.

    Attributes:
      request: what it is made of; kept until the kernels have read it.
      layout: of its memory.
      memory: int64 [layout.num_words]; its arrays at the size of their bounds.
      workspace: int64; scratch, which starts with the state words.
      table: int64 [layout.sizes.table_words] of the nodes' places, which batches of one stream use in turn, or None.
      stream: that it was enqueued on; None for the emulated library.
    """

    request: Request
    layout: BatchLayout
    memory: Tensor
    workspace: Tensor
    table: Tensor | None
    stream: torch.cuda.Stream | None = None

    def node(self, number: int) -> int:
        """Id of a node, by its number in the batch."""
        return int(self.memory.view(self.layout.dtype)[self.layout.nodes + number])

    def read_state(self) -> Callable[[], list[int]]:
        """Begin to bring the state words to the host, as `read_back`: they are complete when the enqueued work is."""
        return read_back(self.workspace, self.layout.sizes.state_words, self.stream)


def shorten(hops: SampledHops, rows: Sequence[int], edges: Sequence[int], num_nodes: int) -> None:
    """Cut a batch's arrays, as `BatchLayout.arrays` makes them, to their sizes: in half of the time of a new view each.

    Args:
      hops: the arrays.
      rows, edges: of every hop.
      num_nodes: of the batch.
    """
    hops.nodes.resize_(num_nodes)
    for indptr, count in zip(hops.indptrs, rows, strict=True):
        indptr.resize_(count + 1)
    for of_hops in (hops.indices, hops.edge_ids):
        for array, count in zip(of_hops, edges, strict=False):
            array.resize_(count)
