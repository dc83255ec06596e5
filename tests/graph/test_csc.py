"""CSCGraph: weights that no edge can be drawn by are refused when the graph is made."""

import math

import numpy as np
import pytest
import torch

from fastsample_dist.graph import csc
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.storage import load_topology, read_manifest
from tests.parts import draw_partition

BAD = [-1.5, -math.inf, math.inf, math.nan]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at_once", [2, 1 << 24])
def test_a_bad_weight_is_refused_by_its_position(bad, at_once, monkeypatch):
    monkeypatch.setattr(csc, "_CHECKED_AT_ONCE", at_once)
    weights = torch.tensor([1.0, 0.0, 2.0, bad, 1.0])
    message = rf"the weight of edge 3 is {bad}; expected a finite number, 0 or more .*correct it"
    with pytest.raises(ValueError, match=message):
        CSCGraph(torch.arange(6), torch.tensor([1, 2, 3, 4, 0]), weights)
    with pytest.raises(ValueError, match=message):
        CSCGraph.from_edge_index(torch.tensor([4, 0, 1, 2, 3]), torch.tensor([3, 2, 4, 0, 1]), 5, weights)


def test_zero_is_a_weight():
    assert CSCGraph(torch.arange(3), torch.tensor([1, 0]), torch.tensor([0.0, -0.0])).weights is not None


def test_a_partition_is_opened_without_reading_its_weights(tmp_path, monkeypatch):
    parts = draw_partition(tmp_path, 2, weights=np.ones(3000, dtype=np.float32)).path
    monkeypatch.setattr(csc, "_check_weights", lambda weights: pytest.fail("the weights were read"))
    manifest = read_manifest(parts)
    assert load_topology(parts, manifest).weights is not None
    assert load_topology(parts, manifest, (0, 10)).weights is not None
