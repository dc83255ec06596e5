"""Runs the launcher's commands until they end: output, lifelines, signals, deadlines. One loop, which never blocks.

Every process has a session of its own, so that Ctrl-C reaches the launcher alone, which then gives the order to all
hosts at once. The order goes down each guard's lifeline (standard input, through ssh), and closing the lifeline is an
order too; so hosts end their ranks whether the launcher asks, dies, or is cut off. When a process fails, or a rank and
no restart is left, the others get SETTLE_S to report what they saw, then the order to end. What does not end is killed:
ranks by their guards after the grace, then agents, then guards and ssh from here.

While nobody reads the launcher's own output and its queue is full, the processes' output is left in their pipes, so
that ranks block when they print, as at any pipe; all else continues. Once the run is ended from outside, their output
is read again, so that they can end, and what finds the queue full is dropped.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastsample_dist.launch.commands import Command
from fastsample_dist.launch.screen import RankFailure, Screen
from fastsample_dist.launch.writer import Writer

BEAT_S = 1.0
TICK_S = 0.25
SETTLE_S = 1.0
GUARD_EXTRA_S = 2.0  # after the grace: the guard kills the agent (1 s) and sweeps
KILL_EXTRA_S = 1.5  # from the order to kill until this process kills its own children
DRAIN_S = 1.0
READ_BYTES = 1 << 16
INTERRUPTED, TERMINATED, TIMED_OUT = 130, 143, 124


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """Bounds of a run.

    Attributes:
      grace_s: seconds between asking ranks to end and killing them.
      timeout_s: seconds until the run is ended; None: never.
      ends_with_rank: a failing rank ends the run (no restart is left to the agent).
    """

    grace_s: float = 5.0
    timeout_s: float | None = None
    ends_with_rank: bool = True


@dataclass(eq=False)
class LaunchedCommand:
    """A command that was started.

    Attributes:
      status: exit status as a shell gives it; None while it runs.
      ended_s: seconds from the run's start to its end.
      killed: it did not follow the order to end in time; on a remote host something may be left.
    """

    command: Command
    process: subprocess.Popen[bytes]
    status: int | None = None
    ended_s: float | None = None
    killed: bool = False
    rests: dict[int, bytes] = field(default_factory=dict)  # by descriptor: a line that has not ended
    last_error: str = ""


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
      status: exit status for the launcher.
      reason: what ended it from outside ("interrupted", "terminated", "did not end within 5 s"), or None.
      failure: the rank that failed first, if one did.
      failed_command: the process that failed first, if one did.
      all_launched: all processes.
      seconds: from the start to the end.
    """

    status: int
    reason: str | None
    failure: RankFailure | None
    failed_command: LaunchedCommand | None
    all_launched: list[LaunchedCommand]
    seconds: float


