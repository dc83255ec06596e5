"""The rows of the table of `fastsample-bench network`: which savings are on.

A row is "off" or some of WORDS, joined by "+":
    cache       a cache of some of the rows: per rank, or per machine with shared or rails
    int8        rows stored as int8 with a scale each
    lookahead   the cache keeps what the next two batches use
    shared      ranks of a machine read each other's rows in place
    rails       they also fetch for each other; includes shared
    combined    one meeting of all ranks a step; else fetches are paired
"""

from __future__ import annotations

from dataclasses import dataclass

OFF = "off"
CACHE, INT8, LOOKAHEAD, SHARED, RAILS, COMBINED = WORDS = ("cache", "int8", "lookahead", "shared", "rails", "combined")
DEFAULT = (
    "off", "cache", "cache+int8", "cache+int8+lookahead", "cache+int8+rails", "cache+int8+rails+combined",
)  # fmt: skip
WINDOW = 2  # batches that "lookahead" looks ahead


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
      name: as it is written.
    Raises:
      ValueError: a word that is none, or that does not go with the others.
    """

    name: str

    def __post_init__(self) -> None:
        words = self.name.split("+")
        if self.name != OFF and (len(set(words)) < len(words) or not set(words) <= set(WORDS)):
            raise ValueError(f"row is {self.name!r}; expected off, or some of {', '.join(WORDS)} joined by +.")
        if LOOKAHEAD in words and CACHE not in words:
            raise ValueError(f"row is {self.name!r}; lookahead is of a cache: cache+lookahead.")

    def has(self, word: str) -> bool:
        """Whether a saving is on."""
        return word in self.name.split("+")

    def loader_options(self) -> dict[str, object]:
        """Options of DistLoader but for the cache."""
        return {
            "transport": "shared" if self.has(SHARED) or self.has(RAILS) else "exchange",
            "exchange": "combined" if self.has(COMBINED) else "paired",
            "rails": self.has(RAILS),
        }
