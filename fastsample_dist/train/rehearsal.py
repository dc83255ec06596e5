"""Roles "auto": what the stages of a batch take on this machine, measured, and the roles that are fastest by it.

All ranks make and train some batches of the next whole epoch at the same time, as time sharing does; then rank 0 trains
one alone, as ranks do where others have nothing to do. The ratio shows what ranks take from each other: cores that they
share, memory, a GPU. Nothing of it stays: no update is kept, and torch's generators and the model's buffers are as
before. pipeline/roles.py predicts a whole epoch of every split from the medians. Where GPUs hold rows, a fetch without
those that a GPU without topology would hold shows what trainers would take.
"""

from __future__ import annotations

import copy
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from fastsample_dist.comm.agree import agree
from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.clock import Clock, Lap, clock_of
from fastsample_dist.features.hot_rows import HotRows
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.roles import Choice, EpochShape, StageTimes, choose_roles
from fastsample_dist.pipeline.task_batch import pack
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.generators import kept_generators
from fastsample_dist.train.gradients import check_dense
from fastsample_dist.train.unshared import NO_COLLECTIVES, buffer_marks, changed_buffer, strange_parameters

logger = logging.getLogger(__name__)

WARM_UP, MEASURED = 1, 4  # batches of every rank
TURNS = 3  # of ranks that train together and one that trains alone, two batches each
PURPOSE = "setup"
LossOfBatch = Callable[[MiniBatch, Tensor], Tensor]


def rehearse_roles(
    ctx: DistContext, loader: DistLoader, model: nn.Module, optimizer: torch.optim.Optimizer, compute_loss: LossOfBatch
) -> Choice | None:
    """Choose the roles of a loader's ranks. Collective: every rank must call this, with the same arguments.

    Args:
      ctx: the rank's context.
      loader: with roles "auto"; the next epoch is the same as before.
      model: in training mode.
      optimizer: over it.
      compute_loss: called with a batch and its features -> the batch's share of the loss.
    Returns:
      The same choice on all ranks; the loader does not have it yet. None: there is none, since ranks with roles would
      refuse the model, and rank 0 logs why.
    Raises:
      ValueError: not one part per rank, where roles would train other batches than time sharing; a sparse gradient; a
        forward pass or loss that makes a collective.
    """
    num_parts = loader.data.manifest.num_parts
    agree(ctx, lambda: _check_parts(num_parts, ctx.world_size))
    with _left_as_before(ctx, loader, model):
        marks = buffer_marks(model)
        ctx.comm.barrier(purpose=PURPOSE)
        batches, train = _batch_times(ctx, loader, model, compute_loss)
        own = strange_parameters(model, optimizer) or changed_buffer(model, marks)
        reasons = [why for why in ctx.comm.all_gather_object(own, purpose=PURPOSE) if why is not None]
        if reasons:
            if ctx.rank == 0:
                logger.warning("roles 'auto' are none: %s.", reasons[0])
            return None
        times, cores = _measured(ctx, loader, model, optimizer, batches, train)
    shape = EpochShape(len(loader) * num_parts, cores, num_parts, prefetches=loader.options.prefetch > 0)
    return choose_roles(times, shape, ctx.world_size)


@contextmanager
def _left_as_before(ctx: DistContext, loader: DistLoader, model: nn.Module) -> Iterator[None]:
    """Let the loader begin with a whole epoch; then loader, reports, torch's generators and buffers are as before."""
    epoch, buffers = loader.epoch, {name: buffer.clone() for name, buffer in model.named_buffers()}
    if loader.num_steps(epoch) < len(loader):  # it was resumed: few batches may be left of it, or none
        loader.set_epoch(epoch + 1)
    with kept_generators(ctx.device), loader.left_out():
        yield
    loader.set_epoch(epoch)
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def _check_parts(num_parts: int, world_size: int) -> None:
    if num_parts != world_size:
        raise ValueError(
            f"roles is 'auto' on {num_parts} parts and {world_size} ranks: with roles a step has a batch of every "
            f"part, without them one of every rank; start {num_parts} ranks, or choose: pass roles S+T or none."
        )


def _measured(
    ctx: DistContext,
    loader: DistLoader,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[tuple[float, ...]],
    train: Callable[[], float],
) -> tuple[StageTimes, float]:
    """(medians over the batches of all ranks as one takes that works alone, how many such ranks there is room for)"""
    own_alone = _time_alone(ctx, train)
    update_s = _update_seconds(ctx, model, optimizer)
    sum_s = _sum_seconds(ctx, model)
    everybody = ctx.comm.all_gather_object((batches, update_s, own_alone, sum_s), purpose=PURPOSE)
    stages = zip(*(times for batches, *_ in everybody for times in batches), strict=True)
    sum_s = statistics.median(seconds for *_, seconds in everybody)
    alone = min(1.0, max(1 / ctx.world_size, everybody[0][2]))
    sample_s, fetch_s, train_s, handover_s, trainer_fetch_s = (
        alone * statistics.median(seconds) for seconds in stages
    )  # fmt: skip
    update_s = alone * statistics.median(seconds for _, seconds, *_ in everybody)
    skew_s = _skew_seconds([[sum(times[:3]) for times in batches] for batches, *_ in everybody])
    times = StageTimes(
        sample_s, fetch_s, train_s, fetch_factored_s=None if loader.hot_rows is None else trainer_fetch_s,
        handover_s=handover_s, update_s=update_s, sum_s=sum_s, skew_s=skew_s,
    )  # fmt: skip
    return times, alone * ctx.world_size


