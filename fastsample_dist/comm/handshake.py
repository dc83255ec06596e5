"""Connections to the run's meeting point, and requests to it, under a deadline whatever listens there.

torch's TCPStore waits without limit for the first answer of a service that accepts and stays silent, and retries
endlessly when one answers something else. So it is constructed, and asked once, in a thread of its own. When the time
is up its connection is shut down, which ends that thread: none is left that could wake while the interpreter ends.
(Abandoned before that, it may sleep until torch's own limit, the same deadline, and does nothing until then.)

Nor does torch's store ever give up a request when the process that serves it is stopped, or the link to it is cut. So
the joined run, and its status board, ask it through `RunStore`, in a thread as well.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from fastsample_dist.comm.deadline import CollectiveError, Deadline, DeadlineError
from fastsample_dist.comm.environment import LaunchInfo

ASK_AFTER_S = 5.0  # a store answers within milliseconds; from then on it is worth probing what else it may be
ANSWER_S = 1.0  # for another service to identify itself
BREAK_OFF_S = 2.0  # for the thread to see that its connection is gone
LATE_S = 3.0  # past a deadline, for a request that has one of its own: it knows better what is missing
POLL_S = 0.05
ASKED = "fastsample_dist/asked"  # a key that nobody sets
MAX_ANSWER = 60  # characters of it in a message

_CLOSED = getattr(select, "POLLRDHUP", 0)  # by the other side; Linux

T = TypeVar("T")


def address_of(info: LaunchInfo) -> str:
    """Where the ranks meet, as messages name it."""
    return f"{info.master_addr}:{info.master_port}"


def server_of(info: LaunchInfo) -> str:
    """Who serves the store of the run."""
    return "torchrun's agent" if info.agent_store else "rank 0"


def open_store(info: LaunchInfo, deadline: Deadline, *, serves: bool = False) -> dist.TCPStore:
    """Serve the run's store, or connect to it.

    Args:
      info: this process's launch, of a run with an address.
      deadline: by when the store must have answered; at least a second is given.
      serves: the store is in this process.
    Raises:
      RuntimeError: the port is taken, nobody serves a store there, or something else answers (named).
    """
    attempt = _Attempt(info, serves, max(1.0, deadline.remaining_s))
    try:
        attempt.wait()
        if attempt.store is not None:
            return attempt.store
    finally:  # also on Ctrl-C
        attempt.break_off()
    raise RuntimeError(f"rank {info.rank}: {attempt.failure()}; choose another MASTER_PORT, or check MASTER_ADDR.")


class RunStore:
    """The store of a run that this process has joined, asked under a deadline.

    Args:
      store: as `connect` opens it.
      info: this process's launch.
      connections: descriptors of the connection to it; none for a store within this process.
    Attributes:
      store: for calls that cannot wait.
    """

    def __init__(self, store: dist.PrefixStore, info: LaunchInfo, connections: set[int]) -> None:
        self.store, self._info, self._connections = store, info, connections
        self._broken_off = False

    @classmethod
    def connect(cls, info: LaunchInfo, deadline: Deadline, prefix: str, *, serves: bool = False) -> RunStore:
        """`open_store`, its keys under a prefix."""
        older = _connections(info.master_port)
        store = open_store(info, deadline, serves=serves)
        return cls(dist.PrefixStore(prefix, store), info, _connections(info.master_port) - older)

    def ask(self, call: Callable[[dist.PrefixStore], T], deadline: Deadline) -> T:
        """What `call(store)` returns or raises; it is given LATE_S past the deadline. See `call_within`.

        Raises:
          CollectiveError: the store does not answer.
          DeadlineError: it does, so that the call waits for something else.
        """
        outcome = self.call_within(call, deadline.remaining_s + LATE_S)
        if outcome is not None:
            return outcome.result()
        if self._answers():
            raise DeadlineError(deadline.timeout_s)
        raise CollectiveError(
            f"failed: the store at {address_of(self._info)} ({server_of(self._info)}) did not answer within "
            f"{deadline.timeout_s:g} s; its process is stopped or the link to it is cut: check both, and start again"
        )

    def call_within(self, call: Callable[[dist.PrefixStore], T], timeout_s: float) -> Future[T] | None:
        """What `call(store)` returned or raised, called in a thread of its own; None: it has not in time.

        A thread that still waits then, or on Ctrl-C, loses its connection, and this object with it: it can then no
        longer be asked.
        """
        outcome: Future[T] = Future()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # each thread has its own
                outcome.set_result(call(self.store))
            except BaseException as error:  # the caller raises it
                outcome.set_exception(error)

        thread = _RequestThread(run, "fastsample-store")
        limit = Deadline(timeout_s)
        try:
            thread.start()
            while thread.is_alive() and limit.remaining_s > 0.0:
                thread.join(POLL_S)
            return None if thread.is_alive() else outcome
        finally:  # also on Ctrl-C
            self._broken_off = self._broken_off or thread.is_alive()
            thread.break_off(lambda: _connections(self._info.master_port) & self._connections)

    def takes_requests(self) -> bool:
        """Whether a short request can be sent without waiting. A process that is stopped reads none, so that those of
        which torch awaits no answer fill its connection, and the next one would wait without limit.
        """
        return all(events == select.POLLOUT for events in self._events(select.POLLOUT | _CLOSED, 0.0))

    def is_lost(self, within_s: float) -> bool:
        """Whether the process that serves it has closed the connection, or does so within that time."""
        return not self._broken_off and any(self._events(_CLOSED, within_s))

    def _events(self, wanted: int, within_s: float) -> list[int]:
        """What is so of each connection; 0 for nothing within that time."""
        watched = select.poll()  # one poll object serves one thread at a time
        for descriptor in self._connections:
            watched.register(descriptor, wanted)
        found = dict(watched.poll(1000.0 * within_s)) if self._connections else {}
        return [found.get(descriptor, 0) for descriptor in self._connections]

    def _answers(self) -> bool:
        """Whether it answers somebody else."""
        with _quiet():
            attempt = _Attempt(self._info, False, ANSWER_S)
            try:
                attempt.wait()
                return attempt.store is not None
            finally:
                attempt.break_off()


class _Attempt:
    """One construction of a store, in a thread."""

    def __init__(self, info: LaunchInfo, serves: bool, timeout_s: float) -> None:
        self._info, self._serves, self._timeout_s = info, serves, timeout_s
        self._deadline, self._older = Deadline(timeout_s), _connections(info.master_port)
        self._error: Exception | None = None
        self._answer: str | None = None  # the answer of a foreign service
        self.store: dist.TCPStore | None = None
        self._thread = _RequestThread(self._construct, "fastsample-handshake")

    def _construct(self) -> None:
        assert self._info.master_addr is not None and self._info.master_port is not None  # several ranks have them
        try:
            store = dist.TCPStore(
                self._info.master_addr,
                self._info.master_port,
                self._info.world_size,
                is_master=self._serves,
                timeout=timedelta(seconds=self._timeout_s),
                wait_for_workers=False,
            )
            store.check([ASKED])  # torch 2.4 takes whatever accepts connections for a store until it is asked
            self.store = store
        except Exception as error:  # the caller raises it
            self._error = error.with_traceback(None)  # which would keep the connection, in a cycle with this object

    def wait(self) -> None:
        """Start, until the store is there, has failed, turns out to be something else, or the time is up."""
        self._thread.start()
        asked = False
        while self._thread.is_alive() and self._deadline.remaining_s > 0.0:
            self._thread.join(POLL_S)
            if self._thread.is_alive() and not asked and self._deadline.elapsed_s > ASK_AFTER_S:
                asked, self._answer = True, _answer_of(self._info)
                if self._answer is not None:
                    return

    def break_off(self) -> None:
        """Take its connection from a thread that still waits; a store that comes too late is dropped."""
        self._thread.break_off(lambda: _connections(self._info.master_port) - self._older)

    def failure(self) -> str:
        """What went wrong, and what listens there as far as it identifies itself."""
        address, answer = address_of(self._info), self._answer or _answer_of(self._info)
        said = "" if self._error is None else str(self._error).split("\n", 1)[0]
        foreign = "" if answer is None else f"another service listens there, {answer}"
        if self._serves:
            return f"cannot serve the meeting point at {address} ({self._away() or foreign or said or self._silence()})"
        if foreign or (said and self._deadline.remaining_s > 0.0):
            return f"cannot join the meeting point at {address} ({foreign or said})"
        return f"cannot join the meeting point at {address} ({self._silence()})"

    def _away(self) -> str:
        """That the address is another machine's; "" for one of this machine, and for a name that is not known."""
        with suppress(OSError):
            for family, kind, protocol, _, where in socket.getaddrinfo(
                self._info.master_addr, 0, type=socket.SOCK_STREAM
            ):
                with suppress(OSError), socket.socket(family, kind, protocol) as own:
                    own.bind(where)
                    return ""
            return "MASTER_ADDR is not an address of this machine, where rank 0 runs"
        return ""

    def _silence(self) -> str:
        return (
            f"it accepts connections but did not answer within {round(self._timeout_s, 1):g} s: another service may "
            "hold the port, or the process that serves the meeting point is stopped"
        )


