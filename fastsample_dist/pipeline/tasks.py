"""Tasks: the batches of a run with roles, each of which any rank of its machine may make and train.

A run with roles has as many virtual ranks as the partition has parts. Step t of an epoch is a group of tasks, one per
virtual rank: the batch that this rank would make in step t of a run of one rank per part. Seeds, sample, dropout and
features follow from (epoch, virtual rank, step) alone, so the result does not depend on who does the work. Of several
machines, each has the tasks of the parts that its ranks own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.machine import Machines
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.sampling.mfg import MiniBatch


class RolesError(RuntimeError):
    """A rank has failed or ended while it, or others, had tasks; the message names the rank and its task."""


@dataclass(frozen=True)
class Task:
    """One batch of an epoch.

    Attributes:
      number: in the epoch and on its machine: group * number of its virtual ranks + place of virtual_rank among them.
      group: place of its step among the steps of the epoch, from 0; one update sums the gradients of a group.
      virtual_rank: rank of a run of one rank per part whose batch it is.
      epoch: of the loader.
      step: global; keys what is drawn.
    """

    number: int
    group: int
    virtual_rank: int
    epoch: int
    step: int


@dataclass(frozen=True)
class TaskShares:
    """Which virtual ranks' tasks every machine has.

    Attributes:
      by_machine: virtual ranks of each machine, ascending.
      machine: this rank's.
    """

    by_machine: tuple[tuple[int, ...], ...]
    machine: int = 0

    @classmethod
    def of(cls, machines: Machines, rank: int, num_parts: int) -> TaskShares:
        """Those of the parts that the ranks of each machine own, which have as many each."""
        per_rank = num_parts // machines.world_size
        parts = tuple(
            tuple(part for owner in group for part in range(owner * per_rank, (owner + 1) * per_rank))
            for group in machines.groups
        )
        return cls(parts, machines.groups.index(machines.of(rank)))

    @property
    def own(self) -> tuple[int, ...]:
        """Virtual ranks of this machine."""
        return self.by_machine[self.machine]

    @property
    def num_virtual_ranks(self) -> int:
        """Tasks of a group, over all machines."""
        return sum(map(len, self.by_machine))


class Executor(Protocol):
    """Runs the tasks of an epoch on the ranks of each machine, in their roles.

    Attributes:
      roles: how many ranks of a machine sample and how many train.
      staleness: updates by which a gradient may be behind.
      shares: the tasks of the machines.
      is_updater: this rank makes the updates; one of each machine does.
      updaters: over the ranks that make the updates, in the order of the machines; None where there is one machine, and
        on the other ranks.
    """

    roles: Roles
    staleness: int
    shares: TaskShares
    is_updater: bool
    updaters: Communicator | None

    def run(
        self,
        epoch: int,
        first_group: int,
        num_groups: int,
        train: Callable[[Task, MiniBatch, int], None],
        update: Callable[[int], None],
    ) -> int:
        """Run the tasks of groups first_group .. first_group + num_groups - 1. Collective: every rank must call this.

        Args:
          epoch: of the loader.
          first_group: to run; version first_group of the parameters is what all ranks have when they call this.
          num_groups: to run; 0: the epoch begins, and has none.
          train: called with (task, batch, version) on a rank that trains, for every task that it takes, before the
            task counts as done. The batch is complete, with features and labels; it is valid during the call only.
            version = max(first_group, group - staleness) is the number of the parameters to train at.
          update: called with a group on the ranks that make the updates when all tasks of the group are done on their
            machines, in the order of groups; when it returns, version group + 1 exists on the machine. Collective among
            these ranks.
        Returns:
          The first group that was not done, the same on all ranks: first_group + num_groups unless a stop was asked.
        Raises:
          RolesError: another rank failed or ended; names it and its task.
        """
        ...

    def request_stop(self) -> None:
        """End `run` on all ranks after the same group, as soon as those under way are done."""
        ...

    def who_ended(self, within_s: float = 0.0) -> str:
        """Which other rank has ended, in which role and at what, in one line; "" where all are there. Of ranks that end
        after `run` has failed nothing is said: they end because of it.

        Args:
          within_s: a rank whose connections broke just now is given so long to end.
        """
        ...
