"""The iterations of a loader: the same steps on all ranks, and at most one is under way: the next one ends it.

Two at a time would make their batches by one communicator, whose collectives would meet those of the other iteration
on another rank. The earlier one is ended at the first step of the later one, which is the same on all ranks, and not
when Python drops it, which may be never: `it = iter(loader)` keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fastsample_dist.comm.agree import agree_on
from fastsample_dist.comm.protocol import Gathers
from fastsample_dist.pipeline.lookahead import Prefetcher


def agree_on_epoch(
    comm: Gathers, kind: str, epoch: int, first_step: int | None, num_steps: int, **facts: object
) -> None:
    """Refuse ranks that are about to make other steps: they would train to the end, on batches that nobody asked for.

    Collective: every rank must call this. Purpose "setup".

    Args:
      comm: the ranks' communicator.
      kind: of the loader, for messages.
      epoch: its number.
      first_step: global step of its first batch; None: there is none.
      num_steps: of the epoch, or of what is left of it.
      **facts: what else must be the same.
    Raises:
      ValueError: on all ranks alike; names what differs and the ranks.
    """
    own = {"epoch": epoch, "first step": first_step, "number of steps": num_steps}
    remedy = "make the same calls, with the same arguments, on all ranks"
    agree_on(comm, f"an epoch of {kind}", own | facts, remedy=remedy)


class Iterations:
    """Ends the iteration of a loader that is under way before the next one begins.

    Args:
      kind: of the loader, for messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._batches: Iterable[Any] | None = None  # of the iteration under way

    def end(self) -> None:
        """End the iteration under way, if there is one: what it makes ahead is finished, as when a loop is left."""
        batches, self._batches = self._batches, None
        if isinstance(batches, Prefetcher):
            batches.close()

    @contextmanager
    def under_way(self, epoch: int, batches: Iterable[Any]) -> Iterator[Callable[[], None]]:
        """In the block an iteration takes its batches, after `end`; at its exit, that of an error too, it is ended.

        Args:
          epoch: of the iteration.
          batches: all that it takes.
        Returns:
          To be called before every batch but the first; it raises ValueError once a later iteration has ended this one.
        """
        self._batches = batches

        def check() -> None:
            if self._batches is not batches:
                raise ValueError(
                    f"this iteration of epoch {epoch} was ended by a later one of the same {self._kind}; expected one "
                    "at a time: finish it first, or make a loader for each."
                )

        try:
            yield check
        finally:
            if self._batches is batches:
                self.end()
