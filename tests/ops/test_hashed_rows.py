"""hashed_rows against its oracle bit for bit, has_edges against set membership for all pairs."""

import ctypes

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import library, reference
from fastsample_dist.ops.hashed_rows import IDS_PER_BUCKET, _graph
from tests.ops.graphs import random_csc
from tests.ops.strategies import graphs
from tests.optional import HealthCheck, given, settings

ROOM = {torch.int32: 16, torch.int64: 8}
DTYPES = pytest.mark.parametrize("dtype", ROOM, ids=["int32", "int64"])


def rows_of(*rows, dtype=torch.int32):
    """(indptr, indices) of these rows."""
    lengths = torch.tensor([0, *map(len, rows)])
    return lengths.cumsum(0), torch.tensor([v for row in rows for v in row], dtype=dtype)


def answers(indptr, indices, rows, vertices, **how):
    return ops.has_edges(indices, ops.hashed_rows(indptr, indices, **how), rows, vertices)


def assert_all_pairs(indptr, indices, num_vertices, **how):
    """Every (row, vertex), a row -1 and vertices that no graph has."""
    rows = torch.arange(-1, indptr.numel() - 1)
    vertices = torch.cat([torch.arange(num_vertices), torch.tensor([-1, -2, 2**31, 2**32 - 1, 2**32, 2**63 - 1])])
    pairs = torch.cartesian_prod(rows, vertices)
    found = answers(indptr, indices, pairs[:, 0], pairs[:, 1], **how)
    assert torch.equal(found, reference.has_edges(indptr, indices, pairs[:, 0], pairs[:, 1]))


@DTYPES
@pytest.mark.parametrize("seed", range(3))
def test_tables_equal_the_oracle(dtype, seed):
    graph = random_csc(num_nodes=40, num_edges=1800, seed=seed, dtype=dtype)
    for load in (1, IDS_PER_BUCKET[dtype], ROOM[dtype]):
        found = ops.hashed_rows(graph.indptr, graph.indices, ids_per_bucket=load)
        nodes, buckets = reference.hashed_rows(graph.indptr, graph.indices, load)
        assert torch.equal(found.nodes, nodes) and torch.equal(found.buckets, buckets)


@DTYPES
@pytest.mark.parametrize("num_edges", [0, 300, 700, 1800])
def test_all_pairs(dtype, num_edges):
    graph = random_csc(num_nodes=50, num_edges=num_edges, dtype=dtype)
    assert_all_pairs(graph.indptr, graph.indices, 60)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(graphs())
def test_all_pairs_of_any_graph(graph):
    assert_all_pairs(graph.indptr, graph.indices, graph.num_nodes)


