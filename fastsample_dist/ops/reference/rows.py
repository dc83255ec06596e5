"""Rows by id: gathered, merged, grouped by their owner."""

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
