"""What the launcher's tests share: an ssh and an rsync that stay on this machine, and a launcher under observation."""

import array
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from fastsample_dist.launch.guard import SHARED_MEMORY
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
PIPE_BYTES = 4096  # at least

# The command gets a session of its own and pipes, as from sshd, which does not end it when the connection is cut.
SSH = """
import os, subprocess, sys, threading
words = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    print("ssh", *words, file=log)
while words[0].startswith("-"):
    words = words[2:] if words[0] == "-o" else words[1:]
if words[0] in os.environ.get("FAKE_DOWN", "").split(","):
    print(f"ssh: connect to host {words[0]} port 22: Connection refused", file=sys.stderr)
    sys.exit(255)
pipe = subprocess.PIPE
remote = subprocess.Popen(["sh", "-c", " ".join(words[1:])], stdin=pipe, stdout=pipe, stderr=pipe, cwd="/",
                          start_new_session=True)
def copy(source, target):
    while data := os.read(source, 65536):
        os.write(target, data)
def feed():
    copy(0, remote.stdin.fileno())
    remote.stdin.close()
threading.Thread(target=feed, daemon=True).start()
copies = [threading.Thread(target=copy, args=(p.fileno(), n)) for p, n in ((remote.stdout, 1), (remote.stderr, 2))]
for thread in copies:
    thread.start()
for thread in copies:
    thread.join()
sys.exit(remote.wait() if remote.wait() >= 0 else 255)
"""

# Copies into a directory per host.
RSYNC = """
import os, shutil, sys
from pathlib import Path
with open(os.environ["FAKE_LOG"], "a") as log:
    print("rsync", *sys.argv[1:], file=log)
*sources, target = sys.argv[sys.argv.index("--") + 1:]
host, _, directory = target.partition(":")
place = Path(os.environ["FAKE_DISKS"], host, directory.lstrip("/"))
place.mkdir(parents=True, exist_ok=True)
for source in sources:
    if os.path.isdir(source):
        shutil.copytree(source, place / Path(source).name)
    else:
        shutil.copy(source, place)
"""


def write_program(directory: Path, name: str, text: str) -> None:
    """An executable Python program."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(f"#!{sys.executable}\n{text}")
    file.chmod(0o755)


class Launcher:
    """`fastsample-launch` in a process of its own, with everything below it marked in its environment.

    Args:
      directory: working directory; programs in its bin/ come first on PATH, temporary files go to its tmp/.
      words: the command line.
      env: more variables.
      before: called in the new process first.
    """

    def __init__(self, directory: Path, *words: object, env=None, before: Callable[[], object] | None = None) -> None:
        self.mark = f"FASTSAMPLE_TEST_MARK={uuid.uuid4().hex}"
        self._shared_memory: set[Path] = set()
        self.temporary = directory / "tmp"
        self.temporary.mkdir(exist_ok=True)
        name, _, value = self.mark.partition("=")
        paths = (str(directory / "bin"), os.environ.get("PATH", ""))
        environ = {
            **os.environ,
            name: value,
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "TMPDIR": str(self.temporary),
            "FAKE_LOG": str(directory / "programs.log"),
            "FAKE_DISKS": str(directory / "disks"),
            **(env or {}),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fastsample_dist.launch", *map(str, words)],
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=before,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self.reads_output = threading.Event()  # cleared: standard output is left in its pipe
        self.reads_output.set()
        pairs = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines) -> None:
        with contextlib.suppress(ValueError, OSError):  # a test closed it
            for line in stream:
                lines.append(line.rstrip("\n"))
                if lines is self.out:
                    self.reads_output.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """The lines of standard output with this text, once there are so many."""
        end = time.monotonic() + ENOUGH_S
        while time.monotonic() < end:
            found = [line for line in self.out if text in line]
            if len(found) >= count:
                self.left()  # sees the agents' directories
                return found
            assert self.process.poll() is None, f"ended early: {self.out} {self.err}"
            time.sleep(0.02)
        raise AssertionError(f"no {count} lines with {text!r}: {self.out} {self.err}")

    def wait_until_blocked(self) -> None:
        """Return once standard output, which is not read, takes no more."""
        unread, before = array.array("i", [0]), -1
        end = time.monotonic() + ENOUGH_S
        while unread[0] != before or before < PIPE_BYTES // 2:
            assert time.monotonic() < end, f"only {before} bytes in the pipe: {self.out} {self.err}"
            before = unread[0]
            time.sleep(0.5)
            fcntl.ioctl(self.process.stdout, termios.FIONREAD, unread)

    def wait(self, timeout_s: float = ENOUGH_S) -> int:
        """Its exit status, with all output read."""
        status = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(ENOUGH_S)
        return status

    def left(self) -> list[int]:
        """Processes of this run that live, the launcher included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    environ = (entry / "environ").read_text(errors="replace").split("\0")
                    if self.mark in environ:
                        found.append(int(entry.name))
                        variables = dict(setting.partition("=")[::2] for setting in environ)
                        self._shared_memory |= {Path(variables[SHARED_MEMORY])} if SHARED_MEMORY in variables else set()
        return found

    def nothing_is_left(self, within_s: float = 0.0) -> bool:
        """No process, temporary file or shared memory of the run remains."""
        end = time.monotonic() + within_s
        while self.left() or list(self.temporary.iterdir()) or any(path.exists() for path in self._shared_memory):
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True
