"""The law of every individual application, by exact or chi-square tests; planted mistakes must fail them.

Samples are those of the oracle, which the engines equal bit for bit. Seeds are fixed; each test has the false-alarm
rate 1e-6 over all its statistics.
"""

from itertools import product

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph
from fastsample_dist.ops import reference
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit import layers, plain
from fastsample_dist.sampling.transit.laws import row_shares
from fastsample_dist.sampling.transit.sampler import TransitSampler
from fastsample_dist.testing import conformance_graph
from fastsample_dist.testing.app_laws import weigh_roots, weigh_samples
from fastsample_dist.testing.statistics import Evidence, pearson_p, tail_bound
from tests.grids import grid
from tests.sampling.transit.apps import Own, Together, small_graph

FALSE_ALARM = 1e-6
NULL = transit.NULL


def weigh(app, graph, roots, rng_seed=0):
    """Picks that agree with the application's law; of an int of `roots`: so many samples with roots of their own, which
    are looked at as well.
    """
    evidence, bound = Evidence(FALSE_ALARM), transit.bind(app, graph)
    own = isinstance(roots, int)
    samples = plain.sample(graph, app, None if own else roots, rng_seed, num_samples=roots if own else None)
    looked_at = weigh_roots(bound, samples, evidence) if own else 0
    looked_at += weigh_samples(bound, samples, evidence, max_picks=10**6)
    evidence.decide()
    return looked_at


def weigh_counts(observed, expected):
    """Counts of outcomes, by outcome, against expected ones; an outcome that cannot be is refused."""
    assert set(observed) <= {key for key, mean in expected.items() if mean > 0}
    evidence, keys = Evidence(FALSE_ALARM), sorted(expected)
    trials = sum(observed.values())
    for key in keys:
        evidence.add(tail_bound(observed.get(key, 0), trials, expected[key] / trials), lambda key=key: f"outcome {key}")
    evidence.add(pearson_p([observed.get(key, 0) for key in keys], [expected[key] for key in keys]), lambda: "outcomes")
    evidence.decide()


def counted(outcomes):
    """How often each outcome occurs."""
    counts: dict = {}
    for outcome in outcomes:
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


@pytest.mark.parametrize("observed", [{0: 700, 1: 300}, {0: 500, 1: 500, 2: 1}, {0: 500, 1: 490, 3: 10}])
def test_counts_that_do_not_fit_are_found(observed):
    with pytest.raises(AssertionError):
        weigh_counts(observed, {0: 500.0, 1: 500.0, 3: 0.0})


ROOTS = torch.arange(16).repeat(60)


OF_ONE_ROOT = [
    transit.DeepWalk(5), transit.DeepWalk(5, weighted=False), transit.PPR(0.2), transit.PPR(0.5, weighted=False),
    transit.Node2Vec(5), transit.Node2Vec(5, p=0.25, q=4.0, weighted=False), transit.KHop((3, 2)),
    transit.KHop((2, 2), unique=True),
]  # fmt: skip


@pytest.mark.parametrize("app", grid(OF_ONE_ROOT, gate=OF_ONE_ROOT[::2]), ids=lambda app: type(app).__name__)
def test_picks_have_their_law_and_are_independent(app):
    assert weigh(app, conformance_graph(3), ROOTS) > 1000


SETS = torch.tensor([[4, 6, NULL], [9, 2, 9], [8, 0, 1], [10, 11, 15]]).repeat(150, 1)


OF_SEVERAL_ROOTS = [
    transit.MultiRW(3), transit.MultiRW(3, by_degree=True), transit.MVS(), transit.LADIES((3, 2)),
    transit.LADIES((2, 2), weighted=False), transit.FastGCN((3, 2)), transit.Layer(9, 4),
    transit.Node2Vec(5, p=0.25, q=4.0),
]  # fmt: skip


@pytest.mark.parametrize("app", grid(OF_SEVERAL_ROOTS, gate=OF_SEVERAL_ROOTS[1::2]), ids=lambda app: type(app).__name__)
def test_picks_of_several_roots_have_their_law(app):
    assert weigh(app, conformance_graph(3), SETS) > 1000


def test_the_law_of_fastgcn_is_computed_once_a_graph(monkeypatch):
    graph, asked = conformance_graph(3), []
    norms = layers._norms
    monkeypatch.setattr(layers, "_norms", lambda *args: (asked.append(args[0]), norms(*args))[1])
    assert weigh(transit.FastGCN((3, 2)), graph, SETS[:20]) == 100
    assert len(asked) == 3  # prepare: of bind here and in plain.sample


