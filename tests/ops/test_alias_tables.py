"""alias_tables against its oracle, and its tables against the weights they stand for."""

import ctypes
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import library, reference
from tests.ops.graphs import random_csc

GRAPH = random_csc()
NUM_EDGES = GRAPH.indices.numel()


def _weights(kind: str, dtype: torch.dtype, num_edges: int = NUM_EDGES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.rand(num_edges, generator=generator, dtype=dtype)
    return {
        "ordinary": drawn + 0.01,
        "equal": torch.ones(num_edges, dtype=dtype),
        "heavy": (drawn + 1e-4) ** -3,
        "some_zero": torch.where(drawn < 0.6, 0, drawn),
        "all_zero": torch.zeros(num_edges, dtype=dtype),
        "tiny": drawn * 1e-37,
        "minus_zero": torch.where(drawn < 0.6, -0.0, drawn),
    }[kind]


KINDS = ["ordinary", "equal", "heavy", "some_zero", "all_zero", "tiny", "minus_zero"]


def _rows(indptr: torch.Tensor, tables: ops.AliasTables) -> list[tuple[int, list[tuple[int, int]]]]:
    """(first edge, [(threshold, alias)]) of every row that has edges."""
    words = [(threshold % 2**32, alias) for threshold, alias in tables.table.tolist()]
    bounds = indptr.tolist()
    return [(lo, words[lo:hi]) for lo, hi in pairwise(bounds) if hi > lo]


def _probabilities(row: list[tuple[int, int]]) -> tuple[list[Fraction], list[int]]:
    """What a row's table draws, exactly, and the number of slots that lead to each position."""
    mass, slots = [Fraction(0)] * len(row), [0] * len(row)
    for own, (threshold, alias) in enumerate(row):
        share = Fraction(1) if alias == own else Fraction(threshold, 2**32)
        mass[own] += share
        mass[alias] += 1 - share
        slots[own] += 1
        slots[alias] += alias != own
    return [m / len(row) for m in mass], slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_oracle(kind, dtype):
    weights = _weights(kind, dtype)
    found = ops.alias_tables(GRAPH.indptr, weights)
    table, num_positive = reference.alias_tables(GRAPH.indptr, weights)
    assert torch.equal(found.table, table)
    assert found.num_positive is None or torch.equal(found.num_positive, num_positive)


def test_does_not_depend_on_threads():
    degrees = torch.randint(0, 9, (30_000,), generator=torch.Generator().manual_seed(1))
    degrees[[0, 700, 29_999]] = torch.tensor([40_000, 90_000, 33_000])  # rows longer than a task
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    weights = _weights("some_zero", torch.float32, int(indptr[-1]))
    single = ops.alias_tables(indptr, weights, num_threads=1)
    for num_threads in range(2, 9):
        found = ops.alias_tables(indptr, weights, num_threads=num_threads)
        assert torch.equal(found.table, single.table) and torch.equal(found.num_positive, single.num_positive)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["ordinary", "equal", "heavy", "some_zero", "tiny"])
def test_probabilities_are_the_weights_shares_within_the_bound(kind, dtype):
    weights = _weights(kind, dtype)
    for first, row in _rows(GRAPH.indptr, ops.alias_tables(GRAPH.indptr, weights)):
        exact = [Fraction(weight) for weight in weights[first : first + len(row)].tolist()]
        if not any(exact):
            continue
        found, slots = _probabilities(row)
        for weight, probability, count in zip(exact, found, slots, strict=True):
            rounding = Fraction(len(row), 2**50)  # of the shares, which are doubles
            bound = Fraction(count, 2**32 * len(row)) + rounding
            assert abs(probability - weight / sum(exact)) <= bound


@pytest.mark.parametrize("kind", ["some_zero", "minus_zero"])
def test_a_weight_of_zero_is_never_reached(kind):
    weights = _weights(kind, torch.float32)
    reached = 0
    for first, row in _rows(GRAPH.indptr, ops.alias_tables(GRAPH.indptr, weights)):
        if not any(weights[first : first + len(row)]):
            continue
        for position, (probability, weight) in enumerate(
            zip(_probabilities(row)[0], weights[first : first + len(row)].tolist(), strict=True)
        ):
            assert weight > 0 or probability == 0, (first, position)
            reached += probability > 0
    assert reached == int((weights > 0).sum())


