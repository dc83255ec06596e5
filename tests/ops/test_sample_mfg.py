"""sample_mfg and sample_neighbors against the oracle, and the contract: same seed, same sample, anywhere."""

import mmap
from itertools import pairwise

import pytest
import torch

from fastsample_dist import NeighborSampler, ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import reference
from tests.ops.graphs import random_csc
from tests.optional import stats

SEED, STEP = 2**40 + 7, 2**33 + 5  # both beyond 32 bits


def sample(graph, seeds, fanouts, step=STEP, **options):
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, **options)
    return ops.sample_mfg(graph.indptr, graph.indices, seeds, spec, step=step, orig_ids=graph.orig_ids)


def neighbors(graph, rows, spec, **options):
    return ops.sample_neighbors(graph.indptr, graph.indices, rows, spec, hop=0, **options)[1]


def same(left, right):
    lists = [([left.nodes], [right.nodes]), (left.indptrs, right.indptrs), (left.indices, right.indices)]
    if left.edge_ids:
        lists.append((left.edge_ids, right.edge_ids))
    flat = [pair for pairs in lists for pair in zip(*pairs, strict=True)]
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
    hops = sample(graph, seeds, (-1,), edge_ids=True)
    assert torch.equal(hops.indptrs[0], graph.indptr)
    assert torch.equal(hops.nodes[hops.indices[0]], graph.indices)
    assert torch.equal(hops.edge_ids[0], torch.arange(graph.num_edges))


def test_sample_mfg_equals_compact_of_sample_neighbors():
    graph, fanouts = random_csc(num_edges=3000), (5, 4, 3)
    seeds = torch.randperm(60)[:9].int()
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED)
    hops = sample(graph, seeds, fanouts)
    frontier = seeds
    for hop in range(3):
        indptr, picks, _ = ops.sample_neighbors(
            graph.indptr, graph.indices, frontier, spec, hop=hop, step=STEP, orig_ids=graph.orig_ids
        )
        frontier, local = ops.compact(frontier, picks)
        assert torch.equal(indptr, hops.indptrs[hop]) and torch.equal(local, hops.indices[hop])
    assert torch.equal(frontier, hops.nodes)


@pytest.mark.parametrize(
    "options",
    [
        {"fanouts": (7, 5)},
        {"fanouts": (7, 5), "replace": True},
        {"fanouts": (-1,)},
        {"fanouts": (40, 2)},
        {"fanouts": (7, 5), "method": "weighted"},
        {"fanouts": (7, 5), "method": "weighted", "replace": True},
        {"fanouts": (40,), "method": "weighted"},
        {"fanouts": (7, 5), "method": "labor"},
    ],
    ids=str,
)
def test_thread_count_never_changes_a_sample(options):
    """Enough rows for eight threads, a table that grows on the way, and a sum tree now and then."""
    drawn = random_csc(num_nodes=9000, num_edges=200_000)
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(drawn.num_edges, generator=generator) ** 40  # some rows have all their weight in few edges
    graph = CSCGraph(drawn.indptr, drawn.indices, weights, drawn.orig_ids)
    seeds = torch.randperm(9000, generator=generator)[:5000].int()

    def run(num_threads):
        spec = ops.SampleSpec(rng_seed=SEED, num_threads=num_threads, edge_ids=True, **options)
        hops = NeighborSampler.from_spec(graph, spec).sample(seeds, STEP)
        return [(mfg.indptr, mfg.indices, mfg.src_nodes, mfg.edge_ids) for mfg in hops.mfgs]

    one = run(1)
    for num_threads in range(2, 9):
        assert all(
            torch.equal(a, b) for left, right in zip(one, run(num_threads), strict=True)
            for a, b in zip(left, right, strict=True)
        )  # fmt: skip


def test_a_batch_is_the_union_of_its_halves():
    """Splitting the seeds changes no pick: the rows of the seed hop are those of the two halves."""
    graph, seeds = random_csc(num_edges=3000), torch.randperm(60)[:20].int()
    whole, left, right = (sample(graph, part, (5,)) for part in (seeds, seeds[:12], seeds[12:]))

    def rows(hops):
        return hops.nodes[hops.indices[0]]

    assert torch.equal(rows(whole), torch.cat([rows(left), rows(right)]))


@pytest.mark.parametrize("hop", [-1, 2, 1.5])
def test_a_hop_without_a_fanout_is_refused(hop):
    graph = random_csc()
    with pytest.raises(ValueError, match=f"hop is {hop}; expected an integer from 0 to 1"):
        ops.sample_neighbors(graph.indptr, graph.indices, graph.indices[:2], ops.SampleSpec(fanouts=(3, 2)), hop=hop)


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
    row = together.indices[0][int(together.indptrs[0][1]) : int(together.indptrs[0][2])]
    assert torch.equal(together.nodes[row], alone.nodes[alone.indices[0]])


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
        picks = neighbors(graph, row, spec, step=step)
        counts[picks.long() - 1] += 1
    expected = trials * fanout / degree
    statistic = float(((counts - expected) ** 2 / expected).sum()) * (degree - 1) / (degree - fanout)
    assert 1e-6 / 2 < stats.chi2.sf(statistic, degree - 1) < 1 - 1e-6 / 2


