"""Callbacks: what a training run calls besides the trainer, for reports, checkpoints and whatever a user adds.

    on_begin(run); for every epoch: on_epoch_begin(epoch), on_step(batch) after every step, on_epoch(report); on_end()

and close() in any case, after an error too. With roles (pipeline/tasks.py) ranks do different work and meet only where
an epoch ends, where a callback asks for it (`meet_every`, `Run.request_meeting`) and where training is stopped: there
on_step is called once, for the last step that was made. on_update is called after every step, on the ranks that make
its update, with roles the first one of every machine. The progress bar, the log files, evaluation and checkpoints of
`fastsample-train` are callbacks as well (report.py, evaluation.py, checkpoint.py), so that a user's callback gets what
they get.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.metrics import EpochMeter, EpochStats, EpochTotals
from fastsample_dist.train.stop import any_rank_stops


class RunTrainer(Protocol):
    """What a callback may use of the `Trainer` (described in trainer.py)."""

    model: nn.Module

    def totals(self) -> EpochTotals: ...
    @property
    def own_totals(self) -> dict[str, int | float]: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: dict[str, Any]) -> None: ...
    def set_learning_rate(self, lr: float) -> None: ...
    @property
    def learning_rate(self) -> float: ...
    def evaluate(self, loader: BatchLoader) -> float | dict[str, float]: ...


@dataclass(frozen=True)
class Meeting:
    """Where ranks with roles meet; takes the place of a batch in `Callback.on_step`.

    Attributes:
      epoch: under way.
      step: global step that was made last, on all ranks; may be that of an earlier epoch where none of this one was.
    """

    epoch: int
    step: int


@dataclass(kw_only=True)
class Run:
    """What is being trained, the same object during a whole `Trainer.fit`.

    Attributes:
      trainer: with the model.
      loader: of the training batches.
      epochs: after which training ends.
      step: global steps done.
      carried: totals of the part of the epoch that an earlier run did; a checkpoint sets it in `on_begin`.
    """

    trainer: RunTrainer
    loader: BatchLoader
    epochs: int
    step: int = 0
    carried: EpochTotals = field(default_factory=EpochTotals)

    def request_meeting(self) -> None:
        """With roles, have all ranks meet as soon as the steps under way are done. Any rank may call this at any time,
        also in the handler of a signal. Without roles every step is a meeting, and this does nothing.
        """
        executor = getattr(self.loader, "executor", None)
        if executor is not None:
            executor.request_stop()


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """One epoch, finished.

    Attributes:
      stats: its loss and times, over all ranks.
      step: global steps done.
      is_last: no epoch comes after it.
      figures: what else is known about it, by name, such as {"lr": 0.01, "val_acc": 0.7}; JSON values, numbers may
        be NumPy's or torch's. Callbacks may add to it; those after them in the list see it, the log files among them.
    """

    stats: EpochStats
    step: int
    is_last: bool
    figures: dict[str, Any] = field(default_factory=dict)


class Callback:
    """Derive from it and override the methods you need.

    Every rank has callbacks of its own, and all ranks call them at the same points: a callback may run a collective
    where all ranks do, and prints on `run.loader.data.ctx.rank == 0`.

    Attributes:
      agrees: what `on_step` returns is the same on every rank, which need not ask each other after every step then
        (8 bytes).
    """

    agrees = False

    def on_begin(self, run: Run) -> None:
        """Before the first epoch of this process."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before the first batch of an epoch, which is counted from 0."""

    @property
    def meet_every(self) -> int | None:
        """With roles, on_step is called after the steps whose number, counted from 1, is a multiple of this too; None:
        this callback asks for none. The same on all ranks; what all callbacks ask for is compared before an epoch.
        """
        return None

    def on_update(self, step: int) -> None:
        """After an optimizer step, on every rank that makes it: without roles all of them, with roles the first one of
        every machine. For progress: runs no collective.
        """

    def on_step(self, batch: MiniBatch | Meeting) -> bool | None:
        """After an optimizer step, with roles after the last one before a meeting; the batch has lost its features.
        True, on any rank, ends training here on all of them.
        """

    def on_epoch(self, report: EpochReport) -> bool | None:
        """After a whole epoch. True, on any rank, ends training here on all of them."""

    def on_end(self) -> None:
        """When training has ended, after its last epoch or because a callback ended it. May run collectives."""

    def close(self) -> None:
        """Always the last call, after an error too: release what is held. Runs no collective."""


