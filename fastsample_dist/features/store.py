"""The feature rows that a rank owns: mapped or in memory, on a GPU, or pinned for it; one table or one per part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.placement import HOST, Placement
from fastsample_dist.features.source import MOST_TABLES, RowRange, index_rows
from fastsample_dist.graph.partition_book import PartitionBook


class LocalFeatures:
    """Rows of the nodes lo .. lo + num_rows - 1.

    Args:
      rows: [num_rows, dim], any stored dtype, contiguous, with their scales where they have any; or several such
        tables, one after the other, which are read where they are.
      lo: id of the first node.
      device: whose kernels read the rows, and where the results are; None: that of the rows. It differs for pinned
        rows that a GPU reads over the bus. Nodes are asked for by ids on this device.
      cache: copies of some of the rows in the device's memory, read in their place; of one table.
    Attributes:
      tables: the rows with their nodes.
    Raises:
      ValueError: rows is not a matrix; several tables of different widths or dtypes.
    """

    def __init__(
        self,
        rows: Tensor | ops.RowTable | Sequence[Tensor | ops.RowTable],
        lo: int,
        device: torch.device | None = None,
        cache: ops.RowCache | None = None,
    ) -> None:
        given = [ops.RowTable.of(table) for table in ([rows] if isinstance(rows, Tensor | ops.RowTable) else rows)]
        for table in given:
            if table.rows.dim() != 2:
                raise ValueError(f"features have shape {tuple(table.rows.shape)}; expected [nodes, dim].")
        kinds = {(table.rows.dtype, table.dim, table.is_scaled) for table in given}
        if len(kinds) != 1:
            raise ValueError(f"features are {kinds or 'no tables'}; expected tables of one dtype and width.")
        tables, first = [], lo
        for table in given:
            tables.append(RowRange(first, table if table.is_scaled else table.rows.contiguous()))
            first = tables[-1].end_node
        self.tables, self.lo, self.cache = tuple(tables), lo, cache
        self.device = given[0].rows.device if device is None else device
        self._index = self._make_index() if len(tables) > 1 and self.num_rows else None

    @classmethod
    def from_parts(cls, parts: Sequence[Tensor | ops.RowTable], lo: int) -> LocalFeatures:
        """Rows of consecutive parts, read where they are; copied into one table where a merge cannot read so many."""
        return cls(parts if len(parts) <= MOST_TABLES else _joined(parts), lo)

    @property
    def num_rows(self) -> int:
        """Own nodes."""
        return self.tables[-1].end_node - self.lo

    @property
    def dim(self) -> int:
        """Columns of a row."""
        return self._first.dim

    @property
    def dtype(self) -> torch.dtype:
        """Of the values: the stored dtype, or float32 of int8 rows with scales."""
        return self._first.dtype

    @property
    def is_scaled(self) -> bool:
        """Whether rows are int8 numbers with a scale each."""
        return self._first.is_scaled

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as stored, its scale included: as it travels where it is not converted, and in a cache."""
        return self._first.row_bytes

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.num_rows * self.row_bytes

    @property
    def is_resident(self) -> bool:
        """Whether the rows are in the memory of `device`; False: a GPU reads them over the bus."""
        return self._first.rows.device == self.device

    def placed(self, placement: Placement) -> LocalFeatures:
        """The same rows where `placement` says (device/placement.py): one copy, unless they are there already."""
        if placement.where == HOST:
            return self
        moved = ops.RowTable.of(self._one_table()).moved(placement.put)
        return LocalFeatures(moved, self.lo, placement.device)

    def with_cache(self, nodes: Tensor) -> LocalFeatures:
        """The same rows with copies of those of `nodes` (own nodes, unique) in the device's memory.

        Raises:
          ValueError, IndexError: a node twice, or outside the own ones.
        """
        rows = self._one_table()
        return LocalFeatures(rows, self.lo, self.device, ops.RowCache.of(rows, nodes.cpu() - self.lo, self.device))

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Rows of own nodes converted to float32, float64 or bfloat16 on the way (None: not at all), [n, dim].

        Args:
          nodes: int32 | int64 [n], on `device`.
          dtype: of the result; None: the stored one.
          checked: False on a GPU: do not wait to find out whether a node is bad (`ops.gather_rows`).
        Raises:
          ValueError: a node outside the own ones.
        """
        return self.merge(self._places(nodes), self.no_rows(), dtype, checked=checked)

    def read(self, nodes: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Rows of own nodes as they travel, in range by construction.

        Returns:
          [n, dim], converted, or of the stored dtype; [n, dim + 4] for rows with scales that are not converted: packed.
        """
        own = self.tables[0].rows
        if dtype is None and self._index is None and not self.is_scaled:
            return ops.gather_rows(own, self._numbers(nodes), self.cache, checked=False)
        return self.read_places(self._places(nodes), dtype)

    def read_places(
        self, places: Tensor, dtype: torch.dtype | None, near: Sequence[Tensor | ops.RowTable] = ()
    ) -> Tensor:
        """Own and near rows by place, as they travel; see `read`."""
        return self._merge(places, self.no_rows(), dtype, near, False)

    def merge(
        self,
        places: Tensor,
        fetched: Tensor,
        dtype: torch.dtype | None,
        *,
        near: Sequence[Tensor | ops.RowTable] = (),
        checked: bool = True,
    ) -> Tensor:
        """Values of own, near and fetched rows by place (dtype None: of `dtype`); see `ops.merge_rows`.

        Own tables are numbered first.
        """
        return self._merge(places, fetched, self.dtype if dtype is None else dtype, near, checked)

    def no_rows(self) -> Tensor:
        """No rows on `device`, as they travel: what is received where all rows are own."""
        return self._first.no_rows().to(self.device)

    @property
    def _first(self) -> ops.RowTable:
        return ops.RowTable.of(self.tables[0].rows)

    def _merge(
        self,
        places: Tensor,
        fetched: Tensor,
        dtype: torch.dtype | None,
        near: Sequence[Tensor | ops.RowTable],
        checked: bool,
    ) -> Tensor:
        first, *others = (table.rows for table in self.tables)
        return ops.merge_rows(first, fetched, places, dtype, self.cache, near=[*others, *near], checked=checked)

    def _make_index(self) -> ops.RowIndex:
        """Of nodes counted from the first own one."""
        tables = [RowRange(table.first_node - self.lo, table.rows) for table in self.tables]
        return index_rows(PartitionBook(torch.tensor([0, self.num_rows])), tables).on(self.device)

    def _one_table(self) -> Tensor | ops.RowTable:
        tables = [table.rows for table in self.tables]
        return tables[0] if len(tables) == 1 else _joined(tables)

    def _places(self, nodes: Tensor) -> Tensor:
        """Places of own nodes, for `merge`."""
        numbers = self._numbers(nodes)
        return numbers.long() if self._index is None else ops.locate_rows(numbers, self._index).places

    def _numbers(self, nodes: Tensor) -> Tensor:
        """Nodes counted from the first own one."""
        return nodes if self.lo == 0 else nodes - self.lo


def _joined(tables: Sequence[Tensor | ops.RowTable]) -> ops.RowTable:
    return ops.RowTable.joined([ops.RowTable.of(table) for table in tables])
