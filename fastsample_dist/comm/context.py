"""`DistContext`: how a process joins its run, and how it leaves it.

Joining: the environment shows who started the process (environment.py); torch.distributed meets at a store
(rendezvous.py) over the interface that routes there (network_interface.py), MPI needs neither. Leaving after success:
all ranks wait for each other once, then release their groups. Leaving by an exception: nobody waits. Under
torch.distributed this rank's connections are closed, which makes the others fail within moments; under MPI the
traceback is printed and the run aborted. Ctrl-C is one line, not a traceback.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, TracebackType

import torch
import torch.distributed as dist

from fastsample_dist.comm.agree import by_value
from fastsample_dist.comm.base import DEFAULT_TIMEOUT_S, Communicator
from fastsample_dist.comm.board import FileBoard, StoreBoard
from fastsample_dist.comm.deadline import CollectiveError, Deadline, check_timeout_s
from fastsample_dist.comm.environment import LaunchInfo, parse_environment
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.machine import Machines, find_machines
from fastsample_dist.comm.names import rank_names
from fastsample_dist.comm.network_interface import choose_interface
from fastsample_dist.comm.rendezvous import all_gather_once, board_store, meet
from fastsample_dist.comm.torch_dist import TorchCommunicator, group_timeout
from fastsample_dist.device.choice import (
    CPU,
    DeviceError,
    DeviceReport,
    agree_device,
    check_device,
    computing,
    own_report,
)
from fastsample_dist.interrupts import raise_dropped_interrupts

logger = logging.getLogger(__name__)
Asked = tuple[str, DeviceReport | None]  # the device that a rank wants; what it has, unless that is the CPU
_INTERRUPTED = "rank {rank} was interrupted.\n"
FORWARD_S = 0.5  # for mpirun to forward what was printed: an abort drops output that is still in its pipes


class DistContext:
    """One process's place in the run. Use it with `with`: leaving the block leaves the run.

    Args:
      comm: collectives over all ranks; the context closes it.
      local_rank: this process among those of its machine.
      local_world_size: processes on this machine.
      device: where this rank computes.
      launcher: who started the process, see `LaunchInfo`.
      device_reason: why it is that device, in a few words.
    Attributes:
      rank, world_size: those of `comm`.
    Raises:
      DeviceError: a GPU that this process cannot use.
    """

    def __init__(
        self,
        comm: Communicator,
        local_rank: int = 0,
        local_world_size: int = 1,
        device: torch.device | str = "cpu",
        launcher: str = "none",
        device_reason: str = "asked for",
    ) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.world_size = comm.world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.device = computing(device)
        self.launcher = launcher
        self.device_reason = device_reason
        self._left = False
        self._machines: Machines | None = None

    @classmethod
    def from_env(
        cls,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        backend: str | None = None,
        *,
        device: str = "cpu",
        environ: Mapping[str, str] | None = None,
    ) -> DistContext:
        """Join the run that started this process: torchrun, mpirun, mpiexec, srun, or a run of one process.

        Collective: every rank must call this, once: several ranks under torch.distributed do not meet again.

        Args:
          timeout_s: seconds for all ranks to join, and for any one collective later.
          backend: "torch", "mpi" or "local"; None: MPI under mpirun and mpiexec, torch.distributed under
            torchrun and srun, local without a launcher.
          device: "cpu"; "cuda" for a GPU per rank, which becomes the current one; "auto" for "cuda" where every rank
            has a GPU and the CUDA library, else "cpu".
          environ: the variables to read instead of os.environ.
        Returns:
          The context, with its collectives ready.
        Raises:
          ValueError: timeout_s, backend or device out of range; an environment that is partial or contradictory.
          RuntimeError: ranks did not join in time (named); a package, a route or (on all ranks alike) the device of
            some rank is missing. Under MPI, whose start cannot be broken off, a rank that waited for timeout_s ends
            with one line and status 1.
        """
        timeout_s, device = check_timeout_s(timeout_s), check_device(device)
        info = parse_environment(os.environ if environ is None else environ, backend)
        try:
            return cls._join(info, timeout_s, device)
        except KeyboardInterrupt:
            report_interrupts_in_one_line(info.rank)
            raise

    @classmethod
    def _join(cls, info: LaunchInfo, timeout_s: float, device: str) -> DistContext:
        if info.backend == "mpi":
            return _join_mpi(cls, info, timeout_s, device)
        if info.backend == "local":
            where, reason = _device(device, 0, lambda own: [own])
            return cls(LocalCommunicator(timeout_s=timeout_s), 0, 1, where, info.launcher, reason)
        return _join_torch(cls, info, timeout_s, device)

    def __enter__(self) -> DistContext:
        raise_dropped_interrupts()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close()
        else:
            self._leave_failed(error)

    def machines(self) -> Machines:
        """Which ranks share a machine (comm/machine.py), found out once. Collective: every rank must call this."""
        if self._machines is None:
            self._machines = find_machines(self.comm)
        return self._machines

    def close(self) -> None:
        """Wait until every rank is done, then release the communicator. A second call does nothing.

        Collective: every rank must call this. After a failed collective it does not wait; under MPI it then
        aborts the run, because MPI can no longer shut down cleanly.

        Raises:
          RuntimeError: another rank ended early or did not come before the deadline.
        """
        if self._left or self.comm.closed:
            return
        if self.comm.failure is not None:
            self._left = True
            logger.warning("rank %d leaves after a failed collective: %s", self.rank, self.comm.failure)
            self.comm.abort()
            return
        try:
            self.comm.barrier(purpose="exit")
        except BaseException as error:
            self._leave_failed(error)
            raise
        self._left = True
        self.comm.close()

    def _leave_failed(self, error: BaseException) -> None:
        """Leave at once; the exception propagates to the caller, except under MPI, where the run ends here."""
        if self._left:
            return
        self._left = True
        if isinstance(error, KeyboardInterrupt):
            report_interrupts_in_one_line(self.rank)
        if self.comm.failure is None or isinstance(error, KeyboardInterrupt):
            self.comm.watch.leave_run()
        if self.comm.abort_ends_process:
            _print_failure(self.rank, error)
            sys.stderr.flush()
            time.sleep(FORWARD_S)
        self.comm.abort()


def report_interrupts_in_one_line(rank: int) -> None:
    """From now on an uncaught KeyboardInterrupt is one line instead of its traceback.

    It is still raised, for those who catch it to save what they have, and still ends the process by SIGINT.
    """
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write(_INTERRUPTED.format(rank=rank))
        else:
            usual(kind, error, trace)

    sys.excepthook = hook


def _print_failure(rank: int, error: BaseException) -> None:
    """Print what the interpreter can no longer print: the traceback; one line for Ctrl-C and `sys.exit("a line")`."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write(_INTERRUPTED.format(rank=rank))
        return
    if isinstance(error, SystemExit) and isinstance(error.code, str):
        sys.stderr.write(f"{error.code}\n")
        return
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    sys.stderr.write(f"rank {rank} ends the run:\n{''.join(lines)}")