@DTYPES
@pytest.mark.parametrize("num_distinct", [17, 32, 48, 160, 1024])
def test_all_pairs_at_a_load_of_1(dtype, num_distinct):
    """No bucket has room left: a query for what is not there reads all of them, and ends."""
    generator = torch.Generator().manual_seed(num_distinct)
    row = torch.randperm(3 * num_distinct, generator=generator)[:num_distinct].tolist()
    indptr, indices = rows_of([3], row, [], row[:17], dtype=dtype)
    if num_distinct % 16 == 0:
        tables = ops.hashed_rows(indptr, indices, ids_per_bucket=ROOM[dtype])
        assert (tables.buckets[: num_distinct // ROOM[dtype]] >= 0).all()
    assert_all_pairs(indptr, indices, 3 * num_distinct, ids_per_bucket=ROOM[dtype])


@DTYPES
@pytest.mark.parametrize("degree", [1, 2, 15, 16, 17, 18, 33, 500])
def test_parallel_edges_are_stored_once(dtype, degree):
    indptr, indices = rows_of([5] * degree, [7, 7, 0] * degree, dtype=dtype)
    stored = ops.hashed_rows(indptr, indices).buckets
    assert sorted(stored[stored >= 0].tolist()) == [0] * (degree > 5) + [5] * (degree > 16) + [7] * (degree > 5)
    assert_all_pairs(indptr, indices, 9)


@DTYPES
def test_self_loops_and_empty_rows(dtype):
    indptr, indices = rows_of([], [1], [], list(range(20)), [], dtype=dtype)
    assert_all_pairs(indptr, indices, 22)


def test_ids_that_share_a_home_fill_the_buckets_behind_it_and_begin_again():
    count = 4
    row = [v for v in range(4000) if reference.home_bucket(v, count) == count - 1][: 16 * count]
    others = [v for v in range(4000) if v not in row]
    indptr, indices = rows_of(row)
    tables = ops.hashed_rows(indptr, indices, ids_per_bucket=16)
    assert tables.buckets.flatten().tolist() == row[16:] + row[:16]
    vertices = torch.tensor(row + others)
    found = ops.has_edges(indices, tables, torch.zeros_like(vertices), vertices)
    assert found.tolist() == [True] * len(row) + [False] * len(others)


def test_ids_beyond_32_bits():
    row = [2**40 + 3 * i for i in range(40)] + [i for i in range(20)]
    indptr, indices = rows_of(row, row[:9], dtype=torch.int64)
    vertices = torch.tensor([*row, *(v % 2**32 for v in row), *(v + 2**32 for v in row)])
    for at in (0, 1):
        rows = torch.full_like(vertices, at)
        assert torch.equal(
            answers(indptr, indices, rows, vertices), reference.has_edges(indptr, indices, rows, vertices)
        )


def test_an_id_of_32_bits_is_compared_whole():
    indptr, indices = rows_of([2**31 - 1, 0, *range(5, 30)], [2**31 - 1, 0])
    vertices = torch.tensor([2**31 - 1, 0, 2**32 + 5, -(2**32) + 5, 2**32 - 1, -1, 2**31])
    for row in (0, 1):
        found = answers(indptr, indices, torch.full_like(vertices, row), vertices)
        assert found.tolist() == [True, True] + [False] * 5


@DTYPES
def test_does_not_depend_on_threads(dtype):
    generator = torch.Generator().manual_seed(1)
    degrees = torch.randint(0, 40, (9_000,), generator=generator)
    degrees[[0, 700, 8_999]] = torch.tensor([40_000, 90_000, 33_000])  # rows longer than a task
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = torch.randint(0, 10_000, (int(indptr[-1]),), generator=generator).to(dtype)
    single = ops.hashed_rows(indptr, indices, num_threads=1)
    rows = torch.randint(-1, 9_000, (50_000,), generator=generator)
    vertices = torch.randint(0, 10_000, (50_000,), generator=generator)
    expected = reference.has_edges(indptr, indices, rows, vertices)
    for num_threads in (1, 2, 5):
        found = ops.hashed_rows(indptr, indices, num_threads=num_threads)
        assert torch.equal(found.nodes, single.nodes) and torch.equal(found.buckets, single.buckets)
        assert torch.equal(ops.has_edges(indices, found, rows, vertices, num_threads), expected)


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "load"), [(torch.int32, 11), (torch.int64, 5), (torch.int32, 15)])
def test_a_row_of_2_to_the_24_edges(dtype, load):
    """Distinct ids, every second one; between two short rows."""
    degree = 2**24
    hub = torch.randperm(degree, generator=torch.Generator().manual_seed(0)).to(dtype) * 2
    indices = torch.cat([torch.tensor([1, 3], dtype=dtype), hub, torch.tensor([5], dtype=dtype)])
    indptr = torch.tensor([0, 2, degree + 2, degree + 3])
    tables = ops.hashed_rows(indptr, indices, ids_per_bucket=load)
    assert tables.num_bytes == ops.hashed_rows_bytes(indptr, indices, load)
    vertices = torch.arange(0, 2 * degree, 7)
    found = ops.has_edges(indices, tables, torch.ones_like(vertices), vertices)
    assert torch.equal(found, vertices % 2 == 0)


@DTYPES
@pytest.mark.parametrize("load", [None, 1, 8])
def test_bytes_are_known_before(dtype, load):
    graph = random_csc(num_nodes=40, num_edges=1800, dtype=dtype)
    built = ops.hashed_rows(graph.indptr, graph.indices, ids_per_bucket=load)
    assert ops.hashed_rows_bytes(graph.indptr, graph.indices, load) == built.num_bytes
    assert built.num_bytes == built.nodes.numel() * 8 + built.buckets.numel() * built.buckets.itemsize


