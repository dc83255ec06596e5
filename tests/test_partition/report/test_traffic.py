"""Traffic measured by sampling, against sets of neighbours taken one by one and the counters of real loaders."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.graph import hotness
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.storage import load_part, load_topology, read_manifest
from fastsample_dist.partition.report.traffic import (
    CACHE_SHARES,
    POLICIES,
    SeedBatches,
    Traffic,
    TrafficOptions,
    measure_traffic,
)
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.testing import run_distributed
from tests.parts import FEATURE_DIM, draw_partition
from tests.test_partition.damage import rewrite

ALL = TrafficOptions(fanouts=(-1, -1), batch_size=7, num_batches=9)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse directed graph in three parts."""
    return draw_partition(tmp_path_factory.mktemp("drawn"), 3, num_edges=500).path


def measure(path: Path, options: TrafficOptions) -> Traffic:
    return measure_traffic(path, read_manifest(path), options)


# ---- all neighbours: no chance in it, so the oracle is sets of neighbours


def in_neighbours(path: Path) -> list[set[int]]:
    graph = load_topology(path, read_manifest(path))
    return [set(row.tolist()) for row in torch.split(graph.indices, graph.in_degrees().tolist())]


def layers(rows: list[set[int]], seeds: np.ndarray) -> list[set[int]]:
    """Nodes within 0, 1 and 2 hops of the seeds."""
    reached = [set(seeds.tolist())]
    for _ in range(2):
        reached.append(reached[-1] | {source for node in reached[-1] for source in rows[node]})
    return reached


def plan_of(path: Path, part: int) -> tuple[SeedBatches, range]:
    manifest = read_manifest(path)
    train = load_part(path, manifest, part).splits["train"].numpy()
    return SeedBatches(train, ALL.batch_size, (ALL.rng_seed, part)), range(*manifest.part_ranges[part : part + 2])


def test_rows_are_those_of_the_sets_of_neighbours(drawn):
    rows, traffic = in_neighbours(drawn), measure(drawn, ALL)
    for part in range(3):
        plan, own = plan_of(drawn, part)
        inputs = [layers(rows, seeds)[2] for seeds in plan.measured(ALL.num_batches)]
        remote = np.array([len(nodes - set(own)) for nodes in inputs])
        found = traffic.parts[part]
        assert found.batches == len(inputs) == 5 and found.steps == 5  # of 9, 5 are a whole epoch
        assert found.input_rows == pytest.approx(np.mean([len(nodes) for nodes in inputs]), abs=1e-9)
        assert found.remote_rows == pytest.approx(remote.mean(), abs=1e-9)
        assert found.remote_rows_error == pytest.approx(remote[:4].std(ddof=1) / 5**0.5, abs=1e-9)  # the fifth is short
        assert 0 < found.remote_rows < found.input_rows


