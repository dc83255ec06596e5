"""BatchMaker: one step's work before the model sees it: sample, fetch features, look up labels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops import SampleSpec
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.base import MiniBatch, Sampler
from fastsample_dist.sampling.hybrid import HybridSampler
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


def make_sampler(data: DistData, scheme: str, spec: SampleSpec, comm: Communicator) -> Sampler:
    """The sampler of a scheme: "hybrid" reads the whole mapped topology, "vanilla" own in-edges and asks for the rest.

    Raises:
      ValueError: an unknown scheme.
    """
    if scheme == "hybrid":
        return HybridSampler(data.graph, spec)
    if scheme == "vanilla":
        return VanillaSampler(data.own_graph(), data.rank_book, comm, spec, data.graph.orig_ids)
    raise ValueError(f"scheme is {scheme!r}; expected 'hybrid' or 'vanilla'.")


class BatchMaker:
    """Makes mini-batches over one communicator; used by the loader's thread or by its prefetcher's.

    Args:
      data: the opened partition.
      scheme: "hybrid" or "vanilla".
      spec: method, fanouts, generator key, threads.
      comm: carries what sampling and features need.
      feature_dtype: dtype of the features handed to the model.
    Raises:
      ValueError: an unknown scheme.
    """

    def __init__(
        self, data: DistData, scheme: str, spec: SampleSpec, comm: Communicator, feature_dtype: torch.dtype | None
    ) -> None:
        self._data, self._comm, self._feature_dtype = data, comm, feature_dtype
        self._sampler = make_sampler(data, scheme, spec, comm)
        self._samples_alone = self._sampler.num_payload_exchanges() == 0
        self._spec = spec
        self._sampled: dict[int, MiniBatch] = {}  # by step: sampled together with an earlier one
        self._features = None if data.features is None else data.features.using(comm)

    def make(self, given: StepInput, together: Sequence[StepInput] = ()) -> MiniBatch:
        """The complete mini-batch of one step. Collective: every rank must call this, for the same step.

        Args:
          given: the step.
          together: this step and those that follow it, to be sampled at once where sampling needs no communication;
            their turn to be made comes later. Empty: this step alone.
        """
        self._comm.step = given.step
        batch = self._take_sampled(given, together)
        sampled = time.perf_counter()
        if self._features is not None:
            with self._comm.watch.span("fetch", given.step):
                batch.features = self._features.fetch(batch.input_nodes, self._feature_dtype)
        batch.fetch_s = time.perf_counter() - sampled
        if self._data.labels is not None:
            batch.labels = self._data.labels_of(batch.seeds)
        batch.epoch, batch.num_global_seeds = given.epoch, given.num_global_seeds
        return batch

    def group_size(self, prefetch: int) -> int:
        """Steps that are worth sampling together: one per thread, as many as are made ahead, none but hybrid's."""
        return max(1, min(prefetch, self._spec.threads)) if self._samples_alone else 1

    def forget(self) -> None:
        """Drop what was sampled ahead (the epoch was left)."""
        self._sampled.clear()

    def _take_sampled(self, given: StepInput, together: Sequence[StepInput]) -> MiniBatch:
        if given.step not in self._sampled:
            steps = list(together) or [given]
            started = time.perf_counter()
            with self._comm.watch.span("sample", given.step):
                if len(steps) == 1:
                    batches = [self._sampler.sample(given.seeds, given.step)]
                else:
                    batches = self._sampler.sample_many([one.seeds for one in steps], given.step)
            seconds = (time.perf_counter() - started) / len(steps)
            for one, batch in zip(steps, batches, strict=True):
                batch.sample_s = seconds
                self._sampled[one.step] = batch
        return self._sampled.pop(given.step)
