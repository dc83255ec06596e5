"""The stages that make a batch, one after another: Sample, Fetch, Label, Transform.

    step input -> sampled batch -> + features -> + labels -> what the user's transform makes of it

A stage gets the step and what the stage before made of it, and knows nothing of other steps. `make_stages` puts a
loader's stages together; lookahead.py wraps them where batches are made ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.clock import Clock, Lap, clock_of
from fastsample_dist.device.streams import to_device
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.hot_rows import HotRows
from fastsample_dist.features.keeping import KeepingFeatures
from fastsample_dist.features.source import FeatureSource
from fastsample_dist.pipeline.batch_options import BatchOptions
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.sampler import Sampler
from fastsample_dist.sampling.transit.app_sampler import AppSampler

RECEIVED = "received_rows"
"""Attribute of a batch on its way to a trainer: [m, columns of a row that travels], one for each missing input node."""
SLOTS = "hot_slots"
"""Attribute of a batch on its way to a trainer with a GPU: int32 [num_inputs]; see HotRows.look_up."""


Features = DistFeatures | KeepingFeatures | HotRows


class Stage(Protocol):
    """One part of the work on a batch."""

    def run(self, given: StepInput, batch: Any) -> Any:
        """What becomes of the batch of a step; the first stage gets None. Collective where its work is."""
        ...


def run_stages(stages: Sequence[Stage], comm: Communicator, given: StepInput, batch: Any = None) -> Any:
    """The batch of one step. Collective where a stage is: every rank must call this, for the same step.

    Args:
      stages: in their order.
      comm: that the stages use; its errors name the step.
      given: the step.
      batch: what the stages before these have made.
    """
    comm.step = given.step
    for stage in stages:
        batch = stage.run(given, batch)
    return batch


class Sample:
    """Samples the step's seeds.

    Args:
      sampler: what samples.
      comm: of the stages.
      clock: of the device that samples.
      id_dtype: in which the sampler gets its seeds; they are in range, so the graph's own saves it a check.
    Attributes:
      sampler, comm, clock, id_dtype: the same.
    Raises:
      ValueError (run): the sampler returned no MiniBatch.
    """

    def __init__(self, sampler: Sampler, comm: Communicator, clock: Clock, id_dtype: torch.dtype = torch.int64) -> None:
        self.sampler, self.comm, self.clock, self.id_dtype = sampler, comm, clock, id_dtype

    def run(self, given: StepInput, batch: None) -> MiniBatch:
        """See Stage."""
        begin = self.clock.mark()
        with self.comm.watch.span("sample", given.step, self.clock):
            sampled = self.sampler.sample(given.seeds.to(self.id_dtype), given.step)
        return self.begun(given, sampled, Lap(self.clock, begin, self.clock.mark()))

    def begun(self, given: StepInput, sampled: object, lap: Lap) -> MiniBatch:
        """What the sampler returned for a step, as the batch that the other stages complete."""
        if not isinstance(sampled, MiniBatch):
            raise ValueError(
                f"{place(self.comm, given)}: the sampler returned a {type(sampled).__qualname__}; expected a MiniBatch."
            )
        sampled.sampling, sampled.epoch, sampled.num_global_seeds = lap, given.epoch, given.num_global_seeds
        return sampled


class CheckSampled:
    """Refuses a batch that cannot be that of its step, after a sampler that the user gave; puts it on the device.

    Args:
      comm: of the stages.
      device: where batches are made.
    Raises:
      ValueError (run): another step or other seeds than were asked for; input nodes that are not the first MFG's.
    """

    def __init__(self, comm: Communicator, device: torch.device) -> None:
        self._comm, self._device = comm, device

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        steps = {draw.step for draw in (batch.draw, *(mfg.draw for mfg in batch.mfgs))} - {given.step}
        num_inputs = batch.mfgs[0].num_src if batch.mfgs else batch.seeds.numel()
        if steps:
            found = f"a batch or an MFG of step {steps.pop()}; give DrawKey(rng_seed, step) to both, it keys dropout"
        elif batch.seeds.shape != given.seeds.shape or not torch.equal(batch.seeds.cpu().long(), given.seeds):
            found = f"{batch.seeds.numel()} seeds that are not the {given.seeds.numel()} it was asked for, in order"
        elif batch.input_nodes.numel() != num_inputs:
            found = f"{batch.input_nodes.numel()} input nodes; expected {num_inputs}, the sources of mfgs[0]"
        else:
            return batch if batch.input_nodes.device == self._device else batch.to(self._device)
        raise ValueError(f"{place(self._comm, given)}: the sampler returned {found}.")


class Fetch:
    """Fetches the features of the input nodes.

    Args:
      features: over the stages' communicator.
      dtype: of the features handed to the model; None: as stored.
      comm: of the stages.
      clock: of the device that fetches.
      checked: refuse an id outside the graph; False where the sampler is known to give none.
    Attributes:
      features, dtype, comm, clock: the same.
    """

    def __init__(
        self, features: FeatureSource, dtype: torch.dtype | None, comm: Communicator, clock: Clock, *, checked: bool
    ) -> None:
        self.features, self.dtype, self.comm, self.clock, self._checked = features, dtype, comm, clock, checked

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        with self.timed(given, batch):
            batch.features = self.features.fetch(batch.input_nodes, self.dtype, checked=self._checked)
        return batch

    @contextmanager
    def timed(self, given: StepInput, batch: MiniBatch) -> Iterator[None]:
        """Take the time of the block as that of fetching the batch."""
        begin = self.clock.mark()
        with self.comm.watch.span("fetch", given.step, self.clock):
            yield
        batch.fetching = Lap(self.clock, begin, self.clock.mark())


class FetchReceived(Fetch):
    """Completes the features of a batch whose sampler has received what its machine lacks (between_machines.py)."""

    features: DistFeatures

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        received = vars(batch).pop(RECEIVED)
        with self.timed(given, batch):
            batch.features = self.features.complete(self.features.locate(batch.input_nodes), received, self.dtype)
        return batch


class LookUp:
    """Looks up which input nodes have rows on the devices that train, for the rank that will fetch them.

    Args:
      hot: of this rank.
    """

    def __init__(self, hot: HotRows) -> None:
        self._hot = hot

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        setattr(batch, SLOTS, self._hot.look_up(batch.input_nodes))
        return batch


class EndSampling:
    """Lets the time of sampling end here.

    Args:
      clock: of the device that samples.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        batch.sampling = replace(batch.sampling, end=self._clock.mark())
        return batch