def test_clusters_are_drawn_by_their_law():
    """The picks of ClusterGCN are none: all chance is in its roots."""
    assert weigh(transit.ClusterGCN(torch.arange(28) % 5, 2), conformance_graph(3), 1500) == 1500


@pytest.mark.parametrize("p, q", grid([(2.0, 0.5), (0.25, 4.0)], gate=[(0.25, 4.0)], several=True))
def test_node2vec_goes_from_every_edge_by_its_law(p, q):
    """Every (t, v) -> u of a 12-node graph; the contexts are counted apart here."""
    graph = small_graph()
    app = transit.Node2Vec(2, p=p, q=q)
    walks = plain.sample(graph, app, torch.arange(1, 12).repeat(700), rng_seed=8).vertices
    seen = counted(map(tuple, walks.tolist()))
    positive = {v: list(row_shares(graph, v, True)) for v in range(12)}
    contexts = {(t, v) for t in range(1, 12) for v in positive[t]}
    assert {(t, v) for t, v, _ in seen if v != NULL} == contexts
    evidence = Evidence(FALSE_ALARM)
    for t, v in contexts:
        start, end = graph.indptr[v], graph.indptr[v + 1]
        mass: dict[int, float] = {}
        for u, weight in zip(
            graph.indices[start:end].tolist(), graph.weights[start:end].double().tolist(), strict=True
        ):
            near = u in graph.indices[graph.indptr[t] : graph.indptr[t + 1]].tolist()
            factor = 1 / p if u == t else 1.0 if near else 1 / q
            mass[u] = mass.get(u, 0.0) + weight * factor
        total = sum(mass.values())
        law = {u: m / total for u, m in mass.items()} if total else {NULL: 1.0}
        counts = {u: seen.get((t, v, u), 0) for u in range(-1, 12)}
        trials = sum(counts.values())
        for u, count in counts.items():
            evidence.add(tail_bound(count, trials, law.get(u, 0.0)), lambda t=t, v=v, u=u: f"({t}, {v}) -> {u}")
        evidence.add(
            pearson_p([counts[u] for u in law], [trials * x for x in law.values()]), lambda t=t, v=v: f"{t}, {v}"
        )
    evidence.decide()
    assert evidence.count > 100


def circle(num_nodes):
    return CSCGraph(torch.arange(num_nodes + 1), (torch.arange(num_nodes, dtype=torch.int32) + 1) % num_nodes)


@pytest.mark.parametrize("stop", [0.5, 0.1])
def test_ppr_walks_have_geometric_lengths(stop):
    out = plain.sample(circle(5), transit.PPR(stop), [0] * 2500, rng_seed=3)
    lengths = out.indptr.diff().numpy() - 1
    evidence = Evidence(FALSE_ALARM)
    for k in range(out.num_steps + 1):
        evidence.add(tail_bound((lengths > k).sum(), 2500, (1 - stop) ** k), lambda k=k: f"longer than {k}")
    expected = 2500 * stop * (1 - stop) ** np.arange(lengths.max())
    observed = np.bincount(lengths)[1:]
    evidence.add(pearson_p([*observed, 0], [*expected, 2500 - expected.sum()]), lambda: "lengths")
    evidence.decide()
    assert lengths.min() == 1


def test_ppr_ends_where_power_iteration_says():
    """Walks from one node of a 30-node graph of which every node has neighbours."""
    generator, stop = torch.Generator().manual_seed(1), 0.15
    indices = torch.randint(0, 30, (120,), generator=generator, dtype=torch.int32)
    graph = CSCGraph(torch.arange(0, 121, 4), indices, torch.rand(120, generator=generator) + 0.1)
    step = np.zeros((30, 30))
    for v in range(30):
        for u, share in row_shares(graph, v, True).items():
            step[v, u] = share
    rank = np.zeros(30)
    for _ in range(200):  # the fixed point: the walk ends after this step, or goes on from where it is
        rank = step[7] * stop + (1 - stop) * rank @ step
    out = plain.sample(graph, transit.PPR(stop), [7] * 3000, rng_seed=4)
    ends = counted(out.nodes[out.indptr[1:] - 1].tolist())
    weigh_counts(ends, {v: 3000 * rank[v] for v in range(30)})


