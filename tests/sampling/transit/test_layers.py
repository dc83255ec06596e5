"""Collective applications: compiled = plain Python bit for bit; laws, edges and coefficients by dense definitions."""

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import reference
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.engines import BUILT_IN, forms_of, make_engine
from fastsample_dist.sampling.transit.sampler import TransitSampler
from fastsample_dist.testing.graphs import relabelled
from fastsample_dist.testing.statistics import Evidence, pearson_p, tail_bound
from tests.grids import grid
from tests.sampling.transit.apps import small_graph

FALSE_ALARM = 1e-6
APPS = {
    "layer": lambda: transit.Layer(20, 5),
    "fastgcn": lambda: transit.FastGCN((4, 4)),
    "fastgcn without replacement": lambda: transit.FastGCN((4, 3), replace=False),
    "ladies": lambda: transit.LADIES((3, 3)),
    "ladies of all": lambda: transit.LADIES((30, 1, 5)),
    "clusters": lambda: transit.ClusterGCN([0, 1, 2] * 4, 2),
}
IDS = torch.tensor([3, 2**40, 7, 0])
MFG_COLUMNS = ("indptr", "indices", "src_nodes", "edge_ids", "edge_weights")


def assert_same(found, expected):
    assert len(found.steps) == len(expected.steps) and torch.equal(found.vertices, expected.vertices)
    assert (found.mfgs_of_sample is None) == (expected.mfgs_of_sample is None)
    for own, other in zip(found.mfgs_of_sample or [], expected.mfgs_of_sample or [], strict=True):
        for mfg, wanted in zip(own, other, strict=True):
            assert (mfg.num_dst, mfg.includes_dst) == (wanted.num_dst, wanted.includes_dst)
            for name in MFG_COLUMNS:
                a, b = getattr(mfg, name), getattr(wanted, name)
                assert (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and torch.equal(a, b))), name


def roots_of(bound, key, width=4):
    if isinstance(bound.app, transit.ClusterGCN):
        return bound.roots(bound.app.initial_roots(bound.graph, IDS, key.rng_seed, key.step))
    drawn = torch.randint(-1, bound.graph.num_nodes, (4, width), generator=torch.Generator().manual_seed(key.step))
    drawn[3] = -1  # a sample without roots
    return drawn


def compare(app, graph, steps=3, width=4, form=BUILT_IN):
    bound = transit.bind(app, graph)
    engine = make_engine(bound, form)
    for step in range(steps):
        key = DrawKey(2**40 + 5, step)
        roots = roots_of(bound, key, width)
        expected = plain.run(bound, roots, IDS, key)
        for threads in (1, 2, 5):
            assert_same(engine.sample(roots, IDS, key, Run(threads)), expected)


@pytest.mark.parametrize("dtype", grid([torch.int32, torch.int64], gate=[torch.int32]))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", APPS)
def test_compiled_samples_are_those_of_plain_python(name, weighted, dtype):
    app = APPS[name]()
    assert forms_of(transit.bind(app, small_graph()))[0] == BUILT_IN
    compare(app, small_graph(weighted, dtype))


def hub_graph(seed=0, num_nodes=900, weighted=False):
    """A hub that all nodes lead to, some of them twice, among short rows; relabelled at random."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, num_nodes, (2, 4 * num_nodes), generator=generator)
    src, dst = (
        torch.cat([src, torch.arange(num_nodes), torch.arange(0, num_nodes, 3)]),
        torch.cat([dst, torch.full((num_nodes + -(-num_nodes // 3),), 7)]),
    )
    weights = torch.rand(src.numel(), generator=generator) if weighted else None
    return relabelled(CSCGraph.from_edge_index(src, dst, num_nodes, weights), 5)[0]


@pytest.mark.parametrize("isa", grid(["avx512", "avx2", "baseline"], gate=["avx512", "baseline"]))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", ["ladies", "fastgcn"])
def test_long_rows_and_every_instruction_set(name, weighted, isa):
    """The hub's row is searched for few sources and scanned for many; races leave most candidates to the filter."""
    before = ops.isa()
    try:
        ops.set_isa(isa)
    except ValueError:
        pytest.skip(f"the processor lacks {isa}")
    try:
        graph = hub_graph(weighted=weighted)
        app = {"ladies": transit.LADIES, "fastgcn": transit.FastGCN}[name]((10, 6), weighted)
        bound = transit.bind(app, graph)
        hub = int((graph.in_degrees() > 900).nonzero())
        roots = torch.randint(0, 900, (6, 3), generator=torch.Generator().manual_seed(1))
        roots[:, 1] = hub
        ids, engine = torch.arange(6), make_engine(bound, BUILT_IN)
        for step in range(2):
            key = DrawKey(1, step)
            assert_same(engine.sample(roots, ids, key, Run(2)), plain.run(bound, roots, ids, key))
    finally:
        ops.set_isa(before)


