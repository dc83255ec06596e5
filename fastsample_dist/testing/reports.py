"""The folder of a run: what its ranks are to call, what they report, and the lock that tells them to end.

    lock                      held by the process that started the run, for as long as anybody waits for it
    call                      pickled (sys.path, pickled `Call`), read by ranks that are commands
    reports/pid-<rank>        process id, written when the rank starts
    reports/returned-<rank>   what the call returned
    reports/left-<rank>       the rank has left its context
    reports/failed-<rank>     `Failure`, written before the other ranks can fail because of it

Everything else in it belongs to the call. A rank that finds the lock free knows that nobody is waiting any longer: it
removes the folder and ends.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from fastsample_dist.comm.pickled import unpickle
from fastsample_dist.files import complete_file

LOCK, CALL, REPORTS = "lock", "call", "reports"
KINDS = PID, RETURNED, LEFT, FAILED = "pid", "returned", "left", "failed"
LOCK_POLL_S = 0.5
REFUSALS = (ValueError, OSError, ImportError)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What every rank does: function(its context, the folder); `timeout_s` is that of joining and of one collective."""

    function: Callable
    timeout_s: float
    threads: int = 1
    verify_exchanges: bool | None = None  # see `Communicator.verify_exchanges`; None: as it is


class Failure(NamedTuple):
    """How a rank failed: when, whether its input was refused, the error in one line, the traceback."""

    time_s: float
    is_refusal: bool
    text: str
    traceback: str


def read_reports(folder: Path, world_size: int) -> list[dict[str, Any]]:
    """What the ranks of a run have reported so far: by rank, the content of each kind of report."""
    files = [{kind: folder / REPORTS / f"{kind}-{rank}" for kind in KINDS} for rank in range(world_size)]
    return [
        {kind: unpickle(file.read_bytes()) for kind, file in own.items() if file.exists()} for own in files
    ]  # fmt: skip


def has_failed(folder: Path) -> bool:
    """Whether a rank has reported a failure."""
    return any((folder / REPORTS).glob(f"{FAILED}-*"))


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder, locked for the block and removed at its end."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="fastsample-run-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        fcntl.flock(stack.enter_context((folder / LOCK).open("w")), fcntl.LOCK_EX)
        (folder / REPORTS).mkdir()
        yield folder


def dump(content: object) -> bytes:
    """Pickle; cloudpickle also takes functions and objects of classes that a rank cannot import."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(content)
    return cloudpickle.dumps(content)


class Reporter:
    """How a rank reports to the folder of its run; it ends this process when nobody is waiting for it any longer."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank, self._has_failed = folder, rank, False
        self._report(PID, os.getpid())
        threading.Thread(target=self._end_with_starter, daemon=True).start()

    def returned(self, value: object) -> None:
        """The call has returned; fails as pickle does for a value that cannot be sent."""
        self._report(RETURNED, value)

    def left(self) -> None:
        """The rank has left its context."""
        self._report(LEFT, None)

    def failed(self, error: BaseException) -> None:
        """The error that is being handled; only the first one counts."""
        if not self._has_failed:
            text = " ".join(str(error).split()) or type(error).__name__
            self._report(FAILED, Failure(time.time(), isinstance(error, REFUSALS), text, traceback.format_exc()))
        self._has_failed = True

    def _report(self, kind: str, content: object) -> None:
        pickled = dump(content)
        with complete_file(self._folder / REPORTS / f"{kind}-{self._rank}") as partial:
            partial.write_bytes(pickled)

    def _end_with_starter(self) -> None:
        try:
            with (self._folder / LOCK).open() as lock:
                while is_locked(lock):
                    time.sleep(LOCK_POLL_S)
        except FileNotFoundError:  # another rank has removed the folder
            os._exit(1)
        shutil.rmtree(self._folder, ignore_errors=True)  # other ranks remove it at the same time
        os._exit(1)


def is_locked(lock: IO) -> bool:
    """Whether another process holds an exclusive lock on a file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False
