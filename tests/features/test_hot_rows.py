"""HotRows: rows on a device in front of host memory are those of a plain fetch, whatever the device holds."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.hot_rows import HotRows
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.graph.partition_book import PartitionBook

NUM_NODES, DIM = 60, 12
ROWS = torch.randn(NUM_NODES, DIM, generator=torch.Generator().manual_seed(3))
SCALED = ops.RowTable((ROWS * 20).to(torch.int8), torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(4)))
TABLES = {"float32": ROWS, "float16": ROWS.half(), "int16": (ROWS * 100).to(torch.int16), "int8 with scales": SCALED}
ORDER = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(5))[:40]  # hottest first; 20 have no slot
SLOTS = torch.full((NUM_NODES,), -1, dtype=torch.int32)
SLOTS[ORDER] = torch.arange(40, dtype=torch.int32)


def on_host(table):
    """The table as a machine has it, in two parts."""

    def cut(part):
        return ops.RowTable.of(table).moved(lambda tensor: tensor[part])

    local = LocalFeatures([cut(slice(0, 25)), cut(slice(25, None))], 0)
    return DistFeatures(local, PartitionBook(torch.tensor([0, NUM_NODES])), LocalCommunicator())


def held(host, count):
    """Of a device that holds so many of the hottest rows."""
    return HotRows(host, host.read_in_reach(host.locate(ORDER[:count]), None), SLOTS)


@pytest.mark.parametrize("count", [0, 15, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", TABLES)
def test_rows_are_those_of_a_plain_fetch(name, dtype, count):
    nodes = torch.randperm(NUM_NODES)[:45].to(torch.int32)
    expected = on_host(TABLES[name]).fetch(nodes, dtype)
    hot = held(on_host(TABLES[name]), count)
    assert torch.equal(hot.fetch(nodes, dtype), expected)
    hits = int((SLOTS[nodes.long()] < count).logical_and(SLOTS[nodes.long()] >= 0).sum())
    assert hot.host.tally == FetchTally(own=45 - hits, cached=hits)


def test_stored_rows_are_not_converted():
    nodes = torch.arange(NUM_NODES)
    assert torch.equal(held(on_host(TABLES["float16"]), 15).fetch(nodes), TABLES["float16"])
    assert held(on_host(SCALED), 15).fetch(nodes).dtype == torch.float32


def test_one_look_up_serves_devices_that_hold_more_and_less():
    nodes = torch.randperm(NUM_NODES)[:30]
    slots = held(on_host(ROWS), 0).look_up(nodes)
    for count in (0, 7, 40):
        found = HotRows(on_host(ROWS), ROWS[ORDER[:count]])  # has not looked up
        assert torch.equal(found.fetch(nodes, slots=slots), ROWS[nodes])
        assert found.host.tally.cached == int(((slots >= 0) & (slots < count)).sum())


def test_what_a_device_with_more_room_would_hold_can_be_left_out():
    nodes = torch.randperm(NUM_NODES)[:30]
    slots = SLOTS[nodes]
    assert torch.equal(held(on_host(ROWS), 15).without_further(nodes), nodes[(slots < 15) | (slots < 0)])
    assert torch.equal(held(on_host(ROWS), 40).without_further(nodes), nodes)


def test_no_nodes_and_nodes_outside_the_graph():
    assert held(on_host(ROWS), 15).fetch(torch.empty(0, dtype=torch.int64)).shape == (0, DIM)
    with pytest.raises((ValueError, IndexError)):
        held(on_host(ROWS), 15).fetch(torch.tensor([1, NUM_NODES]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", TABLES)
def test_a_gpu_has_the_hosts_rows(name):
    nodes, device = torch.randperm(NUM_NODES)[:45], torch.device("cuda", 0)
    host = on_host(TABLES[name])
    hot = HotRows(host, host.read_in_reach(host.locate(ORDER[:15]), None).to(device), SLOTS)
    for asked in (nodes, nodes.to(device)):
        found = hot.fetch(asked, torch.float32)
        assert found.device == device and torch.equal(found.cpu(), host.fetch(nodes, torch.float32))
