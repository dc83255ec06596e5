"""Runs a task on several ranks for a command: starts the ranks, and reports the one that failed first in one line.

A rank is a command that runs testing/job_rank.py; a job names a task ("module:function") and gives every rank its
settings. Ranks of one machine meet at a store in this process; ranks on hosts of their own (a command prefix that
enters the host, and its address) meet at rank 0's; under MPI, mpirun starts them. Supervisor and reports ensure
that nothing outlives this process.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastsample_dist.comm.environment import LAUNCHER_VARIABLES
from fastsample_dist.testing.reports import (
    CALL,
    FAILED,
    PID,
    RETURNED,
    Call,
    dump,
    has_failed,
    read_reports,
    run_folder,
)
from fastsample_dist.testing.supervisor import Supervisor, kill_group

if TYPE_CHECKING:
    from fastsample_dist.comm.context import DistContext

LOOPBACK = "127.0.0.1"
LOOPBACK_S = 5.0  # for a connection over it, which the kernel makes by itself
HOSTS_PORT = 29500  # hosts have network stacks of their own: nobody else listens there
PEERS_GRACE_S = 3.0  # after the first failure: for the others to report what they saw
MPI_END_S = 5.0  # mpirun's time to end its processes
MPIRUN = "mpirun"
RANK_COMMAND = (sys.executable, "-m", "fastsample_dist.testing.job_rank")
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# Open MPI (4 and 5) as root, with more ranks than cores, unbound; others ignore it.
MPI_VARIABLES = {
    **{f"{library}_ALLOW_RUN_AS_ROOT{end}": "1" for library in ("OMPI", "PRTE") for end in ("", "_CONFIRM")},
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


@dataclass(frozen=True)
class RankHost:
    """A machine that runs a rank, or several.

    Attributes:
      address: where the other hosts reach it.
      prefix: the command that runs another command there.
    """

    address: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """What the ranks do.

    Attributes:
      task: "module:function", called on every rank as function(ctx, settings, folder). The folder is that of the run;
        what ranks leave there lives as long as the block of `ranks_ended`.
      settings: one per rank; of types that pickle.
      deadline_s: seconds until every rank must have ended.
      timeout_s: of one collective.
      threads: intra-op threads of a rank.
    """

    task: str
    settings: Sequence[dict]
    deadline_s: float = 600.0
    timeout_s: float = 60.0
    threads: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.settings)


def run_ranks(job: RankJob, hosts: Sequence[RankHost] = (), mpirun: str | None = None) -> list[dict]:
    """What the task returned, by rank; see `ranks_ended`."""
    with ranks_ended(job, hosts, mpirun) as (results, _):
        return results


@contextmanager
def ranks_ended(
    job: RankJob, hosts: Sequence[RankHost] = (), mpirun: str | None = None
) -> Iterator[tuple[list[dict], Path]]:
    """Run a job to its end, and keep its folder for the block.

    Args:
      job: what to run.
      hosts: one per rank, the same one for ranks that share it; none starts all ranks on this machine.
      mpirun: this program starts the ranks on this machine; None: they run under torch.distributed, one rank
        without any launcher.
    Returns:
      (what the task returned, by rank; the folder of the run).
    Raises:
      ValueError: a rank refused its input.
      RuntimeError: a rank failed, ended without a report, or had not ended at the deadline; names it.
    """
    call = Call(function=partial(run_task, job.task, job.settings), timeout_s=job.timeout_s, threads=job.threads)
    with run_folder() as folder:
        write_call(folder, dump(call))
        yield (_run_torch(job, hosts, folder) if mpirun is None else _run_mpi(job, mpirun, folder)), folder


def run_task(task: str, settings: Sequence[dict], ctx: DistContext, folder: Path) -> dict:
    """In a rank: call the function that "module:function" names."""
    from fastsample_dist.device.allocator import reuse_freed_memory

    reuse_freed_memory()
    module, _, function = task.partition(":")
    return getattr(importlib.import_module(module), function)(ctx, settings[ctx.rank], folder)


def write_call(folder: Path, content: bytes) -> None:
    """Leave a pickled `Call` to ranks that are commands."""
    (folder / CALL).write_bytes(dump((sys.path, content)))


def _run_torch(job: RankJob, hosts: Sequence[RankHost], folder: Path) -> list[dict]:
    assert not hosts or len(hosts) == job.world_size, "one host per rank"
    with meeting_point(job.world_size, hosts) as variables_of, Supervisor() as supervisor:
        for rank in range(job.world_size):
            command = [*(hosts[rank].prefix if hosts else ()), *RANK_COMMAND, str(folder)]
            own = own_environment(job.threads) | variables_of(rank)
            supervisor.start(_name(rank), command, log=folder / f"rank-{rank}.log", follows=False, env=own)
        return _watch(job, folder, supervisor)


def _run_mpi(job: RankJob, mpirun: str, folder: Path) -> list[dict]:
    with mpirun_started(mpirun, job.world_size, folder, folder / "mpirun.log", job.threads) as supervisor:
        return _watch(job, folder, supervisor)


@contextmanager
def mpirun_started(mpirun: str, world_size: int, folder: Path, log: Path, threads: int = 1) -> Iterator[Supervisor]:
    """The ranks of a run whose call is in its folder, under mpirun (named MPIRUN); they end with the block."""
    with Supervisor(MPI_END_S) as supervisor:
        command = [mpirun, "-n", str(world_size), *RANK_COMMAND, str(folder)]
        supervisor.start(MPIRUN, command, log=log, follows=False, env=own_environment(threads) | MPI_VARIABLES)
        try:
            yield supervisor
        finally:
            if supervisor.statuses()[MPIRUN] is None:
                for report in read_reports(folder, world_size):
                    kill_group(report.get(PID))  # mpirun gives every rank a group of its own


def find_mpirun() -> str | None:
    """mpirun beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name(MPIRUN)
    return str(beside) if beside.exists() else shutil.which(MPIRUN)


