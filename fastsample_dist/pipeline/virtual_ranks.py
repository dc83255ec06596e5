"""VirtualRanks: seeds and labels of all parts on every rank of a machine, which holds them once.

With roles any rank may make the batch of any virtual rank (tasks.py). Virtual rank p has the seeds of part p.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import share_tensors
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.pipeline.data import DistData


class VirtualRanks:
    """The virtual ranks of a run whose ranks share one machine. Made by `share_virtual_ranks`.

    Args:
      seeds: of every part, int64, in the order in which they were given.
      labels: of every rank's nodes; empty where the partition has none.
      book: node ranges of the ranks.
    Attributes:
      seeds: by virtual rank.
    """

    def __init__(self, seeds: Mapping[int, Tensor], labels: Mapping[int, Tensor], book: PartitionBook) -> None:
        self.seeds, self._labels, self._book = seeds, labels, book

    @property
    def seeds_per_rank(self) -> list[int]:
        """How many seeds each virtual rank has."""
        return [self.seeds[rank].numel() for rank in range(len(self.seeds))]

    def labels_of(self, nodes: Tensor) -> Tensor:
        """Labels of any nodes, int64 [n] or float32 [n, num_outputs]; see DistData.labels_of."""
        first = self._labels[0]
        found = first.new_empty((nodes.numel(), *first.shape[1:]))
        owners = self._book.nid2part(nodes)
        for owner in owners.unique().tolist():
            own = owners == owner
            found[own] = self._labels[owner][nodes[own] - self._book.part2range(owner)[0]]
        return found


def share_virtual_ranks(data: DistData, seeds: Tensor, machines: Machines) -> VirtualRanks:
    """Bring the seeds and labels of all ranks to all of them. Collective: every rank must call this. Purpose "setup".

    Args:
      data: the opened partition.
      seeds: this rank's, int64.
      machines: on which all ranks share one.
    Raises:
      ValueError: on all ranks: there is not enough memory.
    """
    ctx, num_parts = data.ctx, data.manifest.num_parts
    parts = data.book.nid2part(seeds)
    order = parts.argsort(stable=True)
    sizes = torch.bincount(parts, minlength=num_parts).tolist()
    per_rank = ctx.comm.all_gather_object(sizes, purpose="setup")
    shared = share_tensors(ctx, ctx.rank, machines, seeds[order])
    by_part = [shared[rank].split(counts) for rank, counts in enumerate(per_rank)]
    parts_per_rank = num_parts // ctx.world_size
    labels = {} if data.labels is None else share_tensors(ctx, ctx.rank, machines, data.labels)
    return VirtualRanks(
        {part: by_part[part // parts_per_rank][part] for part in range(num_parts)}, labels, data.rank_book
    )
