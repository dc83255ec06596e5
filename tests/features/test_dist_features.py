"""DistFeatures on one rank, and what it refuses; fetching between ranks is in tests/pipeline/test_schemes.py."""

import pytest
import torch

from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.partition_book import PartitionBook

ROWS = torch.arange(12.0).reshape(6, 2)


def features(rows=ROWS):
    return DistFeatures(LocalFeatures(rows, 0), PartitionBook(torch.tensor([0, 6])), LocalCommunicator())


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_one_rank_reads_its_own_rows(dtype):
    nodes = torch.tensor([5, 0, 3], dtype=torch.int32)
    fetched = features().fetch(nodes, dtype)
    assert torch.equal(fetched, ROWS[nodes.long()].to(dtype or torch.float32))


def test_parts_of_a_rank_are_one_table():
    local = LocalFeatures.from_parts([ROWS[:4], ROWS[4:]], 0)
    assert torch.equal(local.gather(torch.tensor([4, 1])), ROWS[[4, 1]])


def test_rows_that_do_not_match_the_own_nodes_are_refused():
    with pytest.raises(ValueError, match="features have 5 rows from node 0 but rank 0 owns the nodes 0 to 5"):
        features(ROWS[:5])


def test_a_node_outside_the_graph_is_refused():
    with pytest.raises(ValueError, match="place 6 at position 0"):
        features().fetch(torch.tensor([6]))
