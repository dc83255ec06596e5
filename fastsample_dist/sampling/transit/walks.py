"""Random walks and k-hop neighbourhoods: applications with individual transits (NextDoor, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.ops.walk_lengths import survival_thresholds
from fastsample_dist.sampling.transit.app import ALL, INF, NULL, ROOTS, App, Needs, needs, same_every_step, sizes_of
from fastsample_dist.sampling.transit.laws import History, Law, normalised, row_shares
from fastsample_dist.sampling.transit.params import params

MIN_STOP = 1e-5  # of PPR: its table of lengths then has 4.4 million entries
_ONE = 2**32  # a threshold that every word is below
_MOST_TRIALS = 2**20  # of a step of node2vec, on average, where only the rarest kind of neighbour is there


class DeepWalk(App):
    """Walks of a fixed length; every step goes to a neighbour by edge weight, or uniformly on a graph without.

    A walk that meets a vertex without neighbours (or with weights of 0 alone) ends there: NULL from then on.

    Args:
      length: steps.
      weighted: None: by weight if the graph has weights; True: it must; False: uniformly.
    Source: Perozzi et al., "DeepWalk", KDD'14, section 4.2; weights as NextDoor, section 3.
    """

    def __init__(self, length: int = 100, weighted: bool | None = None) -> None:
        self.length = _length(length)
        self.needs = _weights(weighted)

    def steps(self) -> int:
        """See App."""
        return self.length

    @same_every_step
    def sample_size(self, step: int) -> int:
        """See App."""
        return 1

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        return edges.pick(draw)

    def law(self, graph: CSCGraph, history: History) -> Law:
        """Shares of the row; see App."""
        return row_shares(graph, history.transit, self.weighted(graph)) or {NULL: 1.0}


class PPR(App):
    """Walks that end with probability `stop` after each step, as personalised PageRank follows them.

    The length is drawn at the root: P(length > k) = (1 - stop)^k, so that the first step is always made and the mean is
    1 / stop. Thresholds are multiples of 2^-63.

    Args:
      stop: probability of ending after a step, 1e-5 to 1.
      weighted: as of DeepWalk.
    """

    state: ClassVar = {"length": (np.int64, 1)}

    def __init__(self, stop: float = 0.01, weighted: bool | None = None) -> None:
        stop = checks.plain(stop)
        if not isinstance(stop, int | float) or not MIN_STOP <= stop <= 1.0:
            raise ValueError(f"stop is {stop!r}; expected {MIN_STOP} to 1: the walk's mean length is 1 / stop.")
        self.stop = float(stop)
        self.needs = _weights(weighted)
        self.par = params(survival=survival_thresholds(self.stop))
        self.max_steps = self.par.survival.size + 2  # the longest walk, and the step in which it ends

    def steps(self) -> float:
        """See App."""
        return INF

    @same_every_step
    def sample_size(self, step: int) -> int:
        """See App."""
        return 1

    def initial(s, draw, par):
        """Draw the length: one more than the number of thresholds that the variate is below."""
        variate = draw.word64() >> 1
        low, high = 0, len(par.survival)
        while low < high:
            middle = (low + high) // 2
            if variate < par.survival[middle]:
                low = middle + 1
            else:
                high = middle
        s.length[0] = low + 1

    def next(s, transits, edges, step, draw, par):
        """A neighbour, until the drawn length is reached."""
        if step >= s.length[0]:
            return NULL
        return edges.pick(draw)

    def law(self, graph: CSCGraph, history: History) -> Law:
        """After the first step, the walk ends with probability stop; see App."""
        shares = row_shares(graph, history.transit, self.weighted(graph))
        ends = self.stop if history.step else 0.0
        return {NULL: ends, **{node: (1.0 - ends) * share for node, share in shares.items()}} if shares else {NULL: 1.0}


class Node2Vec(App):
    """Walks whose next vertex depends on the one before, too: u follows v, reached from t, with probability
    proportional to w(v, u) times 1/p if u = t, 1 if u is a neighbour of t, and 1/q otherwise.

    By rejection: u is drawn by weight and accepted by a coin; whether u is a neighbour of t is looked up only where the
    coin leaves it open. Thresholds are multiples of 2^-32 of the largest factor. A sample with several roots is as many
    walks, each of which has its own vertex before; a subclass must leave it at one pick per step and walk.

    Args:
      length: steps.
      p, q: return and in-out parameter, > 0.
      weighted: as of DeepWalk.
    Source: Grover & Leskovec, "node2vec", KDD'16, section 3.2.2.
    """

    def __init__(self, length: int = 100, p: float = 2.0, q: float = 0.5, weighted: bool | None = None) -> None:
        p, q = checks.plain(p), checks.plain(q)
        if not all(isinstance(factor, int | float) and 0.0 < factor < np.inf for factor in (p, q)):
            raise ValueError(f"p is {p!r} and q is {q!r}; expected numbers above 0.")
        self.length, self.p, self.q = _length(length), float(p), float(q)
        self.needs = _weights(weighted, edge_queries=True)
        factors = {"back": 1.0 / self.p, "near": 1.0, "far": 1.0 / self.q}
        largest = max(factors.values())
        thresholds = {name: int(factor / largest * _ONE) for name, factor in factors.items()}
        if min(thresholds.values()) < _ONE // _MOST_TRIALS:
            raise ValueError(
                f"p is {p} and q is {q}: factors {factors} are too far apart, a step could take more than "
                f"{_MOST_TRIALS} draws; pass p and q that are closer to 1."
            )
        self.par = params(**thresholds, low=min(thresholds.values()), high=max(thresholds.values()))

    def steps(self) -> int:
        """See App."""
        return self.length

    @same_every_step
    def sample_size(self, step: int) -> int:
        """See App."""
        return 1

    def next(s, transits, edges, step, draw, par):
        """A neighbour, by rejection."""
        if step == 0:
            return edges.pick(draw)
        previous = s.prev_vertex(2, draw.index)
        while True:
            u = edges.pick(draw)
            if u == NULL:
                return NULL
            coin = draw.word()
            if coin < par.low:
                return u
            if coin >= par.high:
                continue
            if u == previous:
                threshold = par.back
            elif s.prev_edges(2, draw.index).has(u):
                threshold = par.near
            else:
                threshold = par.far
            if coin < threshold:
                return u

    def law(self, graph: CSCGraph, history: History) -> Law:
        """See the class, and App."""
        shares = row_shares(graph, history.transit, self.weighted(graph))
        if history.step:
            previous = history.path[-2]
            near = row_shares(graph, previous, False)
            for node in shares:
                shares[node] *= 1.0 / self.p if node == previous else 1.0 if node in near else 1.0 / self.q
        return normalised(shares) if shares else {NULL: 1.0}


class MultiRW(App):
    """Multi-dimensional random walk: each step walks from one of the sample's vertices, and the neighbour that it comes
    to takes that vertex's place.

    Args:
      length: steps.
      by_degree: choose the vertex in proportion to its number of neighbours, as frontier sampling (and GraphSAINT) do,
        instead of uniformly, as NextDoor does. A step costs the number of roots. A place for a root that is NULL counts
        as a vertex without neighbours.
    Source: Ribeiro & Towsley, "Estimating and sampling graphs with multidimensional random walks", IMC'10, algorithm 1.
    """

    state: ClassVar = {"roots": (np.int64, ROOTS), "chosen": (np.int64, 1)}
    needs = needs(weights=False)

    def __init__(self, length: int = 100, by_degree: bool = False) -> None:
        self.length, self.by_degree = _length(length), checks.plain(by_degree)
        checks.flag("by_degree", self.by_degree)
        self.par = params(by_degree=self.by_degree)

    def steps(self) -> int:
        """See App."""
        return self.length

    @same_every_step
    def sample_size(self, step: int) -> int:
        """See App."""
        return 1

    @same_every_step
    def num_transits(self, step: int, num_roots: int) -> int:
        """See App."""
        return 1

    def initial(s, draw, par):
        """The roots are the first vertices to walk from."""
        for i in range(s.num_roots):
            s.roots[i] = s.root(i)

    def step_transits(step, s, index, draw, par):
        """The vertex to walk from; by degree: NULL if no vertex has neighbours."""
        if s.num_roots == 0:
            return NULL
        if par.by_degree == 0:
            s.chosen[0] = draw.below(s.num_roots)
            return s.roots[s.chosen[0]]
        total = 0
        for i in range(s.num_roots):
            total += len(s.row(s.roots[i]))
        if total == 0:
            return NULL
        left = draw.below(total)
        chosen = 0
        while left >= len(s.row(s.roots[chosen])):
            left -= len(s.row(s.roots[chosen]))
            chosen += 1
        s.chosen[0] = chosen
        return s.roots[chosen]

    def next(s, transits, edges, step, draw, par):
        """A neighbour, which takes the vertex's place."""
        if len(edges) == 0:
            return NULL
        u = edges[draw.below(len(edges))]
        s.roots[s.chosen[0]] = u
        return u

    def law(self, graph: CSCGraph, history: History) -> Law:
        """Shares of the rows of the vertices that may be walked from, over all ways in which the picks so far can have
        come about: their number grows with the roots and steps, few of which are enough for a check; see App.
        """
        ways = {tuple(sorted(history.vertices[0])): 1.0}  # the vertices to walk from, in any order
        for (pick,) in history.vertices[1:]:
            moved: dict[tuple[int, ...], float] = {}
            for places, way in ways.items():
                for place, chance in self._chosen(graph, places):
                    after = (*places[:place], places[place] if pick == NULL else pick, *places[place + 1 :])
                    share = self._shares(graph, places[place]).get(pick, 0.0)
                    moved[tuple(sorted(after))] = moved.get(tuple(sorted(after)), 0.0) + way * chance * share
            ways = normalised({places: way for places, way in moved.items() if way > 0.0}) or ways
        law: dict[int, float] = {}
        for places, way in ways.items():
            for place, chance in self._chosen(graph, places):
                for node, share in self._shares(graph, places[place]).items():
                    law[node] = law.get(node, 0.0) + way * chance * share
        return law or {NULL: 1.0}

    def _chosen(self, graph: CSCGraph, places: tuple[int, ...]) -> list[tuple[int, float]]:
        """Each place that may be walked from, and the probability that it is; none where no vertex has neighbours and
        the choice is by degree.
        """
        sizes = [1.0] * len(places)
        if self.by_degree:
            sizes = [0.0 if v == NULL else float(graph.indptr[v + 1] - graph.indptr[v]) for v in places]
        return [(place, size / sum(sizes)) for place, size in enumerate(sizes) if size > 0.0]

    def _shares(self, graph: CSCGraph, node: int) -> dict[int, float]:
        return (row_shares(graph, node, False) if node != NULL else {}) or {NULL: 1.0}


