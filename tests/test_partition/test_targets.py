"""Labels for multilabel and regression in a partition: what is written, kept, checked, planned and shown."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist as fsd
from fastsample_dist.graph import npy_files
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import load_orig_ids, load_part, read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.plan.disk import output_bytes
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.repartition import repartition
from tests.test_partition.damage import entry, rewrite, rewrite_manifest
from tests.test_partition.inputs import draw_raw, write_input

NAN = np.nan


def draw(task: str, *, dtype: type = np.float64, **options: object) -> RawGraph:
    """Drawn labels, some of which are not known: NaN, or -1 of integers."""
    raw = draw_raw(undirected=True, **options)
    rng = np.random.default_rng(7)
    if task == "multilabel":
        values = rng.integers(0, 2, (raw.num_nodes, 5)).astype(dtype)
    else:
        values = rng.normal(size=(raw.num_nodes, 2)).astype(dtype)
    unknown = rng.random(values.shape) < 0.2
    unknown[:, 0] = False
    values[unknown] = -1 if np.issubdtype(dtype, np.integer) else NAN
    values[raw.splits["test"][:3]] = -1 if np.issubdtype(dtype, np.integer) else NAN
    return dataclasses.replace(raw, labels=None, num_classes=0, targets=values, task=task)


def stored(path: Path) -> np.ndarray:
    """Labels of all parts by original id."""
    manifest = read_manifest(path)
    rows = np.concatenate([load_part(path, manifest, part).labels.numpy() for part in range(manifest.num_parts)])
    by_original = np.empty_like(rows)
    by_original[load_orig_ids(path, manifest).numpy()] = rows
    return by_original


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


CASES = [("multilabel", np.float64), ("multilabel", np.int8), ("regression", np.float64), ("regression", np.float32)]


@pytest.mark.parametrize(("task", "dtype"), CASES)
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1 << 24, 24])
def test_targets_follow_their_nodes(tmp_path, monkeypatch, task, dtype, on_disk, chunk_bytes):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    raw = draw(task, dtype=dtype)
    build_partition(raw, PartitionOptions(num_parts=3, method="random", on_disk=on_disk), tmp_path / "parts")
    expected = raw.targets.astype(np.float32)
    if task == "multilabel":
        expected[expected == -1] = NAN
    found = stored(tmp_path / "parts")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    manifest = read_manifest(tmp_path / "parts")
    assert (manifest.version, manifest.task, manifest.num_targets) == (1, task, raw.targets.shape[1])
    assert manifest.num_classes == 0
    names = {Path(name).name for name in manifest.files}
    assert "targets.npy" in names and "labels.npy" not in names
    assert check_partition(tmp_path / "parts") == []


def test_sorted_on_disk_from_mapped_files_gives_the_same_bytes(tmp_path):
    raw = draw("multilabel", dtype=np.int8)
    graph = write_input(tmp_path / "graph", dataclasses.replace(raw, labels=np.zeros(60, np.int64)))
    np.save(graph / "labels.npy", raw.targets)
    for name, more in (("memory", []), ("disk", ["--on-disk"])):
        argv = ["--input", graph, "--num-parts", 3, "--method", "random", "--output", tmp_path / name, *more]
        assert main([str(item) for item in argv]) == 0
    assert contents(tmp_path / "memory") == contents(tmp_path / "disk")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
@pytest.mark.parametrize("num_parts", [2, 8])
def test_repartition_keeps_them(tmp_path, task, num_parts):
    raw = draw(task)
    build_partition(raw, PartitionOptions(num_parts=4, method="random"), tmp_path / "parts")
    repartition(tmp_path / "parts", num_parts, tmp_path / "new")
    np.testing.assert_array_equal(stored(tmp_path / "new"), stored(tmp_path / "parts"))
    assert check_partition(tmp_path / "new") == []


def test_arrays_in_memory_take_the_task(tmp_path):
    raw = draw("regression")
    values = np.abs(raw.targets[:, 0])
    fsd.partition_graph(
        raw.edge_index, None, values, num_parts=2, method="random", task="regression", output=tmp_path / "parts"
    )
    assert read_manifest(tmp_path / "parts").task == "regression"
    np.testing.assert_array_equal(stored(tmp_path / "parts")[:, 0], values.astype(np.float32))


def test_classes_write_the_same_manifest_as_before(tmp_path):
    build_partition(draw_raw(undirected=True), PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    assert not {"task", "num_targets"} & json.loads((tmp_path / "parts/manifest.json").read_text()).keys()


# ---- --check and the manifest


@pytest.fixture(scope="module")
def templates(tmp_path_factory) -> dict[str, Path]:
    paths = {task: tmp_path_factory.mktemp(task) / "parts" for task in ("multilabel", "regression")}
    for task, path in paths.items():
        build_partition(draw(task), PartitionOptions(num_parts=3, method="random"), path)
    return paths


@pytest.fixture
def copy(templates, tmp_path):
    return lambda task: shutil.copytree(templates[task], tmp_path / "parts")


def only_finding(parts: Path) -> str:
    findings = check_partition(parts)
    assert len(findings) == 1, "\n".join(map(str, findings))
    return str(findings[0])


@pytest.mark.parametrize(
    ("task", "value", "text"),
    [
        ("multilabel", 0.5, "part-1/targets.npy, entry 4: is 0.5 in column 1; expected 0, 1 or NaN"),
        ("multilabel", -1, "part-1/targets.npy, entry 4: is -1.0 in column 1; expected 0, 1 or NaN"),
        ("regression", np.inf, "part-1/targets.npy, entry 4: is inf in column 1; expected finite numbers or NaN"),
    ],
)
def test_a_value_that_is_no_label_is_found(copy, task, value, text):
    parts = copy(task)
    rewrite(parts, "part-1/targets.npy", entry((4, 1), value))
    assert text in only_finding(parts)


def test_a_train_node_without_a_label_is_found(copy):
    parts = copy("regression")
    train = np.load(parts / "part-0/train.npy")
    rewrite(parts, "part-0/targets.npy", entry(train[2], NAN))
    assert f"train.npy, entry 2: is node {train[2]}, which has no label" in only_finding(parts)


def test_targets_of_another_type_are_found(copy):
    parts = copy("regression")
    rewrite(parts, "part-2/targets.npy", lambda rows: rows.astype(np.float64))
    assert "holds float64 of shape (20, 2); expected float32 of shape (20, 2)" in only_finding(parts)
    with pytest.raises(ValueError, match=r"part-2/targets.npy .*expects float32"):
        load_part(parts, read_manifest(parts), 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "ranking"}, r"labels are for the task 'ranking'; this release knows classification, multilabel, reg"),
        ({"task": "classification"}, "its task is classification but its num_targets is 2"),
        ({"num_targets": -1}, "its num_targets is -1"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(copy, fields, message):
    parts = copy("regression")
    rewrite_manifest(parts, **fields)
    with pytest.raises(ValueError, match=message):
        read_manifest(parts)


# ---- the command


@pytest.fixture
def graph(tmp_path) -> Path:
    path = write_input(tmp_path / "graph")
    np.save(path / "labels.npy", np.linspace(0, 1, 60))
    return path


def test_the_option_and_the_report(graph, tmp_path, capsys):
    argv = ["--input", graph, "--num-parts", 2, "--method", "random", "--output", tmp_path / "parts"]
    argv = [str(item) for item in argv]
    assert main(argv) == 1
    refusal = capsys.readouterr().err
    assert "labels.npy is float64" in refusal and "--task" in refusal and refusal.count("\n") == 1
    assert main([*argv, "--task", "regression"]) == 0
    assert "labels     1 per node, regression" in capsys.readouterr().out
    report = tmp_path / "report.json"
    assert main(["--inspect", str(tmp_path / "parts"), "--json", str(report)]) == 0
    assert (json.loads(report.read_text())["task"], json.loads(report.read_text())["num_targets"]) == ("regression", 1)
    assert main(["--check", str(tmp_path / "parts")]) == 0


def test_a_plan_counts_them(graph, tmp_path):
    plans = {}
    for task in ("regression", "classification"):
        file = tmp_path / f"{task}.json"
        argv = ["--plan", "--input", graph, "--num-parts", 2, "--task", task, "--json", file]
        assert main([str(item) for item in argv]) == 0
        plans[task] = json.loads(file.read_text())
    assert plans["regression"]["graph"]["num_targets"] == 1
    sizes = {task: plan["partitioning"]["disk"]["output_bytes"] for task, plan in plans.items()}
    assert sizes["classification"] - sizes["regression"] == 4 * 60


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_plan_of_the_disk_holds(tmp_path, task):
    raw = draw(task, num_nodes=3000, num_train=100)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    size = sum(file.stat().st_size for file in (tmp_path / "parts").rglob("*") if file.is_file())
    assert 0 <= output_bytes(sizes_of(raw), 2) - size < 0.3 * size


def test_a_plan_of_a_finished_partition_knows_them(templates, tmp_path):
    file = tmp_path / "plan.json"
    assert main(["--plan", "--input", str(templates["multilabel"]), "--fanouts", "2", "--json", str(file)]) == 0
    plan = json.loads(file.read_text())
    assert plan["graph"]["num_targets"] == plan["training"]["model"]["num_classes"] == 5
