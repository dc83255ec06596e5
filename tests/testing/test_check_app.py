"""check_app finds what is planted, in engines and in applications, and passes what is right."""

from dataclasses import replace

import pytest
import torch

from fastsample_dist import testing
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.testing import apps, check_app, conformance_graph
from tests.sampling.transit.apps import Own
from tests.sampling.transit.test_laws import FirstNeighbor, Stated

GRAPH = conformance_graph(3)


class PlainForm:
    """An engine that is right; planted ones change what it is called with."""

    def __init__(self, bound, form):
        self.bound = bound

    def sample(self, roots, ids, key, run):
        return plain.run(self.bound, roots, ids, key)


class IgnoresSchedule(PlainForm):
    def sample(self, roots, ids, key, run):
        return super().sample(roots, ids, DrawKey(key.rng_seed, key.step + (run.schedule == "transit_flat")), run)


class SeedsThreads(PlainForm):
    def sample(self, roots, ids, key, run):
        return super().sample(roots, ids + (run.num_threads == 5), key, run)


class CutsBlocks(PlainForm):
    def sample(self, roots, ids, key, run):
        return super().sample(roots, ids % 7 if run.block_samples == 7 else ids, key, run)


class CountsPositions(PlainForm):
    def sample(self, roots, ids, key, run):
        return super().sample(roots, torch.arange(len(ids)), key, run)


class OrdersBuckets(PlainForm):
    def sample(self, roots, ids, key, run):
        return super().sample(roots, ids + (self.bound.graph.orig_ids[0] != GRAPH.orig_ids[0]).long(), key, run)


class DoublesWeights(PlainForm):
    """Records edges with coefficients of twice their size."""

    def sample(self, roots, ids, key, run):
        out = super().sample(roots, ids, key, run)
        out.mfgs_of_sample = [
            [replace(mfg, edge_weights=2 * mfg.edge_weights) for mfg in own] for own in out.mfgs_of_sample
        ]
        return out


class LargestNeighbor(Own):
    """Orders node ids."""

    def next(s, transits, edges, step, draw, par):
        best = transit.NULL
        for i in range(len(edges)):
            if edges[i] > best:
                best = edges[i]
        return best


class NumbersNodes(Own):
    """Computes with node ids."""

    def next(s, transits, edges, step, draw, par):
        return edges[transits[0] % len(edges)] if len(edges) else transit.NULL


class UnorderedTable(Own):
    """A table over nodes in the order of their ids."""

    def prepare(self, graph, weighted):
        return transit.params(nodes=torch.arange(graph.num_nodes))

    def next(s, transits, edges, step, draw, par):
        return par.nodes[draw.below(len(par.nodes))]


class OrderedTable(UnorderedTable):
    def prepare(self, graph, weighted):
        return transit.params(nodes=transit.by_original_id(graph))


@pytest.fixture
def planted(monkeypatch):
    """Puts an engine in the place of the compiled ones."""

    def plant(engine):
        monkeypatch.setattr(apps, "forms_of", lambda bound: ["planted"])
        monkeypatch.setattr(apps, "make_engine", engine)

    plant(PlainForm)
    return plant


@pytest.mark.parametrize("engine, message", [
    (IgnoresSchedule, "planted, schedule 'transit_flat', 1 threads, blocks of 1: vertex"),
    (SeedsThreads, "planted, schedule 'auto', 5 threads, blocks of 1: vertex"),
    (CutsBlocks, "planted, schedule 'auto', 1 threads, blocks of 7: vertex"),
    (CountsPositions, "planted, samples 12 to 24 alone: vertex"),
    (OrdersBuckets, "planted on a relabelled graph: vertex"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_a_wrong_engine_is_found(planted, engine, message):
    planted(engine)
    with pytest.raises(AssertionError) as caught:
        check_app(Own(), GRAPH)
    assert str(caught.value).startswith(message)
    assert "plain Python has" in str(caught.value)


@pytest.mark.parametrize(
    "app", [LargestNeighbor(), NumbersNodes(), UnorderedTable()], ids=lambda app: type(app).__name__
)
def test_an_application_that_depends_on_node_ids_is_found(planted, app):
    with pytest.raises(AssertionError, match=r"plain Python on a relabelled graph: .* told apart by == alone"):
        check_app(app, GRAPH)


def test_wrong_edges_are_found(planted):
    app, roots = transit.LADIES((2, 2)), torch.arange(4, 8).reshape(2, 2)
    assert check_app(app, GRAPH, roots=roots, law_samples=100).num_samples == 2
    planted(DoublesWeights)
    with pytest.raises(
        AssertionError, match=r"blocks of 1: edge_weights of MFG 0 of sample 0 is \[.*plain Python has \["
    ):
        check_app(app, GRAPH, roots=roots)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("law_samples", 0, "an integer >= 1"),
        ("law_samples", 2.5, "an integer >= 1"),
        ("max_law_picks", 0, "an integer >= 1"),
        ("false_alarm", 0, "a number above 0 and below 1"),
        ("false_alarm", float("nan"), "a number above 0 and below 1"),
    ],
)
def test_a_law_that_nothing_could_break_is_refused(argument, value, expected):
    with pytest.raises(ValueError, match=f"{argument} is {value}; expected {expected}"):
        check_app(FirstNeighbor(), GRAPH, **{argument: value})


@pytest.mark.parametrize("forms", [[], ["built-in"], "planted"])
def test_forms_that_there_are_not_are_refused(planted, forms):
    with pytest.raises(ValueError, match=r"Own has the compiled forms \['planted'\]"):
        check_app(Own(), GRAPH, forms=forms)


def test_a_table_by_original_id_is_fine(planted):
    report = check_app(OrderedTable(), GRAPH)
    assert (report.forms, report.num_samples, report.num_law_picks) == (("planted",), 24, 0)
    assert report.num_law_roots == 4000  # those of App: uniform
    assert report.num_runs == 4 * 3 * 5 + 2 + 2


def test_a_law_is_checked(planted):
    report = check_app(Stated(), GRAPH, law_samples=300, roots=torch.arange(4, 16))
    assert report.num_law_picks > 1000
    assert report.num_statistics > 20
    with pytest.raises(AssertionError, match="p-value"):
        check_app(FirstNeighbor(), GRAPH, law_samples=300, roots=torch.arange(4, 16))


def test_what_an_application_does_wrong_is_reported(planted):
    app = type("Raises", (Own,), {"next": lambda *_: 1 // 0})()
    with pytest.raises(RuntimeError, match="next raised ZeroDivisionError"):
        check_app(app, GRAPH)


def test_a_relabelled_graph_has_the_same_rows():
    copy, new_of = testing.relabelled(GRAPH, seed=3)
    for node in range(GRAPH.num_nodes):
        old, new = (slice(*g.indptr[v : v + 2].tolist()) for g, v in ((GRAPH, node), (copy, int(new_of[node]))))
        assert new_of[GRAPH.indices[old].long()].tolist() == copy.indices[new].tolist()
        assert GRAPH.weights[old].tolist() == copy.weights[new].tolist()
        assert GRAPH.orig_ids[node] == copy.orig_ids[new_of[node]]
