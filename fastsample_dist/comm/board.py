"""Where every rank says which collective it is about to enter, so that a deadline can name who did not come.

Before each collective a rank publishes its global step, the collective with its purpose, and how many collectives it
has made on this communicator. All ranks make the same calls in the same order, so when a deadline passes, the ranks
with the lowest count are those that the others wait for. Each communicator of a run (the first one and its
duplicates, in the order in which they were made) is a lane of the board.

`StoreBoard` writes to a torch.distributed store over a connection of its own; `FileBoard` to memory that the ranks of
one machine share (MPI has no store): ranks of other machines are shown as not visible from here. The shared file has
no name any more once all have opened it, so nothing can be left behind.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from fastsample_dist.comm.deadline import CollectiveError, Deadline, DeadlineError
from fastsample_dist.comm.trace import Trace
from fastsample_dist.device.clock import Clock

logger = logging.getLogger(__name__)

NUM_LANES = 16  # communicators of a run that a FileBoard has room for; later ones are not published
OTHERS_S = 1.0  # for the other ranks to report theirs: a launcher ends all as soon as one leaves
STORE_TIMEOUT_S = 2.0  # one question to the store when a run is diagnosed
_RECORD = struct.Struct("<qqd104s")  # step, calls, time, text; 128 bytes


@dataclass(frozen=True)
class Status:
    """What one rank said before its latest collective.

    Attributes:
      step: global training step, -1 outside one.
      what: the collective and its purpose.
      calls: collectives on this communicator so far, this one included.
      at_s: seconds since the epoch (time.time) when it was said.
    """

    step: int
    what: str
    calls: int
    at_s: float


def describe(collective: str, purpose: str) -> str:
    """How a collective is called in messages: "all_reduce of gradients", or "barrier" when that is its purpose."""
    return collective if purpose == collective else f"{collective} of {purpose}"


class StatusBoard(ABC):
    """One status per rank and lane."""

    @abstractmethod
    def publish(self, lane: int, status: Status) -> None:
        """Say what this rank is about to do. Never raises and never waits for another rank."""

    @abstractmethod
    def read(self, lane: int) -> list[Status | str]:
        """By rank: the latest status, or why there is none. Bounded in time."""

    @abstractmethod
    def close(self) -> None:
        """Release it. A second call does nothing."""


class StoreBoard(StatusBoard):
    """A board in a torch.distributed store.

    Args:
      store: a connection that nobody else uses; its timeout is set here.
      rank, world_size: of the run.
      server: who serves the store, in words, for the case that it does not answer.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, server: str) -> None:
        self._store: dist.Store | None = store
        self._rank, self._world_size, self._server = rank, world_size, server
        store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))

    def publish(self, lane: int, status: Status) -> None:
        """See StatusBoard. A store that is gone is not asked again."""
        if self._store is None:
            return
        try:
            self._store.set(f"{lane}/{self._rank}", f"{status.step} {status.calls} {status.at_s} {status.what}")
        except RuntimeError as error:
            logger.debug("rank %d: the status board is gone: %s", self._rank, error)
            self._store = None

    def read(self, lane: int) -> list[Status | str]:
        """See StatusBoard; at most STORE_TIMEOUT_S for a store that does not answer."""
        store = self._store
        if store is None:
            return ["the store was lost"] * self._world_size
        found: list[Status | str] = []
        # In a thread of its own: the store's `check` waits for ever when the process that serves it is stopped.
        reader = threading.Thread(target=self._read_all, args=(store, lane, found), daemon=True)
        reader.start()
        reader.join(STORE_TIMEOUT_S)
        if len(found) < self._world_size:
            return [f"the store ({self._server}) does not answer"] * self._world_size
        return found

    def _read_all(self, store: dist.Store, lane: int, found: list[Status | str]) -> None:
        try:
            for rank in range(self._world_size):
                key = f"{lane}/{rank}"
                found.append(_parse(store.get(key)) if store.check([key]) else "made none so far")
        except RuntimeError as error:
            logger.debug("rank %d: the status board cannot be read: %s", self._rank, error)

    def close(self) -> None:
        """See StatusBoard."""
        self._store = None


def _parse(value: bytes) -> Status:
    step, calls, at_s, what = value.decode().split(" ", 3)
    return Status(int(step), what, int(calls), float(at_s))


