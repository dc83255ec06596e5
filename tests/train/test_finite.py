"""A loss or gradients that are NaN or infinite: every rank stops at that step, with the same message."""

import logging
import math

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist import DistData, DistLoader
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings
from fastsample_dist.train.checkpoint_files import CheckpointFiles
from fastsample_dist.train.finite import NonFiniteError
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_task

BAD_STEP, BATCH = 1, 32
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


class BadLoader(DistLoader):
    """Gives one rank a NaN in the features of its first input node at step BAD_STEP; `bad_node` is its original id."""

    bad_rank, bad_node = 1, None

    def __iter__(self):
        for batch in super().__iter__():
            if batch.step == BAD_STEP and self.data.ctx.rank == self.bad_rank:
                batch.features[0, 2] = math.nan
                self.bad_node = int(self.data.orig_ids(batch.input_nodes[:1]))
            yield batch


@pytest.fixture(scope="module")
def task2(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task2"), 2, num_nodes=214, dtype="float32")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32")


def make_trainer(ctx, *, lr=0.02, **options):
    model = make_model("sage").float()
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=lr), ctx, **options)


def caught(ctx, path):
    loader, trainer, steps = BadLoader(DistData.load(path, ctx), (3, 3), BATCH), make_trainer(ctx), []
    with pytest.raises(NonFiniteError) as error:
        trainer.run_epoch(loader, lambda batch: steps.append(batch.step))
    return str(error.value), loader.bad_node, steps


def assert_all_ranks_name_the_features(found):
    messages = {message for message, *_ in found}
    node = found[1][1]
    assert messages == {
        f"step {BAD_STEP}: the loss is nan on rank 1; the features of node {node} (original id) in the batch of rank 1 "
        "are NaN or infinite: correct the features of the input and partition again; allow_nonfinite=True "
        "(--allow-nonfinite) continues anyway."
    }
    assert [steps for _, _, steps in found] == [[0], [0]]  # the bad step is the last, on both


def test_features_with_nan_on_one_rank_stop_all_and_are_named(task2):
    assert_all_ranks_name_the_features(run_distributed(2, caught, args=(task2.path,)))


@needs_mpi
@pytest.mark.grid
def test_features_with_nan_on_one_rank_stop_all_under_mpi(task2):
    assert_all_ranks_name_the_features(run_mpi(2, caught, args=(task2.path,)))


def empty_on_rank_1(ctx, path):
    """Rank 0 has one seed more, so rank 1 is empty at the last step, which alone has an infinite loss."""
    data = DistData.load(path, ctx)
    counts = ctx.comm.all_gather_object(data.split("train").numel(), purpose="setup")
    assert max(counts) == min(counts) + 1
    most = counts.index(max(counts))

    def loss_fn(outputs, labels):
        losses = F.cross_entropy(outputs, labels, reduction="none")
        return losses + math.inf if labels.numel() == 1 else losses

    with pytest.raises(NonFiniteError) as error:
        make_trainer(ctx, loss_fn=loss_fn).run_epoch(DistLoader(data, (3, 3), min(counts)))
    return str(error.value).split(";")[0] == f"step 1: the loss is inf on rank {most}"


def test_an_infinite_loss_with_finite_gradients_stops_a_rank_whose_batch_is_empty_too(tmp_path):
    task = make_task(tmp_path, 2, num_nodes=205, dtype="float32")  # 123 train nodes
    assert run_distributed(2, empty_on_rank_1, args=(task.path,)) == [True, True]


def test_a_learning_rate_that_is_too_high_is_named(task, ctx):
    with pytest.raises(
        NonFiniteError, match=r"^step \d+: .*: lower the learning rate \(it is 1e\+30\), or check the labels"
    ):
        make_trainer(ctx, lr=1e30).run_epoch(DistLoader(DistData.load(task.path, ctx), (3, 3), 30))


def test_gradients_that_overflow_behind_a_finite_loss_are_named(task, ctx):
    def loss_fn(outputs, labels):
        return (outputs * 0).sum(dim=1).clamp(min=0).sqrt()  # the slope of the root at 0 is infinite

    with pytest.raises(NonFiniteError, match=r"^step 0: the gradients are NaN or infinite, while the loss is finite; "):
        make_trainer(ctx, loss_fn=loss_fn).run_epoch(DistLoader(DistData.load(task.path, ctx), (3, 3), 30))


def allowed(ctx, path, bad_rank):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("fastsample_dist.train").addHandler(handler)
    loader = BadLoader(DistData.load(path, ctx), (3, 3), BATCH)
    loader.bad_rank = bad_rank
    stats = make_trainer(ctx, allow_nonfinite=True).run_epoch(loader)
    return math.isnan(stats.loss), stats.steps == len(loader), records


def test_allowed_it_is_one_warning_on_all_ranks_together(task2):
    found = run_distributed(2, allowed, args=(task2.path, 1))
    assert [result[:2] for result in found] == [(True, True)] * 2
    (line,) = found[0][2] + found[1][2]
    assert line.startswith(f"step {BAD_STEP}: the loss is nan on rank 1; the features of node ")
    assert line.endswith("training continues, as requested.")


@pytest.mark.parametrize("lag", [0, 2])
def test_no_checkpoint_is_written_after_a_bad_step(task, ctx, tmp_path, lag):
    """lag 2: as on a GPU, whose losses are read two steps late."""
    loader, trainer = BadLoader(DistData.load(task.path, ctx), (3, 3), 20), make_trainer(ctx)
    loader.bad_rank, trainer._clock.lag = 0, lag
    settings = CheckpointSettings(directory=tmp_path, every=BAD_STEP + 1 if lag else 1)
    checkpoints = Checkpointer(trainer, loader, settings)
    checkpoints.begin(resume=False)
    if lag:
        checkpoints.save()
    with pytest.raises(NonFiniteError, match=f"^step {BAD_STEP}: "):
        trainer.run_epoch(loader, checkpoints.on_step)
    step = 0 if lag else BAD_STEP
    content = CheckpointFiles(tmp_path, 1).newest()[1]
    assert (content["step"], len(list(tmp_path.iterdir()))) == (step, 1)
    assert all(bool(tensor.isfinite().all()) for tensor in content["state"]["model"].values())


def test_a_lag_postpones_the_end_and_not_the_step_that_is_named(task, ctx):
    loader, trainer, steps = BadLoader(DistData.load(task.path, ctx), (3, 3), 20), make_trainer(ctx), []
    loader.bad_rank, trainer._clock.lag = 0, 2
    with pytest.raises(NonFiniteError, match=f"^step {BAD_STEP}: the loss is nan on rank 0; the features of node "):
        trainer.run_epoch(loader, lambda batch: steps.append(batch.step))
    assert steps == [0, 1, 2]
