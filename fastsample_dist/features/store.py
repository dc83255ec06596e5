"""The feature rows that a rank owns: mapped or in memory, on a GPU, or pinned for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.placement import HOST, Placement


class LocalFeatures:
    """Rows of the nodes lo .. hi - 1.

    Args:
      rows: [hi - lo, dim], any stored dtype, contiguous.
      lo: id of the first node.
      device: whose kernels read the rows, and where the results are; None: that of the rows. It differs for pinned
        rows that a GPU reads over the bus. Nodes are asked for by ids on this device.
    Raises:
      ValueError: rows is not a matrix.
    """

    def __init__(self, rows: Tensor, lo: int, device: torch.device | None = None) -> None:
        if rows.dim() != 2:
            raise ValueError(f"features have shape {tuple(rows.shape)}; expected [nodes, dim].")
        self.rows, self.lo = rows.contiguous(), lo
        self.device = rows.device if device is None else device

    @classmethod
    def from_parts(cls, parts: Sequence[Tensor], lo: int) -> LocalFeatures:
        """Rows of consecutive parts as one table: without a copy when there is one part."""
        return cls(parts[0] if len(parts) == 1 else torch.cat(list(parts)), lo)

    def placed(self, placement: Placement) -> LocalFeatures:
        """The same rows where `placement` says (graph/placement.py): a copy, unless they are there already."""
        if placement.where == HOST:
            return self
        return LocalFeatures(placement.put(self.rows), self.lo, placement.device)

    def gather(self, nodes: Tensor) -> Tensor:
        """Rows of own nodes, [n, dim], stored dtype.

        Raises:
          ValueError: a node outside lo .. hi - 1.
        """
        return ops.gather_rows(self.rows, nodes - self.lo)

    def gather_as(self, nodes: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of own nodes converted to float32, float64 or bfloat16 on the way, [n, dim].

        Raises:
          ValueError: a node outside lo .. hi - 1.
        """
        return ops.merge_rows(self.rows, self.rows[:0], (nodes - self.lo).long(), dtype)
