"""Copies in pinned host memory, which CUDA kernels read over the bus under the pointer that the host uses.

The copy is in anonymous pages of exactly its size, registered by cudaHostRegister. Two shorter ways do not work well.
Registering the mapping of a file is not supported everywhere: the kernel refuses long-lived pins of many file systems'
pages, and read-only mappings need an attribute that not every device has. torch's pinned allocator rounds sizes up to a
power of two by default, which can double a large table.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from fastsample_dist import ops


class _PinnedPages(mmap.mmap):
    """Anonymous pages that are pinned from `pin` until the last reference is gone."""

    _unpin: Callable[[], None] | None = None  # while pinned

    def pin(self, address: int, device: torch.device) -> None:
        """Pin the pages, which begin at `address`, for kernels of a device."""
        ops.pin_pages(address, len(self), device)
        self._unpin = functools.partial(ops.unpin_pages, address, device)

    def __del__(self) -> None:
        if self._unpin is not None and not sys.is_finalizing():  # what lives until then ends with the process
            self._unpin()


def pinned_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor in pinned host memory: itself if it is there already, else a copy, unpinned when its last view ends.

    Kernels that read the copy may still be enqueued then: the end of the last view waits for the device.

    Args:
      tensor: one without elements is returned as it is: kernels read nothing of it.
      device: whose kernels read it.
    Cost: reads the tensor once; its size in host memory that can be neither swapped nor reclaimed.
    Raises:
      RuntimeError: CUDA refuses to pin so much.
    """
    if tensor.numel() == 0 or (tensor.device.type == "cpu" and tensor.is_pinned()):
        return tensor
    pages = _PinnedPages(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    copy = torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape)
    ops.advise_huge_pages(copy)
    copy.copy_(tensor)
    pages.pin(copy.data_ptr(), device)
    return copy
