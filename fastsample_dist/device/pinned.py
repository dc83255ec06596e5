"""Copies in pinned host memory, which CUDA kernels read over the bus under the pointer that the host uses.

The copy is in anonymous pages of exactly its size, registered by cudaHostRegister. Two shorter ways do not work well.
Registering the mapping of a file is not supported everywhere: the kernel refuses long-lived pins of many file systems'
pages, and read-only mappings need an attribute that not every device has. torch's pinned allocator rounds sizes up to a
power of two by default, which can double a large table.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from fastsample_dist import ops

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class _PinnedPages(mmap.mmap):
    """Anonymous pages that are pinned from `pin` until the last reference is gone."""

    address: int | None = None  # while pinned

    def pin(self, address: int) -> None:
        """Pin the pages, which begin at `address`."""
        self._cudart = torch.cuda.cudart()
        status = int(self._cudart.cudaHostRegister(address, len(self), PORTABLE))
        if status != 0:
            raise RuntimeError(
                f"pinning {len(self)} bytes of host memory failed with CUDA error {status}; choose device memory, or "
                "free host memory."
            )
        self.address = address

    def __del__(self) -> None:
        if self.address is not None:
            self._cudart.cudaHostUnregister(self.address)


def pinned_copy(tensor: Tensor) -> Tensor:
    """The tensor in pinned host memory: itself if it is there already, else a copy, unpinned when its last view ends.

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
    pages.pin(copy.data_ptr())
    return copy
