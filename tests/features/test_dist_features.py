"""DistFeatures on one rank, and what it refuses; fetching between ranks is in tests/pipeline/test_schemes.py."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.source import CachedRows, RowRange
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.testing import run_distributed
from tests.grids import grid

ROWS = torch.arange(12.0).reshape(6, 2)


def features(rows=ROWS):
    return DistFeatures(LocalFeatures(rows, 0), PartitionBook(torch.tensor([0, 6])), LocalCommunicator())


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_one_rank_reads_its_own_rows(dtype):
    nodes = torch.tensor([5, 0, 3], dtype=torch.int32)
    fetched = features().fetch(nodes, dtype)
    assert torch.equal(fetched, ROWS[nodes.long()].to(dtype or torch.float32))


def test_parts_of_a_rank_are_read_where_they_are():
    local = LocalFeatures.from_parts([ROWS[:4], ROWS[4:]], 0)
    assert torch.equal(local.fetch(torch.tensor([4, 1])), ROWS[[4, 1]])


def test_rows_that_do_not_match_the_own_nodes_are_refused():
    with pytest.raises(ValueError, match="features have 5 rows from node 0 but rank 0 owns the nodes 0 to 5"):
        features(ROWS[:5])


def test_a_node_outside_the_graph_is_refused():
    with pytest.raises(ValueError, match="place 6 at position 0"):
        features().fetch(torch.tensor([6]))


RANGES = torch.tensor([0, 7, 7, 12, 20])
TABLE = torch.arange(80).reshape(20, 4).half()


def part(number, dtype_rows=TABLE):
    lo, hi = PartitionBook(RANGES).part2range(number)
    return LocalFeatures(dtype_rows[lo:hi], lo)


def near(number):
    """The rows of a part as a neighbour's table."""
    return part(number).tables[0]


HOT = torch.tensor([1, 8, 9, 15])  # a cache of some nodes' rows, wherever they are owned


def hot_rows():
    return CachedRows(ops.CachedSlots.of(HOT, 20), TABLE[HOT])


def fetch_on_ranks(ctx, make_near, dtype):
    """(nodes, rows, counters, tally)"""
    book = PartitionBook(RANGES)
    features = DistFeatures(part(ctx.rank), book, ctx.comm).reading(*make_near(ctx.rank))
    nodes = torch.randperm(20, generator=torch.Generator().manual_seed(ctx.rank))[:15].int()
    ctx.comm.reset_stats()
    return nodes, features.fetch(nodes, dtype), ctx.comm.stats(), features.tally


def no_table(rank):
    return [], None


def the_next_part(rank):
    return [near((rank + 1) % 4)], None


def the_next_part_and_hot_rows(rank):
    return [near((rank + 1) % 4)], hot_rows()


def every_other_part(rank):
    return [near(number) for number in range(4) if number != rank], None


NEAR = [no_table, the_next_part, the_next_part_and_hot_rows, every_other_part]


def expected_tally(make_near, rank, nodes):
    """Node by node: own, neighbour, cached, or exchanged."""
    tables, cache = make_near(rank)
    lo, hi = PartitionBook(RANGES).part2range(rank)
    found = FetchTally()
    for node in nodes.tolist():
        if lo <= node < hi:
            found.own += 1
        elif any(table.first_node <= node < table.end_node for table in tables):
            found.neighbour += 1
        elif cache is not None and node in HOT.tolist():
            found.cached += 1
        else:
            found.exchanged += 1
    return found


@pytest.mark.parametrize("dtype", grid([None, torch.float32, torch.float64], gate=[None, torch.float64]))
@pytest.mark.parametrize("make_near", NEAR, ids=lambda make: make.__name__)
def test_further_tables_serve_a_fetch_and_their_rows_do_not_travel(make_near, dtype):
    found = run_distributed(4, fetch_on_ranks, args=(make_near, dtype))
    for rank, (nodes, rows, stats, tally) in enumerate(found):
        assert tally == expected_tally(make_near, rank, nodes) and tally.inputs == 15
        assert torch.equal(rows, TABLE[nodes.long()].to(dtype or TABLE.dtype))
        if make_near is every_other_part:
            assert stats == {}
            continue
        asked = tally.exchanged
        assert stats["feature_ids"]["bytes_sent"] == 4 * asked and stats["feature_ids"]["calls"] == 1
        assert stats["feature_rows"]["bytes_received"] == 8 * asked and stats["feature_rows"]["calls"] == 1


