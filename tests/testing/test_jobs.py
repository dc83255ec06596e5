"""Jobs: results of ranks, the failing rank's name, deadlines, and nothing left behind, whoever is killed."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastsample_dist.testing import jobs, mpi_missing_reason, supervisor
from fastsample_dist.testing.jobs import RankJob, find_mpirun, ranks_ended, run_ranks
from fastsample_dist.testing.reports import RETURNED, read_reports
from tests.grids import grid
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

TASKS = "tests.testing.job_tasks:"
ROOT = Path(__file__).resolve().parents[2]


def job(task, settings, **options):
    return RankJob(task=TASKS + task, settings=settings, **{"deadline_s": ENOUGH_S, **options})


def wait_until_gone(pids):
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the processes")


@pytest.mark.parametrize("world_size", grid([1, 2], gate=[2]))
def test_every_rank_gets_its_settings_and_the_folder_lives_as_long_as_the_block(world_size):
    settings = [{"word": f"word-{rank}"} for rank in range(world_size)]
    with ranks_ended(job("greet", settings)) as (results, folder):
        assert [(folder / f"left-{rank}").read_text() for rank in range(world_size)] == [s["word"] for s in settings]
    assert results == [{"rank": r, "world_size": world_size, **settings[r]} for r in range(world_size)]
    assert not folder.exists()


@pytest.mark.grid
def test_mpirun_gives_the_same():
    if mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    results = run_ranks(job("greet", [{"word": "a"}, {"word": "b"}]), mpirun=find_mpirun())
    assert [(result["rank"], result["word"]) for result in results] == [(0, "a"), (1, "b")]


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(("refusal", "kind"), [(True, ValueError), (False, RuntimeError)])
def test_the_rank_that_failed_first_is_named(refusal, kind):
    with pytest.raises(kind, match="rank 1 does not want"):
        run_ranks(job("raise_on", [{"rank": 1, "refusal": refusal}] * 2))


def test_without_a_loopback_interface_no_rank_is_started(monkeypatch):
    """RFC 5737: no machine has this address, as none has 127.0.0.1 where lo is down; torch's store would retry."""
    monkeypatch.setattr(jobs, "LOOPBACK", "192.0.2.1")
    monkeypatch.setattr(jobs, "Supervisor", lambda *_: pytest.fail("a rank was started"))
    with pytest.raises(RuntimeError, match=r"ranks of this machine cannot meet at 192.0.2.1 \(.*; ip link set lo up"):
        run_ranks(job("greet", [{}] * 2))


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_ends_without_a_report_is_named():
    with pytest.raises(RuntimeError, match="rank 0 ended with exit code 7 and no result"):
        run_ranks(job("exit_silently", [{}]))


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_is_late_is_named_and_killed(tmp_path, monkeypatch):
    def passed_s() -> float:
        """The deadline passes when rank 0 has returned and rank 1 sleeps."""
        written = [path.read_text().split() for path in tmp_path.glob("pid-?")]
        started = [words[1] for words in written if len(words) > 1]  # a file may be there before its words are
        is_late = len(started) == 2 and RETURNED in read_reports(Path(started[0]), 2)[0]
        return math.inf if is_late else 0.0

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=passed_s, sleep=time.sleep))
    file = str(tmp_path / "pid-")
    with pytest.raises(RuntimeError, match="rank 1 had not ended after 40 s and was killed"):
        run_ranks(job("sleep_on", [{"rank": 1, "file": file}] * 2, deadline_s=40.0, timeout_s=NEVER_S))
    wait_until_gone([int(path.read_text().split()[0]) for path in tmp_path.glob("pid-*")])


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_is_killed_is_named_not_those_that_fail_because_of_it():
    with pytest.raises(RuntimeError, match="rank 1 of 3 ranks was killed by SIGKILL"):
        run_ranks(job("kill_on", [{"rank": 1}] * 3))


def written(folder):
    """(process id, folder of the run) of every rank that has written them."""
    return [path.read_text().split() for path in folder.glob("pid-*")]


@pytest.mark.parametrize(
    ("number", "launcher"),
    [
        (signal.SIGKILL, "torch"),
        (signal.SIGTERM, "mpirun"),
        pytest.param(signal.SIGKILL, "mpirun", marks=pytest.mark.grid),
        pytest.param(signal.SIGTERM, "torch", marks=pytest.mark.grid),
    ],
)
def test_nothing_is_left_when_the_command_is_killed(tmp_path, number, launcher):
    if launcher == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    mpirun = find_mpirun() if launcher == "mpirun" else None
    file = str(tmp_path / "pid-")
    code = (
        "from fastsample_dist.command import sigterm_interrupts; "
        "from fastsample_dist.testing.jobs import RankJob, run_ranks\n"
        f"with sigterm_interrupts(): run_ranks(RankJob(task={TASKS + 'sleep_on'!r}, "
        f"settings=[{{'rank': rank, 'file': {file!r}}} for rank in (0, 1)]), mpirun={mpirun!r})"
    )
    command = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: [len(words) for words in written(tmp_path)] == [2, 2], "the start of both ranks")
        started = written(tmp_path)
    finally:
        os.kill(command.pid, number)
        command.wait()
    wait_until_gone([int(pid) for pid, _ in started])
    assert not Path(started[0][1]).exists()