def test_sampling_ids_are_those_asked_and_answered_below_the_first_hop(drawn):
    """Per remote node of the second hop: its id out, the number of its neighbours and they back."""
    rows, traffic = in_neighbours(drawn), measure(drawn, ALL)
    graph = load_topology(drawn, read_manifest(drawn))
    degrees = graph.in_degrees().tolist()  # of parallel edges each is drawn
    assert sum(degrees) > sum(map(len, rows))
    for part in range(3):
        plan, own = plan_of(drawn, part)
        moved = [sum(2 + degrees[node] for node in layers(rows, seeds)[1] - set(own)) for seeds in plan.measured(9)]
        assert traffic.parts[part].sampling_ids == pytest.approx(np.mean(moved), abs=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_curves_are_the_rows_left_when_the_first_nodes_of_the_policy_are_cached(drawn, policy):
    rows, traffic = in_neighbours(drawn), measure(drawn, ALL)
    graph = load_topology(drawn, read_manifest(drawn))
    out_degree, orig_ids = np.bincount(graph.indices, minlength=240), graph.orig_ids.tolist()
    for part in range(3):
        plan, own = plan_of(drawn, part)
        hot, seen = np.zeros(240, dtype=int), np.zeros(240, dtype=int)
        for seeds in plan.presampled(ALL.presample_batches):
            hot[list(layers(rows, seeds)[2])] += 1
        inputs = [layers(rows, seeds)[2] - set(own) for seeds in plan.measured(ALL.num_batches)]
        for nodes in inputs:
            seen[list(nodes)] += 1
        train = load_part(drawn, read_manifest(drawn), part).splits["train"]
        vip = hotness.vip(graph, train, ALL.batch_size, ALL.fanouts).numpy()
        presampled = hot * 2**32 + len(plan.presampled(ALL.presample_batches)) * vip
        scores = {"degree": out_degree, "hotness": presampled, "vip": vip, "oracle": seen}[policy]
        able = [v for v in range(240) if v not in own and scores[v] > 0]
        order = sorted(able, key=lambda v, scores=scores: (-scores[v], orig_ids[v]))
        for share, found in zip(CACHE_SHARES, traffic.cached_rows[policy], strict=True):
            cached = set(order[: int(share * 240)])
            assert found[part] == pytest.approx(np.mean([len(nodes - cached) for nodes in inputs]), abs=1e-9)


def test_no_policy_saves_more_than_the_oracle(drawn):
    curves = measure(drawn, replace(ALL, fanouts=(3, 2))).cached_rows
    for policy in POLICIES:
        assert bool((np.array(curves[policy]) >= np.array(curves["oracle"]) - 1e-9).all())


def test_bytes_of_an_epoch_are_steps_times_rows_times_their_size(drawn):
    traffic = measure(drawn, ALL)
    report = traffic.to_json()
    rows = sum(part.steps * part.remote_rows for part in traffic.parts)
    assert report["row_bytes"] == 4 + FEATURE_DIM * 4
    assert report["epoch_bytes"]["hybrid"] == pytest.approx(rows * (4 + FEATURE_DIM * 4))
    ids = sum(part.steps * part.sampling_ids for part in traffic.parts)
    assert report["epoch_bytes"]["vanilla"] == pytest.approx(report["epoch_bytes"]["hybrid"] + 4 * ids)
    errors = [part.steps * part.remote_rows_error * 28 for part in traffic.parts]
    assert report["epoch_bytes"]["standard_error_of_hybrid"] == pytest.approx(np.linalg.norm(errors))
    mean = np.mean([part.remote_rows for part in traffic.parts])
    assert report["remote_rows_per_step"]["mean"] == pytest.approx(mean)


def test_curves_fall_from_all_remote_rows_to_none(drawn):
    report = measure(drawn, replace(ALL, fanouts=(3, 2))).to_json()
    for policy in POLICIES:
        curve = report["cache"][policy]
        sizes = [point["epoch_bytes"] for point in curve]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == pytest.approx(report["epoch_bytes"]["hybrid"]) and sizes[-1] == 0
        assert curve[0]["remote_rows_per_step"] == pytest.approx(report["remote_rows_per_step"]["mean"])


@pytest.mark.parametrize("batch_size, num_batches, least", [(1, 4, 0.7), (3, 12, 0.1)])
def test_standard_error_is_that_of_repeated_measurements(drawn, batch_size, num_batches, least):
    """The spread of 60 measurements with other seeds, in standard errors: about 1 where 4 batches of 34 are measured
    (0.8 to 1.2 in 19 of 20 trials), less where whole epochs are, whose batches share out the same train nodes."""
    options = TrafficOptions(fanouts=(3, 2), batch_size=batch_size, num_batches=num_batches, presample_batches=1)
    found = [measure(drawn, replace(options, rng_seed=seed)).parts[1] for seed in range(60)]
    means = np.array([part.remote_rows for part in found])
    typical = np.mean([part.remote_rows_error**2 for part in found]) ** 0.5
    assert least < means.std(ddof=1) / typical < 1.3


# ---- against training


def count_training(ctx, path, scheme, epochs):
    """Bytes that this rank receives for feature rows, and sends and receives for sampling, per epoch."""
    data, ways = DistData.load(path, ctx), {"transport": "exchange", "exchange": "paired"}
    loader = DistLoader(data, (4, 3), 7, scheme=scheme, rng_seed=99, **ways)
    ctx.comm.reset_stats()
    for _ in range(epochs):
        for _ in loader:
            pass
    stats = ctx.comm.stats()
    sampling = stats.get("sample_ids", {}).get("bytes_sent", 0) + stats.get("sample_reply", {}).get("bytes_received", 0)
    features = stats["feature_ids"]["bytes_sent"] + stats["feature_rows"]["bytes_received"]
    return features / epochs, sampling / epochs


def test_training_sends_what_was_measured(tmp_path):
    path = draw_partition(tmp_path, 2).path
    report = measure(path, TrafficOptions(fanouts=(4, 3), batch_size=7, num_batches=400)).to_json()
    counted = run_distributed(2, count_training, args=(path, "vanilla", 40))
    features, sampling = (sum(values) for values in zip(*counted, strict=True))
    assert abs(features - report["epoch_bytes"]["hybrid"]) < 5 * report["epoch_bytes"]["standard_error_of_hybrid"]
    estimated = report["epoch_bytes"]["vanilla"] - report["epoch_bytes"]["hybrid"]
    assert sampling == pytest.approx(estimated, rel=0.02)


# ---- hotness


def two_worlds(path: Path) -> Path:
    """Nodes 0 .. 99: hubs of each other, no train node reaches them. 100 .. 399: train nodes and what they reach."""
    rng = np.random.default_rng(1)
    hubs = rng.integers(0, 100, (2, 6000))
    seen = np.stack([rng.integers(100, 200, 3000), rng.integers(100, 400, 3000)])
    raw = RawGraph(
        name="two worlds",
        num_nodes=400,
        undirected=False,
        edge_index=np.concatenate([hubs, seen], axis=1),
        splits={"train": np.arange(200, 400)},
    )
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), path)
    return path


