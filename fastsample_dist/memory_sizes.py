"""Sizes of memory: as text, how much of the host's is available, and how much this process holds."""

from __future__ import annotations

import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 2GB, 512MiB or 3000000.

    Raises:
      ValueError: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; expected a number with B, kB, MB, GB, TB, MiB or GiB, such as 2GB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def available_bytes() -> int:
    """Memory that is available without swapping, the limits of the control groups included."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:  # not Linux
        import psutil

        return int(psutil.virtual_memory().available)
    free = int(re.search(r"MemAvailable:\s+(\d+)", text)[1]) * 1024
    return min([free, *_group_rooms()])


def process_memory() -> dict[str, int]:
    """Bytes that this process holds now: {"peak_rss_bytes", "private_bytes", "shared_bytes", "pss_bytes"}.

    Peak: the largest resident set so far. Shared: pages that another process has mapped as well, such as the topology
    of a machine with several ranks. PSS: private bytes and its share of the shared ones, so that processes add up.
    Without /proc/self/smaps_rollup (Linux 4.14) the peak alone. Cost: the kernel walks the process's pages, 7 ms for
    each resident GB.
    """
    found = {"peak_rss_bytes": resident_bytes(peak=True)}
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return found
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
    for name in ("private", "shared"):
        found[f"{name}_bytes"] = sizes[f"{name.title()}_Clean"] + sizes[f"{name.title()}_Dirty"]
    return found | {"pss_bytes": sizes["Pss"]}


def resident_bytes(*, peak: bool = False) -> int:
    """Physical memory that this process holds now (or at most since its program was started), mapped files included.

    Where the system does not say (other than Linux) the peak, which may be that of the process that forked it.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    return int(re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+)", text)[1]) * 1024


def resident_sizes(pid: int) -> dict[str, int]:
    """Bytes that a process of this user holds: {"VmRSS": in all, "RssAnon": not backed by files, "RssFile", ...}.

    Empty where the system does not say (other than Linux 4.5), or the process has ended.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {name: int(size) * 1024 for name, size in re.findall(r"^(VmRSS|Rss\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def format_size(count: float) -> str:
    """Bytes with a decimal unit, rounded up in the third digit so that it can be asked for: 1.24GB."""
    for unit in ("TB", "GB", "MB"):
        size = _UNITS[unit]
        if count >= size:
            return f"{-(-int(count) // (size // 100)) / 100:g}{unit}"
    return f"{int(count)}B"


def _group_rooms() -> list[int]:
    """Bytes left in the control groups of this process and those above them, one entry per limit that is set."""
    own = {}  # path of the process's group by controller; version 2 has one group for all: ""
    for line in _text_of(Path("/proc/self/cgroup")).splitlines():  # "4:cpu,memory:/path", version 2: "0::/path"
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    rooms = []
    for version in _GROUP_VERSIONS:
        path = PurePosixPath(own.get(version.controller, "/"))
        for group in (path, *path.parents):  # in a container its own group may be the root, and the path that outside
            rooms.append(version.room(Path(version.mount, *group.parts[1:])))
    return [room for room in rooms if room is not None]


@dataclass(frozen=True)
class _GroupVersion:
    """Where a version of control groups states the memory of a group, and what its pages of files are called."""

    controller: str
    mount: str
    limit: str
    used: str
    file_pages: str

    def room(self, group: Path) -> int | None:
        """Bytes left below a group's limit; None without one. Pages of files that were read count as used, but are
        given up when needed.
        """
        limit, used, stat = (_text_of(group / name).strip() for name in (self.limit, self.used, "memory.stat"))
        if not (limit.isdecimal() and used.isdecimal()):
            return None
        cached = sum(map(int, re.findall(rf"^{self.file_pages} (\d+)$", stat, re.MULTILINE)))
        return max(0, int(limit) - max(0, int(used) - cached))


_GROUP_VERSIONS = (
    _GroupVersion("", "/sys/fs/cgroup", "memory.max", "memory.current", "(?:in)?active_file"),
    _GroupVersion(
        "memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_(?:in)?active_file"
    ),
)


def _text_of(file: Path) -> str:
    """What a file of the system holds; nothing where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
