"""A cache of feature rows changes neither batches nor features; hits and bytes are those that one process predicts."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import DistData, DistLoader, FeatureCache, NeighborSampler
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.features.policies import Lookahead
from fastsample_dist.graph import hotness
from fastsample_dist.pipeline import caching
from fastsample_dist.sampling import transit
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import FEATURE_DIM, draw_partition
from tests.pipeline.caches import (
    BATCH,
    EPOCHS,
    FANOUTS,
    ID,
    NUM_NODES,
    PAIRED,
    ROW,
    TENTH,
    OneProcess,
    follow,
    rows_of,
    same,
)

ONE_ROW = ROW + 16  # and two pairs of (node, slot) to find it
EVERYTHING = 10**6
POLICIES = ("auto", "presample", "degree", "random", "oracle")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Partitions by number of ranks."""
    return {
        ranks: draw_partition(tmp_path_factory.mktemp(f"{ranks}"), ranks, feature_dtype="float16").path
        for ranks in (2, 3, 4)
    }


def run_variants(ctx, path, variants):
    """Per variant: (steps of EPOCHS epochs, their reports, the report of the run, what the cache says of itself)."""
    data, found = DistData.load(path, ctx), {}
    for scheme, policy, capacity in variants:
        plain = DistLoader(data, FANOUTS, BATCH, scheme=scheme, **PAIRED)
        epochs = [list(plain) for _ in range(EPOCHS)]
        cache = FeatureCache(capacity, policy)
        loader = DistLoader(data, FANOUTS, BATCH, scheme=scheme, cache=cache, **PAIRED)
        steps = [follow(loader, batches, ctx.comm) for batches in epochs]
        reports = [loader.cache_report(epoch) for epoch in range(EPOCHS)]
        found[scheme, policy, capacity] = (steps, reports, loader.cache_report(), str(loader.cache))
    return found


VARIANTS = [("hybrid", policy, TENTH) for policy in POLICIES] + [
    ("vanilla", "presample", TENTH), ("hybrid", "auto", ONE_ROW), ("hybrid", "auto", EVERYTHING)
]  # fmt: skip
CASES = [(ranks, variant) for ranks in (2, 3, 4) for variant in VARIANTS if ranks == 2 or variant[1] == "auto"]
RANKS = [2, *grid([3, 4], gate=[3])]


@pytest.fixture(scope="module")
def runs(paths):
    """By number of ranks: per rank what `run_variants` found."""
    made = {}

    def run(ranks):
        if ranks not in made:
            variants = [variant for count, variant in CASES if count == ranks]
            made[ranks] = run_distributed(ranks, run_variants, args=(paths[ranks], variants))
        return made[ranks]

    return run


@pytest.mark.parametrize("ranks", RANKS)
def test_hits_and_bytes_of_every_step_are_those_that_one_process_predicts(runs, paths, ranks):
    for rank, found in enumerate(runs(ranks)):
        alone = OneProcess(paths[ranks], rank)
        inputs = [alone.inputs(epoch, epoch * alone.num_steps) for epoch in range(EPOCHS)]
        for (_, policy, capacity), (epochs, *_) in found.items():
            num_rows = {ONE_ROW: 1, TENTH: 24, EVERYTHING: NUM_NODES}[capacity]
            held = alone.cached(policy, num_rows)
            for nodes, step in zip(chain(*inputs), chain(*epochs), strict=True):
                own, cached = int(alone.own[nodes].sum()), int(held[nodes].sum())
                exchanged = nodes.numel() - own - cached
                assert step == ((own, 0, cached, 0, exchanged), ID * exchanged, ROW * exchanged)


