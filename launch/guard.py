"""The process between a launcher and what it started, so that nothing outlives a run. Runs as a file of its own.

`guard.py host ... -- AGENT`: starts an agent (torchrun's, or mpirun) on this machine and holds a lifeline: standard
input. A byte there is a sign of life or an order ("i" interrupt, "t" terminate, "k" kill). When it closes, or is
silent for SILENCE_S after the first byte, the agent is asked to end, and killed with all its descendants when it has
not ended after the grace. As subreaper of its descendants the guard also sees those whose parents have ended.

`guard.py rank ... -- COMMAND`: starts one rank and writes every line of its output as "[rank] line". Asked to end, it
passes that on and kills the rank after the grace, whatever the agent's own patience is (30 s for torchrun). How a rank
ended unasked, or that it was started again, it reports in a line of its own (NOTE).

Both follow their parent when it is killed (Linux: PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

NOTE = "fastsample-launch:"  # begins a guard's own lines
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
KEPT_TMPDIR = "FASTSAMPLE_KEPT_TMPDIR"  # the user's TMPDIR, which ranks get back
SHARED_MEMORY = "FASTSAMPLE_SHARED_MEMORY"  # the guard's own directory in /dev/shm; not a name that mpirun passes on
DIRECTORY = "fastsample-launch-"  # begins the names of a guard's own directories
OPENMPI_SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
SILENCE_S = 30.0
AGENT_EXTRA_S = 1.0  # ranks are killed after the grace; their agent may take this much longer
SWEEP_S = 3.0
DRAIN_S = 1.0  # for output that has not arrived when a rank has ended
QUIET_S = 0.2  # without a line to write: there is none left
MAX_LINE_BYTES = 1 << 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl() -> Callable[[int, int], int] | None:
    """The system call of Linux; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).prctl
    return lambda option, value: function(option, value, 0, 0, 0)


def _follow_parent(number: int) -> Callable[[], None]:
    """A function that makes the calling process get this signal when its parent ends."""
    prctl = _prctl()
    return (lambda: None) if prctl is None else (lambda: prctl(PR_SET_PDEATHSIG, number) and None)


def _status(return_code: int) -> int:
    """An exit status as a shell gives it."""
    return 128 - return_code if return_code < 0 else return_code


def _share_cores(num_ranks: int) -> None:
    """Give OpenMP this rank's share of the machine, unless the user has chosen (torchrun would take 1)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))


def descendants(root: int) -> list[int]:
    """Processes below `root`, as /proc shows them now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, front = [], [root]
    while front:
        front = [pid for parent in front for pid in children.get(parent, ())]
        found += front
    return found


