"""DistFeatures: features of any nodes, own rows read locally and the others fetched from their owners.

One fetch has three steps, which a loader may also take one by one:

1. `locate`: where every node's row is: own, in a neighbour's table, in a cache, or missing (ops/locate_rows.py).
2. The missing ids go to their owners, grouped by rank, and every owner answers with rows (`serve`): `feature_ids` out,
   `feature_rows` back, two payload exchanges (FastSample, section 3.3). Rows travel in the stored dtype (int8 rows with
   their scale behind them), or in the result's where that is narrower: the owner then rounds what the receiver would
   have rounded.
3. `complete`: one merge reads own, near, cached and received rows where they lie and converts the dtype.

Own rows never travel; input nodes are unique, so a remote row travels once per step and rank. Where no rank ever lacks
a row there is no exchange at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.rows import RowPlan
from fastsample_dist.device.placement import Placement
from fastsample_dist.features.source import CachedRows, RowRange, index_rows
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.graph.partition_book import PartitionBook

_NODES_AT_ONCE = 1 << 20  # nodes that are looked up together: 8 MiB of places


class DistFeatures:
    """Features of the whole graph, split between ranks.

    Args:
      local: this rank's rows.
      book: node ranges of the ranks.
      comm: carries ids and rows.
    Attributes:
      neighbours: other ranks' rows that this rank reads where they lie; see `reading`.
      cache: copies of others' rows; None without.
      exchanges: whether a fetch asks the owners: False where no rank ever has anything to ask for.
      tally: rows of all fetches, by where they came from.
    Raises:
      ValueError: local does not hold one row per own node.
    """

    def __init__(self, local: LocalFeatures, book: PartitionBook, comm: Communicator) -> None:
        lo, hi = book.part2range(comm.rank)
        if local.lo != lo or local.num_rows != hi - lo:
            raise ValueError(
                f"features have {local.num_rows} rows from node {local.lo} but rank {comm.run_rank} owns the "
                f"nodes {lo} to {hi - 1}; pass one row per own node."
            )
        self.local, self.book, self.comm = local, book, comm
        self.neighbours: tuple[RowRange, ...] = ()
        self.cache: CachedRows | None = None
        self.exchanges = comm.world_size > 1
        self.tally = FetchTally()
        self._index = self._make_index()

    @property
    def dim(self) -> int:
        """Columns of a feature row."""
        return self.local.dim

    @property
    def dtype(self) -> torch.dtype:
        """Of the values: the stored dtype, in which rows travel, or float32 of int8 rows with scales."""
        return self.local.dtype

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

    def reading(self, neighbours: Sequence[RowRange] = (), cache: CachedRows | None = None) -> DistFeatures:
        """The same features with others' rows that this rank reads by itself, in place of those read so far.

        Collective: every rank must call this, with its own tables or none. They agree here, once, whether any rank may
        ever ask another: if not, a fetch runs no collective. A table or a cache must not lose rows later.

        Args:
          neighbours: other ranks' rows; with this rank's own at most MOST_TABLES tables.
          cache: looked in after these.
        Raises:
          RuntimeError: the collective failed or passed its deadline.
        """
        found = self._with(neighbours=tuple(neighbours), cache=cache)
        lacks = torch.tensor([found._lacks_a_row()], dtype=torch.int64)
        found.exchanges = bool(self.comm.all_reduce(lacks, op="max", purpose="setup"))
        return found

    def locate(self, nodes: Tensor) -> ops.Located:
        """Where the rows of nodes are.

        Args:
          nodes: int32 | int64 [n] on `device`; unique ids of the partitioned graph; may be empty.
        Raises:
          ValueError: an id outside the graph.
        """
        return ops.locate_rows(nodes, self._index)

    def serve(self, asked: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Rows of own nodes for the ranks that asked for them, in the dtype in which they travel.

        Args:
          asked: int32 | int64 [n] on `device`; own nodes: the asking rank has checked them.
          dtype: of the result that they will be part of, the same on all ranks; see `fetch`.
        Returns:
          [n, columns of a row that travels] on `device`.
        """
        return self.local.read(asked, self.wire_dtype(dtype))

    def serve_in_reach(self, asked: Tensor, dtype: torch.dtype | None) -> Tensor:
        """As `serve`, of nodes whose rows are own or a neighbour's."""
        return self.read_in_reach(self.locate(asked), dtype)

    def read_in_reach(self, located: ops.Located, dtype: torch.dtype | None) -> Tensor:
        """Rows of located nodes of which none is missing, in the dtype in which they travel; see `serve`."""
        return self.local.read_places(located.places, self.wire_dtype(dtype), self._near())

    def complete(self, located: ops.Located, received: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Rows of located nodes, each read where it is; counted in `tally`.

        Args:
          located: what `locate` returned.
          received: [m, columns of a row that travels]; one row per missing node, in the order of `located.missing`.
          dtype: as in `fetch`.
        Returns:
          [n, dim] on `device`.
        """
        self.tally.add(FetchTally.of(located))
        # locate has checked the ids, so all places are in range by construction
        return self.local.merge(located.places, received, dtype, near=self._near(), checked=False)

    def wire_dtype(self, dtype: torch.dtype | None) -> torch.dtype | None:
        """The dtype in which rows travel that become `dtype` (None: the stored one); None: the stored one."""
        narrows = dtype is not None and not self.local.is_scaled and dtype.itemsize < self.dtype.itemsize
        return dtype if narrows else None

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """Feature rows of any nodes. Collective: every rank must call this, with its own nodes.

        Args:
          nodes: int32 | int64 [n] on `device`; unique ids of the partitioned graph; may be empty.
          dtype: of the result: float32, float64 or bfloat16; None keeps the stored one (of int8 rows with scales:
            float32).
          checked: False, for nodes that a sampler of this graph gave: a GPU does not wait to find out whether a node is
            bad (`ops.gather_rows`) where this rank owns all of them. Looking for rows reads sizes back anyway.
        Returns:
          [n, dim] on `device`, row i is that of nodes[i].
        Raises:
          ValueError: an id outside the graph.
          RuntimeError: a collective failed or passed its deadline.
        """
        if self.comm.world_size == 1:
            self.tally.own += nodes.numel()
            return self.local.fetch(nodes, dtype, checked=checked)
        located = self.locate(nodes)
        return self.complete(located, self.receive(located, dtype), dtype)

    def receive(self, located: ops.Located, dtype: torch.dtype | None, plan: RowPlan | None = None) -> Tensor:
        """Rows of missing nodes, from their owners. Collective: every rank must call this, with its own nodes.

        Args:
          located: what `locate` returned.
          dtype: as in `fetch`.
          plan: of `located.counts`, where the ranks have made it already.
        Returns:
          [m, dim] for `complete`.
        Raises:
          RuntimeError: a collective failed or passed its deadline.
        """
        if not self.exchanges:
            return self.local.no_rows()
        plan = plan or self.comm.plan_rows(located.counts)
        asked = self.comm.exchange_rows(located.missing, plan, purpose="feature_ids")
        return self.comm.exchange_rows(self.serve(asked, dtype), plan.reversed(), purpose="feature_rows")

    @property
    def cache_table(self) -> int:
        """Number of the cache's table, as `ops.place_in` counts them."""
        return self._index.cache_table

    def _near(self) -> list[Tensor | ops.RowTable]:
        """The tables behind the rank's own, in the order of their numbers."""
        near = [table.rows for table in self.neighbours]
        if self.cache is None:
            return near
        return [*near, ops.RowTable.packed(self.cache.rows) if self.local.is_scaled else self.cache.rows]

    def _make_index(self) -> ops.RowIndex:
        return index_rows(self.book, self.local.tables, self.neighbours, self.cache).on(self.device)

    def _lacks_a_row(self) -> bool:
        """Whether the rows of some node are neither own nor near nor cached."""
        cuts, tables = self._index.part_ranges.tolist(), self._index.tables.tolist()
        for (begin, end), table in zip(pairwise(cuts), tables, strict=True):
            for start in range(begin, end if table < 0 else begin, _NODES_AT_ONCE):  # the others are all in a table
                nodes = torch.arange(start, min(start + _NODES_AT_ONCE, end), device=self.device)
                if ops.locate_rows(nodes, self._index).missing.numel():
                    return True
        return False

    def _with(self, **parts: object) -> DistFeatures:
        """A copy in which some attributes are others, with a tally of its own."""
        changed = copy(self)
        vars(changed).update(parts, tally=FetchTally())
        changed._index = changed._make_index()
        return changed
