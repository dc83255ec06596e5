"""Where every rank publishes which collective it is about to enter, so that a deadline can name who is missing.

Before each collective a rank publishes its global step, the collective with its purpose, and how many collectives it
has made on this communicator. All ranks of a communicator make the same calls in the same order, so when a deadline
passes, the ranks with the lowest count are those that the others wait for (watch.py).

Each communicator of a run is a lane of the board: "0" is that of the whole run, "0.2" the second that was derived from
it (a duplicate or a sub-group), "0.2.1" the first that was derived from that. A lane is read and written by the members
of its communicator alone, and ranks are numbered as in the run, whatever their numbers in a sub-group are.

`StoreBoard` writes to a torch.distributed store over a connection of its own; `FileBoard` to memory that the ranks of
one machine share (MPI has no store): ranks of other machines are shown as not visible from here. The shared file is
unlinked as soon as all have opened it, so nothing can be left behind.

A connection that breaks does not say whose process ended, and that rank may be in the same collective as the others. So
a rank that leaves by an error of its own says so on a StoreBoard, and ranks of its machine say it of one that was
killed. Where the process that serves the store is the one that has ended, the lost store names it.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from fastsample_dist.comm.handshake import RunStore
from fastsample_dist.comm.processes import has_ended, own_process

logger = logging.getLogger(__name__)

NUM_LANES = 16  # communicators of a rank that a FileBoard has room for; later ones are not published
SHARED_MEMORY = "/dev/shm"
ENDED = "ended"  # how many notes of ranks that have ended there are; each under its number
POLL_S = 0.02
STORE_TIMEOUT_S = 2.0  # one request to the store when a run is diagnosed
LOST_WITHIN_S = 0.02  # between the ends of two connections to a process that is killed
MAX_LANE_BYTES = 32
_LOST = "was lost: its process has ended, or cannot be reached"
_SILENT = "did not answer an earlier question"
_RECORD = struct.Struct(f"<qqd{MAX_LANE_BYTES}s104s")  # step, calls, time, lane, text; 160 bytes


@dataclass(frozen=True)
class Status:
    """What one rank published before its latest collective.

    Attributes:
      step: global training step, -1 outside one.
      what: the collective and its purpose.
      calls: collectives on this communicator so far, this one included.
      at_s: when it was published, in seconds since the epoch (time.time).
    """

    step: int
    what: str
    calls: int
    at_s: float


class StatusBoard(ABC):
    """One status per rank and lane."""

    @abstractmethod
    def publish(self, lane: str, status: Status) -> None:
        """Publish what this rank is about to do. Never raises and never waits for another rank."""

    @abstractmethod
    def read(self, lane: str, ranks: Sequence[int]) -> dict[int, Status | str]:
        """By rank of the run: the latest status, or why there is none. Bounded in time."""

    @abstractmethod
    def leave(self) -> None:
        """Publish that this rank leaves the run, by no failure of a collective. Never raises; bounded in time."""

    @abstractmethod
    def ended(self, ranks: Sequence[int], within_s: float = 0.0) -> list[int]:
        """Which of these ranks have left or whose processes have ended, as far as is known, the first one first: others
        end because of it. Bounded in time.

        Args:
          ranks: of the run, ascending.
          within_s: one of them is given so long to end.
        """

    @abstractmethod
    def close(self) -> None:
        """Release it. A second call does nothing."""


class StoreBoard(StatusBoard):
    """A board in a torch.distributed store.

    Args:
      store: a connection that nobody else uses; its timeout is set here.
      rank: this rank.
      server: who serves the store, in words, in case it does not answer.
    """

    def __init__(self, store: RunStore, rank: int, server: str) -> None:
        self._store: RunStore | None = store
        self._rank, self._server, self._why = rank, server, _LOST
        store.store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
        self._try(lambda store: store.set(f"process/{rank}", own_process()))

    def publish(self, lane: str, status: Status) -> None:
        """See StatusBoard. What a store cannot take at once is left out."""
        value = f"{status.step} {status.calls} {status.at_s} {status.what}"
        self._try(lambda store: store.set(f"{lane}/{self._rank}", value))

    def leave(self) -> None:
        """See StatusBoard."""
        self._ask(lambda store: _note_ended(store, self._rank), STORE_TIMEOUT_S)

    def _try(self, call: Callable[[dist.Store], object]) -> None:
        store = self._store
        if store is None or not store.takes_requests():
            return
        try:
            call(store.store)
        except RuntimeError as error:
            logger.debug("rank %d: the status board is gone: %s", self._rank, error)
            self._store = None

    def read(self, lane: str, ranks: Sequence[int]) -> dict[int, Status | str]:
        """See StatusBoard; about STORE_TIMEOUT_S for a store that does not answer."""
        found: dict[int, Status | str] = {}
        asks = self._store is not None
        self._ask(lambda store: _read_all(store, lane, ranks, found), STORE_TIMEOUT_S)
        if len(found) == len(ranks):
            return found
        said = "does not answer" if asks and self._why == _SILENT else self._why
        return dict.fromkeys(ranks, f"the store ({self._server}) {said}")

    def ended(self, ranks: Sequence[int], within_s: float = 0.0) -> list[int]:
        """See StatusBoard."""
        found: list[int] = []
        end_s, others = time.monotonic() + within_s, [rank for rank in ranks if rank != self._rank]
        self._ask(lambda store: _await_ended(store, others, end_s, found), within_s + STORE_TIMEOUT_S)
        return found

    def _ask(self, call: Callable[[dist.Store], object], timeout_s: float) -> None:
        """Let a call that waits for answers write down what it finds. A store that gives none is not asked again: its
        `check` never returns when the process that serves it is stopped. Nor is one whose process has ended: torch
        would print its C++ stack.
        """
        store = self._store
        if store is None:
            return
        try:
            outcome = None if store.is_lost(LOST_WITHIN_S) else store.call_within(call, timeout_s)
            if outcome is not None:
                outcome.result()
                return
        except RuntimeError as error:
            logger.debug("rank %d: the status board cannot be read: %s", self._rank, error)
        self._store, self._why = None, _LOST if store.is_lost(0.0) else _SILENT

    def close(self) -> None:
        """See StatusBoard."""
        self._store = None


def _read_all(store: dist.Store, lane: str, ranks: Sequence[int], found: dict[int, Status | str]) -> None:
    for rank in ranks:
        key = f"{lane}/{rank}"
        found[rank] = _parse(store.get(key)) if store.check([key]) else "made none so far"


def _await_ended(store: dist.Store, ranks: Sequence[int], end_s: float, found: list[int]) -> None:
    keys = {rank: f"process/{rank}" for rank in ranks}
    processes = {rank: store.get(key).decode() for rank, key in keys.items() if store.check([key])}
    while True:
        noted = _noted_ended(store)
        seen = [rank for rank, process in processes.items() if rank not in noted and has_ended(process)]
        for rank in seen:
            _note_ended(store, rank)  # for ranks of other machines
        ended = [rank for rank in (*noted, *seen) if rank in keys]
        if ended or time.monotonic() >= end_s:
            found.extend(dict.fromkeys(ended))  # several may have noted the same
            return
        time.sleep(POLL_S)


def _note_ended(store: dist.Store, rank: int) -> None:
    store.set(f"{ENDED}/{store.add(ENDED, 1)}", str(rank))


def _noted_ended(store: dist.Store) -> list[int]:
    keys = [f"{ENDED}/{number + 1}" for number in range(store.add(ENDED, 0))]
    return [int(store.get(key)) for key in keys if store.check([key])]


def _parse(value: bytes) -> Status:
    step, calls, at_s, what = value.decode().split(" ", 3)
    return Status(int(step), what, int(calls), float(at_s))


class FileBoard(StatusBoard):
    """A board in memory that the ranks of one machine share: NUM_LANES records per rank, each naming its lane.

    A rank takes its records in the order in which it first publishes on its lanes; ranks in different sub-groups have
    different lanes, so a reader searches the other's records for the lane.

    Args:
      path: the shared file, made by `create_file`; may be unlinked as soon as all ranks have constructed theirs.
      rank: this rank.
      hosts: machine of every rank, by rank.
    """

    def __init__(self, path: str | Path, rank: int, hosts: Sequence[str]) -> None:
        self._rank, self._hosts = rank, list(hosts)
        self._records: dict[str, int] = {}  # this rank's, by lane
        self._taking = threading.Lock()
        with Path(path).open("r+b") as file:
            self._memory: mmap.mmap | None = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def create_file(world_size: int) -> str | None:
        """An empty board file for `world_size` ranks, in shared memory where that has room; returns its path.

        It is written in full, since a store to a page that a full file system cannot give ends the process (SIGBUS).
        None, with a warning, where the directory for temporary files has no room either.
        """
        size = NUM_LANES * world_size * _RECORD.size
        for folder in (SHARED_MEMORY, None):
            path = None
            try:
                handle, path = tempfile.mkstemp(prefix="fastsample_dist-board-", dir=folder)
                os.close(handle)
                Path(path).write_bytes(bytes(size))
                return path
            except OSError as error:
                reason = error
                if path is not None:
                    Path(path).unlink()
        logger.warning(
            "no file of %d bytes can be made in %s or the directory for temporary files (%s): if a rank does not come, "
            "it will not be named; make room there.", size, SHARED_MEMORY, reason,
        )  # fmt: skip
        return None

    def publish(self, lane: str, status: Status) -> None:
        """See StatusBoard."""
        record = self._record_of(lane)
        if self._memory is None or record >= NUM_LANES or len(lane) > MAX_LANE_BYTES:
            return
        text, where = status.what.encode()[:100], self._at(self._rank, record)
        _RECORD.pack_into(self._memory, where, status.step, status.calls, status.at_s, lane.encode(), text)

    def _record_of(self, lane: str) -> int:
        if lane not in self._records:
            with self._taking:
                self._records.setdefault(lane, len(self._records))
        return self._records[lane]

    def read(self, lane: str, ranks: Sequence[int]) -> dict[int, Status | str]:
        """See StatusBoard."""
        return {rank: self._read_one(lane, rank) for rank in ranks}

    def _read_one(self, lane: str, rank: int) -> Status | str:
        if self._hosts[rank] != self._hosts[self._rank]:
            return f"on {self._hosts[rank]}, not visible from {self._hosts[self._rank]}"
        if self._memory is None:
            return "not published"
        for record in range(NUM_LANES):
            step, calls, at_s, name, text = _RECORD.unpack_from(self._memory, self._at(rank, record))
            if name.rstrip(b"\0") == lane.encode():
                return Status(step, text.rstrip(b"\0").decode(errors="replace"), calls, at_s)
        return "made none so far" if name == bytes(MAX_LANE_BYTES) else "not published"  # its last record is still free

    def leave(self) -> None:
        """See StatusBoard. Nothing: under MPI nobody is left who could ask."""

    def ended(self, ranks: Sequence[int], within_s: float = 0.0) -> list[int]:
        """See StatusBoard. Nobody, see `leave`."""
        return []

    def _at(self, rank: int, record: int) -> int:
        return (rank * NUM_LANES + record) * _RECORD.size

    def close(self) -> None:
        """See StatusBoard."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
