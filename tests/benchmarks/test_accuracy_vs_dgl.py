"""The accuracy comparison, as far as it works without dgl: the commands it starts and the table it prints."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.generators import planted_communities, write_npy_graph

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy_vs_dgl.py"
spec = importlib.util.spec_from_file_location("accuracy_vs_dgl", SCRIPT)
benchmark = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = benchmark  # dataclasses look their module up by name
spec.loader.exec_module(benchmark)


def recipe(**changes) -> "benchmark.Recipe":
    values = {"epochs": 2, "batch_size": 1000, "fanouts": (15, 10, 5), "hidden": 16, "dropout": 0.5, "lr": 0.01}
    return benchmark.Recipe(**{**values, "eval_mode": "sampled", **changes})


def options(**changes) -> argparse.Namespace:
    return argparse.Namespace(
        **{"torchrun": "torchrun", "scheme": "hybrid", "batch_per_rank": False, "threads": 1, **changes}
    )


def partition(folder: Path, num_parts: int) -> Path:
    (folder / "manifest.json").write_text(json.dumps({"num_parts": num_parts}))
    return folder


@pytest.mark.parametrize(("per_rank", "expected"), [(False, "250"), (True, "1000")])
def test_command_starts_a_rank_per_part_and_shares_the_batch(per_rank, expected, tmp_path):
    parts = partition(tmp_path, 4)
    command = benchmark.ours_command(parts, recipe(), 7, Path("out.json"), options(batch_per_rank=per_rank))
    assert command[:4] == ["torchrun", "--standalone", "--nproc-per-node", "4"]
    assert f"--batch-size={expected}" in command
    assert {f"--data={parts}", "--seed=7", "--fanouts=15,10,5", "--eval-fanouts=15,10,5", "--layers=3"} < set(command)


def test_full_evaluation_takes_all_neighbours(tmp_path):
    command = benchmark.ours_command(partition(tmp_path, 1), recipe(eval_mode="full"), 0, Path("out.json"), options())
    assert "--eval-fanouts=-1,-1,-1" in command


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch size 1000 does not divide among the 3 parts"):
        benchmark.ours_command(partition(tmp_path, 3), recipe(), 0, Path("out.json"), options())


def test_a_directory_without_manifest_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no readable manifest\.json"):
        benchmark.ours_command(tmp_path, recipe(), 0, Path("out.json"), options())


def test_table_has_a_row_per_way_of_training_with_mean_and_range():
    run = {"steps": 380, "val_acc": 0.5}
    ours = {"scheme": "hybrid", "world_size": 2}
    result = {
        "dgl": [{**run, "test_acc": 0.7}, {**run, "test_acc": 0.72}],
        "ours": [{**run, **ours, "test_acc": 0.71}],
        "mlp": [],
        "majority": 0.1,
    }
    assert benchmark.markdown(result).split("\n")[2:] == [
        "| DGL NeighborSampler, 1 process | 2 | 380 | 0.5000 | 0.7100 | 0.7000 - 0.7200 |",
        "| fastsample_dist hybrid, 2 rank(s) | 1 | 380 | 0.5000 | 0.7100 | 0.7100 - 0.7100 |",
        "| most frequent class | - | - | - | 0.1000 | - |",
    ]


def test_mlp_learns_separable_classes_and_reports_every_epoch(tmp_path):
    graph, task = planted_communities(400, 4, seed=1, signal=6.0)
    write_npy_graph(tmp_path / "g", graph, name="easy", features=task.features, labels=task.labels, splits=task.splits)
    loaded = benchmark.read_task(tmp_path / "g")
    report = benchmark.Training(loaded, recipe(epochs=8, batch_size=100, dropout=0.0), None).run(seed=0)
    assert [epoch["epoch"] for epoch in report["epochs"]] == list(range(1, 9))
    assert report["steps"] == 8 * 3  # 240 train nodes: 100 + 100 + 40, none dropped
    assert report["test_acc"] > 0.9


def test_majority_counts_the_commonest_train_class_in_test(tmp_path):
    labels = np.array([1, 1, 0, 1, 0, 0, 1, -1])
    splits = {"train": np.array([0, 1, 2]), "val": np.array([3]), "test": np.array([4, 5, 6])}
    edges = np.array([[0], [1]])
    write_npy_graph(tmp_path / "g", (edges, 8), name="x", features=np.ones((8, 2)), labels=labels, splits=splits)
    assert benchmark.majority_accuracy(benchmark.read_task(tmp_path / "g")) == pytest.approx(1 / 3)


def test_a_directory_without_features_is_refused(tmp_path):
    write_npy_graph(tmp_path / "g", (np.array([[0], [1]]), 2), name="x")
    with pytest.raises(ValueError, match="must be an npy directory with features, labels and splits"):
        benchmark.read_task(tmp_path / "g")
