"""Bounds of buckets against one pass over all nodes, whatever number of nodes is looked at together."""

import itertools

import numpy as np
import pytest

from fastsample_dist.graph.npy_files import CHUNK_BYTES
from fastsample_dist.partition.external import bounds
from fastsample_dist.partition.external.bounds import bucket_bounds, bucket_sizes
from fastsample_dist.partition.methods import constraints


def filled_one_by_one(degrees: list[int], room: int) -> list[int]:
    """A node goes into the bucket as long as it fits, the first one always."""
    found, held = [0], 0
    for node, edges in enumerate(degrees):
        if node > found[-1] and held + edges > room:
            found.append(node)
            held = 0
        held += edges
    return [*found, len(degrees)]


@pytest.mark.parametrize("at_once", [1, 5, 10_000])
@pytest.mark.parametrize("room", [1, 9, 40, 10_000])
@pytest.mark.parametrize("num_nodes", [1, 5, 6, 97])
def test_buckets_hold_as_many_nodes_as_fit(monkeypatch, at_once, room, num_nodes):
    monkeypatch.setattr(constraints, "NODES_AT_ONCE_BYTES", CHUNK_BYTES // at_once)
    degrees = np.random.default_rng(room).integers(0, 20, num_nodes) * (np.arange(num_nodes) % 3 > 0)
    found = bucket_bounds(degrees, num_nodes, room)
    assert found.tolist() == filled_one_by_one(degrees.tolist(), room)
    assert bucket_sizes(degrees, found).tolist() == [degrees[lo:hi].sum() for lo, hi in itertools.pairwise(found)]


def test_too_many_buckets_are_refused(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_BUCKETS", 4)
    with pytest.raises(ValueError, match="60 edges would take 6 buckets of 10; expected at most 4; pass a larger"):
        bucket_bounds(np.full(6, 10), 6, 10)
