"""Trainer and layerwise: a model, an optimizer or a precision that differs on one rank is refused on all, by name."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastsample_dist import DistData
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.agreement import model_facts, optimizer_facts
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GCN, GraphSAGE
from fastsample_dist.train.trainer import Trainer
from tests.comm.test_context import environment
from tests.forked import ForkedPython
from tests.parts import FEATURE_DIM, NUM_CLASSES, draw_partition
from tests.test_launch.test_example_scripts import ROOT

ENOUGH_S = 240.0  # for processes that load torch on a busy machine; without agreement some wait for their --timeout-s
CASES = {
    "lr": "optimizer.lr: 0.006 on rank 0; 0.01 on rank 1",
    "betas": "optimizer.betas: (0.9, 0.999) on rank 0; (0.8, 0.999) on rank 1",
    "optimizer": "optimizer: 'Adam' on rank 0; 'SGD' on rank 1",
    "precision": "precision: 'fp32' on rank 0; 'bf16' on rank 1",
    "dropout": "model.dropout: 0.5 on rank 0; 0.1 on rank 1",
    "layers": "model.layers.1.linear.out_features: 5 on rank 0; 16 on rank 1",
    "hidden": "model.layers.0.linear.out_features: 16 on rank 0; 8 on rank 1",
    "model": "model: 'GraphSAGE' on rank 0; 'GCN' on rank 1",
    "frozen": "model.layers.0.linear.weight: '(16, 12) torch.float32 trained' on rank 0; "
    "'(16, 12) torch.float32 fixed' on rank 1",
    "lr of NumPy": "optimizer.lr: 0.5 on rank 0; 0.25 on rank 1",
    "dropout of NumPy": "model.dropout: 0.5 on rank 0; 0.25 on rank 1",
    "state": "optimizer.state: None on rank 0; '",
}


def build(ctx, case):
    """A trainer's arguments, those of rank 1 changed."""
    given = {"lr": 0.006, "betas": (0.9, 0.999), "precision": "fp32", "dropout": 0.5, "layers": 2, "hidden": 16}
    given |= {"lr": np.float32(0.5)} if case == "lr of NumPy" else {}
    given |= {"dropout": np.float32(0.5)} if case == "dropout of NumPy" else {}
    if ctx.rank == 1:
        given |= {"lr": np.float32(0.25)} if case == "lr of NumPy" else {}
        given |= {"dropout": np.float32(0.25)} if case == "dropout of NumPy" else {}
        given |= {"lr": 0.01} if case == "lr" else {}
        given |= {"betas": (0.8, 0.999)} if case == "betas" else {}
        given |= {"precision": "bf16"} if case == "precision" else {}
        given |= {"dropout": 0.1} if case == "dropout" else {}
        given |= {"layers": 3} if case == "layers" else {}
        given |= {"hidden": 8} if case == "hidden" else {}
    other = ctx.rank == 1
    kind = GCN if other and case == "model" else GraphSAGE
    model = kind(FEATURE_DIM, given["hidden"], NUM_CLASSES, given["layers"], given["dropout"])
    optimizer = torch.optim.Adam(model.parameters(), lr=given["lr"], betas=given["betas"])
    if other and case == "optimizer":
        optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"])
    if other and case == "frozen":
        model.layers[0].linear.weight.requires_grad_(False)
    if other and case == "state":
        sum(parameter.sum() for parameter in model.parameters()).backward()
        optimizer.step()
    return model, optimizer, given["precision"]


def construct(ctx, path):
    """What Trainer and layerwise say, by case; "" where they succeed."""
    said = {}
    for case in (*CASES, "same", "values"):
        torch.manual_seed(ctx.rank)  # values of parameters may differ: every rank gets those of rank 0
        model, optimizer, precision = build(ctx, case)
        said[case] = refusal(lambda m=model, o=optimizer, p=precision: Trainer(m, o, ctx, precision=p))
    data = DistData.load(path, ctx)
    model = GraphSAGE(FEATURE_DIM, 16, NUM_CLASSES, 2)
    said["layerwise"] = refusal(lambda: layerwise(model, data, 10 + ctx.rank))
    said["evaluates or infers"] = refusal(
        lambda: layerwise(model, data) if ctx.rank else Trainer(model, torch.optim.SGD(model.parameters(), 0.1), ctx)
    )
    return said


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 2).path