def _signals_to_pipe() -> int:
    """A descriptor from which the numbers of arriving signals are read, of those that have a handler in Python.

    Such a handler runs between two instructions. One of a signal that comes just before a call that waits would run
    after it; a `select` of this descriptor returns.
    """
    out, into = os.pipe()
    os.set_blocking(out, False)
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into)
    return out


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class HostGuard:
    """Starts the agent, and ends it with everything below.

    Args:
      command: the agent.
      grace_s: seconds between asking and killing.
      interrupt_with: what the agent gets for an interrupt.
      terminate_with: what it gets to end, unless killed.
    """

    def __init__(
        self,
        command: list[str],
        grace_s: float,
        interrupt_with: signal.Signals = signal.SIGINT,
        terminate_with: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._command, self._grace_s = command, grace_s
        self._interrupt_with, self._terminate_with = interrupt_with, terminate_with
        self._kill_at: float | None = None
        self._heard_at: float | None = None
        self._agent = 0
        self._agent_status: int | None = None

    def run(self) -> int:
        """Run the agent; returns its exit status."""
        prctl = _prctl()
        if prctl is not None:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        signals = _signals_to_pipe()
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts
        follow = _follow_parent(signal.SIGTERM)
        # Not a Popen: this process reaps every child itself, adopted ones included.
        self._agent = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, preexec_fn=follow).pid
        listening = [signals, sys.stdin.fileno()]
        while self._agent_status is None:
            ready, _, _ = select.select(listening, [], [], 0.5)
            if signals in ready:
                self._take_signals(os.read(signals, 256))
            if sys.stdin.fileno() in ready and not self._take_orders():
                listening = listening[:1]
            self._look_at_clock()
            self._reap()
        self._sweep()
        return _status(self._agent_status)

    def _take_signals(self, numbers: bytes) -> None:
        if signal.SIGINT in numbers:
            self._stop(self._interrupt_with)
        if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
            self._stop(self._terminate_with)

    def _take_orders(self) -> bool:
        """Follow the orders of the lifeline; False when it is closed."""
        orders = os.read(sys.stdin.fileno(), 4096)
        self._heard_at = time.monotonic()
        if b"k" in orders:
            self._kill_at = 0.0
        elif b"t" in orders or not orders:
            self._stop(self._terminate_with)
        elif b"i" in orders:
            self._stop(self._interrupt_with)
        return bool(orders)

    def _stop(self, number: signal.Signals) -> None:
        if self._agent_status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._agent, number)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s + AGENT_EXTRA_S

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._kill_at is None and self._heard_at is not None and now - self._heard_at > SILENCE_S:
            _say(f"{NOTE} heard nothing from the launcher for {SILENCE_S:g} s; ending this host's ranks")
            self._stop(self._terminate_with)
        if self._kill_at is not None and now >= self._kill_at:
            _kill_all(descendants(os.getpid()))

    def _reap(self) -> bool:
        """Reap every ended child; False when there is none left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._agent:
                self._agent_status = os.waitstatus_to_exitcode(status)

    def _sweep(self) -> None:
        """Kill what the agent left behind."""
        end = time.monotonic() + SWEEP_S
        while self._reap() and time.monotonic() < end:
            _kill_all(descendants(os.getpid()))
            time.sleep(0.02)


class RankGuard:
    """Starts one rank, prefixes its output and bounds its end.

    Args:
      command: the rank.
      grace_s: seconds between asking and killing.
    """

    def __init__(self, command: list[str], grace_s: float) -> None:
        self._command, self._grace_s = command, grace_s
        self._rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "?")
        self._prefix = f"[{self._rank}] ".encode()
        self._asked_to_end = False
        self._in_hand: set[int] = set()  # targets that output is being written to
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run the rank; returns its exit status."""
        parent, signals = os.getppid(), _signals_to_pipe()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, lambda *_: self._kill_group())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _follow_parent(signal.SIGTERM)()
        if os.getppid() != parent:
            return 1
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0:
            self._note(f"was started again (restart {os.environ['TORCHELASTIC_RESTART_COUNT']})")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_follow_parent(signal.SIGKILL),
        )
        if self._asked_to_end:  # between the handlers and the start
            self._kill_group()
        pumps = [
            threading.Thread(target=self._pump, args=(pipe.fileno(), target), daemon=True)
            for pipe, target in ((self._process.stdout, 1), (self._process.stderr, 2))
        ]
        for pump in pumps:
            pump.start()
        while self._process.poll() is None:
            select.select([signals], [], [])
            os.read(signals, 256)
        code = self._process.returncode
        unasked = code != 0 and not self._asked_to_end
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._drain(pumps)
        if unasked:
            self._note(f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}")
        return _status(code)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._asked_to_end = True
        if self._process is not None and self._process.returncode is None:
            interrupt = number in (signal.SIGINT, signal.SIGUSR2)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT if interrupt else signal.SIGTERM)
        if signal.getitimer(signal.ITIMER_REAL)[0] == 0.0:
            signal.setitimer(signal.ITIMER_REAL, max(self._grace_s, 1e-3))

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _drain(self, pumps: list[threading.Thread]) -> None:
        """Wait DRAIN_S for output that has not arrived; unless asked to end, any time for a reader that pauses."""
        end = time.monotonic() + DRAIN_S
        for pump in pumps:
            pump.join(max(0.0, end - time.monotonic()))
        self._kill_group()
        end = time.monotonic() + QUIET_S
        while any(pump.is_alive() for pump in pumps) and time.monotonic() < end and not self._asked_to_end:
            time.sleep(0.02)
            if self._in_hand:
                end = time.monotonic() + QUIET_S

    def _pump(self, source: int, target: int) -> None:
        """Copy lines; of a line that was overwritten (a carriage return), the last version."""
        rest = b""
        while chunk := os.read(source, MAX_LINE_BYTES):
            self._in_hand.add(target)
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) >= MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._write(target, line)
            self._in_hand.discard(target)
        if rest:
            self._write(target, rest)

    def _write(self, target: int, line: bytes) -> None:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        data = self._prefix + line + b"\n"
        with contextlib.suppress(BrokenPipeError):  # its reader is gone; the rank must not block for that
            while data:  # up to 4096 bytes at once are not torn apart by other ranks' lines
                data = data[os.write(target, data) :]

    def _note(self, text: str) -> None:
        self._write(2, f"{NOTE} rank {self._rank} {text}".encode())


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def make_locked(parent: str) -> str:
    """A new directory in `parent`, locked as long as this process lives: see `remove_abandoned`."""
    while True:
        path = tempfile.mkdtemp(prefix=DIRECTORY, dir=parent)
        descriptor = _locked(path)
        if descriptor is not None and Path(path).is_dir():  # else another guard took it for abandoned
            return path
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned(parent: str) -> None:
    """Remove the directories of guards that were killed before they could do so themselves.

    Only for a file system that no other machine has: there a directory without a lock is nobody's.
    """
    for path in Path(parent).glob(f"{DIRECTORY}*"):
        descriptor = _locked(str(path))
        if descriptor is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _locked(path: str) -> int | None:
    """A descriptor that holds the directory's lock; None: another process has it, or it is not ours to open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _run_host(args: argparse.Namespace) -> int:
    for setting in args.env:
        name, _, value = setting.partition("=")
        os.environ[name] = value
    try:
        os.chdir(args.chdir)
    except OSError as error:
        _say(f"{NOTE} cannot enter {args.chdir} ({error.strerror}); pass a --workdir that every host has")
        return 1
    _share_cores(args.ranks)
    # Agents leave files in TMPDIR, torchrun even after a normal end, and a killed mpirun its ranks' segments in
    # /dev/shm; so they get directories that are removed with them.
    directories = [tempfile.mkdtemp(prefix=DIRECTORY)]
    os.environ[KEPT_TMPDIR] = os.environ.get("TMPDIR", "")
    os.environ["TMPDIR"] = directories[0]
    if os.access("/dev/shm", os.W_OK):
        remove_abandoned("/dev/shm")
        directories.append(make_locked("/dev/shm"))
        os.environ[SHARED_MEMORY] = directories[1]
    try:
        asks = signal.Signals[args.interrupt_with], signal.Signals[args.terminate_with]
        return HostGuard(args.command, args.grace_s, *asks).run()
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


def _run_rank(args: argparse.Namespace) -> int:
    if KEPT_TMPDIR in os.environ:
        os.environ["TMPDIR"] = os.environ.pop(KEPT_TMPDIR)
        if not os.environ["TMPDIR"]:
            del os.environ["TMPDIR"]
    segments = os.environ.pop(SHARED_MEMORY, None)
    if segments is not None:
        os.environ.setdefault(OPENMPI_SEGMENTS, segments)
    _share_cores(int(next((os.environ[name] for name in LOCAL_SIZE_VARIABLES if name in os.environ), "1")))
    return RankGuard(args.command, args.grace_s).run()


def main(argv: list[str] | None = None) -> int:
    """Run a guard; returns the exit status of what it guards."""
    parser = argparse.ArgumentParser(prog="fastsample_dist.launch.guard", allow_abbrev=False)
    parser.add_argument("mode", choices=("host", "rank"))
    parser.add_argument("--grace-s", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--chdir", default=".")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--interrupt-with", default="SIGINT")
    parser.add_argument("--terminate-with", default="SIGTERM")
    words = sys.argv[1:] if argv is None else argv
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.command = words[split + 1 :]
    if not args.command:
        parser.error("no command after --")
    try:
        return _run_host(args) if args.mode == "host" else _run_rank(args)
    except OSError as error:
        _say(f"{NOTE} cannot start {args.command[0]} ({error.strerror})")
        return 127


if __name__ == "__main__":
    sys.exit(main())
