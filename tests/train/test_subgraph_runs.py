"""The command trains on subgraphs: what it reports, checkpoints of either kind, bf16."""

import json

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.comm.local import LocalCommunicator
from tests.train.task import make_task

CHANCE = 0.25  # four classes
USUAL = {"epochs": 3, "hidden": 16, "layers": 4, "lr": 0.02, "threads": 1}
FRONTIER = USUAL | {"sampler": "frontier", "budget": 60, "frontier_size": 15, "subgraphs_per_step": 2}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 2, dtype="float32").path


@pytest.fixture
def ctx():
    threads = torch.get_num_threads()
    with fsd.DistContext(LocalCommunicator()) as context:
        yield context
    torch.set_num_threads(threads)


def run(ctx, parts, **fields):
    return fsd.train.run(fsd.train.TrainConfig(data=parts, **fields), ctx)


def test_a_run_on_subgraphs_learns_and_says_what_it_was(tmp_path, ctx, parts, capsys):
    files = {name: tmp_path / name for name in ("json", "jsonl", "save_model")}
    result = run(ctx, parts, **FRONTIER | files | {"epochs": 8})
    assert result.model.num_layers == 4 and result.report["test_acc"] > 2 * CHANCE
    printed = capsys.readouterr().out
    assert "frontier: budget 60, frontier_size 15" in printed and "2 a step" in printed and "all neighbours" in printed
    options = json.loads(files["json"].read_text())["options"]
    assert (options["sampler"], options["budget"], options["eval"]) == ("frontier", 60, "full")
    said = json.loads(files["jsonl"].read_text().splitlines()[-1])["run"]["subgraphs"]
    assert (said["frontier_size"], said["weights"], said["subgraphs_per_step"]) == (15, "ratio", 2)
    described = json.loads((tmp_path / "save_model.json").read_text())
    assert described["sampler"] == "frontier" and fsd.train.load_model(files["save_model"]).num_layers == 4


@pytest.mark.parametrize("sampler", ["node", "edge", "walk", "ego"])
def test_every_method_runs(ctx, parts, sampler):
    own = {"ego_depth": 1, "subgraphs_per_step": 40} if sampler == "ego" else {"budget": 40, "subgraphs_per_step": 4}
    report = run(ctx, parts, **USUAL | own | {"sampler": sampler, "epochs": 1}).report
    assert report["epochs"][0]["loss"] > 0 and report["test_acc"] > 0


def test_features_in_half_precision_and_sampled_evaluation(ctx, parts):
    options = FRONTIER | {"precision": "bf16", "eval": "sampled", "fanouts": (4, 4, 4, 4), "weights": "saint"}
    losses = [epoch["loss"] for epoch in run(ctx, parts, **options | {"epochs": 6}).report["epochs"]]
    assert losses[-1] < losses[0]


def test_a_resumed_run_ends_with_the_parameters_of_an_uninterrupted_one(tmp_path, ctx, parts):
    saving = {"checkpoint_dir": tmp_path / "saved", "checkpoint_every": 1}
    whole = run(ctx, parts, **FRONTIER)
    run(ctx, parts, **FRONTIER | saving | {"epochs": 2})
    resumed = run(ctx, parts, **FRONTIER | saving | {"resume": True})
    assert resumed.report["resumed"]["epoch"] == 2
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


def test_checkpoints_of_another_way_of_sampling_are_refused(tmp_path, ctx, parts):
    saving = {"checkpoint_dir": tmp_path / "saved"}
    run(ctx, parts, **FRONTIER | saving | {"epochs": 1})
    with pytest.raises(ValueError, match=r"was made with budget 60 but this run has budget 61; pass the same"):
        run(ctx, parts, **FRONTIER | saving | {"resume": True, "budget": 61})
    with pytest.raises(
        ValueError, match=r'was made with sampler "frontier" but this run has sampler "uniform"; pass the same'
    ):
        run(ctx, parts, **USUAL | saving | {"resume": True, "fanouts": (4, 4, 4, 4)})


def test_a_sampler_of_weighted_neighbours_is_not_asked_for_by_subgraphs(ctx, parts):
    with pytest.raises(ValueError, match=r"lacks edge weights for --sampler weighted"):
        run(ctx, parts, **USUAL | {"sampler": "weighted", "fanouts": (2, 2, 2, 2)})