@pytest.mark.parametrize("ranks", RANKS)
def test_reports_sum_up_and_no_policy_beats_the_oracle(runs, ranks):
    totals = {}
    for variant in runs(ranks)[0]:
        of_ranks = [found[variant] for found in runs(ranks)]
        for steps, reports, of_run, _ in of_ranks:
            for epoch, report in zip(steps, reports, strict=True):
                assert rows_of(report) == tuple(map(sum, zip(*(rows for rows, *_ in epoch), strict=True)))
                assert report.bytes_saved == (ROW + ID) * report.cached and report.cached <= report.oracle_hits
            assert of_run.inputs == sum(report.inputs for report in reports)
            assert of_run.cached <= of_run.oracle_hits <= sum(report.oracle_hits for report in reports)
        totals[variant] = CacheReport.total(of_run for _, _, of_run, _ in of_ranks)
        if variant[1] == "oracle":  # it knows the very epochs of this run
            assert totals[variant].hit_rate == totals[variant].oracle_hit_rate
        if variant[2] == EVERYTHING:
            assert totals[variant].exchanged == 0 and totals[variant].hit_rate == 1


def test_a_cache_says_what_it_holds(runs):
    line = runs(2)[0]["hybrid", "auto", TENTH][3]
    assert line.startswith(f"cache: 24 rows by vip, {TENTH}B of {TENTH}B (scored in ")


# ---- looking ahead ----

AHEAD = {
    "hybrid": {},
    "vanilla": {"scheme": "vanilla"},
    "prefetch": {"prefetch": 2},
}
WINDOW, SLOTS = 2, 24
KEPT = SLOTS * ROW + 4 * NUM_NODES  # a slot for every node


def look_ahead(ctx, path):
    """Per way of AHEAD: (steps of EPOCHS epochs, reports), or the reports alone where batches are prefetched."""
    data, found = DistData.load(path, ctx), {}
    plain = DistLoader(data, FANOUTS, BATCH, **PAIRED)
    epochs = [list(plain) for _ in range(EPOCHS)]
    for name, given in AHEAD.items():
        loader = DistLoader(
            data, FANOUTS, BATCH, cache=FeatureCache(KEPT, lookahead=WINDOW), transport="exchange", **given
        )
        assert loader.exchange == "paired"
        if name == "prefetch":
            assert all(same(a, b) for batches in epochs for a, b in zip(batches, loader, strict=True))
            steps = None
        else:
            steps = [follow(loader, batches, ctx.comm) for batches in epochs]
        found[name] = steps, [rows_of(loader.cache_report(epoch)) for epoch in range(EPOCHS)]
        loader.close()
    return found


def other_rows(ctx, path, dtype):
    """(whether batches are those of a loader without a cache, bytes of a row that travels, as reported) by cache"""
    data, given, found = DistData.load(path, ctx), PAIRED | {"feature_dtype": dtype}, []
    plain = list(DistLoader(data, FANOUTS, BATCH, **given))
    for cache in (FeatureCache(TENTH), FeatureCache(KEPT + 500, lookahead=WINDOW)):
        loader = DistLoader(data, FANOUTS, BATCH, cache=cache, **given)
        ctx.comm.reset_stats()
        equal = all(same(a, b) for a, b in zip(plain, loader, strict=True))
        report, stats = loader.cache_report(0), ctx.comm.stats()
        assert report.cached + report.kept > 0
        row_bytes = stats["feature_rows"]["bytes_received"] / report.exchanged
        found.append((equal, row_bytes, report.row_bytes - ID))
    return found


@pytest.mark.parametrize(
    "stored, dtype, row_bytes",
    [("float32", torch.bfloat16, 2 * FEATURE_DIM), ("int8", None, FEATURE_DIM + 4)],
    ids=["float32 as bfloat16", "int8 with scales"],
)
def test_rows_of_other_types_are_cached_as_they_are_stored(tmp_path, stored, dtype, row_bytes):
    path = draw_partition(tmp_path, 2, stored_as=stored).path
    assert run_distributed(2, other_rows, args=(path, dtype)) == [[(True, row_bytes, row_bytes)] * 2] * 2


def ahead_of_nothing(ctx, path):
    """(rows that the cache holds, whether there are seeds); batches are those of a loader without a cache."""
    data, seeds = DistData.load(path, ctx), 0
    if ctx.rank == 1:
        data._splits["train"] = data.split("train")[:0]
    plain = DistLoader(data, FANOUTS, BATCH, **PAIRED)
    loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(KEPT, lookahead=WINDOW), **PAIRED)
    for expected, batch in zip(plain, loader, strict=True):
        assert same(batch, expected)
        seeds += batch.seeds.numel()
    return loader.cache.nodes.numel(), seeds > 0


