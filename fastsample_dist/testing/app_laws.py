"""Samples of an application held against the law that it states (sampling/transit/laws.py).

Picks whose law is the same are counted together, those of the first step apart. Statistics:
- a vertex of probability 0: never picked, exactly;
- every vertex of a law: how often it was picked (Chernoff's bound), and all of them: chi-square;
- how often a vertex was picked under all laws together, whatever they say of it each;
- a pick and the one that its transit came from, picks of neighbouring slots of a step, picks of one slot in
  neighbouring samples: independent, by the sum of the products of their ranks;
- roots that the application draws itself: the same, a sample's roots together being one outcome.

A pick's rank is the mean of its law's distribution function before and at the picked vertex, less one half: of mean 0,
whatever came before. So the sum of products of two picks' ranks is a martingale, and so is the number of times that a
vertex was picked less what its laws expect. Freedman's inequality (1975) bounds both: P(|sum| >= x) <=
2 exp(-x^2 / (2 V + 2/3 M x)), V being the sum of the increments' variances and M their largest size (1/4 of products, 1
of numbers). Draws repeated from step to step, slot to slot or sample to sample give each pick its law, but not
independence.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fastsample_dist.sampling.transit.app import ALL, NULL
from fastsample_dist.sampling.transit.binding import BoundApp
from fastsample_dist.sampling.transit.laws import History
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.testing.statistics import Evidence, pearson_p, tail_bound

TOLERANCE = 1e-9  # of a law's sum
LARGEST_PRODUCT = 0.25


class PickLaw:
    """One law, and how often each vertex was picked under it."""

    def __init__(self, law: Mapping[Hashable, float], place: Mapping[Hashable, int], where: str) -> None:
        self.vertices = sorted((v for v, p in law.items() if p > 0.0), key=lambda v: place.get(v, -1))
        self.p = np.array([law[v] for v in self.vertices])
        if not math.isclose(self.p.sum(), 1.0, rel_tol=TOLERANCE) or min(law.values()) < 0.0:
            raise AssertionError(f"the law of {where} adds up to {sum(law.values())}; expected probabilities.")
        self.ranks = np.cumsum(self.p) - self.p / 2 - 0.5
        self.variance = float(np.sum(self.p * self.ranks**2))
        self.index = {v: i for i, v in enumerate(self.vertices)}
        self.counts, self.where = np.zeros(len(self.vertices), dtype=np.int64), where

    def take(self, pick: Hashable, where: str) -> float:
        """Count a pick; returns its rank.

        Raises:
          AssertionError: it has probability 0.
        """
        if pick not in self.index:
            raise AssertionError(f"{where} is {pick}; its law allows {self.vertices[:8]} only.")
        self.counts[self.index[pick]] += 1
        return float(self.ranks[self.index[pick]])

    def weigh(self, evidence: Evidence) -> None:
        """The statistics of its counts."""
        total = int(self.counts.sum())
        if len(self.vertices) < 2:
            return
        for vertex, count, p in zip(self.vertices, self.counts.tolist(), self.p.tolist(), strict=True):
            evidence.add(
                tail_bound(count, total, p),
                lambda vertex=vertex, count=count, p=p: (
                    f"picks like {self.where}: {vertex} was picked {count} times of {total}, expected {p * total:.1f}"
                ),
            )
        evidence.add(
            pearson_p(self.counts, total * self.p),
            lambda: f"picks like {self.where}: chi-square of {len(self.vertices)} vertices in {total} picks",
        )


@dataclass
class Products:
    """The sum of products of pairs of ranks."""

    what: str
    total: float = 0.0
    variance: float = 0.0
    count: int = 0

    def add(self, known: float, rank: float, variance: float) -> None:
        """Take a pair: a rank that is known when the other, of the given variance, is drawn."""
        self.total += known * rank
        self.variance += known * known * variance
        self.count += 1

    def weigh(self, evidence: Evidence) -> None:
        """Its statistic."""
        if self.variance > 0.0:
            evidence.add(
                martingale_bound(self.total, self.variance, LARGEST_PRODUCT),
                lambda: (
                    f"{self.what}: the products of ranks add up to {self.total:.1f} over {self.count} pairs, expected "
                    f"0 within {math.sqrt(self.variance):.1f}"
                ),
            )


def martingale_bound(total: float, variance: float, largest: float) -> float:
    """Freedman's bound of the two-sided p-value of a martingale, by the sum of its increments' variances, above 0, and
    their largest size.
    """
    size = abs(total)
    return min(1.0, 2.0 * math.exp(-(size**2) / (2.0 * variance + 2.0 / 3.0 * largest * size)))


def weigh_roots(bound: BoundApp, samples: Samples, evidence: Evidence) -> int:
    """Add the statistics of roots that the application has drawn to the evidence.

    Returns:
      Samples whose roots were looked at; 0 if the application states no law of them.
    Raises:
      AssertionError: roots of probability 0, or a law that does not add up to 1.
    """
    stated = bound.app.roots_law(bound.graph)
    if stated is None or len(samples) == 0:
        return 0
    law = PickLaw(stated, {}, "the roots")
    neighbours, before = Products("roots of neighbouring samples"), None
    for sample_id, given in zip(samples.sample_ids.tolist(), samples.roots.tolist(), strict=True):
        count = max((i + 1 for i, root in enumerate(given) if root != NULL), default=0)
        rank = law.take(tuple(given[:count]), f"the roots of sample {sample_id}")
        if before is not None:
            neighbours.add(before, rank, law.variance)
        before = rank
    law.weigh(evidence)
    neighbours.weigh(evidence)
    return len(samples)


def weigh_samples(bound: BoundApp, samples: Samples, evidence: Evidence, max_picks: int) -> int:
    """Add the statistics of samples to the evidence.

    Args:
      samples: of distinct ids.
      max_picks: to look at; later samples are left out.
    Returns:
      Picks that were looked at; 0 if the application states no law.
    Raises:
      AssertionError: a pick of probability 0, or a law that does not add up to 1.
    """
    reader = _Reader(bound)
    for i in range(len(samples)):
        if reader.num_picks >= max_picks or not reader.has_law:
            break
        reader.read(samples.sample_ids[i].item(), [samples.roots[i].tolist(), *(s[i].tolist() for s in samples.steps)])
    for law in reader.laws.values():
        law.weigh(evidence)
    _weigh_vertices(reader.laws.values(), evidence)
    for products in (reader.steps, reader.slots, reader.samples):
        products.weigh(evidence)
    return reader.num_picks


def _weigh_vertices(laws: Iterable[PickLaw], evidence: Evidence) -> None:
    """The numbers of times that each vertex was picked, all laws together: laws of few picks each add up."""
    excess: dict[Hashable, float] = {}
    variance: dict[Hashable, float] = {}
    for law in laws:
        total = int(law.counts.sum())
        for vertex, count, p in zip(law.vertices, law.counts.tolist(), law.p.tolist(), strict=True):
            excess[vertex] = excess.get(vertex, 0.0) + count - total * p
            variance[vertex] = variance.get(vertex, 0.0) + total * p * (1.0 - p)
    for vertex, size in excess.items():
        if variance[vertex] > 0.0:
            evidence.add(
                martingale_bound(size, variance[vertex], 1.0),
                lambda vertex=vertex, size=size: (
                    f"{vertex} was picked {size:+.1f} times more than expected over all histories, within "
                    f"{math.sqrt(variance[vertex]):.1f}"
                ),
            )


@dataclass(frozen=True)
class _Slot:
    """A pick that was asked for: number in the step, index of its transit (of collective applications the number),
    number among the picks of that transit, and the path to it.
    """

    number: int
    index: int
    turn: int
    path: tuple[int, ...]


class _Reader:
    """Reads samples pick by pick."""

    def __init__(self, bound: BoundApp) -> None:
        self.bound, graph = bound, bound.graph
        order = range(graph.num_nodes) if graph.orig_ids is None else graph.orig_ids.argsort().tolist()
        self.place = {node: i for i, node in enumerate(order)}
        self.laws: dict[tuple, PickLaw] = {}
        self.steps = Products("picks of consecutive steps")
        self.slots = Products("picks of neighbouring slots")
        self.samples = Products("picks of one slot in neighbouring samples")
        self.before: dict[tuple[int, int], float] = {}  # ranks of the last sample by step and slot
        self.num_picks, self.has_law = 0, True

    def read(self, sample_id: int, vertices: list[list[int]]) -> None:
        """One sample: its roots, and the picks of each step."""
        ranks: dict[tuple[int, int], float] = {}
        for step in range(len(vertices) - 1):
            picks, before = vertices[step + 1], tuple(map(tuple, vertices[: step + 1]))
            for slot in self._slots(step, vertices, sample_id):
                history = History(step, slot.number, slot.path, before, slot.turn, tuple(picks[: slot.number]))
                stated = self.bound.app.law(self.bound.graph, history)
                if stated is None:
                    self.has_law = False
                    return
                where = f"slot {slot.number} of step {step} in sample {sample_id} (after {slot.path or before})"
                key = (step > 0, tuple(sorted(stated.items())))
                if key not in self.laws:
                    self.laws[key] = PickLaw(stated, self.place, where)
                law = self.laws[key]
                rank = law.take(picks[slot.number], where)
                self._pair(ranks, (step, slot.number), slot.index, rank, law.variance)
                self.num_picks += 1
        self.before = ranks

    def _pair(
        self, ranks: dict[tuple[int, int], float], at: tuple[int, int], came_from: int, rank: float, variance: float
    ) -> None:
        """Pair a pick, at (step, slot), with the picks before it."""
        step, slot = at
        for products, known in (
            (self.steps, ranks.get((step - 1, came_from))),
            (self.slots, ranks.get((step, slot - 1))),
            (self.samples, self.before.get(at)),
        ):
            if known is not None:
                products.add(known, rank, variance)
        ranks[at] = rank

    def _slots(self, step: int, vertices: list[list[int]], sample_id: int) -> Iterator[_Slot]:
        """The picks that were asked for. Of distinct picks the first alone, which is an ordinary draw, unless a race
        ranks them: then each is the next to arrive of those that are left.
        """
        plan, collective = self.bound.plan(len(vertices[0])), self.bound.collective
        shape, chained = plan.shape(step), not collective and self.bound.step_transits is None
        if shape.sample_size == ALL:
            if chained:
                yield from self._slots_of_all(step, vertices, sample_id)
            return
        first_alone = shape.unique and not self.bound.layout.ranked
        for number in range(min(shape.picks, 1) if first_alone else shape.picks):
            index, turn = (number, number) if collective else divmod(number, shape.sample_size)
            path = self._path(step, index, vertices) if chained else ()
            if NULL not in path:
                yield _Slot(number, index, turn, path)

    def _slots_of_all(self, step: int, vertices: list[list[int]], sample_id: int) -> Iterator[_Slot]:
        """A pick per neighbour of every transit."""
        indptr, number = self.bound.graph.indptr, 0
        for index, transit in enumerate(vertices[step]):
            if transit == NULL:
                continue
            path = self._path(step, index, vertices)
            for turn in range(int(indptr[transit + 1] - indptr[transit])):
                yield _Slot(number, index, turn, path)
                number += 1
        more = [pick for pick in vertices[step + 1][number:] if pick != NULL]
        if more:
            raise AssertionError(
                f"step {step} of sample {sample_id} has {len(more)} picks behind the {number} neighbours of its "
                "transits; expected none."
            )

    def _path(self, step: int, index: int, vertices: list[list[int]]) -> tuple[int, ...]:
        """Vertices from the root to the transit of this index."""
        plan, path = self.bound.plan(len(vertices[0])), [vertices[step][index]]
        for k in range(step - 1, -1, -1):
            index //= plan.shape(k).sample_size
            path.append(vertices[k][index])
        return tuple(reversed(path))
