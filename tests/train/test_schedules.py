"""Learning rates over the epochs: what they are, that a resumed run continues them bit for bit, and another rate on
resume."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau

from fastsample_dist import DistData, DistLoader
from fastsample_dist.train.callbacks import Callback
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings
from fastsample_dist.train.schedules import make_schedule
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer
from tests.grids import grid
from tests.train.task import make_model, make_task

EPOCHS, LR = 4, 0.02


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32")


def cosine(optimizer):
    return make_schedule("cosine", optimizer, epochs=EPOCHS)


class Rates(Callback):
    """Notes the learning rate of every step, and stops a Run after so many."""

    def __init__(self, run, stop_after):
        self.run, self.stop_after, self.rates = run, stop_after, []

    def on_step(self, batch):
        self.rates.append(self.run.trainer.learning_rate)
        if batch.step + 1 == self.stop_after:
            self.run.stop.request()


class Run:
    """A run of EPOCHS epochs of 6 steps with checkpoints; `rates` is the learning rate of every step."""

    def __init__(self, ctx, task, directory, make=cosine, *, lr=LR, seed=0, may_change=()):
        self.loader = DistLoader(DistData.load(task.path, ctx), (3, 3), 20)
        self.model = make_model("sage", seed=seed).float()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.trainer = Trainer(self.model, self.optimizer, ctx, scheduler=make(self.optimizer))
        self.stop = StopSignal()
        settings = CheckpointSettings(directory=directory, every=10**9, options={"lr": lr}, may_change=may_change)
        self.checkpoints = Checkpointer(self.trainer, self.loader, settings, self.stop)

    def train(self, stop_after=None):
        watcher = Rates(self, stop_after)
        self.trainer.fit(self.loader, EPOCHS, [watcher, self.checkpoints])
        self.rates = watcher.rates
        return self.rates


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine", [(1 + math.cos(math.pi * epoch / EPOCHS)) / 2 for epoch in range(EPOCHS)]),
        ("linear", [1 - epoch / EPOCHS for epoch in range(EPOCHS)]),
        ("step", [1, 1, 0.5, 0.5]),
    ],
)
def test_the_rate_of_every_epoch(task, ctx, tmp_path, name, expected):
    def make(optimizer):
        return make_schedule(name, optimizer, epochs=EPOCHS, step_epochs=2, gamma=0.5)

    run = Run(ctx, task, tmp_path, make)
    run.checkpoints.begin(resume=False)
    assert run.train() == pytest.approx([LR * factor for factor in expected for _ in range(6)], rel=1e-12)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="the schedule is 'rising'; expected one of constant, cosine, linear, step"):
        make_schedule("rising", torch.optim.SGD([torch.zeros(1)], lr=1.0), epochs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected an integer >= 1"),
        ({"step_epochs": 2.0}, "step_epochs is 2.0; expected an integer >= 1"),
        ({"gamma": "0.5"}, "gamma is '0.5'; expected a positive number"),
        ({"gamma": True}, "gamma is True; expected a positive number"),
    ],
)
def test_numbers_of_a_schedule_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_schedule("step", torch.optim.SGD([torch.zeros(1)], lr=1.0), **{"epochs": 2} | options)


SCHEDULERS = {
    "cosine": cosine,
    "milestones": lambda optimizer: MultiStepLR(optimizer, [1, 3], gamma=0.3),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS + 1),
    "function": lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.7**epoch),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9),
}


@pytest.mark.parametrize("stop_after", grid([4, 6, 13], gate=[6]))  # 6: an epoch's last step
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_resumed_run_continues_the_schedule_bit_for_bit(task, ctx, tmp_path, make, stop_after):
    whole = Run(ctx, task, tmp_path / "whole", make)
    whole.checkpoints.begin(resume=False)
    rates = whole.train()
    assert len(set(rates)) > 1
    first = Run(ctx, task, tmp_path / "saved", make)
    first.checkpoints.begin(resume=False)
    first.train(stop_after)
    second = Run(ctx, task, tmp_path / "saved", make, seed=9)
    second.checkpoints.begin(resume=True)
    assert first.rates + second.train() == rates
    assert all(map(torch.equal, second.model.parameters(), whole.model.parameters()))


def interrupted(ctx, task, tmp_path, make):
    first = Run(ctx, task, tmp_path, make)
    first.checkpoints.begin(resume=False)
    first.train(8)


def test_another_rate_on_resume_is_refused_unless_it_is_allowed(task, ctx, tmp_path):
    interrupted(ctx, task, tmp_path, cosine)
    with pytest.raises(ValueError, match=r"was made with lr 0\.02 but this run has lr 0\.05; pass the same"):
        Run(ctx, task, tmp_path, lr=0.05).checkpoints.begin(resume=True)
    run = Run(ctx, task, tmp_path, lr=0.05, may_change=("lr",))
    run.checkpoints.begin(resume=True)
    run.trainer.set_learning_rate(0.05)
    factors = [(1 + math.cos(math.pi * epoch / EPOCHS)) / 2 for epoch in (1, 2, 3)]
    expected = [0.05 * factor for factor, steps in zip(factors, (4, 6, 6), strict=True) for _ in range(steps)]
    assert run.train() == pytest.approx(expected, rel=1e-12)


def test_another_constant_rate_is_exactly_that(task, ctx, tmp_path):
    interrupted(ctx, task, tmp_path, lambda optimizer: None)
    run = Run(ctx, task, tmp_path, lambda optimizer: None, lr=0.0037, may_change=("lr",))
    run.checkpoints.begin(resume=True)
    assert run.trainer.learning_rate == LR
    run.trainer.set_learning_rate(0.0037)
    assert set(run.train()) == {0.0037}


def test_a_run_without_the_schedule_is_refused(task, ctx, tmp_path):
    interrupted(ctx, task, tmp_path, cosine)
    with pytest.raises(
        ValueError, match="does not fit: it was made with a learning-rate scheduler, this run is without one; pass"
    ):
        Run(ctx, task, tmp_path, lambda optimizer: None).checkpoints.begin(resume=True)
