"""How long a rank's stages take, on the host and on a device that runs asynchronously.

A host's mark is the time. A CUDA device's mark is an event on the current stream, stamped when the device gets there,
so the time between two marks is that of the work between them: work queued before does not count, and the host's own
work counts while the device is idle. Recording an event does not wait; reading a time waits for its later mark. A
reader that is some steps behind (`lag`) therefore never idles the device, and by the same wait never runs further ahead
of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from fastsample_dist.ops.cuda import EventTimer


class Clock:
    """Times of work that is done when the call returns: that of the CPU. Also the interface of CudaClock.

    Attributes:
      lag: steps after which the times of a step are best read.
    """

    lag = 0

    def mark(self) -> Any:
        """Now, in the order of this thread's work."""
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks; waits until the work before the later one is done."""
        return end - begin

    def finish(self) -> None:
        """Wait until all of this thread's work is done."""


class CudaClock(Clock):
    """Times of work on a CUDA device.

    Args:
      device: the GPU.
    """

    lag = 2
    _POLL_S = 5e-5  # waits poll: one inside CUDA would delay Ctrl-C while another rank is gone

    def __init__(self, device: torch.device) -> None:
        self._timer = EventTimer(device)

    def mark(self) -> torch.cuda.Event:
        """See Clock: an event on the current stream."""
        return self._timer.mark()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """See Clock."""
        self._wait(end)
        return begin.elapsed_time(end) / 1e3

    def finish(self) -> None:
        """See Clock: waits for the current stream."""
        self._wait(self.mark())

    def _wait(self, event: torch.cuda.Event) -> None:
        while not event.query():
            time.sleep(self._POLL_S)


def clock_of(device: torch.device) -> Clock:
    """The clock that measures a device's work."""
    return CudaClock(device) if device.type == "cuda" else Clock()


@dataclass(frozen=True)
class Lap:
    """The time between two marks, or a share of it.

    Attributes:
      clock: that made the marks.
      begin, end: its marks.
      share: how many stages the time is divided among equally.
    """

    clock: Clock
    begin: Any
    end: Any
    share: int = 1

    @property
    def seconds(self) -> float:
        """The time; waits until the work before the later mark is done."""
        return self.clock.seconds(self.begin, self.end) / self.share
