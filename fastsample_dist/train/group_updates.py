"""GroupUpdates: gradients of tasks and versions of the parameters, in memory that the ranks of a machine share.

With roles (pipeline/tasks.py) an update sums the gradients of a group of V tasks, one per virtual rank, that any ranks
have trained in any order. Every task has a slot of its own for its gradient, one vector over all parameters. When a
group is complete, rank 0 adds up its V slots in the order of virtual ranks, makes the optimizer's step and publishes
the parameters as the next version. So the sum does not depend on who trained what, and a run with roles equals one
process that trains the same groups, bit for bit.

Staleness s: a task of group u is trained at version u - s (GNNLab leaves the delay open; here it is constant). Of
groups and of versions s + 1 are in use at a time, so both lie in rings of s + 1 places: before version u + 1 takes the
place of version u - s, all tasks that are trained at that one, those of group u, are done; and the slots of group u are
summed before one of group u + s + 1 can be taken.

Of several machines each has the slots of its own tasks and versions of its own. Its first rank is to it what rank 0 is
above: these ranks add up the slots of all machines together (machine_sums.py) and make the same step each.

The optimizer's state is on the ranks that update alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from fastsample_dist.comm.agree import agree
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import share_segments
from fastsample_dist.pipeline.tasks import Executor
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.finite import FiniteGuard
from fastsample_dist.train.gradients import check_dense
from fastsample_dist.train.machine_sums import MachineSums
from fastsample_dist.train.unshared import strange_parameters

ALIGNMENT = 64  # bytes; a cache line
LOSS, NODE, NUM_SEEDS, NUM_GLOBAL_SEEDS = range(4)  # of a task's facts


class GroupUpdates:
    """One rank's side of the shared gradients and parameters.

    Collective: every rank must construct this, with the same model. All ranks continue with parameters of their own,
    which must be the same.

    Args:
      ctx: the rank's context.
      model: its floating-point parameters are trained; on any device.
      optimizer: over them.
      guard: stops at a loss or gradients that are not finite.
      machines: the ranks by machine.
      executor: runs the tasks.
    Attributes:
      model, guard: the same.
      executor: the same.
    Raises:
      ValueError: on all ranks: the optimizer has parameters that are not the model's; not enough memory.
    """

    def __init__(
        self, ctx: DistContext, model: nn.Module, optimizer: torch.optim.Optimizer, guard: FiniteGuard,
        machines: Machines, executor: Executor,
    ) -> None:  # fmt: skip
        self.model, self.guard = model, guard
        self._is_updater, self._optimizer = executor.is_updater, optimizer
        self.executor, shares = executor, executor.shares
        self._places = {virtual_rank: place for place, virtual_rank in enumerate(shares.own)}
        self._named = [(name, tensor) for name, tensor in model.named_parameters() if tensor.is_floating_point()]
        self._parameters = [parameter for _, parameter in self._named]
        agree(ctx, self._check_optimizer)
        num_values = sum(parameter.numel() for parameter in self._parameters)
        dtypes = [parameter.dtype for parameter in self._parameters] or [torch.float32]
        widest, places = reduce(torch.promote_types, dtypes), executor.staleness + 1
        shapes = [
            (torch.int64, (2,)),
            (torch.float64, (places, shares.num_virtual_ranks, 4)),
            (widest, (places, num_values)),
            (widest, (places, len(shares.own), num_values)),
        ]
        # _refused: group + 1 and step of an update that was refused; 0: none was
        self._refused, self._facts, self._versions, self._slots = _share(ctx, machines, shapes)
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._sum = torch.empty_like(self._versions[0])
        updaters = executor.updaters
        self._between_machines = None if updaters is None else MachineSums(updaters, shares, num_values)
        self._staging = None if device.type == "cpu" else torch.empty_like(self._sum, device=device)
        self._held = 0  # version of the parameters that the model has

    def begin(self, group: int) -> None:
        """Name the model's parameters, the same on all ranks, version `group`: the tasks of that group come next."""
        self._held = group
        if self._is_updater:
            self._refused.zero_()
            self._publish(group)

    def hold(self, version: int) -> None:
        """Give the model the parameters of a version, unless it has them."""
        if version == self._held:
            return
        source = self._to_device(self._versions[version % len(self._versions)])
        for parameter, piece in zip(self._parameters, self._pieces(source), strict=True):
            parameter.detach().copy_(piece.view_as(parameter))
        self._held = version

    def put(self, group: int, virtual_rank: int, loss: Tensor, node: Tensor, batch: MiniBatch) -> None:
        """Compute a task's gradient at the parameters that the model has, and write it to its slot.

        A parameter that the loss does not reach has a gradient of zeros.

        Args:
          group, virtual_rank: the task's.
          loss: its share of the group's loss; its graph is freed.
          node: the guard's culprit.
          batch: the task's.
        Raises:
          ValueError: a sparse gradient.
        """
        place = group % len(self._slots)
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        gradients = iter(torch.autograd.grad(self.guard.mark(loss), trained, allow_unused=True))
        slot = self._slots[place, self._places[virtual_rank]]
        target = slot if self._staging is None else self._staging
        for (name, parameter), piece in zip(self._named, self._pieces(target), strict=True):
            gradient = next(gradients) if parameter.requires_grad else None
            check_dense(name, gradient)
            if gradient is None:
                piece.zero_()
                continue
            piece.copy_(gradient.reshape(-1))
        if target is not slot:
            slot.copy_(target)
        facts = [float(loss.detach()), float(node), batch.seeds.numel(), batch.num_global_seeds]
        self._facts[place, virtual_rank] = torch.tensor(facts, dtype=torch.float64)

    def update(self, group: int, step: int) -> tuple[float, int]:
        """Make the optimizer's step with the gradients of a group, all of whose tasks are done. On ranks that update.

        Collective among these.

        Args:
          group: the next one.
          step: its global number, for messages.
        Returns:
          (sum of the losses of the group's seeds, number of seeds).
        Raises:
          NonFiniteError: a loss or the summed gradients are NaN or infinite. The parameters are those before the step.
        """
        self.hold(group)
        self._add_up(group)
        facts = self._group_facts(group)
        if not self.guard.are_finite(self._sum):
            self._refused[0], self._refused[1] = group + 1, step
            if self._between_machines is not None:
                self._between_machines.wait()  # else a rank may learn from another machine before its own knows why
            self._judge(group, step)
            self._refused.zero_()  # it was allowed
        total = self._to_device(self._sum)
        for parameter, piece in zip(self._parameters, self._pieces(total), strict=True):
            parameter.grad = piece.view_as(parameter).to(parameter.dtype) if parameter.requires_grad else None
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._held = group + 1
        self._publish(group + 1)
        loss_sum = sum(task[LOSS] * task[NUM_GLOBAL_SEEDS] for task in facts)
        return loss_sum, round(sum(task[NUM_SEEDS] for task in facts))

    def _add_up(self, group: int) -> None:
        """Sum the gradients of all tasks of a group."""
        slots = self._slots[group % len(self._slots)]
        if self._between_machines is not None:
            self._between_machines.share_facts(self._facts[group % len(self._facts)])
            self._between_machines.sum(slots, self._sum)
            return
        self._sum.copy_(slots[0])
        for slot in slots[1:]:
            self._sum += slot

    def raise_what_ended_training(self) -> None:
        """On a rank whose tasks have ended early because rank 0 refused an update: raise the same error.

        Raises:
          NonFiniteError: as `update`.
        """
        group, step = self._refused.tolist()
        if group > 0:
            self._judge(group - 1, step)

    def _judge(self, group: int, step: int) -> None:
        facts = self._group_facts(group)
        self.guard.judge(step, [task[LOSS] for task in facts], [int(task[NODE]) for task in facts], "virtual ")

    def _group_facts(self, group: int) -> list[list[float]]:
        return self._facts[group % len(self._facts)].tolist()

    def _publish(self, version: int) -> None:
        """Write the model's parameters to the place of a version."""
        place = self._versions[version % len(self._versions)]
        target = place if self._staging is None else self._staging
        for parameter, piece in zip(self._parameters, self._pieces(target), strict=True):
            piece.copy_(parameter.detach().reshape(-1))
        if target is not place:
            place.copy_(target)

    def _to_device(self, vector: Tensor) -> Tensor:
        """A vector in shared memory, or its copy on the model's device."""
        return vector if self._staging is None else self._staging.copy_(vector)

    def _pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Of a vector over all parameters, what belongs to each."""
        return vector.split([parameter.numel() for parameter in self._parameters])

    def _check_optimizer(self) -> None:
        if (strange := strange_parameters(self.model, self._optimizer)) is not None:
            raise ValueError(f"{strange}; make them part of the model, or train with roles 'none'.")


def task_seed(rng_seed: int, step: int, virtual_rank: int) -> int:
    """What torch's generators begin a task with, so that a module that draws from them (nn.Dropout) draws the same
    whoever trains the task.
    """
    sequence = np.random.SeedSequence((rng_seed, step, virtual_rank))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _share(ctx: DistContext, machines: Machines, shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> list[Tensor]:
    """Tensors that the ranks of a machine share, zeros. Collective: every rank must call this."""
    sizes, first = [_aligned(math.prod(shape) * dtype.itemsize) for dtype, shape in shapes], machines.of(ctx.rank)[0]
    segment = share_segments(ctx, ctx.rank, machines, sum(sizes) if ctx.rank == first else 0)[first]
    offsets = accumulate(sizes, initial=0)
    return [segment.tensor(dtype, shape, offset) for (dtype, shape), offset in zip(shapes, offsets, strict=False)]


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
