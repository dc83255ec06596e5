"""What is minimised and what is measured, by the kind of labels; both exact over any number of batches and ranks.

A loss function gives one loss per seed, so that the ranks' shares add up to the mean over the seeds of all ranks
(MiniBatch.mean_loss). A metric is a function of sums over seeds: those of batches and ranks add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops import checks
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.metrics import cross_entropy, global_sum, num_correct, seed_loss

LossFunction = Callable[[Tensor, Tensor], Tensor]
RELATIVE_TOLERANCE = 1e-4  # of a mean of 16 numbers beside the mean of means of two each, in 32-bit floats
CHECKED_SEEDS = 16  # few, so that classes with different weights show


@dataclass(frozen=True)
class SumMetric:
    """A metric that is a function of sums over seeds.

    Attributes:
      sums: called with (outputs, labels) of a batch, which may have no rows -> tensor [k] of sums over its seeds.
      value: called with the k sums over all batches and ranks -> the metric.
    Raises:
      ValueError: one of them cannot be called.
    """

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Sequence[float]], float]

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            checks.require(callable(given), f"{name} is {given!r}; expected a function.")


Metric = SumMetric | Callable[[Tensor, Tensor], Tensor]


def check_metrics(metrics: object) -> None:
    """Refuse what is no table of metrics by name.

    Raises:
      ValueError: as said.
    """
    found = [*metrics.values()] if isinstance(metrics, Mapping) else [None]
    if not all(isinstance(metric, SumMetric) or callable(metric) for metric in found):
        raise ValueError(f"metrics is {metrics!r}; expected functions by name, such as {{'accuracy': correct}}.")


def as_metric(metric: Metric) -> SumMetric:
    """A SumMetric as it is; of a function that gives one value per seed, the mean over all seeds."""
    if isinstance(metric, SumMetric):
        return metric

    def sums(outputs: Tensor, labels: Tensor) -> Tensor:
        count = labels.shape[0]
        if count == 0:
            return torch.zeros(2, dtype=torch.float64)
        values = metric(outputs, labels)
        if values.shape != (count,):
            raise ValueError(
                f"a metric gave shape {tuple(values.shape)}; expected one value for each of the {count} seeds; return "
                "those, or pass a SumMetric."
            )
        return torch.tensor([float(values.double().sum()), count], dtype=torch.float64)

    return SumMetric(sums, lambda totals: _ratio(totals[0], totals[1]))


def multilabel_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy with logits, [n]: of every seed the mean over its labels that are not missing.

    Args:
      outputs: [n, C] logits.
      labels: float [n, C]: 0, 1, or missing (NaN or negative).
    Raises:
      ValueError: the shapes differ.
    """
    _check_columns(outputs, labels)
    present = labels >= 0  # NaN is not
    known = torch.where(present, labels, 0).to(outputs.dtype)
    losses = F.binary_cross_entropy_with_logits(outputs, known, reduction="none")
    return _mean_of_present(losses, present)


