"""The one interface of all collectives: `Communicator`, with its counters and row plans.

A public collective is a template written once: check the arguments, name the call, set its deadline, cut
long messages into rounds, run the backend's primitive, count. A backend adds only `_exchange`, `_reduce`,
`_broadcast`, `_barrier`, `_duplicate` and the ways to end: `_close` and `_leave`.

Rows are exchanged in two steps. `plan_rows` sends every peer one pair (rows from me to you, my longest
message in rows): a rank then knows what it receives and the longest message of the whole group, so all ranks
agree on the number of rounds with no further collective. `exchange_rows` moves the rows as bytes, which makes
every dtype work. The way back (a reply to a request) needs no second plan: `plan.reversed()`.
"""

from __future__ import annotations

import math
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from fastsample_dist.comm.board import StatusBoard, Watch, describe
from fastsample_dist.comm.checks import check_counts, check_reduce, check_rows
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, CollectiveError, Deadline, check_timeout_s
from fastsample_dist.comm.rows import RowPlan, Segments, byte_view, exchange_staged, num_rounds, parts

__all__ = ["DEFAULT_MAX_MESSAGE_BYTES", "DEFAULT_TIMEOUT_S", "Communicator", "Counters", "RowPlan"]

DEFAULT_MAX_MESSAGE_BYTES = 2**30
"""Longest message between two ranks in one round: half of what a signed 32-bit length can hold."""
ABORT_GRACE_S = 2.0
"""How long a leaving rank waits for a collective in another thread to notice; backends look more often."""


