"""Starts the ranks of a job, watches them, and ends them all: at the first failure, the deadline, or Ctrl-C.

A rank is a subprocess that runs testing/job_rank.py; a job names a task ("module:function") and gives every rank its
settings. Ranks of one machine meet at a store in this process; ranks on hosts of their own (a command prefix that
enters the host, and its address) meet at rank 0's; under MPI, mpirun starts them. Nothing outlives this process:
it holds a lock on the job's folder; ranks that find it free end, and remove the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.comm.deadline import Deadline
from fastsample_dist.comm.environment import LAUNCHER_VARIABLES

LOOPBACK = "127.0.0.1"
LOCK_NAME = "lock"  # in the job's folder, held for as long as the job is wanted
HOSTS_PORT = 29500  # hosts have network stacks of their own: nobody else listens there
POLL_S = 0.05
PEERS_GRACE_S = 3.0  # after the first failure: for the others to say what they saw
MPI_END_S = 5.0  # mpirun's time to end its processes
TAIL_LINES = 8
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
MPI_AS_ROOT = {
    f"{library}_ALLOW_RUN_AS_ROOT{suffix}": "1" for library in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
}
MPI_UNBOUND = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


@dataclass(frozen=True)
class Host:
    """A machine that runs one rank.

    Attributes:
      address: where the other hosts reach it.
      prefix: the command that runs another command there.
    """

    address: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the ranks do.

    Attributes:
      task: "module:function", called on every rank as function(ctx, settings, folder) -> JSON object. The folder is
        the job's own; what ranks leave there lives as long as the block of `ranks_ended`.
      settings: JSON objects, one per rank.
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


def run_ranks(job: Job, hosts: Sequence[Host] = (), mpirun: str | None = None) -> list[dict]:
    """What the task returned, by rank; see `ranks_ended`."""
    with ranks_ended(job, hosts, mpirun) as (results, _):
        return results


@contextmanager
def ranks_ended(job: Job, hosts: Sequence[Host] = (), mpirun: str | None = None) -> Iterator[tuple[list[dict], Path]]:
    """Run a job to its end, and keep its folder for the block.

    Args:
      job: what to run.
      hosts: one per rank; none starts all ranks on this machine.
      mpirun: this program starts the ranks on this machine; None: they run under torch.distributed, one rank
        without any launcher.
    Returns:
      (what the task returned, by rank; the job's folder).
    Raises:
      ValueError: a rank refused its input.
      RuntimeError: a rank failed, ended without a word, or had not ended at the deadline; names it.
    """
    with _folder(job) as folder:
        yield (_run_torch(job, hosts, folder) if mpirun is None else _run_mpi(job, mpirun, folder)), folder


def _run_torch(job: Job, hosts: Sequence[Host], folder: Path) -> list[dict]:
    assert not hosts or len(hosts) == job.world_size, "one host per rank"
    command = [sys.executable, "-m", "fastsample_dist.testing.job_rank", job.task, str(folder)]
    with _Processes() as processes:
        variables, store = _meeting_point(job.world_size, hosts)
        for rank in range(job.world_size):
            prefix = hosts[rank].prefix if hosts else ()
            own = own_environment(job.threads) | (variables | _rank_variables(rank, hosts) if variables else {})
            processes.start([*prefix, *command], own, folder / f"rank-{rank}.log")
        results = _watch(job, folder, processes, [f"rank {rank}" for rank in range(job.world_size)])
        del store  # it serves until here
        return results


def _run_mpi(job: Job, mpirun: str, folder: Path) -> list[dict]:
    with _Processes(end_s=MPI_END_S) as processes:
        command = [mpirun, "-n", str(job.world_size), sys.executable, "-m", "fastsample_dist.testing.job_rank"]
        own = own_environment(job.threads) | MPI_AS_ROOT | MPI_UNBOUND
        processes.start([*command, job.task, str(folder)], own, folder / "rank-0.log")
        return _watch(job, folder, processes, ["mpirun"])


def find_mpirun() -> str | None:
    """mpirun beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


class _Processes:
    """Subprocesses that end with the block, whole process groups at once."""

    def __init__(self, end_s: float = 0.0) -> None:
        self._end_s = end_s
        self.running: list[tuple[subprocess.Popen, Path]] = []

    def start(self, command: Sequence[str], environ: dict[str, str], log: Path) -> None:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends them
            )  # fmt: skip
        self.running.append((process, log))

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _log in self.running:
            if self._end_s and process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self._end_s)
        for process, _log in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process, _log in self.running:
            process.wait()


