"""hashed_rows, has_edges: whether a vertex is in a row, answered exactly by reading about one cache line.

Rows are sorted by original id, which a binary search would have to fetch for every comparison; a hash needs no order. A
row of more than 16 neighbours has buckets of 64 bytes: 16 int32 ids or 8 int64 ids, each id in the bucket that its
hash names or, where that is full, in the next one of its row that has room (csrc/core/hashed_rows.h). Shorter rows are
scanned where they are.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

BUCKET_BYTES = 64
NODE_BYTES = 16
# Edges per bucket: about two thirds of the room. One query in ten then finds a full bucket and reads another.
IDS_PER_BUCKET = {torch.int32: 11, torch.int64: 5}


@library.DECLARED.mirror("FsHashedRows")
class Tables(Structure):
    """FsHashedRows."""

    _fields_ = (
        ("nodes", c_void_p),
        ("buckets", c_void_p),
        ("num_buckets", c_int64),
        ("ids_per_bucket", c_int32),
        ("num_threads", c_int32),
    )


@library.DECLARED.mirror("FsEdgeQueries")
class Queries(Structure):
    """FsEdgeQueries."""

    _fields_ = (
        ("rows", c_void_p),
        ("vertices", c_void_p),
        ("answers", c_void_p),
        ("count", c_int64),
    )


library.DECLARED.functions(
    fs_hashed_rows_size=(POINTER(library.Graph), c_int32, POINTER(c_int64)),
    fs_hashed_rows=(POINTER(library.Graph), POINTER(Tables)),
    fs_has_edges=(POINTER(library.Graph), POINTER(Tables), POINTER(Queries)),
)


@dataclass(frozen=True)
class HashedRows:
    """What membership queries need besides the graph. Memory: about 6 bytes per edge (int64 ids: 13), 16 per node.

    Attributes:
      nodes: int64 [num_rows, 2]; a record per row: offset << 28 | number of buckets, degree | first bucket << 32.
      buckets: int32 [num_buckets, 16] | int64 [num_buckets, 8]; distinct neighbours, -1 where there is none.
    """

    nodes: Tensor
    buckets: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory of the tables, in bytes."""
        return self.nodes.nbytes + self.buckets.nbytes


def hashed_rows_bytes(indptr: Tensor, indices: Tensor, ids_per_bucket: int | None = None) -> int:
    """Memory in bytes that `hashed_rows` takes for a graph; reads only the offsets.

    Args, Raises: as `hashed_rows`.
    """
    graph, _ = _graph(indptr, indices)
    return NODE_BYTES * graph.num_rows + BUCKET_BYTES * _num_buckets(graph, _load(indices, ids_per_bucket))


def hashed_rows(
    indptr: Tensor, indices: Tensor, num_threads: int | None = None, ids_per_bucket: int | None = None
) -> HashedRows:
    """Hash the neighbours of every row of more than 16.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; ids >= 0.
      num_threads: threads that share the rows; None takes torch's setting. Results never depend on it.
      ids_per_bucket: edges of a row per bucket, 1 to 16 (int64 ids: 8); fewer take more memory and make probes shorter.
        None takes 11 (int64 ids: 5).
    Returns:
      HashedRows; an id of parallel edges is stored once.
    Raises:
      ValueError: decreasing offsets, a negative id, a row of more than 2147483640 edges, a graph of 2^36 edges or 2^32
        buckets, a shape or dtype mismatch.
    Cost: O(num_rows + num_edges); scratch of a byte per bucket of the longest row and thread. Deterministic: yes.
    """
    num_threads = library.num_threads(num_threads)
    load = _load(indices, ids_per_bucket)
    return HashedRows(*torch.ops.fastsample.hashed_rows(indptr, indices, load, num_threads))