def test_races_that_end_long_before_or_behind_those_of_the_samples_before():
    """A thread's races begin with a limit that it has from those before: too early by a factor of 3 or of thousands (it
    is moved, then lifted), or too late by as much. The hub's columns weigh little, so that their race ends late.
    """
    graph = hub_graph()
    bound = transit.bind(transit.LADIES((10, 6)), graph)
    hub, key = int((graph.in_degrees() > 900).nonzero()), DrawKey(1, 4)
    short, one, late = (3, 200, 500), (3, -1, -1), (hub, -1, -1)
    roots = torch.tensor([short] * 4 + [one] * 2 + [short] * 4 + [late] * 3 + [short, one])
    ids, engine = torch.arange(len(roots)), make_engine(bound, BUILT_IN)
    assert_same(engine.sample(roots, ids, key, Run(1)), plain.run(bound, roots, ids, key))


@pytest.mark.parametrize("weighted", [True, False])
def test_rows_too_long_to_be_linked_are_searched(weighted):
    """Three hubs of 4200 in-neighbours, one of them with parallel edges and a self-loop more than the others."""
    generator = torch.Generator().manual_seed(4)
    num_nodes, hubs = 4200, 3
    src, dst = torch.randint(0, num_nodes, (2, 4000), generator=generator)
    src = torch.cat([src, torch.arange(num_nodes).repeat(hubs), torch.arange(0, 90, 3), torch.tensor([1])])
    dst = torch.cat([dst, torch.arange(hubs).repeat_interleave(num_nodes), torch.full((31,), 1)])
    weights = torch.rand(src.numel(), generator=generator) if weighted else None
    graph = CSCGraph.from_edge_index(src, dst, num_nodes, weights)
    bound, roots = transit.bind(transit.LADIES((25, 300)), graph), torch.tensor([[2, 300, 1, 40]])
    engine, ids, key = make_engine(bound, BUILT_IN), torch.tensor([2**40]), DrawKey(1, 3)
    assert_same(engine.sample(roots, ids, key, Run(1)), plain.run(bound, roots, ids, key))


def test_rows_of_the_hop_before_are_extended_by_fresh_sources_alone():
    """500 nodes of ids up to 60000 in rows of about 100: some share a value of the hash that passes over neighbours,
    and a known source must not be found again where a fresh one is sought.
    """
    generator = torch.Generator().manual_seed(3)
    nodes = torch.randperm(60000, generator=generator)[:500]
    src, dst = nodes[torch.randint(0, 500, (2, 50000), generator=generator)]
    bound = transit.bind(transit.LADIES((60, 60, 60, 60)), CSCGraph.from_edge_index(src, dst, 60000))
    engine, ids = make_engine(bound, BUILT_IN), torch.arange(2)
    roots = nodes[torch.randint(0, 500, (2, 8), generator=generator)]
    key = DrawKey(1, 2)
    assert_same(engine.sample(roots, ids, key, Run(1)), plain.run(bound, roots, ids, key))


class Importance(transit.App):
    """A user's own: two of the first arrivals, or the source of an edge; edges with the columns' weights."""

    sampling_type, record, self_edges = transit.COLLECTIVE, "to_union", True
    needs = transit.needs(race="squared", edge_queries=True)

    def steps(self):
        return 2

    def sample_size(self, step):
        return 4

    def unique(self, step):
        return True

    def next(s, transits, edges, step, draw, par):
        if draw.index < 2:
            return edges.ranked(draw.index)
        if len(edges) == 0:
            return transits[0]
        i = draw.below(len(edges))
        u = edges[i]
        if s.row(transits[edges.transit_of(i)]).has(u) and edges.weight(i) >= 0.0:
            return u
        return transit.NULL

    def edge_weights(self, edges):
        return torch.from_numpy(edges.values + edges.columns * edges.times_picked())