class KHop(App):
    """Neighbourhoods of GraphSAGE: sizes[k] neighbours of every vertex that step k - 1 came to, uniformly, with
    replacement.

    Args:
      sizes: picks per vertex, one per step, 0 or more. All neighbours: a fanout of -1 of NeighborSampler, or MVS.
      unique: the picks of a sample are distinct within a step. A pick whose max_attempts (64) draws are all of vertices
        that are taken stays NULL: 25 picks from 25 neighbours miss one or more in 13 % of the samples.
    Source: Hamilton et al., "Inductive representation learning on large graphs", NeurIPS'17, algorithm 1.
    """

    needs = needs(weights=False)

    def __init__(self, sizes: Sequence[int] = (25, 10), unique: bool = False) -> None:
        self.sizes, self.distinct = sizes_of(sizes), checks.plain(unique)
        checks.flag("unique", self.distinct)
        if ALL in self.sizes:
            raise ValueError(
                f"sizes is {self.sizes}; expected integers >= 0: picks are made with replacement. All neighbours are "
                "those of fsd.NeighborSampler with a fanout of -1, or of transit.MVS."
            )

    def steps(self) -> int:
        """See App."""
        return len(self.sizes)

    def sample_size(self, step: int) -> int:
        """See App."""
        return self.sizes[step]

    def unique(self, step: int) -> bool:
        """See App."""
        return self.distinct

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        return edges.pick(draw)

    def law(self, graph: CSCGraph, history: History) -> Law:
        """Shares of the row; see App."""
        return row_shares(graph, history.transit, self.weighted(graph)) or {NULL: 1.0}


def _length(length: int) -> int:
    steps = checks.as_integer(length)
    if steps is None or steps < 0:
        raise ValueError(f"length is {length!r}; expected an integer, 0 steps or more.")
    return steps


def _weights(weighted: bool | None, **others: bool) -> Needs:
    weighted = checks.plain(weighted)
    if weighted is not None:
        checks.flag("weighted", weighted)
    return needs(weights="auto" if weighted is None else weighted, **others)