def test_a_rank_that_needs_no_row_of_others_looks_ahead_with_an_empty_cache(paths):
    assert run_distributed(2, ahead_of_nothing, args=(paths[2],)) == [(SLOTS, True), (0, False)]


@pytest.fixture(scope="module")
def ahead(paths):
    return run_distributed(2, look_ahead, args=(paths[2],))


def test_rows_that_stay_are_those_that_one_process_predicts(ahead, paths):
    for rank, found in enumerate(ahead):
        alone = OneProcess(paths[2], rank)
        ids = hotness.original_ids(alone.graph)
        order = hotness.hottest(alone.scores("vip"), ids, NUM_NODES, ~alone.own)
        rule, first = Lookahead(order, ids, SLOTS, WINDOW), set(order[:SLOTS].tolist())
        for epoch in range(EPOCHS):
            inputs = alone.inputs(epoch, epoch * alone.num_steps)
            for number, nodes in enumerate(inputs):
                held = set(rule.nodes.tolist())
                remote = nodes[~alone.own[nodes]].tolist()
                fetched = torch.tensor([node for node in remote if node not in held], dtype=torch.int64)
                cached = len(set(remote) & first)
                expected = (len(nodes) - len(remote), 0, cached, len(remote) - cached - len(fetched), len(fetched))
                for way in ("hybrid", "vanilla"):
                    rows, ids_sent, rows_received = found[way][0][epoch][number]
                    assert rows == expected and (ids_sent, rows_received) == (ID * len(fetched), ROW * len(fetched))
                rule.replace(fetched, inputs[number + 1 : number + 1 + WINDOW])
                first &= set(rule.nodes.tolist())  # a row that left and came back was kept, not cached
        assert found["prefetch"][1] == found["hybrid"][1] == found["vanilla"][1]
        assert sum(kept for *_, kept, _ in found["hybrid"][1]) > 0


def with_an_epoch_left_out(ctx, path):
    """Reports of two epochs and of the run: of a loader between whose epochs batches were left out, and of another."""
    data, found = DistData.load(path, ctx), []
    for is_asked in (True, False):
        loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(TENTH), **PAIRED)
        rows = len(list(loader)) and loader.rows.inputs
        if is_asked:
            with loader.left_out(), closing(iter(loader)) as batches:
                assert len(list(islice(batches, 2))) == 2
            loader.set_epoch(1)
            assert loader.rows.inputs == rows
            assert refused(partial(loader.cache_report, 1)).startswith("epoch is 1, of which no batch was made; ")
        list(loader)
        reports = [loader.cache_report(epoch) for epoch in (0, 1, None)]
        found.append([replace(report, score_s=0.0, load_s=0.0) for report in reports])
    return found


def test_batches_that_are_left_out_are_in_no_report(paths):
    for asked, plain in run_distributed(2, with_an_epoch_left_out, args=(paths[2],)):
        assert asked == plain and plain[2].inputs == plain[0].inputs + plain[1].inputs > 0


# ---- what else a loader can be asked for ----


def other_ways(ctx, path):
    """True where a loader with a cache makes the batches of one without, by what it was asked for."""
    data, found = DistData.load(path, ctx), SimpleNamespace()
    cache = FeatureCache(TENTH)
    options = {
        "prefetch": {"prefetch": 2},
        "bfloat16": {"feature_dtype": torch.bfloat16},
        "labor": {"method": "labor"},
        "evaluation": {"split": "test", "shuffle": False},
        "full batches": {"drop_last": True},
        "combined": {"exchange": "combined"},
    }
    found.same = {}
    for name, given in options.items():
        plain = DistLoader(data, FANOUTS, BATCH, **(PAIRED | given))
        loader = DistLoader(data, FANOUTS, BATCH, cache=cache, **(PAIRED | given))
        found.same[name] = all(same(a, b) for a, b in zip(plain, loader, strict=True)), loader.cache.policy
        plain.close()
        loader.close()
    train = DistLoader(data, FANOUTS, BATCH, cache=cache, **PAIRED)
    ctx.comm.reset_stats()
    shared = DistLoader(data, FANOUTS, BATCH, cache=train.cache, split="val", **PAIRED)
    plain = DistLoader(data, FANOUTS, BATCH, split="val", **PAIRED)
    found.purposes = set(ctx.comm.stats())
    found.same["shared"] = all(same(a, b) for a, b in zip(plain, shared, strict=True)), shared.cache.policy
    found.reports = [rows_of(train.cache_report()), rows_of(shared.cache_report(0))]
    found.resumed = resume(data, cache)
    torch.set_num_threads(3)
    found.sets = [train.cache.nodes, DistLoader(data, FANOUTS, BATCH, cache=cache, **PAIRED).cache.nodes]
    return found


