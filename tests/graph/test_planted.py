"""The planted partition: exact against an edge-by-edge oracle, then its laws, with fixed seeds and a false-alarm rate
of 1e-6 each."""

import itertools

import numpy as np
import pytest

from fastsample_dist.graph import planted
from fastsample_dist.graph.id_order import IdOrder
from fastsample_dist.graph.planted import PlantedGraph, PowerLaw, planted_parts
from tests.optional import stats

FALSE_ALARM = 1e-6
SMALL = PlantedGraph(num_nodes=300, num_edges=5000, num_communities=7, mixing=0.3, seed=3)
LARGE = PlantedGraph(num_nodes=200_000, num_edges=2_000_000, num_communities=20, max_degree=5000, seed=2)


def oracle(graph: PlantedGraph) -> list[tuple[int, int]]:
    """(source, destination) numbers of every edge, one at a time."""
    draws = [int(draw) >> 11 for draw in np.random.PCG64([graph.seed, planted.EDGES]).random_raw(2 * graph.num_edges)]
    starts, firsts, cells = graph.offsets.tolist(), graph.edge_offsets.tolist(), graph.cells.tolist()

    def node(community: int, cell: float) -> int:
        whole = min(int(cell), len(cells) - 2)
        size = starts[community + 1] - starts[community]
        place = cells[whole] + (cells[whole + 1] - cells[whole]) * (cell - whole)
        return starts[community] + min(int(place * size), size - 1)

    edges = []
    for edge in range(graph.num_edges):
        own = max(c for c in range(graph.num_communities) if firsts[c] <= edge)
        size, last = starts[own + 1] - starts[own], len(cells) - 1
        src = node(own, (edge - firsts[own] + 0.5) * (last / (firsts[own + 1] - firsts[own])))
        leave, to = draws[2 * edge + 1] * 2.0**-53, own
        if leave < graph.mixing:
            other = int(leave * (1 / graph.mixing) * (graph.num_nodes - size))
            other += size * (other >= starts[own])
            to = max(c for c in range(graph.num_communities) if starts[c] <= other)
        dst = node(to, draws[2 * edge] * (last * 2.0**-53))
        if src == dst:
            dst = starts[own] + (dst - starts[own] + 1) % size
        edges.append((src, dst))
    return edges


def all_numbers(graph: PlantedGraph, block: int = 1 << 14) -> np.ndarray:
    """Both ends of all edges, [2, E], drawn in blocks."""
    ranges = [(lo, min(lo + block, graph.num_edges)) for lo in range(0, graph.num_edges, block)]
    return np.concatenate([np.stack(graph.numbers(*bounds)) for bounds in ranges], axis=1)


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    return all_numbers(LARGE)


def test_edges_equal_the_edge_by_edge_oracle():
    assert list(zip(*all_numbers(SMALL).tolist(), strict=True)) == oracle(SMALL)


@pytest.mark.parametrize("block", [1, 37, 5000])
def test_edges_do_not_depend_on_the_blocks_they_are_drawn_in(block):
    assert np.array_equal(all_numbers(SMALL, block), all_numbers(SMALL, 1000))


def test_no_edge_is_a_loop():
    src, dst = all_numbers(PlantedGraph(num_nodes=8, num_edges=1000, num_communities=4))
    assert (src != dst).all()


def test_edges_between_each_two_communities_follow_sizes_and_mixing(large):
    sizes, edges = np.diff(LARGE.offsets), np.diff(LARGE.edge_offsets)
    of = np.repeat(np.arange(len(sizes)), sizes)
    found = np.zeros((len(sizes), len(sizes)))
    np.add.at(found, (of[large[0]], of[large[1]]), 1)
    expected = edges[:, None] * LARGE.mixing * sizes / (LARGE.num_nodes - sizes[:, None])
    np.fill_diagonal(expected, edges * (1 - LARGE.mixing))
    statistic = float(((found - expected) ** 2 / expected).sum())
    freedom = len(sizes) * (len(sizes) - 1)  # every row has a given sum
    assert stats.chi2.sf(statistic, freedom) > FALSE_ALARM
    assert stats.chi2.cdf(statistic, freedom) > FALSE_ALARM


def test_in_degrees_follow_the_weights(large):
    """By place in the community, 20 bins of equal weight. Loops, which are moved by one, are too few to see."""
    sizes, shares = np.diff(LARGE.offsets), np.linspace(0, 1, len(LARGE.cells))
    ends = [np.interp(np.arange(size + 1) / size, LARGE.cells, shares) for size in sizes]
    low, high = (np.concatenate([end[bounds] for end in ends]) for bounds in (slice(None, -1), slice(1, None)))
    degrees = np.bincount(large[1], minlength=LARGE.num_nodes)
    bins = np.arange(21) / 20  # a node on the border of two counts in both, by the shares of its weight
    inside = [np.clip(np.minimum(high, hi) - np.maximum(low, lo), 0, None) for lo, hi in itertools.pairwise(bins)]
    counts = np.array([(degrees * part / (high - low)).sum() for part in inside])
    assert stats.chi2.sf(float(((counts - counts.mean()) ** 2 / counts.mean()).sum()), 19) > FALSE_ALARM


@pytest.mark.parametrize("end", [0, 1], ids=["out", "in"])
def test_degrees_have_the_tail_that_was_asked_for(large, end):
    """Hill's estimate above ten means, of the density's exponent: standard error 1.5 / sqrt(4,600) = 0.022."""
    degrees = np.bincount(large[end], minlength=LARGE.num_nodes)
    tail = degrees[degrees >= 100]
    assert len(tail) > 1000
    hill = 1 + len(tail) / np.log(tail / 99.5).sum()
    assert abs(hill - LARGE.degree_exponent) < 5 * 1.5 / np.sqrt(len(tail))


