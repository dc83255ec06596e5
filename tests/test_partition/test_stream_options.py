"""--passes, --order and --buffer: what they change, where they are recorded, and with what they are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist as fsd
from fastsample_dist.graph.storage import load_topology, read_manifest
from fastsample_dist.partition import cli_tasks
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external.journal import work_directory
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.write import build
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import draw_raw, write_input
from tests.test_partition.test_api import contents
from tests.test_partition.test_cli import run_refused

RAW = draw_raw(undirected=True, num_nodes=300)


def parts_by(tmp_path: Path, name: str, **options: object) -> np.ndarray:
    """Nodes per part, in order of original ids."""
    path = tmp_path / name
    manifest = build_partition(RAW, PartitionOptions(num_parts=3, **options), path).manifest
    ids = load_topology(path, manifest).orig_ids.numpy()
    parts = np.empty(len(ids), dtype=np.int64)
    parts[ids] = np.repeat(np.arange(3), np.diff(manifest.part_ranges))
    return parts


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_passes_change_the_cut_and_ten_are_the_default(method, tmp_path):
    default, ten, one = (
        parts_by(tmp_path, name, method=method, **given)
        for name, given in (("default", {}), ("ten", {"passes": 10}), ("one", {"passes": 1}))
    )
    assert (default == ten).all() and (default != one).any()


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("method", ["ldg", "stream"])
def test_an_order_gives_the_same_bytes_in_memory_and_on_disk(method, undirected, tmp_path, monkeypatch):
    copied, copy = [], build.rows_in_order
    monkeypatch.setattr(build, "rows_in_order", lambda *args, work: copied.append(args[3]) or copy(*args, work=work))
    raw = draw_raw(undirected=undirected, num_nodes=300)
    for on_disk in (False, True):
        options = PartitionOptions(num_parts=3, method=method, order="bfs", seed=2, on_disk=on_disk)
        build_partition(raw, options, tmp_path / f"parts-{on_disk}")
    assert copied == (["indices", "weights"] if method == "stream" and not undirected else ["indices"])
    assert contents(tmp_path / "parts-True") == contents(tmp_path / "parts-False")
    assert len(list(tmp_path.iterdir())) == 2  # the work directory is gone
    manifest = read_manifest(tmp_path / "parts-True")
    assert manifest.stats["options"] == {"order": "bfs"}
    default = build_partition(raw, PartitionOptions(num_parts=3, method=method, seed=2), tmp_path / "given").manifest
    assert default.files["topology/orig_ids.npy"] != manifest.files["topology/orig_ids.npy"]


def test_options_that_are_given_are_in_the_manifest_and_no_others(tmp_path):
    parts_by(tmp_path, "default", method="ldg")
    parts_by(tmp_path, "given", method="ldg", passes=2)
    assert "options" not in read_manifest(tmp_path / "default").stats
    assert read_manifest(tmp_path / "given").stats["options"] == {"passes": 2}


def test_reports_name_them(tmp_path, capsys):
    graph = write_input(tmp_path / "graph", RAW)
    argv = ["--input", str(graph), "--num-parts", "3", "--output", str(tmp_path / "parts"), "--method", "ldg"]
    assert main([*argv, "--passes", "2", "--order", "bfs"]) == 0
    assert main(["--inspect", str(tmp_path / "parts"), "--json", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("parts      3, by ldg, seed 0, order bfs, passes 2\n") == 2
    assert printed.count("put the nodes in order: ") == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stats"]["options"] == {"passes": 2, "order": "bfs"}


def test_parts_that_are_joined_keep_them(tmp_path):
    parts_by(tmp_path, "given", method="ldg", passes=2)
    assert main(["--repartition", str(tmp_path / "given"), "1", "--output", str(tmp_path / "joined")]) == 0
    assert read_manifest(tmp_path / "joined").stats["options"] == {"passes": 2}


def test_a_kept_assignment_is_taken_up_with_the_same_options_alone(tmp_path, monkeypatch):
    calls = []
    assign, write = build._assign, build._write
    monkeypatch.setattr(build, "_assign", lambda *args: calls.append(args) or assign(*args))

    def ended(*args):
        raise KeyboardInterrupt

    def run(passes):
        build_partition(
            RAW, PartitionOptions(num_parts=3, method="ldg", passes=passes, on_disk=True), tmp_path / "parts"
        )

    monkeypatch.setattr(build, "_write", ended)
    for passes in (2, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            run(passes)
    assert len(calls) == 2 and work_directory(tmp_path / "parts").is_dir()
    monkeypatch.setattr(build, "_write", write)
    run(3)
    assert len(calls) == 2


def test_in_python_a_buffer_may_be_text(tmp_path):
    with pytest.raises(ValueError, match="buffer does not go with method ldg; leave it out, or take one that reads it"):
        fsd.partition_graph(RAW, num_parts=2, method="ldg", buffer="64MB", output=tmp_path / "parts")
    with pytest.raises(ValueError, match="'much' is not a size"):
        fsd.partition_graph(RAW, num_parts=2, method="ldg", buffer="much", output=tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "ldg", "--passes", "0"), "passes is 0; expected an integer >= 1."),
        (("--method", "ldg", "--passes", "-3"), "passes is -3; expected an integer >= 1."),
        (("--method", "ldg", "--order", "dfs"), "argument --order: invalid choice: 'dfs'"),
        (("--passes", "3"), "passes does not go with method metis; leave it out, or take one that reads it: ldg, fen"),
        (("--method", "random", "--order", "bfs"), "order does not go with method random; leave it out, or take one"),
        (("--method", "fennel", "--buffer", "1MB"), "buffer does not go with method fennel; leave it out, or take one"),
        (("--method", "ldg", "--buffer", "0"), "buffer is 0; expected an integer >= 1."),
        (("--method", "ldg", "--buffer", "lots"), "--buffer 'lots' is not a size"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options, message, tmp_path, capsys):
    graph = write_input(tmp_path / "graph")
    argv = ["--input", graph, "--num-parts", 2, "--output", tmp_path / "parts", *options]
    assert message in run_refused(capsys, *argv)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_order_that_is_not_known_is_refused_in_python():
    with pytest.raises(ValueError, match="order is 'dfs'; expected 'given' or 'bfs'"):
        PartitionOptions(num_parts=2, method="ldg", order="dfs")


@pytest.mark.parametrize("task", [("--inspect",), ("--check",), ("--repartition", "1")])
def test_they_go_with_cutting_and_planning_alone(task, tmp_path, capsys):
    argv = (task[0], tmp_path, *task[1:], "--passes", 3)
    assert f"--passes does not go with {task[0]}; leave it out." in run_refused(capsys, *argv)


def test_a_plan_takes_them_and_refuses_what_a_cut_refuses(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli_tasks, "resident_bytes", lambda: 240_000_000)  # of this process it grows meanwhile
    sizes = ("--plan", "--num-nodes", "1000", "--num-edges", "5000", "--num-parts", "4")
    reports = []
    for more in ((), ("--passes", "3")):
        assert main([*sizes, *more, "--json", str(tmp_path / "plan.json")]) == 0
        reports.append(json.loads((tmp_path / "plan.json").read_text())["partitioning"]["disk"])
    assert reports[0] == reports[1]  # passes take time alone
    capsys.readouterr()
    assert main([*sizes, "--order", "bfs", "--json", str(tmp_path / "order.json")]) == 0
    plain, ordered = (
        json.loads((tmp_path / name).read_text())["partitioning"]["methods"] for name in ("plan.json", "order.json")
    )
    assert [name for name in plain if plain[name] != ordered[name]] == [
        name for name, method in METHODS.items() if "order" in method.reads
    ]
    assert ordered["ldg"]["on_disk"]["peak_bytes"] > plain["ldg"]["on_disk"]["peak_bytes"]
    capsys.readouterr()
    assert "passes is 0; expected an integer >= 1." in run_refused(capsys, *sizes, "--passes", 0)