def resume(data, cache):
    """Whether the epochs after a resumption are those of a loader without a cache; the reports' epochs."""
    plain = DistLoader(data, FANOUTS, BATCH, **PAIRED)
    batches = [*plain, *plain]
    first = DistLoader(data, FANOUTS, BATCH, cache=cache, **PAIRED)
    for batch in first:
        if batch.step == 1:
            break
    position = first.position(0, 2)
    again = DistLoader(data, FANOUTS, BATCH, cache=cache, **PAIRED)
    again.resume(data.ctx.comm.all_gather_object(position, purpose="test")[0])
    resumed = [*again, *again]
    inputs = [sum(b.input_nodes.numel() for b in resumed if b.epoch == epoch) for epoch in range(2)]
    reported = [again.cache_report(epoch).inputs for epoch in range(2)]
    return all(same(a, b) for a, b in zip(batches[2:], resumed, strict=True)), inputs == reported


@pytest.fixture(scope="module")
def others(paths):
    return run_distributed(2, other_ways, args=(paths[2],))


@pytest.mark.parametrize("name", ["prefetch", "bfloat16", "labor", "evaluation", "full batches", "combined", "shared"])
def test_batches_are_the_same_with_a_cache(others, name):
    assert [found.same[name] for found in others] == [(True, "vip")] * 2


def test_a_second_loader_shares_the_rows_of_the_first(others):
    for found in others:
        assert not found.purposes & {"cache_ids", "cache_rows"}
        assert found.reports[0] == (0,) * 5 and sum(found.reports[1]) > 0


def test_a_resumed_loader_has_its_cache(others):
    assert [found.resumed for found in others] == [(True, True)] * 2


def test_the_set_does_not_depend_on_threads(others):
    for found in others:
        assert torch.equal(*found.sets)


# ---- refusals, and nothing to cache ----


def refused(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""


def refusals(ctx, path):
    data, own = DistData.load(path, ctx), NeighborSampler
    make = lambda **given: DistLoader(data, FANOUTS, BATCH, **given, **PAIRED)  # noqa: E731
    sampler = own(data.graph, FANOUTS)
    other = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, cache=FeatureCache(TENTH), **PAIRED)
    said = {
        "small": refused(lambda: make(cache=FeatureCache(ONE_ROW - 1))),
        "large": refused(lambda: make(cache=FeatureCache(10**15))),
        "type": refused(lambda: make(cache="2GiB")),
        "differs": refused(lambda: make(cache=FeatureCache(TENTH + ctx.rank))),
        "other": refused(lambda: make(cache=other.cache)),
        "combined": refused(
            lambda: DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(KEPT, lookahead=1), exchange="combined")
        ),
        "follows": refused(lambda: make(cache=make(cache=FeatureCache(KEPT, lookahead=1)).cache)),
        "model": refused(
            lambda: DistLoader(data, sampler=sampler, batch_size=BATCH, cache=FeatureCache(TENTH, "vip"), **PAIRED)
        ),
    }
    foreign = [
        DistLoader(data, **given, batch_size=BATCH, cache=FeatureCache(TENTH), **PAIRED)
        for given in ({"sampler": sampler}, {"app": transit.LADIES((20, 20))})
    ]
    assert all(same(*pair) for pair in zip(foreign[0], DistLoader(data, FANOUTS, BATCH, **PAIRED), strict=True))
    assert list(foreign[1]) and foreign[1].cache_report(0).cached > 0
    empty = [str(make(cache=cache).cache) for cache in (FeatureCache(0), FeatureCache(TENTH, "none"))]
    epoch = refused(lambda: make(cache=FeatureCache(TENTH)).cache_report(3))
    return said, [loader.cache.policy for loader in foreign], empty, epoch


