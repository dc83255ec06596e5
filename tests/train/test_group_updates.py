"""Updates of groups: tasks that are taken in any order give the parameters of the oracle, bit for bit."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fastsample_dist import DistData, DistLoader
from fastsample_dist.train import Callback
from fastsample_dist.train.callbacks import Meeting
from fastsample_dist.train.finite import NonFiniteError
from fastsample_dist.train.trainer import Trainer
from tests.grids import grid
from tests.train.group_oracle import FactoredLoader, train_groups
from tests.train.task import FEATURE_DIM, NUM_CLASSES, Centred, make_model, make_task

PARTS, BATCH, FANOUTS, EPOCHS = 3, 8, (4, 3), 2
STEPS = 5  # of an epoch: 40 train nodes in each part
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), PARTS, dtype="float32").path


class DrawingModel(nn.Module):
    """Draws dropout from torch's generator, has parameters of several types, one of them unused, and a buffer."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = make_model("sage").float(), nn.Dropout(0.5)
        self.narrow, self.unused = nn.Parameter(torch.ones(NUM_CLASSES).bfloat16()), nn.Parameter(torch.ones(3))
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("scale", torch.full((FEATURE_DIM,), 0.5))

    def forward(self, mfgs, features):
        return self.inner(mfgs, self.drop(features) * self.scale) * self.narrow


MODELS = {kind: lambda kind=kind: make_model(kind).float() for kind in ("sage", "gcn", "gat")} | {"any": DrawingModel}


def make_run(ctx, path, model, optimizer="adam", *, staleness=0, seed=0, **options):
    """(trainer, loader with an executor)"""
    loader = FactoredLoader(DistData.load(path, ctx), FANOUTS, BATCH, staleness=staleness, seed=seed)
    return Trainer(model, OPTIMIZERS[optimizer](model.parameters()), ctx, **options), loader


