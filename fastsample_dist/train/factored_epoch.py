"""FactoredEpoch: an epoch whose tasks ranks make and train in their roles, as one rank takes part in it.

    hold the parameters of the task's version -> loss share -> gradient to the task's slot        on ranks that train
    all tasks of a group are done -> sum, optimizer step, next version              on the first rank of every machine

The ranks run the epoch in segments. Between two segments they meet: all have the newest parameters then, and callbacks
may run collectives. A segment ends where the epoch does, at the steps that callbacks ask for, and where a rank asks for
a meeting. With a staleness above 0 a segment begins without delay, so meetings are part of what a run computes: runs
that meet after the same steps are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from torch import Tensor

from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.clock import Lap, clock_of
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.iterations import agree_on_epoch
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.tasks import Task
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.callbacks import Meeting
from fastsample_dist.train.generators import kept_generators, seed_generators
from fastsample_dist.train.group_updates import GroupUpdates, task_seed
from fastsample_dist.train.metrics import EpochMeter
from fastsample_dist.train.unshared import NO_COLLECTIVES, buffer_marks, changed_buffer

ENDS_WITHIN_S = 1.0  # between a rank's last connection and the end of its process


@contextmanager
def roles_named(loader: BatchLoader) -> Iterator[None]:
    """Let a collective that fails because a rank has ended, as where ranks with roles meet, say its role and task too.

    Raises:
      RuntimeError: as the collective, with that behind its line.
    """
    try:
        yield
    except RuntimeError as error:
        executor = getattr(loader, "executor", None)
        if type(error) is not RuntimeError or executor is None or not (ended := executor.who_ended(ENDS_WITHIN_S)):
            raise
        raise RuntimeError(f"{str(error).rstrip('.')}: {ended}.") from error


class FactoredEpoch:
    """What one rank does of an epoch.

    Args:
      ctx: the rank's context.
      loader: of the epoch, with an executor.
      updates: over the model that is trained.
      compute_loss: called with a batch and its features -> the batch's share of the loss of its group.
      meter: of the epoch; gets this rank's seconds and, on rank 0, loss and seeds of all ranks.
      on_update: called on ranks that update with the step after every update; None: nothing is.
    """

    def __init__(
        self, ctx: DistContext, loader: DistLoader, updates: GroupUpdates,
        compute_loss: Callable[[MiniBatch, Tensor], Tensor], meter: EpochMeter,
        on_update: Callable[[int], object] | None,
    ) -> None:  # fmt: skip
        self._ctx, self._loader, self._executor, self._updates = ctx, loader, loader.executor, updates
        self._compute_loss, self._meter, self._on_update = compute_loss, meter, on_update
        self._epoch, self._clock = loader.epoch, clock_of(ctx.device)
        self._first_step = loader.first_step(loader.epoch)
        self._fetch_s = 0.0  # of tasks that this rank has trained

    def run(self, on_meeting: Callable[[Meeting], bool], meet_every: Collection[int]) -> bool:
        """Train on all tasks of the epoch. Collective: every rank must call this.

        Args:
          on_meeting: called on all ranks when they meet; when it returns True, on all of them, the epoch ends there.
          meet_every: meet after the steps whose number, counted from 1, is a multiple of one of these.
        Returns:
          Whether `on_meeting` ended it.
        Raises:
          NonFiniteError: on all ranks, the loss or the gradients of a group are NaN or infinite.
          RuntimeError: a rank failed or ended; names it.
          ValueError: on all ranks, they would make other steps or meet after others; on one, a gradient that ranks
            cannot share, a model whose buffers change or that makes a collective.
        """
        num_groups, group = self._loader.num_steps(self._epoch), 0
        agree_on_epoch(
            self._ctx.comm, type(self._loader).__name__, self._epoch, self._first_step, num_groups,
            meet_every=sorted({*meet_every}),
        )  # fmt: skip
        self._loader.set_epoch(self._epoch + 1)
        if num_groups == 0:  # resumed at its end: it only begins
            self._executor.run(self._epoch, 0, 0, self._train, self._update)
        while group < num_groups:
            step = self._first_step + group
            ends = [(step // every + 1) * every - self._first_step for every in meet_every]
            group = self._segment(group, min([num_groups, *ends]))
            if on_meeting(Meeting(self._epoch, self._first_step + group - 1)):
                return True
        return False

    def _segment(self, first: int, end: int) -> int:
        """Run groups from `first` on, to `end` or until a meeting is asked for; the first one that was not run."""
        self._updates.begin(first)
        self._updates.model.train()  # a callback may have evaluated it
        with kept_generators(self._ctx.device):
            try:
                done = self._executor.run(self._epoch, first, end - first, self._train, self._update)
            except RuntimeError:
                self._updates.raise_what_ended_training()
                raise
        self._updates.hold(done)
        tally, meter = self._executor.tally, self._meter
        meter.steps += done - first
        meter.sample_s, meter.fetch_s = tally.sample_s, self._fetch_s + tally.fetch_s
        return done

    def _train(self, task: Task, batch: MiniBatch, version: int) -> None:
        """Compute a task's gradient; see Executor.run."""
        begin, span = self._clock.mark(), self._ctx.comm.watch.span
        self._updates.hold(version)
        copied = self._clock.mark()
        seed_generators(task_seed(batch.draw.rng_seed, task.step, task.virtual_rank), self._ctx.device)
        features, batch.features = batch.features, None
        alone = self._ctx.comm.refusing(NO_COLLECTIVES)
        with span("forward", task.step, self._clock), self._unchanged_buffers(), alone:
            loss = self._compute_loss(batch, features)
        node = self._updates.guard.culprit(batch, features, loss)
        del features
        with span("backward", task.step, self._clock):
            self._updates.put(task.group, task.virtual_rank, loss, node, batch)
        meter = self._meter
        meter.compute_s += Lap(self._clock, begin, self._clock.mark()).seconds
        meter.gradients_s += Lap(self._clock, begin, copied).seconds
        self._fetch_s += 0.0 if batch.fetching is None else batch.fetching.seconds

    def _update(self, group: int) -> None:
        """Make the update of a group; see Executor.run."""
        begin, step = self._clock.mark(), self._first_step + group
        with self._ctx.comm.watch.span("optimizer", step, self._clock):
            loss_sum, num_seeds = self._updates.update(group, step)
        meter = self._meter
        if self._ctx.rank == 0:  # of the ranks that update, which know the same
            meter.loss_sum, meter.num_seeds = meter.loss_sum + loss_sum, meter.num_seeds + num_seeds
        meter.compute_s += Lap(self._clock, begin, self._clock.mark()).seconds
        if self._on_update is not None:
            self._on_update(step)

    @contextmanager
    def _unchanged_buffers(self) -> Iterator[None]:
        """Refuse a forward pass that changes a buffer, as those of BatchNorm do: it would depend on who trains what.

        Raises:
          ValueError: names the buffer.
        """
        marks = buffer_marks(self._updates.model)
        yield
        if (changed := changed_buffer(self._updates.model, marks)) is not None:
            raise ValueError(
                f"{changed}; use a layer without running statistics, such as LayerNorm, or train with roles 'none'."
            )
