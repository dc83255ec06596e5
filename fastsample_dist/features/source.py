"""What a step needs of node features: `FeatureSource`, and how several tables of rows serve one fetch.

A fetch looks for every node in the tables that this process can read by itself (its own rows with their cache, other
parts' rows that are mapped here, caches of other ranks' rows); only the nodes that are in none of them are asked for
over the network. `RowPlaces` notes which table holds each node's row, and one merge (`ops.merge_rows`) reads them all,
each row where it lies.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist import ops


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
    """Rows of some nodes, readable without asking another rank.

    Attributes:
      rows: [num_rows, dim], in the stored dtype of the features, contiguous; where kernels of the device that fetches
        can read them.
    """

    @property
    def rows(self) -> Tensor: ...

    def find(self, nodes: Tensor) -> Tensor:
        """int64 [n]; the table's row of every node, -1 for a node that it lacks."""
        ...


class RowPlaces:
    """Which table holds the row of every node of one fetch, and which of its rows that is.

    Args:
      nodes: [n] of the fetch.
    Attributes:
      missing: [m]; those nodes whose place is not known yet, in their order.
    """

    def __init__(self, nodes: Tensor) -> None:
        self.missing = nodes
        self._positions: Tensor | None = None  # of `missing` among all nodes; None: it is all of them
        self._places = torch.empty(0, dtype=torch.int64)

    def look_in(self, number: int, table: RowTable) -> None:
        """Take the places of those missing nodes that a table holds.

        Args:
          number: of the table, as `ops.place_in` counts them.
          table: holds a row of some of them.
        """
        rows = table.find(self.missing)
        held = rows >= 0
        if self._positions is None:
            self._positions = torch.arange(held.numel(), device=held.device)
            self._places = torch.empty_like(self._positions)
        self._places[self._positions[held]] = ops.place_in(number, rows[held])
        self.missing, self._positions = self.missing[~held], self._positions[~held]

    def complete(self, places: Tensor) -> Tensor:
        """Places of all nodes, int64 [n], given those of `missing`; for `ops.merge_rows`."""
        if self._positions is None:
            return places
        self._places[self._positions] = places
        return self._places
