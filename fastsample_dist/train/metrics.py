"""What a training run measures: the loss that makes P ranks equal one process, exact global sums, and the counts."""

from __future__ import annotations

from dataclasses import dataclass

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
      wait_s: waiting for the next batch (sample_s + fetch_s when nothing is prefetched).
      compute_s: forward, backward and optimizer, without gradients_s.
      gradients_s: waiting for the sum of gradients after this rank's backward pass.
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
      ValueError: num_global_seeds is too small.
    """
    if num_global_seeds < max(1, labels.numel()):
        raise ValueError(
            f"num_global_seeds is {num_global_seeds} but this rank has {labels.numel()} seeds; pass the seeds of all "
            "ranks in this step (DistLoader sets it on every batch)."
        )
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return F.cross_entropy(wide, labels, reduction="sum") / num_global_seeds


def global_sum(comm: Communicator, values: list[float]) -> list[float]:
    """Sums of float64 values over all ranks. Purpose "metrics". Collective: every rank must call this."""
    return comm.all_reduce(torch.tensor(values, dtype=torch.float64), purpose="metrics").tolist()


def global_count(comm: Communicator, counts: list[int]) -> list[int]:
    """Exact sums of integers over all ranks. Purpose "metrics". Collective: every rank must call this."""
    return comm.all_reduce(torch.tensor(counts, dtype=torch.int64), purpose="metrics").tolist()


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
        zero = {"calls": 0, "bytes_sent": 0, "bytes_received": 0}
        for purpose, now in self._comm.stats().items():
            before = self._before.get(purpose, zero)
            if now["calls"] > before["calls"]:
                total = self.stats.setdefault(purpose, dict(zero))
                for name in zero:
                    total[name] += now[name] - before[name]


def payload_exchanges(stats: CommStats) -> int:
    """Calls that moved node ids, neighbour lists or feature rows: 2 per step (hybrid), 2 * layers (vanilla)."""
    return sum(stats[purpose]["calls"] for purpose in PAYLOAD_PURPOSES if purpose in stats)
