"""Runs with roles that are stopped, killed or interrupted, and resumed: they end as if nothing had been."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist import DistData, DistLoader, FeatureCache
from fastsample_dist.pipeline.position import LoaderPosition
from fastsample_dist.testing import RankError, run_distributed
from fastsample_dist.train import Callback, Checkpointer, CheckpointSettings, NonFiniteError, factored_epoch
from fastsample_dist.train.checkpoint_files import CheckpointFiles
from fastsample_dist.train.report import CacheFigures, History, RoleFigures
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer
from tests.forked import run_forked
from tests.grids import grid
from tests.interrupted import interrupt
from tests.train.task import make_model, make_task
from tests.waiting import ENOUGH_S, NEVER_S

PARTS, BATCH, FANOUTS, EPOCHS, EVERY = 4, 8, (4, 3), 2, 3
SCRIPT = Path(__file__).with_name("watched_roles.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), PARTS, dtype="float64").path


class Stops(Callback):
    """Sends a signal to another rank after an update; keeps what it saw of the epochs."""

    def __init__(self, step=None, pid=None):
        self.step, self.pid, self.losses, self.updates = step, pid, [], []

    def on_update(self, step):
        self.updates.append(step)
        if step == self.step:
            os.kill(self.pid, signal.SIGTERM)

    def on_epoch(self, report):
        self.losses.append((report.stats.epoch, report.stats.steps, report.stats.loss))


def train(ctx, path, directory, roles, *, staleness=0, stop_after=None):
    """A run, resumed if there is a checkpoint: (parameters, losses of whole epochs, updates of this rank, stopped)."""
    data, model = DistData.load(path, ctx), make_model("sage")
    loader = DistLoader(data, FANOUTS, BATCH, roles=roles, staleness=staleness)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
    pids = ctx.comm.all_gather_object(os.getpid(), purpose="setup")
    with StopSignal() as stop:
        checkpoints = Checkpointer(trainer, loader, CheckpointSettings(directory=directory, every=EVERY), stop)
        checkpoints.begin(resume=True)
        callback = Stops(stop_after, pids[-1])
        trainer.fit(loader, EPOCHS, [callback, checkpoints])
    return [p.detach().clone() for p in model.parameters()], callback.losses, callback.updates, checkpoints.stopped


def stop_and_resume(ctx, path, directory):
    """How runs end that were stopped by a signal to a sampler and resumed with other roles; and one that was not."""
    found = {"whole": train(ctx, path, directory / "whole", "1+3")}
    for before, after in (("2+2", "1+3"), ("2+2", "none"), ("none", "2+2")):
        first = train(ctx, path, directory / after, before, stop_after=3)
        found[before, after] = (*train(ctx, path, directory / after, after), first)
    train(ctx, path, directory / "left", "3+1", stop_after=3)
    return found


@pytest.fixture(scope="module")
def stopped(path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    return run_distributed(4, stop_and_resume, ENOUGH_S, (path, directory)), directory


def test_a_signal_to_a_sampler_stops_all_and_other_roles_resume_bit_for_bit(stopped):
    for rank, found in enumerate(stopped[0]):
        parameters, losses, updates, _, first = found["2+2", "1+3"]
        expected, means, steps, _ = found["whole"]
        assert first[3] and all(map(torch.equal, parameters, expected))
        assert first[2] + updates == steps == (list(range(len(steps))) if rank == 0 else [])
        assert [loss[:2] for loss in losses] == [loss[:2] for loss in means]
        assert [loss[2] for loss in losses] == pytest.approx([loss[2] for loss in means], rel=1e-12)


@pytest.mark.parametrize("roles", [("2+2", "none"), ("none", "2+2")])
def test_roles_and_none_take_up_each_others_runs(stopped, roles):
    """The sums of four gradients are added in another order."""
    for found in stopped[0]:
        parameters, losses, *_, first = found[roles]
        assert first[3] and losses[-1][:2] == found["whole"][1][-1][:2]
        for own, expected in zip(parameters, found["whole"][0], strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-11)


def test_two_ranks_with_roles_resume_a_run_of_four_bit_for_bit(path, stopped):
    for found in run_distributed(2, train, ENOUGH_S, (path, stopped[1] / "left", "1+1")):
        assert all(map(torch.equal, found[0], stopped[0][0]["whole"][0]))


class Bad(DistLoader):
    """Gives virtual rank 2 features that are not finite at step 1."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options, transform=self.spoil)

    def spoil(self, batch):
        first, last = self.data.book.part2range(2)
        if batch.step == 1 and batch.seeds.numel() and first <= int(batch.seeds[0]) < last:
            batch.features[0] = torch.nan
        return batch


def not_finite(ctx, path):
    model = make_model("sage")
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), ctx)
    with pytest.raises(NonFiniteError) as error:
        trainer.run_epoch(Bad(DistData.load(path, ctx), FANOUTS, BATCH, roles="1+1"))
    return str(error.value)


def test_a_loss_that_is_not_finite_ends_all_ranks_with_one_message(path):
    first, second = run_distributed(2, not_finite, ENOUGH_S, (path,))
    assert first == second and first.startswith("step 1: the loss is nan on virtual rank 2; the features of node ")


def resumed_at_an_epochs_end(ctx, path):
    """(steps, whether rows were reported, batches trained) of two epochs, the first of which was done."""
    data, model = DistData.load(path, ctx), make_model("sage")
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), ctx)
    loader = DistLoader(data, FANOUTS, BATCH, roles="1+1", cache=FeatureCache(20_000))
    trainer.run_epoch(loader)
    loader.resume(LoaderPosition(0, len(loader), torch.empty(0, dtype=torch.int64)))
    history = History()
    trainer.fit(loader, EPOCHS, [CacheFigures(), RoleFigures(), history])
    return [(e["steps"], e["cache"]["own"] > 0, sum(e["roles"]["trained"])) for e in history.epochs], len(loader)