def _device(wanted: str, rank: int, share: Callable[[Asked], list[Asked]]) -> tuple[torch.device, str]:
    """This rank's device, a GPU being made the current one, and why it is that device.

    Args:
      wanted: "cpu", "cuda" or "auto".
      rank: this one.
      share: gives what all ranks want and have, for what this rank does.
    Raises:
      DeviceError: on all ranks, when they want different devices, or "cuda" and one rank cannot.
    """
    of_ranks = share((wanted, None if wanted == CPU else own_report()))
    all_wanted = [choice for choice, _ in of_ranks]
    if len(set(all_wanted)) > 1:
        raise DeviceError(
            f"the ranks ask for different devices: {by_value(all_wanted, range(len(all_wanted)))}; ask for the same "
            "one (--device, device=) on all."
        )
    if wanted == CPU:
        return torch.device(CPU), "asked for"
    device, reason = agree_device(wanted, [report for _, report in of_ranks if report is not None], rank)
    if device.type != CPU:
        torch.cuda.set_device(device)
    return device, reason


def _local_place(comm: Communicator, info: LaunchInfo) -> tuple[int, int]:
    """(local_rank, local_world_size), counted by host name where the launcher does not give them."""
    if info.local_rank is not None and info.local_world_size is not None:
        return info.local_rank, info.local_world_size
    hosts = comm.all_gather_object(socket.gethostname(), purpose="join")
    comm.reset_stats()
    return hosts[: comm.rank].count(hosts[comm.rank]), hosts.count(hosts[comm.rank])


