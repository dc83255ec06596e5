"""The processes of one measurement: starts them, collects their events, samples their memory, waits for their end.

DistDGL waits forever when one of its processes dies. Here every process is watched: the first that ends
early ends the measurement with its name, its exit code and the end of its log.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).resolve().parents[2]))  # DGL's environment need not have fastsample_dist
from fastsample_dist.testing.supervisor import Supervisor
from fastsample_dist.testing.supervisor import run_tool as run_tool

POLL_S = 0.25
EXIT_GRACE_S = 30.0
TAIL_LINES = 12
PROGRESS = {"ready": "warming up", "warm": "timing", "memory_begin": "sampling memory"}


@dataclass
class EventPipe:
    """The reading end of a trainer's event pipe: JSON objects, one a line."""

    name: str
    fd: int
    rest: bytes = b""
    done: bool = False

    def read(self) -> list[dict] | None:
        """Return the events of one read, None at the end of the pipe. Blocks unless the pipe is readable."""
        chunk = os.read(self.fd, 1 << 16)
        if not chunk:
            return None
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def host_cpu_s() -> float:
    """Return the CPU seconds this host has spent on anything, interrupts included, since it started."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


@dataclass
class ProcessGroup:
    """Servers and trainers of one measurement; they end with the `with` block.

    logs: directory of their output, one file per process; environment: what all of them get; started_s: the
    monotonic clock at the first start; events: what trainers reported; pss_samples: bytes, summed over all
    processes, one entry per sample taken between the trainers' memory_begin and memory_end; clocks: wall,
    host CPU and own CPU seconds when the timed epochs began (warm) and ended (memory_begin).
    """

    logs: Path
    environment: dict[str, str]
    started_s: float = 0.0
    events: list[dict] = field(default_factory=list)
    pss_samples: list[int] = field(default_factory=list)
    clocks: dict[str, dict[str, float]] = field(default_factory=dict)
    _supervisor: Supervisor = field(default_factory=Supervisor)
    _pipes: dict[str, EventPipe] = field(default_factory=dict)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.end()

    def start_clock(self) -> None:
        """Take the time from which start-up counts."""
        self.started_s = time.monotonic()

    def start(
        self, name: str, command: list[str], variables: dict[str, str], inherited_fds: tuple[int, ...] = ()
    ) -> None:
        """Start a process; its output goes to logs/<name>.log."""
        log, environ = self.logs / f"{name}.log", self.environment | variables
        self._supervisor.start(name, command, log=log, env=environ, pass_fds=inherited_fds)

    def start_trainer(self, name: str, command: list[str], variables: dict[str, str]) -> None:
        """Start a process that writes events to the pipe it is given as --events-fd."""
        reader, writer = os.pipe()
        self.start(name, [*command, "--events-fd", str(writer)], variables, inherited_fds=(writer,))
        os.close(writer)
        self._pipes[name] = EventPipe(name, reader)

    def run(self, name: str, command: list[str]) -> None:
        """Run a process to its end.

        Raises:
          RuntimeError: it fails.
        """
        with ProcessGroup(self.logs, self.environment) as alone:
            alone.start(name, command, {})
            status = alone._supervisor.watch(math.inf)[name]
            if status != 0:
                raise alone._failure(name, status)

    def collect_events(self) -> None:
        """Collect events until every trainer has reported "done".

        Raises:
          RuntimeError: a process ends before that.
        """
        with selectors.DefaultSelector() as selector:
            for pipe in self._pipes.values():
                selector.register(pipe.fd, selectors.EVENT_READ, pipe)
            while not self._all_done():
                # Polled before the pipes are read: what a process wrote before it ended is then among the events.
                ended = self._supervisor.statuses()
                for key, _ in selector.select(POLL_S):
                    events = key.data.read()
                    if events is None:
                        selector.unregister(key.fd)
                    else:
                        self._receive(key.data, events)
                self._check_alive(ended)
                self._sample()

    def wait_for_exit(self) -> dict[str, int | None]:
        """Return every process's exit code; None for one that still runs after EXIT_GRACE_S."""
        return self._supervisor.watch(EXIT_GRACE_S)

    def first_event(self, name: str) -> dict:
        """Return the first event of this name that a trainer has reported."""
        return next(event for event in self.events if event["event"] == name)

    def _receive(self, pipe: EventPipe, events: list[dict]) -> None:
        for event in events:
            self.events.append(event)
            pipe.done = pipe.done or event["event"] == "done"
            if event["event"] == "epoch" and event["rank"] == 0:
                print(f"epoch {event['epoch'] + 1}: {event['epoch_s']:.2f} s", flush=True)
            elif event["event"] in PROGRESS and event["rank"] == 0:
                print(PROGRESS[event["event"]], flush=True)

    def _sample(self) -> None:
        """Read the clocks when all trainers have begun a phase, and memory throughout the last one."""
        try:
            for phase in ("warm", "memory_begin"):
                if self._reported(phase) and phase not in self.clocks:
                    self.clocks[phase] = self._read_clocks()
            ended = self._reported("memory_end", at_least=1) and len(self.pss_samples) > 0
            if self._reported("memory_begin") and not ended:
                self.pss_samples.append(self._summed_pss())
        except psutil.NoSuchProcess:
            # It has ended since the poll; the next round says whether that was too early.
            return

    def _reported(self, name: str, at_least: int | None = None) -> bool:
        """Whether all trainers, or `at_least` some of them, have reported an event."""
        expected = len(self._pipes) if at_least is None else at_least
        return sum(event["event"] == name for event in self.events) >= expected

    def _all_done(self) -> bool:
        return all(pipe.done for pipe in self._pipes.values())

    def _check_alive(self, ended: dict[str, int | None]) -> None:
        """Raise for a trainer that has ended before it was done, or a server before all trainers were."""
        if self._all_done():
            return
        for name, status in ended.items():
            done = name in self._pipes and self._pipes[name].done
            if status is not None and not (done and status == 0):
                raise self._failure(name, status)

    def _failure(self, name: str, status: int) -> RuntimeError:
        end = "\n".join(self._supervisor.tail(name, TAIL_LINES))
        return RuntimeError(f"{name} ended early with exit code {status}; end of {self.logs / name}.log:\n{end}")

    def _read_clocks(self) -> dict[str, float]:
        own = 0.0
        for pid in self._supervisor.pids().values():
            times = psutil.Process(pid).cpu_times()
            own += times.user + times.system
        return {"wall_s": time.monotonic(), "host_s": host_cpu_s(), "own_s": own}

    def _summed_pss(self) -> int:
        return sum(psutil.Process(pid).memory_full_info().pss for pid in self._supervisor.pids().values())
