"""Evaluation of a run of the command: which splits, when, and with which neighbours; a callback of `Trainer.fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.sampler import HopwiseSampler
from fastsample_dist.train.callbacks import Callback, EpochReport
from fastsample_dist.train.config import TrainConfig
from fastsample_dist.train.inference import layerwise, measure
from fastsample_dist.train.metrics import CommTally
from fastsample_dist.train.objectives import METRICS
from fastsample_dist.train.trainer import Trainer

if TYPE_CHECKING:
    from rich.progress import Progress


class Evaluation(Callback):
    """Measures the val split every `eval_every` epochs, and val and test after the last one.

    Args:
      config: when, and whether with sampled or all neighbours.
      trainer: whose model is measured.
      loaders: by split; "val" and "test" where neighbours are sampled.
      progress: shows how far evaluation with all neighbours has got.
      sampler: of evaluation layer by layer, see `layerwise`.
    Attributes:
      progress: as given.
      tally: what evaluation communicated.
    """

    def __init__(
        self, config: TrainConfig, trainer: Trainer, loaders: dict[str, BatchLoader], progress: Progress,
        sampler: HopwiseSampler | None = None,
    ) -> None:  # fmt: skip
        self._config, self._trainer, self._loaders, self.progress = config, trainer, loaders, progress
        self._sampler = sampler
        self._data = loaders["train"].data
        self.tally = CommTally(self._data.ctx.comm)

    def on_epoch(self, report: EpochReport) -> None:
        """Add "val_<metric>" and "test_<metric>" to the report's figures. Collective: every rank must call this."""
        every = self._config.eval_every
        if every > 0 and (report.is_last or (report.stats.epoch + 1) % every == 0):
            with self._data.ctx.comm.watch.span("evaluate"):
                report.figures.update(self.measure(["val", "test"] if report.is_last else ["val"]))

    def measure(self, splits: list[str]) -> dict[str, float]:
        """The metrics of splits, as "<split>_<metric>". Collective: every rank must call this."""
        with self.tally:
            if self._config.eval == "sampled":
                return by_name({split: self._sampled(split) for split in splits})
            bar = self.progress.add_task("evaluation", total=None)
            scores = layerwise(
                self._trainer.model, self._data, self._config.batch_size,
                on_batch=lambda done, total: self.progress.update(bar, completed=done, total=total),
                sampler=self._sampler,
            )  # fmt: skip
            self.progress.remove_task(bar)
            metrics = METRICS[self._data.task]
            return by_name({split: measure(scores, self._data, split, metrics) for split in splits})

    def _sampled(self, split: str) -> dict[str, float]:
        found = self._trainer.evaluate(self._loaders[split])
        assert isinstance(found, dict)  # the trainer was given its metrics by name
        return found


def by_name(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """{"val": {"acc": 0.7}} -> {"val_acc": 0.7}."""
    return {f"{split}_{name}": value for split, values in found.items() for name, value in values.items()}


def score_names(data: DistData) -> list[str]:
    """Names of all that a run on these labels measures."""
    return [f"{split}_{name}" for split in ("val", "test") for name in METRICS[data.task]]


def scores_line(measured: dict[str, float | None]) -> str:
    """ "test accuracy 0.7312", or what else was measured of the test split."""
    found = {name.removeprefix("test_"): value for name, value in measured.items() if name.startswith("test_")}
    return "test " + ", ".join(f"{'accuracy' if name == 'acc' else name} {value:.4f}" for name, value in found.items())


def neighbours_seen(config: TrainConfig) -> str:
    """What evaluation sees, in words."""
    if config.has_walks:
        return f"neighbours by walks, {'once per node and layer' if config.eval == 'full' else 'sampled'}"
    if config.eval == "full":
        return "all neighbours"
    return f"neighbours sampled with {','.join(map(str, config.eval_fanouts))}"