def test_a_row_without_positive_weight_leads_nowhere_else():
    found = ops.alias_tables(torch.tensor([0, 3]), torch.zeros(3))
    assert found.table.tolist() == [[0, 0], [0, 1], [0, 2]] and found.num_positive.tolist() == [0]


def test_positive_weights_are_counted_per_row():
    indptr, weights = torch.tensor([0, 2, 2, 5]), torch.tensor([1.0, 0.0, 0.0, 2.0, 3.0])
    assert ops.alias_tables(indptr, weights).num_positive.tolist() == [1, 0, 2]


def test_counts_are_left_out_where_every_weight_is_positive():
    assert ops.alias_tables(GRAPH.indptr, _weights("ordinary", torch.float32)).num_positive is None


@pytest.mark.parametrize(("kind", "expected"), [("ordinary", 0), ("some_zero", GRAPH.indptr.numel() - 1)])
def test_memory_is_8_bytes_per_edge_and_8_per_counted_node(kind, expected):
    found = ops.alias_tables(GRAPH.indptr, _weights(kind, torch.float64))
    assert found.num_bytes == 8 * NUM_EDGES + 8 * expected


@pytest.mark.parametrize(("indptr", "num_edges"), [([0], 0), ([0, 0, 0], 0), ([0, 1], 1), ([0, 0, 1, 1], 1)])
def test_graphs_of_next_to_nothing(indptr, num_edges):
    found = ops.alias_tables(torch.tensor(indptr), torch.ones(num_edges))
    assert found.table.tolist() == [[-1, 0]] * num_edges and found.num_positive is None


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize(("value", "shown"), [(-1.5, "-1.5"), (float("inf"), "inf"), (float("nan"), "nan")])
def test_refuses_a_bad_weight_by_the_first_position(value, shown, num_threads):
    indptr = torch.arange(0, 200_001, 5)
    weights = torch.ones(200_000)
    weights[[150_000, 70_003]] = value
    with pytest.raises(ValueError, match=rf"the weight of edge 70003 is {shown}; expected a finite number >= 0"):
        ops.alias_tables(indptr, weights, num_threads=num_threads)


@pytest.mark.parametrize("weight", [1.5e308, 5e-324])
def test_refuses_a_total_beyond_doubles(weight):
    with pytest.raises(ValueError, match="the weights of node 1 add up to what a double cannot hold"):
        ops.alias_tables(torch.tensor([0, 1, 3]), torch.tensor([1.0, weight, weight], dtype=torch.float64))


def test_refuses_a_row_of_2_to_the_31_edges():
    indptr = torch.tensor([0, 4, 4 + 2**31])  # refused by its offsets: no array of that length is read
    edges = library.WeightedEdges(indptr.data_ptr(), None, 2, 4 + 2**31, library.TYPE_CODES[torch.float32], 1)
    with pytest.raises(ValueError, match="node 1 has 2147483648 in-edges; expected fewer than 2\\^31"):
        library.call(library.core().fs_alias_tables, ctypes.byref(edges), None, None)


@pytest.mark.parametrize(
    ("indptr", "weights", "message"),
    [
        (torch.tensor([0, 4, 3]), torch.ones(3), "node 0 runs from 0 to 4; expected non-decreasing offsets up to 3"),
        (torch.tensor([-1, 3]), torch.ones(3), "node 0 runs from -1 to 3"),
        (torch.tensor([0, 3]), torch.ones(4), "weights has 4 entries; expected 3"),
        (torch.tensor([0, 3]), torch.ones(3).half(), "weights is torch.float16"),
        (torch.tensor([0, 3]).int(), torch.ones(3), "indptr is torch.int32"),
        (torch.tensor([], dtype=torch.int64), torch.ones(0), "indptr is empty"),
    ],
)
def test_refuses(indptr, weights, message):
    with pytest.raises(ValueError, match=message):
        ops.alias_tables(indptr, weights)


def test_refuses_no_threads():
    with pytest.raises(ValueError, match="num_threads is 0; expected an integer from 1 to 1024"):
        ops.alias_tables(GRAPH.indptr, torch.ones(NUM_EDGES), num_threads=0)
