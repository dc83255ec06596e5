"""fastsample-bench gpu sampling, on the emulator: what it verifies, counts and concludes."""

import dataclasses

import pytest
import torch

from fastsample_dist.bench.gpu import sampling as gpu_sampling
from fastsample_dist.bench.gpu.device import GpuTimer
from fastsample_dist.bench.gpu.sampling import BASELINE, GpuSamplingOptions, Samplers, crossover, least_sectors
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampledHops, SampleSpec, SamplingGraph
from fastsample_dist.ops.kernel_choice import KERNELS
from tests.bench.gpu.emulated_gpu import EmulatedGpu
from tests.ops.graphs import random_csc

SPREAD = {"median": 1.0, "p10": 1.0, "p90": 1.0, "rates": [1.0]}


@pytest.fixture
def gpu(emulated_device):
    return EmulatedGpu()


def measured(gpu, timer, **options):
    options = {"batch_sizes": (5,), "fanouts": (3,), "hops": (2,), "limit_bytes": 4096, "verify": True, **options}
    return gpu_sampling.measure(random_csc(), gpu, timer, GpuSamplingOptions(**options), lambda _: None)


def test_every_setting_is_measured_with_every_sampler(gpu, monkeypatch):
    monkeypatch.setattr(gpu_sampling, "random_read_limit", lambda *_: {"sectors_s": SPREAD})
    found = measured(gpu, GpuTimer(gpu, warmup=0, trials=1), batch_sizes=(4, 5), hops=(1, 2))
    assert [(run["hops"], run["fanout"], run["batch_size"]) for run in found["settings"]] == [
        (1, 3, 4), (1, 3, 5), (2, 3, 4), (2, 3, 5)
    ]  # fmt: skip
    names = list(Samplers.of(random_csc(), gpu).on_device)
    assert all([entry["sampler"] for entry in run["samplers"]] == names for run in found["settings"])


def test_kernels_are_recorded_once_for_batches_of_a_kind(gpu, monkeypatch):
    recorded, recorder = [], gpu.recorder
    monkeypatch.setattr(gpu, "recorder", lambda: recorded.append(None) or recorder())
    captured = Samplers.of(random_csc(), gpu).on_device["captured"]
    for seeds, count in ((9, 1), (9, 1), (5, 2)):
        captured(torch.arange(seeds).int(), SampleSpec(fanouts=(3, 2)), 1)
        assert len(recorded) == count


def test_edges_are_those_of_the_cpus_batches(gpu, monkeypatch):
    monkeypatch.setattr(gpu_sampling, "random_read_limit", lambda *_: {"sectors_s": SPREAD})
    found = measured(gpu, GpuTimer(gpu, warmup=1, trials=3))["settings"][0]["samplers"][0]
    graph, spec = random_csc(), SampleSpec(fanouts=(3, 3))
    on_cpu = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    seeds = gpu_sampling.draw_seeds(graph, 5, 4, 0)
    edges = [sum(own.numel() for own in on_cpu.sample(seeds[trial], spec, trial).indices) for trial in (1, 2, 3)]
    assert found["edges"] == sum(edges) / 3


def test_speedups_and_the_share_of_the_limit():
    found = gpu_sampling.summarize(
        {"per_hop": [1.0, 2.0, 3.0], BASELINE: [5.0, 6.0, 7.0]},
        {
            "per_hop": {"sampling": SPREAD, "all": SPREAD},
            BASELINE: {"sampling": {**SPREAD, "median": 4.0}, "all": SPREAD},
        },
        {"per_hop": [10, 10, 10], BASELINE: [12, 12, 12]},
        least_s=0.5,
    )
    assert [entry["speedup_whole"] for entry in found] == [3.0, 1.0]
    assert [entry["speedup_kernels"] for entry in found] == [4.0, 1.0]
    assert [entry["of_limit"] for entry in found] == [0.25, 0.5 / 6]
    assert found[0]["edges_s"]["rates"] == [10.0, 5.0, 10 / 3]


def test_without_kernel_times_there_is_no_speedup_of_kernels():
    none = {"sampling": None, "all": None}
    found = gpu_sampling.summarize(
        {"per_hop": [1.0], BASELINE: [2.0]}, {"per_hop": none, BASELINE: none}, {"per_hop": [1], BASELINE: [1]}, 0.1
    )
    assert [entry["speedup_kernels"] for entry in found] == [None, None]


