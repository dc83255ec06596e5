"""The order in which streaming methods visit the nodes: breadth first in the lists that they cut; what it changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.partition.methods import METHODS, streaming
from fastsample_dist.partition.methods.order import bfs_order
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import drawn, graph_of, request_of


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("links", ["rows", "adjacency"])
def test_is_the_textbooks_in_the_links_of_the_method(links, undirected):
    request = request_of(draw_raw(undirected=undirected), 3)
    lists = replace(METHODS["ldg"], links=links).links_of(request)
    found = bfs_order(lists)
    wanted = reference.bfs_order(torch.from_numpy(lists.indptr), torch.from_numpy(lists.indices))
    assert found.dtype == np.int64 and found.tolist() == wanted.tolist()


def test_directed_rows_lead_to_in_neighbours():
    request = request_of(graph_of(4, [(2, 0), (1, 2), (0, 3)], undirected=False), 2)
    assert bfs_order(request.rows).tolist() == [0, 2, 1, 3]
    assert bfs_order(request.adjacency).tolist() == [0, 2, 3, 1]


def test_a_graph_without_edges_keeps_its_ids():
    assert bfs_order(request_of(graph_of(5, []), 2).rows).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("score", ["ldg", "fennel"])
@pytest.mark.parametrize("undirected", [False, True])
def test_passes_in_another_order_equal_the_oracle(score, undirected, monkeypatch):
    request = request_of(draw_raw(undirected=undirected), 3, seed=5, passes=2)
    ordered = replace(request, order=bfs_order(request.rows))
    found = streaming.stream_parts(ordered, score)
    assert (found != streaming.stream_parts(request, score)).any()
    monkeypatch.setattr(ops, "stream_partition", reference.stream_partition)
    assert found.tolist() == streaming.stream_parts(ordered, score).tolist()


def test_ascending_ids_are_the_default():
    request = drawn(4)
    given = replace(request, order=np.arange(request.num_nodes))
    assert (streaming.assign_ldg(request) == streaming.assign_ldg(given)).all()