def multi_walk_law(graph, roots, steps, by_degree):
    """Probability of every sequence of picks, over all choices of roots."""
    law: dict[tuple[int, ...], float] = {}

    def extend(picks, places, probability):
        if len(picks) == steps:
            law[picks] = law.get(picks, 0.0) + probability
            return
        degrees = [len(row_shares(graph, v, False)) and int(graph.in_degrees()[v]) for v in places]
        total = sum(degrees)
        for i, v in enumerate(places):
            choice = degrees[i] / total if by_degree else 1 / len(places)
            if choice == 0.0:
                continue
            for u, share in (row_shares(graph, v, False) or {NULL: 1.0}).items():
                moved = [*places[:i], v if u == NULL else u, *places[i + 1 :]]
                extend((*picks, u), moved, probability * choice * share)

    extend((), list(roots), 1.0)
    return law


@pytest.mark.parametrize("by_degree", grid([False, True], gate=[True]))
def test_multi_dimensional_walks_choose_a_root_and_then_a_neighbour(by_degree):
    graph, roots = small_graph(), [6, 0, 7, 6]
    out = plain.sample(graph, transit.MultiRW(3, by_degree), [roots] * 6000, rng_seed=5)
    law = multi_walk_law(graph, roots, 3, by_degree)
    weigh_counts(counted(tuple(row[4:]) for row in out.vertices.tolist()), {k: 6000 * p for k, p in law.items()})


def test_distinct_picks_are_drawn_one_after_the_other():
    """Of a row with a parallel edge: P(a, b) = p(a) p(b) / (1 - p(a))."""
    graph = small_graph()
    out = plain.sample(graph, transit.KHop((2,), unique=True), [4, 6] * 3000, rng_seed=6)
    for root in (4, 6):
        shares = row_shares(graph, root, False)
        law = {(a, b): shares[a] * shares[b] / (1 - shares[a]) for a, b in product(shares, shares) if a != b}
        seen = counted(tuple(row[1:]) for row in out.vertices.tolist() if row[0] == root)
        weigh_counts(seen, {pair: 3000 * p for pair, p in law.items()})


def full_probability(degree, attempts):
    """That so many distinct picks from as many neighbours find all: in every round each open pick draws once."""
    chances = np.zeros(degree + 1)
    chances[0] = 1.0  # by the neighbours found
    for _ in range(attempts):
        after = np.zeros(degree + 1)
        for found in range(degree + 1):
            now = np.where(np.arange(degree + 1) == found, chances, 0.0)
            for _ in range(degree - found):
                hit = now * np.arange(degree + 1) / degree
                now = hit + np.roll(now - hit, 1)
            after += now
        chances = after
    return chances[degree]


def test_distinct_picks_from_as_many_neighbours_miss_some():
    """As KHop's docstring says of 25 from 25; false-alarm rate 1e-6."""
    degree, trials = 25, 20_000
    graph = CSCGraph(torch.tensor([0, degree] + [degree] * degree), torch.arange(1, degree + 1))
    app = transit.KHop((degree,), unique=True)
    out = TransitSampler(graph, app, rng_seed=6).sample(torch.zeros(trials, dtype=torch.int64))
    missing = 1.0 - full_probability(degree, app.max_attempts)
    assert round(missing, 2) == 0.13
    assert tail_bound(int((out.vertices == NULL).any(1).sum()), trials, missing) > FALSE_ALARM


def test_distinct_nodes_of_fastgcn_are_fewer_where_the_rest_is_hardly_drawn():
    """q of node 1 is about 1e-18, so its pick stays NULL after max_attempts draws."""
    graph = CSCGraph(torch.tensor([0, 0, 1]), torch.tensor([0]), torch.tensor([1e6]))
    out = plain.sample(graph, transit.FastGCN((2,), replace=False), [[0]] * 20)
    assert out.steps[0].tolist() == [[0, NULL]] * 20


def test_clusters_are_chosen_without_replacement():
    app = transit.ClusterGCN(torch.arange(12) % 4, 2)
    out = plain.sample(small_graph(), app, num_samples=3000, rng_seed=6)
    pairs = counted(tuple(sorted(set((row % 4).tolist()))) for row in out.roots)
    weigh_counts(pairs, {(a, b): 500.0 for a in range(4) for b in range(a + 1, 4)})


@pytest.mark.parametrize("numbers", [[5, 0, 5, 9], [10**12, 0, 10**12, 2**62]], ids=["gaps", "large"])
def test_clusters_are_those_that_nodes_are_in(numbers):
    """No sample is empty, and the memory of one is that of the clusters that there are."""
    graph, given = small_graph(), torch.tensor(numbers).repeat(3)
    out = plain.sample(graph, transit.ClusterGCN(given, 1), num_samples=60, rng_seed=6)
    dense = plain.sample(graph, transit.ClusterGCN(torch.tensor([1, 0, 1, 2]).repeat(3), 1), num_samples=60, rng_seed=6)
    assert torch.equal(out.roots, dense.roots) and (out.indptr.diff() > 0).all()
    with pytest.raises(ValueError, match="num_clusters is 4; expected 1 to 3, the clusters that there are"):
        transit.ClusterGCN(given, 4)


