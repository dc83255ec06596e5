"""Run a function on several ranks from a test; get the ranks' results, or the failing rank's traceback.

`run_distributed` starts one process per rank from a fork server that has torch and the rooms of a training step loaded
(so a start takes tens of milliseconds); the ranks meet by torch.distributed at a store in the parent. `run_mpi` does
the same through mpirun.
Both end at a time limit: ranks that have not finished are named, print where they are, and every process is killed. A
rank does not import the caller's main module, so no `if __name__ == "__main__"` is needed around a call.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import torch

from fastsample_dist.comm.deadline import check_timeout_s
from fastsample_dist.ops import checks
from fastsample_dist.testing.job_rank import run_rank
from fastsample_dist.testing.jobs import (
    MPIRUN,
    find_mpirun,
    meeting_point,
    mpirun_started,
    own_environment,
    write_call,
)
from fastsample_dist.testing.reports import FAILED, LEFT, PID, RETURNED, Call, has_failed, read_reports, run_folder
from fastsample_dist.testing.supervisor import POLL_S, Supervisor

# What the fork server loads once for all ranks; a rank finds it there and imports nothing of it again.
PRELOAD = [
    "torch", "torch._dynamo", "torch.distributed", "psutil", "cloudpickle",
    "fastsample_dist.testing.ranks", "fastsample_dist.pipeline.loader", "fastsample_dist.train.trainer",
]  # fmt: skip
PEERS_GRACE_S = 30.0  # after the first failure, for the other ranks to end by themselves on a busy machine
STACK_DUMP_S = 0.3  # until a rank has printed where it is
MPI_START_S = 300.0  # for every rank to load torch; the caller's limit counts from then on
OUTPUT_TAIL_CHARS = 4000
SOCKET_NAME_BYTES = 107  # of an address of AF_UNIX on Linux


class RankError(RuntimeError):
    """Ranks failed; the text names them and holds their tracebacks, the first failure first."""


class RankTimeoutError(RankError):
    """Ranks had not finished at the time limit; the text names them."""


def devices() -> list[str]:
    """Devices to run a test on: "cpu", and "cuda" where torch sees one."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def run_distributed(
    world_size: int,
    fn: Callable,
    timeout_s: float = 120.0,
    args: tuple = (),
    *,
    comm_timeout_s: float | None = None,
    verify_exchanges: bool = True,
) -> list:
    """Call `fn(ctx, *args)` on `world_size` ranks over torch.distributed; return the results by rank.

    Args:
      world_size: number of processes; each has one intra-op thread.
      fn: called with a DistContext and `args`; any function when cloudpickle is installed, closures too.
      timeout_s: seconds from the moment all ranks have started; then all processes are killed.
      args: further arguments, the same for every rank.
      comm_timeout_s: deadline for joining and of one collective; None takes `timeout_s`.
      verify_exchanges: see `Communicator.verify_exchanges`.
    Returns:
      List [world_size] of what `fn` returned, copied by pickle.
    Raises:
      RankError: a rank raised or died.
      RankTimeoutError: ranks had not finished after `timeout_s`.
      ValueError: world_size is no integer >= 1, a deadline no number of seconds above 0; `fn` or `args` cannot
        be pickled; the name of the directory for temporary files is too long.
    """
    world_size = checks.whole("world_size", world_size, 1)
    timeout_s, comm_timeout_s = _deadlines(timeout_s, comm_timeout_s)
    content = _dump_call(fn, args, comm_timeout_s, verify_exchanges)
    check_socket_name()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with (
        run_folder() as folder,
        meeting_point(world_size, alone=False) as variables_of,
        Supervisor() as supervisor,
    ):
        for rank in range(world_size):
            environ = own_environment() | variables_of(rank)
            process = context.Process(target=_forked_rank, args=(environ, folder, content), daemon=True)
            with hidden_main():
                process.start()
            supervisor.adopt(str(rank), process)
        # The limit counts only now: the first start waits until the fork server has torch.
        statuses = supervisor.watch(timeout_s, PEERS_GRACE_S, lambda: has_failed(folder))
        return _judge(read_reports(folder, world_size), list(statuses.values()), timeout_s)


def run_mpi(
    world_size: int,
    fn: Callable,
    timeout_s: float = 120.0,
    args: tuple = (),
    *,
    comm_timeout_s: float | None = None,
    verify_exchanges: bool = True,
) -> list:
    """`run_distributed` through mpirun and mpi4py: the same arguments, results and errors.

    Raises:
      RuntimeError: mpirun or mpi4py is missing, see `mpi_missing_reason`.
    """
    reason = mpi_missing_reason()
    if reason is not None:
        raise RuntimeError(f"run_mpi cannot start: {reason}.")
    world_size = checks.whole("world_size", world_size, 1)
    timeout_s, comm_timeout_s = _deadlines(timeout_s, comm_timeout_s)
    content = _dump_call(fn, args, comm_timeout_s, verify_exchanges)
    with run_folder() as folder, tempfile.NamedTemporaryFile() as output:
        write_call(folder, content)
        with mpirun_started(find_mpirun(), world_size, folder, Path(output.name)) as supervisor:
            start_end_s = time.monotonic() + MPI_START_S
            while not all(read_reports(folder, world_size)) and time.monotonic() < start_end_s:
                if supervisor.watch(POLL_S)[MPIRUN] is not None:
                    break
            status = supervisor.watch(timeout_s)[MPIRUN]
            reports = read_reports(folder, world_size)
            if any(FAILED in report for report in reports):
                status = None  # after a failure mpirun's status says nothing about the other ranks
            return _judge(reports, [status] * world_size, timeout_s, lambda: _tail(Path(output.name)))