class Within(Importance):
    """Edges among all vertices; transits of its own choice, a state."""

    record, self_edges = "within", False
    needs = transit.needs()
    state = {"seen": (np.int64, 1)}  # noqa: RUF012

    def sample_size(self, step):
        return 1

    def initial(s, draw, par):
        s.seen[0] = draw.below(5)

    def step_transits(step, s, index, draw, par):
        return s.vertex(draw.below(s.size))

    def num_transits(self, step, num_roots):
        return 2

    def next(s, transits, edges, step, draw, par):
        s.seen[0] += 1
        if len(edges) == 0:
            return transit.NULL
        return edges[(draw.below(len(edges)) + s.seen[0]) % len(edges)]

    def edge_weights(self, edges):
        return None


@pytest.mark.parametrize("app", grid([Importance, Within], gate=[Importance]))
@pytest.mark.parametrize("weighted", grid([True, False], gate=[True]))
def test_a_users_own_application(app, weighted):
    pytest.importorskip("numba")
    graph = small_graph(weighted)
    if app is Within:
        bound = transit.bind(app(), graph)
        roots, key = torch.tensor([[1, 3], [2, 8], [5, 6], [9, 9]]), DrawKey(3, 1)
        expected = plain.run(bound, roots, IDS, key)
        assert_same(make_engine(bound, "numba").sample(roots, IDS, key, Run(2)), expected)
    else:
        compare(app(), graph, form="numba")


def test_what_an_application_does_wrong_is_named():
    pytest.importorskip("numba")

    class Wrong(Within):
        record, needs, state = None, transit.needs(), {}
        initial = step_transits = None

        def num_transits(self, step, num_roots):
            return None

        def next(s, transits, edges, step, draw, par):
            if step == 1 and s.id == 17:
                return draw.below(0)
            return 99 if s.id == 18 else transits[0]

    sampler = TransitSampler(small_graph(), Wrong())
    with pytest.raises(RuntimeError, match=r"next raised ValueError \(draw.below\(0\).*in sample 17 at step 1"):
        sampler.sample([1, 2], sample_ids=[16, 17])
    with pytest.raises(RuntimeError, match="next returned node 99 for sample 18 at step 0; expected 0 to 11 or"):
        sampler.sample([1, 2], sample_ids=[17, 18])


def test_an_application_that_never_ends_is_refused():
    app = transit.Layer(10**9, 1)
    app.max_steps = 6
    with pytest.raises(RuntimeError, match="sample 5 has not ended after 6 steps"):
        TransitSampler(small_graph(), app).sample([8], sample_ids=[5])


# --- definitions


def dense(graph, weighted):
    """A + I."""
    matrix = np.zeros((graph.num_nodes,) * 2)
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    values = graph.weights.double().numpy() if weighted else np.ones(graph.num_edges)
    np.add.at(matrix, (dst, graph.indices.numpy()), values)
    return matrix + np.eye(graph.num_nodes)


def as_matrix(mfg, num_nodes):
    """Sums of an MFG's coefficients by (destination, source), ids of the graph."""
    found = np.zeros((num_nodes, num_nodes))
    src, dst = mfg.edge_index()
    nodes = mfg.src_nodes.long()
    np.add.at(found, (nodes[dst].numpy(), nodes[src].numpy()), mfg.edge_weights.double().numpy())
    return found


@pytest.mark.parametrize("weighted", [True, False])
def test_edges_of_ladies_are_those_of_its_definition(weighted):
    graph = small_graph(weighted)
    rows = dense(graph, weighted)
    rows /= rows.sum(1, keepdims=True)
    sampler = TransitSampler(graph, transit.LADIES((3, 2)))
    for step in range(20):
        samples = sampler.sample([[1, 3, 6, 11]], step)
        nodes = [1, 3, 6, 11]
        for mfg, picks in zip(reversed(samples.mfgs), samples.steps, strict=True):
            p = (rows[nodes] ** 2).sum(0)
            p /= p.sum()
            union = sorted({*nodes, *(u for u in picks[0].tolist() if u >= 0)})
            expected = np.zeros_like(rows)
            block = rows[np.ix_(nodes, union)] / p[union]
            expected[np.ix_(nodes, union)] = block / block.sum(1, keepdims=True)
            assert mfg.dst_nodes.tolist() == nodes and sorted(mfg.src_nodes.tolist()) == union and mfg.includes_dst
            np.testing.assert_allclose(as_matrix(mfg, 12), expected, rtol=1e-6, atol=0)
            nodes = mfg.src_nodes.tolist()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("replace", [True, False])
