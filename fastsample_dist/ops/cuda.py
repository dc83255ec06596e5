"""The CUDA library, loaded with ctypes on first use, and how its entry points are called.

An entry point enqueues its work on torch's current stream of the device that holds the operator's tensors, and returns
without waiting. The structures that only it knows mirror csrc/include/fastsample_cuda.h field by field.
"""

from __future__ import annotations

import ctypes
import functools
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist.ops import abi, library, transit_layouts  # noqa: F401  (transit_layouts declares structs)

NAME = "libfastsample_cuda.so"

OutOfMemory = torch.cuda.OutOfMemoryError  # of torch's allocator

# Structs of fastsample.h and fastsample_transit.h that the CUDA library takes as well.
SHARED = (
    "FsAbiEntry",
    "FsWeightTables",
    "FsGraph",
    "FsSampleSpec",
    "FsRowTable",
    "FsRowTables",
    "FsAggregation",
    "FsActDropout",
    "FsTransitTables",
    "FsTransitApp",
    "FsTransitRequest",
    "FsStepTask",
)
DECLARED = abi.Declarations(structs={name: library.DECLARED.structs[name] for name in SHARED})


def load(path: Path) -> ctypes.CDLL:
    """A library of the CUDA sources; every module of operators has declared by now what it calls.

    Raises:
      ImportError: it is missing, damaged or of another version; the message says how to build it.
    """
    remedy = "install the CUDA toolkit (nvcc) and run `pip install --no-build-isolation -e .` again."
    return library.load(path, DECLARED, remedy, kind="fs_cuda")


@functools.cache
def core() -> ctypes.CDLL:
    """The CUDA library.

    Raises:
      ImportError: it was not built here; the message says what building it needs.
    """
    return load(library.LIBRARY_DIR / NAME)


def call(name: str, where: Tensor, *arguments: object, stream: torch.cuda.Stream | None = None) -> None:
    """Enqueue an entry point of the CUDA library; see `call_in`."""
    call_in(core(), name, where, *arguments, stream=stream)


def call_in(
    loaded: ctypes.CDLL, name: str, where: Tensor, *arguments: object, stream: torch.cuda.Stream | None = None
) -> None:
    """Enqueue an entry point on the device of `where`; its last argument, the stream, is added.

    Host tensors are for the emulated library (csrc/cuda/emulated), which knows no streams.

    Args:
      stream: the device's current one, where the caller knows it; asking takes as long as a launch.
    Raises:
      ValueError, MemoryError, RuntimeError: as `library.raise_for_status`.
    """
    entry = getattr(loaded, name)
    if not where.is_cuda:
        status = entry(*arguments, None)
    else:
        device = where.device
        handle = (torch.cuda.current_stream(device) if stream is None else stream).cuda_stream
        if device.index == torch.cuda.current_device():
            status = entry(*arguments, handle)
        else:
            with torch.cuda.device(device):
                status = entry(*arguments, handle)
    library.raise_for_status(status, loaded.fs_cuda_last_error)


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The current stream of a GPU; None for the emulated library's CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def current(device: torch.device) -> AbstractContextManager[object]:
    """While it is open, a GPU is the current one; nothing where it is so already, or for the emulated library's CPU."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def can_read(tensor: Tensor, device: torch.device) -> bool:
    """Whether kernels of a device can read a tensor: it is there or in pinned host memory, or has no element."""
    return tensor.device == device or tensor.numel() == 0 or (tensor.device.type == "cpu" and tensor.is_pinned())


class Timer(Protocol):
    """Marks points in the order of a device's work."""

    def mark(self) -> object:
        """A point after the work enqueued so far."""
        ...

    def elapsed_ms(self, start: object, stop: object) -> float | None:
        """Time between two points; None while the device has not passed them."""
        ...


class ClockTimer:
    """Marks of the host's clock, for work that is done when its call returns."""

    def mark(self) -> float:
        """Now, in seconds."""
        return time.perf_counter()

    def elapsed_ms(self, start: float, stop: float) -> float:
        """Time between two marks."""
        return (stop - start) * 1e3


class EventTimer:
    """Marks on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event after the work enqueued so far."""
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return event

    def elapsed_ms(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float | None:
        """Time between two events; None while the device has not passed them."""
        return start.elapsed_time(stop) if stop.query() else None


def timer(device: torch.device) -> Timer:
    """What measures work on a device; the host's clock for the emulated library."""
    return EventTimer(device) if device.type == "cuda" else ClockTimer()
