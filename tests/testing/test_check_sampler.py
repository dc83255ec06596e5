"""check_sampler accepts the whole family and finds each way of drawing wrongly.

The wrong samplers are plain Python on tests/testing/samplers.py. Their random numbers are fixed, so a test finds the
same every time; accepted ones are accepted at a false-alarm rate of 1e-6 each.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fastsample_dist import CSCGraph, LaborSampler, NeighborSampler, ops
from fastsample_dist.testing import Independent, Replaced, check_sampler, conformance_graph
from tests.grids import grid
from tests.testing.samplers import floyd, oracle_sampler, plain_sampler

FANOUTS = (3, 2)
FAMILY = {
    "uniform": {},
    "replace": {"replace": True},
    "weighted": {"method": "weighted"},
    "weighted, replace": {"method": "weighted", "replace": True},
    "labor": {"method": "labor"},
    "labor, one variate per step": {"method": "labor", "layer_dependency": True},
}
GRAPH = conformance_graph()
family = pytest.mark.parametrize("draws", FAMILY.values(), ids=FAMILY.keys())


def check_plain(draw, *, fanouts=FANOUTS, trials=1000, seeds=range(16), keyed=True, frame=None, **draws):
    sample = plain_sampler(GRAPH, fanouts, draw, **(frame or {}))
    return check_sampler(sample, GRAPH, fanouts=fanouts, trials=trials, seeds=list(seeds), keyed=keyed, **draws)


@pytest.mark.parametrize("name", grid(FAMILY, gate=[*FAMILY][1::2]))
@pytest.mark.parametrize("edge_ids", grid([False, True], gate=[True]))
def test_the_family_passes(name, edge_ids):
    draws = FAMILY[name]
    spec = ops.SampleSpec(fanouts=FANOUTS, rng_seed=1, edge_ids=edge_ids, **draws)
    sampler = NeighborSampler.from_spec(GRAPH, spec)
    report = check_sampler(sampler.sample, GRAPH, fanouts=FANOUTS, edge_ids=edge_ids, trials=2000, **draws)
    assert report.num_trials == 2000 and report.num_statistics > 100


@pytest.mark.parametrize("draws", [{}, {"method": "weighted"}, {"method": "labor"}], ids=str)
def test_taking_all_passes_and_is_not_random(draws):
    sampler = NeighborSampler.from_spec(GRAPH, ops.SampleSpec(fanouts=(-1, -1), **draws))
    assert check_sampler(sampler.sample, GRAPH, fanouts=(-1, -1), trials=20, **draws).num_statistics == 0


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (lambda: NeighborSampler(GRAPH, [10, 4], rng_seed=2), {}),
        (lambda: NeighborSampler(GRAPH, [10, 4], replace=True, rng_seed=2), {"replace": True}),
        (lambda: NeighborSampler(GRAPH, [5, 4], weighted=True, rng_seed=2), {"method": "weighted"}),
        (lambda: LaborSampler(GRAPH, [10, 4], rng_seed=2), {"method": "labor"}),
    ],
    ids=["uniform", "replace", "weighted", "labor"],
)
def test_samplers_by_their_own_arguments_pass(make, draws):
    sampler = make()
    check_sampler(sampler.sample, GRAPH, fanouts=sampler.fanouts, trials=1000, **draws)


@pytest.mark.grid
@family
def test_the_oracle_passes(draws):
    sample = oracle_sampler(GRAPH, fanouts=FANOUTS, edge_ids=True, **draws)
    check_sampler(sample, GRAPH, fanouts=FANOUTS, edge_ids=True, trials=300, **draws)


def test_a_graph_without_edges_passes():
    graph = CSCGraph(torch.tensor([0, 0, 0]), torch.empty(0, dtype=torch.int32))
    assert check_sampler(NeighborSampler(graph, [2]).sample, graph, fanouts=[2], trials=5).num_edges == 0


def test_without_a_graph_the_conformance_graph_is_taken():
    assert check_sampler(plain_sampler(GRAPH, (3,), floyd), fanouts=(3,), trials=50).num_rows == GRAPH.num_nodes


def test_floyd_in_plain_python_passes():
    assert check_plain(floyd).smallest_p_value > 1e-6


def floyd_off_by_one(words, row, fanout):
    """torch-sparse's form: the draw of round j runs over 0 .. j - 1 instead of 0 .. j."""
    degree, taken = len(row.neighbors), []
    if degree <= fanout:
        return list(range(degree))
    for last in range(degree - fanout, degree):
        drawn = words.randrange(2**31) % last
        taken.append(last if drawn in taken else drawn)
    return taken


