"""TransitSampler: samples of a graph-sampling application from one graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.device.choice import computing
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.ops.captured import Recorder
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.binding import HOST, as_count, bind
from fastsample_dist.sampling.transit.captured import CapturedTransit
from fastsample_dist.sampling.transit.engine import SCHEDULES, Engine, Run
from fastsample_dist.sampling.transit.engines import forms_of, make_device_engine, make_engine
from fastsample_dist.sampling.transit.enqueuing import EnqueuingEngine
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.sampling.transit.split_engine import SplitEngine


class TransitSampler:
    """Samples of an application. CSC means in-neighbours: walks go against edges; for directed ones use g.transposed().

    What a pick is depends on (rng_seed, step, the step of the sample, sample id, number of the pick) and on rows alone:
    the same on any number of threads, under any schedule, in any division of the samples into calls and ranks, and, by
    original id, on any partition.

    Args:
      graph: in-neighbour lists; their rows in canonical order (graph/csc.py).
      app: an application: a built-in one, such as transit.DeepWalk(length=80), or an object of a subclass of
        transit.App, which Numba compiles (extra `[apps]`; some five seconds per application, once).
      rng_seed: 0 .. 2**63 - 1.
      num_threads: of the CPU; None uses torch's intra-op setting; never changes a result.
      device: None or "cpu"; or a GPU such as "cuda" (applications of one's own: extra `[apps-cuda]`): it has the
        samples, a copy of the graph and of the tables (in pinned memory where they do not fit). Or several, such as
        ["cuda:0", "cuda:1"]: each makes a contiguous range of a call's samples, which are gathered on the first. Never
        changes a result.
      schedule: "sample": every sample for itself; "transit": picks grouped by their transit, rows of many picks read
        once; "transit_flat": grouped, without that distinction; "auto" chooses (on a GPU the faster of "sample"
        and "transit" in the first calls of a size). Never changes a result.
      copy_indices: individual applications read the neighbours from a copy of this process's own, in huge pages: faster
        walks on a partition's mapped files, for 4 or 8 bytes per edge. Never changes a result.
    Raises:
      ImportError: an application of one's own, and Numba is missing; for a GPU: what compiles for it is missing or too
        old.
      TypeError: app is no application.
      ValueError: an application that is refused (binding.py), a function that Numba cannot compile (with its line and
        the reason), tables that do not fit into memory (with their sizes), recorded steps of no known number on a GPU,
        a graph in device memory, an unknown schedule, an rng_seed out of range.
    Source: Jangda et al., "Accelerating graph sampling for graph machine learning using GPUs", EuroSys'21.
    """

    def __init__(
        self,
        graph: CSCGraph,
        app: App,
        rng_seed: int = 0,
        num_threads: int | None = None,
        device: torch.device | str | Sequence[torch.device | str] | None = None,
        schedule: str = "auto",
        *,
        copy_indices: bool = False,
    ) -> None:
        arrays.check_graph(graph)
        devices = _devices(graph, device)
        self.device = devices[0]
        if num_threads is not None:
            checks.whole("num_threads", num_threads, 1, checks.MOST_THREADS)
        checks.one_of("schedule", schedule, SCHEDULES)
        self.graph, self.app, self.rng_seed = graph, app, checks.whole("rng_seed", rng_seed, 0, checks.LARGEST)
        self._run = Run(num_threads, schedule)
        self._bound = bind(app, graph)
        self._given_to = self.device if len(devices) == 1 else HOST  # several have their ranges from the host
        self._engine: Engine
        if all(map(arrays.runs_kernels, devices)):
            engines = [make_device_engine(self._bound, own) for own in devices]
            self._engine = engines[0] if len(engines) == 1 else SplitEngine(engines, devices)
        else:
            self._engine = make_engine(self._bound, forms_of(self._bound)[0], copy_indices)

    @property
    def table_bytes(self) -> int:
        """Memory of the tables that the application reads besides the graph."""
        return self._engine.table_bytes

    def schedule_report(self) -> list[KernelReport]:
        """What schedule "auto" has measured on a GPU and chosen, by kind of call; empty elsewhere."""
        report = getattr(self._engine, "schedule_report", None)
        return [] if report is None else report()

    def sample(
        self,
        roots: Tensor | Sequence[Any] | None = None,
        step: int = 0,
        sample_ids: Tensor | Sequence[int] | None = None,
        *,
        num_samples: int | None = None,
    ) -> Samples:
        """Make samples.

        Args:
          roots: node ids, [S]: one root per sample, or [S, R], -1 behind the last root of a sample; they may repeat. On
            the GPU that samples they stay there, as do ids.
            None: what the application's initial_roots gives, by default a random node per sample.
          step: 0 .. 2**63 - 1; part of every draw's key, so that another step gives other samples.
          sample_ids: int64 [S], 0 or more; None: the positions. Samples of equal id and roots are equal.
          num_samples: S, where there are neither roots nor ids.
        Returns:
          Samples.
        Raises:
          ValueError: roots or ids that are refused, a step out of range, an application that answers out of range,
            samples that do not fit into memory (with their sizes).
          RuntimeError: `next` raised or returned something that is no node, or the application never ends; the message
            names sample and step.
        """
        key, bound = DrawKey(self.rng_seed, checks.whole("step", step, 0, checks.LARGEST)), self._bound
        on_cpu = not arrays.runs_kernels(self.device)
        given, ids = plain.given_roots(
            bound, roots, key, sample_ids, num_samples, check_ids=not on_cpu, device=self._given_to
        )  # fmt: skip
        if on_cpu:
            bound.check_room(*given.shape, bound.plan(given.shape[1]).known_picks)
        try:
            return self._engine.sample(given, ids, key, self._run)
        except ValueError:
            bound.roots(given)  # ids outside the graph, which the CPU's core refused, in the words of every device
            raise

    @property
    def can_capture(self) -> bool:
        """Whether `captured` records: an individual application on one GPU, whose samples have one width."""
        return isinstance(self._engine, EnqueuingEngine) and self._bound.has_one_width

    def captured(self, num_samples: int, num_roots: int = 1, *, recorder: Recorder | None = None) -> CapturedTransit:
        """What makes so many samples at a time by kernels that are recorded now, as a CUDA graph.

        The kernels of all steps are then one launch for the host: for calls of few samples. Schedule "auto" records
        "sample".

        Args:
          num_samples: of every call.
          num_roots: of every sample.
          recorder: None records a CUDA graph.
        Raises:
          ValueError: not on one GPU; an application whose samples differ in length or that is collective.
          MemoryError: the samples do not fit.
        """
        if not self.can_capture:
            raise ValueError(
                f"the kernels of {type(self.app).__name__} on {self.device} are not recorded; expected an individual "
                "application on one GPU, built in or your own, whose samples have one width (neither steps() == INF "
                "nor sample_size ALL); leave captured out."
            )
        shape = as_count("num_samples", num_samples), as_count("num_roots", num_roots)
        return CapturedTransit(self._engine, shape, self.rng_seed, self._run.schedule, recorder)


def _devices(
    graph: CSCGraph, device: torch.device | str | Sequence[torch.device | str] | None
) -> list[torch.device]:  # fmt: skip
    """The devices that sample."""
    several = isinstance(device, Sequence) and not isinstance(device, str)
    found = [torch.device("cpu") if own is None else computing(own) for own in (device if several else [device])]
    if not found or (len(found) > 1 and not all(map(arrays.runs_kernels, found))):
        raise ValueError(
            f"device is {device!r}; expected one device, or a list of GPUs such as ['cuda:0', 'cuda:1']: the CPU's "
            "threads share the samples of a call already (num_threads)."
        )
    if graph.device.type != "cpu":
        raise ValueError(
            f"the graph is on {graph.device}; pass it in host memory, where an application's tables are made, and the "
            "device that samples as device."
        )
    return found
