"""DeviceAppEngine: individual applications of a user's own, by the kernels of a GPU that call their functions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops.cuda_apps import AppCode, AppInputs, AppRun, kernels_of, loaded
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp, compile_app
from fastsample_dist.sampling.transit.compile_cuda import compile_for_device
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.enqueuing import EnqueuingEngine
from fastsample_dist.sampling.transit.individual import app_in_numbers
from fastsample_dist.sampling.transit.samples import Samples


class DeviceAppEngine(EnqueuingEngine):
    """Samples of a user's individual application, on a GPU; the same as the CPU's.

    Its functions are compiled when the engine is made, and linked with the kernels that a call needs when it first
    does. The emulated library, whose device is the CPU, calls the CPU's.

    Args:
      bound: the application, with individual transits, and its graph, which is in host memory.
      device: that samples.
    Raises:
      ImportError: a part of the toolchain is missing or too old.
      ValueError: it cannot be compiled; its tables fit nowhere.
    """

    def __init__(self, bound: BoundApp, device: torch.device) -> None:
        self._compiled = CompiledApp(0, None, None)
        if device.type == "cuda":
            self._code = compile_for_device(bound, torch.cuda.get_device_capability(device))
        else:
            self._compiled = compile_app(bound)
        super().__init__(bound, device, AppInputs)
        self._params, self._arrays = self._placed_params()

    def _placed_params(self) -> tuple[Tensor, list[Tensor]]:
        """The words of `par` in device memory, and the arrays that they lead to."""
        arrays = []

        def address_of(array: np.ndarray) -> int:
            arrays.append(torch.from_numpy(array.view(np.uint8)).to(self.device))
            return arrays[-1].data_ptr()

        return torch.from_numpy(self.bound.par.words(address_of)).to(self.device), arrays

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read, "auto" being "sample"."""
        made = self.enqueued(roots, sample_ids, key, run.schedule)
        return self.end(made.finish, roots, sample_ids, key)

    def _run(
        self, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest, draw: Tensor | None
    ) -> AppRun:
        has_step_transits, has_initial = self.bound.step_transits is not None, self.bound.initial is not None
        cubin = None
        if self.device.type == "cuda":
            wanted = kernels_of(app, has_step_transits, has_initial, request.schedule)
            cubin = loaded(self._code.cubin(wanted), self.device)
        code = AppCode(self._params, has_step_transits, has_initial, cubin)
        return AppRun(self._inputs, app, code, roots, sample_ids, request, draw)

    def _in_numbers(self, plan: Plan) -> IndividualApp:
        return app_in_numbers(self.bound, plan, NextKind.CALLBACK, None, self._compiled)
