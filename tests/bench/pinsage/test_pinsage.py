"""fastsample-bench pinsage: the command as a user starts it, and what its rates count."""

import json

import pytest
import torch

from fastsample_dist.bench import cli
from fastsample_dist.bench.pinsage import measure
from fastsample_dist.bench.sampling.measure import OURS
from fastsample_dist.interop import dgl
from fastsample_dist.ops import PinSAGERule, reference
from tests.bench.inputs import rmat_input

SMALL = ("--batch-size", "40", "--batches", "5", "--warmup", "1", "--layers", "1,2", "--threads", "1,2", "--verify")


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory):
    """rmat:9:8 as an npy input directory."""
    return rmat_input(tmp_path_factory.mktemp("pinsage"), 9)


def test_the_command_verifies_measures_and_writes(graph_path, tmp_path, capsys):
    assert cli.main(["pinsage", "--graph", str(graph_path), *SMALL, "--json", str(tmp_path / "found")]) == 0
    assert "batches of 20 seeds equal the oracle's" in capsys.readouterr().out
    found = json.loads((tmp_path / "found").read_text())
    assert [(run["layers"], run["threads"]) for run in found["runs"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for run in found["runs"]:
        [entry] = run["samplers"]
        assert entry["sampler"] == OURS and len(entry["rates"]) == 5 and entry["ratio"] == 1.0
        assert entry["per_batch"] == 40 if run["layers"] == 1 else entry["per_batch"] > 80


def test_a_batch_that_is_not_the_oracles_fails(graph_path, monkeypatch, capsys):
    true = reference.sample_pinsage
    monkeypatch.setattr(
        reference, "sample_pinsage", lambda graph, seeds, rule, step: true(graph, seeds, rule, step + 1)
    )
    assert cli.main(["pinsage", "--graph", str(graph_path), "--layers", "1", "--verify"]) == 1
    assert "verify: FAILED: 1 layer(s) with 1 thread(s)" in capsys.readouterr().out


def test_fewer_seeds_than_the_oracle_could_take_are_verified(graph_path, capsys):
    assert cli.main(["pinsage", "--graph", str(graph_path), *SMALL, "--batch-size", "3"]) == 0
    assert "batches of 3 seeds equal the oracle's" in capsys.readouterr().out


@pytest.mark.grid
def test_beside_dgl(graph_path, tmp_path):
    pytest.importorskip("dgl")
    words = ["pinsage", "--graph", str(graph_path), *SMALL, "--baseline", "dgl", "--json", str(tmp_path / "found")]
    assert cli.main(words) == 0
    runs = json.loads((tmp_path / "found").read_text())["runs"]
    names = [[entry["sampler"] for entry in run["samplers"]] for run in runs]
    assert names == [[OURS, measure.DGL_NEIGHBOURS, measure.DGL]] * 2 + [[OURS, measure.DGL]] * 2
    assert all(entry["per_batch"] == 40 for run in runs[:2] for entry in run["samplers"])


def test_dgl_counts_the_same_visits_on_a_path():
    """On a ring walked for certain the neighbours and visits are known: the nodes behind, each once per walk."""
    pytest.importorskip("dgl")
    nodes = torch.arange(10)
    ring = measure.CSCGraph.from_edge_index(nodes, (nodes + 1) % 10, 10)
    rule = PinSAGERule(num_walks=2, walk_length=3, num_neighbors=5, end_probability=0.0, num_layers=1)
    shape = {name: getattr(rule, name) for name in ("num_walks", "walk_length", "num_neighbors", "end_probability")}
    found = dgl.pinsage_neighbours(ring, **shape)(nodes)
    src, dst = found.edges()
    edges = sorted(zip(src.tolist(), dst.tolist(), found.edata["weight"].tolist(), strict=True))
    assert edges == sorted(((v - k) % 10, v, 2) for v in range(10) for k in (1, 2, 3))
    for v in range(10):
        assert sorted(reference.pinsage_neighbors(ring, rule, v, 0, 0)) == sorted(((v - k) % 10, 2) for k in (1, 2, 3))