class Runner:
    """Starts commands and sees them to their end.

    Args:
      commands: started at the same time.
      limits: bounds of the run.
      screen: takes their output.
      writers: where the screen writes.
    """

    def __init__(
        self, commands: Sequence[Command], limits: RunLimits, screen: Screen, writers: Sequence[Writer]
    ) -> None:
        self._commands, self._limits, self._screen, self._writers = commands, limits, screen, writers
        self._launched: list[LaunchedCommand] = []
        self._selector = selectors.DefaultSelector()
        self._start_s = time.monotonic()
        self._beat_s = self._start_s
        self._stop_at: float | None = None  # a failure was seen; the order to end follows then
        self._stopped_at: float | None = None
        self._killed_at: float | None = None
        self._status, self._reason = 0, None
        self._failed_command: LaunchedCommand | None = None

    def run(self) -> RunResult:
        """Run everything to its end; SIGINT, SIGTERM and SIGHUP end it.

        Returns:
          RunResult; status 130 after SIGINT, 143 after SIGTERM or SIGHUP, 124 after the timeout.
        Raises:
          RuntimeError: a program cannot be started.
        """
        with _signals_to_pipe() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                for command in self._commands:
                    self._start(command)
                while any(launched.status is None for launched in self._launched):
                    self._turn(signals)
                self._drain()
                if self._reason is None and self._failed_command is None and not self._screen.failures:
                    self._take_signals(_numbers(signals))  # one that came since ends what would follow
            finally:
                self._leave()
                self._selector.close()
        return self._result()

    def _result(self) -> RunResult:
        status, failure = self._status, None
        if self._reason is None and (self._failed_command is not None or self._screen.failures):
            failure = self._screen.first_failure()
            status = failure.status if failure is not None else self._failed_command.status
        seconds = time.monotonic() - self._start_s
        return RunResult(status, self._reason, failure, self._failed_command, self._launched, seconds)

    def _start(self, command: Command) -> None:
        stdin = subprocess.PIPE if command.guarded else subprocess.DEVNULL
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command.argv, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise RuntimeError(f"{command.argv[0]} cannot be started ({error.strerror}); install it.") from error
        launched = LaunchedCommand(command, process)
        self._launched.append(launched)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        for stream in (process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
            launched.rests[stream.fileno()] = b""
            self._selector.register(stream, selectors.EVENT_READ, launched)

    def _turn(self, signals: int) -> None:
        """Wait for something to happen, about TICK_S at most, and act on it."""
        has_room = all(writer.wait_for_room(TICK_S) for writer in self._writers)
        ready = [key for key, _ in self._selector.select(TICK_S if has_room else 0.0)]
        if any(key.fileobj == signals for key in ready):
            self._take_signals(_numbers(signals))
        if has_room:
            self._read([key for key in ready if key.data is not None])
        for launched in self._launched:
            if launched.status is None and launched.process.poll() is not None:
                self._take_end(launched)
        if self._limits.ends_with_rank and self._stop_at is None and self._screen.failures:
            self._stop_at = time.monotonic() + SETTLE_S
        self._look_at_clock()
        self._screen.tick()

    def _read(self, ready: list[selectors.SelectorKey]) -> None:
        """Take what there is; standard output first, which a rank's last words on standard error come after."""
        errors = [key for key in ready if key.fileobj is key.data.process.stderr]
        if errors:
            every = [key for key in self._selector.get_map().values() if key.data is not None]
            ready = [key for key in every if key.fileobj is key.data.process.stdout] + errors
        for key in ready:
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(key.fd, READ_BYTES)
                if not chunk:
                    self._selector.unregister(key.fileobj)
                self._take_output(key.data, key.fd, chunk)

    def _take_output(self, launched: LaunchedCommand, descriptor: int, chunk: bytes) -> None:
        is_error = descriptor == launched.process.stderr.fileno()
        *lines, rest = (launched.rests[descriptor] + chunk).split(b"\n")
        if not chunk and rest:
            lines, rest = [rest], b""
        launched.rests[descriptor] = rest
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if is_error and any(character.isalnum() for character in text):
                launched.last_error = text
            self._screen.take(launched.command.host, text, is_error)

    def _take_end(self, launched: LaunchedCommand) -> None:
        code = launched.process.returncode
        launched.status = 128 - code if code < 0 else code
        launched.ended_s = time.monotonic() - self._start_s
        if launched.status != 0 and self._stopped_at is None and self._failed_command is None:
            self._failed_command = launched
            self._stop_at = self._stop_at or time.monotonic() + SETTLE_S

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGINT and self._reason == "interrupted":
                self._screen.say("fastsample-launch: killing all ranks")
                self._kill_everywhere()
            elif number == signal.SIGINT:
                self._screen.say("fastsample-launch: interrupted; ending all ranks (once more kills them)")
                self._stop("interrupted", INTERRUPTED, b"i")
            elif number in (signal.SIGTERM, signal.SIGHUP):
                self._stop("terminated", TERMINATED, b"t")

    def _stop(self, reason: str | None, status: int, order: bytes) -> None:
        if self._reason is None and reason is not None:
            self._reason, self._status = reason, status
            for writer in self._writers:
                writer.hurry()
        self._stopped_at = self._stopped_at or time.monotonic()
        self._screen.ending = True
        self._order(order)

    def _order(self, order: bytes) -> None:
        for launched in self._launched:
            if launched.status is not None:
                continue
            if launched.process.stdin is None:
                if order != b"\n":
                    launched.process.terminate()
            else:
                with contextlib.suppress(BrokenPipeError, BlockingIOError):
                    os.write(launched.process.stdin.fileno(), order)

    def _look_at_clock(self) -> None:
        now, limits = time.monotonic(), self._limits
        if now - self._beat_s >= BEAT_S:
            self._beat_s = now
            self._order(b"\n")
        if limits.timeout_s is not None and now - self._start_s > limits.timeout_s and self._stopped_at is None:
            self._stop(f"did not end within {limits.timeout_s:g} s", TIMED_OUT, b"t")
        if self._stop_at is not None and now >= self._stop_at and self._stopped_at is None:
            self._stop(None, 0, b"t")
        if self._killed_at is not None:
            if now >= self._killed_at + KILL_EXTRA_S:
                self._kill()
        elif self._stopped_at is not None and now >= self._stopped_at + limits.grace_s + GUARD_EXTRA_S:
            self._kill_everywhere()

    def _kill_everywhere(self) -> None:
        self._killed_at = self._killed_at or time.monotonic()
        self._order(b"k")

    def _drain(self) -> None:
        """Take the output that was written before the end."""
        end = time.monotonic() + DRAIN_S
        while len(self._selector.get_map()) > 1 and time.monotonic() < end:
            self._read([key for key, _ in self._selector.select(0.05) if key.data is not None])
        for launched in self._launched:
            for descriptor in launched.rests:
                self._take_output(launched, descriptor, b"")

    def _leave(self) -> None:
        """End what still runs, because this process cannot continue (its output was closed, a program was missing)."""
        self._order(b"k")
        end = time.monotonic() + KILL_EXTRA_S
        for launched in self._launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launched.process.wait(max(0.0, end - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        """Kill what is left of this process's own children; their guards' lifelines close with it."""
        for launched in self._launched:
            if launched.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    launched.process.stdin.close()
            if launched.process.poll() is None:
                launched.killed = True
                launched.process.kill()
                launched.process.wait()


def _numbers(signals: int) -> bytes:
    """The numbers of the signals that have arrived."""
    try:
        return os.read(signals, 256)
    except BlockingIOError:
        return b""


@contextmanager
def _signals_to_pipe() -> Iterator[int]:
    """A descriptor from which arriving signal numbers are read; inside the block they do nothing else."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    os.set_blocking(into, False)
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    descriptor = signal.set_wakeup_fd(into, warn_on_full_buffer=False)  # first: else one that comes now is lost
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield out
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(out)
        os.close(into)
