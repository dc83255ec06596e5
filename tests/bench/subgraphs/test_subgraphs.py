"""fastsample-bench subgraphs: the command as a user starts it, what peers are given, and what is refused."""

import json

import numpy as np
import pytest
import torch

from fastsample_dist.bench import cli
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.subgraphs import cli as subgraphs_cli
from fastsample_dist.bench.subgraphs import peers
from fastsample_dist.bench.subgraphs.cases import METHODS
from fastsample_dist.bench.subgraphs.measure import connected_roots, without_isolated_nodes
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import read_npy_graph
from tests.bench.inputs import rmat_input, without_packages, write_programs
from tests.parts import draw_partition

SMALL = ("--budget", "90", "--frontier-size", "12", "--trials", "2")
# Answers a line with a line, and notes how it was called.
PROGRAM = """#!/bin/sh
echo "$0 $*" >> "{calls}"
while read line; do echo "8.0 2.0 70 900"; done
"""


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory):
    """rmat:9:8 as an npy input directory."""
    return rmat_input(tmp_path_factory.mktemp("subgraphs"), 9)


@pytest.fixture
def ipdps19(tmp_path):
    """A directory of a program that gives one answer again and again."""
    return write_programs(tmp_path / "programs", ["frontier"], PROGRAM)


@pytest.fixture
def missing_pyg(tmp_path, monkeypatch):
    """Processes that are started cannot import PyG."""
    without_packages(["torch_geometric"], tmp_path / "broken", monkeypatch)


def run(*words):
    return cli.main(["subgraphs", *words])


def test_every_method_is_verified_and_measured(graph_path, ipdps19, tmp_path, capsys):
    found = tmp_path / "found.json"
    words = ("--graph", str(graph_path), *SMALL, "--eta", "1.5", "--verify", "--json", str(found))
    assert run(*words, "--baseline", f"ipdps19={ipdps19}", "--work", str(tmp_path / "work")) == 0
    printed, results = capsys.readouterr().out, json.loads(found.read_text())
    assert f"verify: passed: {3 * (len(METHODS) + 2) + len(METHODS) + 2} comparisons" in printed
    names = [(one["name"], one["method"]) for one in results["contestants"]]
    ours = [("fastsample_dist", method) for method in METHODS]
    assert names == [ours[0], ("fastsample_dist, ratio weights", "frontier"), ("ipdps19", "frontier"), *ours[1:]]
    theirs = results["contestants"][2]
    assert (theirs["nodes"], theirs["edges"]) == (70, 900)
    assert theirs["whole_ms"] == {"median": 8.0, "min": 8.0} and theirs["walk_ms"]["median"] == 2.0
    parts = {one["method"]: one for one in results["parts"]}
    assert list(parts) == list(METHODS) and parts["frontier"]["steps"] == 90 - 12
    assert all(one["scanned"] >= one["nodes"] and one["dgl_ms"] is None for one in parts.values())
    shapes = [(one["structure"], one["eta"], one["max_degree"]) for one in results["structures"]]
    assert shapes == [(name, eta, clip) for clip in (None, 30) for name, eta in (("sums", None), ("dashboard", 1.5))]
    assert all((one["probes"] >= 1) == (one["structure"] == "dashboard") for one in results["structures"])
    assert [one["threads"] for one in results["pool"]] == [1, 2]
    [call] = (ipdps19 / "calls").read_text().splitlines()
    assert call.endswith("graph.bin 12 90")


def test_isolated_nodes_are_left_out():
    graph = CSCGraph(torch.tensor([0, 1, 1, 1, 2]), torch.tensor([3, 2]), orig_ids=torch.tensor([5, 6, 7, 8]))
    kept = without_isolated_nodes(graph)  # node 1 has no edge; node 2 is a source only
    assert (kept.indptr.tolist(), kept.indices.tolist(), kept.orig_ids.tolist()) == ([0, 1, 1, 2], [2, 1], [5, 7, 8])


def test_the_papers_program_gets_the_graph(graph_path, tmp_path):
    graph = read_npy_graph(graph_path).to_csc()
    roots = connected_roots(graph)
    peers.write_graph(graph, roots, [Baseline("ipdps19", tmp_path)], tmp_path)
    head = np.fromfile(tmp_path / "graph.bin", np.int64, 3)
    assert head.tolist() == [graph.num_nodes, graph.num_edges, roots.numel()]
    words = np.fromfile(tmp_path / "graph.bin", np.int32, offset=24)
    assert words.tolist() == [*graph.indptr.tolist(), *graph.indices.tolist(), *roots.tolist()]


