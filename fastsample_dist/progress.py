"""How far long work has got: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

OnChunk = Callable[[int, int], object]


def make_progress(console: Console) -> Progress:
    """Bars on a terminal, nothing in a log, where rich 13 would end with an empty line."""
    from rich.console import Console
    from rich.progress import Progress

    shown = console.is_terminal
    return Progress(console=console if shown else Console(quiet=True), transient=True, disable=not shown)


@contextmanager
def reporting(what: str, shown: bool, *, stderr: bool = True) -> Iterator[OnChunk]:
    """A function to call with (done, in all); shows them as a bar on a terminal or in lines.

    Args:
      what: is done.
      shown: False shows nothing.
      stderr: False: on standard output.
    """
    from rich.console import Console

    console = Console(stderr=stderr, quiet=not shown, highlight=False)
    tenths = 0
    with make_progress(console) as bar:
        task = bar.add_task(what)

        def on_chunk(done: int, total: int) -> None:
            nonlocal tenths
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and done * 10 // max(1, total) > tenths:
                tenths = done * 10 // max(1, total)
                console.print(f"{what}: {done} of {total} ({10 * tenths} %)", soft_wrap=True)

        yield on_chunk
