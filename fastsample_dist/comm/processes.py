"""Which of the other processes of this machine have ended: seen at once, however they ended, and without a message.

A process is watched by a descriptor (Linux 5.3), which stays that process's when its number is given to another one;
without it, by its state and moment of start in /proc.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from pathlib import Path

_ENDED = ("Z", "X")  # states in /proc: nobody has waited for it yet; gone
_BOOT_ID, _PROCESS_IDS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_STATE, _START = 0, 19  # fields of /proc/PID/stat behind the name


def own_process() -> str:
    """This process, for `has_ended` of another one."""
    return f"{_visible_from()} {os.getpid()} {_facts(os.getpid())[1]}"


def has_ended(process: str) -> bool:
    """Whether a process, as `own_process` gave it, has ended; False where it cannot be seen from this one."""
    where, pid, start = process.rsplit(" ", 2)
    if where != _visible_from():
        return False
    state, start_now = _facts(int(pid))
    return start_now != start or state in _ENDED


class Processes:
    """Processes of this machine that run now.

    Args:
      pids: by rank.
    """

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._ranks: dict[int, int] = {}  # by descriptor
        self._starts: dict[int, tuple[int, str | None]] = {}  # without one: the process and its start, by rank
        for rank, pid in pids.items():
            try:
                descriptor = os.pidfd_open(pid)
            except (OSError, AttributeError):  # an older system, or it has ended already
                self._starts[rank] = (pid, _facts(pid)[1])
            else:
                self._ranks[descriptor] = rank

    def ended(self) -> list[int]:
        """Ranks whose processes have ended, ascending. Does not wait. Any thread may ask."""
        ranks, poll = self._ranks, select.poll()  # one poll object serves one thread at a time
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        found = [ranks[descriptor] for descriptor, _ in poll.poll(0)]
        for rank, (pid, start) in self._starts.items():
            state, start_now = _facts(pid)
            if start_now != start or start is None or state in _ENDED:
                found.append(rank)
        return sorted(found)

    def close(self) -> None:
        """Watch no longer."""
        for descriptor in self._ranks:
            os.close(descriptor)
        self._ranks, self._starts = {}, {}


def _visible_from() -> str:
    """The same for processes that see each other under the same numbers; else one that is no other process's."""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {_PROCESS_IDS.readlink()}"
    except OSError:
        return f"unknown, of process {os.getpid()}"


def _facts(pid: int) -> tuple[str | None, str | None]:
    """(state, moment of start) of a process; (None, None) where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None, None
    return fields[_STATE], fields[_START]
