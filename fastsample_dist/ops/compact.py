"""compact: relabel one hop's neighbours to local ids; bucket_by_part: group ids by the part that owns them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library


def compact(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """Relabel neighbours to local ids in order of first appearance.

    Args:
      dst_nodes: int32 | int64 [num_dst]; unique node ids.
      neighbors: same dtype, [num_edges]; node ids of the edges' sources.
    Returns:
      (src_nodes [num_src], indices [num_edges]) of the same dtype: src_nodes[:num_dst] equals dst_nodes, then the
      new nodes in order of first appearance; src_nodes[indices] equals neighbors.
    Raises:
      ValueError: a repeated or negative id in dst_nodes, a negative neighbour, a dtype mismatch.
    Source: FastSample, section 3.2, algorithm 1 (second loop). Cost: O(num_dst + num_edges). Deterministic: yes.
    """
    return torch.ops.fastsample.compact(dst_nodes, neighbors)


def bucket_by_part(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Group node ids by owner, keeping the input order inside a group.

    Args:
      ids: int32 | int64 [n]; node ids.
      part_ranges: int64 [num_parts + 1]; part p owns the ids part_ranges[p] .. part_ranges[p + 1] - 1.
    Returns:
      (grouped [n] of ids' dtype, counts int64 [num_parts], places int64 [n]); grouped[places] equals ids.
    Raises:
      ValueError: an id that no part owns.
    Source: FastSample, section 3.3. Cost: O(n log num_parts). Deterministic: yes.
    """
    return torch.ops.fastsample.bucket_by_part(ids, part_ranges)


def _compact_cpu(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    dst_nodes = checks.vector("dst_nodes", dst_nodes, checks.ID_DTYPES)
    neighbors = checks.vector("neighbors", neighbors, (dst_nodes.dtype,))
    num_dst, num_edges = dst_nodes.numel(), neighbors.numel()
    src_nodes = torch.empty(num_dst + num_edges, dtype=dst_nodes.dtype)
    indices = torch.empty(num_edges, dtype=dst_nodes.dtype)
    num_src = ctypes.c_int64()
    library.call(
        library.core().fs_compact,
        library.type_code(dst_nodes), dst_nodes.data_ptr(), num_dst, neighbors.data_ptr(), num_edges,
        src_nodes.data_ptr(), indices.data_ptr(), ctypes.byref(num_src),
    )  # fmt: skip
    return src_nodes[: num_src.value].clone(), indices


def _bucket_by_part_cpu(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ids = checks.vector("ids", ids, checks.ID_DTYPES)
    part_ranges = checks.vector("part_ranges", part_ranges, (torch.int64,))
    num_parts = part_ranges.numel() - 1
    checks.require(num_parts >= 1, f"part_ranges has {part_ranges.numel()} entries; expected at least 2.")
    grouped, places = torch.empty_like(ids), torch.empty(ids.numel(), dtype=torch.int64)
    counts = torch.empty(num_parts, dtype=torch.int64)
    library.call(
        library.core().fs_bucket_by_part,
        library.type_code(ids), ids.data_ptr(), ids.numel(), part_ranges.data_ptr(), num_parts,
        grouped.data_ptr(), counts.data_ptr(), places.data_ptr(),
    )  # fmt: skip
    return grouped, counts, places


SCHEMAS = {
    "compact": ("(Tensor dst_nodes, Tensor neighbors) -> (Tensor, Tensor)", _compact_cpu),
    "bucket_by_part": ("(Tensor ids, Tensor part_ranges) -> (Tensor, Tensor, Tensor)", _bucket_by_part_cpu),
}
