"""compact and bucket_by_part against their oracles."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_edges", [0, 1, 5000])
def test_compact_equals_the_oracle(dtype, num_edges):
    dst = torch.randperm(400)[:37].to(dtype)
    neighbors = torch.randint(0, 2000, (num_edges,)).to(dtype)
    for found, expected in zip(ops.compact(dst, neighbors), reference.compact(dst, neighbors), strict=True):
        assert torch.equal(found, expected) and found.dtype == dtype


def test_compact_lists_destinations_first_then_new_nodes_as_they_appear():
    src_nodes, indices = ops.compact(torch.tensor([9, 4]), torch.tensor([7, 4, 7, 2]))
    assert src_nodes.tolist() == [9, 4, 7, 2] and indices.tolist() == [2, 1, 2, 3]


@pytest.mark.parametrize(
    ("dst", "neighbors", "message"),
    [([4, 4], [1], "node 4 at positions 0 and 1"), ([4], [-3], "negative id -3"), ([-1], [2], "negative id -1")],
)
def test_compact_refuses(dst, neighbors, message):
    with pytest.raises(ValueError, match=message):
        ops.compact(torch.tensor(dst), torch.tensor(neighbors))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ranges", [[0, 100], [0, 0, 40, 40, 100], [0, 25, 50, 75, 100]])
def test_bucket_by_part_equals_the_oracle(dtype, ranges):
    ids = torch.randint(0, 100, (333,)).to(dtype)
    found = ops.bucket_by_part(ids, torch.tensor(ranges))
    for left, right in zip(found, reference.bucket_by_part(ids, torch.tensor(ranges)), strict=True):
        assert torch.equal(left, right)


def test_bucket_places_are_the_way_back():
    ids = torch.randint(0, 100, (333,))
    grouped, counts, places = ops.bucket_by_part(ids, torch.tensor([0, 10, 60, 100]))
    assert torch.equal(grouped[places], ids) and int(counts.sum()) == 333


@pytest.mark.parametrize("bad", [-1, 100])
def test_bucket_refuses_an_id_nobody_owns(bad):
    with pytest.raises(ValueError, match=f"node id {bad} at position 1; expected 0 to 99"):
        ops.bucket_by_part(torch.tensor([3, bad]), torch.tensor([0, 50, 100]))
