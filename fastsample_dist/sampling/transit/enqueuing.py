"""EnqueuingEngine: individual applications on a GPU, a call's kernels apart from its arrays and its samples.

So that the kernels of a call can be timed (DeviceEngine) and recorded (CapturedTransit).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.device.streams import to_device
from fastsample_dist.ops.cuda_run import DeviceRun
from fastsample_dist.ops.transit_layouts import AppFailedError
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.individual import widths_of
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.samples import Samples


class EnqueuingEngine(ABC):
    """Samples of an individual application, on a GPU.

    Args:
      bound: the application and its graph, which is in host memory.
      device: that samples.
      inputs: what its kernels read of the graph and of tables.
      table_bytes: of the tables.
    """

    def __init__(self, bound: BoundApp, device: torch.device, inputs: Any, table_bytes: int) -> None:
        self.bound, self.device, self._inputs, self.table_bytes = bound, device, inputs, table_bytes
        self._apps: dict[int, IndividualApp] = {}  # by number of roots

    @abstractmethod
    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read."""

    @abstractmethod
    def _in_numbers(self, plan: Plan) -> IndividualApp:
        """The application as kernels take it."""

    @abstractmethod
    def _run(
        self, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest, draw: Tensor | None
    ) -> DeviceRun:
        """See `begin`; roots and ids where kernels read them."""

    def begin(
        self, roots: Tensor, sample_ids: Tensor, key: DrawKey, schedule: str, draw: Tensor | None = None
    ) -> DeviceRun:
        """A call's arrays; see DeviceRun.

        Args:
          schedule: one of SCHEDULES, "auto" being "sample".
          draw: int64 [2] on the device, in place of the key.
        """
        app = self._app(self.bound.plan(roots.shape[1]))
        there = to_device(roots, self.device), to_device(sample_ids, self.device)
        return self._run(app, *there, TransitRequest(key.rng_seed, key.step, schedule=schedule), draw)

    def enqueued(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, schedule: str) -> DeviceRun:
        """A call whose kernels have been enqueued; see `begin`."""
        run = self.begin(roots, sample_ids, key, schedule)
        run.enqueue()
        return run

    def end(self, finish: Callable[[], SampledSteps], roots: Tensor, sample_ids: Tensor, key: DrawKey) -> Samples:
        """The samples of what has been enqueued.

        Args:
          finish: waits for them; of the run's.
          roots, sample_ids, key: that they were made from.
        """
        try:
            found = finish()
        except AppFailedError as error:
            raise explained(error, self.bound, roots, key) from error
        plan = self.bound.plan(roots.shape[1])
        return Samples(found.vertices, found.offsets, plan.num_roots, widths_of(plan, found), sample_ids, key)

    def _app(self, plan: Plan) -> IndividualApp:
        if plan.num_roots not in self._apps:
            self._apps[plan.num_roots] = self._in_numbers(plan)
        return self._apps[plan.num_roots]
