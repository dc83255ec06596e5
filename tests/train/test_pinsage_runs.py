"""The command trains with PinSAGE: what it reports, evaluation layer by layer, ranks against one process, refusals."""

import json

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import DistContext, DistData, PinSAGESampler
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import TrainConfig
from fastsample_dist.train.inference import layerwise
from tests.forked import run_forked
from tests.train.task import make_model, make_task

CHANCE = 0.25  # four classes
USUAL = {
    "epochs": 3, "hidden": 16, "lr": 0.02, "threads": 1, "batch_size": 30, "model": "pinsage", "sampler": "pinsage",
}  # fmt: skip
WALKS = {"num_walks": 6, "walk_length": 2, "num_neighbors": 4, "end_probability": 0.25}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 2, dtype="float32")


@pytest.fixture
def ctx():
    threads = torch.get_num_threads()
    with DistContext(LocalCommunicator()) as context:
        yield context
    torch.set_num_threads(threads)


def run(ctx, task, **fields):
    return fsd.train.run(TrainConfig(data=task.path, **fields), ctx)


def test_a_run_learns_and_says_what_it_was(tmp_path, ctx, task, capsys):
    files = {name: tmp_path / name for name in ("json", "jsonl", "save_model", "predictions")}
    result = run(ctx, task, **USUAL | WALKS | files | {"epochs": 8, "layers": 2, "eval": "full", "prefetch": 2})
    assert result.model.num_layers == 2 and result.report["test_acc"] > 2 * CHANCE
    assert "neighbours by walks, once per node and layer" in capsys.readouterr().out
    options = json.loads(files["json"].read_text())["options"]
    assert (options["sampler"], options["num_walks"], options["eval"]) == ("pinsage", 6, "full")
    assert json.loads(files["jsonl"].read_text().splitlines()[-1])["run"]["walks"] == WALKS
    described = json.loads((tmp_path / "save_model.json").read_text())
    assert {name: described[name] for name in WALKS} == WALKS
    with DistContext(LocalCommunicator()) as own:
        data = DistData.load(task.path, own)
        sampler = PinSAGESampler(data.graph, 6, 2, 4, 2, 0.25, rng_seed=0)
        scores = layerwise(fsd.train.load_model(files["save_model"]), data, 50, sampler=sampler)
    written = [np.load(files["predictions"] / f"part-{part}.npy") for part in range(2)]
    assert torch.equal(scores, torch.from_numpy(np.concatenate(written)))


def test_a_resumed_run_ends_with_the_parameters_of_an_uninterrupted_one(tmp_path, ctx, task):
    saving = {"checkpoint_dir": tmp_path / "saved", "checkpoint_every": 1}
    whole = run(ctx, task, **USUAL)
    run(ctx, task, **USUAL | saving | {"epochs": 2})
    with pytest.raises(ValueError, match=r"was made with num_walks 4 but this run has num_walks 5; pass the same"):
        run(ctx, task, **USUAL | saving | {"resume": True, "num_walks": 5})
    resumed = run(ctx, task, **USUAL | saving | {"resume": True})
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))


def test_other_models_apply_the_weights_and_pinsage_takes_other_samplers(ctx, task):
    for fields in ({"model": "sage"}, {"sampler": "uniform", "fanouts": (4, 4)}, {"precision": "bf16"}):
        epochs = run(ctx, task, **USUAL | {"layers": 2, "epochs": 4} | fields).report["epochs"]
        assert epochs[-1]["loss"] < epochs[0]["loss"]


def scores_of_rank(ctx, path, batch_size):
    """Own nodes' scores by original id, layer by layer, and those of a model that computes all layers at once."""
    data = DistData.load(path, ctx)
    sampler = PinSAGESampler(data.graph, num_layers=3, rng_seed=9)
    model = make_model("pinsage", num_layers=3).float()
    whole = torch.nn.Module()
    whole.model, whole.num_layers, whole.forward = model, 3, lambda mfgs, features: model(mfgs, features)
    found = [layerwise(own, data, batch_size, sampler=sampler) for own in (model, whole)]
    return data.orig_ids(torch.arange(*data.own_range)), found


