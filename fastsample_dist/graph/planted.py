"""A planted partition with power-law degrees: a directed graph of any size whose good cuts are known.

Nodes are in communities of unequal sizes; `mixing` is the share of edges that leave their community, to another one in
proportion to its nodes. The ends of an edge are drawn in proportion to weights inside their communities (Chung and Lu,
Annals of Combinatorics 2002), which follow one power law, as in the LFR benchmark (Lancichinetti, Fortunato and
Radicchi, Physical Review E 2008). Sources are not drawn but dealt: edge e of a community has the source into whose
share of the community's weight e falls, so that out-degrees are the law's own, rounded up or down.

Edge e is made of draws 2 e and 2 e + 1 of one raw stream of PCG64 (NEP 19) and of nothing else: any range of edges can
be drawn on its own, and is the same whatever others are drawn. Inside, nodes are numbered community by community, the
heaviest node first; `IdOrder` turns numbers into ids. Self-loops are moved to the next node; parallel edges stay.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastsample_dist.graph.id_order import IdOrder

MAX_NODES = 3_000_000_000  # as datasets.MAX_NODES: products of two node numbers fit in int64
SIZE_EXPONENT = 2.0  # of the communities' sizes; LFR takes 1 to 2
SIZE_RATIO = 4.0
DEGREE_EXPONENT = 2.5
MOST_DEGREE_RATIO = 1000.0
LEAST_NODES = 2  # of a community: an edge inside has two ends
EDGES, ORDER, SPLITS, FEATURES = range(4)  # streams of a seed
_CELLS = 1 << 16  # of the tabulated law: 1 MB, which stays in a core's cache
_FRACTION = 2.0**-53


class PowerLaw:
    """Weights (t + shift)**-slope for t from 0 to 1, slope = 1 / (exponent - 1): a density of weights w**-exponent.

    Args:
      exponent: above 1.
      ratio: largest weight over the mean, at least 1; 1: all are equal.
    """

    def __init__(self, exponent: float, ratio: float) -> None:
        self._slope = 1 / (exponent - 1)
        self._shift = self._find_shift(ratio)

    def cells(self) -> np.ndarray:
        """Places t at which the weight up to t is 0, 1, .. _CELLS parts of _CELLS of the whole; float64, ascending."""
        shares = np.arange(_CELLS + 1) / _CELLS
        if np.isinf(self._shift):
            return shares
        low, high = (self._integral(end + self._shift) for end in (0.0, 1.0))
        cells = self._inverse(low + shares * (high - low)) - self._shift
        cells[0], cells[-1] = 0.0, 1.0
        return np.maximum.accumulate(cells.clip(0, 1))

    def _integral(self, value: float) -> float:
        return np.log(value) if self._slope == 1 else value ** (1 - self._slope) / (1 - self._slope)

    def _inverse(self, integral: np.ndarray) -> np.ndarray:
        if self._slope == 1:
            return np.exp(integral)
        return (integral * (1 - self._slope)) ** (1 / (1 - self._slope))

    def _find_shift(self, ratio: float) -> float:
        """By bisection of its logarithm: the ratio falls as the shift grows."""
        low, high = -60.0, 8.0
        for _ in range(80):
            middle = (low + high) / 2
            shift = np.exp(middle)
            found = shift**-self._slope / (self._integral(1 + shift) - self._integral(shift))
            low, high = (middle, high) if found > ratio else (low, middle)
        return np.inf if high > 7 else float(np.exp(low))


@dataclass(frozen=True, kw_only=True)
class PlantedGraph:
    """Which graph: the same fields, the same edges.

    Attributes:
      num_nodes: N, at least twice the communities.
      num_edges: E, as listed.
      num_communities: C; community 0 is the largest.
      mixing: share of edges that leave their community.
      degree_exponent: of the density of the degrees, above 2.
      max_degree: where the law of out-degrees ends (the heaviest node of a small community stays below it); None:
        MOST_DEGREE_RATIO means, or the nodes of the smallest community if they are fewer, but at least two means.
      size_ratio: nodes of the largest community over the mean; 1: equal sizes.
      ordered: ids ascend with the communities; else they are in random order.
      seed: names the draws.
    Raises:
      ValueError: one is out of range.
    """

    num_nodes: int
    num_edges: int
    num_communities: int
    mixing: float = 0.2
    degree_exponent: float = DEGREE_EXPONENT
    max_degree: float | None = None
    size_ratio: float = SIZE_RATIO
    ordered: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes <= MAX_NODES:
            raise ValueError(f"nodes is {self.num_nodes}; expected 1 to {MAX_NODES}.")
        most = self.num_nodes // LEAST_NODES
        if not 1 <= self.num_communities <= most:
            raise ValueError(
                f"communities is {self.num_communities}; expected 1 to {most}: each has {LEAST_NODES} or more of the "
                f"{self.num_nodes} nodes."
            )
        if self.num_edges < 0:
            raise ValueError(f"edges is {self.num_edges}; expected 0 or more.")
        if not 0 <= self.mixing <= 1:
            raise ValueError(f"mixing is {self.mixing}; expected a share of the edges, 0 to 1.")
        if self.num_communities == 1 and self.mixing:
            raise ValueError(f"mixing is {self.mixing} but there is one community, which no edge can leave; pass 0.")
        if not 2 < self.degree_exponent < np.inf:
            raise ValueError(f"degree exponent is {self.degree_exponent}; expected above 2: the mean is finite then.")
        if not 1 <= self.size_ratio < np.inf:
            raise ValueError(f"size ratio is {self.size_ratio}; expected 1 (equal sizes) or more.")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; expected 0 or more.")
        if self.max_degree is not None and not self.mean_degree <= self.max_degree < np.inf:
            raise ValueError(f"max degree is {self.max_degree}; expected the mean, {self.mean_degree:g}, or more.")

    @property
    def mean_degree(self) -> float:
        """Listed edges per node."""
        return self.num_edges / self.num_nodes

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [C + 1]; first number of each community."""
        places = np.arange(self.num_communities + 1) / self.num_communities
        cells = PowerLaw(SIZE_EXPONENT, self.size_ratio).cells()
        share = np.interp(places, cells, np.arange(_CELLS + 1) / _CELLS)
        spare = self.num_nodes - LEAST_NODES * self.num_communities
        return LEAST_NODES * np.arange(self.num_communities + 1) + np.rint(share * spare).astype(np.int64)

    @cached_property
    def edge_offsets(self) -> np.ndarray:
        """int64 [C + 1]; first edge whose source is in each community: edges in proportion to nodes."""
        whole, rest = divmod(self.num_edges, self.num_nodes)
        return self.offsets * whole + self.offsets * rest // self.num_nodes

    @cached_property
    def cells(self) -> np.ndarray:
        """The law of the degrees inside a community, see `PowerLaw.cells`; weight is spread evenly over a cell."""
        mean = self.mean_degree or 1.0
        if self.max_degree is not None:
            return PowerLaw(self.degree_exponent, self.max_degree / mean).cells()
        smallest = int(np.diff(self.offsets).min())
        return PowerLaw(self.degree_exponent, max(2.0, min(MOST_DEGREE_RATIO, smallest / mean))).cells()

    @cached_property
    def order(self) -> IdOrder | None:
        """Turns numbers into ids; None: they are the same."""
        return None if self.ordered else IdOrder(self.num_nodes, [self.seed, ORDER])

    def communities(self, lo: int, hi: int) -> np.ndarray:
        """Community of each of the ids lo .. hi - 1; int64."""
        ids = np.arange(lo, hi)
        return self._communities(ids if self.order is None else self.order.numbers(ids))

    def numbers(self, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations of the edges lo .. hi - 1 before they are turned into ids; int64 each."""
        raw = np.random.PCG64([self.seed, EDGES])
        raw.advance(2 * lo)
        draws = (raw.random_raw(2 * (hi - lo)) >> np.uint64(11)).reshape(-1, 2)
        first, last = np.searchsorted(self.edge_offsets, (lo, hi - 1), side="right") - 1
        bounds = self.edge_offsets[first : last + 2]
        counts = np.diff(bounds.clip(lo, hi))
        base = np.repeat(self.offsets[first : last + 1], counts)
        size = np.repeat(np.diff(self.offsets[first : last + 2]), counts)
        scale = _CELLS / np.maximum(1, np.diff(bounds))
        dealt = (np.arange(lo, hi) - np.repeat(bounds[:-1], counts) + 0.5) * np.repeat(scale, counts)
        src = self._place(dealt, base, size)
        leaves = draws[:, 1] * _FRACTION
        crossing = np.flatnonzero(leaves < self.mixing)
        to_base, to_size = base.copy(), size.copy()
        if len(crossing):  # what is left of the draw says where to: uniform over the nodes of the other communities
            others = self.num_nodes - size[crossing]
            node = np.minimum((leaves[crossing] * (1 / self.mixing) * others).astype(np.int64), others - 1)
            node += size[crossing] * (node >= base[crossing])
            chosen = self._communities(node)
            to_base[crossing] = self.offsets[chosen]
            to_size[crossing] = self.offsets[chosen + 1] - self.offsets[chosen]
        dst = self._place(draws[:, 0] * (_CELLS * _FRACTION), to_base, to_size)
        loops = np.flatnonzero(src == dst)
        dst[loops] = base[loops] + (dst[loops] - base[loops] + 1) % size[loops]
        return src, dst

    def _communities(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1

    def _place(self, cell: np.ndarray, base: np.ndarray, size: np.ndarray) -> np.ndarray:
        """The node at a share of its community's weight, given in cells with fractions."""
        whole = np.minimum(cell.astype(np.int32), _CELLS - 1)
        low = self.cells.take(whole)
        rank = ((low + (self.cells.take(whole + 1) - low) * (cell - whole)) * size).astype(np.int64)
        return base + np.minimum(rank, size - 1)


def planted_parts(communities: np.ndarray, num_parts: int) -> np.ndarray:
    """Pack the communities into parts of equally many nodes: the planted cut.

    The longest first, each to the part with the most room; one that does not fit is divided, so that nodes differ by
    one at most.

    Args:
      communities: integer [num_nodes]; community of each node, 0 or more.
      num_parts: number of parts, at least 1.
    Returns:
      int32 [num_nodes].
    """
    sizes = np.bincount(communities)
    rest = len(communities) % num_parts
    room = [(-(len(communities) // num_parts + (part < rest)), part) for part in range(num_parts)]
    heapq.heapify(room)
    pieces: dict[int, list[tuple[int, int]]] = {}
    for community in np.argsort(-sizes, kind="stable"):
        left = int(sizes[community])
        held = pieces[int(community)] = []
        while left:
            free, part = heapq.heappop(room)
            count = min(left, -free)
            held.append((part, count))
            left -= count
            heapq.heappush(room, (free + count, part))
    first = np.array([held[0][0] if held else 0 for _, held in sorted(pieces.items())], dtype=np.int32)
    parts = first[communities]
    for community, held in pieces.items():
        if len(held) > 1:
            nodes = np.flatnonzero(communities == community)
            parts[nodes] = np.repeat(*np.array(held, dtype=np.int32).T)
    return parts
