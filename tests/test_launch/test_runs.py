"""Whole runs on this machine and on "hosts" reached by a false ssh: results, failures, interrupts, and nothing left.

Where a run must end although nothing kills its ranks, the grace is NEVER_S, longer than the tests wait.
"""

import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fastsample_dist.launch import runner
from fastsample_dist.launch.screen import Screen
from fastsample_dist.launch.writer import Writer
from fastsample_dist.testing import mpi_missing_reason
from tests.interrupted import FOREVER
from tests.test_launch.programs import RSYNC, SSH, Launcher, write_program
from tests.test_launch.test_parts import make_parts
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
WAYS = {
    "torchrun": ("--nproc", "2"),
    "mpirun": ("--nproc", "2", "--mpi"),
    "hosts": ("--hosts", "hosts"),
    "hosts-mpirun": ("--hosts", "hosts", "--mpi"),
}
ENDLESS_GRACE = ("--grace-s", str(NEVER_S))
GATE = ("torchrun", "hosts-mpirun")
every_way = pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[*[needs_mpi] * ("mpirun" in way), *[pytest.mark.grid] * (way not in GATE)])
        for way in WAYS
    ],
)

SUM = """
import os, sys, time, torch
from fastsample_dist import DistContext
with DistContext.from_env(timeout_s=200) as ctx:
    total = ctx.comm.all_reduce(torch.tensor([1.0 + ctx.rank]), purpose="test").item()
    print(f"rank {ctx.rank} of {ctx.world_size} {total:g} {os.environ['A']!r} {sys.argv[1:]} {os.getcwd()}")
    if sys.argv[1:] == ["wait"]:
        FOREVER
"""
# What a rank does is its first argument; nothing here needs torch.
RANK = """
import os, signal, sys, time
if sys.argv[1] == "either":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
def up():
    print("up", rank, os.getpid(), flush=True)
if sys.argv[1] == "raise" and rank == 1:
    up()
    raise KeyError("the reason")
if sys.argv[1] == "restart" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    raise KeyError("the first time")
if sys.argv[1] == "restart":
    sys.exit()
try:
    up()
    while sys.argv[1] == "print":
        time.sleep(0.05)
        print("more")
    while sys.argv[1] == "flood":
        print("x" * 99)
    FOREVER
except KeyboardInterrupt:
    print("interrupted", rank, flush=True)
    if sys.argv[1] == "ignore":
        FOREVER
    raise
"""

# An ssh that plays the host itself: rank 0 prints what no queue holds; after some beats it notes whether it could.
FLOOD_LINES = 60_000
FLOOD = f"""
import os, threading
printed = b"".join(b"[0] %d %s\\n" % (number, b"x" * 99) for number in range({FLOOD_LINES}))
def flood():
    rest = printed
    while rest:
        rest = rest[os.write(1, rest):]
printing = threading.Thread(target=flood)
printing.start()
beats = 0
while printing.is_alive() and beats < 4:
    beats += len(os.read(0, 1))
open(f"printed {{not printing.is_alive()}}", "w").close()
printing.join()
"""


@pytest.fixture
def start(tmp_path):
    """Start a launcher in a directory with scripts, two hosts, and the false ssh and rsync."""
    write_program(tmp_path / "bin", "ssh", SSH)
    write_program(tmp_path / "bin", "rsync", RSYNC)
    (tmp_path / "sum.py").write_text(SUM.replace("FOREVER", FOREVER))
    (tmp_path / "rank.py").write_text(RANK.replace("FOREVER", FOREVER))
    (tmp_path / "hosts").write_text("127.0.0.1\n127.0.0.2  # the other end of the room\n")
    made = []

    def begin(*words, env=None, before=None):
        made.append(Launcher(tmp_path, *words, env=env, before=before))
        return made[-1]

    yield begin
    for launcher in made:
        launcher.__exit__()


def pids_of(lines):
    return {line.split("up ")[1].split()[0]: int(line.split()[-1]) for line in lines}


