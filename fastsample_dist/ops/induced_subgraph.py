"""induced_subgraph: all edges of a graph between given nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.sampling_graph import SamplingGraph


def induced_subgraph(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, edge_ids: bool = False, num_threads: int | None = None
) -> tuple[Tensor, ...]:
    """All edges between some nodes of a graph, with the nodes' positions as ids.

    Args:
      indptr: int64 [num_nodes + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; source ids, 0 .. num_nodes - 1.
      nodes: same dtype as indices, [n]; unique node ids.
      edge_ids: return the edges' positions too.
      num_threads: threads that share the rows; None takes torch's setting. Results never depend on it.
    Returns:
      (indptr int64 [n + 1], indices [k] of the dtype of `indices`), with edge_ids also int64 [k] positions in `indices`
      of the graph. Row i is that of nodes[i], its edges in the order of the graph's row; parallel edges and self-loops
      are kept.
    Raises:
      ValueError: a node that repeats, an id outside the graph, a dtype or shape mismatch, damaged offsets.
    Source: Zeng et al., "Accurate, efficient and scalable graph embedding", IPDPS'19, algorithm 2, line 8. Cost: O(sum
    of the nodes' degrees); nothing is cleared or allocated per node of the graph. Deterministic: yes.
    """
    checks.tensors(indptr=indptr, indices=indices, nodes=nodes)
    threads = None if num_threads is None else library.num_threads(num_threads)  # tracing cannot ask for torch's
    rows, sources, positions = torch.ops.fastsample.induced_subgraph(indptr, indices, nodes, edge_ids, threads)
    return (rows, sources, positions) if edge_ids else (rows, sources)


def _induced_subgraph_cpu(
    indptr: Tensor, indices: Tensor, nodes: Tensor, edge_ids: bool, num_threads: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    threads = library.num_threads(num_threads)
    rows, sources, positions = SamplingGraph(indptr, indices).induced(nodes, edge_ids, threads)
    return rows, sources, rows.new_empty(0) if positions is None else positions


SCHEMAS = {
    "induced_subgraph": (
        "(Tensor indptr, Tensor indices, Tensor nodes, bool edge_ids, int? num_threads) -> (Tensor, Tensor, Tensor)",
        _induced_subgraph_cpu,
    )
}
