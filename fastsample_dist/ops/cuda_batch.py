"""What a mini-batch on a GPU is made of: the structures of fastsample_cuda.h, and the tensors behind them."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops.sample_spec import SampleSpec

MAX_HOPS = 16
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
        ("state_words", c_int64),
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
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, c_int32, POINTER(Sizes),
    ),
    fs_cuda_persistent_sizes=(
        POINTER(library.Graph), POINTER(library.SampleArguments), c_int64, c_int64, POINTER(Sizes),
    ),
    fs_cuda_sample_mfg=(*_BATCH, c_void_p),
    fs_cuda_persistent_mfg=(*_BATCH, POINTER(Queue), c_void_p),
    fs_cuda_sample_neighbors=(*_BATCH, c_void_p),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class EnqueuedBatch:
    """A batch whose kernels have been enqueued: its arrays at the size of their bounds.

    Attributes:
      request: what it is made of; kept until the kernels have read it.
      nodes: [max_nodes] of the graph's id dtype, empty without relabelling.
      indptrs: per hop, int64 [max_rows + 1].
      indices: per hop, [max_edges] of the graph's id dtype.
      edge_ids: per hop, int64 [max_edges], or empty.
      workspace: uint8; starts with the state words.
      sizes: the bounds.
    """

    request: Request
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

    def described(self) -> Batch:
        """The batch as the library takes it."""
        described = Batch(nodes=self.nodes.data_ptr(), workspace=self.workspace.data_ptr())
        for hop, indptr in enumerate(self.indptrs):
            described.indptr[hop] = indptr.data_ptr()
            described.indices[hop] = self.indices[hop].data_ptr()
            if self.edge_ids:
                described.edge_ids[hop] = self.edge_ids[hop].data_ptr()
        return described
