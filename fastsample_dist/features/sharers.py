"""The ranks that share one cache of feature rows: those of a machine that read each other's rows in place, or one.

Scores of the ranks are added up, so all of them choose the same set; each loads a run of the rows into memory that all
of them map (comm/segments.py); the first one also writes what finds the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import Segment, share_segments
from fastsample_dist.ops.locate_rows import slots_bytes

_LINE_BYTES = 64


class Sharers:
    """Ranks with one cache.

    Args:
      ctx: of this rank.
      machines: ranks by machine; None: every rank has a cache of its own.
    Attributes:
      ranks: of this cache, ascending.
    """

    def __init__(self, ctx: DistContext, machines: Machines | None) -> None:
        self._ctx, self._machines = ctx, machines
        self.ranks: tuple[int, ...] = (ctx.rank,) if machines is None else machines.of(ctx.rank)

    @property
    def are_alone(self) -> bool:
        """Whether every rank of the run has a cache of its own; then nothing here is collective."""
        return self._machines is None

    @property
    def caches_on_host(self) -> int:
        """Caches that the ranks of this host make."""
        return self._ctx.local_world_size if self._machines is None else 1

    def own_share(self, count: int) -> slice:
        """Which of `count` rows this rank loads."""
        number = self.ranks.index(self._ctx.rank)
        return slice(number * count // len(self.ranks), (number + 1) * count // len(self.ranks))

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks of this cache. Collective: every rank must call this. Purpose "setup".

        Args:
          values: int64 [n].
        """
        if self._machines is None:
            return values
        segments = self._share(values.nbytes)
        views = {rank: segment.tensor(values.dtype, tuple(values.shape)) for rank, segment in segments.items()}
        if values.numel():
            views[self._ctx.rank].copy_(values)
        self._ctx.comm.barrier(purpose="setup")
        return torch.stack([views[rank] for rank in self.ranks]).sum(0) if values.numel() else values

    def rows(self, like: Tensor, num_rows: int, num_nodes: int) -> tuple[Tensor, Tensor | None]:
        """Memory for a cache. Collective: every rank must call this. Purpose "setup".

        Args:
          like: [0, dim]; of the rows' dtype, width and device.
          num_rows: of the cache.
          num_nodes: of the graph.
        Returns:
          (rows [num_rows, dim], memory of what finds them, for `slots`); the same for all ranks of this cache.
        Raises:
          ValueError: on all ranks: there is not enough memory.
        """
        shape = (num_rows, like.shape[1])
        if self._machines is None:
            return like.new_empty(shape), None
        row_bytes = -(-num_rows * like.shape[1] * like.element_size() // _LINE_BYTES) * _LINE_BYTES
        found_by = slots_bytes(num_rows, num_nodes)
        segment = self._share(row_bytes + found_by if self._ctx.rank == self.ranks[0] else 0)[self.ranks[0]]
        return segment.tensor(like.dtype, shape), segment.tensor(torch.uint8, (found_by,), row_bytes)

    def slots(self, nodes: Tensor, num_nodes: int, memory: Tensor) -> ops.CachedSlots:
        """What finds the rows, once all ranks have loaded theirs. Collective: every rank must call this.

        Args:
          nodes: int64 [n]; slot i holds nodes[i].
          num_nodes: of the graph.
          memory: of `rows`.
        """
        if self._ctx.rank == self.ranks[0]:
            memory.copy_(ops.CachedSlots.of(nodes, num_nodes).table.view(-1).view(torch.uint8))
        self._ctx.comm.barrier(purpose="setup")
        return ops.CachedSlots.over(memory, nodes.numel(), num_nodes)

    def _share(self, num_bytes: int) -> dict[int, Segment]:
        assert self._machines is not None
        return dict(share_segments(self._ctx, self._ctx.rank, self._machines, num_bytes))
