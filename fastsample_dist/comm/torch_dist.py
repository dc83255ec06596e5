"""Collectives over torch.distributed: gloo for CPU tensors, nccl for CUDA tensors.

Every collective is started with async_op and waited for in slices, so that Ctrl-C gets through and the
deadline is the communicator's own. A CPU wait blocks in gloo; a CUDA wait polls until the work is done, because
nccl's own wait only orders streams and its watchdog ends the process without naming the call. What gloo
reports (a peer's closed connection, its own time limit) is passed on in one line.

The end of a process needs care. A gloo worker thread releases a finished collective's tensors after it has reported
the collective as done, and releasing takes the interpreter's lock; a thread that asks for the lock while the
interpreter ends is ended by Python in the middle of C++ code, and the process aborts ("terminate called without an
active exception"). So no thread is ever the last to release them: the works of the last collectives are held here,
and never released once the communicator is closed or left. They hold views of the caller's tensors, emptied when the
collective is done, so that this costs no memory.

Process groups of duplicates and sub-groups are made by torch's own helper and not by `dist.new_group`, which all
ranks of the run must call, or else (use_local_synchronization) names groups by how many the process has: ranks in
different sub-groups would name the same group differently and wait for each other. It also sorts the ranks. Here the
name is the lane, which is the same on all members.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from fastsample_dist.comm.base import DEFAULT_MAX_MESSAGE_BYTES, Communicator
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, CollectiveError, Deadline, DeadlineError, PeerLostError
from fastsample_dist.comm.handshake import RunStore
from fastsample_dist.comm.rows import Segments

WAIT_SLICE_S = 0.2  # how late a signal, or an abort by another thread, is seen while a wait blocks
CUDA_WATCHDOG_GRACE_S = 30.0  # nccl's watchdog ends the process; the communicator's deadline comes first
CUDA_POLL_S = 2e-5  # between two polls of a CUDA work; a kernel launch takes about as long
KEPT_WORKS = 8  # last collectives, and gradient buckets, whose works a worker thread may still hold at the end
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class TorchCommunicator(Communicator):
    """Collectives of one torch.distributed process group.

    Args:
      process_group: the group; its own time limit should be `timeout_s`.
      backend: what the group was made with, "gloo" or "cpu:gloo,cuda:nccl"; duplicates and sub-groups use it too.
      store: where the members of duplicates and sub-groups meet.
      timeout_s: seconds that any one collective may take.
      max_message_bytes: longest message between two ranks in one round.
      counters: shared counters, a new set when None.
    Attributes:
      process_group: the torch group, for DistributedDataParallel; None once the communicator is closed.
    """

    uses_torch_distributed = True
    _reduce_as: ClassVar = {torch.int16: torch.int32}  # gloo and nccl have no 16-bit integers

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        backend: str,
        store: RunStore,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(
            dist.get_rank(process_group),
            dist.get_world_size(process_group),
            timeout_s=timeout_s,
            max_message_bytes=max_message_bytes,
            counters=counters,
        )
        self.process_group: dist.ProcessGroup | None = process_group
        self._last_works: deque[dist.Work] = deque(maxlen=KEPT_WORKS)
        self._last_futures: deque[dist.Work] = deque(maxlen=KEPT_WORKS)
        self._started: list[dist.Work] = []  # not yet waited for
        self._backend, self._store = backend, store
        self._moves_cuda_tensors = "nccl" in backend  # else they travel through host memory

    def _exchange(self, into: Segments, out: Segments, deadline: Deadline) -> None:
        def start(received: Tensor, sent: Tensor) -> dist.Work:
            return dist.all_to_all_single(
                received, sent, into.lengths, out.lengths, group=self.process_group, async_op=True
            )

        self._run(start, (into.buffer, out.buffer), deadline)

    def _reduce(self, flat: Tensor, op: str, deadline: Deadline) -> None:
        def start(view: Tensor) -> dist.Work:
            return dist.all_reduce(view, _OPS[op], group=self.process_group, async_op=True)

        self._run(start, (flat,), deadline)

    def _broadcast(self, flat: Tensor, src: int, deadline: Deadline) -> None:
        def start(view: Tensor) -> dist.Work:
            return dist.broadcast(view, self.run_ranks[src], group=self.process_group, async_op=True)

        self._run(start, (flat,), deadline)

    def _barrier(self, deadline: Deadline) -> None:
        # A sum of one number: dist.barrier would choose the device by itself.
        self._reduce(torch.zeros(1, dtype=torch.int64), "sum", deadline)

    def _run(self, start: Callable[..., dist.Work], tensors: tuple[Tensor, ...], deadline: Deadline) -> None:
        """Run a collective on views of tensors; its work is held for a while after it is done."""
        views = [torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.detach()) for tensor in tensors]
        self._last_works.append(_run(lambda: start(*views), tensors[0].is_cuda, deadline))
        for view in views:
            view.set_()  # releases the caller's memory, on this thread

    def _sum_as_it_is(self, tensor: Tensor, deadline: Deadline) -> dist.Work | None:
        """The started sum of a tensor; None for one that needs a copy, or rounds."""
        stays = self._moves_cuda_tensors or not tensor.is_cuda
        plain = stays and tensor.is_contiguous() and tensor.dtype not in self._reduce_as
        if not plain or not 0 < tensor.nbytes <= self.max_message_bytes:
            return None
        try:
            return dist.all_reduce(tensor.detach(), group=self.process_group, async_op=True)
        except RuntimeError as error:
            raise _named(error, deadline.timeout_s) from error

    def _reduce_start(self, tensor: Tensor, deadline: Deadline) -> Callable[[], None]:
        work = self._sum_as_it_is(tensor, deadline)
        if work is None:
            return super()._reduce_start(tensor, deadline)
        self._started.append(work)

        def finish() -> None:
            _wait(work, tensor.is_cuda, deadline)
            self._started.remove(work)
            self._last_futures.append(work)

        return finish

    def _reduce_future(self, tensor: Tensor, where: str, deadline: Deadline) -> torch.futures.Future[Tensor]:
        work = self._sum_as_it_is(tensor, deadline)
        if work is None:
            return super()._reduce_future(tensor, where, deadline)
        self._last_futures.append(work)

        def finish(done: torch.futures.Future) -> Tensor:
            try:
                done.value()
            except RuntimeError as error:
                reason = _named(error, deadline.timeout_s)
                self._failure = f"{where} {reason}{self._watch.diagnosis(reason, deadline)}"
                raise RuntimeError(f"{self._failure}.") from None
            return tensor

        return work.get_future().then(finish)

    def _duplicate(self, lane: str, deadline: Deadline) -> TorchCommunicator:
        return self._over(self.run_ranks, self.rank, lane, deadline, self._counters)

    def _split(self, members: tuple[int, ...], lane: str, deadline: Deadline) -> TorchCommunicator:
        run_ranks = tuple(self.run_ranks[member] for member in members)
        return self._over(run_ranks, members.index(self.rank), lane, deadline, Counters())

    def _over(
        self, run_ranks: tuple[int, ...], rank: int, lane: str, deadline: Deadline, counters: Counters
    ) -> TorchCommunicator:
        """A communicator over these ranks of the run, in which this process has the number `rank`."""
        timeout = group_timeout(self._backend, self.timeout_s)
        try:
            group = self._store.ask(
                lambda keys: _new_group(run_ranks, rank, self._backend, keys, lane, timeout), deadline
            )
        except RuntimeError as error:
            raise _named(error, deadline.timeout_s) from error
        made = TorchCommunicator(
            group,
            self._backend,
            self._store,
            timeout_s=self.timeout_s,
            max_message_bytes=self.max_message_bytes,
            counters=counters,
        )
        made._barrier(deadline)  # a member that closes it at once would break the others' connections in the making
        return made

    def _close(self) -> None:
        """Let torch forget the group; its threads end here unless something else keeps it, see above."""
        self._keep_works()
        dist.destroy_process_group(self.process_group)
        self.process_group = None

    def _leave(self) -> None:
        """Close the connections: waits in other threads fail, and so do the peers'.

        A torch without `ProcessGroup.abort` keeps them until the process ends, which closes them as well.
        The group is never destructed: its destructor waits for a collective that is still running, up to
        the time limit, and would hold up the end of the process.
        """
        self._keep_works()
        _leak_reference(self.process_group)
        abort = getattr(self.process_group, "abort", None)
        if abort is not None:
            abort()
        dist.destroy_process_group(self.process_group)
        self.process_group = None

    def _keep_works(self) -> None:
        for work in (*self._last_works, *self._last_futures, *self._started):
            _leak_reference(work)


def group_timeout(backend: str, timeout_s: float) -> timedelta:
    """The time limit to give a torch process group whose collectives have the deadline `timeout_s`."""
    return timedelta(seconds=timeout_s + (CUDA_WATCHDOG_GRACE_S if "nccl" in backend else 0.0))


def _new_group(
    run_ranks: tuple[int, ...], rank: int, backend: str, store: dist.Store, lane: str, timeout: timedelta
) -> dist.ProcessGroup:
    """A process group that only its members make, in the order of `run_ranks`; see the module's text."""
    name = f"fastsample_dist/{lane}"
    group, _ = distributed_c10d._new_process_group_helper(
        len(run_ranks), rank, list(run_ranks), dist.Backend(backend), store, name, timeout=timeout
    )
    distributed_c10d._world.pg_group_ranks[group] = {member: number for number, member in enumerate(run_ranks)}
    return group


