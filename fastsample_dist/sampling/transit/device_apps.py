"""DeviceAppEngine: individual applications of a user's own, by the kernels of a GPU that call their functions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.device.streams import to_device
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.ops.cuda_apps import AppCode, AppInputs, cuda_app_sample, kernels_of, loaded
from fastsample_dist.ops.transit_layouts import AppFailedError, NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp, compile_app
from fastsample_dist.sampling.transit.compile_cuda import compile_for_device
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.individual import app_in_numbers, host_tables, widths_of
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.samples import Samples


class DeviceAppEngine:
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
        self._bound, self._device = bound, device
        self._compiled = CompiledApp(0, None, None)
        if device.type == "cuda":
            self._code = compile_for_device(bound, torch.cuda.get_device_capability(device))
        else:
            self._compiled = compile_app(bound)
        tables, graph = host_tables(bound), bound.graph
        self.table_bytes = tables.num_bytes
        wanted = Table("topology and tables", topology_bytes(graph) + self.table_bytes)
        [place] = choose_places([wanted], measured_room(device))
        self._inputs = AppInputs(tables, graph.indptr, graph.indices, place.put, device)
        self._params, self._arrays = self._placed_params()
        self._apps: dict[int, IndividualApp] = {}  # by number of roots

    def _placed_params(self) -> tuple[Tensor, list[Tensor]]:
        """The words of `par` in device memory, and the arrays that they lead to."""
        arrays = []

        def address_of(array: np.ndarray) -> int:
            arrays.append(torch.from_numpy(array.view(np.uint8)).to(self._device))
            return arrays[-1].data_ptr()

        return torch.from_numpy(self._bound.par.words(address_of)).to(self._device), arrays

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read, "auto" being "sample"."""
        bound, plan = self._bound, self._bound.plan(roots.shape[1])
        app, request = self._app(plan), TransitRequest(key.rng_seed, key.step, schedule=run.schedule)
        has_step_transits, has_initial = bound.step_transits is not None, bound.initial is not None
        cubin = None
        if self._device.type == "cuda":
            wanted = kernels_of(app, has_step_transits, has_initial, run.schedule)
            cubin = loaded(self._code.cubin(wanted), self._device)
        code = AppCode(self._params, has_step_transits, has_initial, cubin)
        there = to_device(roots, self._device), to_device(sample_ids, self._device)
        try:
            found = cuda_app_sample(self._inputs, app, code, *there, request)
        except AppFailedError as error:
            raise explained(error, bound, roots, key) from error
        return Samples(found.vertices, found.offsets, plan.num_roots, widths_of(plan, found), sample_ids, key)

    def _app(self, plan: Plan) -> IndividualApp:
        if plan.num_roots not in self._apps:
            self._apps[plan.num_roots] = app_in_numbers(self._bound, plan, NextKind.CALLBACK, None, self._compiled)
        return self._apps[plan.num_roots]