@pytest.mark.parametrize(("indptr", "ids"), [([0], []), ([0, 0, 0], []), ([0, 1], [0]), ([0, 0, 1, 1], [2])])
def test_graphs_of_next_to_nothing(indptr, ids):
    assert_all_pairs(torch.tensor(indptr), torch.tensor(ids, dtype=torch.int32), 4)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 4, 3], [0] * 3, "hashed_rows: indptr of node 0 runs from 0 to 4; expected non-decreasing offsets up to 3"),
        ([-1, 3], [0] * 3, "node 0 runs from -1 to 3"),
        ([0, 3], [0, -5, -7], "hashed_rows: the graph holds the negative source id -5"),
        ([0, 30], [*range(29), -2], "the graph holds the negative source id -2"),
    ],
)
def test_refuses_damaged_graphs(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        ops.hashed_rows(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32))


@DTYPES
def test_refuses_loads_that_no_bucket_has(dtype):
    indptr, indices = rows_of([1], dtype=dtype)
    for load in (0, -1, ROOM[dtype] + 1):
        with pytest.raises(ValueError, match=rf"{load} ids per bucket; expected 1 to {ROOM[dtype]}"):
            ops.hashed_rows(indptr, indices, ids_per_bucket=load)


def test_refuses_rows_and_graphs_that_records_cannot_hold():
    """Refused by the offsets: no array of that length is read."""
    for indptr, num_edges, message in (
        ([0, 4, 4 + 2**31], 4 + 2**31, "node 1 has 2147483648 in-edges; expected at most 2147483640"),
        ([0, 0], 2**36, "the graph has 68719476736 edges; expected fewer than 2\\^36"),
    ):
        offsets = torch.tensor(indptr)
        graph, _kept = _graph(offsets, torch.zeros(0, dtype=torch.int64))
        graph.num_edges = num_edges
        with pytest.raises(ValueError, match=message):
            library.call(library.core().fs_hashed_rows_size, ctypes.byref(graph), 5, ctypes.byref(ctypes.c_int64()))


@pytest.mark.parametrize("row", [-2, 3])
def test_refuses_queries_of_rows_that_are_not_there(row):
    indptr, indices = rows_of([1], [2], [0])
    with pytest.raises(ValueError, match=f"has_edges: node id {row} is outside 0 to 2"):
        answers(indptr, indices, torch.tensor([0, row]), torch.tensor([1, 1]))


@pytest.mark.parametrize(
    ("rows", "vertices", "message"),
    [
        (torch.tensor([0]), torch.tensor([1, 2]), "vertices has 2 entries; expected 1"),
        (torch.tensor([0]).int(), torch.tensor([1]), "rows is torch.int32"),
        (torch.tensor([0]), torch.tensor([1]).int(), "vertices is torch.int32"),
    ],
)
def test_refuses_queries_of_another_form(rows, vertices, message):
    with pytest.raises(ValueError, match=message):
        answers(*rows_of([1]), rows, vertices)


@DTYPES
def test_refuses_fewer_indices_than_the_tables_are_of(dtype):
    indptr, indices = rows_of([1], range(40), [2, 5], dtype=dtype)
    tables = ops.hashed_rows(indptr, indices)
    line = "has_edges: indices has 40 entries but the tables are of 43 edges; pass the graph's that they were made of"
    with pytest.raises(ValueError, match=line):
        ops.has_edges(indices[:40], tables, torch.tensor([2]), torch.tensor([5]))


def test_refuses_no_threads():
    indptr, indices = rows_of([1])
    with pytest.raises(ValueError, match="num_threads is 0; expected an integer from 1 to 1024"):
        ops.hashed_rows(indptr, indices, num_threads=0)
    with pytest.raises(ValueError, match="num_threads is 0; expected an integer from 1 to 1024"):
        ops.has_edges(indices, ops.hashed_rows(indptr, indices), torch.tensor([0]), torch.tensor([1]), num_threads=0)
