"""PartitionBook against a loop over the ranges."""

import numpy as np
import pytest
import torch

from fastsample_dist.graph.partition_book import PartitionBook

RANGES = [0, 4, 4, 9, 10, 10]  # parts 1 and 4 own nothing


def owner(node: int) -> int:
    """The one part whose range holds the node."""
    (found,) = [part for part in range(len(RANGES) - 1) if RANGES[part] <= node < RANGES[part + 1]]
    return found


@pytest.fixture
def book() -> PartitionBook:
    return PartitionBook(torch.tensor(RANGES))


def test_counts_parts_and_nodes(book):
    assert (book.num_parts, book.num_nodes) == (5, 10)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_nid2part_equals_the_loop(book, dtype):
    parts = book.nid2part(torch.arange(10, dtype=dtype))
    assert parts.dtype == torch.int64
    assert parts.tolist() == [owner(node) for node in range(10)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_nid2local_equals_the_loop(book, dtype):
    local = book.nid2local(torch.arange(10, dtype=dtype))
    assert local.dtype == torch.int64
    assert local.tolist() == [node - RANGES[owner(node)] for node in range(10)]


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, lambda ids: np.array(ids, np.uint16), lambda ids: torch.tensor(ids).to(torch.uint32)],
    ids=["list", "tuple", "array", "uint16", "uint32"],
)
def test_ids_may_be_what_makes_a_tensor(book, make):
    ids = make([9, 0, 4])
    assert (book.nid2part(ids).tolist(), book.nid2local(ids).tolist()) == ([3, 0, 2], [0, 0, 0])


def test_an_empty_list_gives_no_parts(book):
    parts = book.nid2part([])
    assert parts.shape == (0,) and parts.dtype == torch.int64


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("ab", "node ids are a str; expected a tensor or list of integers"),
        (None, "node ids are a NoneType; expected a tensor or list of integers"),
        ([[1], [2, 3]], "node ids are a list; expected a tensor or list of integers"),
        ([1.5], "node ids are torch.float32; expected an integer type"),
        (np.array([2**63], np.uint64), r"node ids: an id is above 2\*\*63 - 1"),
    ],
)
def test_what_makes_no_ids_is_refused(book, ids, message):
    for find in (book.nid2part, book.nid2local):
        with pytest.raises(ValueError, match=message):
            find(ids)


def test_shape_and_order_of_ids_are_kept(book):
    ids = torch.tensor([[9, 0], [4, 4]])
    assert book.nid2part(ids).tolist() == [[3, 0], [2, 2]]


def test_no_ids_give_no_parts(book):
    assert book.nid2part(torch.empty(0, dtype=torch.int32)).shape == (0,)


def test_part2range_gives_plain_integers(book):
    assert [book.part2range(part) for part in range(5)] == [(0, 4), (4, 4), (4, 9), (9, 10), (10, 10)]


@pytest.mark.parametrize("ids, bounds", [([0, 10], "0 to 10"), ([3, -1], "-1 to 3")])
def test_ids_outside_the_graph_are_refused(book, ids, bounds):
    with pytest.raises(ValueError, match=f"run from {bounds}; expected 0 to 9"):
        book.nid2part(torch.tensor(ids))
    with pytest.raises(ValueError, match=f"run from {bounds}; expected 0 to 9"):
        book.nid2local(torch.tensor(ids))


def test_fractional_ids_are_refused(book):
    with pytest.raises(ValueError, match="float32; expected an integer type"):
        book.nid2part(torch.tensor([1.0]))


@pytest.mark.parametrize("part", [-1, 5, "3", 1.0])
def test_unknown_part_is_refused(book, part):
    with pytest.raises(ValueError, match=f"part is {part!r}; expected an integer from 0 to 4"):
        book.part2range(part)


@pytest.mark.parametrize("ranges", [[1, 4], [0, 4, 3], [0], [[0, 4]]])
def test_offsets_that_are_no_ranges_are_refused(ranges):
    with pytest.raises(ValueError, match="part_ranges is"):
        PartitionBook(torch.tensor(ranges))


def test_int32_offsets_are_refused():
    with pytest.raises(ValueError, match="expected int64"):
        PartitionBook(torch.tensor([0, 4], dtype=torch.int32))
