"""Asking the owners: a rank sends ids to the ranks that own them, every owner answers, answers go back in order.

One request is three steps, the same for whatever is asked (neighbours in sampling/vanilla.py, feature rows in
features/dist.py):

1. `ask_owners` groups the ids by owner and sends each owner its group. A rank's own group never travels.
2. The caller answers two lists of ids: `own`, for itself, and `asked`, for the others.
3. The reply to `asked` is sent, as one row per id (`reply_rows`) or one list per id (`reply_lists`), and what has been
   received is put beside the rank's own answers in the order of the ids (`in_order`, `lists_in_order`).

That is two payload exchanges; a reply of lists also needs a plan of its own, because its sizes are not those of the
request. A third exchange can send the owners one more row per id (`send_rows`), such as the gradient of what they
replied; it needs no plan either. A reply of lists to n ids is one message: n list lengths, then the lists' entries,
value row by value row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.base import Communicator, RowPlan


@dataclass(frozen=True, eq=False)
class Lists:
    """One list per id.

    Attributes:
      counts: [n]; entries of each list.
      values: [width, sum(counts)]; `width` values per entry, list after list.
    """

    counts: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Request:
    """Ids that have been sent to their owners, seen from one rank. Made by `ask_owners`.

    Attributes:
      own: [num_own]; ids that this rank owns itself, in the order in which it gave them.
      asked: [num_asked]; ids that the other ranks ask of this one, grouped by rank.
    """

    own: Tensor
    asked: Tensor
    _comm: Communicator
    _plan: RowPlan
    _places: Tensor  # int64 [n]: where each id is among the ids grouped by owner
    _first_own: int  # where this rank's own group begins there

    def reply_rows(self, rows: Tensor, *, purpose: str) -> Tensor:
        """Send one row per id of `asked`; return the rows received, grouped by owner.

        Collective: every rank must call this.

        Args:
          rows: [num_asked, ...].
          purpose: what the bytes are counted as.
        Returns:
          [num_ids - num_own, ...] of the same dtype; for `in_order`.
        Raises:
          RuntimeError: a collective failed or passed its deadline.
        """
        return self._comm.exchange_rows(rows, self._plan.reversed(), purpose=purpose)

    def reply_lists(self, indptr: Tensor, values: Tensor, *, purpose: str) -> Lists:
        """Send one list per id of `asked`; return the lists received, grouped by owner.

        Collective: every rank must call this.

        Args:
          indptr: int64 [num_asked + 1]; where each list begins.
          values: [width, indptr[-1]] of an integer dtype that holds every list's length too.
          purpose: what the bytes are counted as.
        Returns:
          num_ids - num_own lists; for `lists_in_order`.
        Raises:
          RuntimeError: a collective failed or passed its deadline.
        """
        counts = indptr.diff().to(values.dtype)
        ends = [0, *accumulate(self._plan.recv_counts)]
        bounds = indptr[torch.tensor(ends, device=indptr.device)].tolist()  # one read-back
        messages = [
            torch.cat([counts[ids], values[:, entries].flatten()])
            for ids, entries in zip(starmap(slice, pairwise(ends)), starmap(slice, pairwise(bounds)), strict=True)
        ]
        plan = self._comm.plan_rows([message.numel() for message in messages])
        received = self._comm.exchange_rows(torch.cat(messages), plan, purpose=purpose).split(plan.recv_counts)
        sent = self._plan.send_counts
        return Lists(
            torch.cat([reply[:num_ids] for reply, num_ids in zip(received, sent, strict=True)]),
            torch.cat(
                [
                    reply[num_ids:].reshape(len(values), (reply.numel() - num_ids) // len(values))
                    for reply, num_ids in zip(received, sent, strict=True)
                ],
                dim=1,
            ),
        )

    def send_rows(self, rows: Tensor, *, purpose: str) -> Tensor:
        """Send one row per id to the id's owner; return the rows received, one per id of `asked`.

        Collective: every rank must call this.

        Args:
          rows: [num_ids, ...] in the order of `places`: grouped by owner; those of `own_span` stay here.
          purpose: what the bytes are counted as.
        Returns:
          [num_asked, ...] of the same dtype.
        Raises:
          RuntimeError: a collective failed or passed its deadline.
        """
        begin, end = self.own_span
        return self._comm.exchange_rows(torch.cat([rows[:begin], rows[end:]]), self._plan, purpose=purpose)

    @property
    def places(self) -> Tensor:
        """Where each id stands among the ids grouped by owner, int64 [num_ids]."""
        return self._places

    @property
    def own_span(self) -> tuple[int, int]:
        """Where the group of this rank begins and ends there."""
        return self._first_own, self._first_own + self.own.numel()

    def by_rank(self, own: Tensor, asked: Tensor) -> Tensor:
        """One value per id that this rank got, its own at its place among the ranks: ordered by (rank, position).

        Args:
          own: [num_own, ...]; for `own`.
          asked: [num_asked, ...] of the same dtype; for `asked`.
        """
        before = sum(self._plan.recv_counts[: self._comm.rank])
        return torch.cat([asked[:before], own, asked[before:]])

    def in_order(self, own: Tensor, received: Tensor) -> Tensor:
        """One value per id, in the order of the ids.

        Args:
          own: [num_own, ...]; for `own`.
          received: [num_ids - num_own, ...] of the same dtype, as `reply_rows` returns it.
        Returns:
          [num_ids, ...].
        """
        before, after = received[: self._first_own], received[self._first_own :]
        return torch.cat([before, own, after])[self._places]

    def lists_in_order(self, own: Lists, received: Lists) -> tuple[Tensor, Tensor]:
        """One list per id, in the order of the ids: (indptr int64 [num_ids + 1], values [width, indptr[-1]])."""
        numbers = torch.arange(own.counts.numel() + received.counts.numel(), device=self._places.device)
        return join_lists(own, received, self.in_order(*numbers.split([own.counts.numel(), received.counts.numel()])))


def join_lists(first: Lists, second: Lists, order: Tensor) -> tuple[Tensor, Tensor]:
    """Lists of two places, in another order.

    Args:
      first, second: of the same width.
      order: int64 [n]; list i of the result is list order[i] of `first` followed by `second`.
    Returns:
      (indptr int64 [n + 1], values [width, indptr[-1]]).
    """
    counts = torch.cat([first.counts.long(), second.counts.long()])
    starts = (counts.cumsum(0) - counts)[order]
    counts = counts[order]
    indptr = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, 0, out=indptr[1:])
    values = torch.cat([first.values, second.values], dim=1)
    shift = torch.repeat_interleave(starts - indptr[:-1], counts, output_size=values.shape[1])
    return indptr, values[:, shift + torch.arange(shift.numel(), device=shift.device)]


def ask_owners(ids: Tensor, part_ranges: Tensor, comm: Communicator, *, purpose: str) -> Request:
    """Send ids to the ranks that own them. Collective: every rank must call this, with its own ids.

    Args:
      ids: int32 | int64 [num_ids], the same dtype on all ranks; may be empty.
      part_ranges: int64 [world_size + 1]; rank r owns the ids part_ranges[r] .. part_ranges[r + 1] - 1.
      comm: carries the ids, and the reply.
      purpose: what the bytes are counted as.
    Returns:
      Request, on the ids' device, to be answered.
    Raises:
      ValueError: an id that no rank owns.
      RuntimeError: a collective failed or passed its deadline.
    Source: FastSample, section 3.3.
    """
    grouped, counts, places = ops.bucket_by_part(ids, part_ranges)
    groups: Sequence[Tensor] = grouped.split(counts.tolist())
    own, others = groups[comm.rank], [*groups[: comm.rank], grouped[:0], *groups[comm.rank + 1 :]]
    plan = comm.plan_rows([group.numel() for group in others])
    asked = comm.exchange_rows(torch.cat(others), plan, purpose=purpose)
    return Request(own, asked, comm, plan, places, sum(plan.send_counts[: comm.rank]))
