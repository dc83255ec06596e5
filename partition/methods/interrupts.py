"""Signals while a long call into C runs.

Python runs signal handlers on its main thread, between two of its own instructions: none while that thread is inside C.
So the call is made on a thread of its own and the main thread waits, where a signal reaches it; the exception of its
handler leaves the wait, and the call continues in the background until it returns or the process ends.

METIS makes it harder: while it runs, SIGTERM and SIGABRT have a handler of its own, which jumps back into the call from
whichever thread the signal arrives on - on any but METIS' own, it jumps into nowhere. So the main thread watches the
process' handler of SIGTERM and puts Python's back as soon as it is replaced; until then it holds SIGINT and SIGTERM
back. A window remains where the process has more threads, which do not hold SIGTERM back (those of OpenMP or OpenBLAS,
say): in the millisecond or so from METIS' start until the handler is put back the kernel picks one of these for a
SIGTERM, and the process dies without printing its line.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")

POLL_S = 0.005  # how often the wait checks whether SIGTERM's handler was replaced: METIS does it in every call
START_POLL_S, START_S = 0.001, 1.0  # the same right after the start, and for how long signals are held back for it
STRUCT_BYTES = 256  # more than any system's struct sigaction has


def call_beside(function: Callable[[], Result]) -> Result:
    """Call a function that releases Python's lock, so that signals are handled meanwhile.

    Called from any thread but the main one, or where another library's handler of SIGTERM is installed, this calls the
    function in place: then nothing is handled before it returns.

    Args:
      function: keeps what it works on alive by itself: it may outlast this call.
    Returns:
      What the function returns.
    Raises:
      BaseException: what the function raises, or a signal's handler (KeyboardInterrupt at Ctrl-C); in the latter case
        the function continues in a daemon thread.
      RuntimeError: the function sent SIGTERM to itself, which is how METIS reports a failure inside.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        return function()
    outcome: list[tuple[Result | None, BaseException | None]] = []
    thread = threading.Thread(target=_keep_outcome, args=(function, outcome), name="beside-main", daemon=True)
    signal.signal(signal.SIGTERM, handler)
    before = _installed_handler()
    try:
        with _held_back(signal.SIGINT, signal.SIGTERM):  # by the new thread as well, for good
            thread.start()
            latest = time.monotonic() + START_S
            while thread.is_alive() and _installed_handler() == before and time.monotonic() < latest:
                thread.join(START_POLL_S)
            signal.signal(signal.SIGTERM, handler)
        while thread.is_alive():
            thread.join(POLL_S)
            if _installed_handler() != before:
                signal.signal(signal.SIGTERM, handler)
    finally:
        signal.signal(signal.SIGTERM, handler)
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _keep_outcome(function: Callable[[], Result], outcome: list[tuple[Result | None, BaseException | None]]) -> None:
    try:
        result = function()
        if signal.SIGTERM in signal.sigpending():  # this thread holds it back, the main thread does not
            raise RuntimeError("it raised SIGTERM: it failed inside")
        outcome.append((result, None))
    except BaseException as error:
        outcome.append((None, error))


@contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that arrive on this thread inside the block are handled at its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _installed_handler() -> bytes:
    """The handler of SIGTERM, as C sees it (Python's own record does not know of METIS').

    A struct sigaction begins with it. The rest cannot be compared: of the mask the C library fills in the kernel's
    8 bytes and copies what lay on its stack behind them.
    """
    action = ctypes.create_string_buffer(STRUCT_BYTES)
    if _c_library().sigaction(int(signal.SIGTERM), None, action) != 0:
        raise OSError(ctypes.get_errno(), "sigaction of SIGTERM")
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]
