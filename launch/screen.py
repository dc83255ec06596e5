"""What of the ranks' output is shown, when, and how: prefixes, colours, and whose traceback comes last.

A rank's guard writes "[rank] line"; here that becomes "[host:rank] line" where there are several hosts. From a line
that begins a traceback on, a rank's standard error is held back: for HOLD_S when the rank lives on, until the end of
the run when it does not. So the run can end with the traceback of the rank that failed first, shown once. A rank that
failed because another one did (its error reports a broken connection) is not taken for the first.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from fastsample_dist.launch.guard import NOTE
from fastsample_dist.launch.writer import Writer

TRACEBACK = "Traceback (most recent call last):"
_BOX = re.compile(r"-{60,}")  # mpirun's messages are between such lines
_OPENING = re.compile(r"Traceback \(most recent call last\):|rank \d+ ends the run:")  # the latter of DistContext, MPI
HOLD_S = 4.0
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of SGR; red is for errors
RED = 31
_RANK_LINE = re.compile(r"[\0 ]?\[(\d+)\] (?:\[rank\1\]: ?)?(.*)")  # torch prefixes uncaught tracebacks once more
_END_NOTE = re.compile(rf"{NOTE} rank \d+ (ended with exit status (\d+)|was killed by (SIG[A-Z0-9]+))")
_INTERRUPTED = re.compile(r"(fastsample-[a-z]+: )?(rank \d+ was )?interrupted\.")  # how our ranks end at Ctrl-C
_RESTART_NOTE = re.compile(rf"{NOTE} rank \d+ was started again")
_FOLLOWING_ERROR = re.compile(
    r"peer ended|connection broke|[Cc]onnection (was )?(reset|closed|refused|lost)|was lost|[Bb]roken pipe|"
    r"see its error"
)


@dataclass
class RankFailure:
    """How a rank failed.

    Attributes:
      rank: its number.
      host: where it ran.
      how: "ended with exit status 1", "was killed by SIGKILL"; "raised" when its guard could not report it.
      status: exit status as a shell gives it.
      lines: its standard error from the traceback on, not shown yet.
    """

    rank: int
    host: str
    how: str = "raised"
    status: int = 1
    lines: list[str] = field(default_factory=list)

    @property
    def follows_another(self) -> bool:
        """The error reports a connection that broke: another rank failed first."""
        return bool(self.lines) and bool(_FOLLOWING_ERROR.search("\n".join(self.lines[-3:])))


@dataclass
class _Held:
    since: float
    lines: list[str]


class Screen:
    """Takes the lines of all processes and writes them.

    Args:
      out: where standard output goes.
      err: where standard error goes.
      hosts: host of every rank, in their order; one distinct host is not shown.
      colour: prefixes are coloured by rank.
      verbose: output of agents is never left out.
      clock: seconds, for tests.
    """

    def __init__(
        self,
        out: Writer | TextIO,
        err: Writer | TextIO,
        hosts: Sequence[str],
        *,
        colour: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._err, self._hosts = out, err, list(hosts)
        self.several_hosts = len(set(hosts)) > 1
        self._colour, self._verbose, self._clock = colour, verbose, clock
        self._held: dict[int, _Held] = {}
        self._agents: list[tuple[str, str]] = []  # output of agents after the first sign of a failure
        self.failures: list[RankFailure] = []
        self.ending = False  # the launcher gave the order to end: what agents print about it does not matter

    def take(self, host: str, line: str, is_error: bool) -> None:
        """Show or hold one line without its end; `host` is that of the process it came from."""
        match = _RANK_LINE.match(line)
        if match is None or int(match[1]) >= len(self._hosts):
            self._take_agent_line(host, line, is_error)
            return
        rank, text = int(match[1]), match[2]
        if not is_error:
            self._show(rank, text, False)
        elif _RESTART_NOTE.match(text):
            self._release_failures()
            self._show(rank, text, True)
        elif note := _END_NOTE.match(text):
            self._add_failure(rank, note[1], int(note[2]) if note[2] else signal_status(note[3]))
        elif self.ending and not self._verbose and _INTERRUPTED.fullmatch(text):
            return  # the launcher has reported it for all
        elif rank in self._held:
            self._held[rank].lines.append(text)
        elif _OPENING.fullmatch(text):
            self._held[rank] = _Held(self._clock(), [text])
        else:
            self._show(rank, text, True)

    def say(self, text: str, *, is_error: bool = False) -> None:
        """A line of the launcher itself, on standard error."""
        self._write(self._err, "", text if not (self._colour and is_error) else f"\033[{RED}m{text}\033[0m")

    def tick(self) -> None:
        """Show the tracebacks of ranks that live on."""
        now = self._clock()
        for rank, held in list(self._held.items()):
            if now - held.since > HOLD_S and not (self._agents or self.ending):
                self._show_all(rank, self._held.pop(rank).lines)

    def first_failure(self) -> RankFailure | None:
        """The rank that failed by itself before any other, so far; its lines are not shown yet."""
        for rank, held in self._held.items():  # under MPI a rank that aborts the run takes its guard along
            if all(failure.rank != rank for failure in self.failures):
                self.failures.append(RankFailure(rank, self._hosts[rank], lines=held.lines))
        self._held.clear()
        own = [failure for failure in self.failures if not failure.follows_another]
        return next(iter(own or self.failures), None)

    def finish(self, summary: str | None, first: RankFailure | None, *, failed: bool) -> None:
        """Show what is still held, the first failing rank's traceback last.

        Args:
          summary: the launcher's line about the end; comes before that traceback.
          first: the rank that failed first.
          failed: something failed by itself; without, the run was ended from outside or succeeded, and tracebacks
            of being ended are left out.
        """
        for failure in self.failures:
            if failure is not first:
                self._show_all(failure.rank, failure.lines)
        for rank, held in self._held.items():
            of_being_ended = any(line.startswith("KeyboardInterrupt") for line in held.lines)
            if self._verbose or not of_being_ended:
                self._show_all(rank, held.lines)
        if first is None and (failed or not self.ending):
            for host, line in self._agents:
                self._show_agent(host, line, True)
        if summary is not None:
            self.say(summary, is_error=failed)
        if first is not None:
            self._show_all(first.rank, first.lines)

    def _take_agent_line(self, host: str, line: str, is_error: bool) -> None:
        if self._verbose or not is_error:
            self._show_agent(host, line, is_error)
        elif self.ending:
            return
        elif self._agents or self.failures or self._held or line == TRACEBACK or _BOX.fullmatch(line):
            self._agents.append((host, line))
        else:
            self._show_agent(host, line, is_error)

    def _add_failure(self, rank: int, how: str, status: int) -> None:
        held = self._held.pop(rank, None)
        self.failures.append(RankFailure(rank, self._hosts[rank], how, status, held.lines if held else []))

    def _release_failures(self) -> None:
        """A new start: what went before is no longer the end of the run."""
        for failure in self.failures:
            self._show_all(failure.rank, failure.lines)
            self._show(failure.rank, f"{NOTE} rank {failure.rank} {failure.how}", True)
        self.failures.clear()
        for rank, held in self._held.items():
            self._show_all(rank, held.lines)
        self._held.clear()
        self._agents.clear()

    def _show_all(self, rank: int, lines: Sequence[str]) -> None:
        for line in lines:
            self._show(rank, line, True)

    def _show(self, rank: int, text: str, is_error: bool) -> None:
        place = f"[{self._hosts[rank]}:{rank}]" if self.several_hosts else f"[{rank}]"
        if self._colour:
            place = f"\033[{COLOURS[rank % len(COLOURS)]}m{place}\033[0m"
        self._write(self._err if is_error else self._out, f"{place} ", text)

    def _show_agent(self, host: str, line: str, is_error: bool) -> None:
        self._write(self._err if is_error else self._out, f"[{host}] ", line)

    def _write(self, target: Writer | TextIO, prefix: str, text: str) -> None:
        target.write(f"{prefix}{text}\n")


def signal_status(name: str) -> int:
    """The exit status of a process that this signal ended, as a shell gives it."""
    return 128 + signal.Signals[name]
