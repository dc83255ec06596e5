"""Which ranks share a machine: proven, not assumed.

Ranks that are on one machine may read each other's memory and files in place. A name or a visible file proves nothing
of that kind, so every pair of ranks must pass all of these:

1. The boot id of their kernels is the same.
2. Their network namespace is the same: hosts that are made of namespaces on one kernel are machines to each other.
3. Each reads a random token out of a segment of the other's memory, reached by process id and descriptor. That fails in
   containers (process ids of their own), between users, and on other machines.

A segment is a memfd, which never has a name: nothing of it can be left behind, however a process ends.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from fastsample_dist.comm.names import rank_names
from fastsample_dist.comm.protocol import Gathers

PURPOSE = "setup"
TOKEN_BYTES = 32
OTHER_MACHINE = "their boot ids differ, so they are on different machines"
NOT_ASKED = "nothing was proven"
_BOOT_ID, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


@dataclass(frozen=True)
class MachineFacts:
    """What a rank reports of the machine it is on.

    Attributes:
      boot_id: of the kernel, drawn when it started; None where the system has none.
      network: the network namespace.
      pid, descriptor: where the token is: an open file of this process.
      token: random bytes, in hexadecimal digits.
    """

    boot_id: str | None
    network: str | None
    pid: int
    descriptor: int
    token: str


@dataclass(frozen=True)
class Machines:
    """Ranks by machine.

    Attributes:
      world_size: number of ranks.
      failures: by pair of ranks (the smaller first), the first proof that failed between them.
    """

    world_size: int
    failures: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @classmethod
    def apart(cls, world_size: int) -> Machines:
        """Every rank for itself: nothing was proven."""
        return cls(world_size, dict.fromkeys(combinations(range(world_size), 2), NOT_ASKED))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Every rank once, ascending; any two ranks of a group have passed all proofs. The same on all ranks."""
        groups: list[list[int]] = []
        for rank in range(self.world_size):
            fitting = (group for group in groups if not any((other, rank) in self.failures for other in group))
            found = next(fitting, None)
            if found is None:
                groups.append([rank])
            else:
                found.append(rank)
        return tuple(map(tuple, groups))

    def of(self, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's machine, itself included."""
        return next(group for group in self.groups if rank in group)

    @property
    def shares(self) -> bool:
        """Whether any two ranks share a machine."""
        return len(self.groups) < self.world_size

    @property
    def is_one(self) -> bool:
        """Whether all ranks share one machine."""
        return len(self.groups) == 1

    @property
    def are_all_apart(self) -> bool:
        """Whether all ranks are on machines of their own, as their boot ids say."""
        every_pair = self.world_size * (self.world_size - 1) // 2
        return len(self.failures) == every_pair and set(self.failures.values()) <= {OTHER_MACHINE, NOT_ASKED}

    def without_refused(self, answers: Sequence[Mapping[int, str]]) -> Machines:
        """The machines after a further proof.

        Args:
          answers: by rank, the ranks with which it failed there, and why; the same on all ranks.
        """
        failures = dict(self.failures)
        for rank, answer in enumerate(answers):
            for other, line in answer.items():
                failures.setdefault((min(rank, other), max(rank, other)), line)
        return Machines(self.world_size, failures)

    def why_apart(self, run_ranks: Sequence[int]) -> str | None:
        """Which proof failed first, one line; None where none did.

        Args:
          run_ranks: numbers of the ranks in messages.
        """
        if not self.failures:
            return None
        # what fails between ranks of one machine is news; that there are several machines is not
        pairs = sorted(self.failures, key=lambda pair: (self.failures[pair] == OTHER_MACHINE, pair))
        names = rank_names([run_ranks[rank] for rank in pairs[0]])
        more = f" (and {len(pairs) - 1} more pairs of ranks)" if len(pairs) > 1 else ""
        return f"{names}: {self.failures[pairs[0]]}{more}"


def find_machines(
    comm: Gathers,
    own: MachineFacts | None = None,
    read: Callable[[MachineFacts], str] | None = None,
) -> Machines:
    """Find out which ranks share a machine. Collective: every rank must call this. Purpose "setup".

    Args:
      comm: the ranks' communicator.
      own: what this rank reports; None: what is so.
      read: returns the token of another rank, or raises OSError; None: reads it in that rank's memory.
    Returns:
      Machines, the same on all ranks.
    Raises:
      RuntimeError: the collective failed or passed its deadline.
    """
    token = secrets.token_hex(TOKEN_BYTES // 2)
    segment = _token_segment(token)
    try:
        facts = own or MachineFacts(boot_id(), _network(), os.getpid(), segment, token)
        everyone: list[MachineFacts] = comm.all_gather_object(facts, purpose=PURPOSE)
        found = {
            rank: line
            for rank, other in enumerate(everyone)
            if rank != comm.rank and (line := _failed_proof(facts, other, read or read_token)) is not None
        }
        # when all have answered, all have read: the token may go
        answers: list[dict[int, str]] = comm.all_gather_object(found, purpose=PURPOSE)
    finally:
        if segment >= 0:
            os.close(segment)
    return Machines(len(everyone)).without_refused(answers)


def descriptor_path(pid: int, descriptor: int) -> str:
    """Where an open file of another process of this machine can be opened."""
    return f"/proc/{pid}/fd/{descriptor}"


def read_token(facts: MachineFacts) -> str:
    """The token of another rank of this machine.

    Raises:
      OSError: its memory cannot be reached.
    """
    opened = os.open(descriptor_path(facts.pid, facts.descriptor), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(opened, TOKEN_BYTES, 0).decode(errors="replace")
    finally:
        os.close(opened)


def _failed_proof(own: MachineFacts, other: MachineFacts, read: Callable[[MachineFacts], str]) -> str | None:
    """The first proof that fails between this rank and another; None where all are passed."""
    if own.boot_id is None or other.boot_id is None:
        return f"a boot id is unknown ({_BOOT_ID} cannot be read)"
    if own.boot_id != other.boot_id:
        return OTHER_MACHINE
    if own.network != other.network:
        return "their network namespaces differ"
    try:
        found = read(other)
    except OSError as error:
        return f"the token in the other's memory cannot be read ({error.strerror or error}): containers, or other users"
    return None if found == other.token else "the token in the other's memory is another: process ids of their own"


def _token_segment(token: str) -> int:
    """The descriptor of a memfd that holds the token; -1 where the system has none."""
    if not hasattr(os, "memfd_create"):
        return -1
    try:
        segment = os.memfd_create("fastsample-token", os.MFD_CLOEXEC)
    except OSError:  # forbidden in some sandboxes
        return -1
    os.write(segment, token.encode())
    return segment


def boot_id() -> str | None:
    """Of the kernel, drawn when it started; None where the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return None


def _network() -> str | None:
    try:
        return str(_NETWORK.readlink())
    except OSError:
        return None
