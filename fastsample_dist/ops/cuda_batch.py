"""What a mini-batch on a GPU is made of: the structures of fastsample_cuda.h, and the tensors behind them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops.sample_spec import SampleSpec

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


@cuda.DECLARED.mirror("FsCudaSeeds")
class Seeds(Structure):
    """FsCudaSeeds."""

    _fields_ = (("ids", c_void_p), ("count", c_int64), ("step", c_void_p))


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
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Request:
    """What a batch is made of.

    Attributes:
      ids: the seeds on the device, of the graph's id dtype; of one hop alone its rows.
      spec: how neighbours are drawn.
      step: global training step.
      step_on_device: int64 [1] in device memory that the kernels read in place of `step`, or None.
      kernel: of kernel_choice.KERNELS.
    """

    ids: Tensor
    spec: SampleSpec
    step: int
    step_on_device: Tensor | None = None
    kernel: str = "per_hop"


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
      sizes, dtype: the same.
      num_words: int64 words of the memory.
      nodes: where the nodes begin, in ids.
      hops: of every hop.
    """

    def __init__(self, sizes: Sizes, num_hops: int, dtype: torch.dtype, *, edge_ids: bool) -> None:
        self.sizes, self.dtype = sizes, dtype
        rows, edges, width = sizes.max_rows[:num_hops], sizes.max_edges[:num_hops], dtype.itemsize
        counts = [count + 1 for count in rows] + (edges if edge_ids else [])
        *words, end = accumulate(_padded(counts, torch.int64), initial=0)
        self.nodes, *indices, end = accumulate(_padded([sizes.max_nodes, *edges], dtype), initial=8 * end // width)
        self.num_words = end * width // 8
        self.hops = [
            HopPlaces(words[hop], indices[hop], words[num_hops + hop] if edge_ids else None) for hop in range(num_hops)
        ]

    def described(self, memory: Tensor, workspace: Tensor, table: Tensor | None) -> Batch:
        """The arrays as the library takes them."""
        first, width = memory.data_ptr(), self.dtype.itemsize
        described = Batch(
            nodes=first + width * self.nodes, workspace=workspace.data_ptr(), table=library.address(table)
        )
        for hop, place in enumerate(self.hops):
            described.indptr[hop] = first + 8 * place.indptr
            described.indices[hop] = first + width * place.indices
            if place.edge_ids is not None:
                described.edge_ids[hop] = first + 8 * place.edge_ids
        return described


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

    @property
    def ids(self) -> Tensor:
        """The memory as ids."""
        return self.memory.view(self.layout.dtype)

    @property
    def state(self) -> Tensor:
        """int64 [state_words] on the device; complete when the enqueued work is."""
        return cut(self.workspace, 0, self.layout.sizes.state_words)


def cut(memory: Tensor, begin: int, count: int) -> Tensor:
    """Some elements of an allocation, [count] from `begin` on; in two thirds of the time that `narrow` takes."""
    return memory.as_strided((count,), (1,), begin)
