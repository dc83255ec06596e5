"""The command as a function: fastsample_dist.train.run."""

import io
import json
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.session import check_splits, result_writes
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


@pytest.fixture
def unmeasured(tmp_path):
    """A partition with nothing but a train split."""
    rng = np.random.default_rng(0)
    graph = RawGraph(
        name="unmeasured", num_nodes=60, undirected=False, edge_index=rng.integers(0, 60, (2, 300)),
        features=rng.random((60, 4), dtype=np.float32), labels=np.arange(60) % 3, num_classes=3,
        splits={"train": np.arange(40)},
    )  # fmt: skip
    build_partition(graph, PartitionOptions(num_parts=1, method="random"), tmp_path / "parts")
    return {"data": tmp_path / "parts", "epochs": 1, "batch_size": 20, "fanouts": (2, 2), "hidden": 8, "threads": 1}


@pytest.mark.parametrize("neighbours", ["sampled", "full"])
def test_splits_that_cannot_be_measured_are_refused_before_anything_is_trained(unmeasured, ctx, neighbours, capsys):
    with pytest.raises(ValueError, match=r"no split 'val' .* or pass --eval-every 0, which trains without measuring\."):
        fsd.train.run(fsd.train.TrainConfig(**unmeasured, eval=neighbours), ctx)
    assert "epoch" not in capsys.readouterr().out


def train_on_one_split(ctx, path, neighbours):
    data = fsd.DistData.load(path, ctx)
    empty = torch.empty(0, dtype=torch.int64)
    data._splits |= {"val": empty if ctx.rank else data.split("train"), "test": empty}
    with pytest.raises(ValueError, match=r"the test split is empty on all 2 rank.* or pass --eval-every 0"):
        check_splits(fsd.train.TrainConfig(data=path, eval=neighbours), data)
    check_splits(fsd.train.TrainConfig(data=path, eval_every=0), data)


@pytest.mark.parametrize("neighbours", ["sampled", "full"])
def test_a_split_that_is_empty_on_all_ranks_is_refused(tmp_path, neighbours):
    run_distributed(2, train_on_one_split, args=(make_task(tmp_path, 2).path, neighbours))


def test_the_directory_for_tensorboard_is_refused_with_its_option(unmeasured, ctx, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--tensorboard .*file cannot be written \(File exists\); pass another"):
        fsd.train.run(fsd.train.TrainConfig(**unmeasured, tensorboard=tmp_path / "file"), ctx)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"json": "run", "jsonl": "run"}, "--json and --jsonl are both run; pass two names"),
        (
            {"json": "model.json", "save_model": "model"},
            "--json and the description of --save-model are both model.json; pass two names",
        ),
    ],
)
def test_two_results_for_one_file_are_refused_before_the_work(unmeasured, ctx, tmp_path, monkeypatch, results, message):
    """One would replace the other: a saved model without its description cannot be loaded."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{message}"):
        fsd.train.run(fsd.train.TrainConfig(**unmeasured, **results), ctx)
    assert list(tmp_path.glob("*run*")) + list(tmp_path.glob("model*")) == []


def test_a_run_that_measures_nothing_needs_a_train_split_alone(unmeasured, ctx):
    report = fsd.train.run(fsd.train.TrainConfig(**unmeasured, eval_every=0), ctx).report
    assert len(report["epochs"]) == 1 and report["val_acc"] is None


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


class Ends(fsd.train.Callback):
    """Counts the steps between the meetings of ranks, and ends training where it is told to."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch, self.made = step, epoch, 0

    def on_begin(self, run):
        self.run = run

    def on_epoch_begin(self, epoch):
        self.before = self.run.step

    def on_step(self, batch):
        self.made, self.before = self.made + batch.step + 1 - self.before, batch.step + 1
        return batch.step == self.step

    def on_epoch(self, report):
        return report.stats.epoch == self.epoch

    @property
    def meet_every(self):
        return 1


def ended_early(ctx, path, directory):
    """By what ended a run: (steps that it made, its report, what rank 0 printed)."""
    found = {}
    for name, ends, options in (
        ("not at all", {}, {}),
        ("an epoch", {"epoch": 0}, {}),
        ("a step", {"step": 4}, {}),
        ("a step, with roles", {"step": 4}, {"roles": "1+1"}),
        ("saved", {"step": 3}, {"checkpoint_dir": directory, "checkpoint_every": 1}),
        ("resumed", {"step": 6}, {"checkpoint_dir": directory, "resume": True}),
        ("nothing left", {}, {"checkpoint_dir": directory, "resume": True, "epochs": 1}),
    ):
        ends, printed = Ends(**ends), io.StringIO()
        config = fsd.train.TrainConfig(
            data=path, batch_size=20, fanouts=(2, 2), hidden=8, threads=1, exchange="paired",
            **{"epochs": 3, "transport": "shared" if "roles" in options else "exchange", **options},
        )  # fmt: skip
        with redirect_stdout(printed):
            report = fsd.train.run(config, ctx, [ends]).report
        found[name] = ends.made, report, printed.getvalue()
    return found


def test_the_figures_are_those_of_the_steps_that_were_made(tmp_path):
    path = make_task(tmp_path, 2, dtype="float32").path  # 60 train nodes a rank: 3 or 4 steps an epoch
    ranks = run_distributed(2, ended_early, args=(path, tmp_path / "saved"))
    for of_rank in ranks:
        per_epoch = of_rank["an epoch"][0]
        expected = [3 * per_epoch, per_epoch, 5, 5, 4, 3, 0]
        assert [made for made, _, _ in of_rank.values()] == expected
        assert [report["steps"] for _, report, _ in of_rank.values()] == expected
    for name, (made, report, printed) in ranks[0].items():
        extra = name == "resumed"  # a resumed run rehearses one sum
        assert "roles" in name or report["comm"].get("gradients", {"calls": 0})["calls"] == made + extra
        assert (f"in {made} training steps" in printed) == (made > 0)
        left = {"resumed": 3 * per_epoch - 4, "nothing left": 0}.get(name, 3 * per_epoch)
        assert f"each, {left} steps" in printed  # planned, in the opening line
    assert all("payload exchanges per step: 2 (" in ranks[0][name][2] for name in ("not at all", "an epoch"))


def test_the_trainer_is_a_public_name():
    assert fsd.Trainer is fsd.train.Trainer is fsd.train.trainer.Trainer
