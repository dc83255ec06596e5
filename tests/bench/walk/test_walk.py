"""fastsample-bench walk: the command as a user starts it, what peers are given, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fastsample_dist.bench import cli
from fastsample_dist.bench.walk import measure, peers
from fastsample_dist.bench.walk.cases import CASES
from fastsample_dist.bench.walk.measure import OURS, OWN
from fastsample_dist.bench.walk.own import OwnUniform
from fastsample_dist.bench.walk.peers import Baseline, has_case
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.engines import forms_of
from fastsample_dist.testing.statistics import chi_square_p
from tests.bench.inputs import rmat_input, without_packages, write_programs
from tests.sampling.transit.apps import small_graph

SMALL = ("--walks", "60", "--batch-size", "25", "--length", "6", "--trials", "2")
# What ThunderRW's programs print, and a note of how they were called.
PROGRAM = """#!/bin/sh
echo "$0 $*" >> "{calls}"
echo "tunables=$GLIBC_TUNABLES" >> "{calls}"
echo "INFO creeper.h:415: Thread 0 Throughput (steps per second): 1.00" >&2
echo "INFO creeper.h:803: Throughput (steps per second): 2000000.00" >&2
"""


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory):
    """rmat:9:8 as an npy input directory."""
    return rmat_input(tmp_path_factory.mktemp("walk"), 9)


@pytest.fixture
def thunderrw(tmp_path):
    """A directory of programs that only note how they were called."""
    return write_programs(tmp_path / "programs", ["deepwalk.out", "ppr.out", "node2vec.out"], PROGRAM)


@pytest.fixture
def missing_pyg(tmp_path, monkeypatch):
    """Processes that are started cannot import what PyG walks with."""
    without_packages(["pyg_lib", "torch_cluster"], tmp_path / "broken", monkeypatch)


def run(*words):
    return cli.main(["walk", *words])


def test_every_walk_is_verified_and_measured(graph_path, thunderrw, tmp_path, capsys):
    found = tmp_path / "found.json"
    words = ("--graph", str(graph_path), *SMALL, "--threads", "1,2", "--limit", "--verify", "--json", str(found))
    assert run(*words, "--baseline", f"thunderrw={thunderrw}", "--work", str(tmp_path / "work")) == 0
    printed, results = capsys.readouterr().out, json.loads(found.read_text())
    assert f"verify: passed: {len(CASES) * 2 * 3} comparisons" in printed
    assert [(entry["app"], entry["threads"]) for entry in results["runs"]] == [(n, t) for n in CASES for t in (1, 2)]
    for entry in results["runs"]:
        names = [(one["name"], one["pages"]) for one in entry["contestants"]]
        rivals = [] if entry["app"] == "uniform" else [("thunderrw", "as it comes"), ("thunderrw", "huge")]
        assert names == [("fastsample_dist", "ours"), *rivals]
        assert all(len(one["rates"]) == 2 for one in entry["contestants"])
        assert (entry["limit"] is None) == (entry["app"] == "node2vec")
        assert entry["tables"]["bytes"] >= 0
    weighted = next(entry for entry in results["runs"] if entry["app"] == "deepwalk")
    edges = read_npy_graph(graph_path).to_csc().num_edges
    assert weighted["tables"]["bytes"] >= 12 * edges  # walk slots
    assert weighted["steps"] == 60 * 6  # no dead ends: the graph is symmetric


def test_thunderrw_gets_the_same_work_on_ordinary_and_on_huge_pages(graph_path, thunderrw):
    words = ("--graph", str(graph_path), *SMALL, "--trials", "1", "--threads", "2")
    assert run(*words, "--app", "ppr", "--app", "node2vec", "--baseline", f"thunderrw={thunderrw}") == 0
    calls = (thunderrw / "calls").read_text().splitlines()
    assert [line.split()[0].rsplit("/", 1)[1] for line in calls[::2]] == ["ppr.out"] * 2 + ["node2vec.out"] * 2
    assert all("-n 2" in line for line in calls[::2])
    assert "-sp 0.2" in calls[0] and "-p 2.0 -q 0.5 -l 6" in calls[4]
    assert calls[1::2] == ["tunables=", "tunables=glibc.malloc.hugetlb=1"] * 2


def test_thunderrws_files_hold_the_graph(graph_path, tmp_path):
    graph = read_npy_graph(graph_path).to_csc()
    peers.write_graph(graph, [Baseline("thunderrw", tmp_path)], tmp_path)
    head = np.fromfile(tmp_path / "b_degree.bin", np.int32)
    assert head[0] == 4 and head[1] == graph.num_nodes and head[2:4].view(np.int64)[0] == graph.num_edges
    assert head[4:].tolist() == graph.in_degrees().tolist()
    assert np.fromfile(tmp_path / "b_adj.bin", np.int32).tolist() == graph.indices.tolist()


@pytest.mark.grid
def test_a_users_application_walks_beside_the_built_in_one(graph_path, tmp_path):
    pytest.importorskip("numba", reason="numba is not installed")
    found = tmp_path / "found.json"
    assert (
        run("--graph", str(graph_path), *SMALL, "--app", "uniform", "--app", "ppr", "--own", "--json", str(found)) == 0
    )
    names = [[one["name"] for one in entry["contestants"]] for entry in json.loads(found.read_text())["runs"]]
    assert names == [[OURS, OWN], [OURS]]


class FirstNeighbour(OwnUniform):
    """Walks to the first neighbour."""

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        if len(edges) == 0:
            return transit.NULL
        return edges[0]


@pytest.mark.parametrize(("make_own", "status"), [(OwnUniform, 0), (FirstNeighbour, 1)])
def test_users_applications_are_verified_too(graph_path, capsys, monkeypatch, make_own, status):
    monkeypatch.setitem(CASES, "uniform", dataclasses.replace(CASES["uniform"], make_own=make_own))
    assert run("--graph", str(graph_path), *SMALL, "--app", "uniform", "--own", "--verify") == status
    expected = "verify: passed: 4 comparisons" if status == 0 else "uniform as a user's application with 1 thread(s)"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.make_own is not None])
def test_a_users_form_of_a_walk_has_its_law(name):
    app, built_in = CASES[name].make_own(4), CASES[name].make(4)
    graph = small_graph(weighted=CASES[name].weighted)
    assert type(app).next is not type(built_in).next and forms_of(transit.bind(app, graph)) == ["numba"]
    roots = torch.arange(12).repeat(40)
    ends = [plain.sample(graph, one, roots, 5).vertices[:, -1] for one in (app, built_in)]
    counts = [torch.bincount(end[end >= 0], minlength=12).double() for end in ends]
    total = counts[0] + counts[1]
    statistic = ((counts[0] - counts[1]) ** 2 / total.clamp(min=1)).sum()
    assert chi_square_p(float(statistic), int((total > 0).sum()) - 1) > 1e-6  # false alarms: 1e-6


@pytest.mark.grid
def test_dgl_walks_beside_ours(graph_path, tmp_path):
    pytest.importorskip("dgl", reason="dgl is not installed")
    found = tmp_path / "found.json"
    words = ("--graph", str(graph_path), *SMALL, "--trials", "1", "--app", "deepwalk", "--baseline", "dgl")
    assert run(*words, "--json", str(found)) == 0
    [entry] = json.loads(found.read_text())["runs"]
    assert [one["name"] for one in entry["contestants"]] == ["fastsample_dist", "dgl", "dgl"]
    assert all(one["median"] > 0 for one in entry["contestants"])


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("knightking", "--baseline is 'knightking'; expected thunderrw=DIR, dgl or pyg."),
        ("thunderrw", "--baseline is 'thunderrw'; expected thunderrw=DIR, dgl or pyg."),
        ("thunderrw=/nowhere", "deepwalk.out is not there; pass the directory of its programs"),
    ],
)
def test_an_unknown_peer_is_refused_in_one_line(graph_path, capsys, baseline, message):
    assert run("--graph", str(graph_path), "--baseline", baseline) != 0
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_package_that_cannot_be_run_is_refused_before_anything_is_measured(
    graph_path, missing_pyg, capsys, monkeypatch
):
    monkeypatch.setattr(measure, "measure", None)
    assert run("--graph", str(graph_path), *SMALL, "--app", "uniform", "--baseline", "pyg") == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fastsample-bench: error: --baseline pyg: ") and "not on this machine" in line


def test_a_package_that_is_not_asked_for_anything_may_be_missing(graph_path, missing_pyg):
    assert run("--graph", str(graph_path), *SMALL, "--trials", "1", "--app", "ppr", "--baseline", "pyg") == 0


def test_a_peers_failure_is_reported_with_its_last_line(graph_path, thunderrw, capsys):
    (thunderrw / "ppr.out").write_text("#!/bin/sh\necho 'no memory' >&2\nexit 3\n")
    assert run("--graph", str(graph_path), *SMALL, "--app", "ppr", "--baseline", f"thunderrw={thunderrw}") != 0
    assert "ppr.out ended with 3: no memory" in capsys.readouterr().err


def test_peers_have_only_the_walks_that_they_make():
    assert [name for name in CASES if has_case(Baseline("thunderrw"), CASES[name])] == ["deepwalk", "ppr", "node2vec"]
    assert [name for name in CASES if has_case(Baseline("pyg"), CASES[name])] == ["uniform", "node2vec"]
    assert all(has_case(Baseline("dgl"), case) for case in CASES.values())
