"""What a launcher sets in a process's environment: a pure function from a mapping to `LaunchInfo`.

Launchers, innermost first: torchrun (or RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set by hand), Open MPI's
mpirun (OMPI_COMM_WORLD_*), MPICH's and Intel MPI's mpiexec (PMI_*, MPI_LOCAL*), Slurm's srun (SLURM_* of a
step), or none. Launchers start each other, so several may have set theirs: torchrun under srun, mpirun inside a Slurm
allocation. The innermost one counts; where two must describe the same ranks and do not, or the variables of one are
incomplete, the environment is refused and the message shows the variables found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OPENMPI_VARIABLES = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
PMI_VARIABLES = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
PMIX_VARIABLES = ("PMIX_RANK",)
SLURM_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
)  # fmt: skip
LAUNCHER_VARIABLES = (
    *TORCH_VARIABLES, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
    *OPENMPI_VARIABLES, *PMI_VARIABLES, *PMIX_VARIABLES, *SLURM_VARIABLES,
)  # fmt: skip
BACKENDS = ("torch", "mpi", "local")

# Ports of Slurm jobs: below Linux's ephemeral range (32768 up), so no outgoing connection holds one.
SLURM_FIRST_PORT = 15000
SLURM_NUM_PORTS = 17000
SLURM_STEP_STRIDE = 1009  # prime to SLURM_NUM_PORTS: the steps of one job get different ports


@dataclass(frozen=True)
class LaunchInfo:
    """How this process was started.

    Attributes:
      launcher: "torchrun", "openmpi", "pmi", "slurm" or "none".
      backend: "torch", "mpi" or "local".
      rank: this process among world_size.
      world_size: number of processes of the run.
      local_rank: this process among those of its machine; None when the launcher does not give it.
      local_world_size: processes on this machine; None when the launcher does not give it.
      master_addr: where ranks meet (backend "torch"); may be None for one rank.
      master_port: its port (backend "torch").
      agent_store: the launcher itself serves the meeting point (torchrun).
      attempt: which restart this is, 0 the first start; ranks of different attempts never meet.
    """

    launcher: str
    backend: str
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    master_addr: str | None = None
    master_port: int | None = None
    agent_store: bool = False
    attempt: int = 0


def parse_environment(environ: Mapping[str, str], backend: str | None = None) -> LaunchInfo:
    """Read which launcher started this process, and how.

    Args:
      environ: environment variables.
      backend: "torch", "mpi" or "local" to insist on one; None takes what belongs to the launcher.
    Returns:
      LaunchInfo, consistent in itself.
    Raises:
      ValueError: an unknown backend; a partial, contradictory or malformed environment, with the variables
        seen; a backend that the launcher cannot serve.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(BACKENDS)}, or None.")
    reader = _Reader(environ)
    info = _innermost(reader)
    if backend in (None, info.backend):
        return info
    return _with_backend(info, backend, reader)


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list such as "gpu[007-010,12],login1": "gpu007".

    Raises:
      ValueError: not a node list.
    """
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodelist)
    host = re.sub(r"\[([^\]]*)\]", lambda part: re.split("[-,]", part.group(1))[0], first[0]) if first else ""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host) or nodelist.count("[") != nodelist.count("]"):
        raise ValueError(f"node list {nodelist!r} is not understood; expected one like node[01-04],gpu7.")
    return host


def tasks_on_node(tasks_per_node: str, node_index: int) -> int:
    """Tasks on node `node_index` of a Slurm list such as "4(x2),1": 4, 4, 1.

    Raises:
      ValueError: not such a list, or it has no such node.
    """
    counts: list[int] = []
    for entry in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            raise ValueError(f"tasks per node {tasks_per_node!r} is not understood; expected one like 4(x2),1.")
        counts += [int(match[1])] * int(match[2] or 1)
    if node_index >= len(counts):
        raise ValueError(f"tasks per node {tasks_per_node!r} has no node {node_index}; it has {len(counts)}.")
    return counts[node_index]


def slurm_port(job_id: int, step_id: int) -> int:
    """The port where the ranks of a Slurm step meet; the same on all of them."""
    return SLURM_FIRST_PORT + (job_id + SLURM_STEP_STRIDE * step_id) % SLURM_NUM_PORTS


class _Reader:
    """Typed access to the variables, with refusals that show them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def has_any(self, *names: str) -> bool:
        return any(name in self.environ for name in names)

    def refuse(self, problem: str, advice: str) -> ValueError:
        seen = ", ".join(f"{name}={self.environ[name]}" for name in LAUNCHER_VARIABLES if name in self.environ)
        return ValueError(f"{problem} (seen: {seen or 'no launcher variable'}); {advice}.")

    def require(self, names: tuple[str, ...], launcher: str) -> None:
        missing = [name for name in names if name not in self.environ]
        if missing:
            raise self.refuse(
                f"the environment of {launcher} is partial: {', '.join(missing)} missing",
                f"start with {launcher}, set all of {', '.join(names)}, or unset them to run one process",
            )

    def integer(self, name: str, lowest: int, end: int | None = None) -> int:
        """The variable as an integer of lowest .. end - 1."""
        text = self.environ[name]
        expected = f"an integer >= {lowest}" + ("" if end is None else f" and below {end}")
        if not re.fullmatch(r"-?\d+", text.strip()):
            raise self.refuse(f"{name} is {text!r}", f"expected {expected}")
        value = int(text)
        if value < lowest or (end is not None and value >= end):
            raise self.refuse(f"{name} is {value}", f"expected {expected}")
        return value

    def address(self) -> str:
        """MASTER_ADDR, which must not be empty."""
        if not self.environ["MASTER_ADDR"].strip():
            raise self.refuse("MASTER_ADDR is empty", "expected the name or address of the machine of rank 0")
        return self.environ["MASTER_ADDR"]

    def ranks(self, rank: str, size: str) -> tuple[int, int]:
        """(rank, world_size) from two variables."""
        world_size = self.integer(size, 1)
        return self.integer(rank, 0, world_size), world_size

    def local_ranks(self, rank: str, size: str, world_size: int) -> tuple[int | None, int | None]:
        """(local_rank, local_world_size), or (None, None) when the launcher gives neither."""
        if not self.has_any(rank, size):
            return None, None
        self.require((rank, size), f"a launcher that sets {rank if rank in self.environ else size}")
        local_size = self.integer(size, 1, world_size + 1)
        return self.integer(rank, 0, local_size), local_size