@every_way
def test_ranks_meet_and_get_arguments_environment_and_directory(start, tmp_path, way):
    launcher = start(*WAYS[way], "--env", "A=b 'c", "--env", "GLOO_SOCKET_IFNAME=lo", "--", "sum.py", "it's", "$HOME")
    assert launcher.wait() == 0, launcher.err
    places = ("127.0.0.1:0", "127.0.0.2:1") if "hosts" in way else ("0", "1")
    rest = f"""of 2 3 "b 'c" ["it's", '$HOME'] {tmp_path}"""
    assert sorted(launcher.out) == [f"[{place}] rank {rank} {rest}" for rank, place in enumerate(places)]
    assert launcher.nothing_is_left()


@every_way
def test_a_rank_that_raises_ends_the_run_with_its_traceback_last_and_once(start, way):
    launcher = start(*WAYS[way], *ENDLESS_GRACE, "--json", "report.json", "--", "rank.py", "raise")
    launcher.wait_for("up 1")
    assert launcher.wait() == 1
    assert launcher.nothing_is_left()
    assert launcher.err[-1].endswith(":1] KeyError: 'the reason'" if "hosts" in way else "[1] KeyError: 'the reason'")
    assert sum("KeyError: 'the reason'" in line for line in launcher.err) == 1
    where = " on 127.0.0.2" if "hosts" in way else ""
    [summary] = [line for line in launcher.err if line.startswith("fastsample-launch: error:")]
    assert summary.startswith(f"fastsample-launch: error: rank 1{where} ended with exit status 1; the run ended after")
    assert launcher.err[launcher.err.index(summary) + 1].endswith("Traceback (most recent call last):")


@every_way
def test_a_rank_killed_by_sigkill_ends_the_run(start, way):
    launcher = start(*WAYS[way], *ENDLESS_GRACE, "--", "rank.py", "sleep")
    pids = pids_of(launcher.wait_for("up ", 2))
    os.kill(pids["1"], signal.SIGKILL)
    assert launcher.wait() == 137
    assert launcher.nothing_is_left()
    assert "rank 1" in launcher.err[-1] and "was killed by SIGKILL" in launcher.err[-1]
    assert launcher.err[-1].endswith("; out of memory? the kernel's log or the batch system's says so")


@every_way
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_rank_and_ends_the_run(start, way, number):
    launcher = start(*WAYS[way], *ENDLESS_GRACE, "--", "rank.py", "either")
    launcher.wait_for("up ", 2)
    launcher.process.send_signal(number)
    assert launcher.wait() == 128 + number
    assert launcher.nothing_is_left()
    assert sum("interrupted " in line for line in launcher.out) == 2
    assert not any("Traceback" in line for line in launcher.err)


@every_way
def test_ranks_that_ignore_ctrl_c_are_killed_after_the_grace(start, way):
    launcher = start(*WAYS[way], "--grace-s", 1, "--", "rank.py", "ignore")
    launcher.wait_for("up ", 2)
    begin_s = time.monotonic()
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
    assert time.monotonic() - begin_s >= 1.0
    assert launcher.nothing_is_left()


@every_way
def test_nothing_outlives_a_launcher_that_is_killed(start, way):
    launcher = start(*WAYS[way], "--", "rank.py", "sleep")
    launcher.wait_for("up ", 2)
    launcher.process.kill()
    assert launcher.nothing_is_left(within_s=ENOUGH_S)


@needs_mpi
def test_nothing_outlives_an_mpirun_that_is_killed(start):
    launcher = start("--nproc", 2, "--mpi", "--env", "A=", "--", "sum.py", "wait")
    launcher.wait_for("rank ", 2)
    [mpirun] = [pid for pid in launcher.left() if "prterun" in words_of(pid)[0] or "mpirun" in words_of(pid)[0]]
    os.kill(mpirun, signal.SIGKILL)
    assert launcher.wait() == 137
    assert launcher.nothing_is_left()


def test_sigterm_ends_the_run(start):
    launcher = start("--nproc", 2, "--", "rank.py", "sleep")
    launcher.wait_for("up ", 2)
    launcher.process.terminate()
    assert launcher.wait() == 143
    assert launcher.nothing_is_left()


@pytest.mark.grid
def test_a_closed_output_ends_the_run(start):
    launcher = start("--nproc", 2, "--", "rank.py", "print")
    launcher.wait_for("up ", 2)
    launcher.process.stdout.close()
    assert launcher.wait() == 1
    assert launcher.err == ["fastsample-launch: error: the output was closed; all ranks were ended."]
    assert launcher.nothing_is_left(within_s=ENOUGH_S)