@pytest.mark.parametrize(
    ("kernel", "counts"),
    [("sample_by_groups", True), ("sample_all", True), ("sample_tasks", True), ("copy_recorded", True),
     ("reservoir_kernel", True), ("relabel", False), ("all_hops", False),
     ("insert_kernel", False), ("void at::native::sort<int>", False)],
)  # fmt: skip
def test_which_kernels_draw_neighbours(kernel, counts):
    assert gpu_sampling.is_sampling(kernel) == counts


def test_least_sectors_counts_each_sector_of_a_hop_once():
    """Offsets 0 .. 3 are one sector, 4 .. 7 the next; eight int32 sources are one."""
    graph = CSCGraph(torch.tensor([0, 10, 10, 12, 20, 20, 20]), torch.zeros(20, dtype=torch.int32))
    hops = SampledHops(
        nodes=torch.tensor([0, 3, 2]).int(),
        indptrs=[torch.tensor([0, 2]), torch.tensor([0, 1, 3])],
        indices=[],
        edge_ids=[torch.tensor([0, 9]), torch.tensor([1, 16, 17])],
    )
    # hop 0: offsets 0 and 1: 1; edges 0 and 9: 2. hop 1: offsets of rows 0 and 3 (0, 1, 3, 4): 2; edges: 2.
    assert least_sectors(graph, hops) == 1 + 2 + 2 + 2


def with_batch(gpu, name, change):
    """(samplers of which one returns a changed batch, spec, seeds)."""
    samplers = Samplers.of(random_csc(), gpu)
    sample = samplers.on_device[name]
    samplers.on_device[name] = lambda *args: change(sample(*args))
    return samplers, gpu, SampleSpec(fanouts=(3, 3)), torch.tensor([7, 0, 12], dtype=torch.int32)


def test_verify_passes_what_the_samplers_return(gpu):
    gpu_sampling.verify(*with_batch(gpu, "per_hop", lambda hops: hops))


@pytest.mark.parametrize(
    ("field", "text"), [("indptrs", "indptrs of hop 1"), ("indices", "indices of hop 1"), ("edge_ids", "edge_ids of")]
)
def test_verify_names_what_is_not_the_cpus(gpu, field, text):
    def change(hops):
        parts = getattr(hops, field)
        return dataclasses.replace(hops, **{field: [*parts[:-1], parts[-1] + 1]})

    with pytest.raises(RuntimeError, match=f"fanouts \\(3, 3\\), 3 seeds, per_hop: {text}"):
        gpu_sampling.verify(*with_batch(gpu, "per_hop", change))


@pytest.mark.parametrize(
    ("field", "change", "text"),
    [
        ("indptrs", lambda own: own + (torch.arange(own.numel()) > 0), "another number of edges"),
        ("edge_ids", lambda own: own.flip(0), "edges outside their rows"),
        ("edge_ids", lambda own: torch.cat([own[:1], own[:1], own[2:]]), "an edge twice"),
        ("indices", lambda own: own.flip(0), "other sources than the graph's"),
    ],
)
def test_verify_names_what_the_baseline_breaks(gpu, field, change, text):
    def changed(hops):
        parts = getattr(hops, field)
        return dataclasses.replace(hops, **{field: [change(parts[0]), *parts[1:]]})

    with pytest.raises(RuntimeError, match=f"{BASELINE}: hop 0 has .*{text}"):
        gpu_sampling.verify(*with_batch(gpu, BASELINE, changed))


def run_of(edges, per_hop, persistent, cooperative=9.0):
    return {
        "samplers": [
            {"sampler": name, "edges": edges, "whole_s": {**SPREAD, "median": seconds}}
            for name, seconds in zip(KERNELS, (per_hop, persistent, cooperative), strict=True)
        ]
    }


def test_the_crossover_is_where_the_faster_kernel_changes():
    runs = [run_of(100, 3.0, 1.0), run_of(1000, 4.0, 5.0), run_of(500, 3.0, 2.0)]
    assert crossover(runs) == {"below": "persistent", "from": "per_hop", "edges": 1000, "lost": 0.0}
    runs = [run_of(100, 3.0, 1.0, 0.5), run_of(1000, 4.0, 5.0)]
    assert crossover(runs) == {"below": "cooperative", "from": "per_hop", "edges": 1000, "lost": 0.0}


def test_a_crossover_says_what_it_loses():
    found = crossover([run_of(1, 1.0, 2.0), run_of(2, 3.0, 2.0), run_of(3, 1.0, 4.0)])
    assert found["edges"] == 0 and found["from"] == "per_hop" and found["lost"] == pytest.approx(1 / 4)


def test_without_one_of_the_kernels_there_is_no_crossover():
    runs = [run_of(1, 1.0, 2.0)]
    del runs[0]["samplers"][1]
    assert crossover(runs) is None
