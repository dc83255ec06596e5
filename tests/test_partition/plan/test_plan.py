"""fastsample-partition --plan as a command: what it prints, writes and refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.inputs import read_graph
from fastsample_dist.partition import cli_tasks
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import NUM_NODES, draw_raw, write_input

SIZES = ("--num-nodes", 1_000_000, "--num-edges", 20_000_000, "--num-parts", 8)
TRAINING = ("--fanouts", "15,10,5", "--batch-size", 1000, "--feature-dim", 100, "--num-train-nodes", 80_000)


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Runs --plan as in a process of its own size; returns what it prints and its --json."""
    monkeypatch.setattr(cli_tasks, "resident_bytes", lambda: 240_000_000)

    def run(*options):
        assert main([str(item) for item in ("--plan", *options, "--json", tmp_path / "plan.json")]) == 0
        return capsys.readouterr().out, json.loads((tmp_path / "plan.json").read_text())

    return run


def test_every_method_has_a_peak_either_way(plan):
    printed, report = plan(*SIZES)
    assert list(report["partitioning"]["methods"]) == list(METHODS)
    for name, method in report["partitioning"]["methods"].items():
        assert method["in_memory"]["peak_bytes"] > report["partitioning"]["base_bytes"]
        assert method["on_disk"]["peak_bytes"] > report["partitioning"]["base_bytes"]
        assert f"\n  {name} " in printed


def test_a_method_that_does_not_fit_is_marked_with_the_reason(plan):
    printed, report = plan(*SIZES, "--memory-limit", "700MB")
    methods = report["partitioning"]["methods"]
    assert "holds the whole graph" in methods["metis"]["obstacle"]
    assert "the limit is 700MB" in methods["metis"]["obstacle"]
    assert methods["ldg"]["obstacle"] is None
    assert [name for name in methods if methods[name]["obstacle"]] == ["metis", "kaminpar"]
    assert printed.count(f"  {methods['metis']['obstacle']}") == 1
    assert report["partitioning"]["chosen"] == "on_disk"


@pytest.mark.parametrize(
    ("limit", "obstacle"),
    [
        ("300MB", "refused: holds the whole graph"),
        ("600MB", "ended at the limit if the graph has no communities: up to"),
        ("1GB", "ended at the limit if it has neither communities nor hubs: "),
    ],
)
def test_a_method_in_a_process_of_its_own_needs_less_on_a_graph_with_communities(plan, limit, obstacle):
    printed, report = plan(*SIZES, "--undirected", "--memory-limit", limit)
    kaminpar = report["partitioning"]["methods"]["kaminpar"]
    assert kaminpar["obstacle"].startswith(obstacle)
    assert report["partitioning"]["base_bytes"] < kaminpar["least_bytes"] < kaminpar["on_disk"]["peak_bytes"]
    assert kaminpar["on_disk"]["peak_bytes"] < kaminpar["most_bytes"]
    least, most = kaminpar["least_bytes"] / 1e6, kaminpar["most_bytes"] / 1e9
    assert f"with communities {least:.3g} MB for the step assign, with neither {most:.3g} GB" in printed


def test_a_limit_that_cannot_work_marks_every_method(plan):
    _, report = plan(*SIZES, "--memory-limit", "100MB")
    assert all(method["obstacle"] for method in report["partitioning"]["methods"].values())


def test_without_fanouts_there_is_no_traffic(plan):
    printed, report = plan(*SIZES)
    assert "not planned; pass --fanouts" in printed
    assert "traffic" not in report["training"] and "step" not in report["training"]["schemes"]["hybrid"]


def test_sizes_alone_give_an_estimate_of_traffic(plan):
    printed, report = plan(*SIZES, *TRAINING)
    training = report["training"]
    assert "estimated from sizes" in printed and not training["traffic"]["sampled"]
    assert training["traffic"]["steps_per_epoch"] == 10
    assert training["schemes"]["hybrid"]["step"]["exchanges"] == 2
    assert training["schemes"]["vanilla"]["step"]["exchanges"] == 6
    assert training["quicker"] == "hybrid"
    for scheme in training["schemes"].values():
        assert scheme["epoch_s"] == pytest.approx(10 * scheme["step"]["seconds"])


def test_a_slower_network_takes_longer(plan):
    network = ("--bandwidth", "1Gb/s", "--latency", "1ms")
    fast, slow = (plan(*SIZES, *TRAINING, *options)[1]["training"] for options in ((), network))
    assert slow["network"] == {"alpha_s": 1e-3, "beta_bytes_s": 1e9 / 8}
    assert slow["schemes"]["hybrid"]["epoch_s"] > 10 * fast["schemes"]["hybrid"]["epoch_s"]


def test_machines_are_compared_with_their_memory(plan):
    huge = ("--num-nodes", 10**9, "--num-edges", 2 * 10**10, "--num-parts", 64, "--feature-dim", 128)
    printed, report = plan(*huge, "--hosts-memory", "64GB")
    schemes = report["training"]["schemes"]
    assert not schemes["hybrid"]["fits"] and schemes["hybrid"]["least_machines"] is None
    assert schemes["vanilla"]["fits"] and schemes["vanilla"]["least_machines"] <= 64
    assert "fits into machines of 64 GB: vanilla" in printed and "on no number of machines" in printed


def test_an_input_directory_is_sampled_where_it_is_small(plan, tmp_path):
    graph = write_input(tmp_path / "graph")
    printed, report = plan("--input", graph, "--num-parts", 2, "--fanouts", "3,2", "--batch-size", 5)
    assert report["graph"]["num_nodes"] == NUM_NODES and report["graph"]["splits"]["train"] == 23
    assert "sampled on the graph, cut by method random" in printed
    assert report["training"]["traffic"]["steps_per_epoch"] == 3


