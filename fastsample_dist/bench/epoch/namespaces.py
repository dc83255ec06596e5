"""Hosts on one machine: Linux namespaces with addresses, a network and a data directory of their own.

    host 0: eth0 10.77.0.11 -- port0 \\
                                       bridge (in a network namespace of its own)
    host 1: eth0 10.77.0.12 -- port1 /
Each host also has its own host name, its own /dev/shm, and sees its own data directory under a path that is the same
on all hosts. tc's tbf limits both ends of every link when a rate is asked for.

Namespaces have no names: each is held by an anchor process that ends when the pipe from this process does. So they
vanish, links and bridge with them, however this process ends. What a SIGKILL leaves is the directory of the hosts'
data; its lock is then free, and the next start removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.files import locked_folder, remove_stale
from fastsample_dist.graph import storage
from fastsample_dist.graph.manifest import MANIFEST_NAME, read_manifest
from fastsample_dist.testing.jobs import RankHost
from fastsample_dist.testing.supervisor import run_tool

FOLDER_PREFIX = "fastsample-hosts-"
SUBNET = "10.77.0"
FIRST_HOST, MAX_HOSTS = 11, 200
# tbf needs a bucket of at least rate / HZ (4 ms at 250 Hz); 1 MiB is enough up to 2 Gbit/s.
TBF_LIMITS = ("burst", "1mb", "latency", "50ms")
RATE = re.compile(r"\d+(\.\d+)?[kmg]?bit")
READY = "ready"


@dataclass(frozen=True)
class NamespaceHosts:
    """The hosts, up.

    Attributes:
      hosts: how to run a command on each, and its address.
      data: the path under which every host sees its own data directory.
      switch: enters the namespace of the bridge.
    """

    hosts: tuple[RankHost, ...]
    data: Path
    switch: tuple[str, ...]

    def set_link(self, index: int, up: bool) -> None:
        """Plug or unplug a host's cable."""
        run_tool(*self.switch, "ip", "link", "set", f"port{index}", "up" if up else "down")


def missing_reason(rate: str | None = None) -> str | None:
    """Why hosts cannot be made here; None when they can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are a feature of Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "util-linux", "ip": "iproute2"}
    tools |= {"tc": "iproute2"} if rate else {}
    for tool, package in tools.items():
        if shutil.which(tool) is None:
            return f"{tool} is missing; install {package}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "ip", "link", "add", "port0", "type", "veth"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        return f"the kernel refuses namespaces with veth links ({tried.stderr.strip()})"
    return None


def check_rate(rate: str | None) -> None:
    """Refuse a rate that tc would not understand.

    Raises:
      ValueError: with an example.
    """
    if rate is not None and not RATE.fullmatch(rate):
        raise ValueError(f"rate is {rate!r}; expected bits per second such as 1gbit or 200mbit.")


@contextmanager
def namespace_hosts(
    parts: Path, count: int, *, rate: str | None = None, work: Path | None = None
) -> Iterator[NamespaceHosts]:
    """Make hosts that each hold topology/ and an equal share of the part-*/ of a partition.

    Args:
      parts: the partition; files are hard-linked where `work` is on its file system, else copied.
      count: number of hosts; divides the number of parts.
      rate: bits per second of every link in each direction, as tc writes it; None: unlimited.
      work: where the hosts' directories are made; None: the system's temporary directory.
    Raises:
      ValueError: count or rate out of range.
      RuntimeError: hosts cannot be made here (`missing_reason`), or a tool failed; with its message.
    """
    check_rate(rate)
    if not 1 <= count <= MAX_HOSTS:
        raise ValueError(f"count is {count}; expected 1 to {MAX_HOSTS} hosts.")
    reason = missing_reason(rate)
    if reason is not None:
        raise RuntimeError(f"hosts in namespaces cannot be made here: {reason}.")
    where = Path(work or tempfile.gettempdir()).resolve()  # ranks have other working directories
    remove_stale(FOLDER_PREFIX, where)
    with locked_folder(FOLDER_PREFIX, where) as folder, _Anchors() as anchors:
        for index in range(count):
            place_parts(parts, folder / f"host-{index}", index, count)
        (folder / "data").mkdir()
        switch = anchors.start("--net", script="ip link set lo up && ip link add bridge type bridge && "
                               "ip link set bridge up")  # fmt: skip
        hosts = tuple(_make_host(anchors, switch, folder, index, rate) for index in range(count))
        yield NamespaceHosts(hosts, folder / "data", switch)


def place_parts(parts: Path, target: Path, index: int, count: int) -> None:
    """Give one host of `count` the manifest, topology/ and its share of part-*/.

    Raises:
      ValueError: count does not divide the number of parts.
    """
    manifest = read_manifest(parts)
    if manifest.num_parts % count:
        raise ValueError(f"{parts} has {manifest.num_parts} parts, which {count} hosts cannot share equally.")
    share = manifest.num_parts // count
    names = [MANIFEST_NAME, *storage.topology_files(manifest)]
    for part in range(index * share, (index + 1) * share):
        names += storage.part_files(manifest, part)
    for name in names:
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.hardlink_to(parts / name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(parts / name, file)


class _Anchors:
    """Processes that hold namespaces for as long as the block, or until this process is gone."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen] = []

    def __enter__(self) -> _Anchors:
        return self

    def __exit__(self, *_: object) -> None:
        for anchor in self._running:
            anchor.kill()
        for anchor in self._running:
            anchor.communicate()

    def start(self, *kinds: str, script: str, arguments: Sequence[str] = ()) -> tuple[str, ...]:
        """Make namespaces of these kinds and run a shell script in them; returns the command that enters them.

        Raises:
          RuntimeError: the script failed.
        """
        command = ["unshare", *kinds, "sh", "-c", f"{script} && echo {READY} && exec cat", "anchor", *arguments]
        anchor = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,  # Ctrl-C reaches this process only
        )  # fmt: skip
        self._running.append(anchor)
        assert anchor.stdout is not None  # it was made a pipe
        said = anchor.stdout.readline().strip()
        if said != READY:
            raise RuntimeError(f"a host's namespaces could not be made: {said or 'no message'}")
        return ("nsenter", "--target", str(anchor.pid), *kinds, "--")


def _make_host(anchors: _Anchors, switch: Sequence[str], folder: Path, index: int, rate: str | None) -> RankHost:
    """One host, connected to the bridge."""
    address = f"{SUBNET}.{FIRST_HOST + index}"
    script = 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$2" "$3"'
    arguments = (f"host-{index}", str(folder / f"host-{index}"), str(folder / "data"))
    enter = anchors.start("--net", "--mount", "--uts", script=script, arguments=arguments)
    anchor_pid, port = enter[2], f"port{index}"
    run_tool(*switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", anchor_pid)
    run_tool(*switch, "ip", "link", "set", port, "master", "bridge", "up")
    run_tool(*enter, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    run_tool(*enter, "ip", "link", "set", "lo", "up")
    run_tool(*enter, "ip", "link", "set", "eth0", "up")
    if rate is not None:
        limit = ("root", "tbf", "rate", rate, *TBF_LIMITS)
        run_tool(*switch, "tc", "qdisc", "add", "dev", port, *limit)
        run_tool(*enter, "tc", "qdisc", "add", "dev", "eth0", *limit)
    return RankHost(address, enter)
