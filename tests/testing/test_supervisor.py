"""The supervisor: statuses, logs, deadlines, the grace after a failure, and nothing left behind, whoever is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist.testing.supervisor import Supervisor, last_line, run_process
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
# Starts a process of its own, writes both ids, and sleeps.
FAMILY = (
    "import os, subprocess, sys, time; "
    f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({NEVER_S})']); "
    "open(sys.argv[1] + '.new', 'w').write(f'{os.getpid()} {child.pid}'); "
    "os.rename(sys.argv[1] + '.new', sys.argv[1]); "
    f"time.sleep({NEVER_S})"
)


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def has_ended(pid):
    """True when the process is gone, or ended and not yet reaped by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids):
    wait_until(lambda: all(map(has_ended, pids)), "the end of the processes")


def ids(file):
    wait_until(file.exists, "the start of the family")
    return [int(word) for word in file.read_text().split()]


def test_statuses_are_those_of_the_processes_and_logs_hold_their_output(tmp_path):
    with Supervisor() as supervisor:
        for status in (0, 3):
            supervisor.start(str(status), python(f"print('a'); print('b'); exit({status})"), log=tmp_path / str(status))
        assert supervisor.watch(ENOUGH_S) == {"0": 0, "3": 3}
        assert supervisor.tail("3", lines=1) == ["b"]


def test_a_signal_is_a_negative_status():
    with Supervisor() as supervisor:
        supervisor.start("one", python("import os; os.kill(os.getpid(), 9)"))
        assert supervisor.watch(ENOUGH_S) == {"one": -signal.SIGKILL}


def test_after_a_failure_the_others_have_their_grace():
    with Supervisor() as supervisor:
        supervisor.start("sleeps", python(f"import time; time.sleep({NEVER_S})"))
        supervisor.start("fails", python("exit(7)"))
        assert supervisor.watch(NEVER_S, grace_s=0.1) == {"sleeps": None, "fails": 7}


def test_a_failure_that_is_seen_elsewhere_begins_the_grace_too():
    with Supervisor() as supervisor:
        supervisor.start("sleeps", python(f"import time; time.sleep({NEVER_S})"))
        assert supervisor.watch(NEVER_S, grace_s=0.1, has_failed=lambda: True) == {"sleeps": None}


@pytest.mark.parametrize("end_s", [0.0, ENOUGH_S])
def test_the_block_ends_whole_groups(tmp_path, end_s):
    with Supervisor(end_s) as supervisor:
        supervisor.start("family", python(FAMILY, tmp_path / "ids"))
        family = ids(tmp_path / "ids")
    wait_until_gone(family)


def test_processes_of_multiprocessing_are_watched_and_ended_too():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=signal.pause)
    with Supervisor() as supervisor:
        process.start()
        supervisor.adopt("pauses", process)
        assert supervisor.watch(0.1) == {"pauses": None}
    assert process.exitcode == -signal.SIGKILL


def test_a_command_gives_status_and_both_outputs():
    done = run_process(python("import sys; print('out'); print('first\\nlast', file=sys.stderr); exit(5)"))
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "first\nlast\n")
    assert last_line(done) == "last"


def test_a_command_that_cannot_be_started_says_so():
    done = run_process(["/no/such/program"])
    assert done.returncode != 0 and last_line(done) == "/no/such/program cannot be started: No such file or directory"


def test_a_command_that_is_late_is_ended_with_all_it_started(tmp_path):
    with pytest.raises(TimeoutError, match="had not ended after 3 s; it was ended"):
        run_process(python(FAMILY, tmp_path / "ids"), deadline_s=3.0)
    wait_until_gone(ids(tmp_path / "ids") if (tmp_path / "ids").exists() else [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_the_process_that_started_it(tmp_path, number):
    # The command ends what it started when SIGTERM asks it to, as launchers do.
    polite = f"import signal, os; signal.signal(signal.SIGTERM, lambda *_: (child.kill(), os._exit(1))); {FAMILY}"
    code = (
        f"from fastsample_dist.testing.supervisor import run_process\nrun_process({python(polite, tmp_path / 'ids')!r})"
    )
    starter = subprocess.Popen(
        python(code),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        family = ids(tmp_path / "ids")
    finally:
        os.kill(starter.pid, number)
        starter.wait()
    wait_until_gone(family)


# Processes that only hold namespaces, until the pipe from their starter closes.
ANCHORS = {"fastsample_dist/bench/epoch/namespaces.py", "benchmarks/distdgl/network.py"}
# Their rooms stand below the supervisor's: a process that is ended in a `finally`, and one that ends with the pipe from
# its starter, before the block that needs it is left.
BELOW = {"partition/methods/kaminpar.py", "fastsample_dist/comm/mpi.py"}


def test_only_the_supervisor_starts_processes_that_outlive_a_call():
    starters = {
        path.relative_to(ROOT).as_posix()
        for room in ("fastsample_dist", "partition", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
        if "Popen(" in path.read_text()
    }
    starters = {path for path in starters if not path.startswith("fastsample_dist/launch/")}  # standard library only
    assert starters == {"fastsample_dist/testing/supervisor.py"} | ANCHORS | BELOW
