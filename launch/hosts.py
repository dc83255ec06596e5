"""The hosts file, and which ranks run where.

One host a line, "address [slots=N]"; "#" starts a comment. DGL's ip_config.txt ("ip" or "ip port") is accepted too:
its port belongs to DGL's server and is not used. Ranks are numbered host by host in the order of the file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9_:][A-Za-z0-9._:%-]*")
_SLOTS = re.compile(r"slots=([1-9][0-9]*)")
MAX_PORT = 65535


@dataclass(frozen=True)
class HostEntry:
    """A line of the hosts file: a machine.

    Attributes:
      target: what ssh connects to: "address" or "user@address".
      slots: ranks it takes; None when the file does not give them.
      line: its line in the file, from 1.
    """

    target: str
    slots: int | None = None
    line: int = 0

    @property
    def address(self) -> str:
        """The target without its user."""
        return self.target.rpartition("@")[2]


@dataclass(frozen=True)
class HostRanks:
    """A host and the ranks that run there, a range of consecutive numbers."""

    host: HostEntry
    ranks: range


def read_hosts(path: str | Path) -> list[HostEntry]:
    """The hosts of a file, in its order.

    Raises:
      ValueError: unreadable, empty, a line that is not a host, or a host named twice; the message gives the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ValueError(f"--hosts {path} cannot be read ({reason}); pass a file with one host a line.") from error
    return parse_hosts(text, str(path))


def parse_hosts(text: str, name: str = "hosts") -> list[HostEntry]:
    """The hosts of a hosts file's text; see `read_hosts`. `name` stands for the file in errors."""
    hosts: list[HostEntry] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if words:
            hosts.append(_parse_line(words, f"{name}:{number}", number))
    if not hosts:
        raise ValueError(f'{name} names no host; expected one "address [slots=N]" a line.')
    seen: dict[str, HostEntry] = {}
    for host in hosts:
        earlier = seen.setdefault(host.address, host)
        if earlier is not host:
            raise ValueError(
                f"{name}:{host.line}: {host.address} was named on line {earlier.line} already; give a host one line, "
                "with slots=N for N ranks."
            )
    return hosts


def _may_have_colons(address: str) -> bool:
    """Whether an address has no colon or is of IPv6: "host:4" is neither a host with slots nor one with a port."""
    if ":" not in address:
        return True
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _parse_line(words: list[str], place: str, number: int) -> HostEntry:
    target, options = words[0], words[1:]
    if not _ADDRESS.fullmatch(target) or not _may_have_colons(target.rpartition("@")[2]):
        raise ValueError(f'{place}: {target!r} is not an address; expected "address [slots=N]".')
    if not options:
        return HostEntry(target, None, number)
    slots = _SLOTS.fullmatch(options[0])
    if len(options) == 1 and slots:
        return HostEntry(target, int(slots[1]), number)
    if len(options) == 1 and options[0].isdecimal() and 0 < int(options[0]) <= MAX_PORT:
        return HostEntry(target, None, number)  # DGL's "ip port"
    raise ValueError(
        f'{place}: {" ".join(options)!r} after {target} is not understood; expected "address [slots=N]" with N >= 1, '
        'or "ip port" as in DGL\'s ip_config.'
    )


def place_ranks(hosts: Sequence[HostEntry], nproc: int | None) -> list[HostRanks]:
    """Which ranks run on which host.

    Args:
      hosts: in the order of the ranks.
      nproc: ranks on every host; None: as many as each host's slots, 1 where none are given.
    Raises:
      ValueError: nproc is more than a host's slots.
    """
    layout, first = [], 0
    for host in hosts:
        if nproc is not None and host.slots is not None and nproc > host.slots:
            raise ValueError(
                f"--nproc is {nproc} but {host.target} has slots={host.slots} (line {host.line} of the hosts file); "
                "lower --nproc, raise slots, or leave --nproc out to fill the slots."
            )
        count = nproc or host.slots or 1
        layout.append(HostRanks(host, range(first, first + count)))
        first += count
    return layout
