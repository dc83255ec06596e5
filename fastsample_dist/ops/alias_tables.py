"""alias_tables: one table per row of in-edges, from which an edge is drawn by weight in constant time.

An edge has two 32-bit words, threshold and alias (a position in the row). A draw takes a slot of the row uniformly and
one more 32-bit word: below the slot's threshold it means the slot's own position, else its alias.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

WEIGHT_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class AliasTables:
    """What weighted sampling needs besides the weights. Memory: 8 bytes per edge, and 8 per node if a weight is 0.

    Attributes:
      table: int32 [num_edges, 2]; the bits of threshold (unsigned) and alias of each edge.
      num_positive: int64 [num_rows]; edges of positive weight per row, or None: every weight is positive.
    """

    table: Tensor
    num_positive: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Memory of the tables, in bytes."""
        counts = 0 if self.num_positive is None else self.num_positive.nbytes
        return self.table.nbytes + counts


def alias_tables(indptr: Tensor, weights: Tensor, num_threads: int | None = None) -> AliasTables:
    """Build the alias table of every row.

    A threshold is cut to a multiple of 2^-32, so that a table's probability of an edge is off from weight / total by
    at most 2^-32 / degree for each slot that leads to it. An edge of weight 0 is never reached.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets, non-decreasing.
      weights: float32 | float64 [num_edges]; finite and not negative.
      num_threads: threads that share the rows; None takes torch's setting. Results never depend on it.
    Returns:
      AliasTables: 8 bytes per edge, and 8 per row unless every weight is positive.
    Raises:
      ValueError: a negative, infinite or NaN weight (the message has the edge's position and value), a row of 2^31
        edges or more, decreasing offsets, a shape or dtype mismatch.
    Source: Walker (1977); Vose, IEEE Trans. Software Engineering (1991). Cost: O(num_rows + num_edges); scratch of 12
    bytes per edge of the longest row and thread. Deterministic: yes.
    """
    checks.tensors(indptr=indptr, weights=weights)
    num_threads = library.num_threads(num_threads)
    table, num_positive = torch.ops.fastsample.alias_tables(indptr, weights, num_threads)
    return AliasTables(table, None if torch.equal(num_positive, indptr.diff()) else num_positive)


def _alias_tables_cpu(indptr: Tensor, weights: Tensor, num_threads: int) -> tuple[Tensor, Tensor]:
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected at least one offset.")
    weights = checks.vector("weights", weights, WEIGHT_DTYPES, int(indptr[-1]))
    num_rows, num_edges = indptr.numel() - 1, weights.numel()
    table = torch.empty(num_edges, 2, dtype=torch.int32)
    library.advise_huge_pages(table)  # draws read it at random
    num_positive = torch.empty(num_rows, dtype=torch.int64)
    edges = library.WeightedEdges(
        indptr.data_ptr(), weights.data_ptr(), num_rows, num_edges, library.type_code(weights), num_threads
    )
    library.call(library.core().fs_alias_tables, ctypes.byref(edges), table.data_ptr(), num_positive.data_ptr())
    return table, num_positive


def _alias_tables_cuda(indptr: Tensor, weights: Tensor, num_threads: int) -> tuple[Tensor, Tensor]:
    """Built by the CPU and moved: once per graph."""
    table, num_positive = _alias_tables_cpu(indptr.cpu(), weights.cpu(), num_threads)
    return table.to(weights.device), num_positive.to(weights.device)


SCHEMAS = {"alias_tables": ("(Tensor indptr, Tensor weights, int num_threads) -> (Tensor, Tensor)", _alias_tables_cpu)}
CUDA_KERNELS = {"alias_tables": _alias_tables_cuda}
