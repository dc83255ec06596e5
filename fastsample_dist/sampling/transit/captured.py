"""CapturedTransit: an individual application's kernels for one number of samples, recorded once as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.ops import checks
from fastsample_dist.ops.captured import CudaGraphRecorder, Recorder
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.app import NULL
from fastsample_dist.sampling.transit.enqueuing import EnqueuingEngine
from fastsample_dist.sampling.transit.samples import Samples


class CapturedTransit:
    """Makes samples by replaying recorded kernels: those of all steps, which is one launch for the host.

    Roots, ids, rng_seed and step lie at fixed places of device memory, where every call puts its own. The samples are
    copied out, so that they outlive the next call.

    Args:
      engine: of the application.
      shape: (samples, roots of each) of every call.
      rng_seed: unless a call has its own.
      schedule: one of SCHEDULES; of "auto" the kernels go sample by sample.
      recorder: None records a CUDA graph.
    Raises:
      MemoryError: the samples do not fit.
    """

    def __init__(
        self,
        engine: EnqueuingEngine,
        shape: tuple[int, int],
        rng_seed: int,
        schedule: str = "auto",
        recorder: Recorder | None = None,
    ) -> None:
        self._engine, self._rng_seed = engine, rng_seed
        words = {"dtype": torch.int64, "device": engine.device}
        self._draw, no_roots = torch.zeros(2, **words), torch.full(shape, NULL, **words)
        self._run = engine.begin(no_roots, torch.zeros(shape[0], **words), DrawKey(0, 0), schedule, self._draw)
        self._recorder = CudaGraphRecorder(engine.device) if recorder is None else recorder
        self._recorder.record(self._run.enqueue)

    def sample(
        self,
        roots: Tensor | Sequence[Any],
        step: int = 0,
        sample_ids: Tensor | Sequence[int] | None = None,
        rng_seed: int | None = None,
    ) -> Samples:
        """The samples of TransitSampler.sample. The current stream may be another one in every call.

        Args:
          roots, step, sample_ids: as of TransitSampler.sample.
          rng_seed: None takes the sampler's.
        Raises:
          ValueError: other numbers of samples or roots than were recorded; else as TransitSampler.sample.
          RuntimeError: as TransitSampler.sample.
        """
        run = self._run
        seed = self._rng_seed if rng_seed is None else checks.whole("rng_seed", rng_seed, 0, checks.LARGEST)
        key = DrawKey(seed, checks.whole("step", step, 0, checks.LARGEST))
        given, ids = plain.given_roots(
            self._engine.bound, roots, key, sample_ids, None, device=self._engine.device
        )  # fmt: skip
        if given.shape != run.roots.shape:
            raise ValueError(
                f"roots are {list(given.shape)}, but {list(run.roots.shape)} were recorded; sample others by "
                "TransitSampler.sample."
            )
        self._recorder.follow()  # the copies of the call before, on whichever stream
        run.roots.copy_(given, non_blocking=True)
        run.sample_ids.copy_(ids, non_blocking=True)
        self._draw.copy_(torch.tensor([key.rng_seed, key.step]), non_blocking=True)
        self._recorder.replay()
        return self._engine.end(run.copy(), given, ids, key)
