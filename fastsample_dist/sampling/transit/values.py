"""What `next`, `step_transits` and `initial` of an application see, in plain Python: slow, obvious, the definition.

Compiled forms offer the same names and give the same bits. An index outside a row, a state or a column raises
IndexError; so does a row of a vertex that is neither in the graph nor NULL.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from fastsample_dist.ops import reference
from fastsample_dist.sampling.transit.app import NULL
from fastsample_dist.sampling.transit.binding import BoundApp, StateField


class Draw:
    """The random words of one pick: NodeStream(key of the step, sample id, n << 32).

    Attributes:
      index: the slot of the pick in its sample's step; in step_transits the index of the transit; in initial 0.
      turn: which of its transit's picks it is, 0 .. sample_size - 1 (of a collective application: as index); with
        sample_size ALL the position of the neighbour in the transit's row.
    """

    __slots__ = ("_words", "index", "turn")

    def __init__(self, key: tuple[int, int], sample_id: int, n: int, index: int = 0, turn: int = 0) -> None:
        self._words = reference.node_words(key, sample_id, n << 32)
        self.index, self.turn = index, turn

    def word(self) -> int:
        """The next 32 random bits, 0 .. 2^32 - 1."""
        return next(self._words)

    def word64(self) -> int:
        """The next 64 random bits: the first word is the low half."""
        low = self.word()
        return low | self.word() << 32

    def below(self, n: int) -> int:
        """Uniform in 0 .. n - 1, exactly. Raises ValueError: n is below 1."""
        if n < 1:
            raise ValueError(f"draw.below({n}): expected 1 or more")
        return reference.below(self._words, n)

    def coin(self, threshold: int) -> bool:
        """Whether the next word is below the threshold, 0 .. 2^32: true with probability threshold / 2^32."""
        return self.word() < threshold


class Tables:
    """Rows of a bound application's graph."""

    def __init__(self, bound: BoundApp) -> None:
        graph, self.bound = bound.graph, bound
        self.indptr, self.indices = graph.indptr.cpu().numpy(), graph.indices.cpu().numpy()
        self.weights = graph.weights.cpu().numpy() if bound.weighted else None
        self._rows: dict[int, Row] = {}

    def row(self, node: int) -> Row:
        """The row of a node; of NULL an empty one."""
        if node not in self._rows:
            if not NULL <= node < self.bound.graph.num_nodes:
                raise IndexError(f"row({node}): the graph has nodes 0 to {self.bound.graph.num_nodes - 1}")
            self._rows[node] = Row(self, node)
        return self._rows[node]

    def require(self, need: str, what: str) -> None:
        """Refuse what the application has not asked for."""
        if not getattr(self.bound.layout, need):
            raise ValueError(f"{what} is not among the needs of {type(self.bound.app).__name__}")


class Row:
    """The neighbours of one vertex, in the graph's order; of NULL none."""

    __iter__ = None  # compiled rows offer len and [i]
    __contains__ = None  # has(v)

    def __init__(self, tables: Tables, node: int) -> None:
        start, end = (0, 0) if node == NULL else (int(end) for end in tables.indptr[node : node + 2])
        self._tables, self._nodes = tables, tables.indices[start:end]
        self._span, self._alias, self._weights, self._total, self._members = slice(start, end), None, None, None, None

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, i: int) -> int:
        return int(self._nodes[_within(i, len(self), "edges")])

    def weight(self, i: int) -> float:
        """Weight of the i-th edge; 1.0 without weights."""
        return self._all_weights()[_within(i, len(self), "edges.weight")]

    @property
    def total_weight(self) -> float:
        """Sum of the weights, rounded after every term from the left."""
        if self._total is None:
            self._total = list(accumulate(self._all_weights(), initial=0.0))[-1]
        return self._total

    @property
    def max_weight(self) -> float:
        """Largest weight; 0.0 of an empty row. Needs max_weight."""
        self._tables.require("max_weight", "max_weight")
        return max(self._all_weights(), default=0.0)

    def pick(self, draw: Draw) -> int:
        """A neighbour in proportion to weight: an alias draw. NULL, and nothing drawn, if the row is empty or its
        weights add up to 0.
        """
        if len(self) == 0 or self.total_weight == 0.0:
            return NULL
        slot = draw.below(len(self))
        if self._tables.weights is None:
            return self[slot]
        if self._alias is None:
            self._alias = reference.alias_row(self._all_weights())
        return self[slot if draw.word() < self._alias.thresholds[slot] else self._alias.aliases[slot]]

    def has(self, v: int) -> bool:
        """Whether v is among the neighbours. Needs edge_queries."""
        self._tables.require("edge_queries", "has")
        if self._members is None:
            self._members = set(self._nodes.tolist())
        return v in self._members

    def _all_weights(self) -> list[float]:
        if self._weights is None:
            weights = self._tables.weights
            self._weights = [1.0] * len(self) if weights is None else weights[self._span].astype(np.float64).tolist()
        return self._weights


