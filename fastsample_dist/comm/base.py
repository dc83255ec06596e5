"""The one interface of all collectives: `Communicator`, with its counters and row plans.

A public collective is a template written once: check the arguments, name the call, set its deadline, cut
long messages into rounds, run the backend's primitive, count. A backend adds only `_exchange`, `_reduce`,
`_broadcast`, `_barrier`, the ways to derive another communicator (`_duplicate`, `_split`) and the ways to end
(`_close`, `_leave`). Everything but the collectives is in membership.py.

Rows are exchanged in two steps. `plan_rows` sends every peer one pair (rows from me to you, my longest
message in rows): a rank then knows what it receives and the longest message of the whole group, so all ranks
agree on the number of rounds with no further collective. `exchange_rows` moves the rows as bytes, which makes
every dtype work. The way back (a reply to a request) needs no second plan: `plan.reversed()`.
"""

from __future__ import annotations

import math
import pickle
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree_on
from fastsample_dist.comm.checks import check_counts, check_members, check_reduce, check_rows
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, AstrayError, CollectiveError, Deadline
from fastsample_dist.comm.membership import DEFAULT_MAX_MESSAGE_BYTES, Membership, group_note
from fastsample_dist.comm.pickled import unpickle
from fastsample_dist.comm.rows import RowPlan, Segments, Share, exchange_staged, num_rounds, parts
from fastsample_dist.ops.bytes import byte_view

__all__ = ["DEFAULT_MAX_MESSAGE_BYTES", "DEFAULT_TIMEOUT_S", "Communicator", "Counters", "RowPlan"]


