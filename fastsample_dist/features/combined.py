"""Fetches of consecutive batches with one meeting of all ranks each.

A fetch by itself takes three meetings: counts, ids, rows (DistFeatures.fetch). Where the nodes of the next two fetches
are known, one exchange serves three of them. Exchange t brings rank p, in one message, rows first:

    the rows that p asked for in exchange t - 1 | my ids of fetch t + 1 | header: how many ids p gets from me in
    exchange t + 1, the longest message that I shall send in it

so every rank knows the sizes of what it gets, and the longest message of the group (which sets the number of rounds),
one exchange ahead; no plan is needed. S fetches are S + 2 exchanges: the first two carry no rows, and the last two no
ids. The rank's own rows never travel.

Counters: an exchange is one call of "feature_rows"; its rows are counted there, ids and headers under "feature_ids"
without a call. For W ranks that is, over S fetches:

    feature_rows  S + 2 calls, the bytes of the rows
    feature_ids   0 calls, the bytes of the ids + 16 * (W - 1) * (S + 2)

As many bytes as S fetches by themselves count under "counts", "feature_ids" and "feature_rows", and 32 * (W - 1) more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.rows import RowPlan, Share
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.ops import Located
from fastsample_dist.ops.bytes import byte_view

HEADER_BYTES = 16  # two int64


@dataclass(frozen=True)
class MessageSizes:
    """Bytes of the parts of an exchange's messages in one direction; this rank sends itself nothing.

    Attributes:
      rank: this rank.
      rows: bytes of rows to (or from) each rank, [world_size].
      ids: bytes of ids, the same.
    """

    rank: int
    rows: list[int]
    ids: list[int]

    @property
    def parts(self) -> list[int]:
        """Bytes of rows, ids and header of every message, one after another, [3 * world_size]."""
        headers = [0 if peer == self.rank else HEADER_BYTES for peer in range(len(self.rows))]
        return [part for message in zip(self.rows, self.ids, headers, strict=True) for part in message]

    @property
    def messages(self) -> list[int]:
        """Bytes of every message, [world_size]."""
        parts = self.parts
        return [sum(parts[i : i + 3]) for i in range(0, len(parts), 3)]

    @property
    def beside_rows(self) -> int:
        """Bytes of all ids and headers."""
        return sum(self.messages) - sum(self.rows)

    def join(self, rows: Tensor, ids: Tensor, headers: Tensor) -> Tensor:
        """The messages as one buffer, uint8 [sum(messages)].

        Args:
          rows, ids: contiguous, grouped by rank.
          headers: int64 [world_size - 1, 2]; for the other ranks.
        """
        sizes = (self.rows, self.ids, self.parts[2::3])
        groups = [byte_view(part).split(lengths) for part, lengths in zip((rows, ids, headers), sizes, strict=True)]
        return torch.cat([part for message in zip(*groups, strict=True) for part in message])

    def take(
        self, buffer: Tensor, row_dtype: torch.dtype, id_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, list[list[int]]]:
        """(elements of the rows, ids, headers of the other ranks) of the messages in `buffer`, grouped by rank.

        Rows that come from one rank alone stay where they are in the buffer.

        Args:
          buffer: uint8 [sum(messages)].
          row_dtype: of the rows.
          id_dtype: of the ids.
        """
        parts = buffer.split(self.parts)
        headers = _joined(parts[2::3], torch.int64).view(-1, 2).tolist()
        return _joined(parts[0::3], row_dtype), _joined(parts[1::3], id_dtype), headers


class CombinedFetch:
    """A pipe of fetches: nodes go in, and the rows of the nodes that went in two calls before come out.

    Made anew for every run of fetches; one that is left needs no end, since nothing is under way between two calls.

    Args:
      features: of the whole graph, over a communicator that nobody else uses at the same time.
      dtype: of the rows that come out, as for DistFeatures.fetch.
    """

    def __init__(self, features: DistFeatures, dtype: torch.dtype | None) -> None:
        self._features, self._dtype, self._comm = features, dtype, features.comm
        nobody = [0] * self._comm.world_size
        self._located: deque[Located | None] = deque([None, None])  # of this fetch and the next
        self._asked: Tensor | None = None  # ids whose rows go out now, grouped by rank; None: not known yet
        self._asked_counts, self._coming = nobody, nobody  # how many those are, and how many ids come now
        self._longest_bytes = HEADER_BYTES  # of the group's messages now

    def push(self, nodes: Tensor | None) -> Tensor | None:
        """Make one exchange. Collective: every rank must call this, as often, and with None from the same call on.

        Args:
          nodes: of the fetch after the next one, as for DistFeatures.fetch; None: there is none.
        Returns:
          The rows of the nodes of the last call but one, [n, dim]; None where there was none.
        Raises:
          ValueError: an id outside the graph.
          RuntimeError: the exchange failed or passed its deadline.
        """
        after_next = None if nodes is None else self._features.locate(nodes)
        this, following = self._located.popleft(), self._located[0]
        self._located.append(after_next)
        if self._asked is None:
            assert after_next is not None  # the first call has nodes
            self._asked = after_next.missing[:0]
        rows = self._features.serve(self._asked, self._dtype)
        ids = self._asked[:0] if following is None else following.missing

        def sizes(row_counts: list[int], id_counts: list[int]) -> MessageSizes:
            per_row, per_id = math.prod(rows.shape[1:]) * rows.element_size(), ids.element_size()
            return MessageSizes(
                self._comm.rank, [count * per_row for count in row_counts], [count * per_id for count in id_counts]
            )

        this_counts, next_counts, later_counts = (self._counts(fetch) for fetch in (this, following, after_next))
        out, into = sizes(self._asked_counts, next_counts), sizes(this_counts, self._coming)
        own_longest_bytes = max(sizes(self._coming, later_counts).messages)
        headers = torch.tensor([[count, own_longest_bytes] for count in self._of_others(later_counts)])
        buffer = self._comm.exchange_rows(
            out.join(rows, ids, headers.to(rows.device)),
            RowPlan(out.messages, into.messages, self._longest_bytes),
            purpose="feature_rows",
            share=Share("feature_ids", out.beside_rows, into.beside_rows),
        )
        elements, asked, came = into.take(buffer, rows.dtype, ids.dtype)
        self._asked, self._asked_counts = asked, self._coming
        self._coming = [count for count, _ in came]
        self._coming.insert(self._comm.rank, 0)
        self._longest_bytes = max(own_longest_bytes, *(longest for _, longest in came))
        received = elements.view(sum(this_counts), *rows.shape[1:])
        return None if this is None else self._features.complete(this, received, self._dtype)

    def _counts(self, located: Located | None) -> list[int]:
        """How many ids a fetch asks each rank for, [world_size]."""
        return [0] * self._comm.world_size if located is None else located.counts

    def _of_others(self, counts: list[int]) -> list[int]:
        return [count for peer, count in enumerate(counts) if peer != self._comm.rank]


def _joined(pieces: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Byte pieces as one tensor of `dtype`; without a copy where all but one are empty and that one is aligned."""
    full = [piece for piece in pieces if piece.numel()]
    if len(full) == 1 and full[0].storage_offset() % dtype.itemsize == 0:
        return full[0].view(dtype)
    return torch.cat([*pieces]).view(dtype)
