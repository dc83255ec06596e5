"""DistFeatures: features of any nodes, own rows read locally and the others fetched from their owners.

One fetch: ask the owners (comm/owners.py: `feature_ids` out, `feature_rows` back); own and received rows are merged in
one pass that also converts the dtype. Two payload exchanges (FastSample, section 3.3). Rows travel in the stored dtype,
or in the result's where that is narrower: the owner then rounds what the receiver would have rounded. Own rows never
travel; input nodes are unique, so a remote row travels once per step and rank. Tables of other ranks' rows that this
rank can read by itself are looked in first (source.py): what they hold does not travel either.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.owners import ask_owners
from fastsample_dist.device.placement import Placement
from fastsample_dist.features.source import RowPlaces, RowTable
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.partition_book import PartitionBook


class DistFeatures:
    """Features of the whole graph, split between ranks.

    Args:
      local: this rank's rows.
      book: node ranges of the ranks.
      comm: carries ids and rows.
      near: tables of other ranks' rows that this rank reads by itself, in the order in which they are looked in.
    Raises:
      ValueError: local does not hold one row per own node.
    """

    def __init__(
        self, local: LocalFeatures, book: PartitionBook, comm: Communicator, near: Sequence[RowTable] = ()
    ) -> None:
        lo, hi = book.part2range(comm.rank)
        if local.lo != lo or local.rows.shape[0] != hi - lo:
            raise ValueError(
                f"features have {local.rows.shape[0]} rows from node {local.lo} but rank {comm.run_rank} owns the "
                f"nodes {lo} to {hi - 1}; pass one row per own node."
            )
        self.local, self.book, self.comm, self.near = local, book, comm, tuple(near)

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
        """The same features with the own rows where `placement` says (see `device.placement.choose_places`)."""
        return DistFeatures(self.local.placed(placement), self.book, self.comm, self.near)

    def with_cache(self, nodes: Tensor) -> DistFeatures:
        """The same features with copies of the rows of `nodes` (own, unique) in the memory of `device`."""
        return DistFeatures(self.local.with_cache(nodes), self.book, self.comm, self.near)

    def using(self, comm: Communicator) -> DistFeatures:
        """The same features over another communicator (a background thread has its own)."""
        return DistFeatures(self.local, self.book, comm, self.near)

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
            return self.local.fetch(nodes, dtype, checked=checked)
        wire = dtype if dtype is not None and dtype.itemsize < self.dtype.itemsize else None  # None: the stored one
        found, lo = RowPlaces(nodes), self.local.lo
        for table in self.near:
            found.look_in(table, wire)
        request = ask_owners(found.missing, self.book.part_ranges, self.comm, purpose="feature_ids")
        # The asking rank's bucket_by_part has checked the ids, and all places are in range by construction.
        received = request.reply_rows(self.local.read(request.asked - lo, wire), purpose="feature_rows")
        places = request.in_order((request.own - lo).long(), found.add_block(received))
        return self.local.merge(*found.complete(places), dtype, checked=False)
