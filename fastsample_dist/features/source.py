"""What a step needs of node features: `FeatureSource`, and how several tables of rows serve one fetch.

A fetch looks for every node in the tables that this process can read by itself (the own rows with their cache, other
parts' rows that are mapped here, caches of other ranks' rows); only the nodes that are in none of them are asked for
over the network. `RowPlaces` notes which table holds each node's row, and one merge (`ops.merge_rows`) reads them all.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class FeatureSource(Protocol):
    """Nodes in, feature rows out: DistFeatures among ranks, LocalFeatures in one process, or a user's own."""

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Feature rows of nodes. Collective where rows come from other ranks.

        Args:
          nodes: int32 | int64 [n]; unique node ids; may be empty.
          dtype: of the result; None: the stored one.
          checked: False for nodes that a sampler returned: nothing needs to wait to find out whether an id is bad.
        Returns:
          [n, dim], row i is that of nodes[i].
        """
        ...


class RowTable(Protocol):
    """Rows of some nodes, readable without asking another rank."""

    def find(self, nodes: Tensor) -> Tensor:
        """int64 [n]; the table's row of every node, -1 for a node that it lacks."""
        ...

    def read(self, rows: Tensor, dtype: torch.dtype | None) -> Tensor:
        """The rows of these numbers, [n, dim], in the stored dtype or converted to `dtype`."""
        ...


class RowPlaces:
    """Which table holds the row of every node of one fetch, and which of its rows that is.

    Table 0 is the own one, which the merge reads in place. The rows of every other table stand in blocks that were read
    or received for this fetch; they are counted through, block after block.

    Args:
      nodes: [n] of the fetch.
    Attributes:
      missing: [m]; those nodes whose place is not known yet, in their order.
    """

    def __init__(self, nodes: Tensor) -> None:
        self.missing = nodes
        self._positions: Tensor | None = None  # of `missing` among all nodes; None: it is all of them
        self._places = torch.empty(0, dtype=torch.int64)
        self._blocks: list[Tensor] = []
        self._num_block_rows = 0

    def add_block(self, rows: Tensor) -> Tensor:
        """Add rows; returns the place of each, int64 [len(rows)]."""
        first = -1 - self._num_block_rows
        self._blocks.append(rows)
        self._num_block_rows += len(rows)
        return torch.arange(first, first - len(rows), -1, device=rows.device)

    def look_in(self, table: RowTable, dtype: torch.dtype | None) -> None:
        """Take the rows of missing nodes that a table holds, in the dtype of all blocks."""
        rows = table.find(self.missing)
        held = rows >= 0
        positions = torch.arange(held.numel(), device=held.device) if self._positions is None else self._positions
        if self._positions is None:
            self._places = torch.empty_like(positions)
        self._places[positions[held]] = self.add_block(table.read(rows[held], dtype))
        self.missing, self._positions = self.missing[~held], positions[~held]

    def complete(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Place what is still missing.

        Args:
          places: int64 [m]; >= 0: that row of table 0; < 0: as `add_block` returned it.
        Returns:
          (places int64 [n], rows of all blocks), as `ops.merge_rows` reads them.
        """
        if self._positions is not None:
            self._places[self._positions] = places
            places = self._places
        return places, self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks)
