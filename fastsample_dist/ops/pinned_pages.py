"""pin_pages and unpin_pages: host memory that a GPU's kernels read over the bus under the host's pointers."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch

from fastsample_dist.ops import cuda, library

cuda.DECLARED.functions(fs_cuda_pin_pages=(c_void_p, c_int64), fs_cuda_unpin_pages=(c_void_p,))


def pin_pages(address: int, num_bytes: int, device: torch.device) -> None:
    """Pin pages of host memory, the first of which begins at `address`, for all devices of the process.

    Args:
      address: of the first page.
      num_bytes: of all pages.
      device: whose kernels read them; it alone gets a context where it has none yet.
    Raises:
      RuntimeError: CUDA does not pin them. No later launch is blamed for it.
    """
    _call("fs_cuda_pin_pages", device, address, num_bytes)


def unpin_pages(address: int, device: torch.device) -> None:
    """Unpin pages, once all work is done that `device` has been given: it may read them.

    Raises:
      RuntimeError: the pages at `address` are not pinned, or the device's work has failed.
    """
    _call("fs_cuda_unpin_pages", device, address)


def _call(name: str, device: torch.device, *arguments: int) -> None:
    with cuda.current(device):
        status = getattr(cuda.core(), name)(*arguments)
    library.raise_for_status(status, cuda.core().fs_cuda_last_error)
