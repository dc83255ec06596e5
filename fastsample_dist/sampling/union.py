"""The disjoint union of subgraphs as one graph over local ids, nodes with a loss first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist import ops


@dataclass(frozen=True, eq=False)
class Union:
    """Subgraphs side by side.

    Attributes:
      nodes: [num_nodes] ids of the graph: loss nodes of the first subgraph, of the second, ..., then their others.
      num_loss: loss nodes.
      indptr: int64 [num_nodes + 1]; CSC offsets.
      indices: [num_edges], dtype of the graph's ids; local source ids.
      num_visits: by subgraph.
    """

    nodes: Tensor
    num_loss: int
    indptr: Tensor
    indices: Tensor
    num_visits: list[int]


def union_of(
    arrays: ops.SamplingGraph, rule: ops.SubgraphRule, tables: ops.SubgraphTables, numbers: Sequence[int],
    loss_flags: Tensor | None,
) -> Union:  # fmt: skip
    """The subgraphs with these numbers; of ego networks only roots have a loss.

    Args:
      arrays: the graph as the operators read it.
      rule, tables: how its subgraphs are drawn.
      numbers: of the subgraphs.
      loss_flags: uint8 [num_nodes], 1 for nodes that have a loss; None: all.
    """
    parts, visits = _drawn(arrays, rule, tables, numbers)
    nodes = torch.cat([*parts, torch.empty(0, dtype=arrays.dtype)]).long()
    has_loss = torch.ones_like(nodes, dtype=torch.bool) if loss_flags is None else loss_flags[nodes] > 0
    sizes = [part.numel() for part in parts]
    if rule.method == "ego":
        has_loss &= torch.cat([torch.arange(size) for size in [*sizes, 0]]) == 0
    order = torch.argsort(has_loss, descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    sources, owners = [nodes[:0]], [nodes[:0]]
    for part, to in zip(parts, place.split(sizes), strict=True):
        indptr, found, _ = arrays.induced(part, False, rule.num_threads or torch.get_num_threads())
        sources.append(to[found.long()])
        owners.append(to.repeat_interleave(indptr.diff()))
    rows, by_row = torch.cat(owners).sort(stable=True)
    counts = torch.bincount(rows, minlength=nodes.numel())
    return Union(
        nodes[order].to(arrays.dtype), int(has_loss.sum()), torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        torch.cat(sources)[by_row].to(arrays.dtype), visits,
    )  # fmt: skip


def _drawn(
    arrays: ops.SamplingGraph, rule: ops.SubgraphRule, tables: ops.SubgraphTables, numbers: Sequence[int]
) -> tuple[list[Tensor], list[int]]:
    """(nodes, number of visits) by subgraph; numbers that follow each other are drawn together."""
    nodes: list[Tensor] = []
    visits: list[int] = []
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            drawn = ops.subgraph_nodes(arrays, rule, tables, numbers[begin], end - begin)
            nodes += drawn.nodes
            visits += drawn.num_visits.tolist()
            begin = end
    return nodes, visits