@pytest.fixture(scope="module")
def said(paths):
    first, second = run_distributed(2, refusals, args=(paths[2],))
    assert first == second
    return first


SAID = {
    "small": f"the cache's capacity_bytes is {ONE_ROW - 1} but one row takes {ONE_ROW} with what finds it; choose at ",
    "large": "the cache's capacity is 1000TB but ",
    "type": "cache is '2GiB'; pass a FeatureCache, such as fsd.FeatureCache(capacity_bytes=2 << 30), or the cache of ",
    "differs": "DistLoader: ranks differ in cache: 'capacity_bytes 800, policy auto, presample_epochs 2, lookahead 0' "
    "on rank 0; 'capacity_bytes 801, policy auto, presample_epochs 2, lookahead 0' on rank 1; ",
    "other": "the cache given is that of a loader of other data or on another device; pass a FeatureCache, or the ",
    "combined": "the cache's lookahead is 1 beside exchange 'combined', which asks for rows before the cache ",
    "follows": "the cache given looks ahead, so its rows follow the batches of its own loader; pass a FeatureCache.",
    "model": "cache policy is 'vip', which knows the library's neighbour samplers only, but a sampler or an app is ",
}


@pytest.mark.parametrize("name", SAID)
def test_a_cache_that_cannot_be_made_is_one_line(said, name):
    assert said[0][name].startswith(SAID[name]) and "\n" not in said[0][name]


def test_a_sampler_of_ones_own_and_an_application_are_presampled(said):
    assert said[1] == ["presample", "presample"]


def test_without_capacity_or_policy_nothing_is_cached(said):
    assert said[2] == ["cache: empty, its capacity is 0", "cache: empty, its policy is none"]


def test_an_epoch_that_was_not_made_has_no_report(said):
    assert said[3] == "epoch is 3, of which no batch was made; expected one of those made: none."


def test_one_rank_has_nothing_to_cache(tmp_path, ctx):
    data = DistData.load(draw_partition(tmp_path, 1).path, ctx)
    loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(TENTH))
    inputs = sum(batch.input_nodes.numel() for batch in loader)
    report = loader.cache_report(0)
    assert str(loader.cache) == "cache: empty, one rank owns all rows"
    assert rows_of(report) == (inputs, 0, 0, 0, 0) and report.hit_rate is report.oracle_hit_rate is None


@pytest.mark.parametrize(("capacity", "line"), [(20, "but one row takes"), (1 << 60, "of memory are available")])
def test_a_capacity_that_cannot_be_is_refused_on_one_rank_too(tmp_path, ctx, capacity, line):
    data = DistData.load(draw_partition(tmp_path, 1).path, ctx)
    with pytest.raises(ValueError, match=line):
        DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(capacity))


def load_in_slices(ctx, path, slice_bytes):
    """Nodes and rows of a cache that is loaded in slices; what passed the communicator."""
    caching.SLICE_BYTES = slice_bytes
    data = DistData.load(path, ctx)
    ctx.comm.reset_stats()
    loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(TENTH), **PAIRED)
    stats, cache = ctx.comm.stats(), loader.cache
    rows = cache.features.cache.rows
    return data.orig_ids(cache.nodes), rows, {name: stats[name] for name in ("cache_ids", "cache_rows")}


def test_rows_are_loaded_in_slices_under_purposes_of_their_own(paths):
    for rank, (nodes, rows, stats) in enumerate(run_distributed(2, load_in_slices, args=(paths[2], 5 * ROW))):
        assert torch.equal(rows[:, 0].long(), nodes), rank
        assert stats["cache_ids"]["calls"] == stats["cache_rows"]["calls"] == 5
        assert stats["cache_rows"]["bytes_received"] == 24 * ROW