class Communicator(Membership):
    """Collectives of one group of ranks, with a deadline on every call and exact counts.

    What is counted, by purpose: `calls` grows by 1 per public collective, however many rounds it takes.
    `bytes_sent` and `bytes_received` are the payload that leaves this rank for others and comes from them:
      - row exchanges: the bytes of the rows, a `Share` of them under its own purpose; a rank's own chunk never counts.
        `plan_rows`: purpose "counts", 16 bytes for each other rank in each direction, 24 with a note;
      - `all_reduce`: the tensor's bytes, once in each direction, when world_size > 1;
      - `broadcast`: the source sends the tensor's bytes once, every other rank receives them;
      - `all_gather_object`: the rank's own pickled bytes sent (once), the other ranks' received;
      - `barrier`: no bytes. `duplicate` is not counted, `split` as the comparison of its lists (`agree_on`).
    A call that fails is not counted.

    Use one communicator from one thread at a time; another thread gets its own by `duplicate()`. All ranks
    make the same calls in the same order. After a failed collective the ranks no longer agree on where they are,
    so every later call on the same communicator is refused with the first failure.

    Ranks of a sub-group (`split`) are numbered 0 to world_size - 1 in calls and results; messages, the status board
    and the trace number all ranks as in the run.

    Args:
      rank: this process's rank, 0 .. world_size - 1.
      world_size: number of ranks.
      timeout_s: seconds that any one collective may take.
      max_message_bytes: longest message between two ranks in one round; the same on all ranks.
      counters: shared counters, a new set when None.
    Attributes:
      run_ranks: rank in the run of every member, [world_size]; 0 .. world_size - 1 unless this is a sub-group.
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
    _moves_cuda_tensors = False  # True: primitives take CUDA tensors as they are
    _max_total_bytes: int | None = None  # most bytes one primitive call may address; None: no bound
    _reduce_as: ClassVar[dict[torch.dtype, torch.dtype]] = {}  # dtypes the backend reduces in a wider dtype

    # ---- public collectives ----

    def plan_rows(self, send_counts: Sequence[int] | Tensor, *, note: int | None = None) -> RowPlan:
        """Agree on who sends how many rows to whom.

        Collective: every rank must call this. Purpose "counts".

        Args:
          send_counts: rows for each rank, [world_size], each >= 0; integers or an integer tensor.
          note: a number that all ranks are to know of each other, of 64 bits; None, on all of them: none.
        Returns:
          RowPlan for `exchange_rows`, with the notes.
        Raises:
          ValueError: a wrong number of counts or a negative one.
          RuntimeError: the collective failed or passed its deadline.
        """
        counts = check_counts(send_counts, self.world_size)
        longest = max((count for peer, count in enumerate(counts) if peer != self.rank), default=0)
        with self._collective("all_to_all", "counts") as deadline:
            noted = () if note is None else (note,)
            received = self._exchange_numbers([(count, longest, *noted) for count in counts], deadline)
            self._check_alike([row[1] >= 0 for row in received])  # else a mark of `all_gather_object`
        control_bytes = 8 * len(received[0]) * (self.world_size - 1)
        self._counters.add("counts", control_bytes, control_bytes)
        recv_counts, longest_of_all, *notes = (list(column) for column in zip(*received, strict=True))
        return RowPlan(counts, recv_counts, max(longest_of_all), *notes)

    def exchange_rows(self, rows: Tensor, plan: RowPlan, *, purpose: str, share: Share | None = None) -> Tensor:
        """Send each rank its rows and return the rows received.

        Collective: every rank must call this, with the same plan, dtype and row shape.

        Args:
          rows: [sum(plan.send_counts), ...], any dtype; grouped by destination rank, ascending.
          plan: from `plan_rows`, or its `reversed()`; or made by ranks that know each other's counts.
          purpose: what the call and the bytes are counted as.
          share: bytes among them that are counted as another purpose, which gets no call.
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
        apart = share or Share(purpose, 0, 0)
        sent, came = out.bytes_of_others(self.rank), into.bytes_of_others(self.rank)
        self._counters.add(purpose, sent - apart.bytes_sent, came - apart.bytes_received)
        if share is not None:
            self._counters.add(share.purpose, share.bytes_sent, share.bytes_received, calls=0)
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
          The rows received, grouped by source rank, and how many came from each rank, [world_size].
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

    def all_reduce_start(self, tensor: Tensor, *, purpose: str) -> Callable[[], None]:
        """Start a sum over all ranks and return what waits for it, in which Ctrl-C gets through.

        Collective: every rank must call this. Counted when it starts. Over torch.distributed the sum runs
        in the background; elsewhere it is complete when the method returns.

        Args:
          tensor: as for `all_reduce`; changed in place, not to be touched until the wait is over.
          purpose: what the bytes are counted as.
        Returns:
          To be called once, in the order of the starts; raises RuntimeError as `all_reduce` does.
        Raises:
          ValueError: a dtype that cannot be reduced.
          RuntimeError: the communicator has failed before, or the collective cannot start.
        """
        check_reduce(tensor, "sum")
        where = self._where("all_reduce", purpose)
        with self._collective("all_reduce", purpose) as deadline:
            finish = self._reduce_start(tensor, deadline)
        self._count_both_ways(purpose, tensor.nbytes)

        def wait() -> None:
            with self._failing_as(where, deadline):
                finish()

        return wait

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
        each other; 16 bytes go ahead of each and are not counted: its length, and a mark of the purpose, by which
        ranks that make different calls are an error here.

        Args:
          obj: anything that pickles.
          purpose: what the pickled bytes are counted as.
        Returns:
          List [world_size]; entry r is a copy of rank r's object.
        Raises:
          RuntimeError: the collective failed or passed its deadline.
        """
        payload = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        own_sizes, mark = [payload.numel()] * self.world_size, -1 - zlib.crc32(purpose.encode())
        with self._collective("all_gather", purpose) as deadline:
            received = self._exchange_numbers([(size, mark) for size in own_sizes], deadline)
            # releases before schema 10 send 0, and have to meet this one to hear that they are others
            self._check_alike([found == mark or (found == 0 and size > 0) for size, found in received])
            sizes = [size for size, _ in received]
            into = Segments(torch.empty(sum(sizes), dtype=torch.uint8), sizes)
            out = Segments(payload.repeat(self.world_size), own_sizes)
            self._exchange_rounds(into, out, max(sizes), deadline)
        sent = payload.numel() if self.world_size > 1 else 0
        self._counters.add(purpose, sent, into.bytes_of_others(self.rank))
        return [unpickle(piece.numpy().tobytes()) for piece in into.pieces()]

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
            lane = self._next_lane()
            copy = self._duplicate(lane, deadline)
        self._adopt(copy, lane, self.run_ranks, self._group_note)
        return copy

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator over some of the ranks: a sub-group with its own counters, deadline, step and failure.

        Collective: every rank must call this, with the same list, in the same order as other splits and duplicates;
        ranks outside the list included. Several calls make several groups, which may overlap. A rank may work
        in several groups at the same time if it uses each from one thread.

        The sub-group starts with this communicator's limits and step, and counts from zero; `stats` of this one does
        not include it. It is closed by its members, or with this communicator. A failure in it leaves this
        communicator and other sub-groups usable, but `failure` reports it and DistContext then leaves by `abort`.

        Args:
          ranks: ranks of this communicator, different ones; member i of the list is rank i of the sub-group.
        Returns:
          The sub-group on its members, None on the other ranks.
        Raises:
          ValueError: on all ranks alike: the lists differ; empty, a rank twice or out of range.
          RuntimeError: the backend cannot serve it, the collective failed or passed its deadline.
        """
        members, refusal = check_members(ranks, self.world_size)
        agree_on(self, "split", {"the list": members or refusal}, remedy="pass the same list on every rank")
        if refusal:
            raise ValueError(f"split: {refusal}")
        with self._collective("split", "communicator") as deadline:
            lane = self._next_lane()
            group = self._split(members, lane, deadline) if self.rank in members else None
        if group is not None:
            run_ranks = tuple(self.run_ranks[member] for member in members)
            self._adopt(group, lane, run_ranks, group_note(run_ranks))
        return group

    # ---- what a backend adds ----

    @abstractmethod
    def _exchange(self, into: Segments, out: Segments, deadline: Deadline) -> None:
        """Send piece r of `out` to rank r and receive piece r of `into` from it; this rank's own piece is copied."""

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
    def _duplicate(self, lane: str, deadline: Deadline) -> Communicator:
        """A communicator over the same ranks with a transport group of its own that shares `self._counters`.

        Args:
          lane: names it, see `_next_lane`.
          deadline: by which all members must have joined.
        """

    @abstractmethod
    def _split(self, members: tuple[int, ...], lane: str, deadline: Deadline) -> Communicator:
        """A communicator over ranks of this one, in the order of `members`, with its own counters.

        Called on the members only.
        """

    def _reduce_future(self, tensor: Tensor, where: str, deadline: Deadline) -> torch.futures.Future[Tensor]:
        """Sum now; a backend that can sum in the background overrides this and names errors by `where`."""
        self._reduce_in_place(tensor, "sum", deadline)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future

    def _reduce_start(self, tensor: Tensor, deadline: Deadline) -> Callable[[], None]:
        """Sum now; a backend that can sum in the background overrides this and returns what waits for it."""
        self._reduce_in_place(tensor, "sum", deadline)
        return lambda: None

    # ---- written once ----

    def _exchange_numbers(self, rows: list[tuple[int, ...]], deadline: Deadline) -> list[list[int]]:
        """Send row r to rank r; return the rows received, by rank. All are as long; int64, so 8 bytes a number."""
        send = torch.tensor(rows, dtype=torch.int64)
        recv = torch.empty_like(send)
        lengths = [8 * send.shape[1]] * self.world_size
        self._exchange(Segments(byte_view(recv), lengths), Segments(byte_view(send), lengths), deadline)
        return recv.tolist()

    def _check_alike(self, alike: list[bool]) -> None:
        """Raise when what a rank has sent, by rank, is not of this collective."""
        if not all(alike):
            raise AstrayError(self.run_ranks[alike.index(False)])

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
        announced = self._exchange_numbers([(count, row_bytes) for count in plan.send_counts], deadline)
        for peer, (count, peer_bytes), expected in zip(self.run_ranks, announced, plan.recv_counts, strict=True):
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
