"""Fanouts above the largest in-degree take all neighbours and cost what all neighbours cost; picks that no memory can
hold are refused.
"""

import json
import subprocess
import sys

import pytest
import torch

from fastsample_dist import NeighborSampler, ops
from fastsample_dist.graph.csc import CSCGraph
from tests.ops.graphs import random_csc
from tests.ops.test_cuda_sampling import both, on_cpu
from tests.ops.test_sample_mfg import same

LARGE = (10**8, 2**31 - 1, 2**63 - 1)
METHODS = ("uniform", "weighted", "labor")
GROWTH_LIMIT_BYTES = 64 << 20  # scratch by a fanout of 10^8 took 763 MB
TIMEOUT_S = 300

MEASURE = """
import json, resource, sys, torch
from fastsample_dist import NeighborSampler, ops
from tests.ops.graphs import random_csc
from fastsample_dist.graph.csc import CSCGraph

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

drawn = random_csc(num_nodes=4000, num_edges=40_000)
graph = CSCGraph(drawn.indptr, drawn.indices, torch.rand(40_000), drawn.orig_ids)
seeds = torch.arange(3000, dtype=torch.int32)
def grown(method, *fanouts):
    before = peak()
    for fanout in fanouts:
        spec = ops.SampleSpec(fanouts=(fanout, fanout), method=method, num_threads=2)
        sampler = NeighborSampler.from_spec(graph, spec)
        sampler.sample(seeds)
        sampler._arrays.neighbors(seeds, spec, 0, 0)  # as the vanilla scheme does
    return peak() - before
methods = sys.argv[1].split(",")
for method in methods: grown(method, -1)
print(json.dumps({method: grown(method, 10**8, 2**31 - 1) for method in methods}))
"""


def weighted_graph(**options) -> CSCGraph:
    drawn = random_csc(**options)
    weights = torch.rand(drawn.num_edges, generator=torch.Generator().manual_seed(1)) + 0.1
    return CSCGraph(drawn.indptr, drawn.indices, weights, drawn.orig_ids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fanout", LARGE)
def test_they_take_what_minus_one_takes_in_the_same_order(fanout, method):
    graph = weighted_graph(num_edges=5000)
    seeds, most = torch.randperm(60)[:25].int(), int(graph.in_degrees().max())

    def batch(fanout):
        spec = ops.SampleSpec(fanouts=(fanout, 3, fanout), method=method, edge_ids=True)
        return NeighborSampler.from_spec(graph, spec).sample(seeds, 7).mfgs

    whole, clamped, found = batch(-1), batch(most), batch(fanout)
    for mfg, expected, also in zip(found, whole, clamped, strict=True):
        for name in ("indptr", "indices", "src_nodes", "edge_ids"):
            assert torch.equal(getattr(mfg, name), getattr(expected, name)), name
            assert torch.equal(getattr(mfg, name), getattr(also, name)), name


def test_their_scratch_is_that_of_the_rows():
    command = [sys.executable, "-c", MEASURE, ",".join(METHODS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    grown = json.loads(run.stdout)
    assert grown.keys() == set(METHODS) and max(grown.values()) < GROWTH_LIMIT_BYTES, grown


@pytest.mark.parametrize("method", METHODS)
def test_a_device_allocates_for_the_largest_row(emulated_device, method):
    graph = weighted_graph(num_edges=5000)
    seeds, most = torch.randperm(60)[:25].int(), int(graph.in_degrees().max())
    specs = [ops.SampleSpec(fanouts=(fanout, fanout), method=method) for fanout in (most, 2**31 - 1)]
    cpu, cuda = both(emulated_device, graph, specs[0])
    assert len({cuda.batch_bytes(25, spec) for spec in specs}) == 1
    device_seeds = emulated_device.put(seeds)
    expected = cpu.sample(seeds, specs[0], 3)
    assert all(same(on_cpu(cuda.sample(device_seeds, spec, 3)), expected) for spec in specs)


def test_with_replacement_more_picks_than_memory_holds_are_refused():
    graph = random_csc()
    sampler = NeighborSampler(graph, [2**31], replace=True)
    with pytest.raises(ValueError, match=r"sample_mfg: a hop has \d+ edges, which take [\d.]+ GB, but [\d.]+ GB"):
        sampler.sample(torch.arange(45))
    assert NeighborSampler(graph, [3], replace=True).sample(torch.arange(45)).mfgs[0].indices.numel() > 0


@pytest.mark.parametrize(
    ("fanout", "replace", "expected"),
    [
        (2**63, False, f"64 bits, so at most {2**63 - 1}; -1 takes all neighbours"),
        (2**64 + 5, False, f"64 bits, so at most {2**63 - 1}; -1 takes all neighbours"),
        (-(2**64) - 5, False, "64 bits"),
        (2**31 + 1, True, f"at most {2**31} with replacement in hop 1"),
    ],
)
def test_numbers_that_the_core_cannot_hold_are_refused(fanout, replace, expected):
    with pytest.raises(ValueError, match=f"fanouts holds {fanout}; expected {expected}"):
        ops.SampleSpec(fanouts=(5, fanout), replace=replace)
