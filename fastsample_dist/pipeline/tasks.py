"""Tasks: the batches of a run with roles, each of which any rank of the machine may make and train.

A run with roles has as many virtual ranks as the partition has parts. Step t of an epoch is a group of tasks, one per
virtual rank: the batch that this rank would make in step t of a run of one rank per part. Seeds, sample, dropout and
features follow from (epoch, virtual rank, step) alone, so the result does not depend on who does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.sampling.mfg import MiniBatch


class RolesError(RuntimeError):
    """A rank has failed or ended while it, or others, had tasks; the message names the rank and its task."""


@dataclass(frozen=True)
class Task:
    """One batch of an epoch.

    Attributes:
      number: in the epoch, group * num_virtual_ranks + virtual_rank.
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


class Executor(Protocol):
    """Runs the tasks of an epoch on the ranks of a machine, in their roles.

    Attributes:
      roles: how many ranks sample and how many train.
      staleness: updates by which a gradient may be behind.
      num_virtual_ranks: tasks of a group.
      is_updater: this rank makes the updates; one does.
    """

    roles: Roles
    staleness: int
    num_virtual_ranks: int
    is_updater: bool

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
          num_groups: to run.
          train: called with (task, batch, version) on a rank that trains, for every task that it takes, before the
            task counts as done. The batch is complete, with features and labels; it is valid during the call only.
            version = max(first_group, group - staleness) is the number of the parameters to train at.
          update: called with a group on the rank that makes the updates when all tasks of the group are done, in the
            order of groups; when it returns, version group + 1 exists.
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
        """Which other rank has ended, in which role and at what, in one line; "" where all are there.

        Args:
          within_s: a rank whose connections broke just now is given so long to end.
        """
        ...