class _RequestThread(threading.Thread):
    """A thread that waits for a connection, until it is broken off."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._turn: Future[None] = Future()

    def run(self) -> None:
        if self._turn.set_running_or_notify_cancel():  # else broken off before it ran: the interpreter may be ending
            super().run()

    def break_off(self, connections: Callable[[], set[int]]) -> None:
        """Shut down the connections for which it waits, until it has ended; one that does not run yet never begins."""
        self._turn.cancel()
        if not self.is_alive():
            return
        patience = Deadline(BREAK_OFF_S)
        with _quiet():
            while self.is_alive() and patience.remaining_s > 0.0:
                for descriptor in connections():
                    with suppress(OSError), _borrowed(descriptor) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
                self.join(POLL_S)


def _answer_of(info: LaunchInfo) -> str | None:
    """What the service at the meeting point answers to a request unknown to a store; None when it is silent."""
    try:
        with socket.create_connection((info.master_addr, info.master_port), timeout=ANSWER_S) as connection:
            connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            said = connection.recv(MAX_ANSWER)
    except OSError:
        return None
    first = said.decode("latin-1").split("\r\n", 1)[0]
    if not first:
        return None
    return f"an HTTP server ({first})" if first.startswith("HTTP/") else f"which answers {first!r}"


def _connections(port: int | None) -> set[int]:
    """Descriptors of this process's connections to a port; none where the system does not list them."""
    found = set()
    with suppress(OSError):
        for number in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
            with suppress(OSError, IndexError), _borrowed(number) as connection:
                if connection.getpeername()[1] == port:
                    found.add(number)
    return found


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket of a descriptor that other code closes.

    Raises:
      OSError: it is closed by now, or not a socket.
    """
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(f"descriptor {descriptor} is not a socket")
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what is written to stderr: torch prints its C++ stack when its connection breaks."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
