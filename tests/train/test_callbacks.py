"""Trainer.fit and its callbacks: what is called when, what ends training, and that a user's callback gets the rest."""

import json

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import Callback, Checkpointer, CheckpointSettings
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_task

STEPS = 3  # of an epoch: 120 seeds


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32")


@pytest.fixture
def ctx():
    threads = torch.get_num_threads()
    with DistContext(LocalCommunicator()) as context:
        yield context
    torch.set_num_threads(threads)


def make_run(ctx, path, batch_size=40, scheduler=None):
    """(trainer, loader)"""
    loader, model = DistLoader(DistData.load(path, ctx), (3, 3), batch_size), make_model("sage").float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return Trainer(model, optimizer, ctx, scheduler=scheduler and scheduler(optimizer)), loader


class Recorder(Callback):
    """Notes every call; ends training where it is told to."""

    def __init__(self, end_after_step=None, end_after_epoch=None, fail_in_epoch=None):
        self.calls, self.reports = [], []
        self.end_after_step, self.end_after_epoch, self.fail_in_epoch = end_after_step, end_after_epoch, fail_in_epoch

    def on_begin(self, run):
        self.calls.append(("begin", run.step, run.epochs))
        self.run = run

    def on_epoch_begin(self, epoch):
        self.calls.append(("epoch_begin", epoch))
        if epoch == self.fail_in_epoch:
            raise KeyError("of a callback")

    def on_step(self, batch):
        self.calls.append(("step", batch.step))
        return batch.step == self.end_after_step

    def on_epoch(self, report):
        self.calls.append(("epoch", report.stats.epoch, report.step, report.is_last))
        self.reports.append(report)
        return report.stats.epoch == self.end_after_epoch

    def on_end(self):
        self.calls.append(("end",))

    def close(self):
        self.calls.append(("close",))