def test_floyd_off_by_one_is_found():
    with pytest.raises(
        AssertionError, match=r"hop \d, node \d+ .* was taken .* expected .*; p-value .* expected at least"
    ):
        check_plain(floyd_off_by_one)


def test_floyd_off_by_one_is_found_in_one_row_of_twelve_edges():
    with pytest.raises(AssertionError, match=r"node 8 \(degree 12, fanout 1\): the edge from node \d+ was taken 0 "):
        check_plain(floyd_off_by_one, fanouts=(1,), seeds=[8])


def with_repeats(words, row, fanout):
    degree = len(row.neighbors)
    return list(range(degree)) if degree <= fanout else [words.randrange(degree) for _ in range(fanout)]


@pytest.mark.parametrize("edge_ids", [False, True])
def test_a_neighbour_taken_twice_is_found(edge_ids):
    with pytest.raises(AssertionError, match=r"step 0, hop 0: node \d+ got the edge from node \d+ \d times; expected"):
        check_plain(with_repeats, edge_ids=edge_ids)


def test_parallel_edges_are_no_repeats_but_one_more_is():
    """Row 9 has two edges from each of two sources; three picks of one source are one too many."""
    sources = GRAPH.indices[GRAPH.indptr[9] : GRAPH.indptr[10]].tolist()
    doubled = next(source for source in sources if sources.count(source) == 2)
    places = [place for place, source in enumerate(sources) if source == doubled]
    with pytest.raises(AssertionError, match=f"node 9 got the edge from node {doubled} 3 times; expected at most 2"):
        check_plain(lambda words, row, fanout: [*places, places[0]], seeds=[9], fanouts=(3,))


def test_an_edge_of_another_row_is_found():
    with pytest.raises(AssertionError, match=r"an edge from node \d+ to node \d+ is not in the graph"):
        check_plain(lambda words, row, fanout: [place - 1 for place in floyd(words, row, fanout)])


def test_a_wrong_edge_id_is_found():
    with pytest.raises(AssertionError, match=r"edge id -?\d+ stands for an edge from node \d+ to node \d+"):
        check_plain(lambda words, row, fanout: [place - 1 for place in floyd(words, row, fanout)], edge_ids=True)


def test_missing_edge_ids_are_found():
    with pytest.raises(AssertionError, match="edge_ids is None; expected one id per edge"):
        check_sampler(NeighborSampler(GRAPH, [2]).sample, GRAPH, fanouts=[2], edge_ids=True, trials=2)


def test_too_few_neighbours_are_found():
    with pytest.raises(AssertionError, match=r"node 5 got 2 neighbours; expected 3 \(degree 4, 4 edges to draw from"):
        check_plain(lambda words, row, fanout: floyd(words, row, fanout - 1), seeds=[5])


def compact_by_id(dst_nodes, neighbors):
    """New sources ascending instead of in order of first appearance."""
    new = sorted(set(neighbors.tolist()) - set(dst_nodes.tolist()))
    nodes = [*dst_nodes.tolist(), *new]
    return torch.tensor(nodes), torch.tensor([nodes.index(node) for node in neighbors.tolist()], dtype=torch.int64)


def compact_twice(dst_nodes, neighbors):
    """Every edge gets a source of its own."""
    return torch.cat([dst_nodes, neighbors]), torch.arange(neighbors.numel()) + dst_nodes.numel()


def compact_destinations_last(dst_nodes, neighbors):
    nodes, indices = compact_by_id(dst_nodes, neighbors)
    return nodes.flip(0), nodes.numel() - 1 - indices


@pytest.mark.parametrize(
    ("relabel", "message"),
    [
        (compact_by_id, "comes before node .* in src_nodes but appears after it"),
        (compact_twice, "src_nodes holds a node twice"),
        (compact_destinations_last, "src_nodes does not begin with the destinations"),
    ],
)
def test_a_wrong_relabelling_is_found(relabel, message):
    with pytest.raises(AssertionError, match=message):
        check_plain(floyd, frame={"relabel": relabel}, seeds=[7, 8])


def test_ignored_weights_are_found():
    with pytest.raises(AssertionError, match=r"node \d+ got the edge from node \d+ 1 times; expected at most 0"):
        check_plain(lambda words, row, fanout: floyd(words, row, min(fanout, sum(w > 0 for w in row.weights))),
                    method="weighted")  # fmt: skip


def test_ignored_weights_are_found_where_none_is_zero():
    with pytest.raises(AssertionError, match=r"its edges were taken .* times in 1000 steps, expected"):
        check_plain(floyd, method="weighted", seeds=[5, 7, 8], fanouts=(3,))


