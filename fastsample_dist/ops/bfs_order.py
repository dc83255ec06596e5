"""bfs_order: the nodes of a graph in the order of a breadth-first search."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library


def bfs_order(indptr: Tensor, indices: Tensor) -> Tensor:
    """Search breadth first from node 0, then from the first node that was not found, until all are.

    A node's neighbours are taken in ascending order. The rows of a level are read by ascending node, so that columns
    that are mapped from a file are swept once per level, whatever the order.

    Args:
      indptr: int64 [num_nodes + 1]; offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; neighbours of each node, 0 .. num_nodes - 1.
    Returns:
      int64 [num_nodes]; the nodes in the order in which they are found.
    Raises:
      ValueError: an id or an offset out of range, 2^31 nodes or more, a shape or dtype mismatch.
    Cost: O(num_edges + num_nodes log num_nodes); memory 4.25 bytes per node besides the result. Deterministic: yes.
    """
    checks.tensors(indptr=indptr, indices=indices)
    checks.on_host(indptr=indptr, indices=indices)
    return _bfs_order_cpu(indptr, indices)  # see stream_partition


def _bfs_order_cpu(indptr: Tensor, indices: Tensor) -> Tensor:
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected at least one offset.")
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    order = torch.empty(indptr.numel() - 1, dtype=torch.int64)
    graph = library.Graph(
        indptr=indptr.data_ptr(), indices=indices.data_ptr(), num_rows=order.numel(), num_edges=indices.numel(),
        id_type=library.type_code(indices),
    )  # fmt: skip
    library.call(library.core().fs_bfs_order, ctypes.byref(graph), order.data_ptr())
    return order


SCHEMAS = {"bfs_order": ("(Tensor indptr, Tensor indices) -> Tensor", _bfs_order_cpu)}
