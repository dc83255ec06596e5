"""DistFeatures: features of any nodes, own rows read locally and the others fetched from their owners.

One fetch: ask the owners (comm/owners.py: `feature_ids` out, `feature_rows` back); own and received rows are merged in
one pass that also converts the dtype. Two payload exchanges (FastSample, section 3.3). Rows travel in the stored dtype,
or in the result's where that is narrower: the owner then rounds what the receiver would have rounded. Own rows never
travel; input nodes are unique, so a remote row travels once per step and rank. Tables of other ranks' rows that this
rank can read by itself are searched first (source.py): what they hold does not travel either. Where no rank lacks a
row there is no exchange at all.
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

_NODES_AT_ONCE = 1 << 20  # nodes whose tables are looked up together: 8 MiB of places


class DistFeatures:
    """Features of the whole graph, split between ranks.

    Args:
      local: this rank's rows.
      book: node ranges of the ranks.
      comm: carries ids and rows.
    Attributes:
      near: tables of other ranks' rows that this rank reads by itself; see `with_near`.
      exchanges: whether a fetch asks the owners: False where no rank ever has anything to ask for.
    Raises:
      ValueError: local does not hold one row per own node.
    """

    def __init__(self, local: LocalFeatures, book: PartitionBook, comm: Communicator) -> None:
        lo, hi = book.part2range(comm.rank)
        if local.lo != lo or local.rows.shape[0] != hi - lo:
            raise ValueError(
                f"features have {local.rows.shape[0]} rows from node {local.lo} but rank {comm.run_rank} owns the "
                f"nodes {lo} to {hi - 1}; pass one row per own node."
            )
        self.local, self.book, self.comm = local, book, comm
        self.near: tuple[RowTable, ...] = ()
        self.exchanges = comm.world_size > 1

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
        """Where ids are accepted and rows are returned."""
        return self.local.device

    def placed(self, placement: Placement) -> DistFeatures:
        """The same features with this rank's own rows where `placement` says (see `device.placement.choose_places`)."""
        return self._with(local=self.local.placed(placement))

    def with_cache(self, nodes: Tensor) -> DistFeatures:
        """The same features with copies of the rows of `nodes` (own, unique) in the memory of `device`."""
        return self._with(local=self.local.with_cache(nodes))

    def using(self, comm: Communicator) -> DistFeatures:
        """The same features over another communicator (a background thread has its own)."""
        return self._with(comm=comm)

    def with_near(self, tables: Sequence[RowTable]) -> DistFeatures:
        """The same features with tables of other ranks' rows that this rank reads by itself.

        Collective: every rank must call this, with its own tables or none. They agree here, once, whether any rank may
        ever ask another: if not, a fetch runs no collective. A table must not lose rows later.

        Args:
          tables: in the order in which they are searched.
        Raises:
          RuntimeError: the collective failed or passed its deadline.
        """
        found = self._with(near=tuple(tables))
        lacks = torch.tensor([found._lacks_a_row()], dtype=torch.int64)
        found.exchanges = bool(self.comm.all_reduce(lacks, op="max", purpose="setup"))
        return found

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Feature rows of any nodes. Collective: every rank must call this, with its own nodes.

        Args:
          nodes: int32 | int64 [n] on `device`; unique ids of the partitioned graph; may be empty.
          dtype: of the result: float32, float64 or bfloat16; None keeps the stored one.
          checked: False, for nodes that a sampler of this graph gave: a GPU does not wait to find out whether a node is
            bad (`ops.gather_rows`) where nothing is exchanged. An exchange reads sizes back anyway.
        Returns:
          [n, dim] on `device`, row i is that of nodes[i].
        Raises:
          ValueError: an id outside the graph.
          RuntimeError: a collective failed or passed its deadline.
        """
        found, lo, near = RowPlaces(nodes), self.local.lo, [table.rows for table in self.near]
        for number, table in enumerate(self.near, start=1):
            found.look_in(number, table)
        if not self.exchanges:
            places = found.complete((found.missing - lo).long())
            return self.local.merge(places, self.local.no_rows(), dtype, near=near, checked=checked)
        wire = dtype if dtype is not None and dtype.itemsize < self.dtype.itemsize else None  # None: the stored one
        request = ask_owners(found.missing, self.book.part_ranges, self.comm, purpose="feature_ids")
        # The asking rank's bucket_by_part has checked the ids, and all places are in range by construction.
        received = request.reply_rows(self.local.read(request.asked - lo, wire), purpose="feature_rows")
        fetched = torch.arange(-1, -1 - len(received), -1, device=received.device)
        places = found.complete(request.in_order((request.own - lo).long(), fetched))
        return self.local.merge(places, received, dtype, near=near, checked=False)

    def _lacks_a_row(self) -> bool:
        """Whether the rows of some node are neither own nor near."""
        lo, hi = self.book.part2range(self.comm.rank)
        for start in range(0, self.book.num_nodes, _NODES_AT_ONCE):
            found = RowPlaces(torch.arange(start, min(start + _NODES_AT_ONCE, self.book.num_nodes), device=self.device))
            for number, table in enumerate(self.near, start=1):
                found.look_in(number, table)
            if bool(((found.missing < lo) | (found.missing >= hi)).any()):
                return True
        return False

    def _with(
        self,
        *,
        local: LocalFeatures | None = None,
        comm: Communicator | None = None,
        near: tuple[RowTable, ...] | None = None,
    ) -> DistFeatures:
        """A copy in which some parts are others."""
        copy = DistFeatures(local or self.local, self.book, comm or self.comm)
        copy.near = self.near if near is None else near
        copy.exchanges = self.exchanges
        return copy
