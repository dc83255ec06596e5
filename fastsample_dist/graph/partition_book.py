"""Which part owns a node: a partitioned graph is relabelled so that part p owns one contiguous range of ids.

Part p owns part_ranges[p] .. part_ranges[p + 1] - 1, so the whole book is P + 1 numbers, the owner is a binary
search, and the local id is a subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks

NodeIds = Tensor | np.ndarray | Sequence[int]


class PartitionBook:
    """Owner and local id of every node of a partitioned graph.

    Args:
      part_ranges: int64 [num_parts + 1]; first id of each part, then num_nodes. Starts at 0, never decreases;
        a part that owns no node repeats its neighbour's offset.
    Attributes:
      part_ranges: the same, on the CPU.
    Raises:
      ValueError: the offsets are not such a sequence.
    """

    def __init__(self, part_ranges: Tensor) -> None:
        ranges = torch.as_tensor(part_ranges).cpu()
        if ranges.dtype != torch.int64 or ranges.dim() != 1 or ranges.numel() < 2:
            raise ValueError(
                f"part_ranges is {ranges.dtype} of shape {tuple(ranges.shape)}; "
                "expected int64 of shape [num_parts + 1] with num_parts >= 1."
            )
        if int(ranges[0]) != 0 or bool((ranges[1:] < ranges[:-1]).any()):
            raise ValueError(f"part_ranges is {ranges.tolist()}; expected offsets from 0 that never decrease.")
        self.part_ranges = ranges

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.part_ranges.numel() - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph."""
        return int(self.part_ranges[-1])

    def nid2part(self, ids: NodeIds) -> Tensor:
        """Owner of each node.

        Args:
          ids: integer tensor of any shape and device, or what makes one; ids of the partitioned graph.
        Returns:
          int64 tensor of the same shape and device; part indices.
        Raises:
          ValueError: they are no integers, or one is negative or >= num_nodes.
        """
        return self._owners(self.checked(ids))

    def nid2local(self, ids: NodeIds) -> Tensor:
        """Position of each node inside its part: 0 .. part size - 1.

        Args:
          ids: as of `nid2part`.
        Returns:
          int64 tensor of the same shape and device.
        Raises:
          ValueError: as `nid2part`.
        """
        ids = self.checked(ids)
        return ids - self.part_ranges.to(ids.device)[self._owners(ids)]

    def checked(self, ids: NodeIds) -> Tensor:
        """Node ids as an int64 tensor of the same shape and device.

        Args:
          ids: as of `nid2part`.
        Raises:
          ValueError: as `nid2part`.
        """
        if not isinstance(ids, Tensor):
            try:
                made = checks.as_tensor(ids)
            except (TypeError, ValueError, RuntimeError):  # text, None, rows of unequal length
                found = type(ids).__name__
                raise ValueError(f"node ids are a {found}; expected a tensor or list of integers.") from None
            ids = made if made.numel() else made.long()  # an empty list makes floats
        if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise ValueError(f"node ids are {ids.dtype}; expected an integer type.")
        ids = checks.signed("node ids", ids).to(torch.int64)
        if ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < 0 or high >= self.num_nodes:
                raise ValueError(f"node ids run from {low} to {high}; expected 0 to {self.num_nodes - 1}.")
        return ids

    def part2range(self, part: int) -> tuple[int, int]:
        """First id of a part and the id after its last.

        Raises:
          ValueError: part is not in 0 .. num_parts - 1.
        """
        part = checks.whole("part", part, 0, self.num_parts - 1)
        return int(self.part_ranges[part]), int(self.part_ranges[part + 1])

    def _owners(self, ids: Tensor) -> Tensor:
        # right=True: the answer p has part_ranges[p] <= id < part_ranges[p + 1], so empty parts are skipped
        return torch.bucketize(ids, self.part_ranges[1:].to(ids.device), right=True)
