"""What the command lines of this room share: one-line refusals, an interrupted end in order, JSON results.

A command is a function of its parsed arguments that returns (exit status, results). `run_command` turns what it
raises into one line on standard error; SIGTERM ends it as Ctrl-C does, so that what it started is ended too.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from fastsample_dist.files import check_writable, write_json

ERRORS = (ValueError, OSError, RuntimeError, ImportError, MemoryError)
INTERRUPTED = 130
PLAIN_COLUMNS = 130  # of a file or a pipe

Command = Callable[[argparse.Namespace], tuple[int, dict]]


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like every other refusal."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help.")


def run_command(parser: argparse.ArgumentParser, command: Command, argv: Sequence[str] | None) -> int:
    """Parse, run, write the results to --json FILE.

    Args:
      parser: has an option --json (see `add_json`).
      command: called with the arguments.
      argv: arguments without the program's name; those of the process by default.
    Returns:
      Exit status: the command's own, 1 after a refusal or failure, 130 when interrupted.
    """
    try:
        with sigterm_interrupts():
            args = parser.parse_args(argv)
            if args.json is not None:
                check_writable("--json", args.json)
            status, results = command(args)
            if args.json is not None:
                write_json(args.json, results)
            return status
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; everything it started has been ended.", file=sys.stderr)
        return INTERRUPTED
    except ERRORS as error:
        print(f"{parser.prog}: error: {one_line(error)}", file=sys.stderr)
        return 1


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json FILE."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results here too")


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks; its type when it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


def console_width() -> int | None:
    """Columns for rich: the terminal's own, or as many as a table needs in a file."""
    return None if sys.stdout.isatty() else PLAIN_COLUMNS


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Inside the block SIGTERM raises KeyboardInterrupt; only the main thread can arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def count(text: str) -> int:
    """Argument type: an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Argument type: "2,4" -> (2, 4), each at least 1."""
    return tuple(count(item) for item in text.split(","))


def seconds(text: str) -> float:
    """Argument type: a number of seconds above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def share(text: str) -> float:
    """Argument type: a number of at least 0 and below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0 and below 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def fanout_list(text: str) -> tuple[int, ...]:
    """Argument type: "15,10,5" -> (15, 10, 5); -1 takes all neighbours."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of fanouts such as 15,10,5") from None


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