class FetchHot(Fetch):
    """Fetches features to a GPU that holds some of their rows."""

    features: HotRows

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        slots = vars(batch).pop(SLOTS, None)
        with self.timed(given, batch):
            batch.features = self.features.fetch(batch.input_nodes, self.dtype, slots=slots)
        return batch


class Label:
    """Looks up the seeds' labels.

    Args:
      labels_of: labels of nodes in host memory.
      device: where batches are made.
    """

    def __init__(self, labels_of: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._labels_of, self._device = labels_of, device

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        batch.labels = to_device(self._labels_of(given.seeds), self._device)
        return batch


class Move:
    """Puts a batch on the device where it is used, where it was made on another.

    Args:
      device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        return batch.to(self._device)


class Transform:
    """Calls the user's function with the batch; what it returns takes the batch's place.

    Args:
      function: the user's.
      comm: of the stages.
      clock: of the device where batches are made.
    Raises:
      RuntimeError (run): the function raised, or returned None; names rank and step.
    """

    def __init__(self, function: Callable[[MiniBatch], Any], comm: Communicator, clock: Clock) -> None:
        self._function, self._comm, self._clock = function, comm, clock

    def run(self, given: StepInput, batch: MiniBatch) -> Any:
        """See Stage."""
        what = f"{place(self._comm, given)}: transform"
        try:
            with self._comm.watch.span("transform", given.step, self._clock):
                made = self._function(batch)
        except Exception as error:
            raise RuntimeError(f"{what} raised {type(error).__name__}: {error}") from error
        if made is None:
            raise RuntimeError(f"{what} returned None; let it return the batch.")
        return made


def make_stages(
    data: DistData,
    options: LoaderOptions,
    comm: Communicator,
    sampler: Sampler,
    features: Features | None,
    device: torch.device,
) -> tuple[Stage, ...]:
    """The stages of a loader.

    Args:
      data: the opened partition.
      options: of the loader.
      comm: carries what sampling and features need; used by one thread at a time.
      sampler: of options.scheme, or the user's.
      features: placed for the device, over `comm`; None without.
      device: where batches are made.
    """
    labels_of = None if data.labels is None else data.labels_of
    return (
        *sampling_stages(data, options, comm, sampler, device),
        *completing_stages(options, comm, features, labels_of, device),
    )


def sampling_stages(
    data: DistData, options: LoaderOptions, comm: Communicator, sampler: Sampler, device: torch.device
) -> tuple[Stage, ...]:
    """The stages that make a batch without features; see `make_stages`."""
    if options.sampler is not None:
        return Sample(sampler, comm, clock_of(device)), CheckSampled(comm, device)
    sample = Sample(sampler, comm, clock_of(device), data.graph.indices.dtype)
    is_elsewhere = isinstance(sampler, AppSampler) and sampler.device != device
    return (sample, Move(device)) if is_elsewhere else (sample,)


def handing_stages(device: torch.device, hot: HotRows | None) -> tuple[Stage, ...]:
    """The stages behind those that sample, of a batch that another rank will train; they count as sampling.

    Args:
      device: where it was sampled; it leaves in host memory.
      hot: rows on the devices that train; None: there are none.
    """
    stages = [] if device.type == "cpu" else [Move(torch.device("cpu"))]
    stages += [] if hot is None else [LookUp(hot)]
    return (*stages, EndSampling(clock_of(device))) if stages else ()


def completing_stages(
    options: LoaderOptions,
    comm: Communicator,
    features: Features | None,
    labels_of: Callable[[Tensor], Tensor] | None,
    device: torch.device,
    target: torch.device | None = None,
    *,
    received: bool = False,
) -> tuple[Stage, ...]:
    """The stages that complete a sampled batch; see `make_stages`.

    Args:
      options, comm, features, device: as there.
      labels_of: labels of nodes in host memory; None without.
      target: where batches are handed over, if on another device than they are made.
      received: batches come with the rows that are not in reach here.
    """
    target, stages = target or device, []
    if features is not None:
        dtype, is_hot = result_dtype(options, features), isinstance(features, HotRows)
        fetch = FetchHot if is_hot else FetchReceived if received else Fetch
        clock = clock_of(target if is_hot else device)
        stages.append(fetch(features, dtype, comm, clock, checked=options.sampler is not None))
    if labels_of is not None:
        stages.append(Label(labels_of, device))
    if target != device:
        stages.append(Move(target))
    if options.transform is not None:
        stages.append(Transform(options.transform, comm, clock_of(target)))
    return tuple(stages)


def result_dtype(options: BatchOptions, features: Features) -> torch.dtype | None:
    """Of batches' features: as asked for, else float32 for features stored narrower than that; None: as stored."""
    if options.feature_dtype is not None:
        return options.feature_dtype
    return None if features.dtype in (torch.float32, torch.float64) else torch.float32


def place(comm: Communicator, given: StepInput) -> str:
    """Who and when: opens a message."""
    return f"rank {comm.run_rank}, step {given.step}"
