"""Where the commands begin: nothing heavy is loaded before Ctrl-C and SIGTERM are answered in one line.

Loading torch takes seconds; a Ctrl-C then would print the traceback of whatever was being imported, or become another
error inside of it. So until a command is loaded Ctrl-C ends the process at once: nothing has begun. So does SIGTERM,
which is the command's own matter from then on. The first Ctrl-C then raises KeyboardInterrupt, for which every command
prints one line. A launcher passes on the Ctrl-C that the terminal has already sent to its ranks, so one that follows
within REPEAT_S is the same; a later one ends the process.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from fastsample_dist.interrupts import raise_dropped_interrupts

INTERRUPTED = 130  # exit status, as a shell reports it
REPEAT_S = 2.0
MODULES = {
    "fastsample-partition": "fastsample_dist.partition.cli",
    "fastsample-launch": "fastsample_dist.launch.cli",
    "fastsample-train": "fastsample_dist.train.cli",
    "fastsample-doctor": "fastsample_dist.doctor.cli",
    "fastsample-verify": "fastsample_dist.verify.cli",
    "fastsample-bench": "fastsample_dist.bench.cli",
}


class _CtrlC:
    """The handler of SIGINT and, while loading, of SIGTERM.

    Attributes:
      at_once: end the process; while loading, and while the interpreter ends.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._noted_s: float | None = None
        self.at_once = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._noted_s is not None and now_s - self._noted_s <= REPEAT_S:
            return
        first, self._noted_s = self._noted_s is None, now_s
        if first and not self.at_once:
            raise KeyboardInterrupt
        if first or not self.at_once:  # else the command has printed it
            self.print_line()
        os._exit(INTERRUPTED)

    def forget(self) -> None:
        """What was raised has been dropped: the next signal is the first."""
        self._noted_s = None

    def print_line(self) -> None:
        """Report the interrupt."""
        os.write(2, f"{self._program}: interrupted.\n".encode())


def run(program: str) -> int:
    """Load a command and run it.

    Either signal keeps its effect where it is ignored (as SIGINT in the background of a shell) or has a handler of the
    caller's. Otherwise the handler of SIGINT stays, for the end of the interpreter: call this last. What would be
    printed where standard output or standard error is closed (`>&-`) is dropped; what standard output cannot encode is
    shown as standard error shows it.

    Args:
      program: one of MODULES.
    Returns:
      Exit status of the command; 130 when it was interrupted.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (for the rest of the process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if threading.current_thread() is not threading.main_thread():
        return importlib.import_module(MODULES[program]).main()
    handler = _CtrlC(program)
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, handler)
        raise_dropped_interrupts(handler.forget)
    ends = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGTERM, handler)
    main = importlib.import_module(MODULES[program]).main
    if ends:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not usual:
        return main()
    handler.at_once = False
    try:
        return main()
    except KeyboardInterrupt:  # outside of what the command handles
        handler.print_line()
        return INTERRUPTED
    finally:
        handler.at_once = True


def partition() -> int:
    """The command fastsample-partition."""
    return run("fastsample-partition")


def launch() -> int:
    """The command fastsample-launch."""
    return run("fastsample-launch")


def train() -> int:
    """The command fastsample-train."""
    return run("fastsample-train")


def doctor() -> int:
    """The command fastsample-doctor."""
    return run("fastsample-doctor")


def verify() -> int:
    """The command fastsample-verify."""
    return run("fastsample-verify")


def bench() -> int:
    """The command fastsample-bench."""
    return run("fastsample-bench")


if __name__ == "__main__":
    sys.exit(run(sys.argv.pop(1)))
