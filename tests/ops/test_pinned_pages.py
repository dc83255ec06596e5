"""pin_pages, unpin_pages: what a failure leaves behind, and that unpinning waits; an empty table needs neither."""

import mmap

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.device.pinned import pinned_copy
from fastsample_dist.ops import SampleSpec, cuda, row_tables
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph


@pytest.fixture
def device(cuda_device):
    """Whose kernels read the pages."""
    return cuda_device.put(torch.zeros(1)).device


@pytest.fixture
def pages():
    """Two pages, and their address."""
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)


def gather(cuda_device):
    rows, ids = torch.rand(9, 4), torch.tensor([3, 8])
    gathered = cuda_device.kernel("gather_rows")(cuda_device.put(rows), cuda_device.put(ids))
    assert torch.equal(gathered.cpu(), rows[ids])


def test_no_launch_is_blamed_for_pages_that_are_not_pinned(cuda_device, device, pages):
    ops.pin_pages(pages.data_ptr(), pages.nbytes, device)
    with pytest.raises(RuntimeError, match=rf"pinning {pages.nbytes} bytes of host memory failed: .*; choose device"):
        ops.pin_pages(pages.data_ptr(), pages.nbytes, device)
    gather(cuda_device)
    ops.unpin_pages(pages.data_ptr(), device)
    with pytest.raises(RuntimeError, match="unpinning host memory failed: .*registered"):
        ops.unpin_pages(pages.data_ptr(), device)
    gather(cuda_device)


def test_pages_are_unpinned_after_the_kernels_that_may_read_them(cuda_device, device, pages):
    ops.pin_pages(pages.data_ptr(), pages.nbytes, device)
    gather(cuda_device)
    ops.unpin_pages(pages.data_ptr(), device)  # the emulator refuses it before the device has been waited for


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_a_table_without_elements_is_readable_anywhere(shape):
    empty, device = torch.rand(shape), torch.device("cuda", 1)
    assert pinned_copy(empty, device) is empty and cuda.can_read(empty, device)
    row_tables.check_table("rows", empty, device)
    assert not cuda.can_read(torch.rand(2), device)


@pytest.mark.gpu
def test_a_pinned_graph_without_edges_is_sampled():
    device = torch.device("cuda")
    offsets, none = torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    graph = CudaSamplingGraph(pinned_copy(offsets, device), pinned_copy(none, device), device=device)
    hops = graph.sample(torch.tensor([2, 0], dtype=torch.int32).to(graph.device), SampleSpec(fanouts=(3, 2)), 0)
    assert hops.nodes.tolist() == [2, 0] and [indices.numel() for indices in hops.indices] == [0, 0]
