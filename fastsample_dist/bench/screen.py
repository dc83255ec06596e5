"""What a benchmark prints as it goes."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from fastsample_dist.command import console_width


class Screen:
    """Standard output of a benchmark."""

    def __init__(self) -> None:
        self._console = Console(width=console_width(), highlight=False)

    def progress(self, text: str) -> None:
        """Print what is being done now."""
        self._console.print(f"{text} ...", style="dim")

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines, unbroken."""
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table."""
        self._console.print(table)
