"""What a benchmark prints: every figure of a table in full, and names as they stand."""

import sys

import pytest
from rich.table import Table

from fastsample_dist.bench.screen import Screen

NAMES = ["planted:1000:8000:100:0.3", "parts[/x]", "parts[v2]"]  # rich reads an emoji, an end of nothing, a style


def table(columns, title="figures"):
    made = Table(title=title)
    for column in range(columns):
        made.add_column(f"column {column:02}")
    made.add_row(*(f"0.{column:08}" for column in range(columns)))
    return made


@pytest.mark.parametrize("terminal", [None, "xterm", "dumb"])
def test_a_table_that_is_wider_keeps_every_figure(capsys, monkeypatch, terminal):
    """In a file, on a terminal of 80 columns and on one that does not say."""
    if terminal is not None:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", terminal)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Screen().table(table(20))
    printed = capsys.readouterr().out
    assert all(f"column {column:02}" in printed and f" 0.{column:08} " in printed for column in range(20))


def test_names_are_printed_as_they_stand(capsys):
    screen = Screen()
    for name in NAMES:
        screen.progress(name)
        screen.table(table(5, name))
    screen.lines(NAMES)
    printed = capsys.readouterr().out
    assert [printed.count(name) for name in NAMES] == [3] * 3
