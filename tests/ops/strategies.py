"""Drawn graphs, specs and batches for the tests of samplers (hypothesis)."""

import torch

from fastsample_dist import CSCGraph, ops
from tests.optional import st

WEIGHTS = (0.0, 1e-12, 1e-3, 0.5, 1.0, 1.0, 3.0, 1e6)
WORDS = st.integers(0, 2**63 - 1)
FANOUTS = st.sampled_from([2, 3, 1, 5, 8, 13, 0]) | st.integers(0, 40)
METHODS = st.sampled_from(["uniform", "weighted", "labor"])


@st.composite
def edge_lists(draw):
    """(src, dst, num_nodes): parallel edges and self-loops; some rows long, some empty."""
    num_nodes = draw(st.sampled_from([12, 30, 60, 12, 30, 5, 2, 1]))
    generator = torch.Generator().manual_seed(draw(WORDS))
    num_edges = num_nodes * draw(st.sampled_from([8, 4, 16, 8, 4, 1, 0]))
    src = torch.randint(0, num_nodes, (num_edges,), generator=generator)
    spread = draw(st.sampled_from([1.0, 3.0]))  # above 1: the first nodes have most of the edges
    dst = (torch.rand(num_edges, generator=generator, dtype=torch.float64) ** spread * num_nodes).long()
    return src, dst, num_nodes


@st.composite
def graphs(draw):
    """Any CSC graph: ids of 32 or 64 bits, weights of two types with zeros and extremes, far apart original ids."""
    src, dst, num_nodes = draw(edge_lists())
    generator = torch.Generator().manual_seed(draw(WORDS))
    choice = torch.randint(0, len(WEIGHTS), (src.numel(),), generator=generator)
    weights = torch.tensor(WEIGHTS, dtype=draw(st.sampled_from([torch.float32, torch.float64])))[choice]
    graph = CSCGraph.from_edge_index(src, dst, num_nodes, weights)
    orig_ids = None
    if draw(st.booleans()):
        orig_ids = torch.randperm(num_nodes, generator=generator) * draw(st.sampled_from([1, 2**33 + 1, 2**57]))
    indices = graph.indices.to(draw(st.sampled_from([torch.int32, torch.int64])))
    return CSCGraph(graph.indptr, indices, graph.weights, orig_ids)


@st.composite
def specs(draw):
    """Any SampleSpec."""
    method = draw(METHODS)
    replace = method != "labor" and draw(st.booleans())
    fanout = FANOUTS if replace else FANOUTS | st.just(-1)
    return ops.SampleSpec(
        fanouts=tuple(draw(st.lists(fanout, min_size=1, max_size=3))),
        replace=replace,
        rng_seed=draw(WORDS),
        num_threads=draw(st.integers(1, 8)),
        method=method,
        layer_dependency=method == "labor" and draw(st.booleans()),
        edge_ids=draw(st.booleans()),
    )


def some_seeds(data, graph):
    order = data.draw(st.permutations(range(graph.num_nodes)), label="order")
    count = data.draw(st.sampled_from([5, 12, 5, 12, 2, 1, 0]), label="num_seeds")
    return torch.tensor(order[:count], dtype=graph.indices.dtype)
