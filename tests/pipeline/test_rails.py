"""A loader on rails makes the batches of one that is not, and a row crosses between two machines once a step.

Machines are made up: ranks 0 and 1, and 2 and 3, stand for those of one machine each.
"""

import re
from itertools import product
from pathlib import Path

import pytest

from fastsample_dist import DistData, DistLoader, FeatureCache
from fastsample_dist.comm.machine import OTHER_MACHINE, Machines
from fastsample_dist.testing import run_distributed
from fastsample_dist.testing.ranks import RankError
from tests.parts import FEATURE_DIM, draw_partition
from tests.pipeline.killed import die_in_the_middle

FANOUTS, BATCH = [3, 2], 6
ROW_BYTES = FEATURE_DIM + 4  # numbers and scale
TWO_MACHINES = Machines(4, dict.fromkeys(product((0, 1), (2, 3)), OTHER_MACHINE))
EXCHANGES = ("paired", "combined")


def facts_of(batch):
    edges = [(mfg.indptr.tolist(), mfg.indices.tolist()) for mfg in batch.mfgs]
    return batch.step, batch.input_nodes.tolist(), edges, batch.features.tolist(), batch.labels.tolist()


def epochs_of(loader, leave_after):
    """Batches of an epoch that is left early and of a whole one."""
    found = []
    for batch in loader:
        found.append(facts_of(batch))
        if len(found) == leave_after:
            break
    return found + [facts_of(batch) for batch in loader]


def load_on_rails(ctx, path):
    """Batches as every rank makes them alone, batches on rails and counts by (exchange, prefetch, rails), ranges."""
    ctx._machines = TWO_MACHINES
    data, found = DistData.load(path, ctx), {}
    plain = DistLoader(data, FANOUTS, BATCH, rng_seed=7, transport="exchange", exchange="paired")
    alone = epochs_of(plain, 2)
    for exchange, prefetch, rails in product(EXCHANGES, (0, 2), (True, False)):
        loader = DistLoader(data, FANOUTS, BATCH, rng_seed=7, exchange=exchange, prefetch=prefetch, rails=rails)
        assert (loader.transport, loader.exchange, loader.rails) == ("shared", exchange, rails)
        batches = epochs_of(loader, 2)
        ctx.comm.reset_stats()
        loader.set_epoch(1)
        again = [facts_of(batch) for batch in loader]
        found[exchange, prefetch, rails] = batches, again, ctx.comm.stats(), loader._stages[1].features.tally
        loader.close()
    with_cache = DistLoader(data, FANOUTS, BATCH, rng_seed=7, cache=FeatureCache(capacity_bytes=2000))
    found["cache"] = epochs_of(with_cache, 2), with_cache.cache_report(), with_cache.rails
    return alone, found, data.rank_book.part_ranges


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every rank finds, where rows are int8 with a scale each."""
    drawn = draw_partition(tmp_path_factory.mktemp("drawn"), 4, stored_as="int8")
    return run_distributed(4, load_on_rails, args=(drawn.path,))


CASES = list(product(EXCHANGES, (0, 2), (True, False)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_are_those_of_ranks_on_their_own(found, case):
    for alone, runs, _ in found:
        assert runs[case][0] == alone and runs[case][1] == alone[2:]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_received_are_those_that_the_machine_lacks_once(found, case):
    for rank, (_, runs, ranges) in enumerate(found):
        machine, other = (rank // 2 * 2, 2 - rank // 2 * 2)
        wanted = [[set(batch[1]) for batch in found[peer][1][case][1]] for peer in (machine, machine + 1)]
        steps = zip(*wanted, strict=True) if case[2] else ((own, set()) for own in wanted[rank - machine])
        owners = [other + rank % 2] if case[2] else [other, other + 1]
        rows = 0
        for one, two in steps:
            rows += sum(any(ranges[owner] <= node < ranges[owner + 1] for owner in owners) for node in one | two)
        batches, stats = len(runs[case][1]), runs[case][2]
        assert stats["feature_rows"]["bytes_received"] == rows * ROW_BYTES > 0
        assert stats["feature_rows"]["calls"] == batches + 2 * (case[0] == "combined")


def test_a_cache_of_the_machine_goes_with_rails(found):
    for alone, runs, _ in found:
        batches, report, on_rails = runs["cache"]
        assert batches == alone and on_rails and report.cached > 0 and report.exchanged > 0


def test_rows_by_where_they_came_from_add_up(found):
    """Loaders on rails and off them count alike: a row that a neighbour asked for came by exchange all the same."""
    for _, runs, _ in found:
        for exchange, prefetch in product(EXCHANGES, (0, 2)):
            assert runs[exchange, prefetch, True][3] == runs[exchange, prefetch, False][3]


def killed_on_rails(ctx, path, folder):
    """Rank 1 is killed after its second batch; the others write their error."""
    ctx._machines = TWO_MACHINES
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, rng_seed=7, prefetch=1)
    die_in_the_middle(ctx, loader, folder)


def test_a_rank_that_is_killed_is_reported_on_its_machine_and_on_the_other(tmp_path):
    path = draw_partition(tmp_path, 4).path
    with pytest.raises(RankError, match="rank 1 of 4 ended with exit code -9"):
        run_distributed(4, killed_on_rails, 120.0, (path, tmp_path), comm_timeout_s=60.0)
    for rank in (0, 2, 3):
        said = Path(tmp_path, str(rank)).read_text()
        assert re.match(rf"rank {rank}( \(group of ranks \d, \d\))?, step \d: (all_to_all|barrier) .*failed", said)
