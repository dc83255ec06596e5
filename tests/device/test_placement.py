"""Where tables are placed: the rule on numbers alone, and what is done by it."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.device import pinned, placement
from fastsample_dist.device.placement import Placement, Room, Table, choose_places
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placed import place_graph, topology_bytes

GB = 10**9
CUDA, CPU = torch.device("cuda", 1), torch.device("cpu")
ROOM = Room(CUDA, device_bytes=80 * GB, reserve_bytes=8 * GB, host_bytes=200 * GB)


def places(*tables, room=ROOM):
    return [found.where for found in choose_places(tables, room)]


def graph(weights=None, orig_ids=None):
    return CSCGraph(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0], dtype=torch.int32), weights, orig_ids)


@pytest.mark.parametrize(
    ("topology", "features", "expected"),
    [
        (10, 20, ["device", "device"]),
        (72, 0, ["device", "device"]),
        (73, 1, ["pinned", "device"]),
        (40, 32, ["device", "device"]),
        (40, 33, ["device", "pinned"]),
        (90, 110, ["pinned", "pinned"]),
    ],
)
def test_topology_comes_first_and_the_reserve_is_kept(topology, features, expected):
    assert places(Table("topology", topology * GB), Table("features", features * GB)) == expected


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (("auto", "device"), ["pinned", "device"]),  # what was asked for is placed before
        (("device", "auto"), ["device", "pinned"]),
        (("pinned", "auto"), ["pinned", "device"]),
        (("pinned", "pinned"), ["pinned", "pinned"]),
    ],
)
def test_the_users_choice_comes_before_the_rule(choices, expected):
    tables = [Table(name, 50 * GB, choice) for name, choice in zip(("topology", "features"), choices, strict=True)]
    assert places(*tables) == expected


def test_the_reserve_does_not_bind_who_asks_for_device_memory():
    assert places(Table("features", 79 * GB, "device")) == ["device"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            [Table("features", 81 * GB, "device")],
            "features takes 81GB of device memory, but 80GB are free on cuda:1 and 200GB can be pinned on the "
            "host; choose pinned or auto.",
        ),
        ([Table("features", 201 * GB)], "takes 201GB of pinned memory.* use more ranks, or a smaller stored type"),
        ([Table("topology", 120 * GB), Table("features", 90 * GB)], "features takes 90GB .* 80GB can be pinned"),
        ([Table("topology", 50 * GB, "device"), Table("features", 40 * GB, "device")], "but 30GB are free"),
        ([Table("topology", 1, "host")], "place of the topology is 'host'; expected auto, device, pinned"),
    ],
)
def test_what_fits_nowhere_is_refused(tables, message):
    with pytest.raises(ValueError, match=message):
        choose_places(tables, ROOM)


def test_on_the_cpu_tables_stay_where_they_are():
    found = choose_places([Table("topology", 5 * GB)], Room(CPU))
    assert found == [Placement("topology", "host", CPU, 5 * GB, "for kernels of the CPU")]
    assert str(found[0]) == "topology: 5GB in host memory (for kernels of the CPU)"


@pytest.mark.parametrize("choice", ["device", "pinned"])
def test_a_choice_without_a_gpu_is_refused(choice):
    with pytest.raises(ValueError, match=f"cannot be placed in {choice} memory: the device is cpu; choose a CUDA"):
        choose_places([Table("topology", 5, choice)], Room(CPU))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            Table("topology", 6 * GB),
            "topology: 6GB in memory of cuda:1 (72GB free there, 8GB more kept for batches)",
        ),
        (
            Table("features", 90 * GB),
            "features: 90GB in pinned host memory, read by cuda:1 over the bus (the device's memory is too small: 72GB "
            "free there, 8GB more kept for batches)",
        ),
        (Table("features", 1 * GB, "pinned"), "features: 1GB in pinned host memory, read by cuda:1 over the bus (as"),
    ],
)
def test_a_placement_says_what_where_and_why(table, line):
    assert str(choose_places([table], ROOM)[0]).startswith(line)


def test_less_free_than_the_reserve_is_no_room():
    assert places(Table("topology", 1), room=dataclasses.replace(ROOM, device_bytes=GB)) == ["pinned"]


@pytest.mark.parametrize(
    ("most", "device", "reserve"),
    [(None, 80, 8), (90, 80, 8), (75, 75, 3), (72, 72, 0), (20, 20, 0), (-1, 0, 0)],
)
def test_a_limit_of_tables_leaves_the_reserve_what_is_beyond_it(most, device, reserve):
    found = ROOM.at_most(None if most is None else most * GB)
    assert found == dataclasses.replace(ROOM, device_bytes=device * GB, reserve_bytes=reserve * GB)


def test_topology_bytes_count_what_sampling_reads():
    weighted = graph(torch.rand(3), torch.arange(3))
    assert topology_bytes(graph()) == 4 * 8 + 3 * 4
    assert topology_bytes(weighted) == 4 * 8 + 3 * 4 + 3 * 8
    assert topology_bytes(weighted, weighted=True) == 4 * 8 + 3 * 4 + 3 * 8 + 3 * 4 + 8 * (3 + 3)


@pytest.fixture
def memory_of(monkeypatch):
    """70 of 80 bytes are free, torch holds 9 of which 4 are used; returns what sets this process's share of the 80."""
    monkeypatch.setattr(placement, "available_bytes", lambda: 100)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 4)
    share = "get_per_process_memory_fraction"
    return lambda own: monkeypatch.setattr(torch.cuda, share, lambda _: own, raising=False)


