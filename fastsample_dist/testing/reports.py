"""The folder of a run: what its ranks are to call, what they report, and the lock that tells them to end.

    lock                      held by the process that started the run, for as long as anybody waits for it
    call                      pickled (sys.path, pickled `Call`), read by ranks that are commands
    reports/pid-<rank>        process id, written when the rank starts
    reports/returned-<rank>   what the call returned
    reports/left-<rank>       the rank has left its context
    reports/failed-<rank>     `Failure`, written before the other ranks can fail because of it

Everything else in it belongs to the call. A rank that finds the lock free knows that nobody waits any more: it removes
the folder and ends.
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
from typing import IO, Any

from fastsample_dist.files import complete_file

LOCK, CALL, REPORTS = "lock", "call", "reports"
PID, RETURNED, LEFT, FAILED = "pid", "returned", "left", "failed"
LOCK_POLL_S = 0.5
REFUSALS = (ValueError, OSError, ImportError)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What every rank does.

    Attributes:
      function: called with the rank's context and the folder of the run.
      timeout_s: for joining, and of one collective.
      threads: intra-op threads of a rank.
      verify_exchanges: see `Communicator.verify_exchanges`; None: as it is.
    """

    function: Callable
    timeout_s: float
    threads: int = 1
    verify_exchanges: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a rank failed.

    Attributes:
      time_s: when.
      is_refusal: its input was refused; not a fault of the program.
      text: the error in one line.
      traceback: of all its lines.
    """

    time_s: float
    is_refusal: bool
    text: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that is being handled."""
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(
            time_s=time.time(), is_refusal=isinstance(error, REFUSALS), text=text, traceback=traceback.format_exc()
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a rank has reported.

    Attributes:
      value: what the call returned.
      returned: it has.
      left: it has left its context, too.
      failure: None if there was none.
    """

    value: Any = None
    returned: bool = False
    left: bool = False
    failure: Failure | None = None


def read_outcomes(folder: Path, world_size: int) -> list[Outcome]:
    """What the ranks of a run have reported so far, by rank."""
    outcomes = []
    for rank in range(world_size):
        found = {}
        for kind in (RETURNED, LEFT, FAILED):
            file = folder / REPORTS / f"{kind}-{rank}"
            if file.exists():
                found[kind] = pickle.loads(file.read_bytes())
        outcomes.append(
            Outcome(
                value=found.get(RETURNED), returned=RETURNED in found, left=LEFT in found, failure=found.get(FAILED)
            )
        )
    return outcomes


def first_failure(outcomes: list[Outcome]) -> tuple[int, Failure] | None:
    """(rank, failure) of the rank that failed first; None when none has."""
    failed = [(rank, outcome.failure) for rank, outcome in enumerate(outcomes) if outcome.failure is not None]
    return min(failed, key=lambda entry: entry[1].time_s, default=None)


def has_failure(folder: Path) -> bool:
    """Whether a rank has reported a failure."""
    return any((folder / REPORTS).glob(f"{FAILED}-*"))


def rank_pids(folder: Path) -> dict[int, int]:
    """Process id by rank, of the ranks that have started."""
    return {int(path.name.split("-")[1]): int(path.read_text()) for path in (folder / REPORTS).glob(f"{PID}-*")}


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
    """How a rank reports.

    Args:
      folder: of the run.
      rank: its number.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank, self._has_failed = folder, rank, False
        self._write(PID, str(os.getpid()).encode())
        threading.Thread(target=self._end_with_starter, daemon=True).start()

    def returned(self, value: object) -> None:
        """The call has returned a value.

        Raises:
          TypeError, AttributeError, pickle.PicklingError: it cannot be sent.
        """
        self._write(RETURNED, dump(value))

    def left(self) -> None:
        """The rank has left its context."""
        self._write(LEFT, dump(None))

    def failed(self, error: BaseException) -> None:
        """The error that is being handled; only the first one counts."""
        if not self._has_failed:
            self._write(FAILED, dump(Failure.of(error)))
        self._has_failed = True

    def _write(self, kind: str, content: bytes) -> None:
        with complete_file(self._folder / REPORTS / f"{kind}-{self._rank}") as partial:
            partial.write_bytes(content)

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