@pytest.mark.grid
def test_nohup_is_respected(start):
    launcher = start(
        "--nproc", 1, "--", "rank.py", "sleep", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    launcher.wait_for("up ")
    launcher.process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert launcher.process.poll() is None
    launcher.process.terminate()
    assert launcher.wait() == 143


def test_while_nobody_reads_hosts_hear_from_the_launcher_and_nothing_is_lost(start, tmp_path):
    write_program(tmp_path / "bin", "ssh", FLOOD)
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    launcher = start("--hosts", "hosts", "--", "rank.py", "sleep")
    launcher.reads_output.clear()
    wait_until(lambda: any(tmp_path.glob("printed *")), "the fourth sign of life")
    assert not (tmp_path / "printed True").exists()  # the queue is bounded
    launcher.reads_output.set()
    assert launcher.wait() == 0
    assert launcher.out == [f"[0] {number} {'x' * 99}" for number in range(FLOOD_LINES)]
    assert launcher.err == []


def test_ctrl_c_ends_a_run_whose_output_is_not_read(start):
    launcher = start("--nproc", 2, *ENDLESS_GRACE, "--", "rank.py", "flood")
    launcher.wait_for("up ", 2)
    launcher.reads_output.clear()
    launcher.wait_until_blocked()
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(ENOUGH_S) == 130
    launcher.reads_output.set()
    assert launcher.nothing_is_left()
    assert launcher.err == ["fastsample-launch: interrupted; ending all ranks (once more kills them)"]


def test_ctrl_c_ends_the_wait_for_a_reader_after_the_run(start, tmp_path):
    write_program(tmp_path / "bin", "ssh", "print('[0] x\\n' * 50_000)")
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    launcher = start("--hosts", "hosts", "--json", "report.json", "--", "rank.py", "sleep")
    launcher.reads_output.clear()
    wait_until((tmp_path / "report.json").exists, "the end of the run")
    assert launcher.process.poll() is None
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(ENOUGH_S) == 130
    launcher.reads_output.set()


def test_an_output_that_is_closed_from_the_start_is_as_good_as_none(start):
    launcher = start("--nproc", 1, "--", "rank.py", "restart", before=lambda: os.close(1))
    assert launcher.wait() == 0, launcher.err
    assert launcher.out == []


def test_a_second_ctrl_c_does_not_wait_for_the_grace(start):
    launcher = start("--hosts", "hosts", *ENDLESS_GRACE, "--", "rank.py", "ignore")
    launcher.wait_for("up ", 2)
    launcher.process.send_signal(signal.SIGINT)
    launcher.wait_for("interrupted", 2)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
    assert launcher.nothing_is_left(within_s=ENOUGH_S)


def test_a_run_that_takes_too_long_is_ended(start):
    launcher = start("--nproc", 1, "--timeout-s", 6, "--", "rank.py", "sleep")
    assert launcher.wait() == 124
    assert launcher.err[-1].startswith("fastsample-launch: did not end within 6 s; all ranks ended after")
    assert launcher.nothing_is_left()


def test_a_host_that_ssh_does_not_reach_is_named_and_ends_the_others(start):
    launcher = start(
        "--hosts", "hosts", "--json", "report.json", "--", "rank.py", "sleep", env={"FAKE_DOWN": "127.0.0.2"}
    )
    assert launcher.wait() == 255
    said = "ssh for 127.0.0.2 ended with status 255 (ssh: connect to host 127.0.0.2 port 22: Connection refused)"
    assert launcher.err[-1].startswith(f"fastsample-launch: error: {said}; the run ended after")
    assert launcher.nothing_is_left()


def test_a_connection_that_is_cut_ends_the_run_on_both_sides(start):
    launcher = start("--hosts", "hosts", "--", "rank.py", "sleep")
    launcher.wait_for("up ", 2)
    [ssh] = [pid for pid in launcher.left() if is_ssh_to(pid, "127.0.0.2")]
    os.kill(ssh, signal.SIGKILL)
    assert launcher.wait() == 137
    assert launcher.err[-1].startswith("fastsample-launch: error: ssh for 127.0.0.2 ended with status 137")
    assert launcher.nothing_is_left(within_s=ENOUGH_S)


def words_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")


def is_ssh_to(pid, host):
    words = words_of(pid)
    return any(word.endswith("/ssh") for word in words[:2]) and host in words


def test_a_restart_is_passed_through_and_succeeds(start):
    launcher = start("--nproc", 2, "--max-restarts", 1, "--", "rank.py", "restart")
    assert launcher.wait() == 0
    assert sum("KeyError: 'the first time'" in line for line in launcher.err) == 1
    assert "[1] fastsample-launch: rank 1 was started again (restart 1)" in launcher.err
    assert launcher.nothing_is_left()


def test_the_report_says_what_was_started_and_how_it_ended(start, tmp_path):
    launcher = start("--hosts", "hosts", "--json", "report.json", "--", "rank.py", "raise")
    assert launcher.wait() == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["script"], report["world_size"], report["status"]) == (["rank.py", "raise"], 2, 1)
    assert report["failed_rank"] == {"rank": 1, "host": "127.0.0.2", "how": "ended with exit status 1"}
    assert report["traceback"][-1] == "KeyError: 'the reason'"
    assert [(host["host"], host["ranks"], host["killed"]) for host in report["hosts"]] == [
        ("127.0.0.1", [0], False), ("127.0.0.2", [1], False),
    ]  # fmt: skip
    assert report["hosts"][1]["status"] in (1, 143)  # torchrun's own, or it was ended before it had seen its rank's end
    assert report["hosts"][0]["command"][0] == "ssh"


