"""Programs that wait in processes of their own until they are asked, so that contestants of a benchmark take turns.

A question is a line of the program's standard input, its answer a line of its standard output. `AskedProcess` asks;
`answer_lines` and `write_answer` are the other side, for programs of this package, whose lines are JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import Supervisor

ANSWER_S = 300.0  # for the slowest package to read the largest graph


class AskedProcess:
    """A program that waits to be asked. Ends with the supervisor's block.

    Args:
      supervisor: that it is started by.
      name: for messages.
      command: its words.
      folder: what it writes to standard error is kept there.
      threads: of its OpenMP.
      answer_s: longest wait for an answer.
    """

    def __init__(
        self, supervisor: Supervisor, name: str, command: Sequence[str], folder: Path, *, threads: int = 1,
        answer_s: float = ANSWER_S,
    ) -> None:  # fmt: skip
        self.name, self._answer_s = name, answer_s
        self._messages = folder / f"{name}.err"
        with self._messages.open("wb") as messages:
            self._process = supervisor.start(
                name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, text=True,
                env=own_environment(threads),
            )  # fmt: skip

    def ask(self, line: str) -> str:
        """The line that answers a line.

        Raises:
          RuntimeError: it ended, or did not answer in time; with its last line.
        """
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            ready, _, _ = select.select([self._process.stdout], [], [], self._answer_s)
            if not ready:
                raise RuntimeError(f"{self.name} has not answered in {self._answer_s:g} s.")
            answer = self._process.stdout.readline()
        if not answer:
            last = self._messages.read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{self.name} ended: {last[0] if last else 'no message'}")
        return answer

    def ask_json(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of a program of this package, see `ask`."""
        return json.loads(self.ask(json.dumps(question)))


def answer_lines(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer every line of standard input until it ends."""
    for line in sys.stdin:
        write_answer(reply(json.loads(line)))


def write_answer(found: dict[str, Any]) -> None:
    """Write a line of standard output that another process reads."""
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