def test_an_input_that_would_be_cut_on_disk_is_not_read(plan, tmp_path):
    graph, training = write_input(tmp_path / "graph"), ("--fanouts", "3,2", "--batch-size", 5)
    printed, report = plan("--input", graph, "--num-parts", 2, *training, "--memory-limit", "100MB")
    assert report["partitioning"]["chosen"] == "on_disk"
    assert "estimated from sizes" in printed and not report["training"]["traffic"]["sampled"]


def test_a_finished_partition_is_planned_with_its_own_parts(plan, tmp_path):
    build_partition(read_graph(write_input(tmp_path / "g")), PartitionOptions(num_parts=3), tmp_path / "parts")
    printed, report = plan("--input", tmp_path / "parts", "--fanouts", "3,2", "--batch-size", 5)
    assert report["num_parts"] == 3 and "as it is cut (metis)" in printed
    assert report["graph"]["splits"]["train"] == 23


def test_an_edge_list_is_said_to_be_estimated(plan, tmp_path):
    edges = draw_raw(undirected=True).edge_index.T.tolist()
    (tmp_path / "edges.csv").write_text("".join(f"{src},{dst}\n" for src, dst in edges))
    printed, report = plan("--input", tmp_path / "edges.csv", "--undirected", "--num-parts", 2)
    assert "estimated: edges and nodes of" in printed
    assert report["graph"]["num_listed"] == len(edges)


def huge_directory(path: Path) -> Path:
    """An npy directory of 320 GB of edges, all of it a hole in the file."""
    path.mkdir()
    num_edges = 20_000_000_000
    with (path / "edge_index.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2, num_edges)})
        file.truncate(file.tell() + 2 * 8 * num_edges)
    (path / "meta.json").write_text(json.dumps({"name": "huge", "num_nodes": 500_000_000, "undirected": False}))
    return path


def test_a_graph_larger_than_the_machine_is_planned_from_its_headers(plan, tmp_path):
    def read_so_far() -> int:
        return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])

    graph, before = huge_directory(tmp_path / "huge"), read_so_far()
    printed, report = plan("--input", graph, "--num-parts", 16, "--fanouts", "15,10,5")
    assert read_so_far() - before < 1_000_000
    assert report["graph"]["num_edges"] == 20_000_000_000
    assert "estimated from sizes" in printed
    assert report["partitioning"]["disk"]["output_bytes"] > 4 * 20_000_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--plan needs --input, or --num-nodes and --num-edges"),
        (("--num-nodes", 10), "--plan needs --input, or --num-nodes and --num-edges"),
        (("--num-nodes", 0, "--num-edges", 5, "--num-parts", 2), "num_nodes is 0; expected at least 1"),
        (("--num-nodes", 10, "--num-edges", -5, "--num-parts", 2), "num_edges is -5; expected at least 0"),
        (("--num-nodes", 10, "--num-edges", 5, "--num-parts", 0), "num_parts is 0; expected at least 1"),
        (("--num-nodes", 10, "--num-edges", 5), "--plan needs --num-parts"),
        (("--num-nodes", 10, "--num-edges", 5, "--num-parts", 11), "num_parts is 11 but the graph has 10 nodes"),
        ((*SIZES, "--num-train-nodes", 5), "num_parts is 8 but the graph has 5 train nodes"),
        ((*SIZES, "--num-train-nodes", 0), "the number of train nodes is 0; expected at least 1"),
        ((*SIZES, "--feature-dim", -1), "feature_dim is -1; expected at least 0"),
        ((*SIZES, "--hidden", 0), "hidden is 0; expected at least 1"),
        ((*SIZES, "--batch-size", 5), "--batch-size goes with --fanouts only"),
        ((*SIZES, "--fanouts", "15,x"), "--fanouts is '15,x'; expected integers"),
        ((*SIZES, "--bandwidth", "25GB/s"), "--bandwidth '25GB/s' is not a bandwidth; expected bits per second"),
        ((*SIZES, "--latency", "fast"), "--latency 'fast' is not a latency; expected"),
        ((*SIZES, "--hosts-memory", "much"), "--hosts-memory 'much' is not a size"),
        ((*SIZES, "--memory-limit", "0"), "memory_limit is 0; expected at least 1"),
        ((*SIZES, "--format", "npy"), "--format goes with --input"),
        ((*SIZES, "--method", "metis"), "--method does not go with --plan"),
        ((*SIZES, "--output", "parts"), "--output does not go with --plan"),
        ((*SIZES, "--inspect", "parts"), "--inspect does not go with --plan"),
        (("--input", "g", "--num-nodes", 10, "--num-parts", 2), "--num-nodes does not go with --input"),
        (("--input", "missing", "--num-parts", 2), "missing does not exist"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, message, capsys):
    assert main(["--plan", *map(str, options)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_options_of_a_plan_do_not_go_with_other_tasks(capsys):
    assert main(["--inspect", "parts", "--hosts-memory", "1GB"]) == 1
    assert "--hosts-memory does not go with --inspect" in capsys.readouterr().err


def test_a_format_that_tells_no_sizes_is_refused_with_the_way_out(tmp_path, monkeypatch, capsys):
    from dataclasses import replace

    from fastsample_dist.graph import inputs

    graph = write_input(tmp_path / "graph")
    monkeypatch.setitem(inputs.FORMATS, "npy", replace(inputs.FORMATS["npy"], sizes=None))
    assert main(["--plan", "--input", str(graph), "--num-parts", "2"]) == 1
    assert "whose sizes are unknown before it is read; pass --num-nodes and --num-edges" in capsys.readouterr().err
