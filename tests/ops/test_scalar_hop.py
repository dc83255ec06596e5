"""The vector code samples what csrc/cpu/plain_hop.cpp, the definition of a hop, samples: bit for bit."""

import itertools

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.sampling_graph import EdgeWeights, SamplingGraph
from tests.grids import grid

LANES = 16  # rows that the kernels draw side by side
NUM_ROWS = (0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES + 5, 1100)  # 1100: two threads' worth
FANOUTS = ((-1,), (0,), (1, 3), (5, 4, 3), (31,), (32, 2), (33,), (200, 5))
METHODS = (("uniform", False), ("uniform", True), ("weighted", False), ("weighted", True), ("labor", False))
NUM_NODES = 1200
HUGE = 9000  # in-edges of a hub


def graph_of(id_dtype, weight_dtype, skew=False):
    """Rows of 0, 1, 15 .. 33 and HUGE neighbours, with weights of 0 among the others; skew: one edge weighs it all."""
    generator = torch.Generator().manual_seed(5)
    degrees = torch.randint(0, 12, (NUM_NODES,), generator=generator)
    for row, degree in enumerate([0, 1, *range(LANES - 1, 2 * LANES + 2), 200, 201, HUGE, 0, 0]):
        degrees[row * 7] = degree
    indptr = torch.zeros(NUM_NODES + 1, dtype=torch.int64)
    torch.cumsum(degrees, 0, out=indptr[1:])
    num_edges = int(indptr[-1])
    indices = torch.randint(0, NUM_NODES, (num_edges,), generator=generator).to(id_dtype)
    weights = torch.rand(num_edges, generator=generator, dtype=torch.float64)
    if skew:
        weights = torch.where(weights < 0.1, 1e9, 1e-3) * weights
    weights[torch.randint(0, num_edges, (num_edges // 9,), generator=generator)] = 0
    weights = weights.to(weight_dtype)
    orig_ids = torch.randperm(NUM_NODES, generator=generator) * 2**33
    edge_weights = EdgeWeights(weights, ops.alias_tables(indptr, weights, 1))
    return SamplingGraph(indptr, indices, orig_ids, weights=edge_weights)


GRAPHS = {
    "int32": graph_of(torch.int32, torch.float32),
    "int64": graph_of(torch.int64, torch.float64),
    "few edges weigh it all": graph_of(torch.int32, torch.float64, skew=True),
}


def tensors(hops):
    return [hops.nodes, *hops.indptrs, *hops.indices, *hops.edge_ids]


CASES = [
    (isa, graph, method, fanouts)
    for isa, graph, method, fanouts in itertools.product(("baseline", "avx2", "avx512"), GRAPHS, METHODS, FANOUTS)
    if not (method[1] and -1 in fanouts)
]


@pytest.mark.parametrize("case", grid(CASES, gate=CASES[::11]), ids=str)
def test_every_instruction_set_samples_the_definition(case, use_isa):
    isa, graph, (method, replace), fanouts = case
    graph = GRAPHS[graph]
    use_isa(isa)
    for num_rows, edge_ids in itertools.product(NUM_ROWS, (False, True)):
        seeds = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(num_rows))[:num_rows].to(graph.dtype)
        spec = SampleSpec(
            fanouts=fanouts, replace=replace, rng_seed=3, num_threads=2, method=method, edge_ids=edge_ids,
            layer_dependency=method == "labor" and edge_ids,
        )  # fmt: skip
        ops.set_isa("scalar")
        expected = graph.sample(seeds, spec, num_rows)
        rows = graph.neighbors(seeds.repeat(2), spec, 0, 1)
        ops.set_isa(isa)
        for one, other in zip(tensors(expected), tensors(graph.sample(seeds, spec, num_rows)), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(rows, graph.neighbors(seeds.repeat(2), spec, 0, 1), strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize(("method", "replace"), METHODS)
@pytest.mark.parametrize("damage", ["row", "offsets", "source", "negative source"])
def test_the_definition_refuses_in_the_same_words(method, replace, damage, use_isa):
    indptr = torch.tensor([0, 4, 7, 9])
    indices = torch.tensor([0, 1, 2, 1, 0, 2, 1, 2, 0], dtype=torch.int32)
    seeds = torch.tensor([0, 2], dtype=torch.int32)
    weights = torch.ones(9)
    edge_weights = EdgeWeights(weights, ops.alias_tables(indptr, weights, 1))
    if damage == "row":
        seeds[1] = 3
    elif damage == "offsets":
        indptr[3] = 6
    else:
        indices[:] = 3 if damage == "source" else -2
    graph = SamplingGraph(indptr, indices, weights=edge_weights)
    spec = SampleSpec(fanouts=(2, 2), replace=replace, method=method, num_threads=1)
    lines = set()
    for isa in ("scalar", "baseline"):
        use_isa(isa)
        with pytest.raises(ValueError, match="sample_mfg: ") as refused:
            graph.sample(seeds, spec, 0)
        lines.add(str(refused.value))
    assert len(lines) == 1
