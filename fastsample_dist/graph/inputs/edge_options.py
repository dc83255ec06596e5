"""How the rows of an edge list are to be read: options, names of columns, limits of ids, and its suffixes."""

from __future__ import annotations

from dataclasses import dataclass, fields

PLAIN_SUFFIXES = (".csv", ".tsv", ".txt")
PACKED_SUFFIXES = ("", ".gz", ".xz", ".zst")
TEXT_SUFFIXES = (*(plain + packed for packed in PACKED_SUFFIXES for plain in PLAIN_SUFFIXES), ".parquet")
BLANKS = " "  # any blanks and tabs
END_NAMES = (("src", "dst"), ("source", "target"), ("source", "destination"), ("u", "v"), ("from", "to"))
WEIGHT_NAME = "weight"
MAX_NAME_BYTES = 1024  # of an id that is text
WIDEST = 10  # nodes per end of an edge
FREE_NODES = 1 << 20  # this many cost nothing
_NAMED_DELIMITERS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": BLANKS}
_NO_DELIMITERS = "#\"'\r\n.+-_"


class NotIntegersError(ValueError):
    """Ids that were to be relabelled are not integers; the message says where."""


@dataclass(frozen=True, kw_only=True)
class EdgeListOptions:
    """What an edge list does not state itself.

    Attributes:
      header: the first line that is not a comment names the columns.
      delimiter: between the fields of a line: one character, or "comma", "tab", "semicolon", "pipe", "space" (any
        blanks and tabs); None: a comma if the first line has one, else blanks. Text only.
      columns: source and destination, each by its number from 1 or, with a header or in .parquet, by its name. None:
        by END_NAMES where there are names, else the first two (of those that are not the weight).
      weight_column: of the edges' weights, as `columns`; None: none, but in .parquet a column called weight.
      relabel: ids are any names (text, or integers with gaps); they become 0, 1, 2, ... in sorted order.
    Raises:
      ValueError: an invalid delimiter, or columns other than two.
    """

    header: bool = False
    delimiter: str | None = None
    columns: tuple[str, str] | None = None
    weight_column: str | None = None
    relabel: bool = False

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            delimiter = _NAMED_DELIMITERS.get(self.delimiter, self.delimiter)
            if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in _NO_DELIMITERS:
                raise ValueError(
                    f"delimiter is {self.delimiter!r}; expected one character such as ; or one of "
                    "comma, tab, semicolon, pipe, space."
                )
            object.__setattr__(self, "delimiter", delimiter)
        chosen = [*(self.columns or ()), *([self.weight_column] if self.weight_column is not None else [])]
        if self.columns is not None and len(self.columns) != 2:
            raise ValueError(f"columns is {','.join(self.columns)!r}; expected source and destination, such as 1,2.")
        if len(set(chosen)) < len(chosen) or not all(chosen):
            raise ValueError(f"the columns {', '.join(chosen)} are not different; expected each named once.")

    @property
    def given(self) -> list[str]:
        """Names of the options that are not the default."""
        default = EdgeListOptions()
        return [item.name for item in fields(self) if getattr(self, item.name) != getattr(default, item.name)]


def nearly_all_gaps(num_nodes: int, num_edges: int) -> bool:
    """Whether ids of so many edges are not numbered from 0, if the highest is num_nodes - 1.

    E edges touch at most 2 E nodes. With more than WIDEST times as many nodes nearly all are gaps.
    """
    return num_nodes > max(FREE_NODES, WIDEST * 2 * num_edges)


def parse_columns(text: str) -> tuple[str, ...]:
    """Names or numbers of columns with commas between them."""
    return tuple(item.strip() for item in text.split(","))
