"""Trainer: the loop over mini-batches, one optimizer step each, on all ranks at once.

    loss share of own seeds -> backward, gradients summed over ranks -> the same optimizer step on every rank

With roles ranks share the batches as tasks, and rank 0 makes the optimizer step: see factored_epoch.py.

Nothing here knows launcher, scheme or model: they come in through the context, the loader and the module.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fastsample_dist import ops
from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.clock import Lap, clock_of
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.roles import ROLES_AUTO, Choice
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.agreement import task_facts, trainer_facts
from fastsample_dist.train.callbacks import Callback, Callbacks, EpochReport, Meeting, Run, StepHook
from fastsample_dist.train.factored_epoch import FactoredEpoch, roles_named
from fastsample_dist.train.finite import FiniteGuard
from fastsample_dist.train.gradients import wrap_model
from fastsample_dist.train.group_updates import GroupUpdates
from fastsample_dist.train.metrics import EpochMeter, EpochStats, EpochTotals
from fastsample_dist.train.objectives import (
    LOSSES,
    METRICS,
    LossFunction,
    Metric,
    MetricSums,
    as_metric,
    check_metrics,
    check_reduction,
    loss_share,
)
from fastsample_dist.train.protocol import check_kind, check_loader, check_outputs, check_same_model, check_trained
from fastsample_dist.train.rehearsal import rehearse_roles
from fastsample_dist.train.schedules import end_epoch, set_learning_rate
from fastsample_dist.train.shared_state import broadcast_state
from fastsample_dist.train.stop import any_rank_stops

logger = logging.getLogger(__name__)

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class _Enqueued:
    """A step that was started, on a GPU perhaps not finished, with what the epoch's meter still needs of it.

    Attributes:
      facts: this rank's share of the loss and the others of FiniteGuard.facts, on their way to the host; there when
        `computing` has ended.
      step: its global number.
      num_global_seeds: of the batch.
      computing: the whole step.
      others: the meter's other times, by name.
    """

    facts: Tensor
    step: int
    num_global_seeds: int
    computing: Lap
    others: dict[str, Lap | None]


class Trainer:
    """Trains a model with the batches of a loader.

    Collective: every rank must construct this. All ranks continue with rank 0's parameters.

    Args:
      model: any nn.Module called as model(mb.mfgs, mb.features) -> [num_seeds, outputs], such as logits of the classes.
      optimizer: over the model's parameters, which steps without a closure; the same kind and settings on every rank.
      ctx: the rank's context.
      precision: "fp32" computes in the parameters' dtype; "bf16" runs the forward pass under autocast.
      loss_fn: called as loss_fn(outputs, mb.labels), never with an empty batch. Preferably returns one loss per seed,
        [num_seeds] or [num_seeds, k] (reduction="none"); a single number is taken as the mean over the batch's seeds,
        which is checked at the first step and refused where the seeds have weights (mb.seed_weights), which multiply
        the losses. Ranks' shares then add up to the mean over the seeds of all ranks exactly.
        None: by the kind of labels (objectives.py), cross-entropy for classes.
      metrics: what `evaluate` measures, by name: functions called as fn(outputs, labels) -> one value per seed, of
        which the mean over all ranks' seeds is reported, or SumMetric. None: by the kind of labels.
      scheduler: of the optimizer's learning rate, stepped once after every whole epoch (ReduceLROnPlateau with the
        epoch's loss) and part of `state`.
      allow_nonfinite: continue, with one warning, where training would stop at the first loss or gradient that is NaN
        or infinite.
    Attributes:
      model: the user's model, with the trained parameters.
    Raises:
      ValueError: an unknown precision; a model on another device than the context's; an optimizer of no parameter of
        the model, a scheduler of another optimizer; ranks that differ in the model, the optimizer, their settings
        (train/agreement.py) or the precision. All ranks raise the same error.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ctx: DistContext,
        *,
        precision: str = "fp32",
        loss_fn: LossFunction | None = None,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: LRScheduler | None = None,
        allow_nonfinite: bool = False,
    ) -> None:
        check_kind("ctx", ctx, DistContext, "fsd.DistContext.from_env()")
        allow_nonfinite = checks.plain(allow_nonfinite)
        agree(ctx, partial(_check, ctx, model, optimizer, precision, loss_fn, metrics, scheduler, allow_nonfinite))
        own = task_facts(loss_fn, metrics, scheduler) | {"allow_nonfinite": allow_nonfinite}
        agree_on(ctx.comm, "Trainer", trainer_facts(model, optimizer, precision) | own)
        self.model = model
        self._optimizer = optimizer
        self._ctx = ctx
        self._autocast = precision == "bf16"
        self._loss_fn, self._unchecked = loss_fn, loss_fn is not None
        self._metrics = None if metrics is None else {name: as_metric(metric) for name, metric in metrics.items()}
        self._scheduler = scheduler
        self._guard = FiniteGuard(ctx, optimizer, allow=allow_nonfinite)
        self._gradients = wrap_model(model, ctx)
        self._meter, self._carried = EpochMeter(), EpochTotals()
        self._clock = clock_of(ctx.device)
        self._under_way: deque[_Enqueued] = deque()
        self._rehearse = False
        self._stopped = False  # the last epoch was ended by its on_step
        self._num_columns: int | None = None  # that the model must return; None: any
        self._updates: GroupUpdates | None = None  # of epochs with roles
        self._steps_apart = False  # ranks that update have made steps with their optimizer that the others' have not

    def run_epoch(
        self,
        loader: BatchLoader,
        on_step: Callable[[MiniBatch | Meeting], object] | None = None,
        *,
        carried: EpochTotals | None = None,
        on_update: Callable[[int], object] | None = None,
        meet_every: Collection[int] = (),
    ) -> EpochStats:
        """Train on every batch of one epoch.

        Collective: every rank must call this, with loaders of the same arguments.

        Args:
          loader: one iteration of it is the epoch.
          on_step: called with the batch after every step; when it returns True, on any rank, the epoch ends here on all
            of them. With roles it is called with a Meeting, where the ranks meet.
          carried: totals of the epoch's earlier part, where the loader was resumed in its middle.
          on_update: called with the step after every update, on the ranks that make it (with roles some). Runs no
            collective.
          meet_every: with roles, ranks meet after the steps whose number, counted from 1, is a multiple of one of
            these, besides the epoch's end.
        Raises:
          NonFiniteError: on all ranks, a loss or the gradients are NaN or infinite; names step, ranks and what to look
            at. The parameters may hold NaN by then.
          ValueError: the loader's fanouts disagree with the model's layers, or a batch does not fit the model.
          RuntimeError: a collective failed or passed its deadline; names rank, step and purpose.
        """
        check_loader(loader)
        epoch = loader.epoch
        self._under_way.clear()
        self._clock.finish()
        self._meter, self._carried = EpochMeter(), carried or EpochTotals()
        self.model.train()
        self._expect(loader)
        self.settle_roles(loader)
        after_step = StepHook(self._ctx.comm, on_step, self._meter)
        if getattr(loader, "executor", None) is None:
            self._stopped = self._plain_epoch(loader, after_step, on_update)
        else:
            self._stopped = self._factored_epoch(loader, on_update).run(after_step, meet_every)
        stats = self.totals().stats(epoch)
        if self._scheduler is not None and not self._stopped:
            end_epoch(self._scheduler, stats.loss)
        return stats

    def _expect(self, loader: BatchLoader) -> None:
        """Take loss and number of columns from the loader's labels, where they are not given."""
        self._num_columns = None if self._loss_fn is not None else _classes_of(loader)
        self._task_loss = self._loss_fn or LOSSES[_task_of(loader)]

    def _plain_epoch(
        self,
        loader: BatchLoader,
        after_step: Callable[[MiniBatch], bool],
        on_update: Callable[[int], object] | None,
    ) -> bool:
        """Train on the batches of every rank in turn; whether `after_step` ended the epoch."""
        self._share_optimizer()
        batches = self._in_step(loader)
        for batch in batches:
            self._timed_step(batch)
            if on_update is not None:
                on_update(batch.step)
            if after_step(batch):
                batches.close()
                return True
        return False

    def _factored_epoch(self, loader: BatchLoader, on_update: Callable[[int], object] | None) -> FactoredEpoch:
        """An epoch with roles. Collective: every rank must call this."""
        executor, made = loader.executor, self._updates
        if made is None or made.executor is not executor:
            machines = loader.sharing.machines
            self._updates = GroupUpdates(self._ctx, self.model, self._optimizer, self._guard, machines, executor)
        self._steps_apart = self._ctx.world_size > 1
        return FactoredEpoch(self._ctx, loader, self._updates, partial(self._loss, self.model), self._meter, on_update)

    def fit(self, loader: BatchLoader, epochs: int, callbacks: Sequence[Callback] = ()) -> None:
        """Train until `epochs` epochs are done, or a callback ends training.

        Collective: every rank must call this, with the same arguments.

        Args:
          loader: of the training batches; begins with `loader.epoch`, which a resumed run has moved on.
          epochs: in all, those before `loader.epoch` included.
          callbacks: called in this order (train/callbacks.py); a Checkpointer comes last, to save what the others did.
        Raises:
          ValueError, RuntimeError: as `run_epoch`, and ranks that differ in the epochs; whatever a callback raises.
        """
        check_loader(loader)
        epochs = checks.whole("epochs", epochs, 0)
        agree_on(self._ctx.comm, "Trainer.fit", {"epochs": epochs, "loader.epoch": loader.epoch})
        calls = Callbacks(callbacks, run := Run(trainer=self, loader=loader, epochs=epochs))
        with roles_named(loader), calls.closing():
            calls.begin()
            for epoch in range(loader.epoch, epochs):
                if loader.epoch != epoch:  # a callback has iterated over it
                    loader.set_epoch(epoch)
                figures = {} if self._scheduler is None else {"lr": self.learning_rate}
                calls.begin_epoch(epoch)
                stats = self.run_epoch(
                    loader, calls.after_step, carried=run.carried, on_update=calls.after_update,
                    meet_every=calls.meet_every,
                )  # fmt: skip
                run.carried = EpochTotals()
                calls.stopped = self._stopped
                if not calls.stopped:
                    is_last = epoch + 1 == epochs
                    calls.after_epoch(EpochReport(stats=stats, step=run.step, is_last=is_last, figures=figures))
                    calls.stopped = any_rank_stops(self._ctx.comm, calls.stopped)
                if calls.stopped:
                    break
            self._share_optimizer()
            calls.end()

    def settle_roles(self, loader: BatchLoader) -> Choice | None:
        """Where a loader has roles "auto", measure the stages and give its ranks the roles that are fastest by them.

        Done before the first epoch, unless it was before. Nothing of the rehearsal stays. Rank 0 logs the choice.

        Collective: every rank must call this, with loaders of the same arguments.

        Returns:
          The predictions and the choice, the same on all ranks; None: there was nothing to choose, or ranks with roles
          would refuse the model, and rank 0 logs why.
        Raises:
          ValueError: as rehearse_roles.
        """
        if getattr(loader, "roles", None) != ROLES_AUTO:
            return None
        self.model.train()
        self._expect(loader)
        choice = rehearse_roles(self._ctx, loader, self.model, self._optimizer, partial(self._loss, self.model))
        loader.take_roles(None if choice is None else choice.chosen)
        if choice is not None and self._ctx.rank == 0:
            logger.info("%s", choice)
        return choice

    def totals(self) -> EpochTotals:
        """The epoch so far, what was carried into it included. Waits until its steps are done.

        Collective: every rank must call this, after the same step.

        Raises:
          ValueError: a GPU was asked for rows that are not there (reported when it is done).
          NonFiniteError: as `run_epoch`.
        """
        self._settle(0)
        if self._ctx.device.type == "cuda":
            ops.raise_deferred_errors(self._ctx.device)
        return self._carried + self._meter.totals(self._ctx.comm)

    @property
    def own_totals(self) -> dict[str, int | float]:
        """This rank's part of the last `totals`, without what was carried: "steps", and its seconds by the names of
        EpochStats.
        """
        return self._meter.own

    def state(self) -> dict[str, Any]:
        """{"model", "optimizer", "kind"}, and "scheduler" where there is one: what a checkpoint needs of them.

        The tensors are the live ones. With roles the optimizer's are complete on rank 0 alone, until `fit` or an epoch
        without roles gives them to the others.
        """
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "kind": type(self._optimizer).__name__,
        }
        return state if self._scheduler is None else state | {"scheduler": self._scheduler.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from another trainer's `state()`.

        Collective: every rank must call this, with the same state.

        Raises:
          ValueError: it is that of another model or optimizer, or only one of the two has a scheduler.
        """
        check_same_model(self.model.state_dict(), state["model"])
        if state["kind"] != type(self._optimizer).__name__:
            raise ValueError(
                f"the optimizer was {state['kind']} and is {type(self._optimizer).__name__}; pass the same kind."
            )
        if ("scheduler" in state) != (self._scheduler is not None):
            had, has = ("with" if found else "without" for found in ("scheduler" in state, self._scheduler is not None))
            raise ValueError(f"it was made {had} a learning-rate scheduler, this run is {has} one; pass the same.")
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps_apart = False
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._rehearse = True

    def set_learning_rate(self, lr: float) -> None:
        """Continue with another learning rate, such as after resuming; a scheduler's factors apply to it from now on.

        Collective in effect: every rank must call this, with the same value.
        """
        set_learning_rate(self._optimizer, self._scheduler, lr)

    @property
    def learning_rate(self) -> float:
        """Of the optimizer's first group, now."""
        return float(self._optimizer.param_groups[0]["lr"])

    def evaluate(self, loader: BatchLoader) -> float | dict[str, float]:
        """What the metrics give for the split's seeds: over all ranks, exact.

        The model sees the neighbours that the loader samples; all of them with fanouts of -1. Every call uses the
        batches of epoch 0, so that calls differ by the model alone.

        Collective: every rank must call this, with loaders of the same arguments.

        Returns:
          The metrics by name; without `metrics` the one number that is usual for the labels: accuracy for classes,
          micro-averaged F1 for several labels, root mean squared error for regression.
        Raises:
          ValueError, RuntimeError: as `run_epoch`.
        """
        check_loader(loader, "set_epoch")
        chosen = self._metrics or METRICS[_task_of(loader)]
        loader.set_epoch(0)
        sums = MetricSums(chosen)
        self.model.eval()
        with torch.no_grad():
            for batch in self._in_step(loader):
                with self._precision():
                    outputs = self.model(batch.mfgs, batch.features)
                check_outputs(self.model, outputs, batch.seeds.numel(), None)
                sums.add(outputs, batch.labels)
        found = sums.values(self._ctx.comm)
        return found if self._metrics is not None else next(iter(found.values()))

    def _in_step(self, batches: Iterable[MiniBatch]) -> Generator[MiniBatch, None, None]:
        """The batches; while one is in use, errors of collectives name its step."""
        try:
            for batch in batches:
                self._ctx.comm.step = batch.step
                yield batch
        finally:
            self._ctx.comm.step = -1

    def _timed_step(self, batch: MiniBatch) -> None:
        begin, meter = self._clock.mark(), self._meter
        if self._rehearse:
            self._gradients.rehearse(lambda: self._loss(self._gradients.module, batch, batch.features, together=True))
            self._rehearse = False
        facts = self._train_step(batch).to("cpu", non_blocking=True)
        computing = Lap(self._clock, begin, self._clock.mark())
        others = {"sample_s": batch.sampling, "fetch_s": batch.fetching, "gradients_s": self._gradients.waiting}
        self._under_way.append(_Enqueued(facts, batch.step, batch.num_global_seeds, computing, others))
        meter.steps, meter.num_seeds = meter.steps + 1, meter.num_seeds + batch.seeds.numel()
        self._settle(self._clock.lag)

    def _settle(self, lag: int) -> None:
        """Wait until no more than `lag` steps are under way; the others enter the meter."""
        meter = self._meter
        while len(self._under_way) > lag:
            done = self._under_way.popleft()
            meter.compute_s += done.computing.seconds
            facts = done.facts.tolist()
            meter.loss_sum += facts[0] * done.num_global_seeds
            self._guard.check(done.step, facts)
            for name, lap in done.others.items():
                setattr(meter, name, getattr(meter, name) + (0.0 if lap is None else lap.seconds))

    def _loss(self, module: nn.Module, batch: MiniBatch, features: Tensor, together: bool = False) -> Tensor:
        """This rank's share of the step's loss, by the model or what stands for it; together: all ranks compute one."""
        with self._precision():
            outputs = module(batch.mfgs, features)
            check_outputs(self.model, outputs, batch.seeds.numel(), self._num_columns)
            if self._unchecked:
                self._unchecked = False
                check = partial(check_reduction, self._loss_fn, outputs, batch)
                agree(self._ctx, check) if together else check()
            return loss_share(self._task_loss, outputs, batch)

    def _train_step(self, batch: MiniBatch) -> Tensor:
        """One optimizer step; returns the guard's facts of it, this rank's share of the loss first. The batch loses its
        features.
        """
        span = partial(self._ctx.comm.watch.span, step=batch.step, clock=self._clock)
        features = _take_features(batch)
        with span("forward"):
            loss = self._loss(self._gradients.module, batch, features, together=True)
        culprit = self._guard.culprit(batch, features, loss)
        del features
        self._optimizer.zero_grad(set_to_none=True)
        with span("backward"):
            self._gradients.backward(self._guard.mark(loss))
        facts = self._guard.facts(loss, culprit, self.model.parameters())
        with span("optimizer"):
            self._optimizer.step()
        return facts

    def _share_optimizer(self) -> None:
        """Give every rank rank 0's optimizer where it alone has made steps. Collective: every rank must call this."""
        if self._steps_apart:
            state = broadcast_state(self._ctx.comm, self._optimizer.state_dict() if self._ctx.rank == 0 else None)
            self._optimizer.load_state_dict(state)
            self._steps_apart = False

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._ctx.device.type, torch.bfloat16, enabled=self._autocast)