def test_roots_of_its_own_are_uniform():
    out = plain.sample(small_graph(), type("Still", (Own,), {"num_steps": 0})(), num_samples=4000, rng_seed=6)
    weigh_counts(counted(out.roots[:, 0].tolist()), {v: 4000 / 12 for v in range(12)})


class Stated(Own):
    """Uniform walks that state their law."""

    picks, num_steps = 2, 3

    def law(self, graph, history):
        return row_shares(graph, history.transit, False) or {NULL: 1.0}


class FirstNeighbor(Stated):
    """NextDoor's node2vec: neighbour 0 at step 0."""

    def next(s, transits, edges, step, draw, par):
        if len(edges) == 0:
            return NULL
        return edges[0] if step == 0 else edges[draw.below(len(edges))]


class OffByOne(transit.App):
    """<= for < where a coin decides between two halves of a row."""

    def steps(self):
        return 2

    def sample_size(self, step):
        return 1

    def next(s, transits, edges, step, draw, par):
        if draw.below(4) <= 2 and len(edges):
            return edges[0]
        return NULL

    def law(self, graph, history):
        row = graph.indices[graph.indptr[history.transit] : graph.indptr[history.transit + 1]].tolist()
        return {row[0]: 0.5, NULL: 0.5} if row else {NULL: 1.0}


class OtherWeights(Stated):
    """Picks by weight, states uniform shares."""

    def next(s, transits, edges, step, draw, par):
        return edges.pick(draw)


class Swapped(transit.Node2Vec):
    """p for 1/p and q for 1/q."""

    def __init__(self):
        super().__init__(3, p=0.5, q=2.0)
        self.p, self.q = 2.0, 0.5


class Outside(Stated):
    """Returns the transit itself where it has no neighbours."""

    def next(s, transits, edges, step, draw, par):
        return transits[0] if len(edges) == 0 else edges[draw.below(len(edges))]


class NextTurn(transit.MVS):
    """Begins a row with its second neighbour."""

    def next(s, transits, edges, step, draw, par):
        return edges[(draw.turn + 1) % len(edges)]


class StaysAtTheRoots(transit.MultiRW):
    """The neighbour does not take the vertex's place."""

    def next(s, transits, edges, step, draw, par):
        return edges[draw.below(len(edges))] if len(edges) else NULL


class TakesTheFirstPlace(transit.MultiRW):
    """The neighbour takes the place of another vertex."""

    def next(s, transits, edges, step, draw, par):
        if len(edges) == 0:
            return NULL
        s.roots[0] = edges[draw.below(len(edges))]
        return s.roots[0]


class ByDegree(transit.MultiRW):
    """Chooses the vertex by its degree, and says that it does not."""

    def __init__(self):
        super().__init__(3, by_degree=True)
        self.by_degree = False


class UniformLayers(transit.LADIES):
    """Draws edges into the layer before, as NextDoor's LADIES does."""

    def next(s, transits, edges, step, draw, par):
        return edges[draw.below(len(edges))] if len(edges) else NULL


class LastFirst(transit.LADIES):
    """Arrivals in the wrong order."""

    def next(s, transits, edges, step, draw, par):
        return edges.ranked(2 - draw.index)


class UniformNodes(transit.FastGCN):
    """Draws nodes as NextDoor's FastGCN does."""

    def next(s, transits, edges, step, draw, par):
        return par.node[draw.below(len(par.node))]


class NoCoin(transit.FastGCN):
    """Leaves the alias table's second half out."""

    def next(s, transits, edges, step, draw, par):
        return par.node[draw.below(len(par.node))] if draw.coin(2**31) else par.other[draw.below(len(par.node))]


class RepeatedClusters(transit.ClusterGCN):
    """Draws clusters with replacement."""

    def initial_roots(self, graph, sample_ids, rng_seed, step):
        nodes, drawn = transit.by_original_id(graph), np.random.default_rng(0).integers(0, 5, (len(sample_ids), 2))
        members = [nodes[torch.isin(self.clusters, torch.from_numpy(own))] for own in drawn]
        return torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=NULL)


