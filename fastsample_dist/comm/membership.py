"""One rank's membership in a group, without the collectives: names, limits, counts, failure, and how it ends.

The communicators of a process form a tree. Its root is that of the run; `duplicate` and `split` derive others. Failure
is each communicator's own (its later calls are refused, those of the others are not); closing or aborting one ends
everything that was derived from it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from fastsample_dist.comm.board import StatusBoard
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, CollectiveError, Deadline, check_timeout_s
from fastsample_dist.comm.names import describe, rank_names
from fastsample_dist.comm.watch import Watch

DEFAULT_MAX_MESSAGE_BYTES = 2**30
"""Longest message between two ranks in one round: half of what a signed 32-bit length can hold."""
ABORT_GRACE_S = 2.0
"""How long a leaving rank waits for a collective in another thread to notice; backends look more often."""


class Membership(ABC):
    """What a `Communicator` is besides its collectives; see there for arguments and attributes."""

    abort_ends_process = False

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; expected 0 to world_size - 1 = {world_size - 1}.")
        self.rank = rank
        self.world_size = world_size
        self.run_ranks = tuple(range(world_size))
        self.timeout_s = check_timeout_s(timeout_s)
        self.max_message_bytes = max_message_bytes
        self.step = -1
        self.verify_exchanges = False
        self._refusal: str | None = None  # of every collective, while `refusing`
        self._group_note = ""  # opens the messages of a sub-group
        self._counters = Counters() if counters is None else counters
        self._failure: str | None = None
        self._closed = False
        self._aborted = threading.Event()
        self._idle = threading.Event()  # no collective is running
        self._idle.set()
        self._num_derived = 0
        self._derived: list[Membership] = []
        self._watch = Watch(rank, self.run_ranks)

    @property
    def run_rank(self) -> int:
        """This process's rank in the run, which is its number in all messages."""
        return self.run_ranks[self.rank]

    @property
    def watch(self) -> Watch:
        """What publishes, traces and diagnoses the collectives; board and trace are those of the run."""
        return self._watch

    def watch_with(self, board: StatusBoard) -> None:
        """Publish every collective on `board`, which is closed with this communicator.

        Call it on the run's communicator, before any other is derived from it.
        """
        self._watch = Watch(self.run_rank, self.run_ranks, board)

    @property
    def max_message_bytes(self) -> int:
        """Longest message between two ranks in one round; set it to the same value on all ranks."""
        return self._max_message_bytes

    @max_message_bytes.setter
    def max_message_bytes(self, limit_bytes: int) -> None:
        if not isinstance(limit_bytes, int) or limit_bytes < 1:
            raise ValueError(f"max_message_bytes is {limit_bytes!r}; expected an integer >= 1.")
        self._max_message_bytes = limit_bytes

    @property
    def failure(self) -> str | None:
        """The error of this communicator's first failed collective, or of one derived from it; else None."""
        own_first = (self, *self._below())
        return next((member._failure for member in own_first if member._failure is not None), None)

    @property
    def closed(self) -> bool:
        """True once `close` or `abort` was called."""
        return self._closed

    def stats(self) -> dict[str, dict[str, int]]:
        """{purpose: {"calls", "bytes_sent", "bytes_received"}}; duplicates included, sub-groups not, unless they
        `count_in` this one."""
        return self._counters.snapshot()

    def count_in(self, counters_of: Membership) -> None:
        """Count from now on as part of another communicator: a sub-group that does a part of its work."""
        self._counters = counters_of._counters

    def reset_stats(self) -> None:
        """Set all counts to zero, those of duplicates too."""
        self._counters.reset()

    def close(self) -> None:
        """Release the group, after its open duplicates and sub-groups. A second call does nothing.

        Collective: every rank must call this, while none of its collectives runs. After a failed collective
        it waits for nobody.
        """
        if self._closed:
            return
        self._closed = True
        for derived in self._derived:
            derived.close()
        if self._failure is None:
            self._close()
        else:
            self._leave()
        self._watch.close()

    def abort(self) -> None:
        """Leave without waiting for any rank: break this rank's connections, so that its peers fail too.

        Duplicates and sub-groups are left as well. Under MPI with more than one rank (`abort_ends_process`) this
        ends the whole run with status 1, a sub-group's abort too. Collectives of other threads end with an error. On
        a closed communicator it does nothing.
        """
        leaving = [member for member in (*self._below(), self) if not member._closed]
        for member in leaving:
            member._closed = True
            member._aborted.set()
            member._leave()
        for member in leaving:
            member._idle.wait(ABORT_GRACE_S)
        self._watch.close()

    # ---- what a backend adds ----

    @abstractmethod
    def _close(self) -> None:
        """Release the group after success."""

    @abstractmethod
    def _leave(self) -> None:
        """Release what can be released without waiting for anybody."""

    # ---- for the collectives ----

    def _below(self) -> Iterator[Membership]:
        """What was derived from this communicator, each after what was derived from it."""
        for derived in self._derived:
            yield from derived._below()
            yield derived

    def _next_lane(self) -> str:
        """The name of the next communicator derived from this one: the same on all ranks, given out once."""
        self._num_derived += 1
        return f"{self._watch.lane}.{self._num_derived}"

    def _adopt(self, derived: Membership, lane: str, run_ranks: tuple[int, ...], group_note: str) -> None:
        """Make `derived` part of the run: its names in messages, its lane of the board, its end with this one."""
        derived.run_ranks, derived._group_note = run_ranks, group_note
        derived._watch = self._watch.derived(lane, run_ranks)
        derived.step = self.step
        derived.verify_exchanges = self.verify_exchanges
        self._derived = [old for old in self._derived if old.failure or not old._closed] + [derived]

    def _where(self, collective: str, purpose: str) -> str:
        when = f"step {self.step}" if self.step >= 0 else "outside a step"
        return f"rank {self.run_rank}{self._group_note}, {when}: {describe(collective, purpose)}"

    @contextmanager
    def _collective(self, collective: str, purpose: str) -> Iterator[Deadline]:
        """One named call: refused on an unusable communicator, given a deadline, its failure named."""
        where = self._where(collective, purpose)
        if self._refusal is not None:
            raise ValueError(f"{where} refused: {self._refusal}.")
        if self._failure is not None:
            raise RuntimeError(
                f"{where} refused: this communicator failed before ({self._failure}); end the run and start it again."
            )
        if self._closed:
            raise RuntimeError(f"{where} refused: this communicator is closed.")
        deadline = Deadline(self.timeout_s, self._aborted)
        with self._failing_as(where, deadline):
            self._watch.enter(self.step, describe(collective, purpose))
            try:
                yield deadline
            finally:
                self._watch.leave()

    @contextmanager
    def refusing(self, why: str) -> Iterator[None]:
        """In the block refuse this communicator's collectives, before they begin.

        Args:
          why: ends the message, without its full stop.
        Raises:
          ValueError: on a rank that makes one.
        """
        self._refusal = why
        try:
            yield
        finally:
            self._refusal = None

    @contextmanager
    def _failing_as(self, where: str, deadline: Deadline) -> Iterator[None]:
        """The running part of a collective, whose failure is named by `where` and is this communicator's from then."""
        self._idle.clear()
        try:
            yield
        except CollectiveError as error:
            self._failure = f"{where} {error}{self._watch.diagnosis(error, deadline)}"
            raise RuntimeError(f"{self._failure}.") from None  # the transport's message is in it
        except KeyboardInterrupt:
            self._failure = f"{where} was interrupted"
            raise
        finally:
            self._idle.set()


def group_note(run_ranks: tuple[int, ...]) -> str:
    """What follows a rank in the messages of a sub-group: " (group of ranks 2, 3)", ranks of the run."""
    return f" (group of {rank_names(sorted(run_ranks))})"
