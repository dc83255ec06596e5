"""Hybrid, vanilla and one process: the same mini-batches bit for bit, and exactly counted exchanges.

The oracle is a NeighborSampler on the unpartitioned graph, fed each rank's seeds by original id.
"""

from dataclasses import dataclass
from itertools import product

import pytest
import torch

from fastsample_dist import DistData, DistLoader, NeighborSampler
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import FEATURE_DIM, draw_partition

SEED, BATCH = 2**35 + 1, 11
FANOUTS = {2: (4, 3), 3: (3, 3, 2), 4: (2, 2, 2, 2)}
PAYLOAD = ("sample_ids", "sample_reply", "feature_ids", "feature_rows")


@dataclass
class Seen:
    """What a rank saw of one batch, by original id."""

    seeds: torch.Tensor
    input_ids: torch.Tensor
    edges: list
    features: torch.Tensor
    labels: torch.Tensor
    step: int
    owned: torch.Tensor


def run_rank(ctx, path, schemes, fanouts, prefetch=0):
    """{scheme or (scheme, "shared"): (batches of two epochs, stats of those epochs)}"""
    data = DistData.load(path, ctx)
    seen = {}
    for scheme, transport in product(schemes, ("exchange", "shared")):
        options = {"rng_seed": SEED, "prefetch": prefetch, "transport": transport, "exchange": "paired"}
        loader = DistLoader(data, fanouts, BATCH, scheme=scheme, **options)
        ctx.comm.reset_stats()
        batches = []
        for _ in range(2):
            for mb in loader:
                lo, hi = data.own_range
                batches.append(
                    Seen(
                        data.orig_ids(mb.seeds),
                        data.orig_ids(mb.input_nodes),
                        [(mfg.indptr, mfg.indices) for mfg in mb.mfgs],
                        mb.features,
                        mb.labels,
                        mb.step,
                        (mb.input_nodes >= lo) & (mb.input_nodes < hi),
                    )
                )
        seen[scheme if transport == "exchange" else (scheme, transport)] = (batches, ctx.comm.stats())
        loader.close()
    return seen


