"""Random small graphs, specs and batches: the kernels equal ops/reference exactly."""

import torch

from fastsample_dist import CSCGraph, NeighborSampler, ops
from fastsample_dist.ops import reference
from tests.ops.strategies import WEIGHTS, WORDS, edge_lists, graphs, some_seeds, specs
from tests.optional import given, settings, st


def same(left, right):
    return left.dtype == right.dtype and torch.equal(left, right)


def assert_equal(batch, hops, edge_ids):
    assert same(batch.input_nodes, hops.nodes)
    for mfg, indptr, indices, ids in zip(reversed(batch.mfgs), *hops[1:], strict=True):
        assert same(mfg.indptr, indptr) and same(mfg.indices, indices)
        assert same(mfg.edge_ids, ids) if edge_ids else mfg.edge_ids is None


@settings(max_examples=600, deadline=None)
@given(graph=graphs(), spec=specs(), step=WORDS, data=st.data())
def test_a_batch_equals_the_oracle(graph, spec, step, data):
    seeds = some_seeds(data, graph)
    batch = NeighborSampler.from_spec(graph, spec).sample(seeds, step)
    assert_equal(batch, reference.sample_mfg(graph, seeds, spec, step), spec.edge_ids)


@settings(max_examples=150, deadline=None)
@given(graph=graphs(), spec=specs(), step=st.integers(0, 2**62), data=st.data())
def test_many_batches_equal_the_oracle(graph, spec, step, data):
    lists = [some_seeds(data, graph) for _ in range(data.draw(st.integers(0, 5), label="num_batches"))]
    batches = NeighborSampler.from_spec(graph, spec).sample_many(lists, first_step=step)
    for i, (batch, seeds) in enumerate(zip(batches, lists, strict=True)):
        assert_equal(batch, reference.sample_mfg(graph, seeds, spec, step + i), spec.edge_ids)


@settings(max_examples=150, deadline=None)
@given(edges=edge_lists(), spec=specs(), step=WORDS, data=st.data())
def test_the_order_of_the_edge_list_never_changes_a_batch(edges, spec, step, data):
    """Parallel edges of different weights among them."""
    src, dst, num_nodes = edges
    weights = torch.tensor(WEIGHTS)[torch.arange(src.numel()) * 5 % len(WEIGHTS)]
    shuffled = torch.tensor(data.draw(st.permutations(range(src.numel())), label="edges"), dtype=torch.int64)
    one = CSCGraph.from_edge_index(src, dst, num_nodes, weights)
    other = CSCGraph.from_edge_index(src[shuffled], dst[shuffled], num_nodes, weights[shuffled])
    seeds = some_seeds(data, one)
    left, right = (NeighborSampler.from_spec(graph, spec).sample(seeds, step) for graph in (one, other))
    assert torch.equal(left.input_nodes, right.input_nodes)
    for a, b in zip(left.mfgs, right.mfgs, strict=True):
        assert torch.equal(a.indptr, b.indptr) and torch.equal(a.indices, b.indices)
        assert not spec.edge_ids or torch.equal(a.edge_ids, b.edge_ids)


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), num_threads=st.integers(1, 8))
def test_alias_tables_equal_the_oracle(graph, num_threads):
    tables = ops.alias_tables(graph.indptr, graph.weights, num_threads)
    table, num_positive = reference.alias_tables(graph.indptr, graph.weights)
    assert torch.equal(tables.table, table)
    assert torch.equal(graph.in_degrees() if tables.num_positive is None else tables.num_positive, num_positive)
