"""What the engines of applications have in common: how they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.samples import Samples

SCHEDULES = ("auto", "sample", "transit", "transit_flat")


@dataclass(frozen=True)
class Run:
    """How samples are made; never changes them.

    Attributes:
      num_threads: None takes torch's setting.
      schedule: one of SCHEDULES.
      block_samples: samples that a thread advances together; 0: chosen by their size.
    """

    num_threads: int | None = None
    schedule: str = "auto"
    block_samples: int = 0


class Engine(Protocol):
    """Samples of one application and graph."""

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """Samples of checked roots int64 [S, R] and ids int64 [S].

        Raises:
          RuntimeError: what the application did wrong, in the words of plain.py.
        """
        ...
