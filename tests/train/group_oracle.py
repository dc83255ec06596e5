"""The oracle of runs with roles, and an executor of one process.

`train_groups` is the definition: one process, groups of V batches, gradients of each batch computed apart and summed in
the order of virtual ranks, in the widest type of the parameters, at the parameters of s updates before. It knows no
slots, no versions in memory, no queue.
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from functools import reduce
from types import SimpleNamespace

import torch
from torch import nn

from fastsample_dist import DistLoader
from fastsample_dist.pipeline.epoch_plan import EpochPlan, StepInput, epoch_permutation
from fastsample_dist.pipeline.stages import run_stages
from fastsample_dist.pipeline.tasks import Task, TaskShares
from fastsample_dist.train.group_updates import task_seed
from fastsample_dist.train.objectives import loss_share


def plan_of(loader: DistLoader, epoch: int) -> tuple[EpochPlan, list[list[StepInput]]]:
    """The plan of a run of one rank per part, and every virtual rank's steps. In one process that has all parts."""
    data, batch_size, seed = loader.data, loader.batch_size, loader.options.rng_seed
    seeds = []
    for part in range(data.manifest.num_parts):
        first, last = data.book.part2range(part)
        own = data.split("train")
        own = own[(own >= first) & (own < last)]
        seeds.append(own[epoch_permutation(own.numel(), seed, epoch, part)])
    counts = [own.numel() for own in seeds]
    steps = EpochPlan(0, 0, counts, batch_size).num_steps
    plan = EpochPlan(epoch, epoch * steps, counts, batch_size)
    return plan, [plan.step_inputs(own) for own in seeds]


def batch_of(loader: DistLoader, given: StepInput):
    """The batch of a task."""
    return run_stages(loader._stages, loader.data.ctx.comm, given)


def train_groups(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DistLoader,
    segments: Sequence[tuple[int, int, int]],
    staleness: int,
) -> list[float]:
    """Train the groups of segments (epoch, first, end) one after another; the mean loss of every segment."""
    model.train()
    widest, losses = reduce(torch.promote_types, {parameter.dtype for parameter in model.parameters()}), []
    for epoch, first, end in segments:
        inputs = plan_of(loader, epoch)[1]
        versions, loss_sum, num_seeds = {first: deepcopy(model.state_dict())}, 0.0, 0
        for group in range(first, end):
            model.load_state_dict(versions[max(first, group - staleness)])
            total = [torch.zeros(parameter.shape, dtype=widest) for parameter in model.parameters()]
            for virtual_rank, steps in enumerate(inputs):
                batch = batch_of(loader, steps[group])
                torch.manual_seed(task_seed(batch.draw.rng_seed, batch.step, virtual_rank))
                model.zero_grad(set_to_none=True)
                loss = loss_share(None, model(batch.mfgs, batch.features), batch)
                loss.backward()
                for sum_, parameter in zip(total, model.parameters(), strict=True):
                    sum_ += torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                loss_sum += loss.item() * batch.num_global_seeds
                num_seeds += batch.seeds.numel()
            model.load_state_dict(versions[group])
            for sum_, parameter in zip(total, model.parameters(), strict=True):
                parameter.grad = sum_.to(parameter.dtype)
            optimizer.step()
            versions[group + 1] = deepcopy(model.state_dict())
        losses.append(loss_sum / num_seeds)
    return losses


class OneProcess:
    """An executor of one process: takes by lot one of the tasks that may be taken, or makes an update that is due.

    Attributes:
      taken: (epoch, group, virtual rank) of all tasks so far, in the order in which they were trained.
    """

    roles, is_updater = None, True

    def __init__(self, loader, staleness, *, seed=0):
        self.staleness, self.updaters = staleness, None
        self.shares = TaskShares((tuple(range(loader.data.manifest.num_parts)),))
        self.tally, self.taken = SimpleNamespace(sample_s=0.0, fetch_s=0.0), []
        self._loader, self._lots, self._stop = loader, random.Random(seed), False

    def run(self, epoch, first_group, num_groups, train, update):
        current, end, ranks = first_group, first_group + num_groups, self.shares.own
        inputs = plan_of(self._loader, epoch)[1]
        waiting = {group: list(ranks) for group in range(first_group, end)}
        while current < end:
            if self._stop:  # no task of a group that is not begun
                end = 1 + max((group for group, left in waiting.items() if len(left) < len(ranks)), default=current - 1)
            may = [group for group, left in waiting.items() if left and group < min(end, current + self.staleness + 1)]
            if current < end and not waiting[current] and (not may or self._lots.random() < 0.5):
                update(current)
                current += 1
            elif may:
                group = self._lots.choice(may)
                rank = waiting[group].pop(self._lots.randrange(len(waiting[group])))
                given, number = inputs[rank][group], group * len(ranks) + rank
                task = Task(number, group, rank, epoch, given.step)
                train(task, batch_of(self._loader, given), max(first_group, group - self.staleness))
                self.taken.append((epoch, group, rank))
        self._stop = False
        return current

    def request_stop(self):
        self._stop = True


class FactoredLoader(DistLoader):
    """A loader of one process with an executor."""

    def __init__(self, *arguments, staleness=0, seed=0, **options):
        super().__init__(*arguments, **options)
        self.executor = OneProcess(self, staleness, seed=seed)

    def first_step(self, epoch):
        return plan_of(self, epoch)[0].first_step

    def num_steps(self, epoch):
        return plan_of(self, epoch)[0].num_steps
