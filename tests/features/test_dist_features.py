"""DistFeatures on one rank, and what it refuses; fetching between ranks is in tests/pipeline/test_schemes.py."""

import pytest
import torch

from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.store import LocalFeatures
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


def test_parts_of_a_rank_are_one_table():
    local = LocalFeatures.from_parts([ROWS[:4], ROWS[4:]], 0)
    assert torch.equal(local.gather(torch.tensor([4, 1])), ROWS[[4, 1]])


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


class HotRows:
    """A cache of some nodes' rows, wherever they are owned."""

    def __init__(self, nodes):
        self.nodes, self.rows = nodes, TABLE[nodes]

    def find(self, nodes):
        same = nodes.long()[:, None] == self.nodes
        return torch.where(same.any(1), same.int().argmax(1), -1)


def fetch_on_ranks(ctx, make_near, dtype):
    """(nodes, rows, counters)"""
    book = PartitionBook(RANGES)
    features = DistFeatures(part(ctx.rank), book, ctx.comm).with_near(make_near(ctx.rank))
    nodes = torch.randperm(20, generator=torch.Generator().manual_seed(ctx.rank))[:15].int()
    ctx.comm.reset_stats()
    return nodes, features.fetch(nodes, dtype), ctx.comm.stats()


def no_table(rank):
    return []


def the_next_part(rank):
    return [part((rank + 1) % 4)]


def the_next_part_and_hot_rows(rank):
    return [part((rank + 1) % 4), HotRows(torch.tensor([1, 8, 9, 15]))]


def every_other_part(rank):
    return [part(number) for number in range(4) if number != rank]


NEAR = [no_table, the_next_part, the_next_part_and_hot_rows, every_other_part]


def held_near(make_near, rank, nodes):
    """Nodes that the rank's own rows or near tables hold."""
    tables = [part(rank), *make_near(rank)]
    return torch.stack([table.find(nodes) >= 0 for table in tables]).any(0)


@pytest.mark.parametrize("dtype", grid([None, torch.float32, torch.float64], gate=[None, torch.float64]))
@pytest.mark.parametrize("make_near", NEAR, ids=lambda make: make.__name__)
def test_further_tables_serve_a_fetch_and_their_rows_do_not_travel(make_near, dtype):
    found = run_distributed(4, fetch_on_ranks, args=(make_near, dtype))
    for rank, (nodes, rows, stats) in enumerate(found):
        assert torch.equal(rows, TABLE[nodes.long()].to(dtype or TABLE.dtype))
        if make_near is every_other_part:
            assert stats == {}
            continue
        asked = int((~held_near(make_near, rank, nodes)).sum())
        assert stats["feature_ids"]["bytes_sent"] == 4 * asked and stats["feature_ids"]["calls"] == 1
        assert stats["feature_rows"]["bytes_received"] == 8 * asked and stats["feature_rows"]["calls"] == 1


def fetch_with_other_parts(ctx, skip):
    """(whether this rank exchanges, rows, counters): rank `skip` lacks one part, the others have all."""
    near = [part(number) for number in range(4) if number != ctx.rank and (ctx.rank, number) != (skip, 0)]
    features = DistFeatures(part(ctx.rank), PartitionBook(RANGES), ctx.comm).with_near(near)
    ctx.comm.reset_stats()
    return features.exchanges, features.fetch(torch.arange(20).flip(0), torch.float32), ctx.comm.stats()


@pytest.mark.parametrize("skip", [None, 2])
def test_ranks_agree_once_whether_they_ever_ask_each_other(skip):
    for exchanges, rows, stats in run_distributed(4, fetch_with_other_parts, args=(skip,)):
        assert exchanges == (skip is not None) and bool(stats) == exchanges
        assert torch.equal(rows, TABLE.flip(0).float())


def fetch_a_bad_node(ctx):
    lo, hi = PartitionBook(RANGES).part2range(ctx.rank)
    near = [part(number) for number in range(4) if number != ctx.rank]
    features = DistFeatures(part(ctx.rank), PartitionBook(RANGES), ctx.comm).with_near(near)
    with pytest.raises(ValueError, match=f"merge_rows: place {20 - lo} at position 1; expected 0 to {hi - lo - 1}"):
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
    near = [LocalFeatures(table[12:15], 12), LocalFeatures(table[3:5], 3)]
    features = DistFeatures(LocalFeatures(table[lo:hi], lo), PartitionBook(ranges), ctx.comm).with_near(near)
    return features.fetch(torch.arange(20), dtype)


def test_own_rows_are_a_feature_source_too():
    nodes = torch.tensor([11, 7], dtype=torch.int32)
    assert torch.equal(part(2).fetch(nodes, torch.float32), TABLE[nodes.long()].float())
