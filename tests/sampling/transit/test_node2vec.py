"""node2vec's kernel against its definition bit for bit, and its law: every (t, v) -> u.

The definition is Node2Vec.next run by plain Python; the kernel is called through ops.transit_sample alone.
"""

from itertools import pairwise, product

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import reference
from fastsample_dist.ops.reference.streams import TRANSIT
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest, transit_sample
from fastsample_dist.ops.transit_tables import TableNeeds, TransitTables
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import plain
from fastsample_dist.testing.statistics import Evidence, pearson_p
from tests.ops.graphs import random_csc
from tests.ops.strategies import graphs
from tests.optional import given, settings, st
from tests.sampling.transit.apps import small_graph

NULL = transit.NULL
FALSE_ALARM = 1e-6
SETS = ("scalar", "baseline", "avx2", "avx512")
FACTORS = ((2.0, 0.5), (0.5, 2.0), (1.0, 1.0), (0.25, 4.0), (4.0, 4.0), (1.0, 3.0), (0.05, 1.0))
BOTH = pytest.mark.parametrize("weighted", [False, True], ids=["uniform", "weighted"])
KEY = {"rng_seed": 2**63 + 5, "step": 2**33 + 1}


@pytest.fixture(autouse=True)
def keep_the_set():
    before = ops.isa()
    yield
    ops.set_isa(before)


def sets_here():
    found = []
    for name in SETS:
        try:
            ops.set_isa(name)
        except ValueError:
            continue
        found.append(name)
    return found


class Kernel:
    """Node2Vec on a graph, by the core."""

    def __init__(self, graph, app):
        weighted = app.weighted(graph)
        self.app, self.params = app, transit.bind(app, graph).par.words()
        self.tables = TransitTables(
            graph.indptr, graph.indices, graph.weights, TableNeeds(weighted=weighted, edge_queries=True)
        )

    def walks(self, roots, sample_ids=None, **how):
        steps = self.app.steps()
        app = IndividualApp([1] * steps, [1] * steps, 1, NextKind.NODE2VEC, self.params)
        roots = torch.as_tensor(roots, dtype=torch.int64).reshape(-1, 1)
        return transit_sample(self.tables, app, roots, sample_ids, TransitRequest(**how)).vertices


def with_weights(graph, seed=3):
    """Weights of which some are 0."""
    drawn = torch.rand(graph.indices.numel(), generator=torch.Generator().manual_seed(seed))
    return CSCGraph(graph.indptr, graph.indices, torch.where(drawn < 0.2, 0.0, drawn), graph.orig_ids)


def hub_graph(weighted, dtype=torch.int32):
    """Rows on both sides of 16 neighbours; parallel edges, self-loops, nodes without neighbours."""
    graph = random_csc(num_nodes=70, num_edges=1500, seed=2, dtype=dtype)
    return with_weights(graph) if weighted else graph


def assert_is_defined(graph, app, roots, sample_ids=None, **how):
    expected = plain.sample(graph, app, roots, sample_ids=sample_ids, **KEY).vertices
    assert torch.equal(Kernel(graph, app).walks(roots, sample_ids, **KEY, **how), expected)


@BOTH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("p", "q"), FACTORS)
def test_equals_the_definition(p, q, dtype, weighted):
    assert_is_defined(hub_graph(weighted, dtype), transit.Node2Vec(6, p=p, q=q), torch.arange(70).repeat(3))


@BOTH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dead_ends_self_loops_and_parallel_edges(dtype, weighted):
    """Of small_graph: a root without neighbours, rows of zero weights, short rows only; a root that is NULL."""
    graph = small_graph(weighted, dtype)
    assert_is_defined(graph, transit.Node2Vec(9), torch.tensor([NULL, *range(12)] * 20))


@pytest.mark.parametrize("name", SETS)
@BOTH
def test_every_instruction_set_gives_the_same_walks(name, weighted):
    if name not in sets_here():
        pytest.skip(f"this processor has no {name}")
    graph, app, roots = hub_graph(weighted), transit.Node2Vec(8, p=0.5, q=3.0), torch.arange(70).repeat(2)
    ops.set_isa(name)
    assert_is_defined(graph, app, roots)


