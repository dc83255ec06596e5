"""bfs_order against the textbook's queue, on every kind of level."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from tests.optional import given, settings, st


def csc(num_nodes: int, edges: list[tuple[int, int]], dtype: torch.dtype = torch.int32) -> tuple:
    """(indptr, indices) of rows {node: neighbour} in the order of the list."""
    degrees = torch.bincount(torch.tensor([node for node, _ in edges], dtype=torch.int64), minlength=num_nodes)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return indptr, torch.tensor([other for _, other in sorted(edges, key=lambda edge: edge[0])], dtype=dtype)


def drawn(num_nodes: int, num_edges: int, dtype: torch.dtype, *, undirected: bool) -> tuple:
    generator = torch.Generator().manual_seed(num_nodes + num_edges)
    pairs = torch.randint(0, num_nodes, (num_edges, 2), generator=generator).tolist()
    return csc(num_nodes, pairs + [pair[::-1] for pair in pairs] if undirected else pairs, dtype)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_equals_the_oracle(data):
    num_nodes = data.draw(st.integers(0, 40))
    node = st.integers(0, max(0, num_nodes - 1))
    edges = data.draw(
        st.lists(st.tuples(node, node), max_size=90 if num_nodes else 0)
    )  # loops, parallel edges, islands
    graph = csc(num_nodes, edges, data.draw(st.sampled_from([torch.int32, torch.int64])))
    found = ops.bfs_order(*graph)
    assert found.dtype == torch.int64
    assert found.tolist() == reference.bfs_order(*graph).tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("num_edges", [1_000, 3_000, 20_000])  # most nodes alone; levels of all sizes; two wide levels
def test_equals_the_oracle_on_larger_graphs(num_edges, undirected, dtype):
    graph = drawn(2_500, num_edges, dtype, undirected=undirected)
    assert torch.equal(ops.bfs_order(*graph), reference.bfs_order(*graph))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_level_of_one_node_costs_one_row(shuffled):
    count = 200_000  # as many levels: a look at all nodes in each would take an hour
    ids = torch.randperm(count, generator=torch.Generator().manual_seed(1)) if shuffled else torch.arange(count)
    ids[(ids == 0).nonzero()[0, 0]], ids[0] = ids[0].clone(), 0
    ends = torch.cat([torch.stack([ids[:-1], ids[1:]], 1), torch.stack([ids[1:], ids[:-1]], 1)])
    ends = ends[ends[:, 0].argsort(stable=True)]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(ends[:, 0]).cumsum(0)])
    assert torch.equal(ops.bfs_order(indptr, ends[:, 1].contiguous()), ids)


def test_rows_need_not_ascend():
    edges = [(0, 3), (0, 1), (0, 2), (3, 5), (3, 4)]
    assert ops.bfs_order(*csc(6, edges)).tolist() == [0, 1, 2, 3, 4, 5]


def test_by_hand():
    # 0 finds 2 and 3; 2 and 3 both list 4, 3 lists 1 too: 4 belongs to 2, the earlier one.
    edges = [(0, 3), (0, 2), (2, 4), (3, 1), (3, 4), (5, 0), (6, 6)]
    assert ops.bfs_order(*csc(7, edges)).tolist() == [0, 2, 3, 4, 1, 5, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([1, 2], dtype=torch.int32)}, "node 1 has a neighbour outside 0 to 1"),
        ({"indices": torch.tensor([1, -1], dtype=torch.int32)}, "node 1 has a neighbour outside 0 to 1"),
        ({"indptr": torch.tensor([0, 2, 1])}, "indptr of node 1 runs from 2 to 1"),
        ({"indptr": torch.tensor([0, 1, 3])}, "expected non-decreasing offsets"),
        ({"indptr": torch.tensor([], dtype=torch.int64)}, "indptr is empty"),
        ({"indices": torch.tensor([0.5])}, "indices is torch.float32"),
    ],
)
def test_refusals(change, message):
    graph = {"indptr": torch.tensor([0, 1, 2]), "indices": torch.tensor([1, 0], dtype=torch.int32), **change}
    with pytest.raises(ValueError, match=message):
        ops.bfs_order(**graph)
