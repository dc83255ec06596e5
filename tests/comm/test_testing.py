"""run_distributed and run_mpi: results, failures, time limits, and nothing left behind."""

import multiprocessing.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

import fastsample_dist
from fastsample_dist.testing import (
    RankError,
    RankTimeoutError,
    devices,
    mpi_missing_reason,
    ranks,
    run_distributed,
    run_mpi,
)
from tests.waiting import ENOUGH_S, wait_until

needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))


def place(ctx, offset):
    return ctx.rank + offset, torch.get_num_threads()


def fail_on_rank_1(ctx):
    if ctx.rank == 1:
        raise KeyError("lost node")
    ctx.comm.barrier()


def hang_on_rank_1(ctx):
    if ctx.rank == 1:
        time.sleep(1000)
    return ctx.rank


def exit_on_rank_1(ctx):
    if ctx.rank == 1:
        os._exit(7)
    ctx.comm.barrier()


def report_pid(ctx, folder):
    (folder / str(os.getpid())).touch()
    hang_on_rank_1(ctx)


def refuse_reading():
    """torch.storage reads no tensor out of a pickle from now on; what writes one still names its function."""

    def refuse(content):
        raise AssertionError("torch.storage._load_from_bytes was called")

    refuse.__module__, refuse.__qualname__ = "torch.storage", "_load_from_bytes"
    torch.storage._load_from_bytes = refuse


class RefuseReading:
    """Calls refuse_reading where it is unpickled."""

    def __reduce__(self):
        return refuse_reading, ()


def has_ended(pid: int) -> bool:
    """True when the process is gone; a killed one may take a while to be reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_devices_begin_with_the_cpu():
    assert devices()[0] == "cpu"
    assert ("cuda" in devices()) == torch.cuda.is_available()


def test_results_come_by_rank_from_single_threaded_processes():
    assert run_distributed(2, place, args=(10,)) == [(10, 1), (11, 1)]


def test_closures_travel():
    offset = 5
    assert run_distributed(2, lambda ctx: ctx.rank + offset) == [5, 6]


def test_tensors_come_back():
    results = run_distributed(2, lambda ctx: torch.full((2,), ctx.rank, dtype=torch.bfloat16))
    assert torch.equal(results[1], torch.ones(2, dtype=torch.bfloat16))


def test_tensors_travel_without_what_warns_of_them(monkeypatch):
    """torch 2.4 and 2.5 print a FutureWarning of eight lines in every process where `torch.storage` reads one."""
    monkeypatch.setattr(torch.storage, "_load_from_bytes", torch.storage._load_from_bytes)
    refuse_reading()
    results = run_distributed(
        2,
        lambda ctx, _, given: ctx.comm.all_gather_object(given + ctx.rank, purpose="objects"),
        args=(RefuseReading(), torch.arange(2)),
    )
    for gathered in results:
        assert [tensor.tolist() for tensor in gathered] == [[0, 1], [1, 2]]


def test_ranks_see_the_present_environment(monkeypatch):
    monkeypatch.setenv("FASTSAMPLE_TEST_WORD", "now")
    monkeypatch.setenv("SLURM_NTASKS", "99")
    seen = run_distributed(1, lambda ctx: (os.environ["FASTSAMPLE_TEST_WORD"], "SLURM_NTASKS" in os.environ))
    assert seen == [("now", False)]


def test_a_failing_rank_is_named_with_its_traceback():
    with pytest.raises(RankError) as failed:
        run_distributed(2, fail_on_rank_1)
    text = str(failed.value)
    assert text.startswith("rank 1 of 2 failed:\nTraceback")
    assert "fail_on_rank_1" in text
    assert "KeyError: 'lost node'" in text


def test_a_rank_that_dies_is_named_with_its_exit_code():
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code 7 and no traceback"):
        run_distributed(2, exit_on_rank_1)


@pytest.mark.parametrize("run", [run_distributed, pytest.param(run_mpi, marks=needs_mpi)])
def test_a_hang_ends_at_the_limit_names_the_rank_and_leaves_no_process(run, tmp_path):
    with pytest.raises(RankTimeoutError, match="ranks 1 of 2 had not finished after 8 s"):
        run(2, report_pid, timeout_s=8, args=(tmp_path,))
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_until(lambda: all(map(has_ended, pids)), "the end of the ranks")


def test_a_result_that_cannot_travel_is_the_ranks_failure():
    with pytest.raises(RankError, match=r"rank 0 of 1 failed[\s\S]*cannot pickle"):
        run_distributed(1, lambda ctx: (value for value in ()))


@pytest.mark.parametrize("world_size", [0, -1, 1.5, True])
def test_a_number_of_ranks_that_is_none_is_refused(world_size):
    with pytest.raises(ValueError, match=f"world_size is {world_size}; expected an integer >= 1"):
        run_distributed(world_size, place)


@pytest.mark.parametrize("name", ["timeout_s", "comm_timeout_s"])
@pytest.mark.parametrize("given", [-1, 0, "3", float("nan")], ids=repr)
def test_deadlines_that_are_none_are_refused(name, given):
    with pytest.raises(ValueError, match=f"^{name} is {given!r}; expected a .*number of seconds above 0.$"):
        run_distributed(1, int, **{name: given})


def test_arguments_that_cannot_travel_are_refused():
    with pytest.raises(ValueError, match="cannot be sent to the ranks"):
        run_distributed(1, place, args=((value for value in ()),))


def test_without_cloudpickle_a_closure_is_refused_with_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="Install cloudpickle, or define fn at the top level of a module"):
        run_distributed(1, lambda ctx: None)


SCRIPT = """
from fastsample_dist.testing import run_distributed

def own_rank(ctx):
    return ctx.rank

print(run_distributed(2, own_rank))
"""


def test_a_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(Path(fastsample_dist.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=ENOUGH_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0, 1]\n", "")


def test_a_missing_mpirun_is_the_reason_to_skip(monkeypatch):
    monkeypatch.setattr(ranks, "find_mpirun", lambda: None)
    assert "mpirun is neither beside" in mpi_missing_reason()
    with pytest.raises(RuntimeError, match="run_mpi cannot start: mpirun is neither"):
        run_mpi(2, place)


PARENT = """
import sys, time
from fastsample_dist.testing import run_distributed

def hang(ctx, folder):
    import os, pathlib
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(1000)

run_distributed(2, hang, args=(sys.argv[1],))
"""


@pytest.fixture
def short_temporary():
    """A directory for temporary files with a name so short that a fork server's socket fits."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_ranks_end_when_the_test_that_started_them_is_killed(tmp_path, short_temporary):
    script, folder, temporary = tmp_path / "parent.py", tmp_path / "pids", short_temporary
    script.write_text(PARENT)
    folder.mkdir()
    root = str(Path(fastsample_dist.__file__).parent.parent)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)], env={**os.environ, "PYTHONPATH": root, "TMPDIR": str(temporary)}
    )
    try:
        wait_until(lambda: len(list(folder.iterdir())) == 2, "the start of both ranks")
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: all(has_ended(int(path.name)) for path in folder.iterdir()), "the end of the ranks")
    assert not list(temporary.glob("fastsample-run-*"))


def test_a_directory_whose_name_is_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 20)
    monkeypatch.setattr(multiprocessing.util, "get_temp_dir", lambda: str(long / "pymp-12345678"))
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    fits = 107 - len("/pymp-12345678/listener-12345678")
    said = f"{long}, has a name of {len(str(long))} bytes; expected at most {fits}, since a socket .*; set TMPDIR to a"
    with pytest.raises(ValueError, match=said):
        run_distributed(1, os.getpid)