def test_the_host_has_room_for_its_ranks_alone(memory_of):
    memory_of(1.0)
    assert placement.measured_room("cuda:1", ranks_on_host=4) == Room(CUDA, 75, 8, 25)
    assert placement.measured_room(CUDA, 30).reserve_bytes == 30
    assert placement.measured_room("cpu") == Room(CPU)


def test_a_limit_of_this_process_is_all_that_there_is(memory_of):
    memory_of(0.5)
    assert placement.measured_room(CUDA) == Room(CUDA, 36, 4, 100)


def test_a_graph_for_the_cpu_is_itself():
    kept = graph(torch.rand(3))
    assert place_graph(kept, choose_places([Table("topology", 1)], Room(CPU))[0]) is kept
    assert kept.device == CPU


@pytest.fixture
def pages(monkeypatch):
    """pin_pages and unpin_pages, which remember what is pinned."""

    made = SimpleNamespace(pinned={}, is_full=False)

    def pin(address, num_bytes, device):
        if made.is_full:
            raise RuntimeError("pinning failed")
        assert address % 4096 == 0 and device == CUDA
        made.pinned[address] = num_bytes

    def unpin(address, device):
        assert device == CUDA
        del made.pinned[address]

    monkeypatch.setattr(ops, "pin_pages", pin)
    monkeypatch.setattr(ops, "unpin_pages", unpin)
    return made


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(1,), (3000,), (40, 33)])
def test_a_pinned_copy_is_pinned_while_a_view_of_it_lives(pages, dtype, shape):
    given = (torch.randn(shape) * 50).to(dtype)
    copy = pinned.pinned_copy(given, CUDA)
    assert torch.equal(copy, given) and copy.dtype == dtype and copy.data_ptr() != given.data_ptr()
    assert pages.pinned == {copy.data_ptr(): given.nbytes}
    view = copy[:1].view(-1)
    del copy
    assert pages.pinned
    del view
    assert not pages.pinned


def test_memory_that_cuda_does_not_pin_is_not_unpinned(pages):
    pages.is_full = True
    with pytest.raises(RuntimeError, match="pinning failed"):
        pinned.pinned_copy(torch.zeros(10), CUDA)
    assert not pages.pinned


def test_an_empty_table_needs_no_pages(pages):
    assert pinned.pinned_copy(torch.zeros(0, 4), CUDA).shape == (0, 4) and not pages.pinned


def test_a_pinned_graph_is_sampled_by_its_device(pages):
    weighted = graph(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([7, 5, 6]))
    place = Placement("topology", "pinned", CUDA, topology_bytes(weighted), "asked for")
    placed = place_graph(weighted, place)
    assert placed.device == CUDA and placed.indptr.device == CPU and placed.weights is None
    for name in ("indptr", "indices", "orig_ids"):
        assert torch.equal(getattr(placed, name), getattr(weighted, name))
        assert getattr(placed, name).data_ptr() in pages.pinned


def test_a_graph_that_is_placed_for_weighted_sampling_has_tables_beside_its_weights(pages):
    weighted = graph(torch.tensor([1.0, 0.0, 2.0]))
    place = Placement("topology", "pinned", CUDA, topology_bytes(weighted, weighted=True), "asked for")
    found, expected = place_graph(weighted, place, weighted=True).edge_weights, weighted.edge_weights
    assert torch.equal(found.weights, expected.weights) and found.weights.data_ptr() in pages.pinned
    assert torch.equal(found.tables.table, expected.tables.table) and found.tables.table.data_ptr() in pages.pinned
    assert torch.equal(found.tables.num_positive, expected.tables.num_positive)
    assert sum(pages.pinned.values()) <= place.num_bytes


def test_weights_that_are_only_read_are_placed_without_tables(pages):
    weighted = graph(torch.tensor([1.0, 0.0, 2.0]))
    place = Placement("topology", "pinned", CUDA, topology_bytes(weighted, valued=True), "asked for")
    placed = place_graph(weighted, place, valued=True)
    assert torch.equal(placed.weights, weighted.weights) and placed.weights.data_ptr() in pages.pinned
    assert place.num_bytes == topology_bytes(weighted) + weighted.weights.nbytes == sum(pages.pinned.values())
    assert place_graph(graph(), place, valued=True).weights is None


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["device", "pinned"])
def test_a_graph_is_placed_on_a_gpu(where):
    device = torch.device("cuda", 0)
    given = graph(torch.rand(3), torch.arange(3))
    room = placement.measured_room(device)
    assert room.device_bytes > room.reserve_bytes > 0 and room.host_bytes > 0
    [place] = choose_places([Table("topology", topology_bytes(given), where)], room)
    placed = place_graph(given, place)
    assert placed.device == device and torch.equal(placed.indices.cpu(), given.indices)
    assert placed.indices.is_cuda if where == "device" else placed.indices.is_pinned()