def own_environment(threads: int = 1) -> dict[str, str]:
    """This process's environment, without a launcher's variables."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environ["OMP_NUM_THREADS"] = str(threads)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE_ROOT), environ.get("PYTHONPATH"))))
    return environ


@contextmanager
def meeting_point(
    world_size: int, hosts: Sequence[RankHost] = (), alone: bool = True
) -> Iterator[Callable[[int], dict[str, str]]]:
    """Serve the place where ranks meet under torch.distributed, for the block.

    Args:
      world_size: number of ranks.
      hosts: where they run; none: on this machine.
      alone: one rank on this machine runs without any launcher.
    Returns:
      The variables of a rank, as torchrun would set them.
    Raises:
      RuntimeError: ranks of this machine cannot meet on loopback.
    """
    if alone and world_size == 1 and not hosts:
        yield lambda rank: {}
        return
    if hosts:
        store, place = None, {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(HOSTS_PORT)}
    else:
        import torch.distributed as dist

        _check_loopback()
        store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        place = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port)}
        place |= {"TORCHELASTIC_RUN_ID": "fastsample", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    places = [host.address for host in hosts] or [LOOPBACK] * world_size

    def variables_of(rank: int) -> dict[str, str]:
        together = [peer for peer, address in enumerate(places) if address == places[rank]]
        local = {"LOCAL_RANK": str(together.index(rank)), "LOCAL_WORLD_SIZE": str(len(together))}
        return place | {"RANK": str(rank), "WORLD_SIZE": str(world_size), **local}

    yield variables_of
    del store  # it serves until here


def _check_loopback() -> None:
    """Raise where no connection can be made over loopback: torch's store would retry for minutes."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_S).close()
    except OSError as error:
        raise RuntimeError(
            f"ranks of this machine cannot meet at {LOOPBACK} ({error}); ip link set lo up, or look at the firewall."
        ) from error


def _watch(job: RankJob, folder: Path, supervisor: Supervisor) -> list[dict]:
    """Wait until all processes have ended; the ranks' results, or the error of the one that failed first."""
    statuses = supervisor.watch(job.deadline_s, PEERS_GRACE_S, lambda: has_failed(folder))
    reports = {_name(rank): report for rank, report in enumerate(read_reports(folder, job.world_size))}
    failures = [(report[FAILED], name) for name, report in reports.items() if FAILED in report]
    for name, status in statuses.items():
        if status is not None and status < 0 and FAILED not in reports.get(name, ()):  # others fail because of it
            raise RuntimeError(f"{name} of {job.world_size} ranks was killed by {_signal_name(-status)}.")
    if failures:
        failure, name = min(failures)
        if failure.is_refusal:
            raise ValueError(failure.text)
        places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
        raise RuntimeError(f"{name} of {job.world_size} failed: {failure.text} ({places[-1]})")
    missing = [name for name, report in reports.items() if RETURNED not in report]
    for name, status in statuses.items():
        if status or (status == 0 and (name in missing or (name == MPIRUN and missing))):
            raise RuntimeError(f"{name} ended with exit code {status} and no result: {_printed(supervisor, name)}")
    running = [name for name, status in statuses.items() if status is None]
    if running:  # a rank that is done waits for the others: one without a result keeps it
        name = max(running, key=lambda name: name in missing)
        text = f"{name} had not ended after {job.deadline_s:g} s and was killed"
        raise RuntimeError(f"{text}: {_printed(supervisor, name)}")
    return [report[RETURNED] for report in reports.values()]


def _name(rank: int) -> str:
    return f"rank {rank}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _printed(supervisor: Supervisor, name: str) -> str:
    return " ".join(" ".join(supervisor.tail(name)).split()) or "it printed nothing"
