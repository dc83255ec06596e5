"""Trainer: the loop over mini-batches, one optimizer step each, on all ranks at once.

    loss share of own seeds -> backward, gradients summed over ranks -> the same optimizer step on every rank

Nothing here knows the launcher, the scheme or the model: they come in through the context, the loader and the
module.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastsample_dist import ops
from fastsample_dist.comm.clock import Lap, clock_of
from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.base import MiniBatch
from fastsample_dist.train import metrics
from fastsample_dist.train.gradients import wrap_model
from fastsample_dist.train.metrics import EpochMeter, EpochStats, EpochTotals

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class _Enqueued:
    """A step whose work is under way, on a GPU perhaps not done: what the epoch's meter is still to get from it.

    Attributes:
      loss: this rank's share, on its way to the host; there when `computing` has ended.
      num_global_seeds: of the batch.
      computing: the whole step.
      others: the meter's other times, by name.
    """

    loss: Tensor
    num_global_seeds: int
    computing: Lap
    others: dict[str, Lap | None]


class Trainer:
    """Trains a model with the batches of a loader.

    Collective: every rank must construct this. All ranks continue with rank 0's parameters.

    Args:
      model: called as model(mb.mfgs, mb.features) -> logits of the seeds.
      optimizer: over the model's parameters; the same kind and settings on every rank.
      ctx: the rank's context.
      precision: "fp32" computes in the parameters' dtype; "bf16" runs the forward pass under autocast.
    Attributes:
      model: the user's model, with the trained parameters.
    Raises:
      ValueError: an unknown precision; a model on another device than the context's; the ranks' models differ in size.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, ctx: DistContext, *, precision: str = "fp32"
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; expected 'fp32' or 'bf16'.")
        _check_device(model, ctx.device)
        self.model = model
        self._optimizer = optimizer
        self._ctx = ctx
        self._autocast = precision == "bf16"
        self._gradients = wrap_model(model, ctx)
        self._meter, self._carried = EpochMeter(), EpochTotals()
        self._clock = clock_of(ctx.device)
        self._under_way: deque[_Enqueued] = deque()
        self._rehearse = False

    def run_epoch(
        self,
        loader: DistLoader,
        on_step: Callable[[MiniBatch], object] | None = None,
        *,
        carried: EpochTotals | None = None,
    ) -> EpochStats:
        """Train on every batch of one epoch.

        Collective: every rank must call this, with loaders of the same arguments.

        Args:
          loader: one iteration of it is the epoch.
          on_step: called with the batch after every step; when it returns True, on all ranks, the epoch ends here.
          carried: totals of the epoch's earlier part, where the loader was resumed in its middle.
        Raises:
          ValueError: the loader's fanouts disagree with the model's layers, or a batch does not fit the model.
          RuntimeError: a collective failed or passed its deadline; names rank, step and purpose.
        """
        epoch = loader.epoch
        self._under_way.clear()
        self._clock.finish()
        self._meter, self._carried = EpochMeter(), carried or EpochTotals()
        self.model.train()
        batches = self._in_step(loader)
        for batch in batches:
            self._timed_step(batch)
            if on_step is None:
                continue
            begin_s = time.perf_counter()
            stop = on_step(batch) is True
            self._meter.hook_s += time.perf_counter() - begin_s
            if stop:
                batches.close()
                break
        return self.totals().stats(epoch)

    def totals(self) -> EpochTotals:
        """The epoch so far, what was carried into it included. Waits until its steps are done.

        Collective: every rank must call this, after the same step.

        Raises:
          ValueError: a GPU was asked for rows that are not there (told when it is done).
        """
        self._settle(0)
        if self._ctx.device.type == "cuda":
            ops.raise_deferred_errors(self._ctx.device)
        return self._carried + self._meter.totals(self._ctx.comm)

    def state(self) -> dict[str, Any]:
        """{"model", "optimizer", "kind"}: what a checkpoint needs of them; the tensors are the live ones."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "kind": type(self._optimizer).__name__,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from another trainer's `state()`.

        Collective: every rank must call this, with the same state.

        Raises:
          ValueError: it is that of another model or optimizer.
        """
        _check_same_model(self.model.state_dict(), state["model"])
        if state["kind"] != type(self._optimizer).__name__:
            raise ValueError(
                f"the optimizer was {state['kind']} and is {type(self._optimizer).__name__}; pass the same kind."
            )
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._rehearse = True

    def evaluate(self, loader: DistLoader) -> float:
        """Share of the split's seeds that the model classifies correctly: over all ranks, exact.

        The model sees the neighbours that the loader samples; all of them with fanouts of -1. Every call uses the
        batches of epoch 0, so that calls differ by the model alone.

        Collective: every rank must call this, with loaders of the same arguments.

        Raises:
          ValueError, RuntimeError: as `run_epoch`.
        """
        loader.set_epoch(0)
        correct = total = 0
        self.model.eval()
        with torch.no_grad():
            for batch in self._in_step(loader):
                with self._precision():
                    logits = self.model(batch.mfgs, batch.features)
                correct, total = correct + metrics.num_correct(logits, batch.labels), total + batch.seeds.numel()
        correct, total = metrics.global_count(self._ctx.comm, [correct, total])
        return correct / total

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
            self._gradients.rehearse(lambda: self._loss(batch, batch.features))
            self._rehearse = False
        loss = self._train_step(batch).to("cpu", non_blocking=True)
        computing = Lap(self._clock, begin, self._clock.mark())
        others = {"sample_s": batch.sampling, "fetch_s": batch.fetching, "gradients_s": self._gradients.waiting}
        self._under_way.append(_Enqueued(loss, batch.num_global_seeds, computing, others))
        meter.steps, meter.num_seeds = meter.steps + 1, meter.num_seeds + batch.seeds.numel()
        self._settle(self._clock.lag)

    def _settle(self, lag: int) -> None:
        """Wait until no more than `lag` steps are under way; the others enter the meter."""
        meter = self._meter
        while len(self._under_way) > lag:
            done = self._under_way.popleft()
            meter.compute_s += done.computing.seconds
            meter.loss_sum += float(done.loss) * done.num_global_seeds
            for name, lap in done.others.items():
                setattr(meter, name, getattr(meter, name) + (0.0 if lap is None else lap.seconds))

    def _loss(self, batch: MiniBatch, features: Tensor) -> Tensor:
        """This rank's share of the step's loss."""
        with self._precision():
            logits = self._gradients.module(batch.mfgs, features)
            return metrics.seed_loss(logits, batch.labels, batch.num_global_seeds)

    def _train_step(self, batch: MiniBatch) -> Tensor:
        """One optimizer step; returns this rank's share of the loss. The batch loses its features."""
        span = partial(self._ctx.comm.watch.span, step=batch.step, clock=self._clock)
        with span("forward"):
            loss = self._loss(batch, _take_features(batch))
        self._optimizer.zero_grad(set_to_none=True)
        with span("backward"):
            self._gradients.backward(loss)
        with span("optimizer"):
            self._optimizer.step()
        return loss.detach()

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._ctx.device.type, torch.bfloat16, enabled=self._autocast)


def _take_features(batch: MiniBatch) -> Tensor:
    """The features, no longer held by the batch: a model that does not need them for its gradient frees them."""
    features, batch.features = batch.features, None
    assert features is not None  # the loader fetched them
    return features


def _check_device(model: nn.Module, device: torch.device) -> None:
    """Refuse parameters that are elsewhere than the batches will be."""
    found = next((parameter.device for parameter in model.parameters()), device)
    if found != device:
        raise ValueError(f"the model is on {found} but the context's device is {device}; call model.to(ctx.device).")


def _check_same_model(now: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> None:
    """Refuse parameters and buffers of other names or shapes."""
    shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in (now, then)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        is_now, was_then = (found.get(name, "missing") for found in shapes)
        if is_now != was_then:
            raise ValueError(f"another model: {name} was {was_then} and is {is_now}; build the model that was saved.")