def check_socket_name() -> None:
    """Refuse a directory for temporary files in which a fork server's socket would have too long a name.

    Raises:
      ValueError: with the directory and the number of bytes that fit.
    """
    socket = Path(multiprocessing.util.get_temp_dir()) / "listener-xxxxxxxx"  # as multiprocessing names it
    excess = len(os.fsencode(socket)) - SOCKET_NAME_BYTES
    if excess > 0:
        directory = tempfile.gettempdir()
        length = len(os.fsencode(directory))
        raise ValueError(
            f"the directory for temporary files, {directory}, has a name of {length} bytes; expected at most "
            f"{length - excess}, since a socket is made there; set TMPDIR to a shorter one."
        )


def mpi_missing_reason() -> str | None:
    """Why `run_mpi` cannot run here, to skip a test with; None when it can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if find_mpirun() is None:
        return f"mpirun is neither beside {sys.executable} nor on PATH"
    return None


def _deadlines(timeout_s: float, comm_timeout_s: float | None) -> tuple[float, float]:
    """Of the whole run and of one collective, in seconds."""
    timeout_s = check_timeout_s(timeout_s)
    return timeout_s, timeout_s if comm_timeout_s is None else check_timeout_s(comm_timeout_s, "comm_timeout_s")


def _dump_call(fn: Callable, args: tuple, comm_timeout_s: float, verify_exchanges: bool) -> bytes:
    """Pickle what a rank needs.

    Functions of modules that a rank could not import (a test file that the test runner loaded by its path) travel by
    value.
    """
    call = Call(function=partial(_call, fn, args), timeout_s=comm_timeout_s, verify_exchanges=verify_exchanges)
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = None
    try:
        if cloudpickle is None:
            if getattr(fn, "__module__", None) == "__main__":
                raise pickle.PicklingError("it is defined in the main module, which a rank does not import")
            return pickle.dumps(call)
        module = sys.modules.get(getattr(fn, "__module__", None) or "")
        if module is None or module.__name__ == "__main__" or _is_importable(module):
            return cloudpickle.dumps(call)
        cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(call)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        hint = "" if cloudpickle else " Install cloudpickle, or define fn at the top level of a module."
        raise ValueError(f"fn {fn!r} and its args cannot be sent to the ranks: {error}.{hint}") from error


def _call(fn: Callable, args: tuple, ctx: object, folder: Path) -> object:
    return fn(ctx, *args)


def _is_importable(module: types.ModuleType) -> bool:
    """True when importing the module by its name, from the present sys.path, finds the same file."""
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    parts = module.__name__.split(".")
    for entry in sys.path:
        stem = Path(entry or ".").joinpath(*parts)
        if any(found.exists() and found.samefile(file) for found in (stem.with_suffix(".py"), stem / "__init__.py")):
            return True
    return False


def _forked_rank(environ: dict[str, str], folder: Path, content: bytes) -> None:
    os.setpgid(0, 0)  # so that the supervisor can kill what a rank starts, too
    os.environ.clear()
    os.environ.update(environ)
    run_rank(folder, content)


@contextmanager
def hidden_main() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's main module in the child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _judge(
    reports: list[dict], statuses: Sequence[int | None], timeout_s: float, printed: Callable[[], str] = str
) -> list:
    """The ranks' values, or the error that says what happened.

    A status is None for a process that runs, or of which nothing is known.
    """
    world_size = len(reports)
    died = [
        f"rank {rank} of {world_size} ended with exit code {status} and no traceback."
        for rank, (report, status) in enumerate(zip(reports, statuses, strict=True))
        if status is not None and FAILED not in report and (LEFT not in report or status != 0)
    ]
    failures = sorted((report[FAILED], rank) for rank, report in enumerate(reports) if FAILED in report)
    if failures:
        texts = [f"rank {rank} of {world_size} failed:\n{failure.traceback}" for failure, rank in failures]
        raise RankError("\n".join([*died, *texts]))
    if died:
        raise RankError("\n".join(died) + printed())
    running = [rank for rank, status in enumerate(statuses) if status is None]
    if running:
        _dump_stacks([reports[rank][PID] for rank in running if PID in reports[rank]])
        unfinished = [rank for rank in running if RETURNED not in reports[rank]]
        what = "had not finished" if unfinished else "had returned but not ended"
        raise RankTimeoutError(
            f"ranks {', '.join(map(str, unfinished or running))} of {world_size} {what} after {timeout_s:g} s; all "
            f"ranks were killed, the stacks of those that ran went to stderr.{printed()}"
        )
    return [report[RETURNED] for report in reports]


def _dump_stacks(pids: list[int]) -> None:
    """Let the ranks print their threads' stacks to stderr."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(STACK_DUMP_S)


def _tail(output: Path) -> str:
    """The end of what mpirun and the ranks printed."""
    text = output.read_text(errors="replace").strip()
    return f"\nPrinted at the end:\n{text[-OUTPUT_TAIL_CHARS:]}" if text else ""