def test_hotness_finds_what_degree_overlooks(tmp_path):
    options = TrafficOptions(fanouts=(5, 5), batch_size=20)
    curves = measure(two_worlds(tmp_path / "parts"), options).to_json()["cache"]
    at = {policy: {p["share"]: p["remote_rows_per_step"] for p in curve} for policy, curve in curves.items()}
    assert at["degree"][0.1] > 0.95 * at["degree"][0]
    assert at["hotness"][0.1] < 0.4 * at["hotness"][0]


def test_hotness_is_not_judged_by_the_batches_that_it_was_counted_on(tmp_path):
    """Where every node is as hot as any other, 20 % of them save 20 %; those counted on the same batches would save
    far more, since in a few batches most nodes are seen once or never."""
    rng = np.random.default_rng(3)
    raw = RawGraph(
        name="uniform",
        num_nodes=4000,
        undirected=False,
        edge_index=np.stack([rng.integers(0, 4000, 80_000), rng.integers(0, 4000, 80_000)]),
        splits={"train": np.arange(4000)},
    )
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    options = TrafficOptions(fanouts=(5,), batch_size=20, num_batches=8, presample_batches=8)
    curve = measure(tmp_path / "parts", options).to_json()["cache"]["hotness"]
    left = {point["share"]: point["remote_rows_per_step"] / curve[0]["remote_rows_per_step"] for point in curve}
    assert 0.45 < left[0.2] < 0.65  # 800 of the 2,000 remote nodes are 40 %, and somewhat more by degree


# ---- batches


