"""MPI in whole processes: a clean end, an aborted run, thread levels, and a library that is not the launcher's."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist.comm.mpi import load_mpi
from fastsample_dist.testing import mpi_missing_reason
from fastsample_dist.testing.jobs import MPI_VARIABLES, find_mpirun, own_environment
from tests.waiting import ENOUGH_S

needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))

GOOD_SCRIPT = """
import torch
from fastsample_dist import DistContext

with DistContext.from_env() as ctx:
    copy = ctx.comm.duplicate()
    ones = copy.all_reduce(torch.ones(1), purpose="ones")
    print(f"<{ctx.rank} {ctx.local_rank}/{ctx.local_world_size} {ctx.launcher} {ones.item():g}>", end="", flush=True)
    assert not torch.distributed.is_initialized()
"""

# Rank 1 waits for rank 0, with the default deadline of 600 s.
BAD_SCRIPT = """
from fastsample_dist import DistContext

with DistContext.from_env() as ctx:
    if ctx.rank == 0:
        raise ValueError("boom")
    ctx.comm.barrier()
"""

ALONE_SCRIPT = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from fastsample_dist import DistContext

try:
    DistContext.from_env(environ={"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
except RuntimeError as error:
    print(error)
with DistContext.from_env(backend="mpi", environ={}) as ctx:
    ctx.comm.barrier()
    try:
        ctx.comm.duplicate()
    except RuntimeError as error:
        print(error)
    ctx.comm.barrier()
    print("left in order")
"""


LATE_SCRIPT = """
import os, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    time.sleep(600)
from fastsample_dist import DistContext
DistContext.from_env(timeout_s=2)
"""


def mpirun(script: str, tmp_path: Path) -> subprocess.CompletedProcess:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [find_mpirun(), "-n", "2", sys.executable, str(path)]
    environ = own_environment() | MPI_VARIABLES
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=ENOUGH_S)


@needs_mpi
def test_mpirun_starts_and_ends_in_silence(tmp_path):
    ended = mpirun(GOOD_SCRIPT, tmp_path)
    assert ended.returncode == 0, ended.stderr
    words = sorted(ended.stdout.replace("<", "").split(">")[:2])
    assert [word.split()[:2] + word.split()[3:] for word in words] == [["0", "0/2", "2"], ["1", "1/2", "2"]]
    assert ended.stderr == ""


@needs_mpi
def test_a_rank_that_never_comes_ends_the_others_with_one_line_at_the_deadline(tmp_path):
    ended = mpirun(LATE_SCRIPT, tmp_path)
    assert ended.returncode != 0
    assert "rank 0: MPI did not start 2 ranks within 2 s; look at those that have not printed this" in ended.stderr
    assert "Traceback" not in ended.stderr and "most recent call" not in ended.stderr


@needs_mpi
def test_an_exception_ends_the_run_with_its_traceback(tmp_path):
    ended = mpirun(BAD_SCRIPT, tmp_path)
    assert ended.returncode != 0
    printed = ended.stdout + ended.stderr
    assert "rank 0 ends the run:" in printed
    assert "Traceback" in printed
    assert "ValueError: boom" in printed


@needs_mpi
def test_an_exit_with_a_line_ends_the_run_with_that_line(tmp_path):
    ended = mpirun(BAD_SCRIPT.replace("ValueError", "SystemExit"), tmp_path)
    assert ended.returncode != 0
    printed = ended.stdout + ended.stderr
    assert "\nboom\n" in f"\n{printed}" and "Traceback" not in printed


@pytest.fixture(scope="module")
def lines_alone(tmp_path_factory):
    """What ALONE_SCRIPT prints in one process without mpirun."""
    path = tmp_path_factory.mktemp("alone") / "script.py"
    path.write_text(ALONE_SCRIPT)
    environ = own_environment() | MPI_VARIABLES
    ended = subprocess.run([sys.executable, str(path)], env=environ, capture_output=True, text=True, timeout=ENOUGH_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@needs_mpi
def test_an_mpi_that_does_not_see_the_launchers_ranks_is_refused(lines_alone):
    assert "the launcher (openmpi) says rank 1 of 2 but MPI says rank 0 of 1; mpi4py uses" in lines_alone[0]


@needs_mpi
def test_a_duplicate_without_thread_support_is_refused_with_advice(lines_alone):
    assert "needs MPI_THREAD_MULTIPLE" in lines_alone[1]
    assert 'mpi4py.rc.thread_level = "multiple"' in lines_alone[1]


@needs_mpi
def test_a_refused_duplicate_leaves_the_communicator_usable(lines_alone):
    assert lines_alone[2] == "left in order"


def test_a_missing_mpi4py_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match=r"pip install 'fastsample_dist\[mpi\]', or start the ranks with torchrun"):
        load_mpi()
