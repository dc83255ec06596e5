"""Starts processes, watches them, and ends them all: at a failure, a deadline, Ctrl-C, or when this process is killed.

Each process leads a process group of its own, so Ctrl-C reaches this process only, which then ends whole groups. A
command also gets SIGTERM from the kernel when this process is gone (follow.py); ranks notice it by the lock on their
folder (reports.py). Standard library only: the benchmarks of other libraries use it in environments without this one's
dependencies.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

POLL_S = 0.05
COMMAND_END_S = 10.0  # a command's time to end what it started
TAIL_LINES = 8
FOLLOW = (sys.executable, "-I", "-S", str(Path(__file__).with_name("follow.py")))


Handle = subprocess.Popen | BaseProcess


def status_of(handle: Handle) -> int | None:
    """Exit status, negative after a signal; None while the process runs."""
    return handle.exitcode if isinstance(handle, BaseProcess) else handle.poll()


def wait_for(handle: Handle, timeout_s: float | None = None) -> None:
    """Wait for the end of a process, at most `timeout_s`."""
    with suppress(subprocess.TimeoutExpired):
        handle.join(timeout_s) if isinstance(handle, BaseProcess) else handle.wait(timeout_s)


class Supervisor:
    """Processes by name, all of which end with the `with` block.

    Args:
      end_s: between asking them to end (SIGTERM) and killing them; 0 kills at once.
    """

    def __init__(self, end_s: float = 0.0) -> None:
        self._end_s = end_s
        self._handles: dict[str, Handle] = {}
        self._logs: dict[str, Path] = {}

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(
        self, name: str, command: Sequence[str], *, log: Path | None = None, follows: bool = True, **options: Any
    ) -> subprocess.Popen:
        """Start a command.

        Args:
          name: for statuses and messages.
          command: its words.
          log: file for both its outputs; None: as `options` say, else this process's own.
          follows: it gets SIGTERM when this process ends, however that happens.
          **options: of subprocess.Popen.
        """
        words = [*FOLLOW, str(os.getpid()), *command] if follows else list(command)
        options = {"stdin": subprocess.DEVNULL, **options, "start_new_session": True}
        with nullcontext() if log is None else log.open("wb") as output:
            if output is not None:
                self._logs[name] = log
                options |= {"stdout": output, "stderr": subprocess.STDOUT}
            self._handles[name] = process = subprocess.Popen(words, **options)
        return process

    def adopt(self, name: str, process: BaseProcess) -> None:
        """Take over a started process of multiprocessing that leads, or is about to lead, its own group."""
        self._handles[name] = process

    def statuses(self) -> dict[str, int | None]:
        """Exit status by name; None while a process runs, negative after a signal."""
        return {name: status_of(handle) for name, handle in self._handles.items()}

    def pids(self) -> dict[str, int]:
        """Process id by name."""
        return {name: handle.pid for name, handle in self._handles.items()}

    def tail(self, name: str, lines: int = TAIL_LINES) -> list[str]:
        """The last lines of a process's log."""
        return self._logs[name].read_text(errors="replace").splitlines()[-lines:]

    def watch(
        self, deadline_s: float, grace_s: float = math.inf, has_failed: Callable[[], bool] = lambda: False
    ) -> dict[str, int | None]:
        """Wait until all processes have ended, or time is up.

        Args:
          deadline_s: seconds from now.
          grace_s: for the others, from the first failure on.
          has_failed: whether something has failed besides a process that ended with another status than 0.
        Returns:
          `statuses`.
        """
        end_s = time.monotonic() + deadline_s
        is_failing = False
        while None in (statuses := self.statuses()).values() and time.monotonic() < end_s:
            if not is_failing and (any(statuses.values()) or has_failed()):
                is_failing, end_s = True, min(end_s, time.monotonic() + grace_s)
            self._wait(min(POLL_S, end_s - time.monotonic()))
        return statuses

    def _wait(self, timeout_s: float) -> None:
        """Wait a moment; returns at once when a process of multiprocessing ends."""
        handles = [handle for handle in self._handles.values() if status_of(handle) is None]
        sentinels = [handle.sentinel for handle in handles if isinstance(handle, BaseProcess)]
        if sentinels:
            connection.wait(sentinels, max(0.0, timeout_s))
        else:
            time.sleep(max(0.0, timeout_s))

    def end(self) -> None:
        """End every process that runs and all that is left of their groups."""
        running = [handle for handle in self._handles.values() if status_of(handle) is None]
        try:
            for handle in running if self._end_s else ():
                handle.terminate()
            end_s = time.monotonic() + self._end_s
            for handle in running:
                wait_for(handle, max(0.0, end_s - time.monotonic()))
        finally:
            for handle in self._handles.values():
                if status_of(handle) is None:
                    handle.kill()  # it may not lead its group yet
                kill_group(handle.pid)
            for handle in self._handles.values():
                wait_for(handle)


def run_process(
    command: Sequence[str], *, deadline_s: float = math.inf, captured: bool = True, **options: Any
) -> subprocess.CompletedProcess:
    """Run a command to its end, like subprocess.run; nothing that it started is left when this process is interrupted.

    Args:
      command: its words.
      deadline_s: seconds until it is ended.
      captured: keep its output; else it goes where this process's own goes.
      **options: of subprocess.Popen, such as env and cwd.
    Returns:
      Its status and, where captured, both its outputs as text.
    Raises:
      TimeoutError: it had not ended after `deadline_s`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        streams = {"stdout": out, "stderr": error} if captured else {}
        with Supervisor(COMMAND_END_S) as supervisor:
            supervisor.start("command", command, **streams, **options)
            status = supervisor.watch(deadline_s)["command"]
        if status is None:
            raise TimeoutError(f"{' '.join(command)} had not ended after {deadline_s:g} s; it was ended.")
        return subprocess.CompletedProcess(command, status, *map(_text, (out, error)))


def run_tool(*command: str) -> None:
    """Run a program of the system that ends soon.

    Raises:
      RuntimeError: it fails; with the command and the last line it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {last_line(done)}")


def last_line(done: subprocess.CompletedProcess) -> str:
    """The last line that a command wrote, of its errors where there are any."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else "no message"


def kill_group(leader: int | None) -> None:
    """Kill the process group of this leader, if anything is left of it; None: it never started."""
    with suppress(ProcessLookupError):
        if leader is not None:
            os.killpg(leader, signal.SIGKILL)


def _text(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