class Callbacks:
    """The callbacks of one run, called in the order of the list.

    Args:
      callbacks: each a Callback.
      run: what they are part of.
    Attributes:
      stopped: one of them has ended training, on this rank.
    Raises:
      ValueError: something that is no list, or holds what is not a Callback.
    """

    def __init__(self, callbacks: Iterable[Callback], run: Run) -> None:
        if not isinstance(callbacks, Iterable):
            raise ValueError(f"callbacks is {callbacks!r}; expected a list of callbacks, such as [Checkpointer(...)].")
        self._all: Sequence[Callback] = tuple(callbacks)
        for number, callback in enumerate(self._all):
            if not isinstance(callback, Callback):
                raise ValueError(
                    f"callbacks[{number}] is {type(callback).__name__}; expected an object of a class that derives "
                    "from fastsample_dist.train.Callback."
                )
        self._after_steps = [one for one in self._all if type(one).on_step is not Callback.on_step]
        self._after_updates = [one for one in self._all if type(one).on_update is not Callback.on_update]
        self._run = run
        self.stopped = False

    def begin(self) -> None:
        """Call every `on_begin`."""
        for callback in self._all:
            callback.on_begin(self._run)

    def begin_epoch(self, epoch: int) -> None:
        """Call every `on_epoch_begin`."""
        for callback in self._all:
            callback.on_epoch_begin(epoch)

    @property
    def meet_every(self) -> frozenset[int]:
        """What the callbacks ask for."""
        return frozenset(callback.meet_every for callback in self._all if callback.meet_every is not None)

    def after_update(self, step: int) -> None:
        """Call every `on_update`."""
        for callback in self._after_updates:
            callback.on_update(step)

    @property
    def agrees(self) -> bool:
        """Whether `after_step` returns the same on every rank, as `Callback.agrees`."""
        return all(callback.agrees for callback in self._after_steps)

    def after_step(self, batch: MiniBatch | Meeting) -> bool:
        """Call every `on_step`; whether one of them ends training, on this rank."""
        self._run.step = batch.step + 1
        for callback in self._after_steps:
            self.stopped |= checks.plain(callback.on_step(batch)) is True
        return self.stopped

    def after_epoch(self, report: EpochReport) -> None:
        """Call every `on_epoch`. Raises ValueError: a figure that one has added is no JSON value."""
        for callback in self._all:
            before = dict(report.figures)
            self.stopped |= checks.plain(callback.on_epoch(report)) is True
            _make_plain(report.figures, before, callback)

    def end(self) -> None:
        """Call every `on_end`."""
        for callback in self._all:
            callback.on_end()

    def closing(self) -> ExitStack:
        """A context at whose end every `close` is called, also where one of them fails."""
        stack = ExitStack()
        for callback in reversed(self._all):
            stack.callback(callback.close)
        return stack


class StepHook:
    """A function that is called after the steps of one epoch, and the end of the epoch on all ranks where it returns
    True on any of them. Ranks may have none.

    Collective: every rank must construct this.

    Args:
      function: of the batch or the meeting; a method of an object whose `agrees` is true returns the same on all ranks.
      meter: of the epoch; the calls' time enters its hook_s.
    """

    def __init__(
        self, comm: Communicator, function: Callable[[MiniBatch | Meeting], object] | None, meter: EpochMeter
    ) -> None:
        self._comm, self._function, self._meter = comm, function, meter
        alone = function is not None and not getattr(getattr(function, "__self__", None), "agrees", False)
        self._ask = any_rank_stops(comm, alone)

    def __call__(self, batch: MiniBatch | Meeting) -> bool:
        """Whether the epoch ends here. Collective: every rank must call this, after the same step."""
        if self._function is None and not self._ask:
            return False
        begin_s = time.perf_counter()
        stop = self._function is not None and checks.plain(self._function(batch)) is True
        if self._ask:
            stop = any_rank_stops(self._comm, stop)
        self._meter.hook_s += time.perf_counter() - begin_s
        return stop


def _make_plain(figures: dict[str, Any], before: dict[str, Any], callback: Callback) -> None:
    """Store `checks.plain` of what a callback has added; refuse what the files of figures cannot hold, naming it."""
    for name, value in figures.items():
        if name in before and before[name] is value:
            continue
        figures[name] = checks.plain(value)
        try:
            json.dumps({name: figures[name]})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{type(callback).__name__}.on_epoch set report.figures[{name!r}] to what cannot be written as JSON "
                f"({error}); set it to a number, text or a list."
            ) from None
