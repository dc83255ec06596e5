"""Rows by id: gathered, merged, grouped by their owner."""

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