def has_edges(
    indices: Tensor, tables: HashedRows, rows: Tensor, vertices: Tensor, num_threads: int | None = None
) -> Tensor:
    """Whether each vertex is a neighbour of the row beside it.

    Args:
      indices: int32 | int64 [num_edges] of the graph that the tables were made of.
      tables: of `hashed_rows`.
      rows: int64 [count]; rows of the graph, or -1: a row without neighbours.
      vertices: int64 [count]; any values.
      num_threads: threads that share the pairs; None takes torch's setting.
    Returns:
      bool [count].
    Raises:
      ValueError: a row outside the graph, fewer indices than the tables were made of, a shape or dtype mismatch.
    Cost: O(count), of a row of at most 16 neighbours its length. Deterministic: yes.
    """
    num_threads = library.num_threads(num_threads)
    return torch.ops.fastsample.has_edges(indices, tables.nodes, tables.buckets, rows, vertices, num_threads)


def _load(indices: Tensor, ids_per_bucket: int | None) -> int:
    return IDS_PER_BUCKET.get(indices.dtype, 1) if ids_per_bucket is None else ids_per_bucket


def _graph(indptr: Tensor, indices: Tensor) -> tuple[library.Graph, list[Tensor]]:
    """The core's view of a graph, and the tensors that have to live as long."""
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected at least one offset.")
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    num_rows, num_edges, id_type = indptr.numel() - 1, indices.numel(), library.type_code(indices)
    view = library.Graph(indptr.data_ptr(), indices.data_ptr(), None, None, None, num_rows, 0, num_edges, id_type)
    return view, [indptr, indices]


def _num_buckets(graph: library.Graph, ids_per_bucket: int) -> int:
    count = c_int64()
    library.call(library.core().fs_hashed_rows_size, ctypes.byref(graph), ids_per_bucket, ctypes.byref(count))
    return count.value


def _hashed_rows_cpu(indptr: Tensor, indices: Tensor, ids_per_bucket: int, num_threads: int) -> tuple[Tensor, Tensor]:
    graph, _kept = _graph(indptr, indices)
    num_buckets = _num_buckets(graph, ids_per_bucket)
    nodes = torch.empty(graph.num_rows, 2, dtype=torch.int64)
    buckets = torch.empty(num_buckets, BUCKET_BYTES // indices.itemsize, dtype=indices.dtype)
    for table in (nodes, buckets):
        library.advise_huge_pages(table)  # queries read them at random
    tables = Tables(nodes.data_ptr(), buckets.data_ptr(), num_buckets, ids_per_bucket, num_threads)
    library.call(library.core().fs_hashed_rows, ctypes.byref(graph), ctypes.byref(tables))
    return nodes, buckets


def _has_edges_cpu(
    indices: Tensor, nodes: Tensor, buckets: Tensor, rows: Tensor, vertices: Tensor, num_threads: int
) -> Tensor:
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    checks.matrix("nodes", nodes, (torch.int64,))
    checks.matrix("buckets", buckets, (indices.dtype,))
    rows = checks.vector("rows", rows, (torch.int64,))
    vertices = checks.vector("vertices", vertices, (torch.int64,), rows.numel())
    answers = torch.empty(rows.numel(), dtype=torch.bool)
    graph = library.Graph(
        None, indices.data_ptr(), None, None, None, nodes.shape[0], 0, indices.numel(), library.type_code(indices)
    )
    tables = Tables(nodes.data_ptr(), buckets.data_ptr(), buckets.shape[0], 0, num_threads)
    queries = Queries(rows.data_ptr(), vertices.data_ptr(), answers.data_ptr(), rows.numel())
    library.call(library.core().fs_has_edges, ctypes.byref(graph), ctypes.byref(tables), ctypes.byref(queries))
    return answers


SCHEMAS = {
    "hashed_rows": (
        "(Tensor indptr, Tensor indices, int ids_per_bucket, int num_threads) -> (Tensor, Tensor)", _hashed_rows_cpu,
    ),
    "has_edges": (
        "(Tensor indices, Tensor nodes, Tensor buckets, Tensor rows, Tensor vertices, int num_threads) -> Tensor",
        _has_edges_cpu,
    ),
}  # fmt: skip