@pytest.fixture(scope="module")
def said(path):
    return run_distributed(2, construct, args=(path,))


@pytest.mark.parametrize("case", CASES)
def test_a_difference_on_one_rank_is_refused_on_all(said, case):
    first, second = said
    assert first[case] == second[case]
    assert first[case].startswith("Trainer: ranks differ in ")
    assert CASES[case] in first[case]
    assert first[case].endswith("; start all ranks with the same options.")


def test_ranks_that_agree_train_though_their_parameters_were_drawn_differently(said):
    assert {texts[case] for texts in said for case in ("same", "values")} == {""}


def test_layerwise_with_another_batch_size_is_refused_on_all(said):
    text = "layerwise: ranks differ in batch_size: 10 on rank 0; 11 on rank 1; start all ranks with the same options."
    assert {texts["layerwise"] for texts in said} == {text}


def test_ranks_in_different_calls_are_refused_on_all(said):
    (text,) = {texts["evaluates or infers"] for texts in said}
    assert text.startswith("the ranks make different calls: ")


def test_dropout_of_any_class_is_a_fact_and_a_ranks_own_number_is_none():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.rank, self.alpha, self.drop = 3, 0.25, nn.Dropout(0.4)

    facts = model_facts(Own())
    assert facts["model.drop.p"] == 0.4
    assert facts["model.alpha"] == 0.25
    assert "model.rank" not in facts


def test_every_group_of_an_optimizer_is_compared():
    model = nn.Linear(2, 3)
    groups = [{"params": [model.weight], "lr": torch.tensor(0.5)}, {"params": [model.bias], "weight_decay": 0.1}]
    facts = optimizer_facts(model, torch.optim.AdamW(groups, lr=0.25))
    assert facts["optimizer.param_groups[0].lr"] == 0.5
    assert facts["optimizer.param_groups[1].lr"] == 0.25
    assert facts["optimizer.param_groups[1].weight_decay"] == 0.1
    assert facts["optimizer.param_groups[1].params"] != facts["optimizer.param_groups[0].params"]


def test_a_column_of_one_number_may_be_in_an_optimizers_state():
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.bias]["momentum_buffer"] = torch.arange(6.0).reshape(1, 6)[:, 1]
    assert optimizer_facts(model, optimizer)["optimizer.state"] is not None


PROCESSES = {
    "--lr": ("0.006", "0.01", "0.006 on rank 0; 0.01 on rank 1"),
    "--precision": ("fp32", "bf16", "'fp32' on rank 0; 'bf16' on rank 1"),
    "--batch-size": ("20", "40", "20 on rank 0; 40 on rank 1"),
    "--prefetch": ("0", "2", "0 on rank 0; 2 on rank 1"),
}


@pytest.mark.parametrize("option", PROCESSES)
def test_processes_started_with_different_options_end_with_one_line_each(path, option, free_port, tmp_path):
    *values, words = PROCESSES[option]
    outputs = [tmp_path / f"rank-{rank}" for rank in range(2)]
    ranks = [start(path, rank, free_port, (option, value), outputs[rank]) for rank, value in enumerate(values)]
    try:
        for process, output in zip(ranks, outputs, strict=True):
            assert process.wait(ENOUGH_S) == 1
            (line,) = [line for line in output.read_text().splitlines() if line.startswith("error: ")]
            assert words in line
    finally:
        for process in ranks:
            process.kill()


def start(path, rank, port, more, output):
    """A rank of two of the example, started by hand."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    options = ["--data", str(path), "--epochs", "1", "--hidden", "8", "--fanouts", "3,2,2", "--threads", "1"]
    script = ROOT / "examples" / "train_sage.py"
    return ForkedPython([script, *options, *more], environment(**place), (Path(os.devnull), output))


@pytest.fixture
def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