def assert_same_batches(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.step == b.step and torch.equal(a.input_ids, b.input_ids) and torch.equal(a.features, b.features)
        for (indptr, indices), (other_indptr, other_indices) in zip(a.edges, b.edges, strict=True):
            assert torch.equal(indptr, other_indptr) and torch.equal(indices, other_indices)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by (world_size, num_layers), each started once."""
    done = {}

    def get(world_size, num_layers):
        if (world_size, num_layers) not in done:
            drawn = draw_partition(tmp_path_factory.mktemp("drawn"), world_size)
            arguments = (drawn.path, ("hybrid", "vanilla"), FANOUTS[num_layers])
            done[world_size, num_layers] = drawn, run_distributed(world_size, run_rank, args=arguments)
        return done[world_size, num_layers]

    return get


CASES = [(1, 3), (2, 2), (2, 3), (2, 4), (3, 3), (4, 3)]  # ranks, layers
GATE = [(2, 3), (3, 3), (2, 4)]
SEVERAL = grid([case for case in CASES if case[0] > 1], gate=GATE)


@pytest.mark.parametrize("case", grid(CASES, gate=GATE), ids=str)
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_batches_equal_those_of_one_process(runs, case, scheme):
    drawn, ranks = runs(*case)
    oracle = NeighborSampler(drawn.graph, FANOUTS[case[1]], rng_seed=SEED)
    for rank in ranks:
        for batch in rank[scheme][0]:
            expected = oracle.sample(batch.seeds, batch.step)
            assert torch.equal(batch.input_ids, expected.input_nodes.long())
            for (indptr, indices), mfg in zip(batch.edges, expected.mfgs, strict=True):
                assert torch.equal(indptr, mfg.indptr) and torch.equal(indices, mfg.indices)


@pytest.mark.parametrize("case", grid(CASES, gate=GATE), ids=str)
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_features_and_labels_are_those_of_their_nodes(runs, case, scheme):
    drawn, ranks = runs(*case)
    for rank in ranks:
        for batch in rank[scheme][0]:
            assert torch.equal(batch.features, torch.from_numpy(drawn.features)[batch.input_ids])
            assert torch.equal(batch.labels, torch.from_numpy(drawn.labels)[batch.seeds])


@pytest.mark.parametrize("case", grid(CASES, gate=GATE), ids=str)
def test_every_seed_comes_once_per_epoch_and_ranks_agree_on_the_steps(runs, case):
    drawn, ranks = runs(*case)
    steps = [len(rank["hybrid"][0]) for rank in ranks]
    seeds = torch.cat([batch.seeds for rank in ranks for batch in rank["hybrid"][0]])
    assert len(set(steps)) == 1
    assert torch.equal(seeds.sort().values, torch.from_numpy(drawn.splits["train"]).repeat_interleave(2))


@pytest.mark.parametrize("case", grid(CASES, gate=GATE), ids=str)
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_ranks_of_one_machine_make_the_same_batches_without_an_exchange(runs, case, scheme):
    for rank in runs(*case)[1]:
        batches, stats = rank[scheme, "shared"]
        assert not set(PAYLOAD) & set(stats)
        assert_same_batches(batches, rank[scheme][0])


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_hybrid_makes_two_payload_exchanges_a_step(runs, case):
    for rank in runs(*case)[1]:
        batches, stats = rank["hybrid"]
        calls = {purpose: stats[purpose]["calls"] for purpose in PAYLOAD if purpose in stats}
        assert calls == {"feature_ids": len(batches), "feature_rows": len(batches)}


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_vanilla_makes_2l_payload_exchanges_a_step(runs, case):
    for rank in runs(*case)[1]:
        batches, stats = rank["vanilla"]
        calls = {purpose: stats[purpose]["calls"] for purpose in PAYLOAD}
        sampling = (case[1] - 1) * len(batches)
        assert calls == {
            "sample_ids": sampling, "sample_reply": sampling, "feature_ids": len(batches), "feature_rows": len(batches),
        }  # fmt: skip
        assert sum(calls.values()) == 2 * case[1] * len(batches)


@pytest.mark.parametrize("case", SEVERAL, ids=str)
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_feature_bytes_are_those_of_the_remote_nodes_once_each(runs, case, scheme):
    for rank in runs(*case)[1]:
        batches, stats = rank[scheme]
        remote = sum(int((~batch.owned).sum()) for batch in batches)
        assert stats["feature_ids"]["bytes_sent"] == remote * 4
        assert stats["feature_rows"]["bytes_received"] == remote * FEATURE_DIM * 4


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_vanilla_sampling_bytes_are_those_of_the_remote_frontier(runs, case):
    """Out: every remote node of each frontier below the first. Back: its pick count and its picks."""
    for rank in runs(*case)[1]:
        batches, stats = rank["vanilla"]
        asked = answered = 0
        for batch in batches:
            for indptr, _ in batch.edges[:-1]:  # the last MFG is the first hop: own seeds
                remote = ~batch.owned[: indptr.numel() - 1]
                asked += int(remote.sum())
                answered += int(remote.sum() + indptr.diff()[remote].sum())
        assert stats["sample_ids"]["bytes_sent"] == asked * 4
        assert stats["sample_reply"]["bytes_received"] == answered * 4


def test_what_one_rank_sends_others_receive(runs):
    ranks = runs(3, 3)[1]
    for purpose in PAYLOAD:
        sent = sum(rank["vanilla"][1][purpose]["bytes_sent"] for rank in ranks)
        assert sent == sum(rank["vanilla"][1][purpose]["bytes_received"] for rank in ranks) > 0


@pytest.mark.parametrize("prefetch", grid([1, 3], gate=[3]))
def test_prefetching_changes_no_batch_and_no_count(runs, prefetch):
    drawn, ranks = runs(2, 3)
    again = run_distributed(2, run_rank, args=(drawn.path, ("hybrid", "vanilla"), FANOUTS[3], prefetch))
    for rank, other in zip(ranks, again, strict=True):
        for way, (batches, stats) in rank.items():
            assert stats == other[way][1]
            assert_same_batches(other[way][0], batches)


def test_four_parts_on_two_ranks_and_on_one_give_the_same_batches(tmp_path):
    drawn = draw_partition(tmp_path, 4)
    oracle = NeighborSampler(drawn.graph, FANOUTS[3], rng_seed=SEED)
    for world_size in (1, 2):
        for rank in run_distributed(world_size, run_rank, args=(drawn.path, ("vanilla",), FANOUTS[3])):
            for batch in rank["vanilla"][0] + rank["vanilla", "shared"][0]:
                assert torch.equal(batch.input_ids, oracle.sample(batch.seeds, batch.step).input_nodes.long())
                assert torch.equal(batch.features, torch.from_numpy(drawn.features)[batch.input_ids])


def fetch_narrow(ctx, path):
    """(features in bfloat16, the same rounded after arrival, remote nodes, bytes received)"""
    data = DistData.load(path, ctx)
    lo, hi = data.own_range
    nodes = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(ctx.rank))[:100].int()
    wide = data.features.fetch(nodes)
    ctx.comm.reset_stats()
    narrow = data.features.fetch(nodes, torch.bfloat16)
    remote = int(((nodes < lo) | (nodes >= hi)).sum())
    return narrow, wide.bfloat16(), remote, ctx.comm.stats()["feature_rows"]["bytes_received"]


def test_a_narrower_result_is_rounded_by_the_owner_and_travels_narrow(tmp_path):
    path = draw_partition(tmp_path, 3).path
    for narrow, expected, remote, received in run_distributed(3, fetch_narrow, args=(path,)):
        assert torch.equal(narrow, expected) and received == remote * FEATURE_DIM * 2
