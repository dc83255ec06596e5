"""Visits of subgraphs by definition (csrc/include/fastsample_subgraph.h): frontiers, draws of nodes and edges, walks,
clusters and neighbourhoods of roots.

A frontier is Algorithm 2 of the IPDPS'19 paper with roots drawn with replacement, and the entering vertex is visited
(Algorithm 3, line 24): what is popped was visited when it entered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fastsample_dist.ops.reference.streams import (
    SUBGRAPH_DRAWS,
    SUBGRAPH_EGO,
    SUBGRAPH_HOPS,
    SUBGRAPH_ORDER,
    SUBGRAPH_POPS,
    SUBGRAPH_PROBES,
    SUBGRAPH_ROOTS,
    below,
    node_words,
    stage_key,
)
from fastsample_dist.ops.reference.uniform import pick

if TYPE_CHECKING:
    from fastsample_dist.ops.reference.sampling import CscArrays
    from fastsample_dist.ops.subgraph_rule import SubgraphRule


@dataclass(frozen=True)
class Draws:
    """What the draws of one subgraph read: rows in canonical order."""

    graph: CscArrays
    rule: SubgraphRule
    roots: list[int]  # ascending by original id
    number: int
    clusters: list[list[int]]  # members, ascending by original id
    counts: Counter[str] = field(default_factory=Counter)  # of a dashboard

    def order(self, epoch: int, count: int) -> list[int]:
        """A permutation of an epoch."""
        return permutation(stage_key(self.rule.rng_seed, SUBGRAPH_ORDER, 0, epoch), count)

    def words(self, domain: int, stream: int) -> Iterator[int]:
        """A stream of the subgraph."""
        return node_words(stage_key(self.rule.rng_seed, domain, 0, self.number), stream)

    @cached_property
    def degrees(self) -> np.ndarray:
        """In-edges of every node."""
        return np.diff(self.graph.indptr.numpy())

    def row(self, node: int) -> list[int]:
        """In-neighbours in canonical order."""
        return self.graph.indices[int(self.graph.indptr[node]) : int(self.graph.indptr[node + 1])].tolist()

    def root(self, slot: int) -> int:
        """Where a slot or a walker begins."""
        return self.roots[below(self.words(SUBGRAPH_ROOTS, slot), len(self.roots))]

    def neighbor(self, words: Iterator[int], node: int) -> int:
        """A hop of a walker."""
        return int(self.graph.indices[int(self.graph.indptr[node]) + below(words, int(self.degrees[node]))])


def frontier(draws: Draws) -> list[int]:
    """Roots, then the vertices that enter."""
    rule = draws.rule
    if rule.structure == "dashboard":
        return dashboard(draws)
    slots = [draws.root(slot) for slot in range(rule.frontier_size)]
    hops = [draws.words(SUBGRAPH_HOPS, slot) for slot in range(rule.frontier_size)]
    pops = draws.words(SUBGRAPH_POPS, 0)
    visits = list(slots)
    most = rule.max_degree or draws.graph.indices.numel()
    while len(visits) < rule.budget:
        sums = np.minimum(draws.degrees[slots], most).cumsum()
        if sums[-1] == 0:
            break
        slot = int(np.searchsorted(sums, below(pops, int(sums[-1])), side="right"))
        slots[slot] = draws.neighbor(hops[slot], slots[slot])
        visits.append(slots[slot])
    return visits


def dashboard(draws: Draws) -> list[int]:
    """A frontier with the paper's Dashboard, algorithm 3."""
    rule, graph = draws.rule, draws.graph
    most = rule.max_degree or graph.indices.numel()
    slots = [draws.root(slot) for slot in range(rule.frontier_size)]
    hops = [draws.words(SUBGRAPH_HOPS, slot) for slot in range(rule.frontier_size)]
    visits = list(slots)
    num_nodes = graph.indptr.numel() - 1
    capacity = math.ceil(rule.eta * (rule.frontier_size * min(graph.indices.numel() / num_nodes, most)))
    table = [slot for slot, at in enumerate(slots) for _ in range(min(int(draws.degrees[at]), most))]
    if len(table) > capacity:
        capacity, draws.counts["growths"] = math.ceil(rule.eta * len(table)), 1
    while len(visits) < rule.budget and any(entry is not None for entry in table):
        words, found = draws.words(SUBGRAPH_PROBES, len(visits) - rule.frontier_size), None
        while found is None:
            found = table[below(words, len(table))]
            draws.counts["probes"] += 1
        table = [None if entry == found else entry for entry in table]
        slots[found] = draws.neighbor(hops[found], slots[found])
        visits.append(slots[found])
        weight = min(int(draws.degrees[slots[found]]), most)
        if len(table) + weight > capacity:
            table = [entry for entry in table if entry is not None]
            draws.counts["cleanups"] += 1
        if len(table) + weight > capacity:
            capacity = math.ceil(rule.eta * (len(table) + weight))
            draws.counts["growths"] += 1
        table += [found] * weight
    return visits


