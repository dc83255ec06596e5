"""Rows by id: gathered, merged, grouped by their owner, located."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.ops.row_tables import RowTable


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
    own: Tensor | RowTable,
    fetched: Tensor,
    places: Tensor,
    dtype: torch.dtype | None = None,
    near: Sequence[Tensor | RowTable] = (),
) -> Tensor:
    """Row by row, converted."""
    tables = [RowTable.of(table) for table in (own, *near)]
    received = RowTable.packed(fetched) if tables[0].is_scaled else RowTable(fetched)
    picked = []
    for place in places.tolist():
        table, row = (tables[place >> 48], place % 2**48) if place >= 0 else (received, -1 - place)
        picked.append(_take(table, row) if dtype in (None, torch.int8) else _value(table, row).to(dtype))
    if picked:
        return torch.stack(picked)
    packs = tables[0].is_scaled and dtype in (None, torch.int8)
    kept = fetched if packs else tables[0].rows
    return torch.empty((0, kept.shape[1]), dtype=kept.dtype if dtype is None else dtype)


def _scale(table: RowTable, row: int) -> bytes:
    return bytes(table.scale_bytes()[row].view(torch.uint8).tolist())


def _value(table: RowTable, row: int) -> Tensor:
    if table.scales is None:
        return table.rows[row]
    (scale,) = struct.unpack("=f", _scale(table, row))
    return table.rows[row].float() * torch.tensor(scale, dtype=torch.float32)


def _take(table: RowTable, row: int) -> Tensor:
    if table.scales is None:
        return table.rows[row]
    return torch.cat([table.rows[row], torch.frombuffer(bytearray(_scale(table, row)), dtype=torch.int8)])


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
