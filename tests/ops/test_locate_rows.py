"""locate_rows against its oracle, on the CPU and as composed for GPUs; slots of cached rows."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.ops.locate_rows import CachedSlots, RowIndex

NUM_NODES = 400
RANGES = [0, 90, 90, 200, 310, 400]  # rank 1 owns nothing
TABLES, FIRST_ROWS = [1, -1, 0, -1, 2], [5, 0, 0, 0, 30]  # this is rank 2; those of ranks 0 and 4 are near
OWNER = [rank for rank in range(5) for _ in range(RANGES[rank], RANGES[rank + 1])]


def held():
    """Row of every node that a table holds, table by table."""
    found = [{}, {}, {}]
    for rank, table in enumerate(TABLES):
        if table >= 0:
            nodes = range(RANGES[rank], RANGES[rank + 1])
            found[table] |= {node: FIRST_ROWS[rank] + k for k, node in enumerate(nodes)}
    return found


def index_of(cached):
    slots = None if cached is None else CachedSlots.of(cached, NUM_NODES)
    return RowIndex(
        torch.tensor(RANGES), torch.tensor(TABLES, dtype=torch.int32), torch.tensor(FIRST_ROWS), slots, cache_table=3
    )


def draw(count, dtype=torch.int64):
    return torch.randint(0, NUM_NODES, (count,), generator=torch.Generator().manual_seed(3)).to(dtype)


def some_nodes(count):
    return torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(8))[:count]


def assert_located(found, nodes, cached):
    slots = {} if cached is None else {node: slot for slot, node in enumerate(cached.tolist())}
    places, missing, counts, *numbers = reference.locate_rows(nodes, OWNER, held(), slots)
    assert torch.equal(found.places, places)
    assert torch.equal(found.missing, missing) and found.missing.dtype == nodes.dtype
    assert found.counts == counts and [found.num_own, found.num_near, found.num_cached] == numbers


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_cached", [None, 0, 1, 30, 100, 101, NUM_NODES])
@pytest.mark.parametrize("count", [0, 1, 333, 20_000])
def test_locate_rows_equals_the_oracle(dtype, num_cached, count):
    """Up to 100 cached nodes are hashed, more have a slot per node."""
    nodes, cached = draw(count, dtype), None if num_cached is None else some_nodes(num_cached)
    index = index_of(cached)
    assert index.slots is None or (index.slots.table.dim() == 1) == (num_cached > 100)
    assert_located(ops.locate_rows(nodes, index), nodes, cached)


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_threads_change_nothing(num_threads):
    nodes, before = draw(20_000), torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert_located(ops.locate_rows(nodes, index_of(some_nodes(40))), nodes, some_nodes(40))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_cached", [None, 200])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_what_gpus_run_equals_the_oracle(cuda_device, num_cached, dtype):
    nodes, cached = draw(333, dtype), None if num_cached is None else some_nodes(num_cached)
    index = index_of(cached).on(cuda_device.put(nodes).device)
    places, missing, counts = cuda_device.kernel("locate_rows")(cuda_device.put(nodes), *index.arguments)
    *by_owner, own, near, hits = counts.tolist()
    assert_located(ops.Located(places.cpu(), missing.cpu(), by_owner, own, near, hits), nodes, cached)


def test_an_index_of_another_device_is_there_as_a_whole():
    ranges, slots, _ = index_of(some_nodes(200)).on(torch.device("meta")).arguments
    assert {tensor.device.type for tensor in (*ranges, slots)} == {"meta"}


def test_ranges_finer_than_ranks_count_by_their_owners():
    """Rank 1 has two parts, each a table of its own; rank 0 has two that must be asked for."""
    index = RowIndex(
        torch.tensor([0, 2, 4, 6, 8]), torch.tensor([-1, -1, 0, 1], dtype=torch.int32),
        torch.zeros(4, dtype=torch.int64), owners=torch.tensor([0, 0, 1, 1], dtype=torch.int32),
        num_own_tables=2, num_owners=2,
    )  # fmt: skip
    found = ops.locate_rows(torch.arange(8).flip(0), index)
    assert found.counts == [4, 0] and (found.num_own, found.num_near) == (4, 0)
    assert found.missing.tolist() == [3, 2, 1, 0]
    assert found.places.tolist() == [2**48 + 1, 2**48, 1, 0, -1, -2, -3, -4]


@pytest.mark.parametrize("bad", [-1, NUM_NODES])
def test_a_node_outside_the_ranges_is_refused(cuda_device, bad):
    nodes, line = torch.tensor([3, bad]), f"locate_rows: node id {bad} at position 1; expected 0 to {NUM_NODES - 1}"
    with pytest.raises(ValueError, match=line):
        ops.locate_rows(nodes, index_of(None))
    on_device = cuda_device.put(nodes)
    with pytest.raises(ValueError, match=line):
        cuda_device.kernel("locate_rows")(on_device, *index_of(None).on(on_device.device).arguments)


@pytest.mark.parametrize(
    ("nodes", "line"), [([1, 1], "the cached nodes repeat"), ([0, 9], "cached nodes run from 0 to 9; expected 0 to 8")]
)
def test_slots_are_refused(nodes, line):
    with pytest.raises(ValueError, match=line):
        CachedSlots.of(torch.tensor(nodes), 9)


def test_hashed_slots_of_a_graph_beyond_int32():
    """Keys need 64 bits; one slot per node would take 16 GB."""
    num_nodes, nodes = 1 << 32, torch.tensor([(1 << 32) - 1, 5, 1 << 31])
    slots = CachedSlots.of(nodes, num_nodes)
    index = RowIndex(
        torch.tensor([0, 0, num_nodes]), torch.tensor([0, -1], dtype=torch.int32), torch.zeros(2, dtype=torch.int64),
        slots, cache_table=1,
    )  # fmt: skip
    found = ops.locate_rows(torch.tensor([1 << 31, 6, (1 << 32) - 1]), index)
    assert slots.table.dtype == torch.int64 and slots.nbytes == 8 * 2 * 8
    assert found.places.tolist() == [2**48 + 2, -1, 2**48] and found.missing.tolist() == [6]
