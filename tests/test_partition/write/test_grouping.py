"""Nodes in the order of a key, and whole partitions, whatever number of nodes is looked at together."""

import numpy as np
import pytest

from fastsample_dist.graph.npy_files import CHUNK_BYTES
from fastsample_dist.partition.methods import constraints
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.grouping import group_nodes
from tests.test_partition.inputs import draw_raw


@pytest.fixture
def seven_at_once(monkeypatch):
    monkeypatch.setattr(constraints, "NODES_AT_ONCE_BYTES", CHUNK_BYTES // 7)


@pytest.mark.parametrize("num_groups", [1, 2, 9, 70_000])
@pytest.mark.parametrize("num_nodes", [1, 7, 8, 100])
def test_nodes_are_sorted_by_key_then_id(seven_at_once, num_groups, num_nodes):
    keys = np.random.default_rng(num_nodes).integers(0, num_groups, num_nodes)
    nodes, ends = group_nodes(lambda chunk: keys[chunk], num_nodes, num_groups)
    assert nodes.tolist() == np.argsort(keys, kind="stable").tolist() and nodes.dtype == np.int32
    assert ends.tolist() == np.cumsum(np.bincount(keys, minlength=num_groups)).tolist()


@pytest.mark.parametrize("method", ["random", "ldg", "range"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_files_do_not_depend_on_the_nodes_looked_at_together(tmp_path, monkeypatch, method, on_disk):
    raw = draw_raw(undirected=False, num_nodes=300, num_train=60)
    options = PartitionOptions(num_parts=3, method=method, on_disk=on_disk)
    whole = build_partition(raw, options, tmp_path / "whole")
    monkeypatch.setattr(constraints, "NODES_AT_ONCE_BYTES", CHUNK_BYTES // 7)
    chunked = build_partition(raw, options, tmp_path / "chunked")
    assert chunked == whole  # the manifest's checksums among it
