"""DeviceAppEngine: individual applications of a user's own, by the kernels of a GPU that call their functions."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist.ops.cuda_apps import AppRun, kernels_of
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.device_functions import DeviceFunctions
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.enqueuing import EnqueuingEngine
from fastsample_dist.sampling.transit.individual import app_in_numbers
from fastsample_dist.sampling.transit.samples import Samples


class DeviceAppEngine(EnqueuingEngine):
    """Samples of a user's individual application, on a GPU; the same as the CPU's.

    Args:
      bound: the application, with individual transits, and its graph, which is in host memory.
      device: that samples.
    Raises:
      ImportError: a part of the toolchain is missing or too old.
      ValueError: it cannot be compiled; its tables fit nowhere.
    """

    def __init__(self, bound: BoundApp, device: torch.device) -> None:
        self._functions = DeviceFunctions(bound, device)
        super().__init__(bound, device, self._functions.inputs, self._functions.table_bytes)

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read, "auto" being "sample"."""
        made = self.enqueued(roots, sample_ids, key, run.schedule)
        return self.end(made.finish, roots, sample_ids, key)

    def _run(
        self, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest, draw: Tensor | None
    ) -> AppRun:
        bound = self.bound
        wanted = kernels_of(app, bound.step_transits is not None, bound.initial is not None, request.schedule)
        return AppRun(self._inputs, app, self._functions.code(wanted), roots, sample_ids, request, draw)

    def _in_numbers(self, plan: Plan) -> IndividualApp:
        return app_in_numbers(self.bound, plan, NextKind.CALLBACK, None, self._functions.compiled)