@BOTH
def test_sets_threads_blocks_and_schedules_change_nothing(weighted):
    graph = hub_graph(weighted)
    kernel = Kernel(graph, transit.Node2Vec(12, p=0.3, q=2.0))
    roots = torch.arange(70).repeat(150)  # more than are gathered at a time
    ids = torch.randperm(roots.numel(), generator=torch.Generator().manual_seed(0)) * 2**40
    ops.set_isa("scalar")
    expected = kernel.walks(roots, ids, num_threads=1, **KEY)
    for name, (threads, block, schedule) in product(
        sets_here(), [(1, 10**6, "sample"), (2, 4096, "auto"), (5, 1, "sample"), (5, 129, "auto"), (2, 0, "transit")]
    ):
        ops.set_isa(name)
        found = kernel.walks(roots, ids, num_threads=threads, block_samples=block, schedule=schedule, **KEY)
        assert torch.equal(found, expected), (name, threads, block, schedule)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_equals_the_definition_on_any_graph(data):
    graph = data.draw(graphs())
    p, q = data.draw(st.sampled_from(FACTORS), label="p, q")
    app = transit.Node2Vec(data.draw(st.integers(0, 5)), p=p, q=q, weighted=data.draw(st.booleans()))
    roots = data.draw(st.lists(st.integers(-1, graph.num_nodes - 1), max_size=20), label="roots")
    assert_is_defined(graph, app, torch.tensor(roots, dtype=torch.int64).reshape(-1, 1), block_samples=7)


def test_a_word_that_lemire_refuses_is_drawn_again():
    """Of 3 * 2^22 neighbours one word in 1024 is refused."""
    degree = 3 * 2**22
    indptr = torch.tensor([0, degree, degree + 1])
    indices = torch.randint(0, 2, (degree + 1,), generator=torch.Generator().manual_seed(0)).int()
    walks = Kernel(CSCGraph(indptr, indices), transit.Node2Vec(1, weighted=False)).walks([0] * 4000, rng_seed=1)
    key = reference.stage_key(1, TRANSIT, 0, 0)
    refused = [i for i in range(4000) if next(reference.node_words(key, i, 0)) * degree % 2**32 < 2**32 % degree]
    assert len(refused) > 1
    expected = [int(indices[reference.below(reference.node_words(key, i, 0), degree)]) for i in refused]
    assert walks[refused, 1].tolist() == expected


@BOTH
def test_the_law_of_every_transition(weighted):
    """All (t, v) -> u of a 12-node graph, positions counted each and membership by id: 1e-6 over all of them."""
    graph = small_graph(weighted)
    weights = graph.weights.double().tolist() if weighted else [1.0] * graph.indices.numel()
    bounds, ids = graph.indptr.tolist(), graph.indices.tolist()
    rows = [list(zip(ids[lo:hi], weights[lo:hi], strict=True)) for lo, hi in pairwise(bounds)]
    evidence = Evidence(FALSE_ALARM)
    for p, q in ((2.0, 0.5), (0.25, 4.0), (1.0, 3.0)):
        walks = Kernel(graph, transit.Node2Vec(8, p=p, q=q)).walks(torch.arange(12).repeat(20_000), rng_seed=7)
        triples = torch.stack([walks[:, :-2], walks[:, 1:-1], walks[:, 2:]]).flatten(1)
        t, v, u = triples[:, triples[1] >= 0]
        counts = torch.bincount((t * 12 + v) * 13 + (u + 1), minlength=12 * 12 * 13).view(12, 12, 13)
        for t, v in product(range(12), repeat=2):
            found = counts[t, v].tolist()
            if sum(found) == 0:
                assert all(node != v or weight == 0 for node, weight in rows[t])
                continue
            mass = [0.0] * 13
            for node, weight in rows[v]:
                near = node in [neighbor for neighbor, _ in rows[t]]
                mass[node + 1] += weight * (1 / p if node == t else 1.0 if near else 1 / q)
            mass[0] = 1.0 if sum(mass) == 0 else 0.0
            expected = [sum(found) * share / sum(mass) for share in mass]
            assert all(mean > 0 for count, mean in zip(found, expected, strict=True) if count > 0), (t, v, found)
            evidence.add(pearson_p(found, expected), lambda at=(p, q, t, v): f"p, q, t, v = {at}")
    assert evidence.count > 50
    evidence.decide()


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("threshold", [0, 2**32 + 1, -1])
def test_refuses_thresholds_that_never_accept_or_are_none(place, threshold):
    kernel = Kernel(small_graph(False), transit.Node2Vec(2))
    kernel.params = kernel.params.copy()
    kernel.params[place] = threshold
    with pytest.raises(ValueError, match=f"threshold {threshold} of node2vec; expected 1 to 2\\^32"):
        kernel.walks([1])


def test_refuses_to_walk_without_hashed_rows():
    graph = small_graph(False)
    kernel = Kernel(graph, transit.Node2Vec(2))
    kernel.tables = TransitTables(graph.indptr, graph.indices)
    with pytest.raises(ValueError, match="edge queries without hashed rows"):
        kernel.walks([1])
