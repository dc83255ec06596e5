"""Roles "auto": what the rehearsal leaves (nothing), and that the run is that of the roles chosen."""

import logging

import pytest
import torch
from torch import nn

from fastsample_dist import DistData, DistLoader, Roles
from fastsample_dist.pipeline.position import LoaderPosition
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import rehearsal
from fastsample_dist.train.trainer import Trainer
from tests.train.task import FEATURE_DIM, Centred, make_model, make_task

BATCH, FANOUTS = 8, (4, 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 2, dtype="float32").path


def trained(ctx, path, roles, chosen=None):
    """(parameters, losses, name of the roles, prediction) after two epochs; with `chosen` that is what "auto" takes."""
    predicted = rehearsal.choose_roles
    if chosen is not None:

        def choose(times, shape, ranks):
            choice = predicted(times, shape, ranks)
            return type(choice)(chosen, choice.rows, choice.paper, choice.times, choice.shape)

        rehearsal.choose_roles = choose
    model = make_model("sage").float()
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles=roles)
    before, state = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
    choice = trainer.settle_roles(loader)
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert loader.epoch == 0 and all(parameter.grad is None for parameter in model.parameters())
    assert loader.rows.inputs == 0
    losses = [trainer.run_epoch(loader).loss for _ in range(2)]
    assert loader.cache_report().inputs == sum(loader.cache_report(epoch).inputs for epoch in range(2)) > 0
    rehearsal.choose_roles = predicted
    return [p.detach() for p in model.parameters()], losses, str(loader.roles), choice


def runs(ctx, path):
    """With and without "auto", for both answers."""
    return {
        "plain": trained(ctx, path, "none"), "auto": trained(ctx, path, "auto"),
        "1+1": trained(ctx, path, "1+1"), "auto, 1+1": trained(ctx, path, "auto", Roles(1, 1)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(path):
    return run_distributed(2, runs, args=(path,))


def test_auto_trains_as_the_roles_that_it_takes(found):
    for rank in found:
        for auto, known in (("auto, 1+1", "1+1"), ("auto", "plain" if rank["auto"][2] == "None" else "1+1")):
            assert all(map(torch.equal, rank[auto][0], rank[known][0]))
            assert rank[auto][1] == rank[known][1]
        assert rank["auto, 1+1"][2] == "1+1"


def test_all_ranks_have_the_same_choice_and_there_is_none_without_auto(found):
    choices = [rank["auto"][3] for rank in found]
    assert choices[0] == choices[1]
    assert [row.name for row in choices[0].rows] == ["none", "1+1"]
    assert choices[0].shape.group_size == 2 and 1 <= choices[0].shape.cores <= 2
    assert choices[0].times.train_s > 0
    assert all(rank[name][3] is None for rank in found for name in ("plain", "1+1"))


def resumed(ctx, path):
    """(steps left of epoch 0, next epoch, tasks that were predicted, steps of an epoch) of runs resumed in it."""
    found, model = [], make_model("sage").float()
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), ctx)
    for left in (0, 1):
        loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="auto", shuffle=False)
        seeds = loader.data.orig_ids(loader.data.split("train")[: left * BATCH])
        remaining = torch.cat(ctx.comm.all_gather_object(seeds, purpose="setup"))
        loader.resume(LoaderPosition(0, len(loader) - left, remaining))
        choice = trainer.settle_roles(loader)
        found.append((loader.num_steps(0), loader.epoch, choice.shape.tasks, len(loader)))
    return found


def test_a_resumed_run_chooses_by_a_whole_epoch_however_little_is_left_of_the_one_under_way(path):
    for (*none, tasks, steps), (*one, of_one, _) in run_distributed(2, resumed, args=(path,)):
        assert none == [0, 0] and one == [1, 0] and tasks == of_one == 2 * steps


class Counts(nn.Module):
    """Replaces a buffer by another tensor in every forward pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, rows):
        self.count = self.count + 1
        return rows


class Embeds(nn.Embedding):
    """Its gradient is sparse."""

    def __init__(self):
        super().__init__(1, FEATURE_DIM, sparse=True)

    def forward(self, rows):
        return rows + super().forward(torch.zeros(len(rows), dtype=torch.int64))


class Layered(nn.Module):
    """make_model("sage") behind a layer on the features."""

    def __init__(self, layer):
        super().__init__()
        self.inner, self.layer = make_model("sage").float(), layer

    def forward(self, mfgs, features):
        return self.inner(mfgs, self.layer(features))


LAYERS = {"statistics": lambda: nn.BatchNorm1d(FEATURE_DIM), "replaced": Counts, "strange": nn.Identity}


def unshared(ctx, path):
    """Per layer (what was chosen, what was logged); what a sparse gradient is refused by."""
    rehearsal.choose_roles, found, said = None, {}, []  # never called
    logging.getLogger("fastsample_dist").addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    for name, layer in LAYERS.items():
        model, strange = Layered(layer()), [nn.Parameter(torch.ones(1))] if name == "strange" else []
        before = [tensor.clone() for tensor in model.state_dict().values()]
        loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="auto")
        choice = Trainer(model, torch.optim.Adam([*model.parameters(), *strange]), ctx).settle_roles(loader)
        assert all(map(torch.equal, before, model.state_dict().values())) and loader.epoch == 0
        found[name] = choice, loader.roles, loader.executor, said[-1:]
        said.clear()
    model = Layered(Embeds())
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="auto")
    with pytest.raises(ValueError) as refused:
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), ctx).settle_roles(loader)
    model = Layered(Centred(ctx.comm))
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="auto")
    with pytest.raises(ValueError, match="all_reduce of mean refused: with roles, what a collective in the model's"):
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), ctx).settle_roles(loader)
    return found, str(refused.value)


def test_auto_is_none_on_all_ranks_for_what_ranks_with_roles_refuse(path):
    started = {
        "statistics": "roles 'auto' are none: the model's forward changes its buffer layer.",
        "replaced": "roles 'auto' are none: the model's forward changes its buffer layer.count, which with roles ",
        "strange": "roles 'auto' are none: 1 of the optimizer's ",
    }
    for rank, (found, sparse) in enumerate(run_distributed(2, unshared, args=(path,))):
        assert sparse.startswith("the gradient of layer.weight is sparse, which several ranks cannot sum; ")
        for name, (*chosen, said) in found.items():
            assert chosen == [None, None, None] and len(said) == (rank == 0)
            assert all(line.startswith(started[name]) and line.endswith(".") for line in said), said


def test_the_skew_is_by_how_much_the_slowest_rank_was_behind_the_mean():
    assert rehearsal._skew_seconds([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]) == 1.0
    assert rehearsal._skew_seconds([[1.0, 2.0]]) == 0.0
