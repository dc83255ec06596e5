"""A small graph on which a wrong sampler is likely to be caught."""

from __future__ import annotations

import torch

from fastsample_dist.graph.csc import CSCGraph, row_positions
from fastsample_dist.ops import checks

NUM_LARGE = 4  # a large row has this many times the fanout


def conformance_graph(fanout: int = 3, dtype: torch.dtype = torch.int32, seed: int = 0) -> CSCGraph:
    """A weighted multigraph of 16 + NUM_LARGE * fanout nodes with the rows that samplers get wrong.

    Args:
      fanout: 1 or more; the fanout of the first hop, around which the degrees lie.
      dtype: of `indices`, int32 or int64.
      seed: of the neighbours and weights.
    Returns:
      CSCGraph with weights and permuted, far apart original ids. Rows 0 to 3 have 0 to 3 in-edges, row 4 has `fanout`,
      5 and 6 have fanout + 1 and the same sources, 7 has 2 * fanout, 8 has NUM_LARGE * fanout, 9 parallel edges,
      10 a self-loop, 11 no positive weight, 12 `fanout` positive weights among more, 13 one, 14 weights from
      1e-12 to 1, 15 weights of zero at every third edge. The remaining nodes have one or two in-edges.
    Raises:
      ValueError: fanout below 1, a seed that is no integer >= 0, or another dtype.
    """
    fanout = checks.whole("fanout", fanout, 1)
    checks.require(dtype in checks.ID_DTYPES, f"dtype is {dtype!r}; expected torch.int32 or torch.int64.")
    generator = torch.Generator().manual_seed(checks.whole("seed", seed, 0, checks.LARGEST))
    num_nodes = 16 + NUM_LARGE * fanout
    orig_ids = torch.randperm(num_nodes, generator=generator) * (2**33 + 1)

    def others(degree: int) -> torch.Tensor:
        return torch.randperm(num_nodes, generator=generator)[:degree]

    twins = others(fanout + 1)
    doubled = others(fanout)
    rows = [others(degree) for degree in (0, 1, 2, 3, fanout)]
    rows += [twins, twins, others(2 * fanout), others(NUM_LARGE * fanout)]
    rows += [torch.cat([doubled, doubled[: fanout // 2 + 1], others(1)])]
    rows += [torch.cat([torch.tensor([10]), others(fanout + 1)])]
    rows += [others(degree) for degree in (fanout + 1, fanout + 3, fanout + 2, fanout + 4, 2 * fanout + 1)]
    rows += [others(1 + node % 2) for node in range(16, num_nodes)]
    rows = [row[torch.argsort(orig_ids[row])] for row in rows]  # canonical order
    weights = [0.25 + 4.0 * torch.rand(row.numel(), generator=generator) for row in rows]
    weights[11].zero_()
    weights[12][fanout:] = 0.0
    weights[13][1:] = 0.0
    weights[14] = torch.logspace(-12, 0, fanout + 4)
    weights[15][::3] = 0.0
    degrees = torch.tensor([row.numel() for row in rows])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return CSCGraph(indptr, torch.cat(rows).to(dtype), torch.cat(weights), orig_ids)


def relabelled(graph: CSCGraph, seed: int = 0) -> tuple[CSCGraph, torch.Tensor]:
    """A copy of a graph with its nodes in another order, as a partition has them.

    Returns:
      (the copy, new id of every node int64 [num_nodes]); the copy's orig_ids are the graph's original ids, and its rows
      are in the same order as the graph's.
    """
    new_of = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    old_of = torch.argsort(new_of)
    positions, _ = row_positions(graph.indptr.numpy(), old_of.numpy())
    indptr = torch.zeros(graph.num_nodes + 1, dtype=torch.int64)
    torch.cumsum(graph.in_degrees()[old_of], 0, out=indptr[1:])
    indices = new_of[graph.indices[positions].long()].to(graph.indices.dtype)
    weights = None if graph.weights is None else graph.weights[positions]
    orig_ids = old_of if graph.orig_ids is None else graph.orig_ids[old_of]
    return CSCGraph(indptr, indices, weights, orig_ids), new_of
