"""Commands in processes of their own that get Ctrl-C: to the whole group, as from a terminal.

What waits for it sleeps in short naps (FOREVER): where a signal comes just before a nap, a handler in Python runs
after it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 240  # for machines that are busy
FOREVER = "while True: time.sleep(0.05)"


@dataclass
class Interrupted:
    """How a command ended and what it said, on standard error line by line."""

    status: int
    out: str
    err: list[str]


def interrupt(
    command: Sequence[object],
    awaited: str,
    *,
    times: int = 1,
    path: Path | None = None,
    number: signal.Signals = signal.SIGINT,
    **environ: str,
) -> Interrupted:
    """Start a command, send Ctrl-C when it has printed a line with `awaited`, and wait for its end.

    Args:
      command: words after the interpreter.
      awaited: part of the line on standard output.
      times: of Ctrl-C, each after one more such line.
      path: directory of modules that come before all others.
      number: another signal in place of Ctrl-C.
      **environ: more variables.
    """
    paths = filter(None, (path and str(path), str(ROOT), os.environ.get("PYTHONPATH")))
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **environ},
    )  # fmt: skip
    try:
        seen = []
        while times and (line := process.stdout.readline()):
            seen.append(line)
            if awaited in line:
                times -= 1
                os.killpg(process.pid, number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert times == 0, f"{awaited!r} was never printed: {seen} {err}"
    return Interrupted(process.returncode, "".join(seen) + out, err.splitlines())
