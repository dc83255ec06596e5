"""What a benchmark prints as it goes."""

from __future__ import annotations

from collections.abc import Iterable

from rich.measure import Measurement
from rich.table import Table

from fastsample_dist.command import make_console

MOST_COLUMNS = 10_000  # of a table: more than any has


class Screen:
    """Standard output of a benchmark.

    Args:
      quiet: print nothing.
      stderr: standard error instead.
    """

    def __init__(self, *, quiet: bool = False, stderr: bool = False) -> None:
        self._options: dict[str, bool] = {"quiet": quiet, "stderr": stderr}
        self._console = make_console(**self._options)

    def progress(self, text: str) -> None:
        """Print what is being done now."""
        self._console.print(f"{text} ...", style="dim")

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines, unbroken."""
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table with every figure in full, wider than the terminal where it must be."""
        wide = self._console.options.update_width(MOST_COLUMNS)
        columns = max(self._console.width, Measurement.get(self._console, wide, table).maximum)
        height = self._console.height  # without one rich does not heed the width on a dumb terminal
        make_console(width=columns, height=height, **self._options).print(table)