def test_edges_of_fastgcn_are_those_of_its_definition(weighted, replace):
    graph, size = small_graph(weighted), 5
    rows = dense(graph, weighted)
    scale = 1 / np.sqrt(rows.sum(1))
    rows = rows * scale[:, None] * scale
    q = (rows**2).sum(0) / (rows**2).sum()
    sampler = TransitSampler(graph, transit.FastGCN((size, size), replace=replace))
    for step in range(20):
        samples, nodes = sampler.sample([[1, 3, 6, 11]], step), [1, 3, 6, 11]
        for mfg, picks in zip(reversed(samples.mfgs), samples.steps, strict=True):
            counts = np.bincount(picks[0].numpy(), minlength=12)
            expected = np.zeros_like(rows)
            expected[nodes] = rows[nodes] / q * counts / size
            assert replace or counts.max() == 1
            np.testing.assert_allclose(as_matrix(mfg, 12), expected, rtol=1e-6, atol=0)
            nodes = mfg.src_nodes.tolist()


@pytest.mark.parametrize("name", ["ladies", "fastgcn"])
def test_layers_of_many_draws_are_not_the_plain_mean(name):
    """As docs/samplers.md says of rows divided by their sums."""
    graph = small_graph(False)
    rows = dense(graph, False)
    sums = rows.sum(1)
    app = transit.LADIES((12,)) if name == "ladies" else transit.FastGCN((500_000,))
    (mfg,) = TransitSampler(graph, app).sample([list(range(12))]).mfgs
    found = as_matrix(mfg, 12)
    found /= found.sum(1, keepdims=True)
    weighed = rows / ((rows / sums[:, None]) ** 2).sum(0) if name == "ladies" else rows / np.sqrt(sums)
    np.testing.assert_allclose(found, weighed / weighed.sum(1, keepdims=True), atol=0.01)
    assert np.abs(found - rows / sums[:, None]).max() > 0.05


def test_the_table_of_fastgcn_has_the_law_of_squared_column_norms():
    graph = hub_graph(weighted=True)
    par = transit.bind(transit.FastGCN(), graph).par
    rows = dense(graph, True)
    scale = 1 / np.sqrt(rows.sum(1))
    q = ((rows * scale[:, None] * scale) ** 2).sum(0)
    own = par.threshold / 2**32
    found = np.zeros(graph.num_nodes)
    np.add.at(found, par.node, own / graph.num_nodes)
    np.add.at(found, par.other, (1 - own) / graph.num_nodes)
    np.testing.assert_allclose(found, q / q.sum(), atol=1e-9)
    assert graph.orig_ids[torch.from_numpy(par.node)].tolist() == list(range(graph.num_nodes))


def test_sums_over_rows_are_unbiased_under_fastgcn():
    """Mean over 4000 samples of a row's sum of coefficients: the row's sum in the normalised adjacency; 1e-6."""
    graph = small_graph(False)
    rows = dense(graph, False)
    scale = 1 / np.sqrt(rows.sum(1))
    expected = (rows * scale[:, None] * scale)[[1, 3, 6]].sum(1)
    app, trials = transit.FastGCN((6,)), 4000
    samples = TransitSampler(graph, app).sample(torch.tensor([1, 3, 6]).repeat(trials, 1))
    totals = [np.append(0, mfgs[0].edge_weights.double().cumsum(0).numpy()) for mfgs in samples.mfgs]
    sums = np.array([np.diff(total[mfgs[0].indptr.numpy()]) for total, mfgs in zip(totals, samples.mfgs, strict=True)])
    error = sums.std(0) / np.sqrt(trials)
    assert (np.abs(sums.mean(0) - expected) < 5.5 * error).all()


@pytest.mark.parametrize(("size", "weighted"), [(1, True), (2, False), (3, True)])
def test_nodes_of_ladies_have_the_law_of_successive_draws(size, weighted):
    """Sets of nodes by enumeration of all orders of drawing; false-alarm rate 1e-6 per case; 6000 samples."""
    graph, roots, trials = small_graph(weighted), [4, 9], 6000
    rows = dense(graph, weighted)
    p = ((rows / rows.sum(1, keepdims=True))[roots] ** 2).sum(0)
    nodes = np.flatnonzero(p)
    law = reference.pick_distribution(p[nodes].tolist(), size, method="weighted")
    expected = {tuple(sorted(nodes[list(outcome)].tolist())): own for outcome, own in law.items()}
    samples = TransitSampler(graph, transit.LADIES((size,)), 11).sample(torch.tensor(roots).repeat(trials, 1))
    seen = dict.fromkeys(expected, 0)
    for picks in samples.steps[0].tolist():
        seen[tuple(sorted(picks))] += 1
    evidence = Evidence(FALSE_ALARM)
    counts = [trials * own for own in expected.values()]
    evidence.add(pearson_p(list(seen.values()), counts), lambda: "sets of nodes")
    for own, times in seen.items():
        evidence.add(tail_bound(times, trials, expected[own]), lambda own=own: f"set {own}")
    evidence.decide()