@pytest.mark.grid
def test_dgl_draws_and_induces_beside_ours(graph_path, tmp_path):
    pytest.importorskip("dgl", reason="dgl is not installed")
    found = tmp_path / "found.json"
    words = ("--graph", str(graph_path), *SMALL, "--method", "node", "--method", "walk", "--baseline", "dgl")
    assert run(*words, "--clip=-1", "--eta", "2", "--json", str(found)) == 0
    results = json.loads(found.read_text())
    names = [(one["name"], one["method"]) for one in results["contestants"]]
    assert names == [(name, method) for method in ("node", "walk") for name in ("fastsample_dist", "dgl")]
    assert all(one["dgl_ms"]["min"] > 0 for one in results["parts"])


@pytest.mark.grid
def test_deep_models_are_trained_on_subgraphs_and_on_neighbours(tmp_path):
    found = tmp_path / "found.json"
    words = ("--layers", "2,3", "--hidden", "8", "--steps", "2", "--fanout", "2", "--batch-size", "5", *SMALL)
    assert run("--graph", "rmat:8:8", *words, "--work", str(tmp_path / "work"), "--json", str(found)) == 0
    rows = json.loads(found.read_text())["layers"]
    assert [(one["layers"], one["sampler"]) for one in rows] == [
        (layers, sampler) for layers in (2, 3) for sampler in ("subgraphs", "neighbours")
    ]
    assert all(one["trained"] > 0 and one["node_us"]["min"] > 0 for one in rows)
    assert rows[0]["rows"] == rows[2]["rows"]  # a subgraph's rows serve any number of layers


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """20 train nodes of 240, in one part."""
    return draw_partition(tmp_path_factory.mktemp("layers"), 1, num_train=20).path


def test_an_epoch_of_too_few_steps_for_a_turn_is_refused(task, capsys):
    assert run("--graph", str(task), *SMALL, "--layers", "2", "--batch-size", "20", "--steps", "1") == 1
    assert "has 1 step(s), but a turn takes --steps 1 and one before them; pass a smaller" in capsys.readouterr().err


def test_steps_that_train_no_node_are_refused(task, capsys):
    words = ("--layers", "2", "--batch-size", "5", "--steps", "1", "--hidden", "4", "--budget", "2")
    assert run("--graph", str(task), *words, "--frontier-size", "1", "--seed", "6") == 1
    assert "no train node was drawn by subgraphs in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--baseline", "graphsaint"), "--baseline is 'graphsaint'; expected ipdps19=DIR, dgl or pyg."),
        (("--baseline", "ipdps19=/nowhere"), "frontier is not there; pass the directory of a program"),
        (("--budget", "10"), "frontier_size is 1000 but budget is 10"),
        (("--eta", "1"), "eta is 1.0; expected a finite number above 1"),
        (("--clip=-2,30",), "argument --clip: must be a list of degrees >= 1, or -1, such as -1,30, not '-2,30'; see"),
        (("--clip", "0"), "argument --clip: must be a list of degrees >= 1, or -1, such as -1,30, not '0'; see"),
        (("--clip", ""), "argument --clip: must be a list of degrees >= 1, or -1, such as -1,30, not ''; see"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(graph_path, capsys, words, message):
    assert run("--graph", str(graph_path), *words) != 0
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_package_that_cannot_be_run_is_refused_before_anything_is_measured(
    graph_path, missing_pyg, capsys, monkeypatch
):
    monkeypatch.setattr(subgraphs_cli, "measure", None)
    assert run("--graph", str(graph_path), *SMALL, "--method", "node", "--baseline", "pyg") == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fastsample-bench: error: --baseline pyg: ") and "not on this machine" in line


def test_a_package_that_is_not_asked_for_anything_may_be_missing(graph_path, missing_pyg):
    assert run("--graph", str(graph_path), *SMALL, "--method", "frontier", "--baseline", "pyg") == 0


def test_a_peers_end_is_reported_with_its_last_line(graph_path, ipdps19, capsys):
    (ipdps19 / "frontier").write_text("#!/bin/sh\necho 'no memory' >&2\nexit 3\n")
    assert run("--graph", str(graph_path), *SMALL, "--method", "frontier", "--baseline", f"ipdps19={ipdps19}") != 0
    assert "ipdps19 ended: no memory" in capsys.readouterr().err
