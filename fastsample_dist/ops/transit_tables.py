"""TransitTables: what the applications of graph sampling read besides a graph's rows, built once per graph and process.

Walk slots for picks by weight, sums and maxima of the rows' weights, hashed rows for membership queries, and, where the
graph is a mapped file, optionally a copy of its neighbour ids: all in anonymous memory, which the system can hold in
huge pages. Their size is known before (`table_bytes`), and more than what is free is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import memory_sizes
from fastsample_dist.ops import checks, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.alias_tables import WEIGHT_DTYPES
from fastsample_dist.ops.hashed_rows import hashed_rows, hashed_rows_bytes
from fastsample_dist.ops.walk_slots import slot_bytes, walk_slots

_SUM_BYTES = 8  # of a row's sum or maximum


@dataclass(frozen=True)
class TableNeeds:
    """Which tables an application reads.

    Attributes:
      weighted: picks by weight, and sums of the rows' weights.
      max_weight: the largest weight of each row.
      edge_queries: membership queries.
      copy_indices: a copy of the neighbour ids, for a graph whose files are mapped: uniform walks read them at random.
    """

    weighted: bool = False
    max_weight: bool = False
    edge_queries: bool = False
    copy_indices: bool = False


def table_bytes(indptr: Tensor, indices: Tensor, needs: TableNeeds) -> dict[str, int]:
    """Bytes that each table takes, by what it is; reads the offsets at most.

    Args:
      indptr: int64 [num_rows + 1].
      indices: int32 | int64 [num_edges].
      needs: which tables.
    """
    num_rows, num_edges = indptr.numel() - 1, indices.numel()
    sizes = {}
    if needs.weighted:
        sizes["walk slots"] = slot_bytes(indices.dtype) * num_edges
        sizes["sums of weights"] = _SUM_BYTES * num_rows
    if needs.max_weight:
        sizes["largest weights"] = _SUM_BYTES * num_rows
    if needs.edge_queries:
        sizes["hashed rows"] = hashed_rows_bytes(indptr, indices)
    if needs.copy_indices:
        sizes["a copy of the neighbours"] = indices.nbytes
    return sizes


class TransitTables:
    """A graph and the tables of an application, in the form that the core reads.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; ids of the sources, all of them rows.
      weights: float32 | float64 [num_edges], or None; read where `needs` say so.
      needs: which tables to build.
      columns: int64 [num_rows] each, by node id; what callbacks read of a node.
      num_threads: threads that build; None takes torch's setting.
    Attributes:
      num_rows: nodes of the graph.
      dtype: of its ids.
      weighted: whether picks are made by weight.
      num_bytes: memory of the tables.
      slots, hashed: walk slots and hashed rows; None where they were not asked for.
      weights, totals, maxima: weights of edges, sums and maxima of rows; None where they are not read.
      columns: as given.
    Raises:
      ValueError: wrong dtypes or shapes, tables that need weights without weights, a weight that alias tables refuse,
        or tables that are larger than the memory that is free (the line has both sizes).
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        weights: Tensor | None = None,
        needs: TableNeeds | None = None,
        columns: Sequence[np.ndarray] = (),
        num_threads: int | None = None,
    ) -> None:
        needs = TableNeeds() if needs is None else needs
        indptr = checks.vector("indptr", indptr, (torch.int64,))
        checks.require(indptr.numel() >= 1, "indptr is empty; expected num_nodes + 1 offsets.")
        indices = checks.vector("indices", indices, checks.ID_DTYPES, int(indptr[-1]))
        checks.require(
            weights is not None or not (needs.weighted or needs.max_weight),
            "the application reads weights but the graph has none; pass weights, one per edge.",
        )
        self.num_rows, self.dtype, self.weighted = indptr.numel() - 1, indices.dtype, needs.weighted
        sizes = table_bytes(indptr, indices, needs)
        _refuse_size(sizes)
        self.num_bytes = sum(sizes.values())
        if needs.copy_indices:
            indices = _copy_in_huge_pages(indices)
        self._build(indptr, indices, weights, needs, num_threads)
        self._set_columns(columns)

    def _build(
        self, indptr: Tensor, indices: Tensor, weights: Tensor | None, needs: TableNeeds, num_threads: int | None
    ) -> None:
        slots = totals = maxima = weight_view = hashed = None
        if weights is not None and (needs.weighted or needs.max_weight):
            weights = checks.vector("weights", weights, WEIGHT_DTYPES, indices.numel())
            built = walk_slots(
                indptr, indices, weights, slots=needs.weighted, totals=needs.weighted, maxima=needs.max_weight,
                num_threads=num_threads,
            )  # fmt: skip
            slots, totals, maxima = built.slots, built.totals, built.maxima
            weight_view = ctypes.pointer(
                library.WeightTables(weights.data_ptr(), None, None, library.type_code(weights))
            )
        if needs.edge_queries:
            hashed = hashed_rows(indptr, indices, num_threads)
        self.graph = library.Graph(
            indptr.data_ptr(), indices.data_ptr(), None, None, weight_view, self.num_rows, 0, indices.numel(),
            library.type_code(indices),
        )  # fmt: skip
        self.arguments = layouts.TableArguments(
            library.address(slots), library.address(totals), library.address(maxima),
            None if hashed is None else library.address(hashed.nodes),
            None if hashed is None else library.address(hashed.buckets),
            None,
        )  # fmt: skip
        self.slots, self.hashed = slots, hashed
        self.weights, self.totals, self.maxima = (None if weight_view is None else weights), totals, maxima
        self._kept = (indptr, indices, weight_view)

    def _set_columns(self, columns: Sequence[np.ndarray]) -> None:
        own = [np.ascontiguousarray(column, dtype=np.int64) for column in columns]
        for number, column in enumerate(own):
            checks.require(
                column.shape == (self.num_rows,),
                f"column {number} has shape {column.shape}; expected one entry per node, ({self.num_rows},).",
            )
        self.columns, self._addresses = own, (ctypes.c_int64 * max(1, len(own)))(*(c.ctypes.data for c in own))
        self.arguments.columns = ctypes.addressof(self._addresses)


def _refuse_size(sizes: dict[str, int]) -> None:
    needed, free = sum(sizes.values()), memory_sizes.available_bytes() if sizes else 0
    if needed <= free:
        return
    parts = ", ".join(f"{name} {memory_sizes.format_size(size)}" for name, size in sizes.items())
    raise ValueError(
        f"the application's tables take {memory_sizes.format_size(needed)} ({parts}), but "
        f"{memory_sizes.format_size(free)} of memory are free; use a machine with more, or an application that needs "
        "fewer tables (weighted=False drops the walk slots)."
    )


def _copy_in_huge_pages(indices: Tensor) -> Tensor:
    copied = torch.empty_like(indices)
    library.advise_huge_pages(copied)
    return copied.copy_(indices)