@pytest.mark.parametrize("ranks", [1, 2])
def test_inference_is_that_of_one_batch_of_all_nodes(task, ranks):
    model, nodes = make_model("pinsage", num_layers=3).float().eval(), torch.arange(200)
    batch = PinSAGESampler(task.graph, num_layers=3, rng_seed=9).sample(nodes)
    with torch.no_grad():
        expected = model(batch.mfgs, task.features.float()[batch.input_nodes.long()])
    for orig_ids, found in run_distributed(ranks, scores_of_rank, args=(task.path, 37)):
        for scores in found:
            torch.testing.assert_close(scores, expected[orig_ids], rtol=0, atol=1e-5)


def test_ranks_with_roles_report_what_ranks_without_report(task, tmp_path):
    """Two virtual ranks: their gradients' sum is the same in any order, and so are losses and accuracies."""
    files = {roles: tmp_path / f"{roles}.json" for roles in ("none", "1+1")}
    for roles, file in files.items():
        given = USUAL | WALKS | {"data": task.path, "roles": roles, "json": file, "device": "cpu"}
        options = [text for name, value in given.items() for text in ("--" + name.replace("_", "-"), value)]
        done = run_forked(2, "-m", ["fastsample_dist.train", *options])
        assert done.returncode == 0, done.stderr
    plain, roles = (json.loads(file.read_text()) for file in files.values())
    assert roles["options"]["roles"] == "1+1" and plain["options"]["roles"] == "none"
    assert [epoch["loss"] for epoch in roles["epochs"]] == [epoch["loss"] for epoch in plain["epochs"]]
    assert (roles["val_acc"], roles["test_acc"]) == (plain["val_acc"], plain["test_acc"])


def test_a_sampler_of_another_depth_is_refused(ctx, task):
    data = DistData.load(task.path, ctx)
    with pytest.raises(ValueError, match="the sampler has num_layers 3 but the model has 2 layers"):
        layerwise(make_model("pinsage").float(), data, sampler=PinSAGESampler(data.graph))
    with pytest.raises(ValueError, match="sampler is a list; expected one whose hops can be drawn apart"):
        layerwise(make_model("pinsage").float(), data, sampler=[2, 2])
    with pytest.raises(ValueError, match="data is a .*Path; expected the partition that fsd.DistData.load"):
        layerwise(make_model("pinsage").float(), task.path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme": "vanilla"}, r"--scheme is vanilla .* would cost 18 exchanges, 2 \* 3 for each of 3 hops"),
        ({"fanouts": (5, 5)}, r"--fanouts is \(5, 5\) but --sampler pinsage does not read it"),
        ({"eval_fanouts": (5, 5, 5)}, r"--eval-fanouts is \(5, 5, 5\) but --sampler pinsage"),
        ({"replace": True}, "--replace is True but --sampler pinsage"),
        ({"kernel": "persistent"}, "--kernel is 'persistent' but --sampler pinsage"),
        ({"num_walks": 0}, "--num-walks is 0; expected an integer >= 1"),
        ({"num_neighbors": 0}, "--num-neighbors is 0; expected an integer >= 1"),
        ({"end_probability": 1.5}, "--end-probability is 1.5; expected a probability of 0 to 1"),
        ({"num_walks": 2**20, "walk_length": 17}, "expected at most 16777216 steps per node"),
        ({"budget": 5}, "--budget is 5 but --sampler pinsage does not read it"),
        ({"sampler": "uniform", "num_walks": 4}, "--num-walks is 4 but --sampler uniform does not read it"),
        ({"sampler": "walk", "end_probability": 0.5}, "--end-probability is 0.5 but --sampler walk does not read it"),
        ({"sampler": "uniform", "walk_length": 4}, "--walk-length is 4 but --sampler uniform does not read it"),
    ],
)
def test_options_that_contradict_walks_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(data="parts", **{"sampler": "pinsage"} | fields)


def test_pinsage_takes_no_norm():
    with pytest.raises(ValueError, match="norm is 'layer', but PinSAGE divides its hidden rows by their norm"):
        make_model("pinsage", norm="layer")