def _watch(job: Job, folder: Path, processes: _Processes, names: list[str]) -> list[dict]:
    """Wait until all processes have ended; their results, or the error of the one that failed first."""
    deadline, grace = Deadline(job.deadline_s), None
    while any(process.poll() is None for process, _ in processes.running):
        limit = deadline if grace is None else grace
        if limit.remaining_s == 0.0:
            break
        failed = any(process.poll() for process, _ in processes.running) or any(folder.glob("failed-*.json"))
        if failed and grace is None:
            grace = Deadline(min(PEERS_GRACE_S, deadline.remaining_s))
        time.sleep(POLL_S)
    ended = [(name, process.returncode, log) for name, (process, log) in zip(names, processes.running, strict=True)]
    for name, status, _ in ended:
        told = (folder / f"failed-{name.split()[-1]}.json").exists()  # its own error says more than a later signal
        if status is not None and status < 0 and not told:  # the others fail only because of it
            raise RuntimeError(f"{name} of {job.world_size} ranks was killed by {_signal_name(-status)}.")
    _raise_first_failure(folder, job.world_size)
    for name, status, log in ended:
        if status:
            raise RuntimeError(f"{name} ended with exit code {status} and no result: {_tail(log)}")
    running = [(name, log) for name, status, log in ended if status is None]
    if running:  # a rank that is done waits for the others: one without a result keeps it
        name, log = min(running, key=lambda entry: (folder / f"{entry[0].replace(' ', '-')}.json").exists())
        raise RuntimeError(f"{name} had not ended after {job.deadline_s:g} s and was killed: {_tail(log)}")
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(job.world_size)]


def _raise_first_failure(folder: Path, world_size: int) -> None:
    """Raise what the rank that failed first said, if one did."""
    failures = [(json.loads(file.read_text()), file.stem) for file in folder.glob("failed-*.json")]
    if not failures:
        return
    first, stem = min(failures, key=lambda entry: entry[0]["time_s"])
    if first["refusal"]:
        raise ValueError(first["text"])
    places = [line.strip() for line in first["traceback"].splitlines() if line.lstrip().startswith("File ")]
    raise RuntimeError(f"rank {stem.split('-')[1]} of {world_size} failed: {first['text']} ({places[-1]})")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return _joined(lines) or "it printed nothing"


@contextmanager
def _folder(job: Job) -> Iterator[Path]:
    """The job's folder, locked, with its settings."""
    with tempfile.TemporaryDirectory(prefix="fastsample-job-") as name:
        content = {"timeout_s": job.timeout_s, "threads": job.threads, "settings": list(job.settings)}
        (Path(name) / "settings.json").write_text(json.dumps(content), encoding="utf-8")
        with (Path(name) / LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)


def own_environment(threads: int = 1) -> dict[str, str]:
    """This process's environment, without what a launcher said."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environ["OMP_NUM_THREADS"] = str(threads)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE_ROOT), environ.get("PYTHONPATH"))))
    return environ


def _meeting_point(world_size: int, hosts: Sequence[Host]) -> tuple[dict[str, str], object]:
    """(what all ranks are told, the store that must live meanwhile); nothing for one rank of this machine."""
    if world_size == 1 and not hosts:
        return {}, None
    told = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(1 if hosts else world_size)}
    if hosts:
        return told | {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(HOSTS_PORT)}, None
    import torch.distributed as dist

    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    agent = {"TORCHELASTIC_RUN_ID": "fastsample-bench", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return told | agent | {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port)}, store


def _rank_variables(rank: int, hosts: Sequence[Host]) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(0 if hosts else rank)}
