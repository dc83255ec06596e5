"""The command as a function: fastsample_dist.train.run."""

import json
from types import SimpleNamespace

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.train.session import result_writes
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


@pytest.mark.parametrize("name", ["json", "report"])
def test_a_file_that_one_rank_alone_names_is_written_by_as_many_calls(tmp_path, name):
    """Ranks may differ in these options; with other numbers of writes they would wait for each other."""
    named = fsd.train.TrainConfig(data=tmp_path, **{name: tmp_path / "out"})
    plain = fsd.train.TrainConfig(data=tmp_path)
    comm = SimpleNamespace(watch=SimpleNamespace(trace=None))
    for first, second in ((named, plain), (plain, named)):
        writes = [
            result_writes(config, None, SimpleNamespace(ctx=SimpleNamespace(rank=rank, comm=comm)), {"epochs": []})
            for rank, config in enumerate((first, second))
        ]
        assert len(writes[0]) == len(writes[1])
        for write in writes[1]:
            write()  # rank 1's file is not written, whatever it names
    assert list(tmp_path.iterdir()) == []


def test_the_trainer_is_a_public_name():
    assert fsd.Trainer is fsd.train.Trainer is fsd.train.trainer.Trainer
