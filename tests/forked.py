"""Ranks without a launcher: forked from the server of `run_distributed`, which has torch loaded.

What starts in a tenth of a second here takes seconds of processor time as a process of its own. A test whose subject is
the launcher, or such a process, starts that.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fastsample_dist.testing import ranks
from fastsample_dist.testing.jobs import meeting_point, own_environment
from tests.waiting import ENOUGH_S

OUTPUTS = ("stdout", "stderr")
NAMESPACES = {"--net": "net", "--mount": "mnt", "--uts": "uts"}  # nsenter's option: the file


class ForkedPython:
    """A Python program in the place of `subprocess.Popen([sys.executable, ...])`, in a session of its own.

    Args:
      line: a script's path, "-m" and a module, or "-c" and code, then its arguments.
      environ: its whole environment.
      outputs: files that take its standard output and error.
      namespaces: those that it enters, as files of /proc/PID/ns.
    """

    def __init__(
        self,
        line: Sequence[object],
        environ: dict[str, str],
        outputs: tuple[Path, Path],
        namespaces: Sequence[str] = (),
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(ranks.PRELOAD)
        self._process = context.Process(
            target=_run, args=([*map(str, line)], environ, outputs, namespaces), daemon=True
        )
        with ranks.hidden_main():
            self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As of `subprocess.Popen`, but always up to date."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit status.

        Raises:
          subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked rank", timeout_s)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def _run(line: list[str], environ: dict[str, str], outputs: tuple[Path, Path], inside: Sequence[str]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a fork server ignores it
    for number, path in enumerate(outputs, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    _enter(inside)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", *sys.path)]
    if line[0] == "-c":
        sys.argv = ["-c", *line[2:]]
        exec(compile(line[1], "<string>", "exec"), {"__name__": "__main__"})
    elif line[0] == "-m":
        sys.argv = line[1:]
        runpy.run_module(line[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = line
        runpy.run_path(line[0], run_name="__main__")


def _enter(namespaces: Sequence[str]) -> None:
    """Go where the files lead; the working directory is the one of the same name there."""
    libc, directory = ctypes.CDLL(None, use_errno=True), Path.cwd()
    with ExitStack() as stack:
        for file in [stack.enter_context(Path(name).open()) for name in namespaces]:
            if libc.setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {file.name}")
    os.chdir(directory)


def run_forked(
    num_ranks: int, script: Path | str, options: Sequence[object], **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run `script`, or "-m" and a module in `options`, on ranks that meet as under torchrun, with `extra` in their
    environment.

    Returns:
      What was printed, rank by rank, and the first exit status that is not 0.
    """
    with meeting_point(num_ranks, alone=False) as variables_of, tempfile.TemporaryDirectory() as folder:
        outputs = [tuple(Path(folder) / f"{kind}-{rank}" for kind in OUTPUTS) for rank in range(num_ranks)]
        running: list[ForkedPython] = []
        try:
            for rank in range(num_ranks):
                environ = own_environment() | variables_of(rank) | extra
                running.append(ForkedPython([script, *options], environ, outputs[rank]))
            statuses = [process.wait(ENOUGH_S) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
        printed = ["".join(path.read_text() for path in paths) for paths in zip(*outputs, strict=True)]
    return subprocess.CompletedProcess([script, *options], next((status for status in statuses if status), 0), *printed)


def run_code(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run what `python -c` takes."""
    return run_python("-c", code, *arguments)


def run_python(*line: object) -> subprocess.CompletedProcess[str]:
    """Run a script, or what else `python` takes; signals, exit status and outputs are those of a process of its own.

    Where nobody catches KeyboardInterrupt, the status is 1, not that of the signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = tuple(Path(folder) / kind for kind in OUTPUTS)
        process = ForkedPython(line, dict(os.environ), outputs)
        try:
            status = process.wait(ENOUGH_S)
        finally:
            process.kill()
            process.wait()
        printed = [path.read_text() if path.exists() else "" for path in outputs]
    return subprocess.CompletedProcess(line, status, *printed)


def fork_python(command: Sequence[str], **options: object) -> ForkedPython | subprocess.Popen:
    """As `subprocess.Popen`, but a Python whose outputs are one file is forked, in namespaces or not."""
    line, inside = list(command), []
    if line[0] == "nsenter":  # --target PID, namespaces, --, the command
        end = line.index("--")
        inside = [f"/proc/{line[2]}/ns/{NAMESPACES[option]}" for option in line[3:end]]
        line = line[end + 1 :]
    if line[0] != sys.executable:
        return subprocess.Popen(command, **options)
    log = Path(options["stdout"].name)
    return ForkedPython(line[1:], options["env"], (log, log), inside)
