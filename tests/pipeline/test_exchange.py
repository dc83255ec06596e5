"""The combined exchange makes the batches of the paired one, with S + 2 calls an epoch and exactly counted bytes.

The oracle is the same loader with exchange="paired".
"""

import re
from pathlib import Path

import pytest
import torch

from fastsample_dist import CSCGraph, DistData, DistLoader, NeighborSampler
from fastsample_dist.pipeline.exchange import resolve_exchange
from fastsample_dist.sampling.transit.layers import LADIES
from fastsample_dist.testing import run_distributed
from fastsample_dist.testing.ranks import RankError
from tests.grids import grid
from tests.parts import FEATURE_DIM, draw_partition
from tests.pipeline.killed import die_in_the_middle

FANOUTS, BATCH = [3, 2], 6
BETWEEN = ("counts", "feature_ids", "feature_rows")  # what fetches count
OVER_THE_NETWORK = {"transport": "exchange"}


def make_loader(data, **options):
    return DistLoader(data, FANOUTS, BATCH, rng_seed=7, **OVER_THE_NETWORK, **options)


def facts_of(batch):
    """All that a batch is, and its features' dtype."""
    edges = [(mfg.indptr.tolist(), mfg.indices.tolist()) for mfg in batch.mfgs]
    own = (batch.epoch, batch.step, batch.num_global_seeds, batch.seeds.tolist(), batch.input_nodes.tolist())
    return (*own, edges, str(batch.features.dtype), batch.features.tolist(), batch.labels.tolist())


def counted(comm):
    """What fetches have counted since the last reset."""
    return {purpose: tuple(stats.values()) for purpose, stats in comm.stats().items() if purpose in BETWEEN}


def bytes_of(stats):
    """Bytes sent and received under all purposes."""
    return tuple(sum(entry[way] for entry in stats.values()) for way in (1, 2))


def remote(data, batches):
    """How many inputs of these batches belong to other ranks."""
    lo, hi = data.own_range
    nodes = torch.cat([torch.tensor(batch[4]) for batch in batches])
    return int(((nodes < lo) | (nodes >= hi)).sum())


def two_epochs(ctx, path, cases):
    """Per case {exchange: (resolved, batches, counts)}, and remote inputs of the two epochs."""
    data, found = DistData.load(path, ctx), []
    for options in cases:
        limit, own = ctx.comm.max_message_bytes, dict(options)
        ctx.comm.max_message_bytes = own.pop("max_message_bytes", limit)
        runs = {}
        for exchange in ("paired", "combined"):
            loader = make_loader(data, exchange=exchange, **own)
            ctx.comm.reset_stats()
            batches = [facts_of(batch) for _ in range(2) for batch in loader]
            runs[exchange] = (loader.exchange, batches, counted(ctx.comm))
            loader.close()
        ctx.comm.max_message_bytes = limit
        found.append((runs, remote(data, batches)))
    return found


