"""What a step needs of node features: `FeatureSource`, and the tables of rows that a fetch reads without asking anyone.

A fetch looks for every node in the tables that this process can read by itself: its own rows, those of other ranks that
are in its reach (`RowRange`), copies of others' rows (`CachedRows`). Only the nodes that are in none of them are asked
for over the network (`ops.locate_rows`), and one merge (`ops.merge_rows`) reads them all, each row where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.partition_book import PartitionBook

MOST_TABLES = 62
"""Of own and neighbours' rows: ops.merge_rows reads 64, one of which is a cache's and one what batches may keep."""


class FeatureSource(Protocol):
    """Nodes in, feature rows out: DistFeatures among ranks, LocalFeatures in one process, or a user's own."""

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Feature rows of nodes. Collective where rows come from other ranks.

        Args:
          nodes: int32 | int64 [n]; unique node ids; may be empty.
          dtype: of the result; None: the stored one, or float32 of int8 rows with scales.
          checked: False for nodes that a sampler returned: nothing needs to wait to find out whether an id is bad.
        Returns:
          [n, dim], row i is that of nodes[i].
        """
        ...


@dataclass(frozen=True, eq=False)
class RowRange:
    """Rows of the nodes first_node .. first_node + len(rows) - 1, readable without asking another rank.

    Attributes:
      first_node: id of the node of row 0.
      rows: [num_rows, dim], in the stored dtype of the features, contiguous, with their scales where they have any;
        where kernels of the device that fetches can read them.
    """

    first_node: int
    rows: Tensor | ops.RowTable

    @property
    def end_node(self) -> int:
        """One more than the last node."""
        return self.first_node + ops.RowTable.of(self.rows).num_rows


@dataclass(frozen=True, eq=False)
class CachedRows:
    """Copies of some nodes' rows, in this rank's reach.

    Attributes:
      slots: which row a node's is.
      rows: [num_cached, columns]; as they travel (`LocalFeatures.read`): packed where they have scales.
    """

    slots: ops.CachedSlots
    rows: Tensor


def index_rows(
    book: PartitionBook,
    own: Sequence[RowRange],
    neighbours: Sequence[RowRange] = (),
    cache: CachedRows | None = None,
) -> ops.RowIndex:
    """Where all rows are: own tables are numbered first, then the neighbours', then the cache.

    Args:
      book: node ranges of the ranks.
      own: this rank's.
      neighbours: other ranks' rows, any ranges of nodes that do not overlap.
      cache: of rows that are in none of these.
    """
    tables = [*own, *neighbours]
    ends = torch.tensor([[table.first_node, table.end_node] for table in tables], dtype=torch.int64)
    cuts = torch.cat([book.part_ranges, ends.flatten()]).unique()
    numbers, first_rows = [], []
    for begin, _ in pairwise(cuts.tolist()):
        holds = [k for k, table in enumerate(tables) if table.first_node <= begin < table.end_node]
        numbers.append(holds[0] if holds else -1)
        first_rows.append(begin - tables[holds[0]].first_node if holds else 0)
    return ops.RowIndex(
        cuts, torch.tensor(numbers, dtype=torch.int32), torch.tensor(first_rows, dtype=torch.int64),
        None if cache is None else cache.slots, len(tables), book.nid2part(cuts[:-1]).to(torch.int32), len(own),
        book.num_parts,
    )  # fmt: skip