def _task_of(loader: Iterable[MiniBatch]) -> str:
    """The task of its batches' labels; classification for a loader that does not say, such as a user's."""
    return getattr(getattr(loader, "data", None), "task", "classification")


def _classes_of(loader: Iterable[MiniBatch]) -> int | None:
    """Number of classes of its labels; None where they are not classes, or the loader does not say."""
    return getattr(getattr(loader, "data", None), "num_classes", None) or None  # 0 for other tasks


def _take_features(batch: MiniBatch) -> Tensor:
    """The features, no longer held by the batch: a model that does not need them for its gradient frees them."""
    features, batch.features = batch.features, None
    assert features is not None  # the loader fetched them
    return features


def _check(
    ctx: DistContext, model: nn.Module, optimizer: torch.optim.Optimizer, precision: str, loss_fn: object,
    metrics: object, scheduler: object, allow_nonfinite: object,
) -> None:  # fmt: skip
    """Refuse what a Trainer is given where it is of another kind, and a model on another device."""
    checks.one_of("precision", precision, PRECISIONS)
    checks.flag("allow_nonfinite", allow_nonfinite)
    check_trained(model, optimizer, scheduler)
    if loss_fn is not None and (not callable(loss_fn) or isinstance(loss_fn, type)):
        raise ValueError(f"loss_fn is {loss_fn!r}; expected None or a function of outputs and labels (no class).")
    if metrics is not None:
        check_metrics(metrics)
    found = next((parameter.device for parameter in model.parameters()), ctx.device)
    if found != ctx.device:
        raise ValueError(
            f"the model is on {found} but the context's device is {ctx.device}; call model.to(ctx.device)."
        )
