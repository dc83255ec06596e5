"""One streaming pass over a graph's nodes, and a breadth-first search, in plain Python."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.ops.reference.streams import philox

if TYPE_CHECKING:
    from fastsample_dist.ops.stream_partition import StreamRule


def stream_partition(
    indptr: Tensor,
    indices: Tensor,
    parts: Tensor,
    rule: StreamRule,
    *,
    order: Tensor | None = None,
    in_edges: Tensor | None = None,
    kinds: Tensor | None = None,
    rows_by_turn: bool = False,
) -> Tensor:
    """The loads of all parts are counted anew for every node."""
    parts = parts.tolist()
    loads = [
        [1, int(in_edges[v] if in_edges is not None else indptr[v + 1] - indptr[v])]
        + [int(kinds[v]) >> bit & 1 if kinds is not None else 0 for bit in range(8)]
        for v in range(len(parts))
    ]
    turns = list(range(len(parts))) if order is None else order.tolist()
    degrees = indptr.diff()
    begins = indptr[:-1].clone()
    if rows_by_turn:
        begins[turns] = degrees[turns].cumsum(0) - degrees[turns]
    for v in turns:
        parts[v] = -1
        members = [[u for u, at in enumerate(parts) if at == part] for part in range(rule.num_parts)]
        held = [[sum(loads[u][limit] for u in group) for limit in range(10)] for group in members]
        row = indices[int(begins[v]) : int(begins[v] + degrees[v])].tolist()
        first = philox((rule.rng_seed % 2**32, rule.rng_seed >> 32), (v, 0, 0, 0))[0] * rule.num_parts >> 32
        ranked = []
        for part, group in enumerate(held):
            fill = max(load / most for load, most in zip(group, rule.capacities, strict=True))
            after = max(
                (load + more) / most for load, more, most in zip(group, loads[v], rule.capacities, strict=True) if more
            )
            links = sum(parts[u] == part for u in row)
            if rule.score == "ldg":
                score = links * (1 - fill)
            else:
                score = links - rule.alpha * 1.5 * math.sqrt(fill * rule.capacities[0])
            turn = (part - first) % rule.num_parts
            ranked.append((0, -score, fill, turn, part) if after <= 1 else (1, after, 0, turn, part))
        parts[v] = min(ranked)[-1]
    return torch.tensor(parts, dtype=torch.int32)


def bfs_order(indptr: Tensor, indices: Tensor) -> Tensor:
    """The textbook's queue."""
    found: set[int] = set()
    order = []
    for root in range(len(indptr) - 1):
        queue = deque([] if root in found else [root])
        found.add(root)
        while queue:
            node = queue.popleft()
            order.append(node)
            for neighbour in sorted(indices[int(indptr[node]) : int(indptr[node + 1])].tolist()):
                if neighbour not in found:
                    found.add(neighbour)
                    queue.append(neighbour)
    return torch.tensor(order, dtype=torch.int64)