def test_a_layer_sample_stops_at_its_final_size():
    graph = hub_graph()
    samples = TransitSampler(graph, transit.Layer(50, 20)).sample(torch.arange(12).reshape(4, 3))
    assert [int((own != transit.NULL).sum()) for own in samples.vertices] == [50] * 4
    lonely = CSCGraph(torch.tensor([0, 1, 1]), torch.tensor([1], dtype=torch.int32))
    exhausted = TransitSampler(lonely, transit.Layer(50, 3)).sample([[0, -1]])
    assert exhausted.nodes.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("weighted", [True, False])
def test_clusters_have_all_edges_among_their_nodes(weighted):
    graph = hub_graph(weighted=weighted)
    clusters = torch.randint(0, 40, (graph.num_nodes,), generator=torch.Generator().manual_seed(2))
    app = transit.ClusterGCN(clusters, 5)
    [batch] = TransitSampler(graph, app, 9).sample(num_samples=1, step=4).mini_batches()
    [mfg] = batch.mfgs
    nodes = batch.seeds.tolist()
    of_node = clusters[graph.orig_ids]
    assert len(of_node[batch.seeds.long()].unique()) == 5
    assert sorted(nodes) == torch.isin(of_node, of_node[batch.seeds.long()]).nonzero().flatten().tolist()
    assert graph.orig_ids[batch.seeds.long()].diff().min() > 0 and mfg.num_src == mfg.num_dst
    inside, place = set(nodes), {node: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        row = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
        expected = [place[u] for u in row if u in inside]
        assert mfg.indices[mfg.indptr[i] : mfg.indptr[i + 1]].tolist() == expected
    assert torch.equal(graph.indices[mfg.edge_ids], mfg.src_nodes[mfg.indices.long()])


def test_a_relabelled_graph_gives_the_same_samples_by_original_id():
    graph = small_graph()
    other, place = relabelled(graph, 3)
    for name, make in APPS.items():
        if name == "clusters":
            continue
        a = TransitSampler(graph, make(), 5).sample([[1, 3, 5]], 2)
        b = TransitSampler(other, make(), 5).sample(place[torch.tensor([[1, 3, 5]])], 2)
        assert torch.equal(a.nodes, other.orig_ids[b.nodes])
        for mfg, wanted in zip(a.mfgs or [], b.mfgs or [], strict=True):
            assert torch.equal(mfg.src_nodes.long(), other.orig_ids[wanted.src_nodes.long()])
            assert torch.equal(mfg.indices, wanted.indices) and torch.equal(mfg.edge_weights, wanted.edge_weights)


def test_picks_of_a_layer_have_the_law_of_multiplicities():
    """One transit set {0, 1} in 4000 samples: P(u) = edges from u to the set / edges to the set. False alarms: 1e-6."""
    graph = CSCGraph(torch.tensor([0, 4, 7, 7, 7, 7]), torch.tensor([1, 2, 2, 3, 2, 3, 4]))
    sampler = TransitSampler(graph, transit.Layer(final_size=3, step_size=1), 11)
    found = sampler.sample(torch.tensor([[0, 1]]).expand(4000, 2), step=2).steps[0]
    counts = torch.bincount(found.reshape(-1), minlength=5)
    assert counts[0] == 0
    expected = np.array([1, 3, 2, 1]) / 7 * 4000
    assert pearson_p(counts[1:].numpy(), expected) > FALSE_ALARM


class _Growing(transit.ClusterGCN):
    """Clusters, and one neighbour more."""

    def sample_size(self, step):
        return 1


def test_a_subclass_with_a_sample_size_of_its_own_does_not_run_by_the_kernel_without_picks():
    assert forms_of(transit.bind(_Growing([0, 1, 2] * 4, 2), small_graph(weighted=False)))[0] != BUILT_IN