class CombinedRow:
    """The rows of all transits of a sample, one behind the other.

    Args:
      rows: of the distinct transits, in their order.
      ranking: gives the vertices in the order of the exponential race; None: the application needs none.
    """

    __iter__ = None
    __contains__ = None

    def __init__(self, rows: Sequence[Row], ranking: Callable[[], list[int]] | None = None) -> None:
        self._rows, self._ranking, self._ranked = rows, ranking, None
        self._ends = list(accumulate((len(row) for row in rows), initial=0))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> int:
        transit = self.transit_of(i)
        return self._rows[transit][i - self._ends[transit]]

    def transit_of(self, i: int) -> int:
        """Index, in transits, of the transit whose edge the i-th is."""
        return bisect_right(self._ends, _within(i, len(self), "edges")) - 1

    def weight(self, i: int) -> float:
        """Weight of the i-th edge; 1.0 without weights."""
        transit = self.transit_of(i)
        return self._rows[transit].weight(i - self._ends[transit])

    def has(self, v: int) -> bool:
        """Whether v is a neighbour of any transit. Needs edge_queries."""
        return any([row.has(v) for row in self._rows])

    def ranked(self, i: int) -> int:
        """The i-th vertex by the exponential race, i < sample_size; NULL behind the last. Needs race."""
        if self._ranking is None:
            raise ValueError('ranked needs transit.needs(race="squared")')
        if self._ranked is None:
            self._ranked = self._ranking()
        return self._ranked[i] if _within(i, 2**63, "edges.ranked") < len(self._ranked) else NULL


class Transits:
    """The transits that `next` picks for: one, or all distinct ones of a collective application."""

    __iter__ = None
    __contains__ = None

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, i: int) -> int:
        return self._nodes[_within(i, len(self), "transits")]


class State:
    """One state of a sample: integers that wrap to their width."""

    __iter__ = None

    def __init__(self, field: StateField, count: int) -> None:
        self._name, self._half = field.name, 2 ** (31 if field.dtype == np.int32 else 63)
        self._entries = [0] * count

    def __getitem__(self, i: int) -> int:
        return self._entries[_within(i, len(self._entries), self._name)]

    def __setitem__(self, i: int, value: int) -> None:
        own = (int(value) + self._half) % (2 * self._half) - self._half
        self._entries[_within(i, len(self._entries), self._name)] = own


class Column:
    """A column of the application: an integer per node."""

    __iter__ = None

    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def __getitem__(self, v: int) -> int:
        return int(self._values[_within(v, len(self._values), self._name)])


class Sample:
    """One sample as it grows; its states and the application's columns are attributes, too.

    Attributes:
      id: sample id.
      num_roots: places for roots, those that are NULL included.
    """

    __slots__ = ("_named", "_roots", "_slot", "_step", "_steps", "_tables", "id", "num_roots")

    def __init__(self, tables: Tables, sample_id: int, roots: list[int]) -> None:
        layout = tables.bound.layout
        self.id, self.num_roots, self._roots, self._tables = sample_id, len(roots), roots, tables
        self._steps: list[list[int]] = [roots]  # _steps[k + 1]: picks of step k
        self._step = self._slot = 0
        counts = layout.counts(len(roots))
        self._named = {field.name: State(field, count) for field, count in zip(layout.state, counts, strict=True)}
        self._named |= {name: Column(name, values) for name, values in tables.bound.columns.items()}

    def __getattr__(self, name: str) -> State | Column:
        named = object.__getattribute__(self, "_named")
        if name not in named:
            raise AttributeError(f"a sample has no {name!r}; declare it in state or in needs(columns=...)")
        return named[name]

    def at(self, step: int, slot: int = 0) -> None:
        """For engines: what is asked next."""
        self._step, self._slot = step, slot

    def add(self, picks: list[int]) -> None:
        """For engines: the picks of a step."""
        self._steps.append(picks)

    @property
    def picks(self) -> list[list[int]]:
        """For engines: the picks of each step."""
        return self._steps[1:]

    @property
    def size(self) -> int:
        """Vertices before this pick: roots and picks of earlier steps that are not NULL, and one for every earlier slot
        of this step, filled or not.
        """
        return sum(v != NULL for step in self._steps[: self._step + 1] for v in step) + self._slot

    def root(self, i: int) -> int:
        """The i-th root; NULL behind the last."""
        return self._roots[i] if 0 <= i < len(self._roots) else NULL

    def vertex(self, j: int) -> int:
        """The j-th vertex of roots and earlier steps' slots, NULLs counted; NULL behind the last."""
        every = [v for step in self._steps[: self._step + 1] for v in step]
        return every[j] if 0 <= j < len(every) else NULL

    def prev_vertex(self, i: int, pos: int) -> int:
        """The vertex at position pos of the i-th step before, i >= 1 (the roots stand before step 0); NULL where there
        is none.
        """
        at = self._step + 1 - i
        if i < 1 or at < 0:
            return NULL
        return self._steps[at][pos] if 0 <= pos < len(self._steps[at]) else NULL

    def prev_edges(self, i: int, pos: int) -> Row:
        """The row of prev_vertex(i, pos)."""
        return self.row(self.prev_vertex(i, pos))

    def row(self, v: int) -> Row:
        """The row of a vertex; of NULL an empty one."""
        return self._tables.row(v)


def _within(i: int, length: int, what: str) -> int:
    if not 0 <= i < length:
        raise IndexError(f"{what}[{i}]: expected 0 to {length - 1}" if length else f"{what}[{i}]: there are none")
    return i