def node(draws: Draws) -> list[int]:
    """Roots in proportion to their degrees."""
    sums = draws.degrees[draws.roots].cumsum()
    if sums[-1] == 0:
        return []
    drawn = (below(draws.words(SUBGRAPH_DRAWS, i), int(sums[-1])) for i in range(draws.rule.budget))
    return [draws.roots[int(np.searchsorted(sums, r, side="right"))] for r in drawn]


def edge(draws: Draws) -> list[int]:
    """Heads that are uniform among the roots with neighbours, each with a neighbour."""
    connected = [root for root in draws.roots if draws.degrees[root]]
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
            if not draws.degrees[at]:
                break
            at = draws.neighbor(words, at)
            visits.append(at)
    return visits


def permutation(key: tuple[int, int], count: int) -> list[int]:
    """0 .. count - 1 in the order of a key: a Feistel network of 12 rounds that walks until it is below count."""
    bits = max(4, -(-(count - 1).bit_length() // 2))

    def once(number: int) -> int:
        left, right = number >> bits, number % 2**bits
        for rounds in range(12):
            left, right = right, left ^ next(node_words(key, rounds, right)) % 2**bits
        return left << bits | right

    order = []
    for number in range(count):
        number = once(number)
        while number >= count:
            number = once(number)
        order.append(number)
    return order


def cluster(draws: Draws) -> list[int]:
    """The members of the next clusters in the order of the epoch."""
    taken = draws.rule.clusters_per_batch
    epoch, index = divmod(draws.number, -(-len(draws.clusters) // taken))
    chosen = draws.order(epoch, len(draws.clusters))[index * taken : (index + 1) * taken]
    return [member for number in chosen for member in draws.clusters[number]]


def ego(draws: Draws) -> list[int]:
    """The next root in the order of the epoch, then hop by hop the neighbours that the new nodes take."""
    epoch, index = divmod(draws.number, len(draws.roots))
    nodes = new = [draws.roots[draws.order(epoch, len(draws.roots))[index]]]
    for hop in range(draws.rule.depth):
        key = stage_key(draws.rule.rng_seed, SUBGRAPH_EGO, hop, draws.number)
        found = []
        for node in new:
            row, orig_ids = draws.row(node), draws.graph.orig_ids
            words = node_words(key, node if orig_ids is None else int(orig_ids[node]))
            found += [row[position] for position in pick(words, len(row), draws.rule.fanout, replace=False)]
        new = [node for node in dict.fromkeys(found) if node not in nodes]
        nodes = nodes + new
    return nodes


METHODS: dict[str, Callable[[Draws], list[int]]] = {
    "frontier": frontier, "node": node, "edge": edge, "walk": walk, "cluster": cluster, "ego": ego,
}  # fmt: skip


def subgraph_draws(
    graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int, clusters: Tensor | None = None
) -> Draws:
    """The draws of a subgraph.

    Args:
      roots: in any order; method "cluster" reads none.
      clusters: of method "cluster", the cluster of each node.
    """
    orig = (lambda v: v) if graph.orig_ids is None else (lambda v: int(graph.orig_ids[v]))
    members: list[list[int]] = [[] for _ in range(0 if clusters is None else int(clusters.max()) + 1)]
    for member in sorted(range(0 if clusters is None else clusters.numel()), key=orig):
        members[int(clusters[member])].append(member)
    return Draws(graph, rule, sorted(roots.tolist(), key=orig), number, members)


def dashboard_counts(graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int) -> Counter[str]:
    """Probes, cleanups and growths of a frontier with the dashboard."""
    draws = subgraph_draws(graph, rule, roots, number)
    dashboard(draws)
    return draws.counts


def subgraph_visits(
    graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int, clusters: Tensor | None = None
) -> list[int]:
    """The visits of a subgraph in order; arguments as of `subgraph_draws`."""
    return METHODS[rule.method](subgraph_draws(graph, rule, roots, number, clusters))


def subgraph_nodes(
    graph: CscArrays, rule: SubgraphRule, roots: Tensor, number: int, clusters: Tensor | None = None
) -> list[int]:
    """The distinct visits in order of first appearance; arguments as of `subgraph_draws`."""
    return list(dict.fromkeys(subgraph_visits(graph, rule, roots, number, clusters)))
