"""compact: relabel one hop's neighbours to local ids; bucket_by_part: group ids by the part that owns them."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library
from fastsample_dist.ops.library import Refusal

cuda.DECLARED.functions(
    fs_cuda_compact=(c_int32, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    fs_cuda_compact_workspace=(c_int32, c_int64, c_int64),
    fs_cuda_bucket_by_part=(
        c_int32, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
    ),
    fs_cuda_bucket_by_part_workspace=(c_int64, c_int64),
)  # fmt: skip
_NOTHING_WRONG = -1  # of a report's word that holds the first bad position


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
    checks.tensors(dst_nodes=dst_nodes, neighbors=neighbors)
    return torch.ops.fastsample.compact(dst_nodes, neighbors)


def bucket_by_part(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Group node ids by owner, keeping the input order inside a group.

    Args:
      ids: int32 | int64 [n]; node ids.
      part_ranges: int64 [num_parts + 1]; part p owns the ids part_ranges[p] .. part_ranges[p + 1] - 1.
    Returns:
      (grouped [n] of ids' dtype, counts int64 [num_parts], places int64 [n]); grouped[places] equals ids. grouped and
      places are on the ids' device, counts is on that of part_ranges. On a GPU one read-back has bad ids and counts.
    Raises:
      ValueError: an id that no part owns.
    Source: FastSample, section 3.3. Cost: O(n log num_parts). Deterministic: yes.
    """
    checks.tensors(ids=ids, part_ranges=part_ranges)
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


def _check_buckets(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, int]:
    """Ids and ranges as the core takes them, and the number of parts."""
    ids = checks.vector("ids", ids, checks.ID_DTYPES)
    part_ranges = checks.vector("part_ranges", part_ranges, (torch.int64,))
    checks.require(part_ranges.numel() >= 2, f"part_ranges has {part_ranges.numel()} entries; expected at least 2.")
    return ids, part_ranges, part_ranges.numel() - 1


def _bucket_by_part_cpu(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ids, part_ranges, num_parts = _check_buckets(ids, part_ranges)
    grouped, places = torch.empty_like(ids), torch.empty(ids.numel(), dtype=torch.int64)
    counts = torch.empty(num_parts, dtype=torch.int64)
    library.call(
        library.core().fs_bucket_by_part,
        library.type_code(ids), ids.data_ptr(), ids.numel(), part_ranges.data_ptr(), num_parts,
        grouped.data_ptr(), counts.data_ptr(), places.data_ptr(),
    )  # fmt: skip
    return grouped, counts, places


def _compact_cuda(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    dst_nodes = checks.vector("dst_nodes", dst_nodes, checks.ID_DTYPES)
    neighbors = checks.vector("neighbors", neighbors, (dst_nodes.dtype,))
    num_dst, num_edges, id_type = dst_nodes.numel(), neighbors.numel(), library.type_code(dst_nodes)
    src_nodes = dst_nodes.new_empty(num_dst + num_edges)
    indices = dst_nodes.new_empty(num_edges)
    report = dst_nodes.new_empty(4, dtype=torch.int64)
    workspace = _workspace(dst_nodes, "fs_cuda_compact_workspace", id_type, num_dst, num_edges)
    cuda.call(
        "fs_cuda_compact", dst_nodes,
        id_type, dst_nodes.data_ptr(), num_dst, neighbors.data_ptr(), num_edges,
        src_nodes.data_ptr(), indices.data_ptr(), report.data_ptr(), workspace.data_ptr(),
    )  # fmt: skip
    num_src, negative, repeated, bad_neighbor = report.tolist()
    if negative != _NOTHING_WRONG and not 0 <= repeated < negative:
        library.refuse(Refusal.NEGATIVE_DST, "compact", int(dst_nodes[negative]))
    if repeated != _NOTHING_WRONG:
        node = int(dst_nodes[repeated])
        first = int((dst_nodes == node).nonzero()[0])
        library.refuse(Refusal.REPEATED_DST, "compact", node, first, repeated)
    if bad_neighbor != _NOTHING_WRONG:
        library.refuse(Refusal.NEGATIVE_NEIGHBOR, "compact", int(neighbors[bad_neighbor]), bad_neighbor)
    return src_nodes[:num_src].clone(), indices


def _bucket_by_part_cuda(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ids, part_ranges, num_parts = _check_buckets(ids, part_ranges)
    ranges = part_ranges.to(ids.device, non_blocking=True)
    grouped, places = torch.empty_like(ids), torch.empty(ids.numel(), dtype=torch.int64, device=ids.device)
    report = ids.new_empty(1 + num_parts, dtype=torch.int64)
    workspace = _workspace(ids, "fs_cuda_bucket_by_part_workspace", ids.numel(), num_parts)
    cuda.call(
        "fs_cuda_bucket_by_part", ids,
        library.type_code(ids), ids.data_ptr(), ids.numel(), ranges.data_ptr(), num_parts,
        grouped.data_ptr(), places.data_ptr(), report.data_ptr(), workspace.data_ptr(),
    )  # fmt: skip
    found = report.to(part_ranges.device)
    bad = int(found[0])
    if bad != _NOTHING_WRONG:
        bounds = int(part_ranges[0]), int(part_ranges[-1]) - 1
        library.refuse(Refusal.OWNER, "bucket_by_part", int(ids[bad]), bad, *bounds)
    return grouped, found[1:].clone(), places


def _workspace(where: Tensor, name: str, *sizes: int) -> Tensor:
    """Scratch memory of an entry point on the device of `where`."""
    count = getattr(cuda.core(), name)
    count.restype = c_int64
    return torch.empty(count(*sizes), dtype=torch.uint8, device=where.device)


SCHEMAS = {
    "compact": ("(Tensor dst_nodes, Tensor neighbors) -> (Tensor, Tensor)", _compact_cpu),
    "bucket_by_part": ("(Tensor ids, Tensor part_ranges) -> (Tensor, Tensor, Tensor)", _bucket_by_part_cpu),
}
CUDA_KERNELS = {"compact": _compact_cuda, "bucket_by_part": _bucket_by_part_cuda}
