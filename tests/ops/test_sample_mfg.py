"""sample_mfg and sample_neighbors against the oracle, and the contract: same seed, same sample, anywhere."""

import mmap
from itertools import pairwise

import pytest
import torch
from scipy import stats

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import reference
from tests.ops.graphs import random_csc

SEED, STEP = 2**40 + 7, 2**33 + 5  # both beyond 32 bits


def sample(graph, seeds, fanouts, step=STEP, **options):
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, **options)
    return ops.sample_mfg(graph.indptr, graph.indices, seeds, spec, step=step, orig_ids=graph.orig_ids)


def same(left, right):
    flat = [(left[0], right[0]), *zip(left[1], right[1], strict=True), *zip(left[2], right[2], strict=True)]
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in flat)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [(3,), (3, 5, 2), (10, 0, 4), (40, 40), (64, 2)])
def test_sample_mfg_equals_the_oracle(dtype, replace, fanouts):
    graph = random_csc(dtype=dtype, num_edges=4000)
    seeds = torch.randperm(60)[:15].to(dtype)
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, replace=replace)
    assert same(sample(graph, seeds, fanouts, replace=replace), reference.sample_mfg(graph, seeds, spec, STEP))


def test_take_all_lists_every_neighbour_in_canonical_order():
    graph = random_csc()
    seeds = torch.arange(60, dtype=torch.int32)
    nodes, indptrs, indices = sample(graph, seeds, (-1,))
    assert torch.equal(indptrs[0], graph.indptr)
    assert torch.equal(nodes[indices[0]], graph.indices)


def test_sample_mfg_equals_compact_of_sample_neighbors():
    graph, fanouts = random_csc(num_edges=3000), (5, 4, 3)
    seeds = torch.randperm(60)[:9].int()
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED)
    nodes, indptrs, indices = sample(graph, seeds, fanouts)
    frontier = seeds
    for hop in range(3):
        indptr, neighbors = ops.sample_neighbors(
            graph.indptr, graph.indices, frontier, spec, hop=hop, step=STEP, orig_ids=graph.orig_ids
        )
        frontier, local = ops.compact(frontier, neighbors)
        assert torch.equal(indptr, indptrs[hop]) and torch.equal(local, indices[hop])
    assert torch.equal(frontier, nodes)


def test_thread_count_never_changes_a_sample():
    graph = random_csc(num_nodes=5000, num_edges=100_000)
    seeds = torch.randperm(5000)[:3000].int()
    one = sample(graph, seeds, (7, 5), num_threads=1)
    assert all(same(one, sample(graph, seeds, (7, 5), num_threads=n)) for n in (2, 3, 8))


def test_a_draw_depends_on_step_hop_and_seed():
    graph = random_csc(num_edges=6000)
    seeds = torch.arange(10, dtype=torch.int32)
    spec = ops.SampleSpec(fanouts=(4, 4), rng_seed=SEED)

    def picks(spec=spec, hop=0, step=0):
        return ops.sample_neighbors(graph.indptr, graph.indices, seeds, spec, hop=hop, step=step)[1].tolist()

    other_seed = ops.SampleSpec(fanouts=(4, 4), rng_seed=SEED + 1)
    assert len({tuple(p) for p in (picks(), picks(hop=1), picks(step=1), picks(step=2**32), picks(other_seed))}) == 5


def test_a_draw_does_not_depend_on_the_other_seeds():
    graph = random_csc(num_edges=3000)
    alone = sample(graph, torch.tensor([7], dtype=torch.int32), (5,))
    together = sample(graph, torch.tensor([3, 7, 9], dtype=torch.int32), (5,))
    row = together[2][0][int(together[1][0][1]) : int(together[1][0][2])]
    assert torch.equal(together[0][row], alone[0][alone[2][0]])


@pytest.mark.parametrize("fanout", [1, 2, 5, 40])
def test_inclusion_is_uniform(fanout):
    """Chi-square over 41 neighbours and 4,000 steps; false-alarm rate 1e-6 per case. Draws of one step exclude each
    other, which lowers the variance: without replacement the statistic is scaled by (d - 1) / (d - fanout)."""
    degree, trials = 41, 4000
    indptr = torch.tensor([0, degree] + [degree] * degree)
    graph = CSCGraph(indptr, torch.arange(1, degree + 1, dtype=torch.int32))
    spec = ops.SampleSpec(fanouts=(fanout,), rng_seed=11)
    counts = torch.zeros(degree)
    for step in range(trials):
        row = torch.zeros(1, dtype=torch.int32)
        picks = ops.sample_neighbors(graph.indptr, graph.indices, row, spec, hop=0, step=step)[1]
        counts[picks.long() - 1] += 1
    expected = trials * fanout / degree
    statistic = float(((counts - expected) ** 2 / expected).sum()) * (degree - 1) / (degree - fanout)
    assert 1e-6 / 2 < stats.chi2.sf(statistic, degree - 1) < 1 - 1e-6 / 2


