"""Learning rates over the epochs: a name and some numbers become a torch.optim.lr_scheduler; any of them is stepped."""

from __future__ import annotations

import warnings

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau, StepLR

from fastsample_dist.ops import checks

SCHEDULES = ("constant", "cosine", "linear", "step")


def make_schedule(
    name: str, optimizer: Optimizer, *, epochs: int, step_epochs: int = 10, gamma: float = 0.1
) -> LRScheduler | None:
    """The schedule, to be stepped once after every epoch (Trainer does); None for "constant".

    Args:
      name: one of SCHEDULES.
      optimizer: at the learning rate where the schedule begins.
      epochs: over which "cosine" and "linear" fall to 0, which they reach after the last one.
      step_epochs, gamma: "step" multiplies by gamma every so many epochs.
    Raises:
      ValueError: an unknown name, epochs or step_epochs that are no integers >= 1, or a gamma that is no number > 0.
    """
    if name not in SCHEDULES:
        raise ValueError(f"the schedule is {name!r}; expected one of {', '.join(SCHEDULES)}.")
    checks.positive("gamma", checks.plain(gamma))
    epochs, step_epochs = checks.whole("epochs", epochs, 1), checks.whole("step_epochs", step_epochs, 1)
    if name == "cosine":
        return CosineAnnealingLR(optimizer, T_max=epochs)
    if name == "linear":
        return LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=epochs)
    return StepLR(optimizer, step_size=step_epochs, gamma=gamma) if name == "step" else None


def end_epoch(scheduler: LRScheduler, loss: float) -> None:
    """Step a scheduler, also where the epoch was resumed after its last step and the optimizer has made none yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))


def set_learning_rate(optimizer: Optimizer, scheduler: LRScheduler | None, lr: float) -> None:
    """Continue with another learning rate; the scheduler's factors, and those between groups, apply to it."""
    for group in optimizer.param_groups:
        initial = group.get("initial_lr", group["lr"])
        if initial == lr:
            continue
        group["lr"] = lr if group["lr"] == initial else lr * (group["lr"] / initial)
        if "initial_lr" in group:
            group["initial_lr"] = lr
    if scheduler is not None and hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