class FileBoard(StatusBoard):
    """A board in memory that the ranks of one machine share.

    Args:
      path: the shared file, made by `create_file`; may be unlinked as soon as all ranks have constructed theirs.
      rank: this rank.
      hosts: machine of every rank, by rank.
    """

    def __init__(self, path: str | Path, rank: int, hosts: Sequence[str]) -> None:
        self._rank, self._hosts = rank, list(hosts)
        with Path(path).open("r+b") as file:
            self._memory: mmap.mmap | None = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def create_file(world_size: int) -> str:
        """An empty board file for `world_size` ranks, in shared memory where the machine has it; returns its path."""
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        handle, path = tempfile.mkstemp(prefix="fastsample_dist-board-", dir=folder)
        os.ftruncate(handle, NUM_LANES * world_size * _RECORD.size)
        os.close(handle)
        return path

    def publish(self, lane: int, status: Status) -> None:
        """See StatusBoard."""
        if self._memory is None or lane >= NUM_LANES:
            return
        text = status.what.encode()[:100]
        _RECORD.pack_into(self._memory, self._at(lane, self._rank), status.step, status.calls, status.at_s, text)

    def read(self, lane: int) -> list[Status | str]:
        """See StatusBoard."""
        return [self._read_one(lane, rank) for rank in range(len(self._hosts))]

    def _read_one(self, lane: int, rank: int) -> Status | str:
        if self._hosts[rank] != self._hosts[self._rank]:
            return f"on {self._hosts[rank]}, not visible from {self._hosts[self._rank]}"
        if self._memory is None or lane >= NUM_LANES:
            return "not published"
        step, calls, at_s, text = _RECORD.unpack_from(self._memory, self._at(lane, rank))
        return Status(step, text.rstrip(b"\0").decode(errors="replace"), calls, at_s) if calls else "made none so far"

    def _at(self, lane: int, rank: int) -> int:
        return (lane * len(self._hosts) + rank) * _RECORD.size

    def close(self) -> None:
        """See StatusBoard."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


@dataclass
class _Run:
    """What the watches of a communicator and its duplicates share."""

    board: StatusBoard | None
    trace: Trace | None = None
    last_lane: int = 0


class Watch:
    """One communicator's eyes: publishes its collectives on the board, notes them in a trace, diagnoses a deadline.

    Args:
      rank: this rank.
      board: of the run, None for none.
    """

    def __init__(self, rank: int, board: StatusBoard | None = None) -> None:
        self._rank, self._run, self._lane, self._calls = rank, _Run(board), 0, 0
        self._entered = ("", 0, -1)  # collective, when (ns), step

    def of_duplicate(self) -> Watch:
        """The watch of a duplicate, with the run's next lane. All ranks make duplicates in the same order."""
        other = Watch(self._rank)
        self._run.last_lane += 1
        other._run, other._lane = self._run, self._run.last_lane
        return other

    @property
    def trace(self) -> Trace | None:
        """Where collectives and stages of the run are noted; setting it holds for the duplicates too."""
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
        """Say which collective this rank enters."""
        self._calls += 1
        self._entered = (what, time.perf_counter_ns(), step)
        if self._run.board is not None:
            self._run.board.publish(self._lane, Status(step, what, self._calls, time.time()))

    def leave(self) -> None:
        """The collective is over, well or not."""
        if self._run.trace is not None:
            what, begin_ns, step = self._entered
            self._run.trace.add(what, "collective", begin_ns, step)

    def diagnosis(self, error: CollectiveError, deadline: Deadline) -> str:
        """Who is missing, as the end of a deadline's message; the table of all ranks goes to the log."""
        board = self._run.board
        if board is None or not isinstance(error, DeadlineError):
            return ""
        found, now_s = board.read(self._lane), time.time()
        logger.error("%s", _table(found, self._rank, deadline.elapsed_s, now_s))
        time.sleep(OTHERS_S)
        own = found[self._rank]
        return f" ({own if isinstance(own, str) else _blame(found, own, self._rank, now_s)})"

    def close(self) -> None:
        """Close the board; a duplicate's watch leaves it open."""
        if self._run.board is not None and self._lane == 0:
            self._run.board.close()


def _table(found: list[Status | str], rank: int, waited_s: float, now_s: float) -> str:
    lines = [
        f"rank {rank} has waited {waited_s:.1f} s; what each rank entered last:",
        f"{'rank':>6}  {'step':>8}  {'collectives':>11}  {'seconds since':>13}  in or after",
    ]
    for peer, status in enumerate(found):
        if isinstance(status, str):
            cells = ("-", "-", "-", status)
        else:
            cells = (status.step, status.calls, f"{max(0.0, now_s - status.at_s):.1f}", status.what)
        lines.append("{:>6}  {:>8}  {:>11}  {:>13}  {}".format(peer, *cells))
    return "\n".join(lines)


def _blame(found: list[Status | str], own: Status, rank: int, now_s: float) -> str:
    """One line: the ranks that are behind; else those that are elsewhere; else that all are here."""
    silent = [peer for peer, status in enumerate(found) if isinstance(status, str)]
    known = {peer: status for peer, status in enumerate(found) if isinstance(status, Status) and peer != rank}
    behind = [peer for peer, status in known.items() if status.calls < own.calls]
    elsewhere = [peer for peer, status in known.items() if status.calls == own.calls and status.what != own.what]
    if behind:
        first = min(behind, key=lambda peer: known[peer].calls)
        last = known[first]
        who = "last seen" if len(behind) == 1 else f"rank {first} was last seen"
        where = f"{last.what}{f' of step {last.step}' if last.step >= 0 else ''}"
        return f"{_ranks(behind)} did not come: {who} {max(0.0, now_s - last.at_s):.1f} s ago in or after {where}"
    if silent:
        return f"{_ranks(silent)} did not come ({found[silent[0]]})"
    if elsewhere:
        return f"rank {elsewhere[0]} makes another collective instead: {known[elsewhere[0]].what}"
    return "all ranks are in it, so it is slow or the connection between them is broken; raise timeout_s"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
