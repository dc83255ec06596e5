"""The iterations of a loader, of which at most one is under way: the next one ends it.

Two at a time would make their batches by one communicator, whose collectives would meet those of the other iteration
on another rank. The earlier one is ended at the first step of the later one, which is the same on all ranks, and not
when Python drops it, which may be never: `it = iter(loader)` keeps it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Iterations(Generic[Made]):
    """Ends the iteration of a loader that is under way before the next one begins.

    Args:
      kind: of the loader, for messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._batches: Generator[Made, None, None] | None = None  # of the iteration under way

    def end(self) -> None:
        """End the iteration under way, if there is one: what it makes ahead is finished, as when a loop is left."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def run(self, epoch: int, batches: Generator[Made, None, None]) -> Iterator[Made]:
        """The batches of an iteration, after `end`.

        Args:
          epoch: of the iteration.
          batches: made by a generator that waits for its thread when it is closed.
        Raises:
          ValueError: another batch was asked for after a later iteration had ended this one.
        """
        self._batches = batches
        try:
            for batch in batches:
                yield batch
                if self._batches is not batches:
                    raise ValueError(
                        f"this iteration of epoch {epoch} was ended by a later one of the same {self._kind}; expected "
                        "one at a time: finish it first, or make a loader for each."
                    )
        finally:
            batches.close()
            if self._batches is batches:
                self._batches = None
