"""Rows by id: gathered, merged, grouped by their owner, located."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def bucket_by_part(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Stable sort by owner."""
    ranges = part_ranges.tolist()
    owner = [max(p for p in range(len(ranges) - 1) if ranges[p] <= node) for node in ids.tolist()]
    order = sorted(range(len(owner)), key=owner.__getitem__)
    places = torch.empty(len(order), dtype=torch.int64)
    places[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    counts = torch.tensor([owner.count(p) for p in range(len(ranges) - 1)])
    return ids[torch.tensor(order, dtype=torch.int64)], counts, places


def gather_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """Row by row."""
    picked = [rows[i] for i in ids.tolist()]
    return torch.stack(picked) if picked else rows[:0].clone()


def merge_rows(
    own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype | None = None, near: Sequence[Tensor] = ()
) -> Tensor:
    """Row by row, converted."""
    dtype, tables = own.dtype if dtype is None else dtype, [own, *near]
    picked = [(tables[p >> 48][p % 2**48] if p >= 0 else fetched[-1 - p]).to(dtype) for p in places.tolist()]
    return torch.stack(picked) if picked else own[:0].to(dtype)


def locate_rows(nodes: Tensor, owner_of: list[int], held: list[dict[int, int]], cached: dict[int, int]) -> tuple:
    """Node by node: (places, missing, missing nodes by owner, rows in own tables, in near ones, in the cache).

    Args:
      nodes: [n].
      owner_of: the rank that owns each node of the graph.
      held: row of every node that a table holds, table by table; the first is the rank's own.
      cached: slot of every cached node; its table is the last.
    """
    places, missing, found = [], [], [0, 0, 0]
    for node in nodes.tolist():
        tables = [number for number, rows in enumerate(held) if node in rows]
        if tables:
            places.append(tables[0] * 2**48 + held[tables[0]][node])
            found[min(tables[0], 1)] += 1
        elif node in cached:
            places.append(len(held) * 2**48 + cached[node])
            found[2] += 1
        else:
            places.append(None)
            missing.append(len(places) - 1)
    missing.sort(key=lambda i: owner_of[int(nodes[i])])  # stable
    for k, i in enumerate(missing):
        places[i] = -1 - k
    owners = [owner_of[int(nodes[i])] for i in missing]
    counts = [owners.count(rank) for rank in range(max(owner_of) + 1)]
    return torch.tensor(places, dtype=torch.int64), nodes[missing], counts, *found
