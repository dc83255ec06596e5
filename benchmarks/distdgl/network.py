"""Machines made of Linux namespaces: each has its own network interface and its own /dev/shm.

DistDGL takes a process's machine from the host's addresses and names its shared memory after the graph, so
two parts on one host need both kept apart. An anchor process (`unshare --net --mount`) holds a machine's
namespaces; everything else enters them with nsenter. A veth pair joins each machine (its end: eth0) to one
bridge:

    machine 0: eth0 10.42.0.11 -- veth0 \\
                                         bridge
    machine 1: eth0 10.42.0.12 -- veth1 /

All of this happens inside the session's own namespaces, so it disappears with the session's last process.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from processes import run_tool

BRIDGE = "bridge"
# Two-digit last octets: DGL numbers its clients by sorting addresses as strings.
FIRST_HOST = 11
# tbf needs a bucket of at least rate / HZ (4 ms at 250 Hz); 1 MiB is enough up to 2 Gbit/s.
TBF_LIMITS = ("burst", "1mb", "latency", "50ms")


@dataclass(frozen=True)
class Machine:
    """Namespaces that stand for one machine, held open by the anchor process."""

    index: int
    anchor: subprocess.Popen

    @property
    def address(self) -> str:
        """IPv4 address of the machine's eth0."""
        return f"10.42.0.{FIRST_HOST + self.index}"

    def enter(self, *command: str) -> list[str]:
        """Return the command line that runs `command` on this machine, under the pid of the process started."""
        return ["nsenter", "--target", str(self.anchor.pid), "--net", "--mount", "--", *command]


def create_machine(index: int) -> Machine:
    """Start one machine: a network without links and an empty /dev/shm."""
    script = "mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat"
    anchor = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if anchor.stdout is None or anchor.stdout.readline().strip() != "ready":
        raise RuntimeError(f"the namespaces of machine {index} could not be created; run as root")
    return Machine(index, anchor)


def create_machines(count: int, rate: str | None) -> list[Machine]:
    """Start `count` machines and join them through a bridge.

    Args:
      count: number of machines.
      rate: bandwidth of every link in each direction, in tc's notation; None leaves links unlimited.
    """
    run_tool("ip", "link", "set", "lo", "up")
    run_tool("ip", "link", "add", BRIDGE, "type", "bridge")
    run_tool("ip", "link", "set", BRIDGE, "up")
    machines = [create_machine(index) for index in range(count)]
    for machine in machines:
        port, anchor = f"veth{machine.index}", str(machine.anchor.pid)
        run_tool("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", anchor)
        run_tool("ip", "link", "set", port, "master", BRIDGE, "up")
        run_tool(*machine.enter("ip", "address", "add", f"{machine.address}/24", "dev", "eth0"))
        run_tool(*machine.enter("ip", "link", "set", "lo", "up"))
        run_tool(*machine.enter("ip", "link", "set", "eth0", "up"))
        if rate is not None:
            run_tool("tc", "qdisc", "add", "dev", port, "root", "tbf", "rate", rate, *TBF_LIMITS)
            run_tool(*machine.enter("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, *TBF_LIMITS))
    return machines
