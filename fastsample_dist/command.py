"""What the command lines share: the parser, refusals in one line, an orderly end when interrupted, results as JSON.

A command is a function of its parsed arguments that returns (exit status, results). `run_command` turns what it
raises into one line on standard error; SIGTERM ends it as Ctrl-C does, so that what it started is ended too.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastsample_dist.files import check_writable, write_json

if TYPE_CHECKING:
    from rich.console import Console

ERRORS = (ValueError, OSError, RuntimeError, ImportError, MemoryError)
INTERRUPTED = 130
PLAIN_COLUMNS = 130  # of a file or a pipe

Command = Callable[[argparse.Namespace], tuple[int, dict]]


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like every other refusal."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.removesuffix('.')}; see {self.prog} --help.")


def all_ended(args: argparse.Namespace | None, error: BaseException) -> str:
    """What an interrupted command leaves: nothing that runs. After another error: no sentence."""
    return "everything it started has been ended." if isinstance(error, KeyboardInterrupt) else ""


def run_command(
    parser: argparse.ArgumentParser,
    command: Command,
    argv: Sequence[str] | None,
    remains: Callable[[argparse.Namespace | None, BaseException], str] = all_ended,
) -> int:
    """Parse, run, write the results to --json FILE.

    Args:
      parser: has an option --json (see `add_json`).
      command: called with the arguments.
      argv: arguments without the program's name; those of the process by default.
      remains: called with the arguments (None: not parsed) and the error that ended the command; returns a sentence
        about what is left of it, or nothing.
    Returns:
      Exit status: the command's own, 1 after a refusal or failure, 130 when interrupted.
    """
    args = None
    try:
        with sigterm_interrupts():
            args = parser.parse_args(argv)
            if args.json is not None:
                check_writable("--json", args.json)
            status, results = command(args)
            if args.json is not None:
                write_json(args.json, results)
            return status
    except KeyboardInterrupt as error:
        print(f"{parser.prog}: interrupted; {remains(args, error)}", file=sys.stderr)
        return INTERRUPTED
    except ERRORS as error:
        text, left = one_line(error), remains(args, error)
        if left:
            text = f"{text.removesuffix('.')}; {left}"
        print(f"{parser.prog}: error: {text}", file=sys.stderr)
        return 1


def add_json(parser: argparse.ArgumentParser, text: str = "write the results here too") -> None:
    """Add the option --json FILE, with this help text."""
    parser.add_argument("--json", metavar="FILE", type=Path, help=text)


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks; its type when it has no text. Standard output is named if it failed."""
    if isinstance(error, OSError) and error.filename is None and _output_fails(error):
        if error.errno == errno.EPIPE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
            return "standard output was closed by what read it; send it to a file, or read it to its end."
        return f"standard output cannot be written ({error.strerror}); make room there, or send it elsewhere."
    return " ".join(str(error).split()) or type(error).__name__


def _output_fails(error: OSError) -> bool:
    """A disk is full or nobody reads any longer, and that is of standard output: an empty line cannot be written there
    either.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE):
        return False
    try:
        print(flush=True)
    except OSError as again:
        return again.errno == error.errno
    return False


def make_console(**more: Any) -> Console:
    """Where a command prints: as wide as the terminal, or PLAIN_COLUMNS.

    Text is shown as it stands: names of files and graphs are neither markup ("[/x]") nor emoji (":100:"). Where nobody
    reads the output any longer (`| head`) printing raises BrokenPipeError.

    Args:
      more: other options of rich's Console.
    """
    from rich.console import Console

    columns = {"width": None if sys.stdout.isatty() else PLAIN_COLUMNS}
    console = Console(**{**columns, "highlight": False, "markup": False, "emoji": False, **more})
    console.on_broken_pipe = _refuse_closed_output  # rich's own ends the process without a word
    return console


def _refuse_closed_output() -> NoReturn:
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@contextmanager
def signal_handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal in this way inside the block; only the main thread can, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Inside the block SIGTERM raises KeyboardInterrupt."""
    return signal_handled(signal.SIGTERM, signal.default_int_handler)


def integer_from(least: int) -> Callable[[str], int]:
    """Argument type: an integer >= `least`, which is not negative."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer >= {least}, not {text!r}")
        return int(text)

    return parse


count = integer_from(1)


def counts(text: str) -> tuple[int, ...]:
    """Argument type: "2,4" -> (2, 4), each at least 1."""
    return tuple(count(item) for item in text.split(","))


def seconds(text: str) -> float:
    """Argument type: a number of seconds > 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds > 0, not {text!r}")
    return value


def share(text: str) -> float:
    """Argument type: a number >= 0 and < 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a number >= 0 and < 1, not {text!r}")
    return value


def percentages(text: str) -> tuple[float, ...]:
    """Argument type: "1,2.5" -> (0.01, 0.025), each from 0 to 100."""
    values = tuple(_number(item) for item in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"must be a list of percentages such as 1,5,10, not {text!r}")
    return tuple(value / 100 for value in values)


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
        raise argparse.ArgumentTypeError(f"must be a list of fanouts such as 15,10,5, not {text!r}") from None


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
