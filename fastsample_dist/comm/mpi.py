"""Collectives over MPI, without any torch process group.

Every collective is a nonblocking one whose request is tested until it is done or the deadline passes. Between
two tests the rank first only yields its core, then sleeps longer and longer: short exchanges stay short, and
ranks that share a core (or a thread that computes) are not starved. Tensors travel from host memory, rows as
MPI_BYTE; 16-bit floats are reduced in float32.

MPI 3 has no nonblocking way to make a sub-group, so that one blocking call (MPI_Comm_create_group) runs in a
thread that is left behind when the deadline passes.
"""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from fastsample_dist.comm.base import DEFAULT_MAX_MESSAGE_BYTES, Communicator
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, CollectiveError, Deadline
from fastsample_dist.comm.rows import Segments

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

INT32_MAX = 2**31 - 1
YIELD_FOR_S = 2e-3  # a collective of a few megabytes on one machine; until then only yield
MAX_SLEEP_S = 1e-3
JOIN_SLICE_S = 0.05  # how late the deadline, or an abort by another thread, is seen while a sub-group is made


class MPICommunicator(Communicator):
    """Collectives of one MPI communicator.

    Args:
      mpi_comm: an mpi4py intracommunicator for this object alone; it is freed by `close`.
      timeout_s: seconds that any one collective may take.
      max_message_bytes: longest message between two ranks in one round.
      counters: shared counters, a new set when None.
    """

    # Lengths and offsets of MPI 3 are C ints: one round must stay below 2^31 bytes in all.
    _max_total_bytes = INT32_MAX
    _reduce_as: ClassVar = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

    def __init__(
        self,
        mpi_comm: MPI.Intracomm,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(
            mpi_comm.Get_rank(),
            mpi_comm.Get_size(),
            timeout_s=timeout_s,
            max_message_bytes=min(max_message_bytes, INT32_MAX),
            counters=counters,
        )
        self._mpi = load_mpi()
        self._comm = mpi_comm
        self._unfinished: list[tuple[object, ...]] = []
        self.abort_ends_process = self.world_size > 1

    def abort(self) -> None:
        """End the whole run with status 1 when the group has more than one rank.

        MPI has no other way for one rank to leave: MPI_Finalize waits for everybody.
        """
        was_closed = self.closed
        super().abort()
        if self.abort_ends_process and not was_closed:
            abort_world()

    @classmethod
    def over_world(cls, timeout_s: float = DEFAULT_TIMEOUT_S) -> MPICommunicator:
        """A communicator over a copy of MPI_COMM_WORLD, so that its messages never mix with the user's own.

        Collective: every rank must call this.

        Raises:
          RuntimeError: mpi4py is missing, or a rank did not take part before the deadline.
        """
        world = cls(load_mpi().COMM_WORLD, timeout_s=timeout_s)
        with world._collective("duplicate", "communicator") as deadline:
            return world._copy(deadline)

    def _exchange(self, into: Segments, out: Segments, deadline: Deadline) -> None:
        into.pieces()[self.rank].copy_(out.pieces()[self.rank])
        send, recv = self._without_own(out), self._without_own(into)
        self._complete(lambda: self._comm.Ialltoallv(send, recv), (send, recv), deadline)

    def _without_own(self, segments: Segments) -> list:
        """The buffer as mpi4py takes it, with this rank's own piece left out."""
        offsets = [end - length for end, length in zip(accumulate(segments.lengths), segments.lengths, strict=True)]
        lengths = list(segments.lengths)
        lengths[self.rank] = 0
        return [segments.buffer.numpy(), lengths, offsets, self._mpi.BYTE]

    def _reduce(self, flat: Tensor, op: str, deadline: Deadline) -> None:
        mpi_op = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[op]
        array = flat.numpy()
        self._complete(lambda: self._comm.Iallreduce(self._mpi.IN_PLACE, array, mpi_op), array, deadline)

    def _broadcast(self, flat: Tensor, src: int, deadline: Deadline) -> None:
        array = flat.numpy()
        self._complete(lambda: self._comm.Ibcast([array, self._mpi.BYTE], src), array, deadline)

    def _barrier(self, deadline: Deadline) -> None:
        self._complete(self._comm.Ibarrier, None, deadline)

    def _duplicate(self, lane: str, deadline: Deadline) -> MPICommunicator:
        self._require_thread_level("MULTIPLE", "a second MPI communicator for another thread", "use no prefetching")
        return self._copy(deadline)

    def _split(self, members: tuple[int, ...], lane: str, deadline: Deadline) -> MPICommunicator:
        self._require_thread_level("SERIALIZED", "making an MPI sub-group", "do not split the ranks")
        everybody = self._comm.Get_group()
        chosen = everybody.Incl(members)
        try:
            made = _call_in_thread(lambda: self._comm.Create_group(chosen), deadline)
        except self._mpi.Exception as error:
            raise CollectiveError(f"failed in MPI ({error.Get_error_string()})") from error
        chosen.Free()
        everybody.Free()
        return MPICommunicator(made, timeout_s=self.timeout_s, max_message_bytes=self.max_message_bytes)

    def _require_thread_level(self, level: str, what: str, otherwise: str) -> None:
        found, needed = self._mpi.Query_thread(), getattr(self._mpi, f"THREAD_{level}")
        if found < needed:
            raise RuntimeError(
                f"rank {self.run_rank}: {what} needs MPI_THREAD_{level}, but MPI was initialised with level {found}; "
                f'import mpi4py with mpi4py.rc.thread_level = "{level.lower()}", or {otherwise}.'
            )

    def _copy(self, deadline: Deadline) -> MPICommunicator:
        copies: list[MPI.Intracomm] = []

        def start() -> MPI.Request:
            copy, request = self._comm.Idup()
            copies.append(copy)
            return request

        self._complete(start, copies, deadline)
        return MPICommunicator(
            copies[0],
            timeout_s=self.timeout_s,
            max_message_bytes=self.max_message_bytes,
            counters=self._counters,
        )

    def _close(self) -> None:
        self._comm.Free()

    def _leave(self) -> None:
        """Nothing can be released: MPI may still write to the buffers of an unfinished collective."""

    def _complete(self, start: Callable[[], MPI.Request], buffers: object, deadline: Deadline) -> None:
        """Start a nonblocking collective and test it until it is done."""
        try:
            request = start()
            self._unfinished.append((request, buffers))
            while not request.Test():
                deadline.check()
                _pause(deadline.elapsed_s)
            self._unfinished.pop()
        except self._mpi.Exception as error:
            raise CollectiveError(f"failed in MPI ({error.Get_error_string()})") from error


def _call_in_thread(call: Callable[[], T], deadline: Deadline) -> T:
    """What a blocking call returns or raises; its thread is left behind when the deadline passes first."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="fastsample-mpi-split", daemon=True)
    thread.start()
    while thread.is_alive():
        deadline.check()
        thread.join(JOIN_SLICE_S)
    if errors:
        raise errors[0]
    return results[0]


def _pause(elapsed_s: float) -> None:
    """Yield the core, at first only for a moment, then for longer and longer."""
    time.sleep(0.0 if elapsed_s < YIELD_FOR_S else min(elapsed_s / 20, MAX_SLEEP_S))


def abort_world() -> None:
    """End all processes of the MPI run with status 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    load_mpi().COMM_WORLD.Abort(1)


@contextmanager
def must_start_within(timeout_s: float, late: str) -> Iterator[None]:
    """End this process with status 1 and one line on standard error unless the block ends in time.

    MPI_Init waits for every rank, and mpi4py holds the interpreter's lock meanwhile: only faulthandler's thread runs.
    What that prints goes to a shell, which prints the line in its place.

    Args:
      timeout_s: seconds for the block.
      late: the line.
    """
    command = ["sh", "-c", 'read -r _ && echo "$0" >&2', late]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as printer:
        assert printer.stdin is not None
        faulthandler.dump_traceback_later(min(timeout_s, threading.TIMEOUT_MAX), exit=True, file=printer.stdin)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def load_mpi() -> ModuleType:
    """The module mpi4py.MPI; importing it initialises MPI.

    Raises:
      RuntimeError: mpi4py or the MPI library it was built for is missing.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"mpi4py cannot be loaded ({error}); install it with pip install 'fastsample_dist[mpi]', or start "
            "the ranks with torchrun."
        ) from error
    return MPI
