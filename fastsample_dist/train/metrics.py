"""What a training run measures: the loss that makes P ranks equal one process, exact global sums, and the counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from fastsample_dist.comm.base import Communicator

PAYLOAD_PURPOSES = ("sample_ids", "sample_reply", "feature_ids", "feature_rows")
CommStats = dict[str, dict[str, int]]


@dataclass(frozen=True, kw_only=True)
class EpochStats:
    """One epoch of training.

    Attributes:
      epoch: its number.
      loss: mean cross-entropy over the seeds of all ranks.
      steps: optimizer steps.
      seconds: wall clock of the epoch, mean over ranks (as are all seconds below).
      sample_s, fetch_s: making the batches; with prefetching they run beside compute_s.
      wait_s: waiting for the next batch (sample_s + fetch_s when nothing is prefetched); hooks count in no part.
      compute_s: forward, backward and optimizer, without gradients_s.
      gradients_s: waiting for the sum of gradients after this rank's backward pass; with roles copying parameters.

    With roles, sample_s is the samplers' and fetch_s that of those who train, as means over all ranks too.

    On a GPU the parts are times of the device (device/clock.py), and wait_s is the time in which its stream of training
    steps had none to work on.
    """

    epoch: int
    loss: float
    steps: int
    seconds: float
    sample_s: float
    fetch_s: float
    wait_s: float
    compute_s: float
    gradients_s: float


@dataclass(frozen=True, kw_only=True)
class EpochTotals:
    """An epoch so far, over all ranks; those of two runs of one epoch add up.

    Attributes:
      steps: optimizer steps.
      num_seeds: seeds of all ranks.
      loss_sum: cross-entropy summed over them.
      seconds, sample_s, fetch_s, wait_s, compute_s, gradients_s: as in EpochStats.
    """

    steps: int = 0
    num_seeds: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    sample_s: float = 0.0
    fetch_s: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    gradients_s: float = 0.0

    def __add__(self, other: EpochTotals) -> EpochTotals:
        return EpochTotals(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def stats(self, epoch: int) -> EpochStats:
        """The epoch's report; of no seed at all, as small subgraphs may have it, the loss is 0."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("num_seeds", "loss_sum")}
        return EpochStats(epoch=epoch, loss=self.loss_sum / max(1, self.num_seeds), **shared)


class EpochMeter:
    """Adds up one rank's steps of an epoch. Its clock starts when it is made.

    Attributes:
      own: this rank's part of the last `totals`: its steps, and its seconds by the names of EpochStats.
    """

    def __init__(self) -> None:
        self.own: dict[str, int | float] = {}
        self.steps = self.num_seeds = 0
        self.loss_sum = self.sample_s = self.fetch_s = self.compute_s = self.gradients_s = self.hook_s = 0.0
        self._started_s = time.perf_counter()

    def totals(self, comm: Communicator) -> EpochTotals:
        """The epoch so far: sums of seeds and loss, means of seconds. Purpose "metrics".

        Collective: every rank must call this, after the same step.
        """
        seconds = time.perf_counter() - self._started_s
        wait_s = max(0.0, seconds - self.compute_s - self.hook_s)  # a GPU continues to compute during a hook
        compute_s = self.compute_s - self.gradients_s
        own = {
            "seconds": seconds, "sample_s": self.sample_s, "fetch_s": self.fetch_s, "wait_s": wait_s,
            "compute_s": compute_s, "gradients_s": self.gradients_s,
        }  # fmt: skip
        self.own = {"steps": self.steps, **own}
        loss_sum, num_seeds, *times = global_sum(comm, [self.loss_sum, self.num_seeds, *own.values()])
        means = {name: total / comm.world_size for name, total in zip(own, times, strict=True)}
        return EpochTotals(steps=self.steps, num_seeds=round(num_seeds), loss_sum=loss_sum, **means)


def seed_loss(logits: Tensor, labels: Tensor, num_global_seeds: int) -> Tensor:
    """This rank's share of the mean cross-entropy over the step's seeds of all ranks.

    Summed over ranks, these shares and their gradients are those of one process on the union batch.

    Args:
      logits: [num_seeds, num_classes]; bfloat16 is widened to float32.
      labels: int64 [num_seeds], 0 .. num_classes - 1.
      num_global_seeds: seeds of the step over all ranks, at least num_seeds and at least 1.
    Returns:
      Scalar; 0 with zero gradients when this rank has no seeds.
    Raises:
      ValueError: num_global_seeds is too small; in host memory, a label out of range.
    """
    if num_global_seeds < max(1, labels.numel()):
        raise ValueError(
            f"num_global_seeds is {num_global_seeds} but this rank has {labels.numel()} seeds; pass the seeds of all "
            "ranks in this step (DistLoader sets it on every batch)."
        )
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return cross_entropy(wide, labels, reduction="sum") / num_global_seeds


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
    """torch's cross_entropy, which in host memory refuses a label out of range in one line."""
    try:
        return F.cross_entropy(logits, labels, reduction=reduction)
    except IndexError:
        raise ValueError(
            f"labels of the seeds are {int(labels.min())} to {int(labels.max())}; expected 0 to {logits.shape[1] - 1}, "
            "the columns that the model gives; leave nodes without a label (-1) out of the seeds, or build the model "
            "with data.num_outputs columns."
        ) from None


def global_sum(comm: Communicator, values: list[float]) -> list[float]:
    """Sums of float64 values over all ranks. Purpose "metrics". Collective: every rank must call this."""
    return comm.all_reduce(torch.tensor(values, dtype=torch.float64), purpose="metrics").tolist()


def num_correct(logits: Tensor, labels: Tensor) -> int:
    """Rows whose largest logit is at the label; of equals the first counts."""
    return int((logits.argmax(dim=1) == labels).sum())


class CommTally:
    """What a communicator counts inside the blocks that this surrounds, e.g. training apart from evaluation.

    Args:
      comm: any communicator; counts of its duplicates are included.
    Attributes:
      stats: as Communicator.stats(), summed over the blocks so far.
    """

    def __init__(self, comm: Communicator) -> None:
        self.stats: CommStats = {}
        self._comm = comm

    def __enter__(self) -> CommTally:
        self._before = self._comm.stats()
        return self

    def __exit__(self, *_: object) -> None:
        for purpose, found in counted_between(self._before, self._comm.stats()).items():
            total = self.stats.setdefault(purpose, dict.fromkeys(found, 0))
            for name, count in found.items():
                total[name] += count


def counted_between(before: CommStats, now: CommStats) -> CommStats:
    """What was counted from `before` to `now`, of the purposes of which anything was."""
    found = {}
    for purpose, counts in now.items():
        earlier = before.get(purpose, dict.fromkeys(counts, 0))
        if counts != earlier:
            found[purpose] = {name: count - earlier[name] for name, count in counts.items()}
    return found


def payload_exchanges(stats: CommStats) -> int:
    """Calls that moved node ids, neighbour lists or feature rows.

    Over the exchange transport: with exchange "paired" 2 per step (hybrid) or 2 * layers (vanilla); with "combined"
    1 per step and 2 more per epoch. Where no rank lacks a row: 0 (hybrid) or 2 * (layers - 1) (vanilla).
    """
    return sum(stats[purpose]["calls"] for purpose in PAYLOAD_PURPOSES if purpose in stats)
