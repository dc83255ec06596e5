"""induced_subgraph against brute force, on every instruction set ("scalar" looks all ids up in the id table)."""

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import reference
from tests.ops.graphs import random_csc

ISAS = ["scalar", "baseline", "avx2", "avx512"]


def some_nodes(graph, count, seed=1):
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    return order[:count].to(graph.indices.dtype)


def assert_induced(graph, nodes, **options):
    expected = reference.induced_subgraph(graph.indptr, graph.indices, nodes)
    found = ops.induced_subgraph(graph.indptr, graph.indices, nodes, edge_ids=True, **options)
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left, right) and left.dtype == right.dtype
    for left, right in zip(ops.induced_subgraph(graph.indptr, graph.indices, nodes, **options), found, strict=False):
        assert torch.equal(left, right)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_induced_subgraph_equals_brute_force(use_isa, isa, dtype):
    """Parallel edges, self-loops, empty rows; rows of every length around the vectors'."""
    use_isa(isa)
    for seed in range(4):
        graph = random_csc(num_nodes=60, num_edges=[0, 60, 700, 2600][seed], seed=seed, dtype=dtype)
        for count in (0, 1, 7, 31, 60):
            assert_induced(graph, some_nodes(graph, count, seed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_hub_is_looked_at_in_pieces(use_isa, isa, dtype):
    """Its row has 20,000 edges, most of them to it or to its like."""
    use_isa(isa)
    generator = torch.Generator().manual_seed(5)
    src, dst = torch.randint(0, 50, (20_000,), generator=generator), torch.zeros(20_000, dtype=torch.int64)
    more = torch.randint(0, 3000, (2, 40_000), generator=generator)
    graph = CSCGraph.from_edge_index(torch.cat([src, more[0]]), torch.cat([dst, more[1]]), 3000)
    graph = CSCGraph(graph.indptr, graph.indices.to(dtype))
    nodes = torch.cat([torch.arange(45, dtype=dtype).flip(0), torch.arange(100, 1400, dtype=dtype)])
    assert_induced(graph, nodes)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_every_length_are_read_up_to_their_ends(use_isa, isa):
    """Lengths 0 to 70, in a random order and many times: a piece of the work ends at every place of a row."""
    use_isa(isa)
    generator = torch.Generator().manual_seed(8)
    degrees = torch.randperm(71, generator=generator).repeat(9)
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    indices = torch.randint(0, degrees.numel(), (int(indptr[-1]),), generator=generator).int()
    graph = CSCGraph(indptr, indices)
    assert_induced(graph, torch.arange(degrees.numel(), dtype=torch.int32))
    assert_induced(graph, some_nodes(graph, 300), num_threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_local_ids_of_a_graph_of_many_nodes(use_isa, isa, dtype):
    """Above 2^24 nodes they are in a table, and bits are shared by nodes 2^15 apart: every other hit is none."""
    use_isa(isa)
    generator = torch.Generator().manual_seed(9)
    indices = torch.randint(0, 2000, (9000,), generator=generator)
    indices[::2] += 2**15
    indptr = torch.full((2**24 + 2,), 9000)
    indptr[:4] = torch.tensor([0, 30, 30, 5000])
    graph = CSCGraph(indptr, indices.to(dtype))
    assert_induced(graph, torch.cat([torch.arange(3, dtype=dtype), torch.arange(500, 1500, dtype=dtype).flip(0)]))


@pytest.mark.parametrize("isa", ["scalar", "baseline"])
def test_threads_change_nothing(use_isa, isa):
    use_isa(isa)
    graph = random_csc(num_nodes=5000, num_edges=400_000, seed=2)
    nodes = some_nodes(graph, 4000)
    alone = ops.induced_subgraph(graph.indptr, graph.indices, nodes, edge_ids=True, num_threads=1)
    for num_threads in (2, 3, 7):
        found = ops.induced_subgraph(graph.indptr, graph.indices, nodes, edge_ids=True, num_threads=num_threads)
        assert all(torch.equal(left, right) for left, right in zip(found, alone, strict=True))


@pytest.mark.parametrize("isa", ["scalar", "baseline"])
def test_nothing_of_a_call_is_left_for_the_next(use_isa, isa):
    """Graphs of different sizes take turns, and a call that is refused."""
    use_isa(isa)
    for seed, num_nodes in enumerate((60, 9000, 200, 70_000, 60)):
        graph = random_csc(num_nodes=num_nodes, num_edges=3000, seed=seed)
        assert_induced(graph, some_nodes(graph, 50, seed))
        with pytest.raises(ValueError, match="expected each node once"):
            ops.induced_subgraph(graph.indptr, graph.indices, torch.tensor([5, 7, 5], dtype=torch.int32))
        assert_induced(graph, some_nodes(graph, 40, seed + 9))


@pytest.mark.parametrize("isa", ["scalar", "baseline"])
@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ([3, 9, 3], "induced_subgraph: node 3 is at positions 0 and 2; expected each node once"),
        ([3, 60], "induced_subgraph: id 60 at position 1; expected 0 to 59"),
        ([-1], "induced_subgraph: id -1 at position 0; expected 0 to 59"),
    ],
)
def test_nodes_are_refused(use_isa, isa, nodes, line):
    use_isa(isa)
    graph = random_csc()
    with pytest.raises(ValueError, match=line):
        ops.induced_subgraph(graph.indptr, graph.indices, torch.tensor(nodes, dtype=torch.int32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("bad", "words"), [(-7, "the negative source id -7"), (60, "the source id 60; expected 0 to 59")]
)
def test_a_damaged_row_is_refused(use_isa, isa, dtype, bad, words):
    use_isa(isa)
    graph = random_csc(dtype=dtype)
    assert_induced(graph, torch.tensor([11, 13], dtype=dtype))
    for place in range(int(graph.indptr[12]), int(graph.indptr[13])):
        indices = graph.indices.clone()
        indices[place] = bad
        with pytest.raises(ValueError, match=f"induced_subgraph: the graph holds {words}"):
            ops.induced_subgraph(graph.indptr, indices, torch.tensor([11, 12], dtype=dtype))


@pytest.mark.parametrize("isa", ["scalar", "baseline"])
def test_of_damaged_rows_the_first_is_refused_whatever_the_threads(use_isa, isa):
    use_isa(isa)
    graph = random_csc(num_nodes=5000, num_edges=400_000, seed=2)
    nodes = some_nodes(graph, 4000)
    for bad, place in ((-2, 3100), (5000, 900)):
        graph.indices[graph.indptr[int(nodes[place]) + 1] - 1] = bad
    for num_threads in (1, 2, 7):
        with pytest.raises(ValueError, match="the graph holds the source id 5000; expected 0 to 4999"):
            ops.induced_subgraph(graph.indptr, graph.indices, nodes, num_threads=num_threads)


@pytest.mark.parametrize("isa", ["scalar", "baseline"])
def test_a_row_that_is_no_source_of_a_slice_is_refused(use_isa, isa):
    use_isa(isa)
    indptr = torch.zeros(4_000_001, dtype=torch.int64)
    graph = ops.SamplingGraph(indptr, torch.zeros(0, dtype=torch.int64), src_orig_ids=torch.arange(8))
    assert graph.induced(torch.tensor([7]), False, 1)[0].tolist() == [0, 0]
    for node in (8, 3_999_999):
        with pytest.raises(ValueError, match=f"induced_subgraph: id {node} at position 0; expected 0 to 7"):
            graph.induced(torch.tensor([node]), False, 1)


def test_damaged_offsets_and_other_dtypes_are_refused():
    graph = random_csc()
    for place, offset in ((4, graph.num_edges + 5), (4, 0), (3, -1)):
        indptr = graph.indptr.clone()
        indptr[place] = offset
        with pytest.raises(ValueError, match="indptr of node 3 runs from"):
            ops.induced_subgraph(indptr, graph.indices, torch.tensor([3], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"nodes is torch.int64 but indices is torch.int32"):
        ops.induced_subgraph(graph.indptr, graph.indices, torch.tensor([3]))
    with pytest.raises(ValueError, match="num_threads is 0; expected an integer from 1 to 1024"):
        ops.induced_subgraph(graph.indptr, graph.indices, torch.tensor([3], dtype=torch.int32), num_threads=0)
