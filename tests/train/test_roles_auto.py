"""Roles "auto": nothing of the rehearsal stays, the run is that of the roles chosen; what a run reports of roles."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from fastsample_dist import DistData, DistLoader, Roles
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import TrainConfig, rehearsal, run
from fastsample_dist.train.trainer import Trainer
from tests.train.task import FEATURE_DIM, make_model, make_task
from tests.waiting import ENOUGH_S

BATCH, FANOUTS = 8, (4, 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 2, dtype="float32").path


class Drawing(nn.Module):
    """Draws from torch's generator, and has running statistics where that is wanted."""

    def __init__(self, statistics):
        super().__init__()
        self.inner, self.drop = make_model("sage").float(), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(FEATURE_DIM) if statistics else nn.Identity()

    def forward(self, mfgs, features):
        return self.inner(mfgs, self.drop(self.norm(features)))


def trained(ctx, path, roles, *, statistics):
    """State of model and optimizer after two epochs, their losses, and the roles."""
    torch.manual_seed(5)
    model = Drawing(statistics)
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles=roles)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
    losses = []
    trainer.fit(loader, 2)
    losses.append(trainer.evaluate(DistLoader(loader.data, FANOUTS, BATCH, split="val")))
    state = trainer.state()
    moments = [state["optimizer"]["state"][i]["exp_avg_sq"] for i in range(len(state["optimizer"]["state"]))]
    return [*(tensor.clone() for tensor in model.state_dict().values()), *moments], losses, loader.roles


def several(ctx, path, directory):
    """Runs with roles and with "auto" that chooses them; the files of a run of the command."""
    choose, found = rehearsal.choose_roles, {}
    for chosen in (None, Roles(1, 1)):
        rehearsal.choose_roles = lambda *given, chosen=chosen: replace(choose(*given), chosen=chosen)
        name = str(chosen or "none")
        found[name] = [trained(ctx, path, roles, statistics=chosen is None) for roles in (name, "auto")]
    options = {"epochs": 2, "batch_size": BATCH, "fanouts": FANOUTS, "hidden": 8, "threads": 1}
    report = run(TrainConfig(data=path, roles="auto", jsonl=directory / "log.jsonl", **options), ctx).report
    return found, report["roles"], [epoch["roles"] for epoch in report["epochs"]]


@pytest.fixture(scope="module")
def ranks(path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("log")
    return run_distributed(2, several, ENOUGH_S, (path, directory)), directory


@pytest.mark.parametrize("roles", ["none", "1+1"])
def test_a_run_whose_roles_are_chosen_is_one_that_was_given_them(ranks, roles):
    for found, *_ in ranks[0]:
        (given, means, _), (chosen, losses, taken) = found[roles]
        assert all(map(torch.equal, given, chosen)) and means == losses
        assert taken == (None if roles == "none" else Roles(1, 1))


def test_every_rank_ends_with_the_optimizer_of_rank_0(ranks):
    first, second = (found["1+1"][0][0] for found, *_ in ranks[0])
    assert all(map(torch.equal, first, second))


def test_a_run_reports_its_roles_and_who_made_and_trained_its_batches(ranks):
    (_, name, epochs), directory = ranks[0][0], ranks[1]
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    assert name == "1+1" and [line["roles"] for line in lines] == epochs
    for line, roles in zip(lines, epochs, strict=True):
        assert (roles["samplers"], roles["trainers"]) == (1, 1)
        assert roles["sampled"] == [0, 2 * line["steps"]] and sum(roles["trained"]) == 2 * line["steps"]
        assert roles["standby"] == roles["trained"][1]


def auto_on_other_ranks(ctx, path):
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles="auto")
    model = make_model("sage").float()
    with pytest.raises(ValueError) as error:
        Trainer(model, torch.optim.Adam(model.parameters()), ctx).run_epoch(loader)
    return str(error.value)


def test_auto_needs_one_part_per_rank(tmp_path):
    path = make_task(tmp_path, 4, dtype="float32").path
    for message in run_distributed(2, auto_on_other_ranks, ENOUGH_S, (path,)):
        assert message.startswith("roles is 'auto' on 4 parts and 2 ranks: ") and message.endswith("S+T or none.")
