"""Plans for exchanging rows, and the arithmetic that cuts long messages into rounds.

A message is a piece of a byte buffer; piece r goes to (or comes from) rank r. With a limit of B bytes a
message travels as spans [0, B), [B, 2B), ... in rounds 0, 1, ...; the group's longest message sets the number
of rounds, so every rank makes the same number of exchanges, with empty spans once its messages are over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowPlan:
    """Who sends how many rows to whom, seen from one rank. Made by `Communicator.plan_rows`.

    Attributes:
      send_counts: rows this rank sends to each rank, [world_size].
      recv_counts: rows this rank receives from each rank, [world_size].
      max_message_rows: rows of the longest message between two different ranks; the same on all ranks.
      notes: each rank's, [world_size]; empty where none were given.
    """

    send_counts: list[int]
    recv_counts: list[int]
    max_message_rows: int
    notes: Sequence[int] = ()

    def reversed(self) -> RowPlan:
        """The plan of the reply: what was received is sent back. Its longest message is the same, reversed."""
        return RowPlan(self.recv_counts, self.send_counts, self.max_message_rows)


@dataclass(frozen=True)
class Share:
    """Bytes of an exchange that are counted as another purpose than the call.

    Attributes:
      purpose: of these bytes.
      bytes_sent, bytes_received: how many of those that leave this rank for others, and that come from them.
    """

    purpose: str
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True)
class Segments:
    """Consecutive pieces of one byte buffer.

    Attributes:
      buffer: uint8 [sum(lengths)].
      lengths: bytes of the piece that goes to (or comes from) each rank, [world_size].
    """

    buffer: Tensor
    lengths: list[int]

    def pieces(self) -> list[Tensor]:
        """One view of the buffer per rank."""
        return list(self.buffer.split(self.lengths))

    def bytes_of_others(self, rank: int) -> int:
        """Bytes of all pieces but that of `rank`."""
        return sum(self.lengths) - self.lengths[rank]


def num_rounds(longest_message_bytes: int, limit_bytes: int) -> int:
    """Rounds of at most `limit_bytes` that a message of `longest_message_bytes` takes; 0 for an empty one."""
    return -(-longest_message_bytes // limit_bytes)


def round_span(message_bytes: int, round_index: int, limit_bytes: int) -> tuple[int, int]:
    """Bytes (begin, end) of a message that travel in round `round_index`; empty once it is over."""
    begin = min(round_index * limit_bytes, message_bytes)
    return begin, min(begin + limit_bytes, message_bytes)


def parts(flat: Tensor, length: int) -> tuple[Tensor, ...]:
    """Views of at most `length` elements each; none of an empty tensor."""
    return flat.split(length) if flat.numel() else ()


def exchange_staged(
    exchange: Callable[[Segments, Segments], None],
    rank: int,
    into: Segments,
    out: Segments,
    limits: tuple[int, int],
) -> None:
    """Exchange long messages span by span, through staging buffers; this rank's own piece is copied.

    Args:
      exchange: moves one round, `exchange(into, out)`; called once per round, on every rank alike.
      rank: this rank.
      into: where the messages go.
      out: the messages to send.
      limits: (rounds, limit_bytes), the same on all ranks.
    """
    rounds, limit_bytes = limits
    in_pieces, out_pieces = into.pieces(), out.pieces()
    in_pieces[rank].copy_(out_pieces[rank])
    in_pieces[rank] = out_pieces[rank] = out.buffer[:0]
    for k in range(rounds):
        out_spans = _spans_of_round(out_pieces, k, limit_bytes)
        in_spans = _spans_of_round(in_pieces, k, limit_bytes)
        in_lengths = [span.numel() for span in in_spans]
        staged = Segments(into.buffer.new_empty(sum(in_lengths)), in_lengths)
        exchange(staged, Segments(torch.cat(out_spans), [span.numel() for span in out_spans]))
        for span, came in zip(in_spans, staged.pieces(), strict=True):
            span.copy_(came)


def _spans_of_round(pieces: list[Tensor], round_index: int, limit_bytes: int) -> list[Tensor]:
    return [piece[slice(*round_span(piece.numel(), round_index, limit_bytes))] for piece in pieces]
