"""Clusters, the links between them and refinement of parts, in plain Python; nothing is kept up to date."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fastsample_dist.ops import ClusterRule, Clusters, Neighbours, PartLimits


def mix64(word: int) -> int:
    """The finaliser of MurmurHash3."""
    word %= 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = (word ^ word >> 33) * factor % 2**64
    return word ^ word >> 33


def cluster_nodes(graph: Neighbours, rule: ClusterRule, clusters: Clusters) -> int:
    """The loads of all labels are counted anew for every node."""
    labels, weights = clusters.labels.tolist(), rule.node_weights.tolist()
    opened: dict[int, int] = {}
    moved = 0
    for node in _turns(graph):
        own = labels[node]
        loads = Counter()
        for other, label in enumerate(labels):
            loads[label] += weights[other]
        sums = _sums(graph, node, labels, None if rule.within is None else rule.within.tolist())
        if rule.rule == "heaviest":
            open_to = [label for label in sums if label == own or loads[label] + weights[node] <= rule.bound]
            labels[node] = max(
                open_to, key=lambda label: (sums[label], mix64(rule.rng_seed + (node << 32 | label))), default=own
            )
        elif labels.count(own) == 1 and weights[node] <= rule.bound // 2 and sums:
            found = min(sums, key=lambda label: (-sums[label], label))
            before = opened.get(found, own)
            if before != own and loads[before] + weights[node] <= rule.bound:
                labels[node] = before
            else:
                opened[found] = own
        moved += labels[node] != own
    clusters.labels[:] = labels
    clusters.loads[:] = np.bincount(labels, weights, minlength=len(labels))
    return moved


def contract_links(graph: Neighbours, labels: np.ndarray) -> dict[tuple[int, int], int]:
    """{(smaller label, larger label): weight of the links}, none left out."""
    pairs: Counter = Counter()
    for node in _turns(graph):
        for label, weight in _sums(graph, node, labels.tolist(), None).items():
            if label > labels[node]:
                pairs[int(labels[node]), label] += weight
    return dict(pairs)


def refine_parts(graph: Neighbours, limits: PartLimits, parts: np.ndarray, num_parts: int, shed: float) -> int:
    """What parts hold is counted anew for every node; the links of a node are looked at part by part."""
    counts = limits.node_loads
    if counts is None:
        kinds = [limits.kinds >> bit & 1 for bit in range(len(limits.capacities) - 2)]
        counts = np.stack([np.ones(graph.num_nodes, dtype=np.int64), np.diff(limits.in_offsets), *kinds], axis=1)
    moved = 0
    for node in _turns(graph):
        own, adds = int(parts[node]), counts[node]
        held = np.array([counts[parts == part].sum(axis=0) for part in range(num_parts)])

        def fill(loads: np.ndarray, adds: np.ndarray = adds) -> float:
            return max((load / most for load, most, add in zip(loads, limits.capacities, adds, strict=True) if add),
                       default=0.0)  # fmt: skip

        sums = _sums(graph, node, parts.tolist(), None)
        if any(add and load - add < floor for add, load, floor in zip(adds, held[own], limits.floors, strict=True)):
            continue
        best = (sums.get(own, 0) * (1 - shed if fill(held[own]) > 1 else 1), -fill(held[own]), own)
        for part, links in sums.items():
            after = fill(held[part] + adds)
            if part != own and after <= 1 and (links, -after) > best[:2]:
                best = (links, -after, part)
        moved += best[2] != own
        parts[node] = best[2]
    return moved


def _turns(graph: Neighbours) -> list[int]:
    return list(range(graph.num_nodes)) if graph.order is None else graph.order.tolist()


def _sums(graph: Neighbours, node: int, labels: list[int], within: list[int] | None) -> dict[int, int]:
    """{label: weight of the node's links to it}, in the order of first appearance, self-loops left out."""
    sums: dict[int, int] = {}
    row = graph.order.tolist().index(node) if graph.rows_by_turn else node
    for entry in range(int(graph.indptr[row]), int(graph.indptr[row + 1])):
        other = int(graph.indices[entry])
        if other != node and (within is None or within[other] == within[node]):
            weight = 1 if graph.weights is None else int(graph.weights[entry])
            sums[labels[other]] = sums.get(labels[other], 0) + weight
    return sums
