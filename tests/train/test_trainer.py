"""Trainer: what an epoch reports, exact evaluation, precision, and what is refused."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.metrics import EpochTotals
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_task

ALL = (-1, -1)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32")


def make_trainer(ctx, model=None, *, lr=0.02, precision="fp32"):
    model = make_model("sage").float() if model is None else model
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=lr), ctx, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_training_learns_the_communities(task, ctx, kind, precision):
    data = DistData.load(task.path, ctx)
    train = DistLoader(data, (5, 5), 30, feature_dtype=torch.bfloat16 if precision == "bf16" else None)
    trainer = make_trainer(ctx, make_model(kind).float(), precision=precision)
    losses = [trainer.run_epoch(train).loss for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]
    assert trainer.evaluate(DistLoader(data, ALL, 30, split="test", shuffle=False)) > 0.8


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_training_learns_from_layer_neighbours(task, ctx, kind, precision):
    """Fanouts that leave many rows without a pick."""
    train = DistLoader(DistData.load(task.path, ctx), (2, 1), 30, method="labor", prefetch=2)
    trainer = make_trainer(ctx, make_model(kind).float(), precision=precision)
    losses = [trainer.run_epoch(train).loss for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]


def test_the_epoch_loss_is_the_mean_over_all_seeds(task, ctx):
    data = DistData.load(task.path, ctx)
    model = make_model("sage", dropout=0.0).float()
    batch = next(iter(DistLoader(data, ALL, 1000)))
    expected = F.cross_entropy(model(batch.mfgs, batch.features), batch.labels).item()
    stats = make_trainer(ctx, model, lr=0.0).run_epoch(DistLoader(data, ALL, 33))  # 120 seeds: 33, 33, 33, 21
    assert stats.loss == pytest.approx(expected, rel=1e-6)


def test_an_epoch_reports_where_its_time_went(task, ctx):
    loader = DistLoader(DistData.load(task.path, ctx), (3, 3), 30)
    loader.set_epoch(2)
    stats = make_trainer(ctx).run_epoch(loader)
    assert (stats.epoch, stats.steps, stats.gradients_s) == (2, 4, 0.0)
    assert min(stats.sample_s, stats.fetch_s, stats.compute_s) > 0
    assert stats.sample_s + stats.fetch_s <= stats.wait_s == pytest.approx(stats.seconds - stats.compute_s)
    assert loader.epoch == 3 and ctx.comm.step == -1


def hooked_rank(ctx, path):
    loader, steps = DistLoader(DistData.load(path, ctx), (3, 3), 8, prefetch=2), []
    stats = make_trainer(ctx).run_epoch(loader, lambda batch: steps.append(batch.step) or batch.step == 1)
    threads = [thread.name for thread in threading.enumerate() if thread.name == "fastsample-prefetch"]
    return steps, stats.steps, threads, ctx.comm.step, loader.epoch


def test_a_hook_may_end_the_epoch_on_all_ranks(tmp_path):
    task = make_task(tmp_path, 2, dtype="float32")
    assert run_distributed(2, hooked_rank, args=(task.path,)) == [([0, 1], 2, [], -1, 1)] * 2


def test_what_an_epoch_carries_is_part_of_its_report(task, ctx):
    loader = DistLoader(DistData.load(task.path, ctx), ALL, 30)  # 120 seeds
    trainer = make_trainer(ctx, make_model("sage", dropout=0.0).float(), lr=0.0)
    plain = trainer.run_epoch(loader)
    stats = trainer.run_epoch(loader, carried=EpochTotals(steps=3, num_seeds=30, loss_sum=60.0, seconds=500.0))
    assert stats.steps == 3 + 4 and stats.seconds > 500.0
    assert stats.loss == pytest.approx((60.0 + 120 * plain.loss) / 150, rel=1e-6)


def test_accuracy_is_the_share_of_correct_seeds(task, ctx):
    data = DistData.load(task.path, ctx)
    loader = DistLoader(data, ALL, 7, split="val", shuffle=False)
    model = make_model("sage").float()
    accuracy = make_trainer(ctx, model).evaluate(loader)
    batch = next(iter(DistLoader(data, ALL, 1000, split="val")))
    correct = (model.eval()(batch.mfgs, batch.features).argmax(1) == batch.labels).tolist()
    assert accuracy == sum(correct) / len(correct)


def test_evaluation_repeats_and_leaves_the_parameters_alone(task, ctx):
    loader = DistLoader(DistData.load(task.path, ctx), (2, 2), 20, split="test")
    model = make_model("gat").float()
    before = [parameter.clone() for parameter in model.parameters()]
    trainer = make_trainer(ctx, model)
    assert trainer.evaluate(loader) == trainer.evaluate(loader)
    assert all(map(torch.equal, before, model.parameters()))


def evaluate_rank(ctx, path):
    loader = DistLoader(DistData.load(path, ctx), ALL, 4, split="test", shuffle=False)
    return make_trainer(ctx, make_model("sage")).evaluate(loader), ctx.comm.stats()["metrics"]["calls"]


def test_accuracy_over_ranks_equals_that_of_one_process(tmp_path):
    (tmp_path / "one").mkdir()
    one = make_task(tmp_path / "one", 1)
    several = make_task(tmp_path, 3)
    with DistContext(LocalCommunicator()) as ctx:
        expected, _ = evaluate_rank(ctx, one.path)
    assert run_distributed(3, evaluate_rank, args=(several.path,)) == [(expected, 1)] * 3


def test_fanouts_that_disagree_with_the_layers_are_refused(task, ctx):
    loader = DistLoader(DistData.load(task.path, ctx), (3, 3, 3), 30)
    with pytest.raises(ValueError, match="fanouts has 3 entries but the model has 2 layers; pass one fanout per"):
        make_trainer(ctx).run_epoch(loader)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": None}, "optimizer is a NoneType; expected an object of Optimizer, such as torch.optim.Adam"),
        ({"optimizer": torch.optim.LBFGS([torch.zeros(1)])}, "optimizer is LBFGS, whose step needs a closure; exp"),
        ({"optimizer": torch.optim.SGD}, "optimizer is the class SGD; expected an object of Optimizer"),
        ({"ctx": 3}, "ctx is a int; expected an object of DistContext, such as fsd.DistContext.from_env"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)}, "optimizer is SGD of no parameter of the model"),
        ({"scheduler": "cosine"}, "scheduler is a str; expected an object of LRScheduler, such as torch.optim.lr_sch"),
        ({"scheduler": StepLR}, "scheduler is the class StepLR; expected an object of LRScheduler, such as"),
        ({"scheduler": StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 1)}, "scheduler is StepLR of another optim"),
        ({"allow_nonfinite": "false"}, "allow_nonfinite is 'false'; expected True or False"),
        ({"loss_fn": torch.nn.CrossEntropyLoss}, "CrossEntropyLoss'>; expected None or a function of outputs"),
        ({"loss_fn": "mse"}, "loss_fn is 'mse'; expected None or a function"),
        ({"metrics": {"a": 3}}, "metrics is {'a': 3}; expected functions by name"),
        ({"metrics": "acc"}, "metrics is 'acc'; expected functions by name"),
    ],
)
def test_what_a_trainer_cannot_take_is_refused(ctx, given, message):
    model = make_model("sage")
    arguments = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "ctx": ctx} | given
    with pytest.raises(ValueError, match=message):
        Trainer(model, **arguments)


@pytest.mark.parametrize("given", [None, 3, [], DistLoader])
def test_what_is_no_loader_is_refused(ctx, given):
    trainer = make_trainer(ctx)
    for call in (trainer.run_epoch, trainer.evaluate, lambda loader: trainer.fit(loader, 1)):
        with pytest.raises(ValueError, match="loader is (a|the class) .*; expected a loader of batches, such as"):
            call(given)


def test_an_unknown_precision_is_refused(ctx):
    with pytest.raises(ValueError, match="precision is 'fp8'; expected 'fp32' or 'bf16'"):
        make_trainer(ctx, precision="fp8")
