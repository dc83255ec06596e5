"""VirtualRanks: seeds and labels of the parts of a machine on every rank of it; the machine holds them once.

With roles any rank of a machine may make the batch of any virtual rank of it (tasks.py). Virtual rank p has the seeds
of part p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import share_tensors
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.pipeline.data import DistData


class VirtualRanks:
    """The virtual ranks of a machine. Made by `share_virtual_ranks`.

    Args:
      seeds: of every part of this machine, int64, in the order in which they were given.
      seeds_per_rank: how many each virtual rank of the run has.
      labels: of the nodes of every rank of this machine; empty where the partition has none.
      book: node ranges of the ranks.
    Attributes:
      seeds, seeds_per_rank: the same.
    """

    def __init__(
        self, seeds: Mapping[int, Tensor], seeds_per_rank: Sequence[int], labels: Mapping[int, Tensor],
        book: PartitionBook,
    ) -> None:  # fmt: skip
        self.seeds, self.seeds_per_rank, self._labels, self._book = seeds, list(seeds_per_rank), labels, book

    def labels_of(self, nodes: Tensor) -> Tensor:
        """Labels of nodes of this machine, int64 [n] or float32 [n, num_outputs]; see DistData.labels_of."""
        like = next(iter(self._labels.values()))
        found = like.new_empty((nodes.numel(), *like.shape[1:]))
        owners = self._book.nid2part(nodes)
        for owner in owners.unique().tolist():
            own = owners == owner
            found[own] = self._labels[owner][nodes[own] - self._book.part2range(owner)[0]]
        return found


def share_virtual_ranks(data: DistData, seeds: Tensor, machines: Machines) -> VirtualRanks:
    """Bring the seeds and labels of a machine's ranks to all of them. Collective: every rank must call this.

    Purpose "setup".

    Args:
      data: the opened partition.
      seeds: this rank's, int64.
      machines: ranks by machine.
    Raises:
      ValueError: on all ranks: there is not enough memory.
    """
    ctx, num_parts = data.ctx, data.manifest.num_parts
    parts = data.book.nid2part(seeds)
    order = parts.argsort(stable=True)
    sizes = torch.bincount(parts, minlength=num_parts).tolist()
    per_rank = ctx.comm.all_gather_object(sizes, purpose="setup")
    shared = share_tensors(ctx, ctx.rank, machines, seeds[order])
    by_part = {rank: found.split(per_rank[rank]) for rank, found in shared.items()}
    parts_per_rank = num_parts // ctx.world_size
    labels = {} if data.labels is None else share_tensors(ctx, ctx.rank, machines, data.labels)
    of_parts = {part: by_part[rank][part] for rank in shared for part in _parts_of(rank, parts_per_rank)}
    counts = [per_rank[part // parts_per_rank][part] for part in range(num_parts)]
    return VirtualRanks(of_parts, counts, labels, data.rank_book)


def _parts_of(rank: int, parts_per_rank: int) -> range:
    return range(rank * parts_per_rank, (rank + 1) * parts_per_rank)
