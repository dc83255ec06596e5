"""How far long work has got: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnChunk = Callable[[int, int], object]


@contextmanager
def reporting(what: str, shown: bool, *, stderr: bool = True) -> Iterator[OnChunk]:
    """A function to call with (done, in all); shows them as a bar on a terminal or in lines.

    Args:
      what: is done.
      shown: False shows nothing.
      stderr: False: on standard output.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=stderr, quiet=not shown, highlight=False)
    tenths = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what)

        def on_chunk(done: int, total: int) -> None:
            nonlocal tenths
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and done * 10 // max(1, total) > tenths:
                tenths = done * 10 // max(1, total)
                console.print(f"{what}: {done} of {total} ({10 * tenths} %)", soft_wrap=True)

        yield on_chunk