def test_each_host_gets_its_own_parts_before_the_start(start, tmp_path):
    make_parts(tmp_path / "parts", 4)
    words = ("--copy-parts", f"parts:{tmp_path}/at there", "--env", "GLOO_SOCKET_IFNAME=lo", "--env", "A=")
    launcher = start("--hosts", "hosts", *words, "--", "sum.py")
    assert launcher.wait() == 0, launcher.err
    for host, parts in (("127.0.0.1", {"part-0", "part-1"}), ("127.0.0.2", {"part-2", "part-3"})):
        place = tmp_path / "disks" / host / str(tmp_path / "at there").lstrip("/")
        assert {entry.name for entry in place.iterdir()} == {"manifest.json", "topology", *parts}
    programs = [line.split()[0] for line in (tmp_path / "programs.log").read_text().splitlines()]
    assert programs == ["ssh", "ssh", "rsync", "rsync", "ssh", "ssh"]


MOMENTS = {
    "while it begins": (signal, "signal", ("sleep", "600")),
    "after its end": (runner.Runner, "_drain", ("true",)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_counts_at_the_edges_of_a_stage(moment, monkeypatch):
    """Else the next stage would begin."""
    of, name, command = MOMENTS[moment]
    function, sent = getattr(of, name), []

    def with_signal_after(*arguments):
        result = function(*arguments)
        if not sent and callable(signal.getsignal(signal.SIGTERM)):
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        return result

    monkeypatch.setattr(of, name, with_signal_after)
    writers = Writer(io.StringIO()), Writer(io.StringIO())
    commands = [runner.Command("here", command, range(0), guarded=False)]
    ended = runner.Runner(commands, runner.RunLimits(), Screen(*writers, ["here"]), writers).run()
    assert (ended.reason, ended.status) == ("terminated", 143)


def test_a_copy_that_fails_ends_before_the_start(start, tmp_path):
    make_parts(tmp_path / "parts", 2)
    write_program(tmp_path / "bin", "rsync", "import sys; print('disk full', file=sys.stderr); sys.exit(11)")
    launcher = start("--hosts", "hosts", "--copy-parts", "parts", "--", "rank.py", "sleep")
    assert launcher.wait() == 11
    assert "rsync for 127.0.0." in launcher.err[-1] and "ended with status 11 (disk full)" in launcher.err[-1]
    assert not launcher.out


@pytest.mark.grid
def test_a_module_of_the_working_directory_named_launch_does_no_harm(start, tmp_path):
    (tmp_path / "launch.py").write_text("raise SystemExit('the wrong module')")
    launcher = start(
        "--hosts", "hosts", "--python", sys.executable, "--", "rank.py", "sleep", env={"PYTHONSAFEPATH": "1"}
    )
    launcher.wait_for("up ", 2)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 130
