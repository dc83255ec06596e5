"""compact and bucket_by_part on CUDA: the CPU's results and refusals, under any schedule."""

import pytest
import torch

from fastsample_dist import ops
from tests.grids import grid

SCHEDULES = grid(range(4), gate=[0, 3])


def set_schedule(device, seed):
    if device.is_emulated:
        device.set_schedule(seed)


def assert_equal(found, expected):
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left.cpu(), right) and left.dtype == right.dtype


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(6)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_dst", [0, 1, 37])
@pytest.mark.parametrize("num_edges", [0, 1, 31, 900])
def test_compact_is_the_cpus(cuda_device, dtype, num_dst, num_edges, seed):
    set_schedule(cuda_device, seed)
    dst = torch.randperm(300)[:num_dst].to(dtype)
    neighbors = torch.randint(0, 250, (num_edges,)).to(dtype)
    found = cuda_device.kernel("compact")(cuda_device.put(dst), cuda_device.put(neighbors))
    assert_equal(found, ops.compact(dst, neighbors))


def test_compact_takes_ids_beyond_32_bits(cuda_device):
    dst, neighbors = torch.tensor([2**40, 3]), torch.tensor([2**62, 3, 2**40 + 1, 2**62])
    found = cuda_device.kernel("compact")(cuda_device.put(dst), cuda_device.put(neighbors))
    assert found[0].tolist() == [2**40, 3, 2**62, 2**40 + 1] and found[1].tolist() == [2, 1, 3, 2]


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize(
    ("dst", "neighbors"),
    [
        ([4, 4], [1]),
        ([5, 4, 9, 5, 4, 5], [1, 4]),
        ([4], [2, -3, 7, -1]),
        ([6, -1, -2], [2]),
        ([6, 6, -2], [2]),
        ([6, -2, 6], [2]),
        ([6, 6], [-2]),
        ([2**63 - 1], [1]),
        ([6], [1, 2**63 - 1]),
    ],
)
def test_compact_refuses_in_the_cpus_words(cuda_device, dst, neighbors, seed):
    set_schedule(cuda_device, seed)
    dst, neighbors = torch.tensor(dst), torch.tensor(neighbors)
    with pytest.raises(ValueError) as on_cpu:
        ops.compact(dst, neighbors)
    with pytest.raises(ValueError) as on_cuda:
        cuda_device.kernel("compact")(cuda_device.put(dst), cuda_device.put(neighbors))
    assert str(on_cuda.value) == str(on_cpu.value)


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ranges", [[0, 100], [0, 0, 40, 40, 100], [0, 25, 50, 75, 100], list(range(0, 101, 2))])
@pytest.mark.parametrize("count", [0, 1, 33, 2000])
def test_buckets_are_the_cpus(cuda_device, dtype, ranges, count, seed):
    set_schedule(cuda_device, seed)
    ids, ranges = torch.randint(0, 100, (count,)).to(dtype), torch.tensor(ranges)
    found = cuda_device.kernel("bucket_by_part")(cuda_device.put(ids), ranges)
    assert_equal(found, ops.bucket_by_part(ids, ranges))


def test_counts_are_where_the_ranges_are(cuda_device):
    ids, ranges = cuda_device.put(torch.tensor([3, 1])), torch.tensor([0, 2, 4])
    assert cuda_device.kernel("bucket_by_part")(ids, ranges)[1].device == ranges.device
    found = cuda_device.kernel("bucket_by_part")(ids, cuda_device.put(ranges))
    assert found[1].device == ids.device and found[1].tolist() == [1, 1]


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("ids", [[-1], [3, 100, -1, 7], list(range(100)) * 3 + [2**40, -9]])
def test_buckets_refuse_in_the_cpus_words(cuda_device, ids, seed):
    set_schedule(cuda_device, seed)
    ids, ranges = torch.tensor(ids), torch.tensor([0, 50, 100])
    with pytest.raises(ValueError) as on_cpu:
        ops.bucket_by_part(ids, ranges)
    with pytest.raises(ValueError) as on_cuda:
        cuda_device.kernel("bucket_by_part")(cuda_device.put(ids), ranges)
    assert str(on_cuda.value) == str(on_cpu.value)
