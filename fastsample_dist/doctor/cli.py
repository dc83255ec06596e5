"""The command `fastsample-doctor`: what this machine has for distributed training, and how to get the rest.

One line per check (doctor/checks.py); at the end two ranks really exchange rows on this machine. Exit status: 0 when
nothing needed is broken, 1 otherwise, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from rich.table import Table
from rich.text import Text

from fastsample_dist.command import ERRORS, Parser, add_json, make_console, one_line, run_command, seconds
from fastsample_dist.doctor import checks
from fastsample_dist.doctor.checks import BROKEN, WARNING, CheckResult

PROGRAM = "fastsample-doctor"
COLOURS = {checks.OK: "green", checks.ABSENT: "dim", WARNING: "yellow", BROKEN: "bold red"}
EXCHANGE_S = 60.0  # loading torch twice on a busy machine takes some of it


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = Parser(
        prog=PROGRAM,
        description="Check what this machine has for distributed training; one line per check: ok, or the fix.",
        epilog="exit status: 0 when nothing needed is broken",
        allow_abbrev=False,
    )
    parser.add_argument("--master-addr", metavar="HOST", help="rank 0's machine: show the interface that leads there")
    parser.add_argument("--no-exchange", action="store_true", help="do not start ranks")
    parser.add_argument(
        "--deadline-s",
        type=seconds,
        default=EXCHANGE_S,
        help="longest time for each of the two test runs (default: %(default)g)",
    )
    add_json(parser)
    return parser


def examine(master_addr: str | None, deadline_s: float | None) -> Iterator[CheckResult]:
    """All results, as the checks give them.

    Args:
      master_addr: rank 0's machine, None when it is not known.
      deadline_s: of each test run; None starts none.
    """
    environ = dict(os.environ)
    todo: list[Callable[[], list[CheckResult]]] = [
        checks.check_versions,
        checks.check_optional,
        checks.check_methods,
        checks.check_libraries,
        checks.check_gpus,
        partial(checks.check_cores, environ),
        partial(checks.check_network, environ, master_addr),
        checks.check_shared_memory,
        checks.check_own_limits,
        partial(checks.check_launchers, environ),
    ]
    broken = set()
    for check in todo:
        results = _guarded(check)
        broken |= {result.subject for result in results if result.status == BROKEN}
        yield from results
    if deadline_s is None:
        return
    if checks.INTERFACES_UP in broken:
        found = f"not tried: {checks.INTERFACES_UP} is broken"
        yield CheckResult(f"{checks.EXCHANGE_RANKS} ranks", checks.ABSENT, found)
        return
    yield from _guarded(partial(checks.check_exchange, deadline_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_command(make_parser(), _run, argv)


def _run(args: argparse.Namespace) -> tuple[int, dict]:
    results = list(examine(args.master_addr, None if args.no_exchange else args.deadline_s))
    console = make_console()
    console.print(report(results))
    broken = [result.subject for result in results if result.status == BROKEN]
    warnings = [result.subject for result in results if result.status == WARNING]
    console.print(f"{_named(broken, 'broken')}; {_named(warnings, 'to look at')}.")
    return (1 if broken else 0), {"ok": not broken, "findings": [asdict(result) for result in results]}


def report(results: Sequence[CheckResult]) -> Table:
    """One row per result, its advice below it."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for result in results:
        text = Text(result.found)
        if result.advice:
            text.append(f"\n-> {result.advice}", style="bold")
        table.add_row(Text(result.status, style=COLOURS[result.status]), result.subject, text)
    return table


def _guarded(check: Callable[[], list[CheckResult]]) -> list[CheckResult]:
    """A check that itself fails gives a result too: the others must still be reported."""
    try:
        return check()
    except ERRORS as error:
        name = getattr(check, "func", check).__name__
        return [CheckResult(name, BROKEN, one_line(error), "install what is missing; the check itself could not run")]


def _named(subjects: list[str], what: str) -> str:
    return f"{len(subjects)} {what} ({', '.join(subjects)})" if subjects else f"nothing {what}"


if __name__ == "__main__":
    sys.exit(main())
