"""The guards alone, over commands that need no torch: lifeline, orders, grace, leftovers, output."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastsample_dist.launch import guard
from tests.interrupted import FOREVER
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

GUARD = str(Path(guard.__file__).absolute())
STUBBORN = (
    "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
)
# A process in a session of its own, whose parent ends: only a subreaper still finds it.
LEAVES_ONE = """
import subprocess, sys
code = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=-3, start_new_session=True).pid)"
print(subprocess.run([sys.executable, "-c", code], stdout=-1, text=True).stdout.strip(), flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Start a guard over Python code, with a temporary directory of its own."""
    started = []

    def begin(mode, code, *options, env=None):
        environ = {**os.environ, "TMPDIR": str(tmp_path), **(env or {})}
        pipe = subprocess.PIPE
        command = [sys.executable, "-I", GUARD, mode, *options, "--", sys.executable, "-c", code]
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(pid):
    return [child for child in guard.descendants(pid) if is_alive(child)]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_agents_exit_status_is_the_guards(start):
    assert start("host", "raise SystemExit(7)").wait(ENOUGH_S) == 7


def test_a_signal_counts_as_a_shell_counts(start):
    assert start("host", "import os; os.kill(os.getpid(), 9)").wait(ENOUGH_S) == 137


@pytest.mark.parametrize(("order", "seen"), [(b"i", 2), (b"t", 15), (None, 15)])
def test_an_order_or_a_closed_lifeline_reaches_the_agent(start, order, seen):
    code = (
        "import signal, sys, time\n"
        "for s in (2, 15): signal.signal(s, lambda n, f: sys.exit(100 + n))\n"
        f"print('up', flush=True)\n{FOREVER}"
    )
    process = start("host", code)
    assert process.stdout.readline() == b"up\n"
    if order is None:
        process.stdin.close()
    else:
        process.stdin.write(order)
        process.stdin.flush()
    assert process.wait(ENOUGH_S) == 100 + seen
    process.stdin = None


@pytest.mark.parametrize(("order", "option"), [(b"i", "--interrupt-with"), (b"t", "--terminate-with")])
def test_an_order_can_be_another_signal(start, order, option):
    code = f"import signal, sys, time\nsignal.signal(12, lambda *_: sys.exit(5))\nprint('up', flush=True)\n{FOREVER}"
    process = start("host", code, option, "SIGUSR2")
    assert process.stdout.readline() == b"up\n"
    process.stdin.write(order)
    process.stdin.flush()
    assert process.wait(ENOUGH_S) == 5


def test_who_does_not_follow_is_killed_after_the_grace(start):
    process = start("host", STUBBORN, "--grace-s", "0.2")
    assert process.stdout.readline() == b"up\n"
    begin_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH_S) == 137
    assert time.monotonic() - begin_s >= 0.2


def test_an_order_to_kill_does_not_wait_for_the_grace(start):
    process = start("host", STUBBORN, "--grace-s", str(NEVER_S))
    assert process.stdout.readline() == b"up\n"
    process.stdin.write(b"k")
    process.stdin.flush()
    assert process.wait(ENOUGH_S) == 137


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers are a feature of Linux")
def test_what_an_agent_leaves_behind_is_killed(start):
    process = start("host", LEAVES_ONE)
    left = int(process.stdout.readline())
    assert process.wait(ENOUGH_S) == 0
    assert not is_alive(left)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is a feature of Linux")
def test_a_rank_does_not_outlive_its_killed_guard(start):
    process = start("rank", "import os, time; print(os.getpid(), flush=True); time.sleep(600)", env={"RANK": "3"})
    rank = int(process.stdout.readline().removeprefix(b"[3] "))
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(rank), "the rank's end")


def test_files_in_the_agents_tmpdir_go_with_it(start, tmp_path):
    code = "import tempfile; print(tempfile.mkdtemp(), flush=True)"
    process = start("host", code)
    made = Path(process.stdout.readline().decode().strip())
    assert process.wait(ENOUGH_S) == 0
    assert made.is_relative_to(tmp_path) and list(tmp_path.iterdir()) == []


def test_directories_of_killed_guards_are_removed_by_the_next_one_and_no_others(tmp_path):
    """A lock tells them apart: it ends with the process that has it."""
    kept = Path(guard.make_locked(str(tmp_path)))
    code = f"from fastsample_dist.launch import guard; print(guard.make_locked({str(tmp_path)!r}))"
    left = Path(subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout.strip())
    (left / "segment").write_bytes(b"0")
    (tmp_path / "other").mkdir()
    guard.remove_abandoned(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([kept, tmp_path / "other"])


def test_a_rank_gets_the_users_tmpdir_back(start):
    env = {"TMPDIR": "/agents", guard.KEPT_TMPDIR: "/users", "RANK": "0"}
    process = start("rank", "import os; print(os.environ['TMPDIR'], 'FASTSAMPLE_KEPT_TMPDIR' in os.environ)", env=env)
    assert process.communicate(timeout=ENOUGH_S)[0] == b"[0] /users False\n"


def test_every_line_of_a_rank_carries_its_number_and_a_progress_bar_its_last_state(start):
    code = r"import sys; print('a\n\nb'); print('1%\r2%\r3%'); print('end', end=''); print('c', file=sys.stderr)"
    process = start("rank", code, env={"RANK": "12"})
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (out, err) == (b"[12] a\n[12] \n[12] b\n[12] 3%\n[12] end\n", b"[12] c\n")


def test_nothing_is_lost_when_a_reader_pauses_longer_than_a_rank_lives(start):
    process = start("rank", "import sys; print('x' * 99999); print('last')", env={"RANK": "0"})
    process.stdout.read(1)
    wait_until(lambda: not children(process.pid), "the rank's end")
    time.sleep(guard.DRAIN_S + 0.5)
    assert process.poll() is None
    assert process.communicate(timeout=ENOUGH_S)[0].endswith(b"x\n[0] last\n")
    assert process.returncode == 0


def test_a_reader_that_pauses_does_not_keep_a_rank_that_was_told_to_end(start):
    process = start("rank", "print('x' * 99999)", env={"RANK": "0"})
    process.stdout.read(1)
    wait_until(lambda: not children(process.pid), "the rank's end")
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH_S) == 0


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(4)", 4, b"[1] fastsample-launch: rank 1 ended with exit status 4\n"),
        ("import os; os.kill(os.getpid(), 9)", 137, b"[1] fastsample-launch: rank 1 was killed by SIGKILL\n"),
        ("pass", 0, b""),
    ],
)
def test_a_rank_guard_says_how_its_rank_ended(start, code, status, said):
    process = start("rank", code, env={"OMPI_COMM_WORLD_RANK": "1"})
    assert process.communicate(timeout=ENOUGH_S)[1] == said
    assert process.returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_rank_that_was_told_to_end_is_no_failure(start, number):
    process = start("rank", "import time; print('up', flush=True); time.sleep(600)", env={"RANK": "1"})
    assert process.stdout.readline() == b"[1] up\n"
    process.send_signal(number)
    assert process.communicate(timeout=ENOUGH_S)[1] == b""
    assert process.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_an_interrupt_is_a_keyboard_interrupt_of_the_rank(start, number):
    code = f"import time\ntry:\n print('up', flush=True)\n {FOREVER}\nexcept KeyboardInterrupt: print('seen')"
    process = start("rank", code, env={"RANK": "0"})
    assert process.stdout.readline() == b"[0] up\n"
    process.send_signal(number)
    assert process.communicate(timeout=ENOUGH_S)[0] == b"[0] seen\n"
    assert process.returncode == 0


# Between the signal and the call that waits there is no instruction of Python's, after which a handler could run.
JUST_BEFORE = f"""
import ctypes, functools, os, select, signal, sys
sys.path.insert(0, {str(Path(GUARD).parent)!r})
import guard
signals = [functools.partial(ctypes.CDLL(None).kill, os.getpid(), signal.SIGTERM)]

def with_signal_before(call):
    def wrapped(*arguments):
        if os.WNOHANG in arguments or not signals:
            return call(*arguments)
        calls = [signals.pop(), functools.partial(call, *arguments)]
        return list(map(functools.partial.__call__, calls))[1]
    return wrapped

os.waitpid, select.select = map(with_signal_before, (os.waitpid, select.select))
sys.exit(guard.RankGuard(["sleep", "600"], 600.0).run())
"""
WHILE_IT_BEGINS = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(GUARD).parent)!r})
import guard
handle = signal.signal

def with_signal_after(number, handler):
    handle(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)

signal.signal = with_signal_after
sys.exit(guard.HostGuard(["sleep", "600"], 600.0, signal.SIGINT).run())
"""


@pytest.mark.parametrize(
    "code", [JUST_BEFORE, WHILE_IT_BEGINS], ids=["before a rank guard waits", "while a host guard begins"]
)
def test_a_signal_at_an_awkward_moment_counts(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert process.wait(ENOUGH_S) == 143
    finally:
        process.kill()
        process.communicate()


def test_a_stopped_rank_is_killed_after_the_grace(start):
    code = (
        "import os, signal, time; signal.signal(15, lambda *_: print('seen')); print(os.getpid(), flush=True); "
        "time.sleep(600)"
    )
    process = start("rank", code, "--grace-s", "0.2", env={"RANK": "0"})
    os.kill(int(process.stdout.readline().removeprefix(b"[0] ")), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH_S) == 137


def test_a_rank_gets_its_share_of_the_cores_unless_told_otherwise(start, monkeypatch):
    code = "import os; print(os.environ['OMP_NUM_THREADS'])"
    environ = {"RANK": "0", "LOCAL_WORLD_SIZE": "1000000"}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert start("rank", code, env=environ).communicate(timeout=ENOUGH_S)[0] == b"[0] 1\n"
    environ["OMP_NUM_THREADS"] = "7"
    assert start("rank", code, env=environ).communicate(timeout=ENOUGH_S)[0] == b"[0] 7\n"


def test_a_directory_that_does_not_exist_is_refused(start):
    process = start("host", "pass", "--chdir", "/does/not/exist")
    said = process.communicate(timeout=ENOUGH_S)[1].decode()
    assert said.startswith(
        "fastsample-launch: cannot enter /does/not/exist (No such file or directory); pass a --workdir"
    )
    assert process.returncode == 1 and said.count("\n") == 1
