"""Samples of an application held against the law that it states (sampling/transit/laws.py).

Picks whose law is the same are counted together, those of the first step apart. Statistics:
- a vertex of probability 0: never picked, exactly;
- every vertex of a law: how often it was picked (Chernoff's bound), and all of them: chi-square;
- a pick and the one that its transit came from, picks of neighbouring slots of a step, picks of one slot in
  neighbouring samples: independent, by the sum of the products of their ranks.

A pick's rank is the mean of its law's distribution function before and at the picked vertex, less one half: of mean 0,
whatever came before. So the sum of products of two picks' ranks is a martingale, which Freedman's inequality (1975)
bounds: P(|sum| >= x) <= 2 exp(-x^2 / (2 V + 2/3 M x)), V being the sum of the increments' variances and M = 1/4 their
largest size. Draws repeated from step to step, slot to slot or sample to sample give each pick its law, but not this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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

    def __init__(self, law: Mapping[int, float], place: Mapping[int, int], where: str) -> None:
        self.vertices = sorted((v for v, p in law.items() if p > 0.0), key=lambda v: place.get(v, -1))
        self.p = np.array([law[v] for v in self.vertices])
        if not math.isclose(self.p.sum(), 1.0, rel_tol=TOLERANCE) or min(law.values()) < 0.0:
            raise AssertionError(f"the law of {where} adds up to {sum(law.values())}; expected probabilities.")
        self.ranks = np.cumsum(self.p) - self.p / 2 - 0.5
        self.variance = float(np.sum(self.p * self.ranks**2))
        self.index = {v: i for i, v in enumerate(self.vertices)}
        self.counts, self.where = np.zeros(len(self.vertices), dtype=np.int64), where

    def take(self, pick: int, where: str) -> float:
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
            size = abs(self.total)
            bound = 2.0 * math.exp(-(size**2) / (2.0 * self.variance + 2.0 / 3.0 * LARGEST_PRODUCT * size))
            evidence.add(
                min(1.0, bound),
                lambda: (
                    f"{self.what}: the products of ranks add up to {self.total:.1f} over {self.count} pairs, expected "
                    f"0 within {math.sqrt(self.variance):.1f}"
                ),
            )


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
    for products in (reader.steps, reader.slots, reader.samples):
        products.weigh(evidence)
    return reader.num_picks


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
        plan = self.bound.plan(len(vertices[0]))
        ranks: dict[tuple[int, int], float] = {}
        for step in range(len(vertices) - 1):
            shape = plan.shape(step)
            if shape.sample_size == ALL:
                continue
            for slot, path in self._picks(step, vertices):
                history = History(step, slot, path, tuple(map(tuple, vertices[: step + 1])))
                stated = self.bound.app.law(self.bound.graph, history)
                if stated is None:
                    self.has_law = False
                    return
                where = f"slot {slot} of step {step} in sample {sample_id} (after {path or history.vertices})"
                key = (step > 0, tuple(sorted(stated.items())))
                if key not in self.laws:
                    self.laws[key] = PickLaw(stated, self.place, where)
                law = self.laws[key]
                rank = law.take(vertices[step + 1][slot], where)
                came_from = slot if self.bound.collective else slot // shape.sample_size
                self._pair(ranks, (step, slot), came_from, rank, law.variance)
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

    def _picks(self, step: int, vertices: list[list[int]]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Slots that were asked for, and their paths; of distinct picks the first alone, which is an ordinary draw."""
        plan = self.bound.plan(len(vertices[0]))
        shape, chained = plan.shape(step), not self.bound.collective and self.bound.step_transits is None
        for slot in range(min(shape.picks, 1) if shape.unique else shape.picks):
            path: tuple[int, ...] = ()
            if chained:
                path = _path(step, slot, vertices, [plan.shape(k).sample_size for k in range(step + 1)])
                if path[-1] == NULL:
                    continue
            yield slot, path


def _path(step: int, slot: int, vertices: list[list[int]], sizes: list[int]) -> tuple[int, ...]:
    """Vertices from the root to the transit of a slot."""
    path = []
    for k in range(step, -1, -1):
        slot //= sizes[k]
        path.append(vertices[k][slot])
    return tuple(reversed(path))