def test_an_epoch_has_every_train_node_once():
    train = np.arange(100, 145)
    plan = SeedBatches(train, 10, (0, 0))
    batches = plan.epoch(3)
    assert plan.steps == 5 and [len(batch) for batch in batches] == [10, 10, 10, 10, 5]
    assert np.array_equal(np.sort(np.concatenate(batches)), train)
    assert not np.array_equal(np.concatenate(batches), np.concatenate(plan.epoch(4)))


@pytest.mark.parametrize("count, batches", [(2, 2), (4, 4), (5, 5), (9, 5), (10, 10), (32, 30)])
def test_measured_batches_are_whole_epochs_or_picks_of_one(count, batches):
    measured = SeedBatches(np.arange(45), 10, (0, 0)).measured(count)
    assert len(measured) == batches
    if batches >= 5:
        counts = np.bincount(np.concatenate(measured), minlength=45)
        assert set(counts.tolist()) == {batches // 5}
    else:
        assert max(np.bincount(np.concatenate(measured))) == 1


def test_the_smaller_last_batch_is_picked_as_often_as_any():
    """Of 5 batches 2 are picked: the smaller one in 40 % of 500 plans; 4.5 standard deviations are 0.1."""
    picked = [
        any(len(batch) == 5 for batch in SeedBatches(np.arange(45), 10, (seed,)).measured(2)) for seed in range(500)
    ]
    assert 0.3 < np.mean(picked) < 0.5


def test_presampled_and_measured_batches_are_of_different_epochs():
    plan = SeedBatches(np.arange(45), 10, (0, 0))
    first = {tuple(batch) for batch in plan.presampled(64)}
    assert len(first) == 10
    assert not first & {tuple(batch) for batch in plan.measured(32)}
    assert len(plan.presampled(7)) == 7


# ---- the rest


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_figures_do_not_depend_on_threads_and_follow_the_seed(drawn, threads):
    options = TrafficOptions(fanouts=(3, 2), batch_size=7)
    reports = []
    for count in (1, 3):
        threads(count)
        reports.append(measure(drawn, options).to_json())
    assert reports[0] == reports[1]
    assert measure(drawn, replace(options, rng_seed=1)).to_json()["parts"] != reports[0]["parts"]


def test_part_without_train_nodes_sends_nothing(tmp_path):
    path = draw_partition(tmp_path, 3).path
    rewrite(path, "part-1/train.npy", lambda ids: ids[:0])
    traffic = measure(path, ALL)
    part = traffic.parts[1]
    assert (part.steps, part.batches, part.remote_rows, part.remote_rows_error) == (0, 0, 0, 0)
    assert all(rows[1] == 0 for rows in traffic.cached_rows["hotness"])
    assert traffic.parts[0].remote_rows > 0


def test_partition_without_train_nodes_is_refused(tmp_path):
    raw = RawGraph(name="bare", num_nodes=10, undirected=True, edge_index=np.arange(20).reshape(2, 10) % 10)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    with pytest.raises(ValueError, match="has no train nodes, so no batch can be sampled"):
        measure(tmp_path / "parts", ALL)


def test_one_part_sends_nothing(tmp_path):
    report = measure(draw_partition(tmp_path, 1).path, ALL).to_json()
    assert report["epoch_bytes"] == {"hybrid": 0, "vanilla": 0, "standard_error_of_hybrid": 0}


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"fanouts": ()}, "fanouts is empty"),
        ({"fanouts": (5, -2)}, "fanouts holds -2"),
        ({"batch_size": 0}, "batch_size is 0; expected 1 to"),
        ({"num_batches": 1}, "num_batches is 1; expected 2 to"),
        ({"presample_batches": 70_000}, "presample_batches is 70000; expected 1 to 65535"),
        ({"rng_seed": -1}, "rng_seed is -1"),
    ],
)
def test_options_out_of_range_are_refused(fields, text):
    with pytest.raises(ValueError, match=text):
        TrafficOptions(**{"fanouts": (5, 5), "batch_size": 10, **fields})
