"""SplitEngine: the samples of a call made by several GPUs, each a contiguous range of them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from fastsample_dist.ops.cuda import OutOfMemory
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.engine import Engine, Run
from fastsample_dist.sampling.transit.samples import Samples


class SplitEngine:
    """Samples of one application by an engine per device; the same as of one of them.

    Samples depend on their ids, not on what else is in a call, so devices exchange nothing: each has the graph and the
    tables, and a thread that waits for it.

    Args:
      engines: one per device, of the same application and graph.
      devices: theirs; the samples go to the first.
    """

    def __init__(self, engines: Sequence[Engine], devices: Sequence[torch.device]) -> None:
        self._engines, self._devices = list(engines), list(devices)
        self.table_bytes = sum(engine.table_bytes for engine in engines)
        self._threads = ThreadPoolExecutor(len(engines), "fastsample-device")

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine."""
        # A thread's work goes to the caller's streams: it follows what they have, and what they get later follows it.
        streams = [torch.cuda.current_stream(own) if own.type == "cuda" else None for own in self._devices]

        def make(part: int, begin: int, end: int) -> Samples:
            with torch.cuda.stream(streams[part]):
                return self._engines[part].sample(roots[begin:end], sample_ids[begin:end], key, run)

        count = len(self._engines)
        bounds = [len(sample_ids) * part // count for part in range(count + 1)]
        made = [self._threads.submit(make, part, *ends) for part, ends in enumerate(pairwise(bounds))]
        errors = [part.exception() for part in made]
        for error in errors:
            if isinstance(error, OutOfMemory):
                raise error
        if any(errors):  # of several failures the one that a device meets first which makes all of the samples
            return self._engines[0].sample(roots, sample_ids, key, run)
        return Samples.joined([part.result() for part in made], sample_ids, self._devices[0])

    def schedule_report(self) -> list[KernelReport]:
        """What schedule "auto" has measured, device by device."""
        reports = [getattr(engine, "schedule_report", list) for engine in self._engines]
        return [entry for report in reports for entry in report()]
