"""Run a function on several ranks from a test; get the ranks' results, or the failing rank's traceback.

`run_distributed` starts one process per rank from a fork server that has torch loaded (so a start takes tens of
milliseconds), lets them meet by torch.distributed at a store in the parent, and collects one report per rank.
`run_mpi` does the same through mpirun. Both end at a time limit: ranks that have not finished are named, print
where they are, and every process is killed. A child does not import the caller's main module, so no
`if __name__ == "__main__"` is needed around a call.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.deadline import Deadline
from fastsample_dist.comm.environment import LAUNCHER_VARIABLES
from fastsample_dist.comm.mpi import load_mpi

PRELOAD = ["torch", "torch._dynamo", "torch.distributed", "psutil", "cloudpickle", "fastsample_dist.testing.ranks"]
PEERS_GRACE_S = 30.0  # after the first failure, for the other ranks to end by themselves on a busy machine
EXIT_S = 1.0  # between a rank's report and the end of its process
STACK_DUMP_S = 0.3  # until a rank has printed where it is
MPI_START_S = 300.0  # for every rank to load torch; the caller's limit counts from then on
MPI_POLL_S = 0.05
MPI_END_S = 5.0  # mpirun's time to end its processes
OUTPUT_TAIL_CHARS = 4000
LOOPBACK = "127.0.0.1"


class RankError(RuntimeError):
    """Ranks failed; the text names them and holds their tracebacks, the first failure first."""


class RankTimeoutError(RankError):
    """Ranks had not finished at the time limit; the text names them."""


@dataclass(eq=False)
class _Outcome:
    """What the parent knows of a rank.

    A rank says "returned" with its value when `fn` is done, then "left" when it has left its context, or
    "failed" with the time and a traceback at any moment. The exit code is None while the process runs.
    """

    value: object = None
    returned: bool = False
    left: bool = False
    failure: tuple[float, str] | None = None
    exit_code: int | None = None

    def take(self, kind: str, content: Any) -> None:
        if kind == "returned":
            self.returned, self.value = True, content
        elif kind == "left":
            self.left = True
        else:
            self.failure = content

    @property
    def is_final(self) -> bool:
        return self.left or self.failure is not None

    @property
    def died(self) -> bool:
        """The process ended without a word, or with an error code after its last good one."""
        return self.exit_code is not None and self.failure is None and (not self.left or self.exit_code != 0)


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
      ValueError: `fn` or `args` cannot be pickled.
    """
    payload = _dump_call(fn, args, comm_timeout_s or timeout_s, verify_exchanges)
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ranks: list[multiprocessing.process.BaseProcess] = []
    readers: dict[multiprocessing.connection.Connection, _Outcome] = {}
    try:
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            environ = _torch_environment(rank, world_size, store.port)
            process = context.Process(target=_torch_child, args=(writer, environ, payload), daemon=True)
            with _hidden_main():
                process.start()
            writer.close()
            ranks.append(process)
            readers[reader] = _Outcome()
        outcomes = list(readers.values())
        deadline = Deadline(timeout_s)  # only now: the first start waits until the fork server has torch
        ended = _collect(readers, deadline)
        for ran, outcome in zip(ranks, outcomes, strict=True):
            ran.join(max(deadline.remaining_s, EXIT_S) if outcome in ended else 0.0)
            outcome.exit_code = ran.exitcode
        return _judge(outcomes, timeout_s, lambda rank: ranks[rank].pid)
    finally:
        for ran in ranks:
            _kill_group(ran.pid)
            ran.join()


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
    payload = _dump_call(fn, args, comm_timeout_s or timeout_s, verify_exchanges)
    with tempfile.TemporaryDirectory(prefix="fastsample-mpi-") as name, tempfile.TemporaryFile() as output:
        folder = Path(name)
        (folder / "call").write_bytes(payload)
        (folder / "sys_path").write_bytes(pickle.dumps(sys.path))
        child = "import sys; from fastsample_dist.testing.ranks import _mpi_child; _mpi_child(sys.argv[1])"
        mpirun = subprocess.Popen(
            [str(_mpirun()), "-n", str(world_size), sys.executable, "-c", child, name],
            env=_mpi_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            start = Deadline(MPI_START_S)
            while mpirun.poll() is None and len(_pids(folder)) < world_size and start.remaining_s > 0.0:
                time.sleep(MPI_POLL_S)
            with suppress(subprocess.TimeoutExpired):
                mpirun.wait(timeout_s)
            outcomes = _read_outcomes(folder, world_size)
            if all(outcome.failure is None for outcome in outcomes):
                for outcome in outcomes:
                    outcome.exit_code = mpirun.poll()  # after a failure it tells nothing of the other ranks
            return _judge(outcomes, timeout_s, lambda rank: _pids(folder).get(rank), lambda: _tail(output))
        finally:
            _end_mpirun(mpirun, folder)


def mpi_missing_reason() -> str | None:
    """Why `run_mpi` cannot run here, to skip a test with; None when it can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if _mpirun() is None:
        return f"mpirun is neither beside {sys.executable} nor on PATH"
    return None


# ---- in the parent ----


def _dump_call(fn: Callable, args: tuple, comm_timeout_s: float, verify_exchanges: bool) -> bytes:
    """Pickle what a child needs.

    Functions of modules that a child could not import (a test file that the test runner loaded by its path)
    travel by value.
    """
    call = (fn, args, comm_timeout_s, verify_exchanges)
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


def _clean_environment() -> dict[str, str]:
    """This process's environment without what a launcher said, and with one thread per rank."""
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environ["OMP_NUM_THREADS"] = "1"
    return environ


def _torch_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun would say; the parent is the agent that serves the store."""
    environ = _clean_environment()
    environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    environ.update(LOCAL_WORLD_SIZE=str(world_size), MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port))
    environ.update(TORCHELASTIC_RUN_ID="run_distributed", TORCHELASTIC_USE_AGENT_STORE="True")
    return environ


def _mpi_environment() -> dict[str, str]:
    """Lets Open MPI (4 and 5) run as root, with more ranks than cores and unbound; others ignore it."""
    environ = _clean_environment()
    environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environ.update(PRTE_ALLOW_RUN_AS_ROOT="1", PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environ.update(OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
    environ.update(PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
    environ.update(PRTE_MCA_hwloc_default_binding_policy="none")
    package_root = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, environ.get("PYTHONPATH"))))
    return environ


def _mpirun() -> Path | None:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    return None if found is None else Path(found)


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep multiprocessing from importing the caller's main module in the child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _collect(readers: dict[multiprocessing.connection.Connection, _Outcome], deadline: Deadline) -> list[_Outcome]:
    """Read what the ranks say; return those that have said everything, or died.

    Ends early once a failure's grace is over.
    """
    waiting = dict(readers)
    ended: list[_Outcome] = []
    grace: Deadline | None = None
    while waiting:
        left_s = deadline.remaining_s if grace is None else min(deadline.remaining_s, grace.remaining_s)
        ready = multiprocessing.connection.wait(list(waiting), left_s)
        if not ready:
            break
        for reader in [reader for reader in waiting if reader in ready]:
            outcome = waiting[reader]
            try:
                outcome.take(*pickle.loads(reader.recv_bytes()))
            except EOFError:
                if grace is None:
                    grace = Deadline(PEERS_GRACE_S)
                ended.append(waiting.pop(reader))
                continue
            if outcome.is_final:
                ended.append(waiting.pop(reader))
            if outcome.failure is not None and grace is None:
                grace = Deadline(PEERS_GRACE_S)
    return ended


def _read_outcomes(folder: Path, world_size: int) -> list[_Outcome]:
    """What the ranks of `run_mpi` have said so far."""
    outcomes = [_Outcome() for _ in range(world_size)]
    for rank, outcome in enumerate(outcomes):
        for kind in ("returned", "left", "failed"):
            path = folder / f"{kind}-{rank}"
            if path.exists():
                outcome.take(*pickle.loads(path.read_bytes()))
    return outcomes


def _pids(folder: Path) -> dict[int, int]:
    """Process id by rank, of the ranks of `run_mpi` that have started."""
    return {int(path.name.split("-")[1]): int(path.read_text()) for path in folder.glob("pid-*")}


def _judge(
    outcomes: list[_Outcome],
    timeout_s: float,
    pid_of: Callable[[int], int | None],
    printed: Callable[[], str] = str,
) -> list:
    """The ranks' values, or the error that tells what happened."""
    world_size = len(outcomes)
    died = [
        f"rank {rank} of {world_size} ended with exit code {outcome.exit_code} and no traceback."
        for rank, outcome in enumerate(outcomes)
        if outcome.died
    ]
    failures = [(*outcome.failure, rank) for rank, outcome in enumerate(outcomes) if outcome.failure is not None]
    if failures:
        texts = [f"rank {rank} of {world_size} failed:\n{text}" for _, text, rank in sorted(failures)]
        raise RankError("\n".join([*died, *texts]))
    if died:
        raise RankError("\n".join(died) + printed())
    running = [rank for rank, outcome in enumerate(outcomes) if outcome.exit_code is None]
    if running:
        _dump_stacks([pid for pid in map(pid_of, running) if pid is not None])
        unfinished = [rank for rank in running if not outcomes[rank].returned]
        what = "had not finished" if unfinished else "had returned but not ended"
        raise RankTimeoutError(
            f"ranks {', '.join(map(str, unfinished or running))} of {world_size} {what} after {timeout_s:g} s; all "
            f"ranks were killed, the stacks of those that ran went to stderr.{printed()}"
        )
    return [outcome.value for outcome in outcomes]


def _dump_stacks(pids: list[int]) -> None:
    """Let the ranks print their threads' stacks to stderr."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(STACK_DUMP_S)


def _kill_group(pid: int | None) -> None:
    if pid is None:  # it was never started
        return
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have made its group yet


def _end_mpirun(mpirun: subprocess.Popen, folder: Path) -> None:
    """End mpirun in order if it still runs, then whatever is left of its ranks."""
    if mpirun.poll() is None:
        mpirun.terminate()
        with suppress(subprocess.TimeoutExpired):
            mpirun.wait(MPI_END_S)
        _kill_group(mpirun.pid)
        mpirun.wait()
        for path in folder.glob("pid-*"):
            _kill_group(int(path.read_text()))


def _tail(output: IO[bytes]) -> str:
    """The end of what mpirun and the ranks printed."""
    output.seek(0)
    text = output.read().decode(errors="replace").strip()
    return f"\nPrinted at the end:\n{text[-OUTPUT_TAIL_CHARS:]}" if text else ""


# ---- in a rank ----


def _torch_child(writer: multiprocessing.connection.Connection, environ: dict[str, str], payload: bytes) -> None:
    os.setpgid(0, 0)  # so that the parent can kill what a rank starts, too
    os.environ.clear()
    os.environ.update(environ)
    _run_rank(payload, lambda kind, content: writer.send_bytes(_dump((kind, content))))


def _mpi_child(name: str) -> None:
    """One rank of `run_mpi`: the call is in the folder, and what the rank says goes there."""
    folder = Path(name)
    sys.path[:] = pickle.loads((folder / "sys_path").read_bytes())
    rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
    _write(folder / f"pid-{rank}", str(os.getpid()).encode())

    def say(kind: str, content: object) -> None:
        _write(folder / f"{kind}-{rank}", _dump((kind, content)))

    _run_rank((folder / "call").read_bytes(), say)
    sys.stdout.flush()
    sys.stderr.flush()
    load_mpi().Finalize()
    os._exit(0)  # like a multiprocessing child: taking the interpreter down costs as much as a small test


def _write(path: Path, content: bytes) -> None:
    """Write a file that is complete as soon as it can be seen."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    unfinished.write_bytes(content)
    unfinished.rename(path)


def _run_rank(payload: bytes, say: Callable[[str, object], None]) -> None:
    """Run the call in a context. A failure is told before the context lets the other ranks know."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    told = False

    def tell_failure() -> None:
        nonlocal told
        if not told:
            say("failed", (time.time(), traceback.format_exc()))
        told = True

    try:
        fn, args, comm_timeout_s, verify_exchanges = pickle.loads(payload)
        with DistContext.from_env(timeout_s=comm_timeout_s) as ctx:
            ctx.comm.verify_exchanges = verify_exchanges
            try:
                say("returned", fn(ctx, *args))
            except BaseException:
                tell_failure()
                raise
        say("left", None)
    except BaseException:
        tell_failure()
        sys.exit(1)


def _dump(content: object) -> bytes:
    """Pickle; cloudpickle also takes objects of classes that came to the rank by value."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(content)
    return cloudpickle.dumps(content)