def _batch_times(
    ctx: DistContext, loader: DistLoader, model: nn.Module, compute_loss: LossOfBatch
) -> tuple[list[tuple[float, ...]], Callable[[], float]]:
    """(seconds of sampling, fetching, training and handing over some batches, and of fetching them on a rank that only
    trains; trains the last one again)
    """
    clock, found = clock_of(ctx.device), []
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}

    def train(batch: MiniBatch, features: Tensor) -> float:
        begin = clock.mark()
        with ctx.comm.refusing(NO_COLLECTIVES):
            loss = compute_loss(batch, features)
        gradients = torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
        seconds = Lap(clock, begin, clock.mark()).seconds
        for name, gradient in zip(trained, gradients, strict=True):
            check_dense(name, gradient)
        return seconds

    with closing(iter(loader)) as batches:
        for batch in islice(batches, WARM_UP + MEASURED):
            features, batch.features = batch.features, None
            begin_s = time.perf_counter()
            buffers = [bytes(buffer) for buffer in pack(batch, (loader.data.graph.orig_ids,))[1]]
            handover_s = time.perf_counter() - begin_s
            del buffers
            fetch_s = 0.0 if batch.fetching is None else batch.fetching.seconds
            rows = loader.hot_rows
            trainer_fetch_s = fetch_s if rows is None else _trainers_fetch(clock, rows, batch, features)
            found.append((batch.sampling.seconds, fetch_s, train(batch, features), handover_s, trainer_fetch_s))
    return found[WARM_UP:] or found, partial(train, batch, features)


def _trainers_fetch(clock: Clock, rows: HotRows, batch: MiniBatch, features: Tensor) -> float:
    """Seconds of a batch's fetch on a GPU that has no topology, and so holds the rows of all slots."""
    rows = rows.in_front_of(rows.host.using(rows.host.comm))  # with a tally of its own
    nodes, begin = rows.without_further(batch.input_nodes), clock.mark()
    rows.fetch(nodes, features.dtype)
    return Lap(clock, begin, clock.mark()).seconds


def _time_alone(ctx: DistContext, train: Callable[[], float]) -> float:
    """Seconds of training a batch alone / while all ranks do, on rank 0; in turns, so that other work on the machine
    disturbs both alike. Collective: every rank must call this.
    """
    alone, together = [], []
    for _ in range(TURNS):
        ctx.comm.barrier(purpose=PURPOSE)
        together += [train() for _ in range(2)]
        ctx.comm.barrier(purpose=PURPOSE)
        alone += [train() for _ in range(2)] if ctx.rank == 0 else []
    ctx.comm.barrier(purpose=PURPOSE)
    together_s = statistics.median(together)
    return statistics.median(alone) / together_s if alone and together_s > 0 else 1.0


def _update_seconds(ctx: DistContext, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Of a group's sum and an optimizer step with gradients of zeros; model and optimizer are as before afterwards."""
    clock, state = clock_of(ctx.device), copy.deepcopy(optimizer.state_dict())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    for _ in range(2):  # the first step makes the optimizer's state
        begin = clock.mark()
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
            for _ in range(ctx.world_size):
                parameter.grad += 0
        optimizer.step()
        seconds = Lap(clock, begin, clock.mark()).seconds
    optimizer.zero_grad(set_to_none=True)
    for parameter, kept in zip(trained, before, strict=True):
        parameter.detach().copy_(kept)
    optimizer.load_state_dict(state)
    return seconds


def _skew_seconds(of_ranks: Sequence[Sequence[float]]) -> float:
    """By how much the slowest rank was behind their mean, median over the batches that all ranks made at a time."""
    return statistics.median(max(times) - statistics.fmean(times) for times in zip(*of_ranks, strict=True))


def _sum_seconds(ctx: DistContext, model: nn.Module) -> float:
    """Of a sum of gradients over ranks. Collective: every rank must call this."""
    clock, size = clock_of(ctx.device), sum(p.numel() for p in model.parameters() if p.requires_grad)
    gradients, found = torch.zeros(size, device=ctx.device), []
    for _ in range(WARM_UP + MEASURED):
        begin = clock.mark()
        ctx.comm.all_reduce(gradients, purpose=PURPOSE)
        found.append(Lap(clock, begin, clock.mark()).seconds)
    return statistics.median(found[WARM_UP:])
