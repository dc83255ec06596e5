"""TrainConfig validates itself, and ranks that were given other options end at once, with one line each."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.train import TrainConfig
from fastsample_dist.train.cli import parse_arguments
from tests.forked import ForkedPython
from tests.train.task import make_task

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 400  # for machines that are busy
DIFFERENT = {
    "--lr": ("0.01", "0.1"),
    "--seed": ("1", "2"),
    "--fanouts": ("5,5", "5,4"),
    "--sampler": ("uniform", "labor"),
    "--dropout": ("0.5", "0.4"),
    "--scheme": ("hybrid", "vanilla"),
    "--precision": ("fp32", "bf16"),
    "--eval-every": ("1", "0"),
    "--eval": ("sampled", "full"),
    "--batch-size": ("20", "30"),
    "--prefetch": ("0", "2"),
    "--epochs": ("2", "3"),
    "--model": ("sage", "gcn"),
    "--hidden": ("8", "16"),
    "--norm": (None, "layer"),
    "--lr-schedule": ("constant", "cosine"),
    "--save-model": (None, "model.pt"),
    "--checkpoint-dir": (None, "saved"),
}
RANK = """
import contextlib, io, json, os, sys
from fastsample_dist.train import cli
cli.HEAD_START_S = 0
found = []
for port, options in json.loads(os.environ["RUNS"]):
    os.environ["MASTER_PORT"] = str(port)
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            status = cli.main(options)
        except SystemExit as end:
            status = end.code
    found.append((status, error.getvalue()))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme": "magic"}, r"--scheme is 'magic'; expected one of hybrid, vanilla"),
        ({"batch_size": 0}, r"--batch-size is 0; expected an integer >= 1"),
        ({"roles": "1x3"}, r"--roles '1x3' is not SAMPLERS\+TRAINERS; pass two numbers, such as 1\+3, none or auto"),
        ({"staleness": -1, "roles": "1+1"}, r"--staleness is -1; expected an integer >= 0"),
        ({"staleness": 2}, r"--staleness is 2 with --roles none, .*; pass --roles S\+T, such as 1\+3, or leave"),
        ({"staleness": 1, "roles": "auto"}, r"--staleness is 1 with --roles auto, "),
        ({"roles": "1+1", "sampler": "frontier"}, r"--roles is 1\+1 but --sampler frontier draws subgraphs, which"),
        ({"roles": "auto", "scheme": "vanilla"}, r"--roles is auto but --scheme vanilla .*; pass --scheme hybrid"),
        ({"batch_size": 2.5}, r"--batch-size is 2.5; expected an integer >= 1"),
        ({"epochs": "3"}, r"--epochs is '3'; expected an integer >= 1"),
        ({"eval_every": -1}, r"--eval-every is -1; expected an integer >= 0"),
        ({"prefetch": -1}, r"--prefetch is -1; expected an integer >= 0"),
        ({"lr": -0.1}, r"--lr is -0.1; expected a number >= 0"),
        ({"lr": float("nan")}, r"--lr is nan; expected a number >= 0"),
        ({"dropout": 1.0}, r"--dropout is 1.0; expected a probability of at least 0 and below 1"),
        ({"timeout_s": 0}, r"--timeout-s is 0; expected a number of seconds > 0"),
        ({"seed": -1}, r"--seed is -1; expected an integer from 0"),
        ({"seed": None}, r"--seed is None; expected an integer from 0"),
        ({"epochs": None}, r"--epochs is None; expected an integer >= 1"),
        ({"lr": "fast"}, r"--lr is 'fast'; expected a number >= 0"),
        ({"dropout": None}, r"--dropout is None; expected a probability"),
        ({"resume": None}, r"--resume is None; expected True or False"),
        ({"rails": 3}, r"--rails is 3; expected True or False"),
        ({"threads": 2**31 - 1}, r"--threads is 2147483647; expected an integer from 1 to 1024"),
        ({"sampler": []}, r"--sampler is \[\]; expected one of"),
        ({"fanouts": 5}, r"--fanouts is 5; expected one fanout per layer"),
        ({"json": 3}, r"--json is 3; expected a path"),
        ({"lookahead": "two", "cache": 10}, r"--lookahead is 'two'; expected an integer >= 0"),
        ({"fanouts": (5, 5, -2)}, r"SampleSpec: fanouts holds -2; expected -1 \(all neighbours\) or more"),
        ({"fanouts": (5, 5, 2.5)}, r"fanouts holds 2.5; expected integers"),
        (
            {"replace": True, "eval_fanouts": (-1, -1, -1)},
            r"SampleSpec: fanouts holds -1 \(all neighbours\), which cannot be drawn",
        ),
        ({"lr_step": 0}, r"--lr-step is 0; expected an integer >= 1"),
        ({"lr_gamma": 1.5}, r"--lr-gamma is 1\.5; expected a factor above 0 and at most 1"),
        ({"norm": "batch"}, r"--norm is 'batch'; expected one of layer"),
        ({"verify": "never"}, r"--verify is 'never'; expected one of once, full"),
        ({"resume": True}, r"--resume needs the --checkpoint-dir"),
        (
            {"checkpoint_every": 5},
            r"--checkpoint-every is 5 without --checkpoint-dir DIR, where nothing reads it; pass",
        ),
        ({"keep": 5}, r"--keep is 5 without --checkpoint-dir DIR, where nothing reads it"),
        ({"allow_new_lr": True}, r"--allow-new-lr is True without --checkpoint-dir DIR"),
        ({"lr_schedule": "cosine", "lr_step": 3}, r"--lr-step is 3 without --lr-schedule step, where nothing reads it"),
        ({"heads": 2}, r"--heads is 2 without --model gat, where nothing reads it"),
        ({"layers": 2}, r"fanouts has 3 entries but the model has 2 layers; pass one fanout per layer"),
        ({"eval_fanouts": (1,)}, r"fanouts has 1 entries but the model has 3 layers"),
        ({"budget": 50}, r"--budget is 50 but --sampler uniform does not read it; leave it out"),
        ({"locality": "own"}, r"--locality is 'own' but --sampler uniform does not read it"),
        ({"sampler": "node", "frontier_size": 5}, r"--frontier-size is 5 but --sampler node does not read it"),
        ({"sampler": "frontier", "budget": 5, "frontier_size": 6}, r"frontier_size is 6 but budget is 5"),
        ({"sampler": "frontier", "budget": 0}, r"budget is 0; expected an integer from 1"),
        ({"sampler": "ego", "ego_fanout": -2}, r"fanout is -2; expected an integer from -1"),
        ({"sampler": "ego", "subgraphs_per_step": 0}, r"--subgraphs-per-step is 0; expected an integer >= 1"),
        ({"sampler": "walk", "weights": "sum"}, r"--weights is 'sum'; expected one of ratio, saint, none"),
        ({"sampler": "walk", "scheme": "vanilla"}, r"--scheme is vanilla but --sampler walk draws subgraphs"),
        ({"sampler": "walk", "replace": True}, r"--sampler walk takes every edge at most once; leave out --replace"),
        ({"sampler": "walk", "fanouts": (5, 5)}, r"--fanouts is 5,5 but --sampler walk draws no neighbours"),
        ({"sampler": "walk", "eval_fanouts": (-1,) * 3}, r"--eval-fanouts is -1,-1,-1 but --sampler walk draws no"),
        (
            {"sampler": "walk", "eval": "sampled", "layers": 4},
            r"fanouts has 3 entries but the model has 4 layers; pass one fanout per layer",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        TrainConfig(data="parts", **fields)


def test_layers_are_as_many_as_fanouts():
    assert TrainConfig(data="parts", fanouts=[4, 3]).layers == 2
    assert parse_arguments(["--data", "parts", "--fanouts", "9,8,7,6"]).layers == 4


def test_numbers_of_numpy_and_torch_are_pythons():
    whole = {"epochs": 2, "cache": 10**6, "seed": 5, "fanouts": (4, 3), "replace": True, "lr": 0.5, "threads": 1}
    given = {
        "epochs": np.int64(2), "cache": np.int64(10**6), "seed": torch.tensor(5), "fanouts": np.array([4, 3]),
        "replace": np.bool_(True), "lr": np.float32(0.5), "threads": np.uint8(1),
    }  # fmt: skip
    config = TrainConfig(data="parts", **given)
    assert config == TrainConfig(data="parts", **whole)
    assert json.loads(json.dumps(config.as_json()))["fanouts"] == [4, 3]


def test_the_command_line_and_the_fields_are_the_same():
    config = parse_arguments(["--data", "parts", "--lr", "0.5", "--json", "a.json", "--lr-schedule", "cosine"])
    assert config == TrainConfig(data="parts", lr=0.5, json="a.json", lr_schedule="cosine")
    assert json.loads(json.dumps(config.as_json()))["data"] == "parts"


def test_a_schedule_shapes_a_run_and_none_leaves_old_checkpoints_valid():
    assert "lr_schedule" not in TrainConfig(data="parts").shaping()
    assert TrainConfig(data="parts", lr_schedule="cosine").shaping()["epochs"] == 10
    assert TrainConfig(data="parts", lr_schedule="step", lr_step=3).shaping()["lr_step"] == 3


def test_norm_and_residual_shape_a_run_and_neither_leaves_old_checkpoints_valid():
    plain, deep = TrainConfig(data="parts"), parse_arguments(["--data", "parts", "--residual", "--norm", "layer"])
    assert deep == TrainConfig(data="parts", residual=True, norm="layer")
    assert not {"residual", "norm"} & plain.shaping().keys()
    assert deep.shaping() == plain.shaping() | {"residual": True, "norm": "layer"}


def test_a_run_on_subgraphs_has_layers_of_its_own_and_sees_all_neighbours_in_evaluation():
    config = parse_arguments(["--data", "parts", "--sampler", "frontier", "--layers", "6", "--budget", "5000"])
    assert (config.layers, config.eval, config.subgraph_spec.budget) == (6, "full", 5000)
    assert TrainConfig(data="parts", sampler="walk").layers == 3
    assert TrainConfig(data="parts", sampler="walk", eval="sampled", fanouts=[3, 3]).layers == 2
    assert TrainConfig(data="parts", sampler="ego", ego_depth=1, ego_fanout=-1).subgraph_spec.fanout == -1
    assert TrainConfig(data="parts").eval == TrainConfig(data="parts", sampler="node", eval="sampled").eval == "sampled"


def test_subgraphs_shape_a_run_and_neighbours_leave_old_checkpoints_valid():
    by_neighbours = TrainConfig(data="parts").shaping()
    of_subgraphs = TrainConfig(data="parts", sampler="frontier", locality="own").shaping()
    assert set(by_neighbours) - set(of_subgraphs) == {"fanouts", "replace"}
    assert of_subgraphs["budget"] == 8000 and of_subgraphs["locality"] == "own" and "budget" not in by_neighbours
    assert of_subgraphs == TrainConfig(data="parts", sampler="frontier", budget=8000, locality="own").shaping()
    json.dumps(of_subgraphs)
    given = TrainConfig(data="parts", sampler="frontier", locality="own", subgraphs_per_step=3).shaping()
    assert given == of_subgraphs | {"subgraphs_per_step": 3}


def free_ports(count):
    """As many different ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """{option: [(status, stderr) of rank 0, of rank 1]}: two processes run the command once per option."""
    folder = tmp_path_factory.mktemp("ranks")
    same = ["--data", str(make_task(folder, 2, dtype="float32").path), "--fanouts", "5,5", "--threads", "1"]
    same += ["--timeout-s", str(TIMEOUT_S)]
    ports = free_ports(len(DIFFERENT))
    processes = []
    for rank in (0, 1):
        own = [[*same, *([] if given[rank] is None else [name, given[rank]])] for name, given in DIFFERENT.items()]
        environ = {
            **os.environ, "RUNS": json.dumps(list(zip(ports, own, strict=True))), "RANK": str(rank), "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        outputs = (folder / f"stdout-{rank}", folder / f"stderr-{rank}")
        processes.append((ForkedPython(["-c", RANK], environ, outputs), outputs[0]))
    found = []
    for process, printed in processes:
        assert process.wait(TIMEOUT_S) == 0
        found.append(json.loads(printed.read_text().splitlines()[-1]))
    return {name: list(map(tuple, pair)) for name, *pair in zip(DIFFERENT, *found, strict=True)}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_with_other_options_end_with_one_line_each(refusals, name):
    kind = {"--lr": float, "--dropout": float}.get(name)
    shown = []
    for given in DIFFERENT[name]:
        if given is None or name in ("--save-model", "--checkpoint-dir"):
            shown.append("None" if given is None else "'given'")
        elif name == "--fanouts":
            shown.append(f"({given.replace(',', ', ')})")
        else:
            shown.append(str(kind(given)) if kind else given if given.isdecimal() else repr(given))
    line = f"{name}: {shown[0]} on rank 0; {shown[1]} on rank 1"
    for status, error in refusals[name]:
        assert status == 1 and error.startswith("error: options: ranks differ in ") and error.count("\n") == 1, error
        assert line in error and error.endswith("start all ranks with the same options.\n")