def test_an_epoch_of_which_no_step_is_left_is_reported(path):
    for epochs, steps in run_distributed(2, resumed_at_an_epochs_end, ENOUGH_S, (path,)):
        assert epochs == [(0, False, 0), (steps, True, PARTS * steps)]


class Dies(Callback):
    """Kills its process where the ranks meet after the first epoch."""

    def on_epoch(self, report):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_at_a_meeting(ctx, path, folder):
    model = make_model("sage")
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), ctx)
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="1+1")
    try:
        trainer.fit(loader, EPOCHS, [Dies()] if ctx.rank == 1 else [])
    except RuntimeError as error:
        (folder / "said").write_text(str(error))
        raise


def test_a_rank_that_is_killed_where_all_meet_is_named_with_its_role(path, tmp_path):
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code -9"):
        run_distributed(2, killed_at_a_meeting, ENOUGH_S, (path, tmp_path), comm_timeout_s=NEVER_S)
    said = (tmp_path / "said").read_text()
    assert said.endswith("rank 1 (sampler) ended while it held no task.") and "\n" not in said, said


class Fails(Callback):
    """Raises what torch raises of shapes that do not fit."""

    def on_update(self, step):
        raise RuntimeError("shapes cannot be multiplied")


def failing_alone(ctx, path, folder):
    factored_epoch.ENDS_WITHIN_S = NEVER_S
    model = make_model("sage")
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), ctx)
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="1+1")
    try:
        trainer.fit(loader, EPOCHS, [Fails()])
    except RuntimeError as error:
        (folder / str(ctx.rank)).write_text(str(error))
        raise


def test_a_rank_whose_failure_ends_the_others_does_not_say_that_they_ended(path, tmp_path):
    with pytest.raises(RankError, match="shapes cannot be multiplied"):
        run_distributed(2, failing_alone, ENOUGH_S, (path, tmp_path), comm_timeout_s=NEVER_S)
    assert (tmp_path / "0").read_text() == "shapes cannot be multiplied"
    assert (tmp_path / "1").read_text() == "rank 0 (trainer) failed: RuntimeError: shapes cannot be multiplied"


# ---- the command ----

OPTIONS = (
    "--epochs", "3", "--batch-size", "25", "--fanouts", "4,3", "--hidden", "16", "--lr", "0.02", "--threads", "1",
    "--timeout-s", "200", "--checkpoint-every", "2", "--staleness", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """600 train nodes in two parts: 12 steps an epoch."""
    return make_task(tmp_path_factory.mktemp("two"), 2, num_nodes=1000, dtype="float32").path


def newest(directory):
    return CheckpointFiles(directory, 1).newest()[1]


@pytest.fixture(scope="module")
def undisturbed(two, tmp_path_factory):
    """The last checkpoint of a run that nothing interrupts."""
    saved = tmp_path_factory.mktemp("undisturbed") / "saved"
    line = ["--data", two, *OPTIONS, "--roles", "1+1", "--checkpoint-dir", saved]
    done = run_forked(2, SCRIPT, line, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return newest(saved)


def assert_same_end(content, expected):
    assert (content["step"], content["totals"]["loss_sum"]) == (expected["step"], expected["totals"]["loss_sum"])
    for name, tensor in expected["state"]["model"].items():
        assert torch.equal(content["state"]["model"][name], tensor), name
    for number, state in expected["state"]["optimizer"]["state"].items():
        assert all(torch.equal(content["state"]["optimizer"]["state"][number][name], state[name]) for name in state)


def draw_kills(count):
    """A sampler, the rank that updates, and so on, each some time into a task."""
    lots = random.Random(7)
    return [{"rank": 1 - i % 2, "tasks": lots.randint(7, 12), "delay_s": lots.uniform(0, 0.02)} for i in range(count)]


@pytest.mark.parametrize("switching", grid(["on", "off"], gate=["on"]))
@pytest.mark.parametrize("kills", grid([1, 8], gate=[1]))
def test_ranks_killed_in_one_run_change_nothing(two, undisturbed, tmp_path, kills, switching):
    line = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        f"--max-restarts={kills}", "--monitor-interval=0.1", SCRIPT, "--data", two, *OPTIONS, "--roles", "1+1",
        "--checkpoint-dir", tmp_path / "saved",
    ]  # fmt: skip
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    plan = {"WATCH_PLAN": json.dumps(draw_kills(kills)), "WATCH_SWITCHING": switching}
    environ = {**os.environ, "PYTHONPATH": paths, **plan}
    done = subprocess.run(
        [*map(str, line)], env=environ, capture_output=True, text=True, timeout=ENOUGH_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("resumed from ") + done.stdout.count("no checkpoint in ") == kills, done.stdout
    assert_same_end(newest(tmp_path / "saved"), undisturbed)


@pytest.mark.grid  # a signal to a sampler, above, represents it
def test_ctrl_c_under_torchrun_saves_the_run(two, tmp_path):
    saved = tmp_path / "saved"
    options = ["--data", two, *OPTIONS, "--roles", "1+1", "--checkpoint-dir", saved]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ended = interrupt([*torchrun, SCRIPT, *options, "--epochs", 100000], "epoch 2/")
    assert ended.status != 0 and "stopped; --resume resumes from" in ended.out and "Traceback" not in ended.out
    assert newest(saved)["step"] >= 24
