"""One cache per machine: the ranks of a machine read each other's rows in place and share the rows of the others."""

import pytest
import torch

from fastsample_dist import DistData, DistLoader, FeatureCache
from fastsample_dist.comm.machine import Machines
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.graph import hotness
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition
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

HALF = 120 * ROW + 4 * NUM_NODES  # more than a quarter of the nodes: a slot for each
MADE_UP = {3: ((0, 1), (2,)), 4: ((0, 1), (2, 3))}  # ranks by machine


def apart(groups):
    """Machines of these ranks."""
    where = {rank: number for number, group in enumerate(groups) for rank in group}
    pairs = [(a, b) for a in where for b in where if a < b and where[a] != where[b]]
    return Machines(len(where), dict.fromkeys(pairs, "made up"))


def share(ctx, path, capacity):
    """(steps of EPOCHS epochs, reports, the run's report, nodes cached, refusal of lookahead)"""
    ctx._machines = apart(MADE_UP[ctx.world_size])
    data = DistData.load(path, ctx)
    plain = DistLoader(data, FANOUTS, BATCH, **PAIRED)
    epochs = [list(plain) for _ in range(EPOCHS)]
    shared = PAIRED | {"transport": "shared", "rails": False}
    loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(capacity), **shared)
    steps = [follow(loader, batches, ctx.comm) for batches in epochs]
    reports = [loader.cache_report(epoch) for epoch in range(EPOCHS)]
    for given in ({}, {"exchange": "combined", "prefetch": 1}):  # on rails
        again = DistLoader(data, FANOUTS, BATCH, cache=loader.cache, **(PAIRED | {"transport": "shared"} | given))
        assert again.rails and all(same(a, b) for a, b in zip(epochs[0], again, strict=True))
        assert rows_of(again.cache_report(0)) == rows_of(reports[0])
        again.close()
    try:
        DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(capacity, lookahead=2), **shared)
        said = ""
    except ValueError as error:
        said = str(error)
    return steps, reports, loader.cache_report(), loader.cache.nodes, said


@pytest.mark.parametrize("ranks, capacity", [(3, TENTH), (4, HALF)], ids=["3 ranks, a tenth", "4 ranks, a half"])
def test_hits_of_every_step_are_those_that_one_process_predicts(tmp_path, ranks, capacity):
    path = draw_partition(tmp_path, ranks, feature_dtype="float16").path
    found = run_distributed(ranks, share, args=(path, capacity))
    everyone = [OneProcess(path, rank) for rank in range(ranks)]
    for group in MADE_UP[ranks]:
        near = torch.stack([everyone[rank].own for rank in group]).any(0)
        scores = sum(everyone[rank].scores("vip") for rank in group)
        ids = hotness.original_ids(everyone[0].graph)
        chosen = hotness.hottest(scores, ids, {TENTH: 24, HALF: 120}[capacity], ~near)
        held = torch.zeros(NUM_NODES, dtype=torch.bool)
        held[chosen] = True
        for rank in group:
            alone, (steps, reports, of_run, nodes, _) = everyone[rank], found[rank]
            assert torch.equal(nodes, chosen.sort().values)
            for epoch in range(EPOCHS):
                for inputs, step in zip(alone.inputs(epoch, epoch * alone.num_steps), steps[epoch], strict=True):
                    own, cached = int(alone.own[inputs].sum()), int(held[inputs].sum())
                    neighbour = int(near[inputs].sum()) - own
                    exchanged = inputs.numel() - own - neighbour - cached
                    rows = (own, neighbour, cached, 0, exchanged)
                    assert step == (rows, ID * exchanged, ROW * exchanged)
            assert of_run.inputs == sum(report.inputs for report in reports)
        total, rows = CacheReport.total(found[rank][2] for rank in group), len(chosen)
        visits = sum(everyone[rank].visits() for rank in group)[~near]
        assert total.oracle_hits == int(visits.sort(descending=True).values[:rows].sum()) >= total.cached


def test_rows_that_follow_one_rank_s_batches_are_not_shared(tmp_path):
    path = draw_partition(tmp_path, 3, feature_dtype="float16").path
    for *_, said in run_distributed(3, share, args=(path, HALF)):
        assert said == (
            "the cache's lookahead is 2 but 2 ranks of a machine share the cache; pass transport='exchange', or "
            "lookahead=0."
        )


def on_one_machine(ctx, path):
    data = DistData.load(path, ctx)
    loader = DistLoader(data, FANOUTS, BATCH, cache=FeatureCache(TENTH))
    inputs = sum(batch.input_nodes.numel() for batch in loader)
    report = loader.cache_report(0)
    return loader.transport, str(loader.cache), report.neighbour > 0, inputs - report.own - report.neighbour


def test_where_all_rows_are_read_in_place_the_cache_is_empty_and_says_so(tmp_path):
    path = draw_partition(tmp_path, 2).path
    line = "cache: empty, every rank reads all rows in place"
    assert run_distributed(2, on_one_machine, args=(path,)) == [("shared", line, True, 0)] * 2
