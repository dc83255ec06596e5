"""Connections to the run's meeting point, under a deadline whatever listens there.

torch's TCPStore waits without limit for the first answer of a service that accepts and stays silent, and retries
endlessly when one answers something else. So it is constructed, and asked once, in a thread of its own. When the time
is up its connection is shut down, which ends that thread: none is left that could wake while the interpreter ends.
(Abandoned before that, it may sleep until torch's own limit, the same deadline, and does nothing until then.)
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from fastsample_dist.comm.deadline import Deadline
from fastsample_dist.comm.environment import LaunchInfo

ASK_AFTER_S = 5.0  # a store answers within milliseconds; from then on it is worth probing what else it may be
ANSWER_S = 1.0  # for another service to identify itself
BREAK_OFF_S = 2.0  # for the thread to see that its connection is gone
POLL_S = 0.05
ASKED = "fastsample_dist/asked"  # a key that nobody sets
MAX_ANSWER = 60  # characters of it in a message


def address_of(info: LaunchInfo) -> str:
    """Where the ranks meet, as messages name it."""
    return f"{info.master_addr}:{info.master_port}"


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


class _Attempt:
    """One construction of a store, in a thread."""

    def __init__(self, info: LaunchInfo, serves: bool, timeout_s: float) -> None:
        self._info, self._serves, self._timeout_s = info, serves, timeout_s
        self._deadline, self._older = Deadline(timeout_s), _connections(info.master_port)
        self._error: Exception | None = None
        self._answer: str | None = None  # the answer of a foreign service
        self.store: dist.TCPStore | None = None
        self._thread = threading.Thread(target=self._construct, name="fastsample-handshake", daemon=True)
        self._thread.start()

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
        """Until the store is there, has failed, turns out to be something else, or the time is up."""
        asked = False
        while self._thread.is_alive() and self._deadline.remaining_s > 0.0:
            self._thread.join(POLL_S)
            if self._thread.is_alive() and not asked and self._deadline.elapsed_s > ASK_AFTER_S:
                asked, self._answer = True, _answer_of(self._info)
                if self._answer is not None:
                    return

    def break_off(self) -> None:
        """Take its connection from a thread that still waits; a store that comes too late is dropped."""
        if not self._thread.is_alive():
            return
        patience = Deadline(BREAK_OFF_S)
        with _quiet():
            while self._thread.is_alive() and patience.remaining_s > 0.0:
                for descriptor in _connections(self._info.master_port) - self._older:
                    with suppress(OSError), _borrowed(descriptor) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
                self._thread.join(POLL_S)

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
