"""What ranks with roles on several machines do together: rows for their tasks, and word of stops and failures.

Every machine has a queue, samplers and trainers of its own, and the tasks of the parts that its ranks own (tasks.py).
Two groups of ranks meet across the machines, each over a communicator of its own; nobody else waits for another machine
while tasks are under way:

    samplers   in rounds: each brings the batch that it has just sampled, or none, and gets the rows that its machine
               does not have; they travel to the trainers with the batch. The rounds end when nobody will bring one.
    updaters   one of each machine, once per group, to add up its gradients (train/machine_sums.py)

A sampler never waits for room in its queue while others wait for it: where there is none within a slice it brings
nothing. So a machine that is ahead of the others, its queue full, holds up nobody, and every group is made in the end.
Row by row, sampler number p % S of a machine answers for its rank number p, whose rows it reads in place.

Each meeting begins with a note from everyone. Who has learned of a failure on its machine notes that in place of its
next meeting, and they exchange the line, so that all machines raise the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.rows import RowPlan
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.pipeline.stages import RECEIVED
from fastsample_dist.pipeline.tasks import RolesError
from fastsample_dist.sampling.mfg import MiniBatch

NOTHING, SOMETHING, FAILED = range(3)  # what a rank notes: nothing more, a batch to come or a stop to make, a failure


class MeetingPoint:
    """Where one group of ranks meets across machines.

    Args:
      comm: over them.
    Attributes:
      comm: the same.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._is_over = False  # the others do not come to look at notes, as far as is known here

    def plan(self, counts: Sequence[int], note: int) -> RowPlan:
        """Agree on who sends how many rows to whom, and see everyone's note.

        Collective: all of the group must call this.

        Raises:
          RolesError: another one has passed on a failure; it is its line.
          RuntimeError: the collective failed or passed its deadline.
        """
        plan = self.comm.plan_rows(counts, note=note)
        if FAILED in plan.notes:
            self._is_over = True
            raise RolesError(self._lines("")[0])
        return plan

    def begin(self) -> None:
        """The group will meet again: a segment begins."""
        self._is_over = False

    def pass_on(self, line: str) -> None:
        """Let the others raise this line, where they still come."""
        if self._is_over or self.comm.failure is not None:
            return
        self._is_over = True
        try:
            self.comm.plan_rows([0] * self.comm.world_size, note=FAILED)
            self._lines(line)
        except RuntimeError:
            pass  # the others have ended, and said why

    def _lines(self, own: str) -> list[str]:
        return [line for line in self.comm.all_gather_object(own, purpose="setup") if line]


class Updaters(MeetingPoint):
    """The ranks that make the updates, one of each machine."""

    def agree_on_stop(self, wanted: bool) -> bool:
        """Whether one of them wants to stop. Collective: all of them must call this, before each update."""
        notes = self.plan([0] * self.comm.world_size, SOMETHING if wanted else NOTHING).notes
        return SOMETHING in notes


class RemoteRows(MeetingPoint):
    """Rows of other machines for sampled batches.

    Args:
      features: read in place what the ranks of this machine own, with a cache or without.
      comm: over the samplers of all machines.
      dtype: of batches' features; None: as stored.
      id_dtype: in which ids travel.
      servers: by rank that owns a node, the sampler, by its number in `comm`, that answers for it.
    """

    def __init__(
        self, features: DistFeatures, comm: Communicator, dtype: torch.dtype | None, id_dtype: torch.dtype,
        servers: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(comm)
        self._features, self._dtype, self._id_dtype = features, dtype, id_dtype
        self._owners = [[o for o, server in enumerate(servers) if server == s] for s in range(comm.world_size)]

    def bring(self, batch: MiniBatch | None, is_last: bool) -> bool:
        """Take part in a round. Collective: every sampler must call this.

        Args:
          batch: without features; gets the rows that it lacks, in the attribute RECEIVED. None: there is none.
          is_last: this sampler will bring no batch any more.
        Returns:
          Whether there will be another round.
        """
        nodes = torch.empty(0, dtype=self._id_dtype) if batch is None else batch.input_nodes
        located = self._features.locate(nodes)
        groups = torch.arange(located.missing.numel()).split(located.counts)
        by_server = [[groups[owner] for owner in owners] for owners in self._owners]
        order = torch.cat([group for served in by_server for group in served])
        counts = [sum(group.numel() for group in served) for served in by_server]
        plan = self.plan(counts, NOTHING if is_last else SOMETHING)
        rows, self._is_over = self._features.local.no_rows(), True  # nobody looks at notes before the rows are there
        if plan.max_message_rows:
            asked = self.comm.exchange_rows(located.missing[order].to(self._id_dtype), plan, purpose="feature_ids")
            served = self._features.serve_in_reach(asked, self._dtype)
            came = self.comm.exchange_rows(served, plan.reversed(), purpose="feature_rows")
            rows = torch.empty_like(came)
            rows[order] = came
        if batch is not None:
            setattr(batch, RECEIVED, rows)
        self._is_over = SOMETHING not in plan.notes
        return not self._is_over


def split_samplers(comm: Communicator, machines: Machines, roles: Roles) -> Communicator | None:
    """Of the samplers of all machines; None on the others. Collective: every rank must call this."""
    return comm.split([rank for group in machines.groups for rank in group[roles.trainers :]])


def split_updaters(comm: Communicator, machines: Machines) -> Communicator | None:
    """Of the first ranks of all machines; None on the others. Collective: every rank must call this."""
    return comm.split([group[0] for group in machines.groups])


def servers_of(machines: Machines, roles: Roles) -> list[int]:
    """By rank, the sampler that answers for its rows, by its number among those of `split_samplers`."""
    servers = [0] * machines.world_size
    for machine, group in enumerate(machines.groups):
        for number, rank in enumerate(group):
            servers[rank] = machine * roles.samplers + number % roles.samplers
    return servers
