"""The feature rows that a rank owns: mapped or in memory, on a GPU, or pinned for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.placement import HOST, Placement


class LocalFeatures:
    """Rows of the nodes lo .. hi - 1.

    Args:
      rows: [hi - lo, dim], any stored dtype, contiguous; with their scales where they have any.
      lo: id of the first node.
      device: whose kernels read the rows, and where the results are; None: that of the rows. It differs for pinned
        rows that a GPU reads over the bus. Nodes are asked for by ids on this device.
      cache: copies of some of the rows in the device's memory, read in their place.
    Attributes:
      table: the rows.
    Raises:
      ValueError: rows is not a matrix.
    """

    def __init__(
        self,
        rows: Tensor | ops.RowTable,
        lo: int,
        device: torch.device | None = None,
        cache: ops.RowCache | None = None,
    ) -> None:
        table = ops.RowTable.of(rows)
        if table.rows.dim() != 2:
            raise ValueError(f"features have shape {tuple(table.rows.shape)}; expected [nodes, dim].")
        self.table = table if table.is_scaled else ops.RowTable(table.rows.contiguous())
        self.lo, self.cache = lo, cache
        self.device = table.rows.device if device is None else device

    @classmethod
    def from_parts(cls, parts: Sequence[Tensor | ops.RowTable], lo: int) -> LocalFeatures:
        """Rows of consecutive parts as one table: without a copy when there is one part."""
        return cls(ops.RowTable.joined([ops.RowTable.of(part) for part in parts]), lo)

    @property
    def rows(self) -> Tensor:
        """[hi - lo, dim]; as stored: the numbers alone of rows with scales."""
        return self.table.rows

    def placed(self, placement: Placement) -> LocalFeatures:
        """The same rows where `placement` says (device/placement.py): a copy, unless they are there already."""
        if placement.where == HOST:
            return self
        return LocalFeatures(self.table.moved(placement.put), self.lo, placement.device)

    def with_cache(self, nodes: Tensor) -> LocalFeatures:
        """The same rows with copies of those of `nodes` (own nodes, unique) in the device's memory.

        Raises:
          ValueError, IndexError: a node twice, or outside lo .. hi - 1.
        """
        cache = ops.RowCache.of(self.table, nodes.cpu() - self.lo, self.device)
        return LocalFeatures(self.table, self.lo, self.device, cache)

    def gather(self, nodes: Tensor, *, checked: bool = True) -> Tensor:
        """Rows of own nodes, [n, dim], stored dtype; values in float32 of rows with scales.

        Args:
          nodes: int32 | int64 [n], on `device`.
          checked: False on a GPU: do not wait to find out whether a node is bad (`ops.gather_rows`).
        Raises:
          ValueError: a node outside lo .. hi - 1.
        """
        if self.table.is_scaled:
            return self.fetch(nodes, checked=checked)
        return ops.gather_rows(self.rows, self._numbers(nodes), self.cache, checked=checked)

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Rows of own nodes converted to float32, float64 or bfloat16 on the way (None: as `gather`), [n, dim].

        Args, Raises: as `gather`. See FeatureSource.
        """
        return self.merge(self._numbers(nodes).long(), self.no_rows(), dtype, checked=checked)

    def read(self, rows: Tensor, dtype: torch.dtype | None) -> Tensor:
        """The rows of these numbers, [n, dim], converted, or as stored and as they travel: rows with scales packed.

        In range by construction.
        """
        if dtype is not None:
            return self.merge(rows.long(), self.no_rows(), dtype, checked=False)
        if self.table.is_scaled:
            return ops.merge_rows(self.table, self.no_rows(), rows.long(), None, self.cache, checked=False)
        return ops.gather_rows(self.rows, rows, self.cache, checked=False)

    def merge(
        self,
        places: Tensor,
        fetched: Tensor,
        dtype: torch.dtype | None,
        *,
        near: Sequence[Tensor | ops.RowTable] = (),
        checked: bool = True,
    ) -> Tensor:
        """Own, near and fetched rows by place, as values (dtype None: of `table.dtype`); see `ops.merge_rows`."""
        dtype = self.table.dtype if dtype is None else dtype
        own = self.table if self.table.is_scaled else self.rows
        return ops.merge_rows(own, fetched, places, dtype, self.cache, near=near, checked=checked)

    def no_rows(self) -> Tensor:
        """No rows on `device`, as they travel: what is received where all rows are own."""
        return self.table.no_rows().to(self.device)

    def _numbers(self, nodes: Tensor) -> Tensor:
        """Row numbers of nodes."""
        return nodes if self.lo == 0 else nodes - self.lo