def regression_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared error, [n]: of every seed the mean over its targets that are not missing.

    Args:
      outputs: [n, C].
      labels: float [n, C], NaN: missing.
    Raises:
      ValueError: the shapes differ.
    """
    _check_columns(outputs, labels)
    present = ~labels.isnan()
    return _mean_of_present((outputs - torch.where(present, labels, 0)).square(), present)


def _mean_of_present(losses: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, losses, 0).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def _check_columns(outputs: Tensor, labels: Tensor) -> None:
    if outputs.shape != labels.shape:
        raise ValueError(
            f"the model gives {tuple(outputs.shape)} but labels are {tuple(labels.shape)}; build it with "
            "data.num_outputs columns."
        )


def _accuracy_sums(outputs: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor([num_correct(outputs, labels), int((labels >= 0).sum())], dtype=torch.float64)


def _label_counts(outputs: Tensor, labels: Tensor) -> Tensor:
    """[true positives, false positives, false negatives, correct, present] over the labels that are not missing."""
    present, positive, predicted = labels >= 0, labels > 0.5, outputs > 0
    counts = (predicted & positive, predicted & ~positive & present, ~predicted & positive)
    correct = (predicted == positive) & present
    return torch.stack([count.sum() for count in (*counts, correct, present)]).double().cpu()


def _error_sums(outputs: Tensor, labels: Tensor) -> Tensor:
    """[sum of squared errors, sum of absolute errors, targets that are not missing]."""
    present = ~labels.isnan()
    errors = torch.where(present, outputs.double() - labels.double(), 0)
    return torch.stack([errors.square().sum(), errors.abs().sum(), present.sum().double()]).cpu()


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


LOSSES: Mapping[str, LossFunction | None] = {
    "classification": None,  # metrics.seed_loss
    "multilabel": multilabel_loss,
    "regression": regression_loss,
}
"""By task (DistData.task)."""

METRICS: Mapping[str, Mapping[str, SumMetric]] = {
    "classification": {"acc": SumMetric(_accuracy_sums, lambda sums: _ratio(sums[0], sums[1]))},
    "multilabel": {
        "f1": SumMetric(_label_counts, lambda sums: _ratio(2 * sums[0], 2 * sums[0] + sums[1] + sums[2])),
        "label_acc": SumMetric(_label_counts, lambda sums: _ratio(sums[3], sums[4])),
    },
    "regression": {
        "rmse": SumMetric(_error_sums, lambda sums: math.sqrt(_ratio(sums[0], sums[2]))),
        "mae": SumMetric(_error_sums, lambda sums: _ratio(sums[1], sums[2])),
    },
}
"""By task: accuracy; micro-averaged F1 at a logit of 0 and the share of labels that are right; root of the mean squared
and mean absolute error over all targets. Missing labels and targets count nowhere."""


class MetricSums:
    """The sums of metrics over batches, and in the end over ranks.

    Args:
      metrics: by name.
    """

    def __init__(self, metrics: Mapping[str, SumMetric]) -> None:
        self._metrics = metrics
        self._sums: dict[str, Tensor] = {}

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Count the seeds of one batch; it may have none.

        Args:
          outputs: [n, columns] of the model.
          labels: of the same seeds.
        """
        wide = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
        for name, metric in self._metrics.items():
            found = torch.as_tensor(metric.sums(wide, labels), dtype=torch.float64).reshape(-1).cpu()
            self._sums[name] = found + self._sums[name] if name in self._sums else found

    def values(self, comm: Communicator) -> dict[str, float]:
        """The metrics over all ranks. Purpose "metrics". Collective: every rank must call this, after some `add`."""
        sizes = [self._sums[name].numel() for name in self._metrics]
        totals = iter(global_sum(comm, torch.cat([self._sums[name] for name in self._metrics]).tolist()))
        sums = [[next(totals) for _ in range(size)] for size in sizes]
        return {name: float(metric.value(own)) for (name, metric), own in zip(self._metrics.items(), sums, strict=True)}


def loss_share(loss_fn: LossFunction | None, outputs: Tensor, batch: MiniBatch) -> Tensor:
    """This rank's share of the step's mean loss; see `Trainer` for what `loss_fn` may give.

    An empty batch has the share 0 with gradients of 0, and `loss_fn` is not called.
    """
    assert batch.labels is not None  # the trainer's loaders have labels
    if loss_fn is None and batch.seed_weights is None:
        return seed_loss(outputs, batch.labels, batch.num_global_seeds)
    wide = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if batch.seeds.numel() == 0:
        return wide.sum() * 0
    losses = _class_losses(wide, batch.labels) if loss_fn is None else loss_fn(wide, batch.labels)
    return losses * batch.loss_weight if losses.dim() == 0 else batch.mean_loss(losses)


def _class_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, [n]."""
    return cross_entropy(outputs, labels, reduction="none")


def check_reduction(loss_fn: LossFunction, outputs: Tensor, batch: MiniBatch) -> None:
    """Refuse a loss function whose single number is not the mean over the seeds: ranks' shares would not add up.

    Raises:
      ValueError: it gives no tensor; its number for some seeds, spread over the classes, is not the mean of those for
        two of them each; a single number for seeds with weights.
    """
    labels, rows = batch.labels, outputs.detach().float()
    assert labels is not None
    if labels.shape[0] < 2:
        return
    seeds = _spread(labels)
    with torch.no_grad():
        whole = loss_fn(rows[seeds], labels[seeds])
        if not isinstance(whole, Tensor):
            raise ValueError(
                f"loss_fn gives a {type(whole).__name__}; expected a tensor: one loss per seed, or their mean."
            )
        if whole.dim() > 0:
            return
        _ = batch.loss_weight  # refuses weights
        groups = seeds.split(2 if seeds.numel() > 2 else 1)
        means = torch.stack([loss_fn(rows[group], labels[group]) for group in groups])
        mean, tolerance = means.mean(), 1e-6 + RELATIVE_TOLERANCE * float(means.abs().max())
    if abs(whole - mean) > tolerance and whole.isfinite() and mean.isfinite():
        raise ValueError(
            f"loss_fn gives {float(whole):g} for {seeds.numel()} seeds but {float(mean):g} as the mean over groups of "
            "them, so it is not the mean over the seeds and ranks could not share it; return one loss per seed "
            '(reduction="none").'
        )


def _spread(labels: Tensor) -> Tensor:
    """Positions of at most CHECKED_SEEDS seeds, an even number of them, over all labels where a seed has one."""
    count = labels.shape[0]
    order = labels.argsort() if labels.dim() == 1 else torch.arange(count, device=labels.device)
    taken = min(count, CHECKED_SEEDS) // 2 * 2
    return order[torch.linspace(0, count - 1, taken, dtype=torch.float64).round().long().to(order.device)]