CASES = {
    "plain": {}, "ahead": {"prefetch": 2}, "bfloat16": {"feature_dtype": torch.bfloat16, "prefetch": 1},
    "float64": {"feature_dtype": torch.float64}, "short messages": {"max_message_bytes": 50},
    "drop last": {"drop_last": True, "shuffle": False}, "labor": {"method": "labor", "prefetch": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by (ranks, stored dtype), each started once."""
    done = {}

    def get(ranks, dtype):
        if (ranks, dtype) not in done:
            drawn = draw_partition(tmp_path_factory.mktemp("drawn"), ranks, feature_dtype=dtype)
            done[ranks, dtype] = run_distributed(ranks, two_epochs, args=(drawn.path, list(CASES.values())))
        return done[ranks, dtype]

    return get


RUNS = [(1, "float32"), (2, "float64"), (3, "float16"), (4, "float32"), (2, "int8"), (3, "float32")]
SEVERAL = grid(RUNS[1:], gate=RUNS[2:3])


@pytest.mark.parametrize("run", grid(RUNS, gate=[RUNS[0], RUNS[2]]), ids=str)
@pytest.mark.parametrize("case", CASES)
def test_batches_equal_those_of_paired_exchanges(runs, run, case):
    for rank in runs(*run):
        modes, _ = rank[list(CASES).index(case)]
        assert modes["combined"][1] == modes["paired"][1] and len(modes["combined"][1]) > 0
        assert (modes["paired"][0], modes["combined"][0]) == (
            ("none", "none") if run[0] == 1 else ("paired", "combined")
        )


@pytest.mark.parametrize("run", SEVERAL, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_an_epoch_of_s_steps_makes_s_plus_2_calls_and_as_many_bytes(runs, run, case):
    ranks, dtype = run
    for rank in runs(*run):
        modes, num_remote = rank[list(CASES).index(case)]
        batches, found, paired = len(modes["combined"][1]), modes["combined"][2], modes["paired"][2]
        calls, others = batches + 2 * 2, ranks - 1  # two epochs
        assert set(found) == {"feature_ids", "feature_rows"}
        assert (found["feature_ids"][0], found["feature_rows"][0]) == (0, calls)
        width = min(torch.empty(0, dtype=getattr(torch, dtype)).element_size(), WIRE.get(case, 8))
        assert found["feature_rows"][2] == num_remote * FEATURE_DIM * width
        assert found["feature_ids"][1] == num_remote * 4 + 16 * others * calls
        assert found["feature_rows"][1:] == paired["feature_rows"][1:]
        assert bytes_of(found) == tuple(moved + 2 * 32 * others for moved in bytes_of(paired))


WIRE = {"bfloat16": 2}  # bytes of a number where the result is narrower than what is stored


class Wide:
    """Samples with int64 node ids."""

    def __init__(self, data):
        graph = data.graph
        wide = CSCGraph(graph.indptr, graph.indices.long(), orig_ids=graph.orig_ids)
        self._sampler = NeighborSampler(wide, FANOUTS, rng_seed=7)

    def sample(self, seeds, step=0):
        return self._sampler.sample(seeds, step)


def own_samplers(ctx, path):
    """Per source {exchange: (batches, counts)}, and remote inputs: a sampler with int64 ids, and an application."""
    data, found = DistData.load(path, ctx), {}
    for name, source in {"int64": {"sampler": Wide(data)}, "app": {"app": LADIES((20, 20))}}.items():
        runs = {}
        for exchange in ("paired", "auto"):
            loader = DistLoader(
                data, batch_size=BATCH, rng_seed=7, prefetch=2, exchange=exchange, **OVER_THE_NETWORK, **source
            )
            ctx.comm.reset_stats()
            runs[exchange] = ([facts_of(batch) for batch in loader], counted(ctx.comm))
            loader.close()
        found[name] = runs, remote(data, runs["auto"][0])
    return found


def all_on_three_ranks(ctx, path):
    """What the functions of this file find, by name."""
    ahead = {
        f"{run.__name__} {prefetch}": run(ctx, path, prefetch) for run in (leave_early, resume) for prefetch in (0, 2)
    }
    return ahead | {run.__name__: run(ctx, path) for run in (own_samplers, few_seeds, choices)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every rank finds, by function."""
    path = draw_partition(tmp_path_factory.mktemp("three"), 3).path
    ranks = run_distributed(3, all_on_three_ranks, args=(path,))
    return lambda name: [rank[name] for rank in ranks]


def test_samplers_of_users_and_applications_are_combined_too(found):
    for rank in found("own_samplers"):
        for name, (modes, num_remote) in rank.items():
            (batches, found), width = modes["auto"], 8 if name == "int64" else 4
            assert batches == modes["paired"][0]
            assert found["feature_ids"][:2] == (0, num_remote * width + 16 * 2 * (len(batches) + 2))
            assert found["feature_rows"][0] == len(batches) + 2


def leave_early(ctx, path, prefetch):
    """Batches of an epoch that is left after 3 and of the next ones by both exchanges, and the first's calls."""
    data, found = DistData.load(path, ctx), []
    for exchange in ("paired", "combined"):
        torch.set_num_threads(1 + ctx.rank)  # ranks that sample other numbers of steps at once
        loader, batches = make_loader(data, exchange=exchange, prefetch=prefetch), []
        ctx.comm.reset_stats()
        for batch in loader:
            batches.append(facts_of(batch))
            if len(batches) == 3:
                break
        calls = ctx.comm.stats()["feature_rows"]["calls"]
        batches += [facts_of(batch) for _ in range(2) for batch in loader]
        found.append((batches, calls, counted(ctx.comm)))
        loader.close()
    return found, len(loader)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_left_early_leaves_nothing_to_the_next(found, prefetch):
    for (paired, combined), steps in found(f"leave_early {prefetch}"):
        assert combined[0] == paired[0] and len(combined[0]) == 3 + 2 * steps
        assert (paired[1], combined[1]) == (3 + prefetch, 3 + prefetch + 2)
        assert combined[2]["feature_rows"][0] == 3 + prefetch + 2 + 2 * (steps + 2)


def resume(ctx, path, prefetch):
    """What is left of an epoch and the next one, by both exchanges, and the calls that the rest took."""
    data, found = DistData.load(path, ctx), []
    for exchange in ("paired", "combined"):
        loader = make_loader(data, exchange=exchange, prefetch=prefetch)
        for batch in loader:
            if batch.step == 1:
                break
        position = ctx.comm.all_gather_object(loader.position(0, 2), purpose="test")[0]
        again = make_loader(data, exchange=exchange, prefetch=prefetch)
        again.resume(position)
        ctx.comm.reset_stats()
        rest = [facts_of(batch) for batch in again]
        calls = ctx.comm.stats()["feature_rows"]["calls"]
        found.append((rest + [facts_of(batch) for batch in again], len(rest), calls))
    return found


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_epoch_is_one_of_fewer_steps(found, prefetch):
    for paired, combined in found(f"resume {prefetch}"):
        assert combined[:2] == paired[:2] and combined[1] > 0
        assert (paired[2], combined[2]) == (paired[1], combined[1] + 2)


def few_seeds(ctx, path):
    """Batches where some ranks have 0, 1 or more seeds, by both exchanges, and the calls of an epoch."""
    data, found = DistData.load(path, ctx), []
    lo, _ = data.own_range
    for counts in ([0, 13, 1], [1, 0, 0], [12, 0, 11]):
        runs = []
        for exchange in ("paired", "combined"):
            loader = make_loader(data, exchange=exchange, seeds=torch.arange(lo, lo + counts[ctx.rank]))
            ctx.comm.reset_stats()
            runs.append(([facts_of(batch) for _ in range(2) for batch in loader], counted(ctx.comm)))
        found.append((*runs, len(loader)))
    return found


def test_ranks_without_seeds_take_part(found):
    """In epochs of 3, 1 and 2 steps, no more than the pipe is long."""
    for rank in found("few_seeds"):
        assert [steps for *_, steps in rank] == [3, 1, 2]
        for paired, combined, steps in rank:
            assert combined[0] == paired[0] and combined[1]["feature_rows"][0] == 2 * (steps + 2)
            assert bytes_of(combined[1]) == tuple(moved + 2 * 32 * 2 for moved in bytes_of(paired[1]))


def choices(ctx, path):
    """What is resolved or refused, by (scheme, exchange asked for)."""
    data, found = DistData.load(path, ctx), {}
    for scheme in ("hybrid", "vanilla"):
        for asked in ("auto", "combined", "paired", "together"):
            try:
                found[scheme, asked] = make_loader(data, scheme=scheme, exchange=asked).exchange
            except ValueError as error:
                found[scheme, asked] = str(error)
    return found


def test_auto_combines_where_the_sampler_exchanges_nothing(found):
    for rank in found("choices"):
        unknown = "exchange is 'together'; expected 'auto', 'combined' or 'paired'."
        assert rank == {
            ("hybrid", "auto"): "combined", ("hybrid", "combined"): "combined", ("hybrid", "paired"): "paired",
            ("vanilla", "auto"): "paired", ("vanilla", "paired"): "paired",
            ("vanilla", "combined"): "exchange is 'combined', but sampling a batch takes 2 exchanges of its own, one "
            "after another; pass exchange='paired' or 'auto'.",
            ("hybrid", "together"): unknown, ("vanilla", "together"): unknown,
        }  # fmt: skip


class Exchanges:
    """Stands for features, of which some rank lacks a row or none does."""

    def __init__(self, exchanges):
        self.exchanges = exchanges


@pytest.mark.parametrize("asked", ["auto", "combined"])
def test_without_an_exchange_there_is_none_to_combine(asked):
    for features, ranks in ((None, 2), (Exchanges(False), 2), (Exchanges(True), 1)):
        assert resolve_exchange(asked, object(), features, ranks) == "none"


def killed_in_the_middle(ctx, path, folder, prefetch):
    """Rank 1 is killed after its second batch; the others write their error."""
    loader = make_loader(DistData.load(path, ctx), prefetch=prefetch)
    die_in_the_middle(ctx, loader, folder)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_rank_that_is_killed_is_reported_within_the_deadline(tmp_path, prefetch):
    path = draw_partition(tmp_path, 3).path
    with pytest.raises(RankError, match="rank 1 of 3 ended with exit code -9"):
        run_distributed(3, killed_in_the_middle, 120.0, (path, tmp_path, prefetch), comm_timeout_s=60.0)
    for rank in (0, 2):
        said = Path(tmp_path, str(rank)).read_text()
        assert re.match(rf"rank {rank}, step \d: all_to_all of feature_rows failed because a peer ended", said)
