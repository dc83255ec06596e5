"""DeviceEngine: built-in applications with individual transits, by the kernels of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.ops import cuda
from fastsample_dist.ops.cuda_transit import DeviceTables, SampleRun
from fastsample_dist.ops.kernel_choice import KernelChoice, KernelReport, most_of
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.app import NULL
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.enqueuing import EnqueuingEngine
from fastsample_dist.sampling.transit.individual import app_in_numbers, host_tables
from fastsample_dist.sampling.transit.samples import Samples


@dataclass(frozen=True)
class SampleKind:
    """Calls that are alike.

    Attributes:
      num_roots: of a sample.
      most_samples: the calls have at most so many samples, and more than half of it.
    """

    num_roots: int
    most_samples: int


class DeviceEngine(EnqueuingEngine):
    """Samples of an application that has kernels, on a GPU; the same as the CPU's.

    Tables are made in host memory, then placed where the graph is: in device memory, or pinned where they do not fit.

    Args:
      bound: the application and its graph, which is in host memory.
      kind: of its kernel.
      device: that samples.
    Raises:
      ValueError: the tables fit nowhere.
    """

    def __init__(self, bound: BoundApp, kind: NextKind, device: torch.device) -> None:
        tables, graph = host_tables(bound), bound.graph
        [place] = choose_places(
            [Table("topology and tables", topology_bytes(graph) + tables.num_bytes)], measured_room(device)
        )
        inputs = DeviceTables(tables, graph.indptr, graph.indices, place.put, device)
        super().__init__(bound, device, inputs, tables.num_bytes)
        self._kind, self._params = kind, bound.par.words()
        if kind == NextKind.PPR:
            self._survival = place.put(torch.from_numpy(np.ascontiguousarray(bound.par.survival)))
            self._params = np.array([self._survival.data_ptr(), self._survival.numel()])
        self._choice: KernelChoice[SampleKind] = KernelChoice(cuda.timer(device))

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read. "auto" takes "sample" and "transit" in turn, then the faster."""
        if run.schedule != "auto" or self._kind == NextKind.ALL:  # all neighbours are taken in one way
            made = self.enqueued(roots, sample_ids, key, run.schedule)
        else:
            kind = SampleKind(roots.shape[1], most_of(roots.shape[0]))
            made = self._choice.run(
                kind, lambda: self._schedules(roots), lambda schedule: self.enqueued(roots, sample_ids, key, schedule)
            )
        return self.end(made.finish, roots, sample_ids, key)

    def schedule_report(self) -> list[KernelReport[SampleKind]]:
        """What schedule "auto" has measured and chosen, by kind of call."""
        return self._choice.report()

    def _schedules(self, roots: Tensor) -> tuple[str, str]:
        """What "auto" chooses from. A row that many pick from pays for sorting: rows of walks are read by one pick, and
        those of distinct roots by one sample, in the first step."""
        is_walk = bool((self._app(self.bound.plan(roots.shape[1])).sample_sizes <= 1).all())
        given = roots[roots != NULL]
        if is_walk or given.unique().numel() == given.numel():
            return "sample", "transit"
        return "transit", "sample"

    def _run(
        self, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest, draw: Tensor | None
    ) -> SampleRun:
        return SampleRun(self._inputs, app, roots, sample_ids, request, draw)

    def _in_numbers(self, plan: Plan) -> IndividualApp:
        return app_in_numbers(self.bound, plan, self._kind, self._params, CompiledApp(0, None, None))
