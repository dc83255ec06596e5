"""Work that a device does not start: whichever launch, memset or sort of an operator it is, the operator reports it and
goes no further by what was never written; the next call is right.
"""

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from tests.ops.graphs import random_csc, random_mfg
from tests.ops.test_sample_mfg import same

INDPTR, INDICES = random_mfg(20, 30, 200)
CALLS = {
    "compact": (torch.arange(9), torch.arange(30)),
    "bucket_by_part": (torch.arange(30), torch.tensor([0, 10, 30])),
    "gather_rows": (torch.ones(30, 4), torch.arange(9)),
    "aggregate_backward": (
        torch.ones(20, 4), [INDPTR, INDICES], torch.ones(30, 4), torch.ones(200), torch.empty(0, dtype=torch.int64),
        "sum", [True, True], True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_operator(emulated_device, name):
    def call():
        found = emulated_device.kernel(name)(*CALLS[name])
        return [found] if isinstance(found, torch.Tensor) else list(found)

    expected = call()
    lines = emulated_device.failures(call)
    assert set(lines) == {f"{name}: out of memory"}
    assert all(map(torch.equal, call(), expected))


@pytest.mark.parametrize(("kernel", "method"), [
    ("per_hop", "uniform"), ("persistent", "uniform"), ("cooperative", "uniform"), ("per_hop", "weighted"),
    ("per_hop", "labor"),
])  # fmt: skip
def test_a_sampler(emulated_device, kernel, method):
    graph = random_csc(60, 900, seed=1)
    graph = CSCGraph(graph.indptr, graph.indices, torch.rand(900), graph.orig_ids)
    sampler = CudaSamplingGraph(
        graph.indptr, graph.indices, graph.orig_ids, weights=graph.edge_weights, kernel=kernel
    )  # fmt: skip
    spec, seeds = ops.SampleSpec(fanouts=(3, 40), method=method), torch.arange(9, dtype=torch.int32)
    expected = sampler.sample(seeds, spec, 3)
    lines = emulated_device.failures(lambda: sampler.sample(seeds, spec, 3))
    assert set(lines) == {"sample_mfg: out of memory", "publish_words: out of memory"}
    assert same(sampler.sample(seeds, spec, 3), expected)
