"""BatchMaker: one step's work before the model sees it: sample, fetch features, look up labels, transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.choice import numbered
from fastsample_dist.device.clock import Lap, clock_of
from fastsample_dist.device.placement import CHOICES, Placement
from fastsample_dist.device.streams import to_device
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.placed import PlacedTables
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import Sampler, kernel_report, payload_exchanges
from fastsample_dist.sampling.vanilla import VanillaSampler

SCHEMES = ("hybrid", "vanilla")


@dataclass(frozen=True)
class StepInput:
    """What a rank computes on in one step.

    Attributes:
      seeds: int64 [n] own node ids; empty when the rank has run out of seeds.
      step: global step, the same on all ranks.
      epoch: of the loader.
      num_global_seeds: seeds of this step over all ranks.
    """

    seeds: Tensor
    step: int
    epoch: int
    num_global_seeds: int


@dataclass(frozen=True, kw_only=True)
class MakerOptions:
    """How batches are made.

    Attributes:
      scheme: "hybrid" or "vanilla".
      feature_dtype: dtype of the features handed to the model; None: as stored.
      device: where batches are made and handed over; None: the context's.
      kernel: of a GPU, for sampling: "auto", "per_hop" or "persistent".
      placement: for a GPU, of topology and features: "auto", "device" or "pinned" (device/placement.py).
      edge_values: give the stored weights of the sampled edges; needs a spec with edge_ids.
      transform: called with every complete batch; what it returns takes the batch's place.
    Raises:
      ValueError: an unknown scheme, kernel or placement.
    """

    scheme: str = "hybrid"
    feature_dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    kernel: str = "auto"
    placement: str = "auto"
    edge_values: bool = False
    transform: Callable[[MiniBatch], Any] | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme is {self.scheme!r}; expected 'hybrid' or 'vanilla'.")
        arrays.check_kernel(self.kernel)
        if self.placement not in CHOICES:
            raise ValueError(f"placement is {self.placement!r}; expected 'auto', 'device' or 'pinned'.")


def make_sampler(
    data: DistData,
    scheme: str,
    spec: SampleSpec,
    comm: Communicator,
    *,
    tables: PlacedTables | None = None,
    kernel: str = "auto",
    edge_values: bool = False,
) -> Sampler:
    """The sampler of a scheme: "hybrid" reads the whole topology, "vanilla" own in-edges and asks for the rest.

    Args:
      data, scheme, spec, comm: as BatchMaker's.
      tables: where the device that samples reads them; None: in host memory, for the CPU.
      kernel: of a GPU.
      edge_values: give the stored weights of the sampled edges; needs spec.edge_ids.
    Raises:
      ValueError: a kernel that the scheme or the device does not have; missing weights.
    """
    if tables is None:
        tables = data.placed_tables(torch.device("cpu"), scheme)
    if scheme == "hybrid":
        return NeighborSampler.from_spec(tables.graph, spec, kernel=kernel, edge_values=edge_values)
    assert tables.orig_ids is not None  # a partition has them
    return VanillaSampler(
        tables.graph, data.rank_book, comm, spec, tables.orig_ids, kernel=kernel, first_edge=data.first_own_edge,
        edge_values=edge_values,
    )  # fmt: skip


class BatchMaker:
    """Makes mini-batches over one communicator; used by the loader's thread or by its prefetcher's.

    Args:
      data: the opened partition.
      spec: method, fanouts, generator key, threads.
      comm: carries what sampling and features need.
      options: scheme, dtype, device, kernel, placement.
    Attributes:
      device: where the batches are.
      places: where the tables are that the device reads, and why.
    Raises:
      ValueError: a kernel or a placement that the device does not have; tables that fit nowhere; missing weights.
    """

    def __init__(self, data: DistData, spec: SampleSpec, comm: Communicator, options: MakerOptions) -> None:
        self._data, self._comm, self._spec, self._feature_dtype = data, comm, spec, options.feature_dtype
        self._transform = options.transform
        self.device = numbered(data.ctx.device if options.device is None else options.device)
        arrays.check_kernel(options.kernel, self.device, spec)
        weighted = spec.traits.weighted
        tables = data.placed_tables(
            self.device, options.scheme, options.placement, weighted=weighted, valued=options.edge_values
        )
        self.places: tuple[Placement, ...] = tables.places
        self._sampler = make_sampler(
            data, options.scheme, spec, comm, tables=tables, kernel=options.kernel, edge_values=options.edge_values
        )
        self._samples_alone = payload_exchanges(self._sampler) == 0 and not arrays.runs_kernels(self.device)
        self._sampled: dict[int, MiniBatch] = {}  # by step: sampled together with an earlier one
        self._features = None if tables.features is None else tables.features.using(comm)
        self._clock = clock_of(self.device)

    def make(self, given: StepInput, together: Sequence[StepInput] = ()) -> Any:
        """The complete mini-batch of one step, transformed. Collective: every rank must call this, for the same step.

        Args:
          given: the step.
          together: this step and those that follow it, to be sampled at once where sampling needs no communication;
            their turn to be made comes later. Empty: this step alone.
        Returns:
          MiniBatch; or what the transform returned.
        Raises:
          RuntimeError: the transform raised, or returned None; names rank and step.
        """
        self._comm.step = given.step
        batch = self._take_sampled(given, together)
        begin = self._clock.mark()
        if self._features is not None:
            with self._comm.watch.span("fetch", given.step, self._clock):
                batch.features = self._features.fetch(batch.input_nodes, self._feature_dtype, checked=False)
        batch.fetching = Lap(self._clock, begin, self._clock.mark())
        if self._data.labels is not None:
            batch.labels = to_device(self._data.labels_of(given.seeds), self.device)
        batch.epoch, batch.num_global_seeds = given.epoch, given.num_global_seeds
        return batch if self._transform is None else self._transformed(batch)

    def _transformed(self, batch: MiniBatch) -> Any:
        assert self._transform is not None
        place = f"rank {self._comm.rank}, step {batch.step}: transform"
        try:
            with self._comm.watch.span("transform", batch.step, self._clock):
                made = self._transform(batch)
        except Exception as error:
            raise RuntimeError(f"{place} raised {type(error).__name__}: {error}") from error
        if made is None:
            raise RuntimeError(f"{place} returned None; let it return the batch.")
        return made

    def group_size(self, prefetch: int) -> int:
        """Steps that are worth sampling together: one per thread of the CPU, as many as are made ahead, none but
        hybrid's.
        """
        return max(1, min(prefetch, self._spec.threads)) if self._samples_alone else 1

    def kernel_report(self) -> list[KernelReport]:
        """See Sampler."""
        return kernel_report(self._sampler)

    def forget(self) -> None:
        """Drop what was sampled ahead (the epoch was left)."""
        self._sampled.clear()

    def _take_sampled(self, given: StepInput, together: Sequence[StepInput]) -> MiniBatch:
        if given.step not in self._sampled:
            steps = list(together) or [given]
            begin = self._clock.mark()
            with self._comm.watch.span("sample", given.step, self._clock):
                if len(steps) == 1:
                    batches = [self._sampler.sample(given.seeds, given.step)]
                else:
                    batches = self._sampler.sample_many([one.seeds for one in steps], given.step)
            sampling = Lap(self._clock, begin, self._clock.mark(), len(steps))
            for one, batch in zip(steps, batches, strict=True):
                batch.sampling = sampling
                self._sampled[one.step] = batch
        return self._sampled.pop(given.step)
