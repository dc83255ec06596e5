"""DeviceEngine: built-in applications with individual transits, by the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.device.streams import to_device
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.ops import cuda
from fastsample_dist.ops.cuda_transit import SERVED, DeviceTables, SampleRun, has_drawn_lengths
from fastsample_dist.ops.kernel_choice import KernelChoice, KernelReport, most_of
from fastsample_dist.ops.transit_layouts import AppFailedError, NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.app import NULL
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.individual import app_in_numbers, host_tables, widths_of
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.samples import Samples


class NotOnGpusError(ValueError):
    """No kernel of a GPU makes an application's samples."""


@dataclass(frozen=True)
class SampleKind:
    """Calls that are alike.

    Attributes:
      num_roots: of a sample.
      most_samples: the calls have at most so many samples, and more than half of it.
    """

    num_roots: int
    most_samples: int


class DeviceEngine:
    """Samples of an application that has kernels, on a GPU; the same as the CPU's.

    Tables are made in host memory, then placed where the graph is: in device memory, or pinned where they do not fit.

    Args:
      bound: the application and its graph, which is in host memory.
      kind: of its kernel; None: the application is a user's own.
      device: that samples.
    Raises:
      NotOnGpusError: no kernel makes its samples.
      ValueError: the tables fit nowhere.
    """

    def __init__(self, bound: BoundApp, kind: NextKind | None, device: torch.device) -> None:
        if kind not in SERVED:
            raise NotOnGpusError(_refusal(bound))
        self.bound, self.device, self._kind = bound, device, kind
        tables = host_tables(bound)
        self.table_bytes, graph = tables.num_bytes, bound.graph
        wanted = Table("topology and tables", topology_bytes(graph) + self.table_bytes)
        [place] = choose_places([wanted], measured_room(device))
        self._tables = DeviceTables(tables, graph.indptr, graph.indices, place.put, device)
        self._params = bound.par.words()
        if kind == NextKind.PPR:
            self._survival = place.put(torch.from_numpy(np.ascontiguousarray(bound.par.survival)))
            self._params = np.array([self._survival.data_ptr(), self._survival.numel()])
        self._apps: dict[int, IndividualApp] = {}  # by number of roots
        self._choice: KernelChoice[SampleKind] = KernelChoice(cuda.timer(device))

    @property
    def has_one_width(self) -> bool:
        """Whether all samples of a call have as many vertices."""
        return not has_drawn_lengths(self._app(self.bound.plan(1)))

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; of `run` the schedule is read. "auto" takes "sample" and "transit" in turn, then the faster."""

        def enqueue(schedule: str) -> SampleRun:
            made = self.begin(roots, sample_ids, key, schedule)
            made.enqueue()
            return made

        if run.schedule != "auto" or self._kind == NextKind.ALL:  # all neighbours are taken in one way
            made = enqueue("sample" if run.schedule == "auto" else run.schedule)
        else:
            kind = SampleKind(roots.shape[1], most_of(roots.shape[0]))
            made = self._choice.run(kind, lambda: self._schedules(roots), enqueue)
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

    def begin(
        self, roots: Tensor, sample_ids: Tensor, key: DrawKey, schedule: str, draw: Tensor | None = None
    ) -> SampleRun:
        """A call's arrays; see SampleRun.

        Args:
          schedule: one of SCHEDULES but "auto".
          draw: int64 [2] on the device, in place of the key.
        """
        app = self._app(self.bound.plan(roots.shape[1]))
        there = to_device(roots, self.device), to_device(sample_ids, self.device)
        return SampleRun(self._tables, app, *there, TransitRequest(key.rng_seed, key.step, schedule=schedule), draw)

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
            app = app_in_numbers(self.bound, plan, self._kind, self._params, CompiledApp(0, None, None))
            self._apps[plan.num_roots] = app
        return self._apps[plan.num_roots]


def _refusal(bound: BoundApp) -> str:
    return (
        f"{type(bound.app).__name__} is sampled on the CPU; GPUs sample DeepWalk, PPR, Node2Vec, MultiRW, KHop, MVS, "
        "Layer, FastGCN, LADIES, ClusterGCN, and individual applications of your own; leave the device out."
    )
