"""Membership in rows: the answers, and the tables that the compiled core answers from."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

_LONGEST_SCANNED = 16
_BUCKET_BYTES = 64
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # of the hash


def has_edges(indptr: Tensor, indices: Tensor, rows: Tensor, vertices: Tensor) -> Tensor:
    """Membership in sets; of row -1 nothing is a member."""
    members = [set(indices[lo:hi].tolist()) for lo, hi in pairwise(indptr.tolist())]
    pairs = zip(rows.tolist(), vertices.tolist(), strict=True)
    return torch.tensor([row >= 0 and vertex in members[row] for row, vertex in pairs], dtype=torch.bool)


def hashed_rows(indptr: Tensor, indices: Tensor, ids_per_bucket: int) -> tuple[Tensor, Tensor]:
    """Records and buckets, id by id in the order of the row."""
    room = _BUCKET_BYTES // indices.itemsize
    nodes, buckets = [], []
    for lo, hi in pairwise(indptr.tolist()):
        count = 0 if hi - lo <= _LONGEST_SCANNED else -(-(hi - lo) // ids_per_bucket)
        nodes.append([lo << 28 | count, (hi - lo) | len(buckets) << 32])
        own: list[list[int]] = [[] for _ in range(count)]
        for vertex in dict.fromkeys(indices[lo:hi].tolist()) if count else ():
            at = home_bucket(vertex, count)
            while len(own[at]) == room:
                at = (at + 1) % count
            own[at].append(vertex)
        buckets += [ids + [-1] * (room - len(ids)) for ids in own]
    return (
        torch.tensor(nodes, dtype=torch.int64).reshape(-1, 2),
        torch.tensor(buckets, dtype=indices.dtype).reshape(-1, room),
    )


def home_bucket(vertex: int, num_buckets: int) -> int:
    """The bucket of its row that a vertex is looked for in first."""
    bits = vertex * _FIRST % 2**64
    bits = (bits ^ bits >> 32) * _SECOND % 2**64
    return (bits >> 32) * num_buckets >> 32