def topped_up(words, row, fanout):
    """Draws with replacement, and fills up uniformly what repeats have left open: not successive sampling."""
    positive = [place for place, weight in enumerate(row.weights) if weight > 0]
    if len(positive) <= fanout:
        return positive
    taken = list(dict.fromkeys(words.choices(range(len(row.weights)), row.weights, k=fanout)))
    rest = [place for place in positive if place not in taken]
    return taken + words.sample(rest, fanout - len(taken))


def test_repeats_replaced_uniformly_are_found():
    with pytest.raises(AssertionError, match="p-value"):
        check_plain(topped_up, method="weighted", seeds=[7, 8, 14], fanouts=(3,))


def window(words, row, fanout):
    """Right for every single edge, wrong for sets: consecutive edges from a random first one."""
    degree = len(row.neighbors)
    first = words.randrange(max(degree, 1))
    return [(first + i) % degree for i in range(min(fanout, degree))]


def test_wrong_sets_of_right_edges_are_found():
    with pytest.raises(AssertionError, match=r"were taken together \d+ times in 1000 steps"):
        check_plain(window, seeds=[8], fanouts=(3,))


def test_wrong_sets_are_found_among_parallel_edges():
    with pytest.raises(AssertionError, match="possible sets of picks came"):
        check_plain(window, seeds=[9], fanouts=(2,))


def labor_without_sharing(words, row, fanout):
    degree = len(row.neighbors)
    variate = {source: words.random() for source in row.neighbors}
    return [
        place for place, source in enumerate(row.neighbors) if degree <= fanout or variate[source] < fanout / degree
    ]


def test_labor_with_a_variate_per_edge_is_found():
    with pytest.raises(AssertionError, match=r"source \d+ was taken by node \d+ .* and not by node \d+"):
        check_plain(labor_without_sharing, method="labor")


def test_neighbour_sampling_is_not_labor():
    with pytest.raises(AssertionError):
        check_plain(floyd, method="labor")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda row: (row.step, row.hop, row.place), "its picks must not depend on the other nodes"),
        (lambda row: (row.step, row.hop), r"covariance .* expected 0"),
        (lambda row: (row.step, row.node), r"covariance .* expected 0"),
        (lambda row: (row.hop, row.node), "same picks in all 1000 steps"),
        (lambda row: (row.step // 2, row.hop, row.node), r"in the step after: covariance .* expected 0"),
    ],
    ids=["by place in the batch", "one for all nodes", "one for all hops", "one for all steps", "one for two steps"],
)
def test_a_wrong_key_of_the_random_numbers_is_found(key, message):
    with pytest.raises(AssertionError, match=message):
        check_plain(floyd, fanouts=(2, 2), frame={"key": key})


def test_a_sampler_without_a_key_is_found_and_passes_as_unkeyed():
    calls = iter(range(10**9))
    frame = {"key": lambda row: (next(calls),)}
    with pytest.raises(AssertionError, match="two batches of the same seeds and step differ"):
        check_plain(floyd, frame=frame)
    check_plain(floyd, frame=frame, keyed=False)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("src_nodes", Tensor.float, r"src_nodes is of float32 and shape \(\d+,\); expected integers of shape \(n,\)"),
        ("indptr", Tensor.double, r"indptr is of float64 and shape \(\d+,\)"),
        ("indices", lambda column: column.view(1, -1), r"indices is of int64 and shape \(1, \d+\)"),
        ("edge_ids", Tensor.float, r"edge_ids is of float32"),
        ("indices", lambda column: None, "indices is a NoneType; expected integers"),
        ("num_dst", float, r"num_dst is \d+\.0; expected an integer\."),
    ],
    ids=["float ids", "float offsets", "a matrix", "float edge ids", "nothing", "a float number"],
)
def test_columns_that_are_no_integers_are_found(name, wrong, message):
    sampler = NeighborSampler.from_spec(GRAPH, ops.SampleSpec(fanouts=(2,), edge_ids=True))

    def sample(seeds, step):
        [mfg] = sampler.sample(seeds, step).mfgs
        columns = {each: getattr(mfg, each) for each in ("indptr", "indices", "src_nodes", "num_dst", "edge_ids")}
        return SimpleNamespace(mfgs=[SimpleNamespace(**columns | {name: wrong(columns[name])})])

    with pytest.raises(AssertionError, match=rf"^step 0, hop 0: {message}"):
        check_sampler(sample, GRAPH, fanouts=[2], edge_ids=True, trials=2)


