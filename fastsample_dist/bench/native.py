"""The compiled functions that only benchmarks call (csrc/bench), in two libraries beside those of the operators."""

from __future__ import annotations

import ctypes
import functools

from torch import Tensor

from fastsample_dist.ops import abi, cuda, library

CPU = abi.Declarations()
CUDA = abi.Declarations()


@functools.cache
def core() -> ctypes.CDLL:
    """libfastsample_bench.so, loaded on first use.

    Raises:
      ImportError: as `library.load`; the message says how to build it.
    """
    remedy = "the benchmarks need it: build it with `pip install --no-build-isolation -e .` in the source directory."
    return library.load(library.LIBRARY_DIR / "libfastsample_bench.so", CPU, remedy, kind="fs_bench")


@functools.cache
def cuda_core() -> ctypes.CDLL:
    """libfastsample_bench_cuda.so, loaded on first use.

    Raises:
      ImportError: as `library.load`; the message says how to build it.
    """
    path = library.LIBRARY_DIR / "libfastsample_bench_cuda.so"
    remedy = (
        "fastsample-bench gpu needs it: install the CUDA toolkit (nvcc) and run "
        "`pip install --no-build-isolation -e .` again."
    )
    return library.load(path, CUDA, remedy, kind="fs_cuda_bench")


def call(function: str, *arguments: object) -> None:
    """Call a function of `core()`.

    Raises:
      ValueError, MemoryError, RuntimeError: as `library.raise_for_status`.
    """
    loaded = core()
    library.raise_for_status(getattr(loaded, function)(*arguments), loaded.fs_last_error)


def call_cuda(function: str, where: Tensor, *arguments: object) -> None:
    """Enqueue a function of `cuda_core()`; see `cuda.call_in`."""
    cuda.call_in(cuda_core(), function, where, *arguments)
