"""How an input is read: what every reader takes besides its path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastsample_dist.graph.inputs.edge_options import EdgeListOptions
from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.ops import checks


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read an input.

    Attributes:
      undirected: every edge counts in both directions; None: as the input says, else directed.
      task: what the labels are for, one of graph.labels.TASKS; None: as the input says, else inferred from their shape.
      scratch: for files that reading makes; what the graph maps lives as long as it does.
      on_total, on_bytes: called with the number of bytes of the input to be read, and of those read since; readers
        that only map files do not call them.
      edges: how the rows of an edge list are to be read; goes with format edgelist alone.
      room_bytes: memory that reading may take beside what the process holds; None: not limited. What is read in pieces
        or mapped is not counted.
    Raises:
      ValueError: an `undirected` that is no truth value.
    """

    undirected: bool | None = None
    task: str | None = None
    scratch: Scratch = field(default_factory=Scratch)
    on_total: Callable[[int], None] = lambda count: None
    on_bytes: Callable[[int], None] = lambda count: None
    edges: EdgeListOptions = field(default_factory=EdgeListOptions)
    room_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "undirected", checks.plain(self.undirected))
        if self.undirected is not None:
            checks.flag("undirected", self.undirected)
