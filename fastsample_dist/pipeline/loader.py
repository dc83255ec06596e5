"""DistLoader: an epoch of mini-batches, the same number of steps on every rank.

Each rank shuffles its own seeds with a permutation drawn from (rng_seed, epoch, rank) and cuts them into batches.
The rank with the most seeds sets the number of steps; the others finish with empty batches of weight 0. Steps are
numbered through all epochs, because the step is part of every draw's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.executor import SCHEMES, BatchMaker, StepInput
from fastsample_dist.pipeline.prefetch import Prefetcher
from fastsample_dist.sampling.base import MiniBatch
from fastsample_dist.sampling.neighbor import make_spec


class DistLoader:
    """Iterates over the mini-batches of one split; one iteration is one epoch.

    Constructing and iterating are collective: every rank must do both, with the same arguments.

    Args:
      data: the opened partition.
      fanouts: neighbours per node and hop, hop order from the seeds outwards; one per model layer.
      batch_size: seeds per rank and step, at least 1.
      split: "train", "val" or "test".
      scheme: "hybrid" or "vanilla"; both give the same batches.
      rng_seed: key of sampling and shuffling, 0 .. 2**63 - 1.
      prefetch: batches made ahead in a background thread; 0 makes each batch when it is asked for.
      shuffle: permute the seeds anew every epoch.
      feature_dtype: convert features to this dtype on arrival (float32, float64, bfloat16); None: float32 for
        features stored as 16-bit floats or integers, else as stored.
    Attributes:
      epoch: number of the next epoch; grows by one with every finished or abandoned iteration.
    Raises:
      ValueError: an argument out of range; a train split that is empty on some rank.
    """

    def __init__(
        self,
        data: DistData,
        fanouts: Sequence[int],
        batch_size: int,
        split: str = "train",
        scheme: str = "hybrid",
        rng_seed: int = 0,
        prefetch: int = 0,
        *,
        shuffle: bool = True,
        feature_dtype: torch.dtype | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected at least 1 seed per rank and step.")
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}; expected 0 (off) or the number of batches to make ahead.")
        if scheme not in SCHEMES:
            raise ValueError(f"scheme is {scheme!r}; expected 'hybrid' or 'vanilla'.")
        self.data, self.scheme, self.batch_size, self.prefetch = data, scheme, batch_size, prefetch
        self.epoch = 0
        self._spec = make_spec(fanouts, replace=False, rng_seed=rng_seed, num_threads=None)
        self._shuffle = shuffle
        self._feature_dtype = feature_dtype or _compute_dtype(data)
        self._seeds = data.split(split)
        comm = data.ctx.comm
        self._seeds_per_rank = comm.all_gather_object(self._seeds.numel(), purpose="setup")
        _check_seeds(split, self._seeds_per_rank)
        self._comm = comm.duplicate() if prefetch else comm
        self._maker = BatchMaker(data, scheme, self._spec, self._comm, self._feature_dtype)

    def __len__(self) -> int:
        """Steps per epoch, the same on all ranks."""
        return -(-max(self._seeds_per_rank) // self.batch_size)

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop."""
        return self._spec.fanouts

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration makes."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; expected 0 or more.")
        self.epoch = epoch

    def __iter__(self) -> Iterator[MiniBatch]:
        """Batches of one epoch. Collective: every rank must iterate, and stop, at the same step."""
        inputs = self._step_inputs(self.epoch)
        self.epoch += 1
        if not self.prefetch:
            for given in inputs:
                yield self._maker.make(given)
            return
        prefetcher = Prefetcher(self._maker.make, inputs, self.prefetch, self._comm.timeout_s)
        try:
            yield from prefetcher
        finally:
            prefetcher.close()

    def close(self) -> None:
        """Release the loader's own communicator. Collective: every rank must call this; the context does it too."""
        if self._comm is not self.data.ctx.comm:
            self._comm.close()

    def _step_inputs(self, epoch: int) -> list[StepInput]:
        seeds = self._seeds
        if self._shuffle:
            seeds = seeds[epoch_permutation(seeds.numel(), self._spec.rng_seed, epoch, self.data.ctx.rank)]
        steps, size = len(self), self.batch_size
        return [
            StepInput(
                seeds=seeds[i * size : (i + 1) * size],
                step=epoch * steps + i,
                epoch=epoch,
                num_global_seeds=sum(min(max(count - i * size, 0), size) for count in self._seeds_per_rank),
            )
            for i in range(steps)
        ]


def epoch_permutation(num_seeds: int, rng_seed: int, epoch: int, rank: int) -> Tensor:
    """The order of a rank's seeds in one epoch, int64 [num_seeds]: a function of its arguments alone."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((rng_seed, epoch, rank))))
    return torch.from_numpy(generator.permutation(num_seeds))


def _compute_dtype(data: DistData) -> torch.dtype | None:
    """float32 for features stored narrower than that; None (as stored) for float32 and float64."""
    if data.features is None or data.features.dtype in (torch.float32, torch.float64):
        return None
    return torch.float32


def _check_seeds(split: str, seeds_per_rank: list[int]) -> None:
    """Refuse a train split that leaves a rank without work, and any split that is empty everywhere."""
    empty = [rank for rank, count in enumerate(seeds_per_rank) if count == 0]
    if empty and (split == "train" or len(empty) == len(seeds_per_rank)):
        raise ValueError(
            f"the {split} split is empty on rank {empty[0]} (seeds per rank: {seeds_per_rank}); expected at least one "
            f"seed on every rank, partition into fewer parts or add {split} nodes."
        )