def test_neighbours_are_distinct_without_replacement():
    graph = random_csc(num_edges=6000)
    unique = CSCGraph(graph.indptr, torch.arange(graph.num_edges, dtype=torch.int32), orig_ids=graph.orig_ids)
    spec = ops.SampleSpec(fanouts=(50,), rng_seed=1)
    rows = torch.arange(45, dtype=torch.int32)
    indptr, picks, _ = ops.sample_neighbors(unique.indptr, unique.indices, rows, spec, hop=0)
    assert all(len(set(r)) == len(r) for r in (picks[a:b].tolist() for a, b in pairwise(indptr)))


@pytest.mark.parametrize("fanouts", [(3, 2), ()])
def test_empty_seeds_give_an_empty_batch(fanouts):
    hops = sample(random_csc(), torch.empty(0, dtype=torch.int32), fanouts)
    assert hops.nodes.numel() == 0 and [p.tolist() for p in hops.indptrs] == [[0]] * len(fanouts)
    assert all(edges.numel() == 0 for edges in hops.indices)


def test_one_node_without_neighbours():
    graph = CSCGraph(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32))
    hops = sample(graph, torch.tensor([0], dtype=torch.int32), (5, 5))
    assert hops.nodes.tolist() == [0] and [p.tolist() for p in hops.indptrs] == [[0, 0], [0, 0]]


def test_a_row_beyond_2_to_the_31_edges_is_read_by_64_bit_offsets():
    """An array of 2**31 + 8 edges over untouched zero pages: only the pages that are read or written exist."""
    num_edges = 2**31 + 8
    indices = torch.frombuffer(mmap.mmap(-1, num_edges * 4), dtype=torch.int32)
    indices[-4:] = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    indptr = torch.tensor([0, 0, num_edges - 4, num_edges, num_edges, num_edges])
    rows = torch.tensor([2], dtype=torch.int32)
    graph = CSCGraph(indptr, indices)
    spec = ops.SampleSpec(fanouts=(4,), edge_ids=True)
    hops = ops.sample_mfg(indptr, indices, rows, spec)
    assert neighbors(graph, rows, spec).tolist() == [1, 2, 3, 4] and hops.nodes.tolist() == [2, 1, 3, 4]
    assert hops.edge_ids[0].tolist() == list(range(num_edges - 4, num_edges))


def test_a_row_of_more_than_2_to_the_31_edges_is_drawn_from_evenly():
    """Node 1 has 2**31 + 8 in-edges, all from node 0 but a few: positions run over the whole row (32 bits of them
    would end at half of it). 4,000 picks in 8 slices of the row, chi-square, false-alarm rate 1e-6."""
    num_edges = 2**31 + 8
    indices = torch.frombuffer(mmap.mmap(-1, num_edges * 4), dtype=torch.int32)
    graph = CSCGraph(torch.tensor([0, 0, num_edges]), indices)
    row = torch.tensor([1], dtype=torch.int32)
    slices = torch.zeros(8)
    for step in range(200):
        spec = ops.SampleSpec(fanouts=(20,), edge_ids=True)
        ids = ops.sample_neighbors(graph.indptr, graph.indices, row, spec, hop=0, step=step)[2]
        assert len(set(ids.tolist())) == 20 and int(ids.min()) >= 0 and int(ids.max()) < num_edges
        slices += torch.bincount(ids * 8 // num_edges, minlength=8)
    assert stats.chi2.sf(float(((slices - 500) ** 2 / 500).sum()), 7) > 1e-6


def test_tensors_outlive_the_batch_they_came_from():
    nodes = sample(random_csc(), torch.arange(20, dtype=torch.int32), (5, 5)).nodes
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


def test_ids_on_a_device_that_does_not_sample_are_refused():
    csc, spec = random_csc(), ops.SampleSpec(fanouts=(2,))
    graph, ids = ops.SamplingGraph(csc.indptr, csc.indices), torch.tensor([3], dtype=torch.int32, device="meta")
    for call in (
        lambda: graph.sample(ids, spec, 0),
        lambda: graph.sample_many([ids], spec, 0),
        lambda: NeighborSampler(csc, [2]).sample(ids),
    ):
        with pytest.raises(ValueError, match=r"^seeds is on meta but cpu samples; pass seeds.cpu\(\)\.$"):
            call()
    with pytest.raises(ValueError, match="rows is on meta but cpu samples"):
        graph.neighbors(ids, spec, 0, 0)
    with pytest.raises(ValueError, match="nodes is on meta but cpu samples"):
        graph.induced(ids, False, 1)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_graph_on_a_device_that_does_not_sample_is_refused(place):
    csc = random_csc()
    arrays = [csc.indptr, csc.indices, torch.arange(csc.num_nodes)]
    arrays[place] = arrays[place].to("meta")
    graph, seeds = ops.SamplingGraph(*arrays), torch.tensor([3], dtype=torch.int32)
    for call in (
        lambda: graph.sample(seeds, ops.SampleSpec(fanouts=(2,)), 0),
        lambda: graph.induced(seeds, False, 1),
        lambda: ops.sample_pinsage(graph, ops.PinSAGERule(), [seeds]),
    ):
        with pytest.raises(ValueError, match="the graph has an array on meta; expected host memory: move it there"):
            call()


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
        ({"fanouts": (1,), "method": "metropolis"}, "method is 'metropolis'; expected 'uniform', 'weighted' or"),
        ({"fanouts": (1,), "method": "labor", "replace": True}, "takes every edge at most once, but replace is True"),
        ({"fanouts": (1,), "layer_dependency": True}, "method 'uniform' has no variates to share"),
    ],
)
def test_a_wrong_spec_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ops.SampleSpec(**options)
