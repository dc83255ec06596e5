"""One communicator's watch: publishes its collectives on the board, notes them in a trace, names who is missing.

All ranks of a communicator make the same calls in the same order. So when a deadline passes or a connection breaks, and
no rank is known to have ended, the members that have entered fewer collectives than this rank are those that did not
come, and those that have entered as many, but another one, have left the common path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from fastsample_dist.comm.board import Status, StatusBoard
from fastsample_dist.comm.deadline import AstrayError, CollectiveError, Deadline, DeadlineError, PeerLostError
from fastsample_dist.comm.names import rank_names
from fastsample_dist.comm.trace import Trace
from fastsample_dist.device.clock import Clock

logger = logging.getLogger(__name__)

ENDS_WITHIN_S = 0.5  # between a rank's last connection and the end of its process
OTHERS_S = 1.0  # for the other ranks to report the same: a launcher ends all as soon as one leaves
Found = Mapping[int, Status | str]  # what the board holds, by rank of the run


@dataclass
class _Run:
    """What the watches of all communicators of a run share."""

    board: StatusBoard | None
    trace: Trace | None = None


class Watch:
    """Publishes, traces and diagnoses the collectives of one communicator. Ranks are those of the run.

    Args:
      rank: this rank.
      ranks: the communicator's members.
      board: of the run, None for none.
    """

    def __init__(self, rank: int, ranks: Sequence[int], board: StatusBoard | None = None) -> None:
        self._rank, self._ranks, self._run, self._calls = rank, sorted(ranks), _Run(board), 0
        self._derived_from: Watch | None = None
        self.lane = "0"
        self._entered = ("", 0, -1)  # collective, when (ns), step

    def derived(self, lane: str, ranks: Sequence[int]) -> Watch:
        """The watch of a duplicate or a sub-group: the same board and trace, another lane.

        Args:
          lane: the same on all its members, and no other communicator's.
          ranks: its members.
        """
        other = Watch(self._rank, ranks)
        other._run, other._derived_from, other.lane = self._run, self, lane
        return other

    @property
    def trace(self) -> Trace | None:
        """Where collectives and stages are noted; one for all communicators of the run."""
        return self._run.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._run.trace = trace

    def span(self, name: str, step: int = -1, clock: Clock | None = None) -> AbstractContextManager[None]:
        """Note a stage of the run, if there is a trace; with a GPU's clock it ends when the GPU has done its work."""
        if self._run.trace is None:
            return nullcontext()
        return self._run.trace.span(name, "stage", step, finish=None if clock is None else clock.finish)

    def enter(self, step: int, what: str) -> None:
        """Publish which collective this rank enters."""
        self._calls += 1
        self._entered = (what, time.perf_counter_ns(), step)
        if self._run.board is not None:
            self._run.board.publish(self.lane, Status(step, what, self._calls, time.time()))

    def leave(self) -> None:
        """The collective has ended, successfully or not."""
        if self._run.trace is not None:
            what, begin_ns, step = self._entered
            self._run.trace.add(what, "collective", begin_ns, step)

    def diagnosis(self, error: CollectiveError, deadline: Deadline) -> str:
        """Who is missing, as the end of an error's message; after a deadline the table of all ranks goes to the log."""
        board = self._run.board
        if board is None or not isinstance(error, (AstrayError, DeadlineError, PeerLostError)):
            return ""
        found, now_s = board.read(self.lane, self._ranks), time.time()
        own = found[self._rank]
        if isinstance(error, AstrayError):
            astray = "" if isinstance(own, str) else _elsewhere(found, own)
            return astray and f" ({astray})"
        lost = isinstance(error, PeerLostError)
        ended = [] if isinstance(own, str) else board.ended(self._ranks, ENDS_WITHIN_S if lost else 0.0)
        if lost:
            if isinstance(own, str):
                return f" ({own})"
            astray = _ended(ended, found, now_s) or _missing(found, own, now_s) or _elsewhere(found, own)
            return astray and f" ({astray})"
        logger.error("%s", _table(found, self._rank, deadline.elapsed_s, now_s))
        time.sleep(OTHERS_S)
        return f" ({own if isinstance(own, str) else _ended(ended, found, now_s) or _blame(found, own, now_s)})"

    def leave_run(self) -> None:
        """Publish that this rank leaves by an error of its own, before its connections break."""
        if self._run.board is not None:
            self._run.board.leave()

    def close(self) -> None:
        """Close the board; the watch of a duplicate or a sub-group leaves it open."""
        if self._run.board is not None and self._derived_from is None:
            self._run.board.close()


def _table(found: Found, rank: int, waited_s: float, now_s: float) -> str:
    lines = [
        f"rank {rank} has waited {waited_s:.1f} s; what each rank entered last:",
        f"{'rank':>6}  {'step':>8}  {'collectives':>11}  {'seconds since':>13}  in or after",
    ]
    for peer, status in found.items():
        if isinstance(status, str):
            cells = ("-", "-", "-", status)
        else:
            cells = (status.step, status.calls, f"{max(0.0, now_s - status.at_s):.1f}", status.what)
        lines.append("{:>6}  {:>8}  {:>11}  {:>13}  {}".format(peer, *cells))
    return "\n".join(lines)


def _blame(found: Found, own: Status, now_s: float) -> str:
    """One line: the ranks that are behind; else those that are elsewhere; else that all are here."""
    silent = [peer for peer, status in found.items() if isinstance(status, str)]
    behind = _missing(found, own, now_s)
    if behind:
        return behind
    if silent:
        return f"{rank_names(silent)} did not come ({found[silent[0]]})"
    in_it = "all ranks are in it, so it is slow or the connection between them is broken; raise timeout_s"
    return _elsewhere(found, own) or in_it


def _elsewhere(found: Found, own: Status) -> str:
    """The first rank whose collective of the same number is another one; "" for none."""
    for peer, status in found.items():
        if isinstance(status, Status) and status.calls == own.calls and status.what != own.what:
            return f"rank {peer} makes another collective instead: {status.what}"
    return ""


def _missing(found: Found, own: Status, now_s: float) -> str:
    """The ranks that have entered fewer collectives, and where the first of them was; "" for none."""
    behind = {peer: status for peer, status in found.items() if isinstance(status, Status) and status.calls < own.calls}
    if not behind:
        return ""
    first = min(behind, key=lambda peer: behind[peer].calls)
    who = "last seen" if len(behind) == 1 else f"rank {first} was last seen"
    return f"{rank_names(list(behind))} did not come: {who} {_when(behind[first], now_s)}"


def _ended(ended: Sequence[int], found: Found, now_s: float) -> str:
    """The ranks that have ended, and where the one was that ended first; "" for none."""
    if not ended:
        return ""
    last = found[ended[0]]
    who = "last seen" if len(ended) == 1 else f"rank {ended[0]} was last seen"
    seen = last if isinstance(last, str) else f"{who} {_when(last, now_s)}"
    return f"{rank_names(sorted(ended))} {'has' if len(ended) == 1 else 'have'} ended: {seen}"


def _when(last: Status, now_s: float) -> str:
    where = f"{last.what}{f' of step {last.step}' if last.step >= 0 else ''}"
    return f"{max(0.0, now_s - last.at_s):.1f} s ago in or after {where}"