def test_calls_come_in_order(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    recorder = Recorder()
    trainer.fit(loader, 2, [recorder])
    steps = [("step", step) for step in range(2 * STEPS)]
    assert recorder.calls == [
        ("begin", 0, 2), ("epoch_begin", 0), *steps[:STEPS], ("epoch", 0, STEPS, False),
        ("epoch_begin", 1), *steps[STEPS:], ("epoch", 1, 2 * STEPS, True), ("end",), ("close",),
    ]  # fmt: skip


def test_fit_is_the_epochs_one_by_one(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    recorder = Recorder()
    trainer.fit(loader, 2, [recorder])
    other, again = make_run(ctx, task.path)
    assert [report.stats.loss for report in recorder.reports] == [other.run_epoch(again).loss for _ in range(2)]
    assert all(map(torch.equal, trainer.model.parameters(), other.model.parameters()))


@pytest.mark.parametrize(
    ("ends", "last_calls"),
    [
        ({"end_after_step": 1}, [("step", 1), ("end",), ("close",)]),
        ({"end_after_epoch": 0}, [("epoch", 0, STEPS, False), ("end",), ("close",)]),
    ],
    ids=["after a step", "after an epoch"],
)
def test_a_callback_ends_training_and_all_of_them_hear_of_it(task, ctx, ends, last_calls):
    trainer, loader = make_run(ctx, task.path)
    first, second = Recorder(**ends), Recorder()
    trainer.fit(loader, 5, [first, second])
    assert first.calls == second.calls and first.calls[-3:] == last_calls


class Says(Callback):
    """Returns `answer` of True in epoch 1, of False before; after a step, or after the epoch."""

    def __init__(self, answer, after_step):
        self.answer, self.after_step, self.epochs = answer, after_step, []

    def on_step(self, batch):
        return self.answer(batch.step == STEPS) if self.after_step else None

    def on_epoch(self, report):
        self.epochs.append(report.stats.epoch)
        return None if self.after_step else self.answer(report.stats.epoch == 1)


@pytest.mark.parametrize("after_step", [False, True], ids=["epoch", "step"])
@pytest.mark.parametrize("answer", [np.bool_, torch.tensor], ids=["NumPy", "torch"])
def test_a_true_of_numpy_or_torch_ends_training(task, ctx, answer, after_step):
    trainer, loader = make_run(ctx, task.path)
    says = Says(answer, after_step)
    trainer.fit(loader, 5, [says])
    assert says.epochs == ([0] if after_step else [0, 1])


def test_what_is_no_truth_value_ends_nothing(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    for answer in (lambda _: 1, lambda _: "yes", lambda _: torch.ones(()), lambda _: torch.ones(2, dtype=torch.bool)):
        says = Says(answer, False)
        trainer.fit(loader, loader.epoch + 2, [says])
        assert len(says.epochs) == 2
    assert trainer.run_epoch(loader, on_step=lambda batch: np.bool_(True)).steps == 1


def test_all_are_closed_when_one_fails(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    first, second = Recorder(), Recorder(fail_in_epoch=1)
    with pytest.raises(KeyError, match="of a callback"):
        trainer.fit(loader, 5, [first, second])
    assert first.calls[-2:] == [("epoch_begin", 1), ("close",)] and ("end",) not in first.calls
    assert second.calls[-1] == ("close",)


def test_the_learning_rate_of_a_schedule_is_a_figure(task, ctx):
    trainer, loader = make_run(ctx, task.path, scheduler=lambda it: torch.optim.lr_scheduler.ExponentialLR(it, 0.5))
    recorder = Recorder()
    trainer.fit(loader, 2, [recorder])
    assert [report.figures for report in recorder.reports] == [{"lr": 0.02}, {"lr": 0.01}]


class Adds(Callback):
    """Adds figures, the same objects every epoch."""

    def __init__(self, **figures):
        self.figures = figures

    def on_epoch(self, report):
        report.figures.update(self.figures)


def test_figures_of_numpy_and_torch_are_numbers(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    recorder = Recorder()
    adds = Adds(
        f1=np.float32(0.5), count=np.int64(3), acc=torch.tensor(0.25), best=np.bool_(True), by_class=[0.5, None]
    )
    trainer.fit(loader, 2, [adds, recorder])
    expected = {"f1": 0.5, "count": 3, "acc": 0.25, "best": True, "by_class": [0.5, None]}
    assert [json.loads(json.dumps(report.figures)) for report in recorder.reports] == [expected, expected]


@pytest.mark.parametrize("value", [np.arange(3), torch.zeros(2), [np.float32(1)], {1, 2}], ids=type)
def test_a_figure_that_is_no_json_is_refused_by_callback_and_name(task, ctx, value):
    trainer, loader = make_run(ctx, task.path)
    message = (
        r"Adds.on_epoch set report.figures\['confusion'\] to what cannot be written as JSON \(Object of type .*number"
    )
    with pytest.raises(ValueError, match=message):
        trainer.fit(loader, 2, [Adds(confusion=value)])


class Rereader(Callback):
    """Iterates over the loader that is trained on."""

    def on_begin(self, run):
        self.run = run

    def on_epoch(self, report):
        report.figures["train_acc"] = self.run.trainer.evaluate(self.run.loader)


def test_a_callback_may_evaluate_on_the_training_loader(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    recorder = Recorder()
    trainer.fit(loader, 3, [Rereader(), recorder])
    assert [report.stats.epoch for report in recorder.reports] == [0, 1, 2]
    assert all(0 < report.figures["train_acc"] <= 1 for report in recorder.reports)


def test_what_is_no_callback_is_refused(task, ctx):
    trainer, loader = make_run(ctx, task.path)
    with pytest.raises(
        ValueError, match=r"^callbacks\[1\] is builtin_function_or_method; expected an object of a class"
    ):
        trainer.fit(loader, 1, [Recorder(), print])
    with pytest.raises(ValueError, match="^callbacks is <tests.*Recorder.*>; expected a list of callbacks"):
        trainer.fit(loader, 1, Recorder())


def test_a_checkpointer_that_was_not_begun_is_refused(task, ctx, tmp_path):
    trainer, loader = make_run(ctx, task.path)
    checkpoints = Checkpointer(trainer, loader, CheckpointSettings(directory=tmp_path))
    with pytest.raises(ValueError, match=r"before it was begun; call begin\(resume=...\) first"):
        trainer.fit(loader, 1, [checkpoints])


def test_a_resumed_run_continues_the_step_count_where_nothing_of_its_epoch_is_left(task, ctx, tmp_path):
    """The run was killed between the last step of an epoch and its report."""
    trainer, loader = make_run(ctx, task.path)
    settings = CheckpointSettings(directory=tmp_path, every=STEPS)
    checkpoints = Checkpointer(trainer, loader, settings)
    checkpoints.begin(resume=False)
    trainer.run_epoch(loader, checkpoints.on_step)
    trainer, loader = make_run(ctx, task.path)
    checkpoints, recorder = Checkpointer(trainer, loader, settings), Recorder()
    checkpoints.begin(resume=True)
    trainer.fit(loader, 2, [checkpoints, recorder])
    assert [report.step for report in recorder.reports] == [STEPS, 2 * STEPS]
    assert recorder.reports[0].stats.steps == STEPS


def ended_rank(ctx, path):
    trainer, loader = make_run(ctx, path, batch_size=20)
    recorder = Recorder(end_after_step=1)
    trainer.fit(loader, 5, [recorder])
    return recorder.calls


def test_ranks_end_together(tmp_path):
    first, second = run_distributed(2, ended_rank, args=(make_task(tmp_path, 2, dtype="float32").path,))
    assert first == second and first[-3:] == [("step", 1), ("end",), ("close",)]


def ended_by_one(ctx, path, ends):
    trainer, loader = make_run(ctx, path, batch_size=20)
    recorder = Recorder(**ends if ctx.rank == 1 else {})
    trainer.fit(loader, 5, [recorder])
    return recorder.calls


@pytest.mark.parametrize(
    ("ends", "last_call"),
    [({"end_after_step": 1}, ("step", 1)), ({"end_after_epoch": 0}, ("epoch", 0, STEPS, False))],
    ids=["after a step", "after an epoch"],
)
def test_one_ranks_callback_ends_training_on_all(tmp_path, ends, last_call):
    path = make_task(tmp_path, 2, dtype="float32").path
    first, second = run_distributed(2, ended_by_one, args=(path, ends))
    assert first == second and first[-3:] == [last_call, ("end",), ("close",)]


def hooked_rank(ctx, path, stop_rank):
    trainer, loader = make_run(ctx, path, batch_size=10)
    steps = []

    def hook(batch):
        steps.append(batch.step)
        return ctx.rank == stop_rank and batch.step == 1

    trainer.run_epoch(loader, hook if ctx.rank < 2 else None)
    return steps, trainer.totals().steps


@pytest.mark.parametrize(("stop_rank", "steps"), [(1, 2), (None, 4)])
def test_a_function_of_some_ranks_is_called_after_their_steps_and_ends_the_epoch_on_all(tmp_path, stop_rank, steps):
    path = make_task(tmp_path, 3, dtype="float32").path
    made = list(range(steps))
    assert run_distributed(3, hooked_rank, args=(path, stop_rank)) == [(made, steps), (made, steps), ([], steps)]


def asked_times(ctx, path, directory):
    trainer, loader = make_run(ctx, path, batch_size=20)
    checkpoints = Checkpointer(trainer, loader, CheckpointSettings(directory=directory, every=100))
    checkpoints.begin(resume=False)
    trainer.fit(loader, 1, [checkpoints])
    return ctx.comm.stats()["stop"]["calls"]


def test_ranks_ask_each_other_once_a_step_where_a_checkpointer_alone_may_end_training(tmp_path):
    """Besides that before the epoch, whether to ask, and twice behind it: a signal, a callback's end."""
    path = make_task(tmp_path, 2, dtype="float32").path
    assert run_distributed(2, asked_times, args=(path, tmp_path / "saved")) == [STEPS + 3] * 2


# ---- in a run of the command


class Norm(Callback):
    """A figure of the user's own."""

    def on_begin(self, run):
        self.model = run.trainer.model

    def on_epoch(self, report):
        report.figures["norm"] = float(sum(parameter.detach().norm() for parameter in self.model.parameters()))
        self.measured = dict(report.figures)


def test_figures_of_a_users_callback_reach_every_report(task, ctx, tmp_path, capsys):
    files = {"json": tmp_path / "out.json", "jsonl": tmp_path / "epochs.jsonl"}
    config = fsd.train.TrainConfig(
        data=task.path, epochs=2, batch_size=40, fanouts=(3, 3), hidden=16, threads=1,
        checkpoint_dir=tmp_path / "saved", **files,
    )  # fmt: skip
    norm = Norm()
    result = fsd.train.run(config, ctx, [norm])
    assert norm.measured.keys() == {"val_acc", "test_acc", "norm"}, "evaluation comes before it"
    assert [epoch["norm"] for epoch in result.report["epochs"]][-1] == norm.measured["norm"]
    assert json.loads(files["jsonl"].read_text().splitlines()[-1])["norm"] == norm.measured["norm"]
    assert f"  norm {norm.measured['norm']:.4f}" in capsys.readouterr().out


def test_a_callback_that_ends_a_run_early_leaves_a_whole_report(task, ctx):
    config = fsd.train.TrainConfig(
        data=task.path, epochs=9, batch_size=40, fanouts=(3, 3), hidden=16, threads=1, eval_every=3
    )
    result = fsd.train.run(config, ctx, [Recorder(end_after_epoch=1)])
    assert not result.stopped and len(result.report["epochs"]) == 2
    assert 0 < result.report["test_acc"] <= 1 and 0 < result.report["val_acc"] <= 1


def refused_epochs(ctx, path, first):
    trainer, loader = make_run(ctx, path, batch_size=20)
    loader.set_epoch(first * ctx.rank)
    with pytest.raises(ValueError) as refused:
        trainer.fit(loader, 2 if first else 2 + ctx.rank)
    return str(refused.value)


@pytest.mark.parametrize(("first", "differing"), [(0, "epochs: 2 on rank 0; 3"), (1, "loader.epoch: 0 on rank 0; 1")])
def test_ranks_that_would_train_for_other_epochs_are_refused(tmp_path, first, differing):
    path = make_task(tmp_path, 2, dtype="float32").path
    refusal = f"Trainer.fit: ranks differ in {differing} on rank 1; start all ranks with the same options."
    assert run_distributed(2, refused_epochs, args=(path, first)) == [refusal] * 2
