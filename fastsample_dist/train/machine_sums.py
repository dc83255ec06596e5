"""MachineSums: the gradients of a group whose tasks are on several machines, added up as one machine would.

The sum is in the order of virtual ranks whatever machine has which, so it is the same, bit for bit, as where one
machine has all tasks. Each of K machines adds up a K-th of the vector: it gets that piece of every task's gradient and
sends everyone the sum. With V tasks in a group and n values a machine sends less than n * (V / K + 1) of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.rows import RowPlan
from fastsample_dist.pipeline.tasks import TaskShares


class MachineSums:
    """One machine's side; its rank that updates has it.

    Args:
      comm: over the ranks that update, one of each machine and in the order of the machines.
      shares: the tasks of the machines.
      num_values: of a gradient.
    """

    def __init__(self, comm: Communicator, shares: TaskShares, num_values: int) -> None:
        self._comm, self._shares = comm, shares
        cuts = [num_values * machine // comm.world_size for machine in range(comm.world_size + 1)]
        self._lengths = [end - begin for begin, end in pairwise(cuts)]

    def share_facts(self, facts: Tensor) -> None:
        """Fill in the rows of the other machines' virtual ranks. Collective: all that update must call this.

        Args:
          facts: [number of virtual ranks, ...]; by virtual rank. Changed in place.
        """
        counts = [len(ranks) for ranks in self._shares.by_machine]
        own = facts[list(self._shares.own)].repeat(self._comm.world_size, *[1] * (facts.dim() - 1))
        plan = RowPlan([len(self._shares.own)] * self._comm.world_size, counts, max(counts))
        received = self._comm.exchange_rows(own, plan, purpose="metrics")
        facts[[rank for ranks in self._shares.by_machine for rank in ranks]] = received

    def wait(self) -> None:
        """Return once the ranks that update of all machines are here. Collective: all that update must call this."""
        self._comm.barrier(purpose="metrics")

    def sum(self, slots: Tensor, total: Tensor) -> None:
        """Add up the gradients of all tasks. Collective: all that update must call this. Purpose "gradients".

        Args:
          slots: [number of own virtual ranks, num_values]; their gradients.
          total: [num_values]; gets the sum.
        """
        machines, lengths = self._shares.by_machine, self._lengths
        mine, most = lengths[self._comm.rank], max(lengths)
        plan = RowPlan(
            [len(slots) * length for length in lengths], [len(ranks) * mine for ranks in machines],
            most * max(map(len, machines)),
        )  # fmt: skip
        pieces = torch.cat([piece.reshape(-1) for piece in slots.split(lengths, dim=1)])
        received = self._comm.exchange_rows(pieces, plan, purpose="gradients")
        own = _sum_in_order(
            received.view(self._shares.num_virtual_ranks, mine), [rank for ranks in machines for rank in ranks]
        )
        plan = RowPlan([mine] * len(machines), lengths, most)
        total.copy_(self._comm.exchange_rows(own.repeat(len(machines)), plan, purpose="gradients"))


def _sum_in_order(rows: Tensor, numbers: Sequence[int]) -> Tensor:
    """The sum of rows, added up in the order of their numbers."""
    first, *others = sorted(range(len(numbers)), key=numbers.__getitem__)
    total = rows[first].clone()
    for row in others:
        total += rows[row]
    return total
