"""Streams: a background thread enqueues on a CUDA stream of its own and hands what it made to the consumer's stream.

Hand-over, without a wait of the host: after a batch the thread records an event on its stream; the consumer makes its
current stream wait for that event, and registers the batch's tensors with the allocator as used there too
(record_stream), so that their memory is not given to a later batch of the thread while the consumer's kernels still
read it. When the thread starts, its stream waits for what the consumer has enqueued so far: the tables that it reads
may have been written by that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops.bytes import byte_view

MOST_STAGED = 64 << 20  # bytes


class HasTensors(Protocol):
    """What is handed over."""

    def tensors(self) -> list[Tensor]:
        """All tensors that belong to it alone."""
        ...


class Lane:
    """Where a background thread's work goes, on the CPU: nowhere else. Also the interface of StreamLane."""

    def start(self) -> None:
        """Called by the consumer before the thread's first work."""

    def working(self) -> AbstractContextManager[object]:
        """The thread does all of its work in this context."""
        return nullcontext()

    def made(self) -> Any:
        """Called in the thread after each batch: what its consumer has to wait for."""
        return None

    def receive(self, batch: HasTensors, made: Any) -> None:
        """Called by the consumer before it uses a batch."""


class StreamLane(Lane):
    """A CUDA stream for one loader's thread, kept from epoch to epoch because the allocator keeps memory by stream.

    Args:
      device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self) -> None:
        """See Lane."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def working(self) -> AbstractContextManager[object]:
        """See Lane: the stream, and its device, are current in the thread."""
        return torch.cuda.stream(self._stream)

    def made(self) -> torch.cuda.Event:
        """See Lane."""
        return self._stream.record_event()

    def receive(self, batch: HasTensors, made: torch.cuda.Event) -> None:
        """See Lane."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(made)
        for tensor in batch.tensors():
            if tensor.is_cuda:
                tensor.record_stream(stream)


def lane_of(device: torch.device) -> Lane:
    """Where a background thread's work for a device goes."""
    return StreamLane(device) if device.type == "cuda" else Lane()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on a device; the copy to a GPU is enqueued, the host does not wait for it.

    It passes through pinned memory of torch's allocator, which is kept: one of more than MOST_STAGED bytes goes from
    where it is, and is waited for. numpy fills that memory, because torch's copy of more than 32,768 elements wakes a
    thread per core.
    """
    if device.type != "cuda" or tensor.is_cuda or tensor.nbytes > MOST_STAGED:
        return tensor.to(device)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    np.copyto(byte_view(staged).numpy(), byte_view(tensor.contiguous()).numpy())
    return staged.to(device, non_blocking=True)