class Communicator(ABC):
    """Collectives of one group of ranks, with a deadline on every call and exact counts.

    What is counted, by purpose: `calls` grows by 1 per public collective, however many rounds it takes.
    `bytes_sent` and `bytes_received` are the payload that leaves this rank for others and comes from them:
      - row exchanges: the bytes of the rows; a rank's own chunk never counts. `plan_rows`: purpose "counts",
        16 bytes for each other rank in each direction;
      - `all_reduce`: the tensor's bytes, once in each direction, when world_size > 1;
      - `broadcast`: the source sends the tensor's bytes once, every other rank receives them;
      - `all_gather_object`: the rank's own pickled bytes sent (once), the other ranks' received;
      - `barrier`: no bytes. `duplicate` is not counted.
    A call that fails is not counted.

    Use one communicator from one thread at a time; another thread gets its own by `duplicate()`. All ranks
    make the same calls in the same order. After a failed collective the ranks no longer agree where they are,
    so every later call on the same communicator is refused with the first failure.

    Args:
      rank: this process's rank, 0 .. world_size - 1.
      world_size: number of ranks.
      timeout_s: seconds that any one collective may take.
      max_message_bytes: longest message between two ranks in one round; the same on all ranks.
      counters: shared counters, a new set when None.
    Attributes:
      step: global training step named in errors; -1 outside a step.
      verify_exchanges: when True (on all ranks alike) every `exchange_rows` first compares row counts and
        row bytes with each peer (16 bytes each, not counted), so that ranks which disagree get an error
        instead of whatever the transport does. For tests and for finding such a mistake.
      uses_torch_distributed: True when a torch process group exists (attribute `process_group`).
      abort_ends_process: True when `abort` ends the whole run (MPI with more than one rank).
    Raises:
      ValueError: timeout_s, max_message_bytes, rank or world_size out of range.
    """

    uses_torch_distributed = False
    abort_ends_process = False
    _moves_cuda_tensors = False  # True: primitives take CUDA tensors as they are
    _max_total_bytes: int | None = None  # most bytes one primitive call may address; None: no bound
    _reduce_as: ClassVar[dict[torch.dtype, torch.dtype]] = {}  # dtypes the backend reduces in a wider dtype

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; expected 0 to world_size - 1 = {world_size - 1}.")
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = check_timeout_s(timeout_s)
        self.max_message_bytes = max_message_bytes
        self.step = -1
        self.verify_exchanges = False
        self._counters = Counters() if counters is None else counters
        self._failure: str | None = None
        self._closed = False
        self._aborted = threading.Event()
        self._idle = threading.Event()  # no collective is under way
        self._idle.set()
        self._duplicates: list[Communicator] = []
        self._watch = Watch(rank)

    # ---- public collectives ----

    def plan_rows(self, send_counts: Sequence[int] | Tensor) -> RowPlan:
        """Agree on who sends how many rows to whom.

        Collective: every rank must call this. Purpose "counts".

        Args:
          send_counts: rows for each rank, [world_size], each >= 0; integers or an integer tensor.
        Returns:
          RowPlan for `exchange_rows`.
        Raises:
          ValueError: a wrong number of counts or a negative one.
          RuntimeError: the collective failed or passed its deadline.
        """
        counts = check_counts(send_counts, self.world_size)
        longest = max((count for peer, count in enumerate(counts) if peer != self.rank), default=0)
        with self._collective("all_to_all", "counts") as deadline:
            received = self._exchange_pairs([(count, longest) for count in counts], deadline)
        control_bytes = 16 * (self.world_size - 1)
        self._counters.add("counts", control_bytes, control_bytes)
        return RowPlan(counts, [count for count, _ in received], max(longest for _, longest in received))

    def exchange_rows(self, rows: Tensor, plan: RowPlan, *, purpose: str) -> Tensor:
        """Send each rank its rows and return the rows that came.

        Collective: every rank must call this, with the same plan, dtype and row shape.

        Args:
          rows: [sum(plan.send_counts), ...], any dtype; grouped by destination rank, ascending.
          plan: from `plan_rows`, or its `reversed()`.
          purpose: what the bytes are counted as.
        Returns:
          New tensor [sum(plan.recv_counts), ...] of the same dtype and device, grouped by source rank,
          ascending.
        Raises:
          ValueError: rows do not fit the plan, or the plan does not fit the group.
          RuntimeError: the collective failed or passed its deadline, or (verify_exchanges) ranks disagree.
        """
        check_rows(rows, plan, self.world_size)
        row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
        wire_rows = (rows.detach() if self._moves_cuda_tensors else rows.detach().cpu()).contiguous()
        received = wire_rows.new_empty((sum(plan.recv_counts), *rows.shape[1:]))
        out = Segments(byte_view(wire_rows), [count * row_bytes for count in plan.send_counts])
        into = Segments(byte_view(received), [count * row_bytes for count in plan.recv_counts])
        with self._collective("all_to_all", purpose) as deadline:
            if self.verify_exchanges:
                self._compare_with_peers(plan, row_bytes, deadline)
            self._exchange_rounds(into, out, plan.max_message_rows * row_bytes, deadline)
        self._counters.add(purpose, out.bytes_of_others(self.rank), into.bytes_of_others(self.rank))
        return received.to(rows.device)

    def all_to_all_rows(
        self, rows: Tensor, send_counts: Sequence[int] | Tensor, *, purpose: str = "rows"
    ) -> tuple[Tensor, list[int]]:
        """`plan_rows` and `exchange_rows` in one call.

        Collective: every rank must call this. Counts one call of "counts" and one of `purpose`.

        Args:
          rows: [sum(send_counts), ...], any dtype; grouped by destination rank.
          send_counts: rows for each rank, [world_size].
          purpose: what the bytes are counted as.
        Returns:
          The rows that came, grouped by source rank, and how many came from each rank, [world_size].
        Raises:
          ValueError, RuntimeError: as `plan_rows` and `exchange_rows`.
        """
        plan = self.plan_rows(send_counts)
        return self.exchange_rows(rows, plan, purpose=purpose), plan.recv_counts

    def all_reduce(self, tensor: Tensor, *, op: str = "sum", purpose: str) -> Tensor:
        """Replace `tensor` on every rank by the element-wise sum, maximum or minimum over all ranks.

        Collective: every rank must call this, with the same shape, dtype and op.

        Args:
          tensor: any shape; a floating or integer dtype (not bool). Changed in place.
          op: "sum", "max" or "min".
          purpose: what the bytes are counted as.
        Returns:
          `tensor`.
        Raises:
          ValueError: an unknown op or a dtype that cannot be reduced.
          RuntimeError: the collective failed or passed its deadline.
        """
        check_reduce(tensor, op)
        with self._collective("all_reduce", purpose) as deadline:
            self._reduce_in_place(tensor, op, deadline)
        self._count_both_ways(purpose, tensor.nbytes)
        return tensor

    def all_reduce_future(self, tensor: Tensor, *, purpose: str) -> torch.futures.Future[Tensor]:
        """Start a sum over all ranks and return its future; made for a DDP communication hook.

        Collective: every rank must call this. Counted when it starts. Over torch.distributed the sum runs
        in the background; elsewhere the future is complete when the method returns.

        Args:
          tensor: as for `all_reduce`; changed in place, not to be touched until the future is done.
          purpose: what the bytes are counted as.
        Returns:
          Future whose value is `tensor`; it raises RuntimeError as `all_reduce` does.
        Raises:
          ValueError: a dtype that cannot be reduced.
          RuntimeError: the communicator has failed before, or the collective cannot start.
        """
        check_reduce(tensor, "sum")
        with self._collective("all_reduce", purpose) as deadline:
            future = self._reduce_future(tensor, self._where("all_reduce", purpose), deadline)
        self._count_both_ways(purpose, tensor.nbytes)
        return future

    def broadcast(self, tensor: Tensor, src: int = 0, *, purpose: str) -> Tensor:
        """Replace `tensor` on every rank by that of rank `src`.

        Collective: every rank must call this, with the same shape and dtype.

        Args:
          tensor: any shape and dtype. Changed in place.
          src: the rank whose values everybody gets.
          purpose: what the bytes are counted as.
        Returns:
          `tensor`.
        Raises:
          ValueError: src is not a rank.
          RuntimeError: the collective failed or passed its deadline.
        """
        if not 0 <= src < self.world_size:
            raise ValueError(f"src is {src}; expected a rank from 0 to {self.world_size - 1}.")
        with self._collective("broadcast", purpose) as deadline, self._flat(tensor, tensor.dtype) as flat:
            for part in parts(byte_view(flat), self._max_message_bytes):
                self._broadcast(part, src, deadline)
        moved = tensor.nbytes if self.world_size > 1 else 0
        self._counters.add(purpose, moved if self.rank == src else 0, moved if self.rank != src else 0)
        return tensor

    def all_gather_object(self, obj: object, *, purpose: str) -> list:
        """Every rank's object, by rank.

        Collective: every rank must call this. Objects travel pickled, so only among processes that trust
        each other; a length of 16 bytes goes ahead of each and is not counted.

        Args:
          obj: anything that pickles.
          purpose: what the pickled bytes are counted as.
        Returns:
          List [world_size]; entry r is a copy of rank r's object.
        Raises:
          RuntimeError: the collective failed or passed its deadline.
        """
        payload = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        own_sizes = [payload.numel()] * self.world_size
        with self._collective("all_gather", purpose) as deadline:
            told = self._exchange_pairs([(size, 0) for size in own_sizes], deadline)
            sizes = [size for size, _ in told]
            into = Segments(torch.empty(sum(sizes), dtype=torch.uint8), sizes)
            out = Segments(payload.repeat(self.world_size), own_sizes)
            self._exchange_rounds(into, out, max(sizes), deadline)
        sent = payload.numel() if self.world_size > 1 else 0
        self._counters.add(purpose, sent, into.bytes_of_others(self.rank))
        return [pickle.loads(piece.numpy().tobytes()) for piece in into.pieces()]

    def barrier(self, *, purpose: str = "barrier") -> None:
        """Return once every rank has arrived.

        Collective: every rank must call this.

        Raises:
          RuntimeError: the collective failed or passed its deadline.
        """
        with self._collective("barrier", purpose) as deadline:
            self._barrier(deadline)
        self._counters.add(purpose, 0, 0)

    def duplicate(self) -> Communicator:
        """A second communicator over the same ranks, for use by another thread at the same time.

        Collective: every rank must call this, in the same order as other duplicates. The copy has a
        transport group of its own, this one's limits and step, and shares the counters. Close it when it is
        no longer used.

        Raises:
          RuntimeError: the backend cannot serve two threads, the collective failed or passed its deadline.
        """
        with self._collective("duplicate", "communicator") as deadline:
            copy = self._duplicate(deadline)
        copy._watch = self._watch.of_duplicate()
        copy.step = self.step
        copy.verify_exchanges = self.verify_exchanges
        self._duplicates = [old for old in self._duplicates if old._failure or not old._closed] + [copy]
        return copy

    # ---- limits, counts, end ----

    @property
    def watch(self) -> Watch:
        """What publishes, traces and diagnoses the collectives; shared in part with duplicates."""
        return self._watch

    def watch_with(self, board: StatusBoard) -> None:
        """Publish every collective on `board`, which is closed with this communicator. Call it before `duplicate`."""
        self._watch = Watch(self.rank, board)

    @property
    def max_message_bytes(self) -> int:
        """Longest message between two ranks in one round; set it to the same value on all ranks."""
        return self._max_message_bytes

    @max_message_bytes.setter
    def max_message_bytes(self, limit_bytes: int) -> None:
        if not isinstance(limit_bytes, int) or limit_bytes < 1:
            raise ValueError(f"max_message_bytes is {limit_bytes!r}; expected an integer of at least 1.")
        self._max_message_bytes = limit_bytes

    @property
    def failure(self) -> str | None:
        """What the first failed collective of this communicator or an open duplicate said; else None."""
        return next((c._failure for c in (self, *self._duplicates) if c._failure is not None), None)

    @property
    def closed(self) -> bool:
        """True once `close` or `abort` was called."""
        return self._closed

    def stats(self) -> dict[str, dict[str, int]]:
        """{purpose: {"calls", "bytes_sent", "bytes_received"}}, duplicates included."""
        return self._counters.snapshot()

    def reset_stats(self) -> None:
        """Set all counts to zero, those of duplicates too."""
        self._counters.reset()

    def close(self) -> None:
        """Release the group and its open duplicates. A second call does nothing.

        Collective: every rank must call this, while none of its collectives runs. After a failed collective
        it waits for nobody.
        """
        if self._closed:
            return
        self._closed = True
        for duplicate in self._duplicates:
            duplicate.close()
        if self._failure is None:
            self._close()
        else:
            self._leave()
        self._watch.close()

    def abort(self) -> None:
        """Leave without waiting for any rank: break this rank's connections, so that its peers fail too.

        Duplicates are left as well. Under MPI with more than one rank (`abort_ends_process`) this ends the
        whole run with status 1. Collectives of other threads end with an error. On a closed communicator it
        does nothing.
        """
        leaving = [comm for comm in (*self._duplicates, self) if not comm._closed]
        for comm in leaving:
            comm._closed = True
            comm._aborted.set()
            comm._leave()
        for comm in leaving:
            comm._idle.wait(ABORT_GRACE_S)
        self._watch.close()

    # ---- what a backend adds ----

    @abstractmethod
    def _exchange(self, into: Segments, out: Segments, deadline: Deadline) -> None:
        """Send piece r of `out` to rank r and receive piece r of `into` from it; the own piece is copied."""

    @abstractmethod
    def _reduce(self, flat: Tensor, op: str, deadline: Deadline) -> None:
        """All-reduce a contiguous 1-D tensor in place."""

    @abstractmethod
    def _broadcast(self, flat: Tensor, src: int, deadline: Deadline) -> None:
        """Broadcast a contiguous uint8 tensor in place."""

    @abstractmethod
    def _barrier(self, deadline: Deadline) -> None:
        """Wait for every rank."""

    @abstractmethod
    def _duplicate(self, deadline: Deadline) -> Communicator:
        """A communicator with a group of its own that shares `self._counters`."""

    @abstractmethod
    def _close(self) -> None:
        """Release the group after success."""

    @abstractmethod
    def _leave(self) -> None:
        """Release what can be released without waiting for anybody."""

    def _reduce_future(self, tensor: Tensor, where: str, deadline: Deadline) -> torch.futures.Future[Tensor]:
        """Sum now; a backend that can sum in the background overrides this and names errors by `where`."""
        self._reduce_in_place(tensor, "sum", deadline)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future

    # ---- written once ----

    def _where(self, collective: str, purpose: str) -> str:
        when = f"step {self.step}" if self.step >= 0 else "outside a step"
        return f"rank {self.rank}, {when}: {describe(collective, purpose)}"

    @contextmanager
    def _collective(self, collective: str, purpose: str) -> Iterator[Deadline]:
        """One named call: refused on an unusable communicator, given a deadline, its failure named."""
        where = self._where(collective, purpose)
        if self._failure is not None:
            raise RuntimeError(
                f"{where} refused: this communicator failed before ({self._failure}); end the run and start it again."
            )
        if self._closed:
            raise RuntimeError(f"{where} refused: this communicator is closed.")
        self._idle.clear()
        self._watch.enter(self.step, describe(collective, purpose))
        deadline = Deadline(self.timeout_s, self._aborted)
        try:
            yield deadline
        except CollectiveError as error:
            self._failure = f"{where} {error}{self._watch.diagnosis(error, deadline)}"
            raise RuntimeError(f"{self._failure}.") from None  # the transport's words are in it
        except KeyboardInterrupt:
            self._failure = f"{where} was interrupted"
            raise
        finally:
            self._watch.leave()
            self._idle.set()

    def _exchange_pairs(self, pairs: list[tuple[int, int]], deadline: Deadline) -> list[tuple[int, int]]:
        """Send pair r to rank r; return the pairs that came, by rank. int64, so 16 bytes each."""
        send = torch.tensor(pairs, dtype=torch.int64)
        recv = torch.empty_like(send)
        lengths = [16] * self.world_size
        self._exchange(Segments(byte_view(recv), lengths), Segments(byte_view(send), lengths), deadline)
        return [(first, second) for first, second in recv.tolist()]

    def _exchange_rounds(self, into: Segments, out: Segments, longest_bytes: int, deadline: Deadline) -> None:
        """Exchange segments in as many rounds as the group's longest message needs.

        The number of rounds depends only on what all ranks know alike. One round hands the whole buffers to
        the backend, the own piece included; more rounds, or buffers beyond its reach, are staged.
        """
        limit_bytes = self._limit_bytes()
        rounds = num_rounds(longest_bytes, limit_bytes)
        most_bytes = max(out.buffer.numel(), into.buffer.numel())
        if rounds == 1 and (self._max_total_bytes is None or most_bytes <= self._max_total_bytes):
            self._exchange(into, out, deadline)
            return

        def exchange_round(into_round: Segments, out_round: Segments) -> None:
            self._exchange(into_round, out_round, deadline)

        exchange_staged(exchange_round, self.rank, into, out, (rounds, limit_bytes))

    def _limit_bytes(self) -> int:
        """Longest message of one round: such that a whole round stays addressable by the backend."""
        if self._max_total_bytes is None:
            return self._max_message_bytes
        return min(self._max_message_bytes, self._max_total_bytes // self.world_size)

    def _compare_with_peers(self, plan: RowPlan, row_bytes: int, deadline: Deadline) -> None:
        """Raise when a peer is about to send other rows than this rank expects."""
        told = self._exchange_pairs([(count, row_bytes) for count in plan.send_counts], deadline)
        for peer, ((count, peer_bytes), expected) in enumerate(zip(told, plan.recv_counts, strict=True)):
            if count != expected:
                raise CollectiveError(f"got {count} rows from rank {peer}, expected {expected}")
            if peer_bytes != row_bytes:
                raise CollectiveError(f"got rows of {peer_bytes} bytes from rank {peer}, expected {row_bytes}")

    @contextmanager
    def _flat(self, tensor: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
        """A contiguous 1-D buffer of `dtype` with the tensor's values; on success they are written back."""
        source = tensor.detach()
        flat = (source if self._moves_cuda_tensors else source.cpu()).to(dtype).contiguous().view(-1)
        yield flat
        if flat.data_ptr() != source.data_ptr():
            source.copy_(flat.view(source.shape))

    def _reduce_in_place(self, tensor: Tensor, op: str, deadline: Deadline) -> None:
        with self._flat(tensor, self._reduce_as.get(tensor.dtype, tensor.dtype)) as flat:
            for part in parts(flat, max(1, self._max_message_bytes // flat.element_size())):
                self._reduce(part, op, deadline)

    def _count_both_ways(self, purpose: str, nbytes: int) -> None:
        moved = nbytes if self.world_size > 1 else 0
        self._counters.add(purpose, moved, moved)