class SharedClusters(transit.ClusterGCN):
    """Two samples in turn have the same clusters."""

    def initial_roots(self, graph, sample_ids, rng_seed, step):
        return super().initial_roots(graph, sample_ids // 2, rng_seed, step)


WRONG = [
    NextTurn(), StaysAtTheRoots(3), TakesTheFirstPlace(3), ByDegree(), UniformLayers((3, 2)), LastFirst((3, 3)),
    UniformNodes((3, 2)), NoCoin((3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("app", grid(WRONG, gate=WRONG[1:6:4]), ids=lambda app: type(app).__name__)
def test_a_wrong_law_of_several_roots_is_found(app):
    with pytest.raises(AssertionError, match="p-value|its law allows"):
        weigh(app, conformance_graph(3), SETS)


@pytest.mark.parametrize("app", [RepeatedClusters, SharedClusters])
def test_a_wrong_choice_of_clusters_is_found(app):
    with pytest.raises(AssertionError, match="p-value|its law allows"):
        weigh(app(torch.arange(28) % 5, 2), conformance_graph(3), 1500)


def test_picks_behind_all_neighbours_are_found():
    samples = plain.sample(conformance_graph(3), transit.MVS(), [[4, 6], [0, 1]])
    longer = [torch.nn.functional.pad(samples.steps[0], (0, 1), value=5)]
    wrong = plain.Samples.of_steps(samples.roots, longer, samples.sample_ids, samples.draw)
    with pytest.raises(AssertionError, match=r"step 0 of sample 0 has 1 picks behind the 7 neighbours"):
        weigh_samples(transit.bind(transit.MVS(), conformance_graph(3)), wrong, Evidence(FALSE_ALARM), 10)


@pytest.mark.parametrize("app", [Stated(), type("OnlyHalf", (OffByOne,), {
    "next": lambda s, transits, edges, step, draw, par: edges[0] if draw.below(4) < 2 and len(edges) else NULL,
})()], ids=["uniform", "half"])  # fmt: skip
def test_the_right_applications_pass(app):
    assert weigh(app, conformance_graph(3), ROOTS) > 500


@pytest.mark.parametrize("app", [FirstNeighbor(), OffByOne(), OtherWeights(), Swapped(), Outside()],
                         ids=lambda app: type(app).__name__)  # fmt: skip
def test_a_wrong_law_is_found(app):
    with pytest.raises(AssertionError, match="p-value|its law allows"):
        weigh(app, conformance_graph(3), ROOTS)


def test_words_that_are_the_same_in_every_step_are_found(monkeypatch):
    """NextDoor's kernels do not write their random states back."""
    draw = plain.PlainEngine._draw
    monkeypatch.setattr(plain.PlainEngine, "_draw", lambda self, domain, s, stage, *n: draw(self, domain, s, 0, *n))
    with pytest.raises(AssertionError, match="picks of consecutive steps|was picked"):
        weigh(type("Walk", (Stated,), {"picks": 1, "num_steps": 6})(), conformance_graph(3), ROOTS)


@pytest.mark.parametrize("shares, message", [
    (lambda s, n: (s.id, 0), "picks of neighbouring slots"),
    pytest.param(lambda s, n: (s.id // 2, n), "picks of one slot in neighbouring samples", marks=pytest.mark.grid),
], ids=["slots", "samples"])  # fmt: skip
def test_words_that_picks_share_are_found(monkeypatch, shares, message):
    def draw(self, domain, s, stage, n, *at):
        return plain.Draw(reference.stage_key(0, domain, stage, 0), *shares(s, n), *at)

    monkeypatch.setattr(plain.PlainEngine, "_draw", draw)
    with pytest.raises(AssertionError, match=message):
        weigh(Stated(), conformance_graph(3), torch.arange(4, 16).repeat_interleave(100))


def test_a_law_must_add_up():
    wrong = type("Wrong", (Stated,), {"law": lambda self, graph, history: {0: 0.5}})()
    with pytest.raises(AssertionError, match=r"adds up to 0\.5"):
        weigh(wrong, small_graph(), [1])


def test_an_application_need_not_state_its_law():
    assert weigh(Own(), small_graph(), [1, 2, 3]) == 0
    assert weigh(Together(), small_graph(), [1, 2, 3]) == 0


def test_together_the_law_is_of_the_combined_row():
    def law(self, graph, history):
        transits = dict.fromkeys(v for v in history.vertices[-1] if v != NULL)
        row = [u for v in transits for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()]
        return {u: row.count(u) / len(row) for u in row}

    app = type("Stated", (Together,), {"law": law, "num_steps": 2})()
    assert weigh(app, small_graph(), torch.tensor([[4, 6, NULL], [9, 2, 9]]).repeat(400, 1)) == 800 * 8
