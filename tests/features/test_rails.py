"""Rails: what a machine's ranks need from others crosses once, and every rank gets the rows that it would get alone.

Machines are made up: the ranks of a group stand for those of one machine.
"""

from itertools import combinations

import pytest
import torch

from fastsample_dist.comm.machine import OTHER_MACHINE, Machines
from fastsample_dist.features.combined import CombinedFetch
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.rails import RailFeatures, has_rails, local_communicator, rails_of
from fastsample_dist.features.source import RowRange
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.testing import run_distributed

NODES, DIM = 400, 5
TABLE = torch.randn(NODES, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
GROUPS = {"2 x 2": ((0, 1), (2, 3)), "3 + 1": ((0, 1, 3), (2,)), "1 + 2 + 1": ((0,), (1, 2), (3,))}
RANGES = torch.tensor([0, 90, 200, 200, NODES])  # rank 2 owns nothing
SIZES = (60, 0, 25, 300, 120)  # nodes of the fetches; the fourth needs more shared memory than there is


def machines_of(groups):
    number = {rank: machine for machine, group in enumerate(groups) for rank in group}
    apart = {pair: OTHER_MACHINE for pair in combinations(range(4), 2) if number[pair[0]] != number[pair[1]]}
    return Machines(4, apart)


def fetches_of(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randperm(NODES, generator=generator)[:size].int() for size in SIZES]


def features_on_rails(ctx, machines):
    book = PartitionBook(RANGES)

    def rows_of(rank):
        lo, hi = book.part2range(rank)
        return RowRange(lo, TABLE[lo:hi])

    near = [rows_of(other) for other in machines.of(ctx.rank) if other != ctx.rank]
    own = rows_of(ctx.rank)
    plain = DistFeatures(LocalFeatures(own.rows, own.first_node), book, ctx.comm).reading(near)
    return RailFeatures(plain, machines, local_communicator(ctx.comm, machines))


def fetch_on_rails(ctx):
    """By groups, dtype and exchange: the rows of every fetch, what was counted, and rows by where they came from."""
    found = {}
    for name, groups in GROUPS.items():
        for dtype in (torch.float64, torch.bfloat16):
            for combined in (False, True):
                features = features_on_rails(ctx, machines_of(groups))
                ctx.comm.reset_stats()
                if combined:
                    pipe = CombinedFetch(features, dtype)
                    came = [pipe.push(nodes) for nodes in (*fetches_of(ctx.rank), None, None)][2:]
                else:
                    came = [features.fetch(nodes, dtype) for nodes in fetches_of(ctx.rank)]
                found[name, dtype, combined] = came, ctx.comm.stats(), features.tally
    return found


@pytest.fixture(scope="module")
def found():
    """What every rank finds."""
    return run_distributed(4, fetch_on_rails)


def union_of_machine(groups, rank):
    """How many ids this rank asks for in all fetches, and those among them that others own, by a set per fetch."""
    machines, owner = machines_of(groups), PartitionBook(RANGES).nid2part
    group, rails = machines.of(rank), rails_of(machines, rank)
    total = 0
    for number in range(len(SIZES)):
        lacking = torch.cat([fetches_of(peer)[number] for peer in group])
        asked = [node for node, of in zip(lacking.tolist(), owner(lacking).tolist(), strict=True)
                 if of not in group and group[rails[of]] == rank]  # fmt: skip
        total += len(set(asked))
    return total


CASES = [(name, dtype, combined) for name in GROUPS for dtype in (torch.float64, torch.bfloat16) for combined in (0, 1)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rank_gets_its_rows(found, case):
    for rank, runs in enumerate(found):
        for nodes, rows in zip(fetches_of(rank), runs[case][0], strict=True):
            assert torch.equal(rows, TABLE[nodes.long()].to(case[1]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_crosses_between_machines_once(found, case):
    name, dtype, combined = case
    meetings = len(SIZES) + 2 * combined
    for rank, runs in enumerate(found):
        asked, stats = union_of_machine(GROUPS[name], rank), runs[case][1]
        assert stats["feature_rows"]["bytes_received"] == asked * DIM * dtype.itemsize
        headers = 16 * 3 * meetings * combined
        assert stats["feature_ids"]["bytes_sent"] == asked * 4 + headers
        assert stats["feature_rows"]["calls"] == meetings and set(stats) <= {"counts", "feature_ids", "feature_rows"}


def test_fewer_rows_cross_than_ranks_lack(found):
    received = sum(runs["2 x 2", torch.float64, 0][1]["feature_rows"]["bytes_received"] for runs in found)
    lacking = sum(runs["2 x 2", torch.float64, 0][2].exchanged for runs in found) * DIM * 8
    assert 0 < received < lacking


def test_rows_are_counted_by_rank_where_they_came_from(found):
    for rank, runs in enumerate(found):
        for name, groups in GROUPS.items():
            for combined in (0, 1):
                tally, machines = runs[name, torch.float64, combined][2], machines_of(groups)
                owners = PartitionBook(RANGES).nid2part(torch.cat(fetches_of(rank)))
                near = sum(int((owners == other).sum()) for other in machines.of(rank) if other != rank)
                assert (tally.inputs, tally.own, tally.neighbour) == (sum(SIZES), int((owners == rank).sum()), near)


def test_equal_numbers_ask_each_other():
    machines = machines_of(GROUPS["2 x 2"])
    assert [rails_of(machines, rank) for rank in range(4)] == [[0, 1, 0, 1]] * 4
    assert rails_of(machines_of(GROUPS["3 + 1"]), 2) == [0, 0, 0, 0]
    assert rails_of(machines_of(GROUPS["3 + 1"]), 0) == [0, 1, 0, 2]


def test_rails_are_for_several_ranks_on_each_of_several_machines():
    assert has_rails(machines_of(GROUPS["2 x 2"])) and has_rails(machines_of(GROUPS["1 + 2 + 1"]))
    assert not has_rails(Machines(4)) and not has_rails(Machines.apart(4))
