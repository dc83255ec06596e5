"""FetchAhead: batches that are sampled two steps ahead, so that one exchange a step fetches their features.

It wraps the stages of a loader that has resolved to the combined exchange (exchange.py), as GroupedSample wraps Sample.
Seeds are known for the whole epoch, so sampling ahead changes no batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fastsample_dist.features.combined import CombinedFetch
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.stages import Fetch, Stage
from fastsample_dist.sampling.mfg import MiniBatch

STEPS_AHEAD = 2  # ids leave a step before their rows come, and their number a step before the ids


def combine_fetches(stages: Sequence[Stage], steps: Sequence[StepInput]) -> list[Stage]:
    """A loader's stages with those up to Fetch as one, for one run over these steps."""
    number = next(number for number, stage in enumerate(stages) if isinstance(stage, Fetch))
    return [FetchAhead(stages[:number], stages[number], steps), *stages[number + 1 :]]


class FetchAhead:
    """Samples two steps ahead and fetches by one exchange a step.

    The first batch makes the two exchanges that carry no rows too. So batch t stands for the same collectives on every
    rank, and ranks that leave an epoch after the same batch have nothing under way.

    Args:
      sampling: the stages that make a batch without features, Sample or GroupedSample first.
      fetch: the stage that it replaces.
      steps: of the epoch, which are run in this order.
    """

    def __init__(self, sampling: Sequence[Stage], fetch: Fetch, steps: Sequence[StepInput]) -> None:
        self._sampling, self._fetch, self._steps = sampling, fetch, steps
        self._combined = CombinedFetch(fetch.features, fetch.dtype)
        self._batches: deque[MiniBatch] = deque()  # sampled, not handed out
        self._num_sampled = 0
        self._num_pushed = 0  # of those batches: their nodes are in the pipe

    def run(self, given: StepInput, batch: None) -> MiniBatch:
        """See Stage."""
        while len(self._batches) <= STEPS_AHEAD and self._num_sampled < len(self._steps):
            self._batches.append(self._sampled(self._steps[self._num_sampled]))
            self._num_sampled += 1
        first, rows = self._batches[0], None
        with self._fetch.timed(given, first):
            while rows is None:
                rows = self._combined.push(self._next_nodes())
        first.features = rows
        self._num_pushed -= 1
        return self._batches.popleft()

    def _sampled(self, given: StepInput) -> MiniBatch:
        batch: Any = None
        for stage in self._sampling:
            batch = stage.run(given, batch)
        return batch

    def _next_nodes(self) -> Tensor | None:
        """Input nodes of the next batch whose nodes are not in the pipe; None after the epoch's last."""
        if self._num_pushed == len(self._batches):
            return None
        self._num_pushed += 1
        return self._batches[self._num_pushed - 1].input_nodes
