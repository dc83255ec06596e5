"""PinSAGE's neighbourhoods by definition: walk by walk, and their exact law on a tiny graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.ops.reference.sampling import CscArrays, Hops, compact
from fastsample_dist.ops.reference.streams import INITIAL, TRANSIT, below, node_words, stage_key

if TYPE_CHECKING:
    from fastsample_dist.ops.sample_pinsage import PinSAGERule

Neighbors = tuple[tuple[int, int], ...]
"""Of a destination: (node, visits), the most visited first."""


def sample_pinsage(graph: CscArrays, seeds: Tensor, rule: PinSAGERule, step: int = 0) -> tuple[Hops, list[Tensor]]:
    """All hops of a mini-batch, and the weights of their edges."""
    hops, weights = Hops(seeds, [], [], []), []
    for hop in range(rule.first_hop, rule.first_hop + rule.num_layers):
        rows = [pinsage_neighbors(graph, rule, node, hop, step) for node in hops.nodes.tolist()]
        indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
        found = torch.tensor([node for row in rows for node, _ in row], dtype=seeds.dtype)
        nodes, indices = compact(hops.nodes, found)
        hops = Hops(nodes, [*hops.indptrs, indptr], [*hops.indices, indices], [])
        shares = [[visits / sum(own for _, own in row) for _, visits in row] for row in rows]
        weights.append(torch.tensor([share for row in shares for share in row], dtype=torch.float64).float())
    return hops, weights


def pinsage_neighbors(graph: CscArrays, rule: PinSAGERule, node: int, hop: int, step: int) -> Neighbors:
    """A destination's neighbours at a hop."""
    visits: Counter[int] = Counter()
    for walk in range(rule.num_walks):
        sample_id = _orig_id(graph, node) + (graph.indptr.numel() - 1) * (walk + rule.num_walks * hop)
        visits.update(_walk(graph, rule, node, sample_id, step))
    return _most_visited(graph, rule, node, visits)


def pinsage_law(graph: CscArrays, rule: PinSAGERule, node: int) -> dict[Neighbors, float]:
    """Probability of every neighbourhood that a destination can have: walks are independent and of known law."""
    walks: dict[tuple[int, ...], float] = defaultdict(float)
    _follow(graph, rule, (node,), 1.0, walks)
    visits: dict[tuple[tuple[int, int], ...], float] = {(): 1.0}
    for _ in range(rule.num_walks):
        longer: dict[tuple[tuple[int, int], ...], float] = defaultdict(float)
        for before, chance in visits.items():
            for path, own in walks.items():
                longer[tuple(sorted((Counter(dict(before)) + Counter(path[1:])).items()))] += chance * own
        visits = longer
    law: dict[Neighbors, float] = defaultdict(float)
    for counts, chance in visits.items():
        law[_most_visited(graph, rule, node, Counter(dict(counts)))] += chance
    return dict(law)


def _walk(graph: CscArrays, rule: PinSAGERule, node: int, sample_id: int, step: int) -> list[int]:
    """The nodes that a walk comes to."""
    start = node_words(stage_key(rule.rng_seed, INITIAL, 0, step), sample_id)
    variate = (next(start) | next(start) << 32) >> 1
    length = 1 + (rule.walk_length - 1 if rule.survival is None else sum(entry > variate for entry in rule.survival))
    path = []
    for k in range(length):
        row = _row(graph, node)
        if not row:
            break
        node = row[below(node_words(stage_key(rule.rng_seed, TRANSIT, k, step), sample_id), len(row))]
        path.append(node)
    return path


def _follow(
    graph: CscArrays, rule: PinSAGERule, path: tuple[int, ...], chance: float, walks: dict[tuple[int, ...], float]
) -> None:
    """Add every way in which a walk can go on from a path, and the probability of each."""
    row, taken = _row(graph, path[-1]), len(path) - 1
    ends = 0.0 if taken == 0 else rule.end_probability
    if not row or taken == rule.walk_length:
        ends = 1.0
    if ends > 0.0:
        walks[path] += chance * ends
    for node in row if ends < 1.0 else ():
        _follow(graph, rule, (*path, node), chance * (1.0 - ends) / len(row), walks)


def _most_visited(graph: CscArrays, rule: PinSAGERule, start: int, visits: Counter[int]) -> Neighbors:
    found = [(node, count) for node, count in visits.items() if node != start]
    found.sort(key=lambda visit: (-visit[1], _orig_id(graph, visit[0])))
    return tuple(found[: rule.num_neighbors])


def _row(graph: CscArrays, node: int) -> list[int]:
    return graph.indices[int(graph.indptr[node]) : int(graph.indptr[node + 1])].tolist()


def _orig_id(graph: CscArrays, node: int) -> int:
    return node if graph.orig_ids is None else int(graph.orig_ids[node])
