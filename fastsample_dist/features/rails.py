"""RailFeatures: a row that several ranks of one machine need from another machine crosses the network once.

The ranks of a machine are numbered 0, 1, ... there. What they lack and a rank with the number j of another machine
owns, the one with the number j asks for: for all of them together, each row once, so that bytes flow between equal
numbers ("rails") and every rank of a machine does its share. Per fetch:

1. Each rank sends the ids that it lacks to those ranks of its machine that ask for them: two meetings of the machine's
   ranks, one for the numbers of ids.
2. Rank j asks the owners for the union; the exchange is that of DistFeatures, paired or combined.
3. It puts the rows and their ids into memory that the machine's ranks share, and they meet again.
4. Every rank merges its rows from there, without a further copy.

The next fetch overwrites the memory when all have merged: they meet in its step 1 or in its exchange before. What
crosses the machine's border is counted by the communicator of the run, as ever: a rank receives |its union| rows,
exactly. The meetings of the machine's ranks are counted by a communicator of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator, RowPlan
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import share_segments
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.ops import Located

_ALIGNMENT = 64  # bytes: tables in shared memory begin at a cache line
_GROWTH = 1.25  # an area that is too small is replaced by one with this much more room than is needed


@dataclass(frozen=True, eq=False)
class RailLocated:
    """What a rank asks for on behalf of its machine; in place of a Located.

    Attributes:
      own: where the rows of this rank's nodes are.
      order: int64 [number of own.missing]; those in the order of the ranks that ask for them.
      sizes: how many each of these asks for.
      missing: ids to ask for, ascending and so grouped by owner, each once.
      counts: how many of them each rank owns.
      most_rows: no rank of the machine asks for more in this fetch.
    """

    own: Located
    order: Tensor
    sizes: list[int]
    missing: Tensor
    counts: list[int]
    most_rows: int


def has_rails(machines: Machines) -> bool:
    """Whether there are several machines, and several ranks on one of them."""
    return machines.shares and not machines.is_one


def rails_of(machines: Machines, rank: int) -> list[int]:
    """Which rank of this machine, by its number there, asks for the nodes of every rank, [world_size].

    A machine with fewer ranks than the owner's has its numbers go round.

    Args:
      machines: ranks by machine.
      rank: this one.
    """
    numbers = {other: number for group in machines.groups for number, other in enumerate(group)}
    return [numbers[owner] % len(machines.of(rank)) for owner in range(machines.world_size)]


def local_communicator(comm: Communicator, machines: Machines) -> Communicator:
    """A communicator over the ranks of this machine. Collective: every rank must call this; close it when it is done.

    Raises:
      RuntimeError: the backend cannot serve it, a collective failed or passed its deadline.
    """
    made = [comm.split(group) for group in machines.groups]
    return next(local for local in made if local is not None)


class RailFeatures(DistFeatures):
    """DistFeatures of ranks of which several share a machine.

    Args:
      features: that read in place what the machine's ranks own.
      machines: ranks by machine.
      local_comm: over the ranks of this machine; used by the thread that fetches.
    """

    def __init__(self, features: DistFeatures, machines: Machines, local_comm: Communicator) -> None:
        vars(self).update(vars(features))
        self._local, self._area = local_comm, _SharedRows(local_comm)
        self._rails = rails_of(machines, self.comm.rank)

    def locate(self, nodes: Tensor) -> RailLocated:
        """See DistFeatures. Collective among the ranks of a machine."""
        own, peers = super().locate(nodes), self._local.world_size
        self._local.step = self.comm.step
        by_owner = torch.arange(own.missing.numel()).split(own.counts)
        by_rail = [
            torch.cat([by_owner[owner] for owner, asks in enumerate(self._rails) if asks == rail])
            for rail in range(peers)
        ]
        order, sizes = torch.cat(by_rail), [group.numel() for group in by_rail]
        facts = torch.tensor([[size, max(sizes)] for size in sizes])
        one_each = RowPlan([1] * peers, [1] * peers, 1)
        coming, longest = self._local.exchange_rows(facts, one_each, purpose="rail_counts").unbind(1)
        plan = RowPlan(sizes, coming.tolist(), int(longest.max()))
        union = self._local.exchange_rows(own.missing[order], plan, purpose="rail_ids").unique()
        counts = torch.searchsorted(union, self.book.part_ranges.to(union.dtype)).diff().tolist()
        return RailLocated(own, order, sizes, union, counts, peers * plan.max_message_rows)

    def complete(self, located: RailLocated, received: Tensor, dtype: torch.dtype | None) -> Tensor:
        """See DistFeatures. Collective among the ranks of a machine."""
        self._local.step = self.comm.step
        self._area.put(located.missing, received, located.most_rows)
        self._local.barrier(purpose="rail_rows")
        own, places = located.own, located.own.places.clone()
        numbers = torch.empty_like(located.order)  # of the rows of own.missing, in shared memory
        numbers[located.order] = self._area.find(own.missing[located.order].split(located.sizes))
        lacking = places < 0
        places[lacking] = -1 - numbers[-1 - places[lacking]]
        return super().complete(replace(own, places=places), self._area.rows, dtype)


class _SharedRows:
    """Rows with their ids in memory that the ranks of a machine share; each rank fills a part of its own.

    Args:
      comm: over the ranks of the machine.
    Attributes:
      rows: [world_size * capacity, ...]; those of rank j begin at j * capacity. Made by the first `put`.
    """

    rows: Tensor

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm  # also makes this the run of one machine that `share_segments` asks for
        self._capacity = 0

    def put(self, ids: Tensor, rows: Tensor, most_rows: int) -> None:
        """Fill this rank's part. Collective: every rank of the machine must call this; it waits where memory is made.

        Args:
          ids: int32 | int64 [n], ascending.
          rows: [n, ...]; of the same dtype and row shape in all calls.
          most_rows: that a rank puts; the same on all ranks.
        Raises:
          ValueError: on all ranks: there is not enough memory.
        """
        if most_rows > self._capacity or self._capacity == 0:
            self._make(max(1, int(_GROWTH * most_rows)), ids.dtype, rows)
        rank, count = self.comm.rank, ids.numel()
        self._counts[rank] = count
        self._ids[rank, :count] = ids
        first = rank * self._capacity
        self.rows[first : first + count] = rows

    def find(self, wanted: Sequence[Tensor]) -> Tensor:
        """Numbers of rows in `rows`, int64.

        Args:
          wanted: by rank, ids that this rank has put.
        """
        found = [
            self._capacity * rank + torch.searchsorted(self._ids[rank, :count], ids)
            for rank, (ids, count) in enumerate(zip(wanted, self._counts.tolist(), strict=True))
        ]
        return torch.cat(found)

    def _make(self, capacity: int, id_dtype: torch.dtype, rows: Tensor) -> None:
        peers = self.comm.world_size
        parts: list[tuple[torch.dtype, tuple[int, ...]]] = [
            (torch.int64, (peers,)), (id_dtype, (peers, capacity)), (rows.dtype, (peers * capacity, *rows.shape[1:])),
        ]  # fmt: skip
        sizes = [-(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, shape in parts]
        num_bytes = sum(sizes) if self.comm.rank == 0 else 0
        segment = share_segments(self, self.comm.rank, Machines(peers), num_bytes)[0]
        begins = [0, *accumulate(sizes)]
        self._counts, self._ids, self.rows = (
            segment.tensor(dtype, shape, begin) for (dtype, shape), begin in zip(parts, begins, strict=False)
        )
        self._capacity = capacity
