"""Rows of large tables in host memory are read by row: the same rows, and the same position of what is bad."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import bus_order


@pytest.fixture
def always_by_row(monkeypatch):
    """As if every table were a large one in host memory."""
    monkeypatch.setattr(bus_order, "LEAST_ROWS", 1)
    monkeypatch.setattr(bus_order, "host_bytes", lambda tables, device: bus_order.REACH_BYTES + 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gathered_rows_are_those_of_the_ids(cuda_device, always_by_row, dtype):
    rows, ids = torch.rand(50, 7), torch.randint(0, 50, (300,), dtype=dtype)
    gathered = cuda_device.kernel("gather_rows")(cuda_device.put(rows), cuda_device.put(ids))
    assert torch.equal(gathered.cpu(), rows[ids.long()])


def test_merged_rows_are_those_of_the_places(cuda_device, always_by_row):
    own, near, fetched, put = torch.rand(20, 5), torch.rand(9, 5), torch.rand(6, 5), cuda_device.put
    places = torch.cat([torch.arange(-6, 20), ops.place_in(1, torch.arange(9))])[torch.randperm(35)]
    expected = ops.merge_rows(own, fetched, places, torch.float64, near=[near])
    merged = cuda_device.kernel("merge_rows")(
        put(own), put(fetched), put(places), torch.float64, None, None, True, [put(near)], None
    )
    assert torch.equal(merged.cpu(), expected)


def test_a_bad_id_is_reported_at_its_own_position(cuda_device, always_by_row):
    ids = cuda_device.put(torch.tensor([8, 3, 50, 0, 77]))
    with pytest.raises(ValueError, match="gather_rows: id 50 at position 2; expected 0 to 9"):
        cuda_device.kernel("gather_rows")(cuda_device.put(torch.rand(10, 3)), ids)


def test_a_bad_place_that_is_found_later_is_reported_at_its_own_position(cuda_device, always_by_row):
    gather, rows = cuda_device.kernel("gather_rows"), cuda_device.put(torch.rand(10, 3))
    ids = cuda_device.put(torch.tensor([8, 3, 50, 0]))
    found = gather(rows, ids, None, None, False)
    assert not found[2].any() and torch.equal(found[0], rows[8])
    with pytest.raises(ValueError, match=r"gather_rows: id 50 at position 2; expected 0 to 9 \(in an earlier call"):
        ops.raise_deferred_errors(rows.device)


def test_few_rows_and_tables_within_reach_are_read_as_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(bus_order, "LEAST_ROWS", 3)
    places, table = torch.tensor([2, 0, 1], device="meta"), torch.empty(4, 2)  # the device is another than the table's
    assert bus_order.by_row(places, (table,))[1] is None
    monkeypatch.setattr(bus_order, "REACH_BYTES", table.nbytes - 1)
    assert bus_order.by_row(places, (table,))[1] is not None
    assert bus_order.by_row(places[:2], (table,))[1] is None