def segments_between(meetings):
    """(epoch, first group, end) of the segments of all epochs, whose ends besides epochs' are steps counted from 1."""
    ends = sorted({0, *meetings, *(epoch * STEPS for epoch in range(EPOCHS + 1))})
    return [(first // STEPS, first % STEPS, end - first // STEPS * STEPS) for first, end in pairwise(ends)]


def expect(ctx, path, model, optimizer, staleness, meetings=()):
    """The oracle's losses; the model becomes its."""
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH)
    return train_groups(
        model, OPTIMIZERS[optimizer](model.parameters()), loader, segments_between(meetings), staleness
    )  # fmt: skip


def equal(found, expected):
    return all(map(torch.equal, found.parameters(), expected.parameters()))


CASES = [(kind, name, staleness) for kind in MODELS for name in OPTIMIZERS for staleness in (0, 1, 3)]
GATE = [("sage", "adam", 0), ("gcn", "momentum", 1), ("gat", "adam", 3), ("any", "momentum", 1)]


@pytest.mark.parametrize(("kind", "optimizer", "staleness"), grid(CASES, gate=GATE, several=True))
def test_tasks_in_any_order_give_the_oracles_parameters(path, ctx, kind, optimizer, staleness):
    found, expected = MODELS[kind](), MODELS[kind]()
    expected.load_state_dict(found.state_dict())
    trainer, loader = make_run(ctx, path, found, optimizer, staleness=staleness)
    losses = [trainer.run_epoch(loader).loss for _ in range(EPOCHS)]
    assert losses == expect(ctx, path, expected, optimizer, staleness) and equal(found, expected)
    assert sorted(loader.executor.taken) == [
        (epoch, group, rank) for epoch in range(EPOCHS) for group in range(STEPS) for rank in range(PARTS)
    ]
    assert loader.executor.taken != sorted(loader.executor.taken)


def test_a_device_of_its_own_changes_nothing(path, ctx):
    """Gradients and parameters pass through one vector on the model's device; here that is the CPU too."""
    found, expected = MODELS["any"](), MODELS["any"]()
    expected.load_state_dict(found.state_dict())
    trainer, loader = make_run(ctx, path, found, staleness=1)
    trainer._factored_epoch(loader, None)
    trainer._updates._staging = torch.empty_like(trainer._updates._sum)
    losses = [trainer.run_epoch(loader).loss for _ in range(EPOCHS)]
    assert losses == expect(ctx, path, expected, "adam", 1) and equal(found, expected)


def test_parameters_keep_their_place_and_the_generator_its_state(path, ctx):
    model = MODELS["any"]()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    trainer, loader = make_run(ctx, path, model, staleness=1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    trainer.run_epoch(loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert model.narrow.dtype == torch.bfloat16 and all(parameter.grad is None for parameter in model.parameters())


class Meetings(Callback):
    """Notes meetings and updates; asks for a meeting every so many steps, and for one in the middle of step `stop`."""

    def __init__(self, every=None, stop=None):
        self.meetings, self.updates, self._every, self._stop = [], [], every, stop

    @property
    def meet_every(self):
        return self._every

    def on_begin(self, run):
        self.run = run

    def on_update(self, step):
        self.updates.append(step)
        if step == self._stop:
            self.run.request_meeting()

    def on_step(self, batch):
        assert type(batch) is Meeting and batch.step == self.updates[-1]
        self.meetings.append((batch.epoch, batch.step))


@pytest.mark.parametrize("staleness", [0, 2])
def test_ranks_meet_where_callbacks_ask_for_it(path, ctx, staleness):
    """A segment begins without delay, so with staleness the meetings are part of what is computed."""
    found, expected = MODELS["sage"](), MODELS["sage"]()
    trainer, loader = make_run(ctx, path, found, staleness=staleness, seed=3)
    first, second = Meetings(every=3), Meetings(every=7, stop=3)
    trainer.fit(loader, EPOCHS, [first, second])
    meetings = [step + 1 for _, step in first.meetings]
    asked_for = next(step for step in meetings if step > 3)
    assert meetings == sorted({3, asked_for, 5, 6, 7, 9, 10}) and asked_for in (4, 5)
    assert first.updates == second.updates == list(range(EPOCHS * STEPS)) and first.meetings == second.meetings
    expect(ctx, path, expected, "adam", staleness, meetings)
    assert equal(found, expected)


def test_an_epoch_without_roles_follows_one_with_them(path, ctx):
    model = MODELS["sage"]()
    trainer, loader = make_run(ctx, path, model)
    first = trainer.run_epoch(loader)
    plain = trainer.run_epoch(DistLoader(loader.data, FANOUTS, BATCH))
    last = trainer.run_epoch(loader)
    assert (first.steps, plain.steps, last.steps) == (STEPS, PARTS * STEPS, STEPS) and last.loss < first.loss


# ---- what is refused ----


class Bad(FactoredLoader):
    """NaN in the features of the first input node of virtual rank 1 at step 1; `bad_node` is its original id."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        run = self.executor.run

        def with_nan(epoch, first, count, train, update):
            def spoilt(task, batch, version):
                if (task.step, task.virtual_rank) == (1, 1):
                    batch.features[0, 2] = math.nan
                    self.bad_node = int(self.data.orig_ids(batch.input_nodes[:1]))
                train(task, batch, version)

            return run(epoch, first, count, spoilt, update)

        self.executor.run = with_nan


def test_a_loss_that_is_not_finite_names_step_virtual_rank_and_node(path, ctx):
    loader, model = Bad(DistData.load(path, ctx), FANOUTS, BATCH), MODELS["sage"]()
    trainer, callback = Trainer(model, OPTIMIZERS["adam"](model.parameters()), ctx), Meetings()
    with pytest.raises(NonFiniteError) as error:
        trainer.fit(loader, 1, [callback])
    assert str(error.value).startswith(
        f"step 1: the loss is nan on virtual rank 1; the features of node {loader.bad_node} (original id) in the batch "
        "of virtual rank 1 are NaN or infinite: correct"
    )
    assert callback.updates == [0] and all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_allowed_it_is_one_warning(path, ctx, caplog):
    loader, model = Bad(DistData.load(path, ctx), FANOUTS, BATCH), MODELS["sage"]()
    trainer = Trainer(model, OPTIMIZERS["adam"](model.parameters()), ctx, allow_nonfinite=True)
    assert math.isnan(trainer.run_epoch(loader).loss)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("step 1: the loss is nan on virtual rank 1; ") and line.endswith("as requested.")


class Wrapped(nn.Module):
    """make_model("sage") behind a layer on the features."""

    def __init__(self, layer):
        super().__init__()
        self.inner, self.layer = MODELS["sage"](), layer

    def forward(self, mfgs, features):
        return self.inner(mfgs, self.layer(features))


class Sparse(nn.Embedding):
    def __init__(self):
        super().__init__(1, FEATURE_DIM, sparse=True)

    def forward(self, rows):
        return rows + super().forward(torch.zeros(len(rows), dtype=torch.int64))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.BatchNorm1d(FEATURE_DIM), r"^the model's forward changes its buffer layer\..*, which with roles"),
        (Sparse, r"^the gradient of layer.weight is sparse, .*; build the model with sparse=False, or "),
    ],
    ids=["running statistics", "a sparse gradient"],
)  # fmt: skip
def test_what_would_depend_on_who_trains_is_refused(path, ctx, layer, message):
    trainer, loader = make_run(ctx, path, Wrapped(layer()), "momentum")
    with pytest.raises(ValueError, match=message):
        trainer.run_epoch(loader)


def test_a_collective_in_a_forward_pass_is_refused_before_it_waits(path, ctx):
    trainer, loader = make_run(ctx, path, Wrapped(Centred(ctx.comm)), "momentum")
    with pytest.raises(
        ValueError, match=r"all_reduce of mean refused: with roles, what .*, or train with roles 'none'.$"
    ):
        trainer.run_epoch(loader)
    assert "mean" not in ctx.comm.stats() and ctx.comm.all_gather_object(1, purpose="setup") == [1]


def test_parameters_that_are_not_the_models_are_refused(path, ctx):
    model, stranger = MODELS["sage"](), nn.Parameter(torch.ones(1))
    loader = FactoredLoader(DistData.load(path, ctx), FANOUTS, BATCH)
    trainer = Trainer(model, torch.optim.SGD([*model.parameters(), stranger], lr=0.1), ctx)
    with pytest.raises(ValueError, match=r"^1 of the optimizer's \d+ parameters are not the model's, so ranks with"):
        trainer.run_epoch(loader)


def test_a_loss_that_is_no_mean_is_refused(path, ctx):
    def total(outputs, labels):
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")

    trainer, loader = make_run(ctx, path, MODELS["sage"](), loss_fn=total)
    with pytest.raises(ValueError, match=r"^loss_fn gives "):
        trainer.run_epoch(loader)


def test_the_rank_that_trains_checks_the_loss_alone(path, ctx, monkeypatch):
    """Ranks that sample would not take part in a collective of the first task, under MPI too."""
    trainer, loader = make_run(ctx, path, MODELS["sage"](), loss_fn=torch.nn.functional.cross_entropy)
    monkeypatch.setattr("fastsample_dist.train.trainer.agree", None)
    assert trainer.run_epoch(loader).steps > 0
