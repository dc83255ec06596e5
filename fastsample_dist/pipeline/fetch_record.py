"""FetchRecord: where the rows of every epoch's batches came from, beside the best that a cache could have done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

import torch

from fastsample_dist.features.cache import CacheReport, MadeCache, Visits, best_hits
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.pipeline.batch_options import BatchOptions
from fastsample_dist.pipeline.caching import in_place
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.stages import Fetch, Stage, result_dtype
from fastsample_dist.sampling.mfg import MiniBatch


class CountInputs:
    """Counts the input nodes of every batch; a stage after Fetch.

    Args:
      visits: counts them.
    """

    def __init__(self, visits: Visits) -> None:
        self._visits = visits

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        self._visits.add(batch.input_nodes)
        return batch


class FetchRecord:
    """Where the rows of every epoch's batches came from, on this rank.

    Args:
      features: that the loader fetches from.
      cache: that they read; None without.
      num_steps: of an epoch.
      options: of the loader.
      id_dtype: of node ids.
    """

    def __init__(
        self, features: DistFeatures, cache: MadeCache | None, num_steps: int, options: BatchOptions,
        id_dtype: torch.dtype,
    ) -> None:  # fmt: skip
        narrower = features.wire_dtype(result_dtype(options, features))
        row_bytes = features.local.row_bytes if narrower is None else features.dim * narrower.itemsize
        self._features, self._cache, self._row_bytes = features, cache, row_bytes + id_dtype.itemsize
        is_on = cache is not None and not cache.why_empty
        self._visits = Visits(features.book.num_nodes, num_steps, features.device) if is_on else None
        self._epoch: int | None = None  # the one under way, or the last
        self._before = copy(features.tally)
        self._done: dict[int, CacheReport] = {}
        self._last: tuple[FetchTally, CacheReport] | None = None  # the epoch's rows when it was reported last

    def counting(self, stages: Sequence[Stage]) -> tuple[Stage, ...]:
        """Stages of the loader that count the nodes whose rows they have fetched, where a cache is on."""
        where = next(number for number, stage in enumerate(stages) if isinstance(stage, Fetch))
        counting = [] if self._visits is None else [CountInputs(self._visits)]
        return (*stages[: where + 1], *counting, *stages[where + 1 :])

    def begin(self, epoch: int) -> None:
        """Count what comes from now on as that epoch's, anew where it was counted before. Collective as `report`."""
        self._end_epoch()
        self._epoch, self._before = epoch, copy(self._features.tally)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Report nothing of what is fetched in the block, of an epoch or less. Collective as `report`."""
        self._end_epoch()
        made = copy(self._features.tally)
        yield
        self._features.tally, self._epoch = made, None
        if self._visits is not None:
            self._visits.drop_epoch()

    def report(self, epoch: int | None) -> CacheReport:
        """Of one epoch, or of all that were made (None). Collective where ranks share the cache.

        Raises:
          ValueError: no batch of that epoch was made.
        """
        if epoch is None:
            return self._report(vars(self._features.tally), all_epochs=True)
        if epoch == self._epoch:
            return self._current()
        if epoch not in self._done:
            made = ", ".join(str(number) for number in sorted({*self._done, self._epoch} - {None})) or "none"
            raise ValueError(f"epoch is {epoch}, of which no batch was made; expected one of those made: {made}.")
        return self._done[epoch]

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            self._done[self._epoch] = self._current()
        self._epoch, self._last = None, None
        if self._visits is not None:
            self._visits.clear_epoch()

    def _current(self) -> CacheReport:
        rows = self._features.tally.since(self._before)
        alone = self._cache is None or self._cache.sharers.are_alone
        if alone and self._last is not None and self._last[0] == rows:
            return self._last[1]
        self._last = rows, self._report(vars(rows))
        return self._last[1]

    def _report(self, rows: dict[str, int], *, all_epochs: bool = False) -> CacheReport:
        features, cache = self._features, self._cache
        report = CacheReport() if cache is None else cache.figures()
        oracle_hits = None
        if cache is not None and self._visits is not None:
            near = [features.book.part2range(features.comm.rank), *in_place(features)]
            ranges = [] if cache.is_front else near
            visits = self._visits.counts(ranges, all_epochs=all_epochs)
            oracle_hits = best_hits(visits, cache.sharers.sum(visits), cache.num_remote)
        return replace(report, **rows, row_bytes=self._row_bytes, oracle_hits=oracle_hits)