def fetch_with_other_parts(ctx, skip):
    """(whether this rank exchanges, rows, counters): rank `skip` lacks one part, the others have all."""
    tables = [near(number) for number in range(4) if number != ctx.rank and (ctx.rank, number) != (skip, 0)]
    features = DistFeatures(part(ctx.rank), PartitionBook(RANGES), ctx.comm).reading(tables)
    ctx.comm.reset_stats()
    return features.exchanges, features.fetch(torch.arange(20).flip(0), torch.float32), ctx.comm.stats()


@pytest.mark.parametrize("skip", [None, 2])
def test_ranks_agree_once_whether_they_ever_ask_each_other(skip):
    for exchanges, rows, stats in run_distributed(4, fetch_with_other_parts, args=(skip,)):
        assert exchanges == (skip is not None) and bool(stats) == exchanges
        assert torch.equal(rows, TABLE.flip(0).float())


def fetch_a_bad_node(ctx):
    features = DistFeatures(part(ctx.rank), PartitionBook(RANGES), ctx.comm).reading(*every_other_part(ctx.rank))
    with pytest.raises(ValueError, match="locate_rows: node id 20 at position 1; expected 0 to 19"):
        features.fetch(torch.tensor([3, 20]))


def test_a_node_outside_the_graph_is_refused_without_an_exchange_too():
    run_distributed(4, fetch_a_bad_node)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_all_tables_are_converted_alike(dtype):
    """float64 rows travel, and are read from further tables, in the narrower dtype of the result."""
    table = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = run_distributed(2, fetch_narrow, args=(table, dtype))
    for rows in found:
        assert torch.equal(rows, table.to(dtype))


def fetch_narrow(ctx, table, dtype):
    ranges = torch.tensor([0, 7, 20])
    lo, hi = PartitionBook(ranges).part2range(ctx.rank)
    near = [RowRange(first, table[first:end]) for first, end in ((12, 15), (3, 5)) if not lo <= first < hi]
    features = DistFeatures(LocalFeatures(table[lo:hi], lo), PartitionBook(ranges), ctx.comm).reading(near)
    return features.fetch(torch.arange(20), dtype)


def test_own_rows_are_a_feature_source_too():
    nodes = torch.tensor([11, 7], dtype=torch.int32)
    assert torch.equal(part(2).fetch(nodes, torch.float32), TABLE[nodes.long()].float())


NUMBERS = torch.randint(-127, 128, (20, 5), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
SCALED = ops.RowTable(NUMBERS, torch.rand(20, generator=torch.Generator().manual_seed(3)))


def scaled_part(number):
    lo, hi = PartitionBook(RANGES).part2range(number)
    return LocalFeatures(ops.RowTable(SCALED.rows[lo:hi], SCALED.scales[lo:hi]), lo)


def fetch_scaled(ctx, dtype):
    """(rows, counters, tally) without others' tables; and with a neighbour's and a cache, whose rows are packed."""
    features = DistFeatures(scaled_part(ctx.rank), PartitionBook(RANGES), ctx.comm)
    neighbour = scaled_part((ctx.rank + 2) % 4)
    cache = CachedRows(ops.CachedSlots.of(HOT, 20), SCALED.take(HOT))
    nodes, found = torch.randperm(20, generator=torch.Generator().manual_seed(ctx.rank))[:15].int(), []
    for reading in ([], None), ([neighbour.tables[0]], cache):
        reader = features.reading(*reading)
        ctx.comm.reset_stats()
        found.append((reader.fetch(nodes, dtype), ctx.comm.stats(), reader.tally))
    return nodes, found


@pytest.mark.parametrize("dtype", grid([None, torch.float64, torch.bfloat16], gate=[None, torch.bfloat16]))
def test_scaled_rows_are_the_same_bits_from_every_table_and_travel_packed(dtype):
    total = FetchTally()
    for nodes, found in run_distributed(4, fetch_scaled, args=(dtype,)):
        expected = SCALED.values(nodes.long()).to(dtype or torch.float32)
        for rows, stats, tally in found:
            total.add(tally)
            assert torch.equal(rows, expected)
            assert stats["feature_rows"]["bytes_received"] == (5 + 4) * tally.exchanged
    assert min(total.neighbour, total.cached, total.exchanged) > 0
