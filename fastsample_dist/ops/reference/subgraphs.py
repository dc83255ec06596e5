"""Visits of subgraphs by definition: frontiers, draws of nodes and edges, walks (csrc/include/fastsample_subgraph.h).

A frontier is Algorithm 2 of the IPDPS'19 paper with roots drawn with replacement, and the entering vertex is visited
(Algorithm 3, line 24): what is popped was visited when it entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fastsample_dist.ops.reference.streams import (
    SUBGRAPH_DRAWS,
    SUBGRAPH_HOPS,
    SUBGRAPH_POPS,
    SUBGRAPH_ROOTS,
    below,
    node_words,
    stage_key,
)

if TYPE_CHECKING:
    from fastsample_dist.ops.reference.sampling import CscArrays
    from fastsample_dist.ops.subgraph_rule import SubgraphRule


@dataclass(frozen=True)
class Draws:
    """What the draws of one subgraph read."""

    graph: CscArrays
    rule: SubgraphRule
    roots: list[int]  # ascending by original id
    number: int

    def words(self, domain: int, stream: int) -> Iterator[int]:
        """A stream of the subgraph."""
        return node_words(stage_key(self.rule.rng_seed, domain, 0, self.number), stream)

    def row(self, node: int) -> list[int]:
        """In-neighbours in canonical order."""
        return self.graph.indices[int(self.graph.indptr[node]) : int(self.graph.indptr[node + 1])].tolist()

    def degree(self, node: int) -> int:
        """In-edges."""
        return int(self.graph.indptr[node + 1] - self.graph.indptr[node])

    def root(self, slot: int) -> int:
        """Where a slot or a walker begins."""
        return self.roots[below(self.words(SUBGRAPH_ROOTS, slot), len(self.roots))]

    def neighbor(self, words: Iterator[int], node: int) -> int:
        """A hop of a walker."""
        return self.row(node)[below(words, self.degree(node))]


def frontier(draws: Draws) -> list[int]:
    """Roots, then the vertices that enter."""
    rule = draws.rule
    slots = [draws.root(slot) for slot in range(rule.frontier_size)]
    hops = [draws.words(SUBGRAPH_HOPS, slot) for slot in range(rule.frontier_size)]
    pops = draws.words(SUBGRAPH_POPS, 0)
    visits = list(slots)
    most = rule.max_degree or draws.graph.indices.numel()
    while len(visits) < rule.budget:
        sums = np.cumsum([min(draws.degree(node), most) for node in slots])
        if sums[-1] == 0:
            break
        slot = int(np.searchsorted(sums, below(pops, int(sums[-1])), side="right"))
        slots[slot] = draws.neighbor(hops[slot], slots[slot])
        visits.append(slots[slot])
    return visits


def node(draws: Draws) -> list[int]:
    """Roots in proportion to their degrees."""
    sums = np.cumsum([draws.degree(root) for root in draws.roots])
    if sums[-1] == 0:
        return []
    drawn = (below(draws.words(SUBGRAPH_DRAWS, i), int(sums[-1])) for i in range(draws.rule.budget))
    return [draws.roots[int(np.searchsorted(sums, r, side="right"))] for r in drawn]


def edge(draws: Draws) -> list[int]:
    """Heads that are uniform among the roots with neighbours, each with a neighbour."""
    connected = [root for root in draws.roots if draws.degree(root)]
    visits: list[int] = []
    for i in range(draws.rule.budget if connected else 0):
        words = draws.words(SUBGRAPH_DRAWS, i)
        head = connected[below(words, len(connected))]
        visits += [head, draws.neighbor(words, head)]
    return visits


def walk(draws: Draws) -> list[int]:
    """Roots, each with the hops of its walker."""
    visits: list[int] = []
    for walker in range(draws.rule.budget // (draws.rule.walk_length + 1)):
        words, at = draws.words(SUBGRAPH_HOPS, walker), draws.root(walker)
        visits.append(at)
        for _ in range(draws.rule.walk_length):
            if not draws.degree(at):
                break
            at = draws.neighbor(words, at)
            visits.append(at)
    return visits


METHODS: dict[str, Callable[[Draws], list[int]]] = {"frontier": frontier, "node": node, "edge": edge, "walk": walk}


def subgraph_visits(graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int) -> list[int]:
    """The visits of a subgraph in order; roots in any order."""
    orig = (lambda v: v) if graph.orig_ids is None else (lambda v: int(graph.orig_ids[v]))
    return METHODS[rule.method](Draws(graph, rule, sorted(roots.tolist(), key=orig), number))


def subgraph_nodes(graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int) -> list[int]:
    """The distinct visits in order of first appearance."""
    return list(dict.fromkeys(subgraph_visits(graph, rule, roots, number)))
