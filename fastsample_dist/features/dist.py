"""DistFeatures: features of any nodes, own rows read locally and the others fetched by all_to_all.

One fetch: group the nodes by owner; send every owner the ids (`feature_ids`); owners read the rows and send them
(`feature_rows`); own and fetched rows are merged in one pass that also converts the dtype. Two payload exchanges
(FastSample, section 3.3). Rows travel in the stored dtype, or in the result's where that is narrower: the owner then
rounds what the receiver would have rounded. Own rows never travel; input nodes are unique, so a remote row travels once
per step and rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.placement import Placement
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.partition_book import PartitionBook

NUM_PAYLOAD_EXCHANGES = 2


class DistFeatures:
    """Features of the whole graph, split between ranks.

    Args:
      local: this rank's rows.
      book: node ranges of the ranks.
      comm: carries ids and rows.
    Raises:
      ValueError: local does not hold one row per own node.
    """

    def __init__(self, local: LocalFeatures, book: PartitionBook, comm: Communicator) -> None:
        lo, hi = book.part2range(comm.rank)
        if local.lo != lo or local.rows.shape[0] != hi - lo:
            raise ValueError(
                f"features have {local.rows.shape[0]} rows from node {local.lo} but rank {comm.rank} owns the nodes "
                f"{lo} to {hi - 1}; pass one row per own node."
            )
        self.local, self.book, self.comm = local, book, comm

    @property
    def dim(self) -> int:
        """Columns of a feature row."""
        return self.local.rows.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Stored dtype, in which rows travel."""
        return self.local.rows.dtype

    @property
    def device(self) -> torch.device:
        """Where ids are taken and rows are given."""
        return self.local.device

    def placed(self, placement: Placement) -> DistFeatures:
        """The same features with the own rows where `placement` says (see `graph.placement.choose_places`)."""
        return DistFeatures(self.local.placed(placement), self.book, self.comm)

    def with_cache(self, nodes: Tensor) -> DistFeatures:
        """The same features with copies of the rows of `nodes` (own, unique) in the memory of `device`."""
        return DistFeatures(self.local.with_cache(nodes), self.book, self.comm)

    def using(self, comm: Communicator) -> DistFeatures:
        """The same features over another communicator (a background thread has its own)."""
        return DistFeatures(self.local, self.book, comm)

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Feature rows of any nodes. Collective: every rank must call this, with its own nodes.

        Args:
          nodes: int32 | int64 [n] on `device`; unique ids of the partitioned graph; may be empty.
          dtype: of the result: float32, float64 or bfloat16; None keeps the stored one.
          checked: False, for nodes that a sampler of this graph gave: one process with a GPU does not wait to find out
            whether a node is bad (`ops.gather_rows`). Nothing else waits for it: several ranks read sizes back anyway.
        Returns:
          [n, dim] on `device`, row i is that of nodes[i].
        Raises:
          ValueError: an id outside the graph.
          RuntimeError: a collective failed or passed its deadline.
        """
        if self.comm.world_size == 1:
            return self.local.gather_as(nodes, dtype, checked=checked)
        grouped, counts, places = ops.bucket_by_part(nodes, self.book.part_ranges)
        groups = list(grouped.split(counts.tolist()))
        first_own = sum(group.numel() for group in groups[: self.comm.rank])
        own = groups[self.comm.rank]
        groups[self.comm.rank] = own[:0]
        plan = self.comm.plan_rows([group.numel() for group in groups])
        asked = self.comm.exchange_rows(torch.cat(groups), plan, purpose="feature_ids")
        narrow = dtype is not None and dtype.itemsize < self.dtype.itemsize
        # The asking rank's bucket_by_part has checked the ids, and the places below are in range by construction.
        answer = (
            self.local.gather_as(asked, dtype, checked=False) if narrow else self.local.gather(asked, checked=False)
        )
        fetched = self.comm.exchange_rows(answer, plan.reversed(), purpose="feature_rows")
        row_places = _row_places(own - self.local.lo, first_own, places)
        return self.local.merge(row_places, fetched, dtype, checked=False)


def _row_places(own_numbers: Tensor, first_own: int, places: Tensor) -> Tensor:
    """Where each node's row is: >= 0 in the own rows, -1 - i at fetched row i (see ops.merge_rows).

    The groups stand in rank order; fetched rows leave this rank's own group out, which begins at first_own.
    """
    last_own = first_own + own_numbers.numel()
    of_group_place = torch.arange(-1, -1 - places.numel(), -1, device=places.device)
    of_group_place[first_own:last_own] = own_numbers
    of_group_place[last_own:] += own_numbers.numel()
    return of_group_place[places]