def _innermost(reader: _Reader) -> LaunchInfo:
    """The launcher that started the process directly."""
    if reader.has_any("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        return _torchrun(reader)
    if reader.has_any(*OPENMPI_VARIABLES):
        return _openmpi(reader)
    slurm_step = reader.has_any("SLURM_STEP_ID")
    if reader.has_any(*PMI_VARIABLES):
        # srun sets PMI_RANK too, for MPI libraries; mpiexec's own variables distinguish its ranks from srun's.
        if not slurm_step or reader.has_any("MPI_LOCALRANKID", "MPI_LOCALNRANKS"):
            return _pmi(reader)
        pmi, slurm = _pmi(reader), _slurm(reader)
        if (pmi.rank, pmi.world_size) != (slurm.rank, slurm.world_size):
            raise reader.refuse(
                f"PMI says rank {pmi.rank} of {pmi.world_size} but Slurm says {slurm.rank} of {slurm.world_size}",
                'start with srun alone or mpiexec alone, or pass backend="mpi" to follow MPI',
            )
        return slurm
    if slurm_step:
        return _slurm(reader)
    if reader.has_any("SLURM_PROCID") and reader.environ["SLURM_PROCID"] != "0":
        reader.require(("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"), "srun")
    if reader.has_any(*PMIX_VARIABLES):
        reader.require(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "mpirun")
    if reader.has_any("MASTER_ADDR", "MASTER_PORT"):
        reader.require(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "torchrun")
    return LaunchInfo("none", "local")


def _torchrun(reader: _Reader) -> LaunchInfo:
    reader.require(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "torchrun")
    rank, world_size = reader.ranks("RANK", "WORLD_SIZE")
    local_rank, local_world_size = reader.local_ranks("LOCAL_RANK", "LOCAL_WORLD_SIZE", world_size)
    if "TORCHELASTIC_RUN_ID" not in reader.environ:
        _check_set_by_hand(reader, rank, world_size)
    has_attempt = "TORCHELASTIC_RESTART_COUNT" in reader.environ
    return LaunchInfo(
        "torchrun",
        "torch",
        rank,
        world_size,
        local_rank,
        local_world_size,
        master_addr=reader.address(),
        master_port=reader.integer("MASTER_PORT", 1, 65536),
        agent_store=reader.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=reader.integer("TORCHELASTIC_RESTART_COUNT", 0) if has_attempt else 0,
    )


def _check_set_by_hand(reader: _Reader, rank: int, world_size: int) -> None:
    """RANK and WORLD_SIZE without torchrun's marks must agree with the launcher that runs around them.

    A Slurm task may start several ranks itself, so there only fewer ranks than tasks is a contradiction: that
    is a leftover WORLD_SIZE, with which every task would train alone.
    """
    for names in (OPENMPI_VARIABLES, PMI_VARIABLES):
        if reader.has_any(*names[:2]):
            reader.require(names[:2], "mpirun")
            outer = reader.ranks(*names[:2])
            if outer != (rank, world_size):
                raise reader.refuse(
                    f"RANK and WORLD_SIZE say rank {rank} of {world_size} but mpirun says {outer[0]} of {outer[1]}",
                    "unset RANK and WORLD_SIZE, or set them to mpirun's values",
                )
    if reader.has_any("SLURM_STEP_ID") and reader.has_any("SLURM_NTASKS"):
        num_tasks = reader.integer("SLURM_NTASKS", 1)
        if world_size < num_tasks:
            raise reader.refuse(
                f"WORLD_SIZE is {world_size} but srun started {num_tasks} tasks",
                "unset RANK and WORLD_SIZE, or start one task per rank",
            )


def _openmpi(reader: _Reader) -> LaunchInfo:
    reader.require(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "mpirun")
    rank, world_size = reader.ranks("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local = reader.local_ranks("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", world_size)
    return LaunchInfo("openmpi", "mpi", rank, world_size, *local)


def _pmi(reader: _Reader) -> LaunchInfo:
    reader.require(("PMI_RANK", "PMI_SIZE"), "mpiexec")
    rank, world_size = reader.ranks("PMI_RANK", "PMI_SIZE")
    return LaunchInfo(
        "pmi", "mpi", rank, world_size, *reader.local_ranks("MPI_LOCALRANKID", "MPI_LOCALNRANKS", world_size)
    )


def _slurm(reader: _Reader) -> LaunchInfo:
    size = "SLURM_STEP_NUM_TASKS" if reader.has_any("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    reader.require(("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", size), "srun")
    rank, world_size = reader.ranks("SLURM_PROCID", size)
    local_rank = local_world_size = None
    if reader.has_any("SLURM_LOCALID") and reader.has_any("SLURM_STEP_TASKS_PER_NODE"):
        reader.require(("SLURM_NODEID",), "srun")
        tasks = reader.environ["SLURM_STEP_TASKS_PER_NODE"]
        local_world_size = tasks_on_node(tasks, reader.integer("SLURM_NODEID", 0))
        local_rank = reader.integer("SLURM_LOCALID", 0, local_world_size)
    master_addr = reader.environ.get("MASTER_ADDR") or _slurm_master(reader)
    if reader.has_any("MASTER_PORT"):
        master_port = reader.integer("MASTER_PORT", 1, 65536)
    else:
        master_port = slurm_port(reader.integer("SLURM_JOB_ID", 0), reader.integer("SLURM_STEP_ID", 0))
    return LaunchInfo("slurm", "torch", rank, world_size, local_rank, local_world_size, master_addr, master_port)


def _slurm_master(reader: _Reader) -> str:
    """The step's first host, where srun puts task 0."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if name in reader.environ:
            return first_host(reader.environ[name])
    raise reader.refuse("the environment of srun has no node list", "set MASTER_ADDR to the host of task 0")


def _with_backend(info: LaunchInfo, backend: str, reader: _Reader) -> LaunchInfo:
    """The same launch served by another backend than the launcher's own."""
    if backend == "local":
        if info.world_size > 1:
            raise reader.refuse(
                f'backend is "local" but {info.launcher} started {info.world_size} ranks',
                "start one process, or leave backend at None",
            )
        return LaunchInfo(info.launcher, "local")
    if backend == "mpi":
        if info.launcher == "torchrun":
            raise reader.refuse(
                'backend is "mpi" but torchrun started this process', "start with mpirun, or leave backend at None"
            )
        return LaunchInfo(info.launcher, "mpi", info.rank, info.world_size, info.local_rank, info.local_world_size)
    if info.world_size == 1:
        return LaunchInfo(info.launcher, "torch")
    reader.require(("MASTER_ADDR", "MASTER_PORT"), 'torchrun (backend is "torch")')
    return LaunchInfo(
        info.launcher,
        "torch",
        info.rank,
        info.world_size,
        info.local_rank,
        info.local_world_size,
        reader.address(),
        reader.integer("MASTER_PORT", 1, 65536),
    )