def test_columns_may_be_lists():
    """Also empty ones, which hold no integer."""
    sampler = NeighborSampler(GRAPH, [2])

    def sample(seeds, step):
        [mfg] = sampler.sample(seeds, step).mfgs
        columns = {each: getattr(mfg, each).tolist() for each in ("indptr", "indices", "src_nodes")}
        return SimpleNamespace(mfgs=[SimpleNamespace(**columns, num_dst=mfg.num_dst)])

    assert check_sampler(sample, GRAPH, fanouts=[2], trials=20).num_trials == 20


def test_a_sampler_that_returns_no_batch_is_found():
    with pytest.raises(AssertionError, match="step 0: the sampler returned a NoneType; expected a MiniBatch"):
        check_sampler(lambda seeds, step: None, GRAPH, fanouts=[2], trials=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fanouts": [-2]}, "fanouts holds -2"),
        ({"fanouts": [2], "trials": 1}, "trials is 1; expected an integer >= 2"),
        ({"fanouts": [2], "trials": 2.5}, "trials is 2.5; expected an integer >= 2"),
        *(
            ({"fanouts": [2], "false_alarm": rate}, f"false_alarm is {rate!r}; expected a number above 0 and below 1")
            for rate in (0, float("nan"), -1, 1.5, True, "1e-6")
        ),
        ({"fanouts": [2], "seeds": []}, "seeds is empty; expected at least one node, or None, which chooses some"),
        ({"fanouts": [2], "seeds": torch.tensor([])}, "seeds is empty; expected at least one node, or None"),
        ({"fanouts": [2], "seeds": [1.5, 2.5]}, "seeds is torch.float32; expected integer node ids"),
        ({"fanouts": [2], "seeds": [-1]}, "seeds holds node ids from -1 to -1; expected 0 to"),
        ({"fanouts": [2], "method": "weighted"}, "graph.weights is None; pass a graph with weights"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    graph = CSCGraph(GRAPH.indptr, GRAPH.indices)
    with pytest.raises(ValueError, match=message):
        check_sampler(NeighborSampler(graph, [2]).sample, graph, **arguments)


def by_shares(words, row, fanout):
    """With replacement, in proportion to the edges' places: the third edge three times as often as the first."""
    shares = range(1, len(row.neighbors) + 1)
    return words.choices(range(len(row.neighbors)), shares, k=fanout) if row.neighbors else []


def law_of_shares(edges, fanout):
    return Replaced(range(1, edges.stop - edges.start + 1), fanout)


def test_a_sampler_passes_with_its_own_law_and_no_other():
    assert check_plain(by_shares, law=law_of_shares).num_statistics > 100
    with pytest.raises(AssertionError, match="p-value"):
        check_plain(by_shares, law=lambda edges, fanout: Replaced([1.0] * (edges.stop - edges.start), fanout))


def test_the_number_of_picks_is_that_of_the_own_law():
    with pytest.raises(AssertionError, match=r"node 8 got 3 neighbours; expected 4 \(degree 12, 12 edges to draw from"):
        check_plain(by_shares, law=lambda edges, fanout: law_of_shares(edges, 4), seeds=[8])
    with pytest.raises(AssertionError, match=r"node 8 got \d neighbours; expected 12 "):
        check_plain(floyd, law=lambda edges, fanout: Independent([1.0] * (edges.stop - edges.start)), seeds=[8])


def test_an_edge_that_the_own_law_never_picks_is_found():
    with pytest.raises(AssertionError, match=r"got the edge from node \d+ \d+ times; expected at most 0"):
        check_plain(
            by_shares,
            law=lambda edges, fanout: Replaced([0.0] + [1.0] * (edges.stop - edges.start - 1), fanout),
            seeds=[8],
        )


def test_a_law_beside_a_method_is_refused():
    with pytest.raises(ValueError, match="law is given beside method='labor' and replace=False"):
        check_plain(floyd, method="labor", law=law_of_shares)


def test_a_graph_of_no_fanout_is_refused():
    with pytest.raises(ValueError, match="fanout is 0; expected an integer >= 1"):
        conformance_graph(0)
    with pytest.raises(ValueError, match="dtype is torch.int8; expected torch.int32 or torch.int64"):
        conformance_graph(dtype=torch.int8)
    assert conformance_graph(seed=np.int64(3)).indices.equal(conformance_graph(seed=3).indices)


def test_the_conformance_graph_is_in_canonical_order():
    rows = [GRAPH.orig_ids[GRAPH.indices[a:b].long()] for a, b in zip(GRAPH.indptr, GRAPH.indptr[1:], strict=False)]
    assert all(bool((row.diff() >= 0).all()) for row in rows)
    assert [row.numel() for row in rows[:9]] == [0, 1, 2, 3, 3, 4, 4, 6, 12]