def test_neighbours_are_distinct_without_replacement():
    graph = random_csc(num_edges=6000)
    unique = CSCGraph(graph.indptr, torch.arange(graph.num_edges, dtype=torch.int32), orig_ids=graph.orig_ids)
    spec = ops.SampleSpec(fanouts=(50,), rng_seed=1)
    rows = torch.arange(45, dtype=torch.int32)
    indptr, picks = ops.sample_neighbors(unique.indptr, unique.indices, rows, spec, hop=0)
    assert all(len(set(r)) == len(r) for r in (picks[a:b].tolist() for a, b in pairwise(indptr)))


@pytest.mark.parametrize("fanouts", [(3, 2), ()])
def test_empty_seeds_give_an_empty_batch(fanouts):
    nodes, indptrs, indices = sample(random_csc(), torch.empty(0, dtype=torch.int32), fanouts)
    assert nodes.numel() == 0 and [p.tolist() for p in indptrs] == [[0]] * len(fanouts)
    assert all(edges.numel() == 0 for edges in indices)


def test_one_node_without_neighbours():
    graph = CSCGraph(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32))
    nodes, indptrs, _ = sample(graph, torch.tensor([0], dtype=torch.int32), (5, 5))
    assert nodes.tolist() == [0] and [p.tolist() for p in indptrs] == [[0, 0], [0, 0]]


def test_a_row_beyond_2_to_the_31_edges_is_read_by_64_bit_offsets():
    """An array of 2**31 + 8 edges over untouched zero pages: only the pages that are read or written exist."""
    num_edges = 2**31 + 8
    indices = torch.frombuffer(mmap.mmap(-1, num_edges * 4), dtype=torch.int32)
    indices[-4:] = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    indptr = torch.tensor([0, 0, num_edges - 4, num_edges, num_edges, num_edges])
    rows = torch.tensor([2], dtype=torch.int32)
    picks = ops.sample_neighbors(indptr, indices, rows, ops.SampleSpec(fanouts=(4,)), hop=0)[1]
    nodes, _, _ = ops.sample_mfg(indptr, indices, rows, ops.SampleSpec(fanouts=(4,)))
    assert picks.tolist() == [1, 2, 3, 4] and nodes.tolist() == [2, 1, 3, 4]


def test_tensors_outlive_the_batch_they_came_from():
    nodes, _, _ = sample(random_csc(), torch.arange(20, dtype=torch.int32), (5, 5))
    kept, copy = nodes[5:], nodes[5:].clone()
    del nodes
    for _ in range(50):
        sample(random_csc(), torch.arange(20, dtype=torch.int32), (5, 5))
    assert torch.equal(kept, copy)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([3, 5, 3], "holds node 3 at positions 0 and 2; expected each seed once"),
        ([60], "node id 60 is outside 0 to 59"),
        ([-1], "seed -1 at position 0 is negative"),
    ],
)
def test_bad_seeds_are_refused(seeds, message):
    with pytest.raises(ValueError, match=message):
        sample(random_csc(), torch.tensor(seeds, dtype=torch.int32), (2,))


def test_seeds_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match=r"seeds is torch.int64 but indices is torch.int32"):
        sample(random_csc(), torch.tensor([1]), (2,))


@pytest.mark.parametrize("bad", [77, -4])
def test_a_damaged_graph_is_refused_not_followed(bad):
    graph = CSCGraph(torch.tensor([0, 1, 1]), torch.tensor([bad], dtype=torch.int32))
    with pytest.raises(ValueError, match=f"the graph holds the (negative )?source id {bad}"):
        sample(graph, torch.tensor([0], dtype=torch.int32), (1,))


def test_decreasing_offsets_are_refused():
    graph = CSCGraph(torch.tensor([0, 9, 4]), torch.zeros(4, dtype=torch.int32))
    with pytest.raises(ValueError, match="indptr of node 0 runs from 0 to 9"):
        sample(graph, torch.tensor([0], dtype=torch.int32), (1,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": (-2,)}, "fanouts holds -2"),
        ({"fanouts": (-1,), "replace": True}, "cannot be drawn with replacement"),
        ({"fanouts": (1,), "rng_seed": -1}, "rng_seed is -1"),
        ({"fanouts": (1,), "num_threads": 0}, "num_threads is 0"),
    ],
)
def test_a_wrong_spec_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ops.SampleSpec(**options)
