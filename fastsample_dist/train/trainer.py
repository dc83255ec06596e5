"""Trainer: the loop over mini-batches, one optimizer step each, on all ranks at once.

    loss share of own seeds -> backward, gradients summed over ranks -> the same optimizer step on every rank

Nothing here knows the launcher, the scheme or the model: they come in through the context, the loader and the
module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.base import MiniBatch
from fastsample_dist.train import metrics
from fastsample_dist.train.gradients import wrap_model
from fastsample_dist.train.metrics import EpochStats

PRECISIONS = ("fp32", "bf16")


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
      ValueError: an unknown precision; the ranks' models differ in size.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, ctx: DistContext, *, precision: str = "fp32"
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; expected 'fp32' or 'bf16'.")
        self.model = model
        self._optimizer = optimizer
        self._ctx = ctx
        self._autocast = precision == "bf16"
        self._gradients = wrap_model(model, ctx)

    def run_epoch(self, loader: DistLoader, on_step: Callable[[], object] | None = None) -> EpochStats:
        """Train on every batch of one epoch.

        Collective: every rank must call this, with loaders of the same arguments.

        Args:
          loader: one iteration of it is the epoch.
          on_step: called after every step, to show progress.
        Raises:
          ValueError: the loader's fanouts disagree with the model's layers, or a batch does not fit the model.
          RuntimeError: a collective failed or passed its deadline; names rank, step and purpose.
        """
        epoch, self._gradients.wait_s = loader.epoch, 0.0
        loss_sum = sample_s = fetch_s = compute_s = 0.0
        steps = num_seeds = 0
        started_s = time.perf_counter()
        self.model.train()
        for batch in self._in_step(loader):
            begin_s = time.perf_counter()
            loss_sum += self._train_step(batch) * batch.num_global_seeds
            compute_s += time.perf_counter() - begin_s
            sample_s, fetch_s = sample_s + batch.sample_s, fetch_s + batch.fetch_s
            steps, num_seeds = steps + 1, num_seeds + batch.seeds.numel()
            if on_step is not None:
                on_step()
        seconds, gradients_s = time.perf_counter() - started_s, self._gradients.wait_s
        own = [loss_sum, num_seeds, seconds, sample_s, fetch_s, compute_s, gradients_s]
        loss_sum, num_seeds, *times = metrics.global_sum(self._ctx.comm, own)
        seconds, sample_s, fetch_s, compute_s, gradients_s = (total / self._ctx.world_size for total in times)
        return EpochStats(
            epoch=epoch, loss=loss_sum / num_seeds, steps=steps, seconds=seconds, sample_s=sample_s, fetch_s=fetch_s,
            wait_s=seconds - compute_s, compute_s=compute_s - gradients_s, gradients_s=gradients_s,
        )  # fmt: skip

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

    def _in_step(self, batches: Iterable[MiniBatch]) -> Iterator[MiniBatch]:
        """The batches; while one is in use, errors of collectives name its step."""
        for batch in batches:
            self._ctx.comm.step = batch.step
            yield batch
        self._ctx.comm.step = -1

    def _train_step(self, batch: MiniBatch) -> float:
        """One optimizer step; returns this rank's share of the loss. The batch loses its features."""
        with self._precision():
            logits = self._gradients.module(batch.mfgs, _take_features(batch))
            loss = metrics.seed_loss(logits, batch.labels, batch.num_global_seeds)
        self._optimizer.zero_grad(set_to_none=True)
        self._gradients.backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._ctx.device.type, torch.bfloat16, enabled=self._autocast)


def _take_features(batch: MiniBatch) -> Tensor:
    """The features, no longer held by the batch: a model that does not need them for its gradient frees them."""
    features, batch.features = batch.features, None
    assert features is not None  # the loader fetched them
    return features
