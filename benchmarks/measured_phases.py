"""Phases of long work, each a process of its own whose time and memory are measured; finished ones are not repeated.

The largest process is what the kernel counted for it (VmHWM, mapped pages in it), read while it runs, as processes may
have children of their own; "together" is the largest sum of PSS, in which pages that several have mapped count once.
Disk is the most that the work directory held.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fastsample_dist.files import write_json
from fastsample_dist.testing.supervisor import COMMAND_END_S, Supervisor

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_S = 0.2
STOP_S = 0.05  # between looks whether a phase is to end early
SLOW_SAMPLES = 10  # PSS and disk are read at every tenth sample: the kernel walks all pages for PSS


@dataclass(kw_only=True)
class Phase:
    """What a phase took.

    Attributes:
      name: of the phase.
      command: its words.
      seconds: from start to end; of a phase that was killed and started again, of its last process alone.
      peak_bytes: of its largest process.
      together_bytes: of all its processes.
      disk_bytes: of the work directory.
      predicted_bytes: by --plan; None: nothing predicts it.
      figures: more of its own.
    """

    name: str
    command: list[str]
    seconds: float
    peak_bytes: int
    together_bytes: int
    disk_bytes: int
    predicted_bytes: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


class PhaseError(RuntimeError):
    """A phase's process failed; the text is the last line of its output."""


class Watcher(threading.Thread):
    """Memory of the processes from one on, and disk of a directory, sampled until `stop`."""

    def __init__(self, pid: int, work: Path) -> None:
        super().__init__(daemon=True)
        self._root, self._work, self._done = psutil.Process(pid), work, threading.Event()
        self.peak_bytes = self.together_bytes = self.disk_bytes = 0

    def run(self) -> None:
        """Sample."""
        number = 0
        while not self._done.wait(SAMPLE_S):
            family = self._family()
            self.peak_bytes = max([self.peak_bytes, *(_high_water(process.pid) for process in family)])
            if number % SLOW_SAMPLES == 0:
                self.together_bytes = max(self.together_bytes, sum(map(_pss, family)))
                self.disk_bytes = max(self.disk_bytes, sum(map(_blocks, self._work.rglob("*"))))
            number += 1

    def stop(self) -> None:
        """Sample no more."""
        self._done.set()
        self.join()

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _high_water(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:  # it has ended
        return 0
    return int(found[1]) * 1024 if found else 0


def _blocks(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except OSError:  # it has been removed
        return 0


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


class Phases:
    """The phases of one work directory.

    Args:
      work: the directory; phases.json there records what is finished, logs/ has the outputs.
    Attributes:
      done: finished phases by name, in the order in which they ended.
    Raises:
      ValueError: another run is at work in the directory.
    """

    def __init__(self, work: Path) -> None:
        self._work, self._file, self._logs = work, work / "phases.json", work / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._lock = (work / "lock").open("w")  # held until this process ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{work} is in use by another run; wait for it or pass another --work.") from None
        stored = json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else {}
        self.done = {name: Phase(**each) for name, each in stored.items()}

    def forget(self, *names: str) -> None:
        """Phases that are to run again."""
        for name in names:
            self.done.pop(name, None)
        self._save()

    def run(
        self,
        name: str,
        command: Sequence[object],
        *,
        predicted_bytes: int | None = None,
        figures: Callable[[], dict[str, Any]] = dict,
        stop: Callable[[], bool] | None = None,
    ) -> Phase:
        """Run a phase, unless it is finished with the same command.

        Args:
          name: of the phase and of its log.
          command: words after the interpreter.
          predicted_bytes: for the table.
          figures: called when it has ended; what it returns is recorded with it.
          stop: whether to end the processes early, asked often: the phase is finished then. None: never.
        Raises:
          PhaseError: the command failed.
        """
        words = [str(word) for word in command]
        known = self.done.get(name)
        if known is not None and known.command == words:
            print(f"{name}: finished before, {known.seconds:.1f} s", flush=True)
            return known
        print(f"{name}: running", flush=True)
        self.done.pop(name, None)
        begin = time.perf_counter()
        watcher = self._run(name, words, stop)
        phase = Phase(
            name=name,
            command=words,
            seconds=time.perf_counter() - begin,
            peak_bytes=watcher.peak_bytes,
            together_bytes=max(watcher.together_bytes, watcher.peak_bytes),
            disk_bytes=watcher.disk_bytes,
            predicted_bytes=predicted_bytes,
            figures=figures(),
        )
        self.done[name] = phase
        self._save()
        print(f"{name}: {phase.seconds:.1f} s, {phase.peak_bytes / 1e9:.2f} GB", flush=True)
        return phase

    def _run(self, name: str, words: list[str], stop: Callable[[], bool] | None) -> Watcher:
        log = self._logs / f"{name.replace(':', '-')}.log"
        with Supervisor(COMMAND_END_S) as supervisor:
            process = supervisor.start(name, [sys.executable, *words], log=log, cwd=ROOT)
            watcher = Watcher(process.pid, self._work)
            watcher.start()
            try:
                while (status := supervisor.statuses()[name]) is None and not (stop is not None and stop()):
                    time.sleep(STOP_S)
            finally:
                watcher.stop()
        if status or (status is not None and stop is not None):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            early = "" if status else "it ended before it was to be stopped: "
            raise PhaseError(f"{name}: {early}{lines[-1].strip() if lines else f'status {status}, no output'}")
        return watcher

    def _save(self) -> None:
        write_json(self._file, {name: asdict(phase) for name, phase in self.done.items()})


def phase_table(phases: Sequence[Phase]) -> list[str]:
    """Markdown: seconds and memory of each phase beside what was predicted."""
    lines = ["| phase | seconds | largest process | all together | predicted | predicted / largest | disk |"]
    lines.append("|---" * 7 + "|")
    for phase in phases:
        sizes = f"{phase.peak_bytes / 1e9:.2f} GB | {phase.together_bytes / 1e9:.2f} GB"
        known = phase.predicted_bytes
        said = "- | -" if known is None else f"{known / 1e9:.2f} GB | {known / max(1, phase.peak_bytes):.2f}"
        lines.append(f"| {phase.name} | {phase.seconds:,.1f} | {sizes} | {said} | {phase.disk_bytes / 1e9:.2f} GB |")
    return lines