def _join_torch(cls: type[DistContext], info: LaunchInfo, timeout_s: float, wanted: str) -> DistContext:
    if dist.is_initialized():
        raise RuntimeError(
            f"rank {info.rank}: this process has a torch process group already; leave the first DistContext, or "
            "destroy the group, before joining again."
        )
    several_machines = info.local_world_size is not None and info.local_world_size < info.world_size
    choose_interface(info.master_addr, several_machines)
    store = meet(info, timeout_s)
    device, reason = _device(wanted, info.rank, lambda own: all_gather_once(store, info, own, timeout_s))
    uses_nccl = device.type != CPU and dist.is_nccl_available()  # else tensors travel through host memory
    name = "cpu:gloo,cuda:nccl" if uses_nccl else "gloo"

    def connect(keys: dist.PrefixStore) -> None:
        timeout = group_timeout(name, timeout_s)
        dist.init_process_group(name, store=keys, rank=info.rank, world_size=info.world_size, timeout=timeout)

    try:
        store.ask(connect, Deadline(timeout_s))
    except CollectiveError as error:
        raise RuntimeError(f"rank {info.rank}: joining {error}.") from None
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        raise RuntimeError(
            f"rank {info.rank}: connecting {info.world_size} ranks over {os.environ.get('GLOO_SOCKET_IFNAME')} "
            f"failed within {timeout_s:g} s ({reason}); see the other ranks, or set GLOO_SOCKET_IFNAME."
        ) from error
    group = dist.group.WORLD
    assert group is not None  # it was made a moment ago
    comm = TorchCommunicator(group, name, store, timeout_s=timeout_s)
    try:
        if info.world_size > 1:
            board, server = board_store(info, timeout_s)
            comm.watch_with(StoreBoard(board, info.rank, server))
        return cls(comm, *_local_place(comm, info), device, info.launcher, reason)
    except BaseException:
        comm.abort()
        raise


def _join_mpi(cls: type[DistContext], info: LaunchInfo, timeout_s: float, wanted: str) -> DistContext:
    from fastsample_dist.comm.mpi import MPICommunicator, abort_world, load_mpi, must_start_within

    late = (
        f"rank {info.rank}: MPI did not start {info.world_size} ranks within {timeout_s:g} s; look at those that have "
        "not printed this, or raise timeout_s."
    )
    with must_start_within(timeout_s, late) if info.world_size > 1 else nullcontext():
        mpi = load_mpi()
    try:
        _check_mpi_world(mpi, info)
        comm = MPICommunicator.over_world(timeout_s)
        if comm.world_size > 1 and (board := _shared_board(comm)) is not None:
            comm.watch_with(board)
        place = _local_place(comm, info)
        device, reason = _device(wanted, comm.rank, lambda own: comm.all_gather_object(own, purpose="join"))
        comm.reset_stats()
        return cls(comm, *place, device, info.launcher, reason)
    except DeviceError:  # all ranks raise it, so that they can leave in order
        comm.close()
        raise
    except BaseException as error:
        if mpi.COMM_WORLD.Get_size() > 1:
            _print_failure(mpi.COMM_WORLD.Get_rank(), error)
            abort_world()
        raise


def _shared_board(comm: Communicator) -> FileBoard | None:
    """The status board of the ranks of this machine; its file is unlinked when this returns.

    None, on all of them, without room, or where one cannot open the file: containers may have a host's name and a
    /dev/shm of their own.
    """
    host = socket.gethostname()
    hosts = comm.all_gather_object(host, purpose="join")
    first = hosts.index(host)
    path = FileBoard.create_file(comm.world_size) if comm.rank == first else None
    try:
        shared = comm.all_gather_object(path, purpose="join")[first]
        board = None if shared is None else _opened_board(shared, comm.rank, hosts)
        opened = comm.all_gather_object(board is not None, purpose="join")  # after which all have tried
    finally:
        if path is not None:
            Path(path).unlink()
    without = [rank for rank, found in enumerate(opened) if hosts[rank] == host and not found]
    if board is None or not without:
        return board
    if comm.rank == first:
        logger.warning(
            "%s on %s cannot open the file that rank %d made at %s: if a rank does not come, it will not be named; let "
            "all ranks there share that directory, or give each container a host name of its own.",
            rank_names(without), host, first, Path(path).parent,
        )  # fmt: skip
    board.close()
    return None


def _opened_board(path: str, rank: int, hosts: list[str]) -> FileBoard | None:
    """None where this rank cannot open the file."""
    try:
        return FileBoard(path, rank, hosts)
    except OSError as error:
        logger.debug("rank %d: no status board: %s", rank, error)
        return None


def _check_mpi_world(mpi: ModuleType, info: LaunchInfo) -> None:
    """Refuse an MPI library that does not see the ranks which the launcher started."""
    rank, world_size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if info.launcher != "none" and (rank, world_size) != (info.rank, info.world_size):
        library = mpi.Get_library_version().split("\n", 1)[0].strip("\0 ")
        raise RuntimeError(
            f"the launcher ({info.launcher}) says rank {info.rank} of {info.world_size} but MPI says rank {rank} "
            f"of {world_size}; mpi4py uses {library}: start the ranks with that library's mpirun."
        )
