"""The command as a function: fastsample_dist.train.run."""

import json

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.comm.local import LocalCommunicator
from tests.train.task import make_task


@pytest.fixture
def ctx():
    threads = torch.get_num_threads()
    with fsd.DistContext(LocalCommunicator()) as context:
        yield context
    torch.set_num_threads(threads)


def test_run_returns_the_model_and_what_the_file_holds(tmp_path, ctx, capsys):
    path, file = make_task(tmp_path, 1, dtype="float32").path, tmp_path / "out.json"
    config = fsd.train.TrainConfig(data=path, epochs=2, batch_size=40, fanouts=(4, 3), hidden=16, threads=1, json=file)
    result = fsd.train.run(config, ctx)
    assert not result.stopped and result.model.num_layers == 2
    assert json.loads(file.read_text()) == json.loads(json.dumps(result.report))
    assert f"test accuracy {result.report['test_acc']:.4f}" in capsys.readouterr().out


def test_the_trainer_is_a_public_name():
    assert fsd.Trainer is fsd.train.Trainer is fsd.train.trainer.Trainer
