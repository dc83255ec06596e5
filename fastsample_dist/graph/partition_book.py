"""Which part owns a node: a partitioned graph is relabelled so that part p owns one contiguous range of ids.

Part p owns part_ranges[p] .. part_ranges[p + 1] - 1, so the whole book is P + 1 numbers, the owner is a binary
search, and the local id is a subtraction.
"""

from __future__ import annotations

import torch
from torch import Tensor


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

    def nid2part(self, ids: Tensor) -> Tensor:
        """Owner of each node.

        Args:
          ids: integer tensor of any shape and device; ids of the partitioned graph.
        Returns:
          int64 tensor of the same shape and device; part indices.
        Raises:
          ValueError: an id is negative or >= num_nodes.
        """
        ids = self._checked(ids)
        # right=True: the answer p has part_ranges[p] <= id < part_ranges[p + 1], so empty parts are skipped
        return torch.bucketize(ids, self.part_ranges[1:].to(ids.device), right=True)

    def nid2local(self, ids: Tensor) -> Tensor:
        """Position of each node inside its part: 0 .. part size - 1.

        Args:
          ids: integer tensor of any shape and device; ids of the partitioned graph.
        Returns:
          int64 tensor of the same shape and device.
        Raises:
          ValueError: an id is negative or >= num_nodes.
        """
        parts = self.nid2part(ids)
        return ids.to(torch.int64) - self.part_ranges.to(ids.device)[parts]

    def part2range(self, part: int) -> tuple[int, int]:
        """First id of a part and the id after its last.

        Raises:
          ValueError: part is not in 0 .. num_parts - 1.
        """
        if not 0 <= part < self.num_parts:
            raise ValueError(f"part is {part}; expected 0 to {self.num_parts - 1}.")
        return int(self.part_ranges[part]), int(self.part_ranges[part + 1])

    def _checked(self, ids: Tensor) -> Tensor:
        if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise ValueError(f"node ids are {ids.dtype}; expected an integer type.")
        ids = ids.to(torch.int64)
        if ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < 0 or high >= self.num_nodes:
                raise ValueError(f"node ids run from {low} to {high}; expected 0 to {self.num_nodes - 1}.")
        return ids