def _leak_reference(thing: object) -> None:
    """Make Python never release its reference, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _run(start: Callable[[], dist.Work], is_cuda: bool, deadline: Deadline) -> dist.Work:
    """Start a collective and wait until it is done; the work of one that is interrupted is never released.

    Raises:
      DeadlineError: the deadline passed first.
      CollectiveError: it failed, in the transport's words.
    """
    try:
        work = start()
    except RuntimeError as error:
        raise _named(error, deadline.timeout_s) from error
    _wait(work, is_cuda, deadline)
    return work


def _wait(work: dist.Work, is_cuda: bool, deadline: Deadline) -> None:
    """Wait until a collective is done; the work of one that is interrupted is never released. Raises as `_run`."""
    try:
        while not _finished(work, is_cuda, deadline):
            deadline.check()
    except BaseException:
        _leak_reference(work)
        raise


def _finished(work: dist.Work, is_cuda: bool, deadline: Deadline) -> bool:
    """Wait for one slice; True when the work is done."""
    try:
        if is_cuda and not work.is_completed():
            time.sleep(CUDA_POLL_S)
            return False
        if is_cuda:
            work.wait()
        else:
            work.wait(timedelta(seconds=min(WAIT_SLICE_S, max(deadline.remaining_s, 1e-3))))
    except RuntimeError as error:
        if not work.is_completed():
            return False  # only the slice is over; the work continues
        if "Operation timed out" in str(error):
            return False  # it completed between the two calls: the next wait returns or raises at once
        raise _named(error, deadline.timeout_s) from error
    return True


def _named(error: RuntimeError, timeout_s: float) -> CollectiveError:
    """The transport's error as one line: the deadline, or what it reported about the peer."""
    said = str(error).split("\n", 1)[0]
    if "imed out" in said or "imeout" in said:
        return DeadlineError(timeout_s)
    if said.startswith("["):  # gloo opens with the path of its source file
        said = said.split("] ", 1)[-1]
    said = said.split(". This is typically", 1)[0]
    if "Too many open files" in said:  # of this process: no peer has ended
        return CollectiveError(f"failed: {said}; raise the limit of open files (ulimit -n)")
    if any(word in said.lower() for word in ("connection", "socket", "broken pipe", "abort")):
        return PeerLostError(f"failed because a peer ended or its connection broke ({said}); see its error")
    return CollectiveError(f"failed: {said}")
