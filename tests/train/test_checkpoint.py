"""Checkpointer: a resumed run becomes the run that was never interrupted; other runs' checkpoints are refused."""

import logging

import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train import Callback, checkpoint
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings, fingerprint
from fastsample_dist.train.checkpoint_files import decode
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer
from tests.grids import grid
from tests.train.task import make_model, make_task

FANOUTS, BATCH, EPOCHS = (4, 3), 20, 3
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32")


@pytest.fixture(scope="module")
def task4(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task4"), 4, dtype="float32")


class Watcher(Callback):
    """Notes the seeds and losses of a Run, and stops it after so many steps."""

    def __init__(self, run, losses, stop_after):
        self.run, self.losses, self.stop_after = run, losses, stop_after

    def on_step(self, batch):
        self.run.seeds.setdefault(batch.epoch, []).extend(self.run.data.orig_ids(batch.seeds).tolist())
        if batch.step + 1 == self.stop_after:
            self.run.stop.request()

    def on_epoch(self, report):
        self.losses.append((report.stats.epoch, report.stats.steps, report.stats.loss))


class Run:
    """A small training run with checkpoints; `seeds` holds what it has trained on: {epoch: original ids}."""

    def __init__(self, ctx, path, directory, *, kind="sage", batch_size=BATCH, model_seed=0, **settings):
        self.data = DistData.load(path, ctx)
        self.loader = DistLoader(self.data, FANOUTS, batch_size, prefetch=settings.pop("prefetch", 0))
        self.model = make_model(kind, seed=model_seed).float()
        self.trainer = Trainer(self.model, torch.optim.Adam(self.model.parameters(), lr=0.02), ctx)
        self.stop = StopSignal()
        settings = CheckpointSettings(**{"directory": directory, "every": 10**9, **settings})
        self.checkpoints = Checkpointer(self.trainer, self.loader, settings, self.stop)
        self.seeds = {}

    def train(self, epochs=EPOCHS, *, stop_after=None):
        """Train to the end of the epochs, or until `stop_after` steps are done; the losses of whole epochs."""

        losses = self.checkpoints.kept.setdefault("losses", [])
        self.trainer.fit(self.loader, epochs, [Watcher(self, losses, stop_after), self.checkpoints])
        return losses

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def whole(ctx, path, directory, **options):
    run = Run(ctx, path, directory, **options)
    assert run.checkpoints.begin(resume=False) is None
    return run.train(), run.parameters(), run.seeds


def interrupted(ctx, path, directory, stop_after, **options):
    """Stopped after so many steps and taken up by a run that began with other parameters."""
    first = Run(ctx, path, directory, **options)
    first.checkpoints.begin(resume=False)
    first.train(stop_after=stop_after)
    second = Run(ctx, path, directory, model_seed=99, **options)
    resumed = second.checkpoints.begin(resume=True)
    return second.train(), second.parameters(), first.seeds, second.seeds, resumed


def assert_same(found, expected):
    losses, parameters = found[:2]
    assert [loss[:2] for loss in losses] == [loss[:2] for loss in expected[0]]
    assert [loss[2] for loss in losses] == pytest.approx([loss[2] for loss in expected[0]], rel=1e-12)
    assert all(map(torch.equal, parameters, expected[1]))


@pytest.mark.parametrize("stop_after", grid([1, 5, 6, 7, 13], gate=[5, 6]))  # 6 steps an epoch
@pytest.mark.parametrize("prefetch", grid([0, 2], gate=[2]))
def test_one_process_resumes_bit_for_bit(task, ctx, tmp_path, stop_after, prefetch):
    expected = whole(ctx, task.path, tmp_path / "whole")
    found = interrupted(ctx, task.path, tmp_path / "stopped", stop_after, prefetch=prefetch)
    assert_same(found, expected)
    before, after, resumed = found[2:]
    assert {epoch: before.get(epoch, []) + after.get(epoch, []) for epoch in range(EPOCHS)} == expected[2]
    assert (resumed.step, resumed.epoch, resumed.world_size) == (stop_after, (stop_after - 1) // 6, 1)


def test_what_a_gpu_has_saved_is_resumed_without_it(task, ctx, tmp_path, monkeypatch):
    """A checkpoint made on a GPU holds the state of its generator too."""
    expected, states = whole(ctx, task.path, tmp_path / "whole"), checkpoint.generator_states
    monkeypatch.setattr(checkpoint, "generator_states", lambda device: {**states(device), "cuda": torch.zeros(16)})
    assert_same(interrupted(ctx, task.path, tmp_path / "stopped", 5), expected)


def test_saving_puts_no_tensor_into_a_pickle(task, ctx, tmp_path, monkeypatch):
    """torch 2.4 and 2.5 print a FutureWarning where one is read, on every rank."""
    run = Run(ctx, task.path, tmp_path)
    run.checkpoints.begin(resume=False)
    monkeypatch.setattr(torch.storage, "_load_from_bytes", None)
    run.train(1, stop_after=2)
    states = decode(tmp_path / "step-000000002.ckpt")["generators"]
    assert [state["cpu"].tolist() for state in states] == [torch.get_rng_state().tolist()]


@pytest.mark.parametrize("world_size", grid([2, 4], gate=[4]))
def test_ranks_resume_bit_for_bit(task4, tmp_path, world_size):
    """Four ranks: gloo's sum of more than two depends on where a gradient is in its bucket."""
    expected = run_distributed(world_size, whole, args=(task4.path, tmp_path / "whole"))
    found = run_distributed(world_size, interrupted, args=(task4.path, tmp_path / "stopped", 3))
    for rank in range(world_size):
        assert_same(found[rank], expected[rank])


@pytest.mark.grid
@needs_mpi
def test_ranks_resume_bit_for_bit_under_mpi(task4, tmp_path):
    expected = run_mpi(2, whole, args=(task4.path, tmp_path / "whole"))
    found = run_mpi(2, interrupted, args=(task4.path, tmp_path / "stopped", 3))
    for rank in range(2):
        assert_same(found[rank], expected[rank])


def start(ctx, path, directory, stop_after):
    run = Run(ctx, path, directory, batch_size=8)
    run.checkpoints.begin(resume=False)
    run.train(stop_after=stop_after)
    return run.seeds


def resume(ctx, path, directory, batch_size=8):
    run = Run(ctx, path, directory, batch_size=batch_size)
    resumed = run.checkpoints.begin(resume=True)
    losses = run.train(2)
    return run.seeds, resumed.world_size, losses


@pytest.mark.parametrize("ranks", grid([(4, 2), (2, 4), (4, 1), (1, 2)], gate=[(4, 2), (1, 2)]), ids=str)
def test_other_ranks_see_each_remaining_seed_of_the_epoch_once(task4, tmp_path, ranks):
    before, after = ranks
    first = run_distributed(before, start, args=(task4.path, tmp_path / "here", 2))
    then = run_distributed(after, resume, args=(task4.path, tmp_path / "here"))
    seen = {epoch: sorted(seed for rank in (*first, *(found[0] for found in then)) for seed in rank.get(epoch, []))
            for epoch in (0, 1)}  # fmt: skip
    assert seen[0] == seen[1] == task4.node_task.splits["train"].tolist()
    assert [found[1] for found in then] == [before] * after
    assert len({str(found[2]) for found in then}) == 1  # the same losses on all ranks, over the whole epochs


def test_half_the_ranks_with_twice_the_batch_size_learn_the_same(task4, tmp_path):
    """Same batches, summed in another order: the mean losses over both parts of the epoch agree closely."""
    run_distributed(2, start, args=(task4.path, tmp_path / "a", 2))
    run_distributed(2, start, args=(task4.path, tmp_path / "b", 2))
    two = run_distributed(2, resume, args=(task4.path, tmp_path / "a"))
    one = run_distributed(1, resume, args=(task4.path, tmp_path / "b", 16))
    assert one[0][2][0][2] == pytest.approx(two[0][2][0][2], rel=1e-4)


def test_of_every_n_steps_and_the_last_one_k_are_kept(task, ctx, tmp_path):
    run = Run(ctx, task.path, tmp_path, every=4, keep=2)
    run.checkpoints.begin(resume=False)
    run.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000016.ckpt", "step-000000018.ckpt"]
    content = decode(tmp_path / "step-000000016.ckpt")
    stated = ("epoch", "step", "step_in_epoch", "world_size", "num_parts", "partition")
    assert [content[key] for key in stated] == [2, 16, 4, 1, 1, fingerprint(run.data.manifest)]
    assert content["remaining"].tolist() == run.seeds[2][4 * BATCH :]


def test_a_finished_run_is_continued_when_it_is_given_more_epochs(task, ctx, tmp_path):
    expected = whole(ctx, task.path, tmp_path / "whole")
    first = Run(ctx, task.path, tmp_path / "more")
    first.checkpoints.begin(resume=False)
    first.train(epochs=2)
    first.checkpoints.save()
    second = Run(ctx, task.path, tmp_path / "more", model_seed=5)
    assert second.checkpoints.begin(resume=True).epoch == 2
    assert_same((second.train(), second.parameters()), expected)


def test_torchs_own_generator_is_resumed_too(task, ctx, tmp_path):
    run = Run(ctx, task.path, tmp_path)
    run.checkpoints.begin(resume=False)
    torch.manual_seed(123)
    torch.rand(7)
    run.train(1)
    run.checkpoints.save()
    expected = torch.rand(3)
    other = Run(ctx, task.path, tmp_path)
    torch.manual_seed(4)
    other.checkpoints.begin(resume=True)
    assert torch.equal(torch.rand(3), expected)


def unwritable(ctx, path, directory):
    """All but rank 0 continue without noticing; rank 0 warns."""
    run = Run(ctx, path, directory, every=2)
    run.checkpoints.begin(resume=False)
    if ctx.rank == 0:
        write, run.checkpoints._files.write = run.checkpoints._files.write, None

        def fail_once(step, content):
            run.checkpoints._files.write = write
            raise RuntimeError(f"checkpoint of step {step} could not be written")

        run.checkpoints._files.write = fail_once
    run.train(1)
    return run.parameters(), [path.name for path in sorted(directory.iterdir())]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_next_is_tried(task, ctx, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, names = unwritable(ctx, task.path, tmp_path)
    assert [record.getMessage() for record in caplog.records] == ["checkpoint of step 2 could not be written"]
    assert names == ["step-000000004.ckpt", "step-000000006.ckpt"]


# ---- what is refused ----


def refusal(ctx, path, directory, resume=True, attempt=0, kind="sage", **settings):
    run = Run(ctx, path, directory, kind=kind, **settings)
    before = run.parameters()
    try:
        run.checkpoints.begin(resume=resume, attempt=attempt)
    except ValueError as error:
        assert all(map(torch.equal, before, run.parameters()))
        return str(error)
    return None


def test_other_options_another_model_and_another_partition_are_refused(task, task4, ctx, tmp_path):
    run = Run(ctx, task.path, tmp_path, options={"lr": 0.02, "fanouts": (4, 3)})
    run.checkpoints.begin(resume=False)
    run.train(1)
    run.checkpoints.save()
    same = {"lr": 0.02, "fanouts": [4, 3]}
    assert refusal(ctx, task.path, tmp_path, options=same) is None
    path = tmp_path / "step-000000006.ckpt"
    assert refusal(ctx, task.path, tmp_path, options={**same, "lr": 0.1}) == (
        f"{path} was made with lr 0.02 but this run has lr 0.1; pass the same, or --allow-new-lr (may_change=['lr']), "
        "or start in another checkpoint directory."
    )
    assert refusal(ctx, task.path, tmp_path, options={**same, "fanouts": [4, 2]}).endswith(
        "but this run has fanouts [4, 2]; pass the same, or start in another checkpoint directory."
    )
    message = refusal(ctx, task.path, tmp_path, kind="gcn", options=same)
    assert message.startswith(f"{path} does not fit: another model: layers.0.linear.weight was (16, 16) and is (16, 8)")
    message = refusal(ctx, task4.path, tmp_path, options=same)
    assert message.startswith(f"{path} was made on another partition (communities, 1 parts) than {task4.path} (")


def test_a_fresh_start_among_checkpoints_is_refused(task, ctx, tmp_path):
    whole(ctx, task.path, tmp_path, every=5)
    message = f"{tmp_path} holds checkpoints already, up to step-000000018.ckpt; resume from them, or choose another"
    assert refusal(ctx, task.path, tmp_path, resume=False).startswith(message)


def test_a_restart_resumes_from_its_own_launch_only(task, ctx, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    whole(ctx, task.path, tmp_path, every=5)
    assert refusal(ctx, task.path, tmp_path, resume=False, attempt=1) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert "holds checkpoints already" in refusal(ctx, task.path, tmp_path, resume=False, attempt=1)


def test_a_refusal_reaches_all_ranks(task4, tmp_path):
    run_distributed(2, start, args=(task4.path, tmp_path, 2))
    errors = run_distributed(2, refusal, args=(task4.path, tmp_path, False))
    assert errors[0] == errors[1] and "holds checkpoints already" in errors[0]


def refused_interval(ctx, path, directory):
    return refusal(ctx, path, directory, every=2 + ctx.rank)


def test_ranks_that_would_save_after_other_steps_are_refused(task4, tmp_path):
    errors = run_distributed(2, refused_interval, args=(task4.path, tmp_path))
    assert (
        errors
        == ["Checkpointer: ranks differ in every: 2 on rank 0; 3 on rank 1; start all ranks with the same options."] * 2
    )


@pytest.mark.parametrize("name", ["every", "keep"])
@pytest.mark.parametrize("value", [0, 2.5, "3", True])
def test_intervals_and_numbers_that_are_no_whole_ones_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"^{name} is {value!r}; expected an integer >= 1"):
        CheckpointSettings(directory=tmp_path, **{name: value})


def test_a_directory_is_a_path_or_its_name(tmp_path):
    assert CheckpointSettings(directory=str(tmp_path)) == CheckpointSettings(directory=tmp_path)
    with pytest.raises(ValueError, match="^directory is 3; expected a path, such as 'saved'"):
        CheckpointSettings(directory=3)


def test_settings_are_no_directory(task, ctx, tmp_path):
    run = Run(ctx, task.path, tmp_path)
    with pytest.raises(ValueError, match=r"^settings is a .*Path; expected CheckpointSettings\(directory"):
        Checkpointer(run.trainer, run.loader, tmp_path)


def test_names_that_may_change_are_a_list(tmp_path):
    """A name alone would stand for every name that is a piece of it."""
    with pytest.raises(ValueError, match="^may_change is 'lr_schedule'; expected a list of names, such as"):
        CheckpointSettings(directory=tmp_path, may_change="lr_schedule")
    with pytest.raises(ValueError, match="^options is None; expected values by name"):
        CheckpointSettings(directory=tmp_path, options=None)