def test_out_degrees_are_the_weights_rounded(large):
    lo, hi = LARGE.offsets[3:5]
    share = np.interp(np.arange(hi - lo + 1) / (hi - lo), LARGE.cells, np.linspace(0, 1, len(LARGE.cells)))
    expected = np.diff(share) * (LARGE.edge_offsets[4] - LARGE.edge_offsets[3])
    found = np.bincount(large[0], minlength=LARGE.num_nodes)[lo:hi]
    assert np.abs(found - expected).max() <= 1.001
    assert LARGE.max_degree / 3 < found.max() < LARGE.max_degree  # the first node has the mean over its own range


def test_sizes_follow_the_ratio_and_the_nodes_are_all_dealt():
    for graph in (SMALL, LARGE):
        sizes = np.diff(graph.offsets)
        assert sizes.sum() == graph.num_nodes and sizes.min() >= 2 and (np.diff(sizes) <= 1).all()
    sizes = np.diff(PlantedGraph(num_nodes=10**6, num_edges=0, num_communities=1000, size_ratio=4.0).offsets)
    assert sizes[0] / 1000 == pytest.approx(4, rel=0.02)
    equal = PlantedGraph(num_nodes=1000, num_edges=0, num_communities=7, size_ratio=1.0)
    assert set(np.diff(equal.offsets)) == {142, 143}


def test_edges_are_shared_out_exactly_beyond_int64_products():
    graph = PlantedGraph(num_nodes=3 * 10**9, num_edges=10**12 + 7, num_communities=3, size_ratio=1.0)
    expected = [int(offset) * graph.num_edges // graph.num_nodes for offset in graph.offsets]
    assert graph.edge_offsets.tolist() == expected


@pytest.mark.parametrize("ratio", [1.0, 3.0, 1e5])
def test_a_power_law_has_the_ratio_of_its_largest_weight_to_the_mean(ratio):
    cells = PowerLaw(2.5, ratio).cells()
    assert cells[0] == 0 and cells[-1] == 1 and (np.diff(cells) >= 0).all()
    assert 1 / (cells[1] * (len(cells) - 1)) == pytest.approx(ratio, rel=0.25)  # of the first cell


@pytest.mark.parametrize("count", [1, 2, 3, 10, 257, 5000])
def test_an_id_order_is_a_permutation_and_its_inverse(count):
    order, numbers = IdOrder(count, [1, 1]), np.arange(count)
    places = order.places(numbers)
    assert sorted(places.tolist()) == numbers.tolist()
    assert np.array_equal(order.numbers(places), numbers)


def test_an_id_order_leaves_nothing_of_the_communities():
    """Ids in 30 equal ranges by community: chi-square of a table with both margins given."""
    graph = PlantedGraph(num_nodes=60_000, num_edges=0, num_communities=12)
    of = graph.communities(0, graph.num_nodes)
    table = np.zeros((30, 12))
    np.add.at(table, (np.arange(graph.num_nodes) // 2000, of), 1)
    chance = stats.chi2_contingency(table)
    assert FALSE_ALARM < chance.pvalue < 1 - FALSE_ALARM
    steps = np.diff(graph.order.places(np.arange(graph.num_nodes)))
    assert len(np.unique(steps)) > 0.4 * len(steps)  # neighbours in number are nowhere near each other


def test_ordered_ids_ascend_with_the_communities():
    graph = PlantedGraph(num_nodes=100, num_edges=0, num_communities=5, ordered=True)
    assert (np.diff(graph.communities(0, 100)) >= 0).all()


@pytest.mark.parametrize(("num_communities", "num_parts"), [(40, 3), (5, 8), (6, 1), (2, 50)])
def test_planted_parts_hold_equal_nodes_and_divide_few_communities(num_communities, num_parts):
    graph = PlantedGraph(num_nodes=1003, num_edges=0, num_communities=num_communities)
    of = graph.communities(0, 1003)
    parts = planted_parts(of, num_parts)
    counts = np.bincount(parts, minlength=num_parts)
    assert parts.dtype == np.int32 and counts.max() - counts.min() <= 1
    pieces = len(set(zip(of.tolist(), parts.tolist(), strict=True)))
    assert pieces <= num_communities + 2 * num_parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 0}, "nodes is 0; expected 1 to 3000000000."),
        ({"num_communities": 151}, "communities is 151; expected 1 to 150: each has 2 or more of the 300 nodes."),
        ({"num_communities": 0}, "communities is 0; expected 1 to 150"),
        ({"num_edges": -1}, "edges is -1; expected 0 or more."),
        ({"mixing": 1.1}, "mixing is 1.1; expected a share of the edges, 0 to 1."),
        ({"mixing": float("nan")}, "mixing is nan; expected a share"),
        ({"num_communities": 1}, "mixing is 0.3 but there is one community, which no edge can leave; pass 0."),
        ({"degree_exponent": 2.0}, "degree exponent is 2.0; expected above 2"),
        ({"size_ratio": 0.5}, "size ratio is 0.5; expected 1 (equal sizes) or more."),
        ({"max_degree": 3.0}, "max degree is 3.0; expected the mean, 16.6667, or more."),
        ({"seed": -1}, "seed is -1; expected 0 or more."),
    ],
)
def test_a_graph_that_cannot_be_is_refused(change, message):
    given = {"num_nodes": 300, "num_edges": 5000, "num_communities": 7, "mixing": 0.3} | change
    with pytest.raises(ValueError) as refused:
        PlantedGraph(**given)
    assert str(refused.value).startswith(message)
