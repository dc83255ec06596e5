"""`kaminpar`: the file it reads is the graph, it leaves nothing behind, and its absence is reported."""

import sys

import numpy as np
import pytest

from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.kaminpar import write_parhip
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import drawn, request_of


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_reads_the_graph_that_was_written(undirected, compressed, tmp_path):
    kaminpar = pytest.importorskip("kaminpar")
    adjacency = request_of(draw_raw(undirected=undirected), 2).adjacency
    weights = np.arange(1, adjacency.num_nodes + 1)
    write_parhip(tmp_path / "graph", adjacency, weights)
    graph = kaminpar.load_graph(str(tmp_path / "graph"), kaminpar.GraphFileFormat.PARHIP, compressed)
    assert [graph.node_weight(node) for node in range(graph.n())] == weights.tolist()
    assert graph.is_edge_weighted() == (adjacency.weights is not None)
    for node in range(graph.n()):
        row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        ones = np.ones(row.stop - row.start, dtype=int)
        edge_weights = ones if adjacency.weights is None else adjacency.weights[row]
        expected = sorted(zip(adjacency.indices[row].tolist(), edge_weights.tolist(), strict=True))
        assert sorted(graph.neighbors(node)) == expected


def test_leaves_no_file_behind(tmp_path, monkeypatch):
    pytest.importorskip("kaminpar")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    METHODS["kaminpar"].assign(drawn())
    assert list(tmp_path.iterdir()) == []


def test_absence_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    with pytest.raises(ImportError, match="method kaminpar needs kaminpar.*pip install kaminpar, or take --method"):
        METHODS["kaminpar"].assign(drawn())
