"""DeviceFunctions: a user's functions compiled for a GPU, and what they read, where its kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.ops.cuda_apps import AppCode, AppInputs, loaded
from fastsample_dist.sampling.transit.binding import BoundApp
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp, compile_app
from fastsample_dist.sampling.transit.compile_cuda import compile_for_device
from fastsample_dist.sampling.transit.individual import host_tables


class DeviceFunctions:
    """The functions of a user's application for a device.

    They are compiled when this is made, and linked with the kernels that a call needs when it first does. The emulated
    library, whose device is the CPU, calls the CPU's.

    Args:
      bound: the application and its graph, which is in host memory.
      device: that samples.
      extra_bytes: of tables that the caller will put in the same place.
    Attributes:
      compiled: addresses of the CPU's functions, for the emulated library; else 0 and None.
      place: where the graph and the tables are.
      inputs: these.
      table_bytes: of the tables, the extra ones included.
    Raises:
      ImportError: a part of the toolchain is missing or too old.
      ValueError: it cannot be compiled; its tables fit nowhere.
    """

    def __init__(self, bound: BoundApp, device: torch.device, extra_bytes: int = 0) -> None:
        self._device, self.compiled = device, CompiledApp(0, None, None)
        if device.type == "cuda":
            self._objects = compile_for_device(bound, torch.cuda.get_device_capability(device))
        else:
            self.compiled = compile_app(bound)
        tables, graph = host_tables(bound), bound.graph
        self._orig_ids = graph.orig_ids
        self.table_bytes = tables.num_bytes + extra_bytes
        wanted = Table("topology and tables", topology_bytes(graph, valued=bound.weighted) + self.table_bytes)
        [self.place] = choose_places([wanted], measured_room(device))
        self.inputs = AppInputs(tables, graph.indptr, graph.indices, self.place.put, device)
        params, self._arrays = self._placed_params(bound)
        self._code = AppCode(params, bound.step_transits is not None, bound.initial is not None, None)

    def _placed_params(self, bound: BoundApp) -> tuple[Tensor, list[Tensor]]:
        """The words of `par` in device memory, and the arrays that they lead to."""
        arrays = []

        def address_of(array: np.ndarray) -> int:
            arrays.append(torch.from_numpy(array.view(np.uint8)).to(self._device))
            return arrays[-1].data_ptr()

        return torch.from_numpy(bound.par.words(address_of)).to(self._device), arrays

    def placed_graph(self) -> CSCGraph:
        """The graph in its place, its original ids too."""
        own, orig_ids = self.inputs, self._orig_ids
        return CSCGraph(
            own.indptr, own.indices, own.weights, None if orig_ids is None else self.place.put(orig_ids),
            self._device, weights_checked=True,
        )  # fmt: skip

    def code(self, kernels: Sequence[str]) -> AppCode:
        """The functions with these kernels around them, to be called.

        Raises:
          RuntimeError: they cannot be linked, or are not for this GPU.
        """
        if self._device.type != "cuda":
            return self._code
        return replace(self._code, cubin=loaded(self._objects.cubin(kernels), self._device))
