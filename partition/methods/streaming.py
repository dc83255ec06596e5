"""`ldg` and `fennel`: one pass over the neighbour lists decides, further passes improve.

Memory: a part per node and a byte for its splits, and some words per node for levelling, whatever the number of edges.
The lists are read front to back, so they may be mapped from a file that does not fit into memory; for another order of
the nodes they are copied in that order first (external/ordered_rows.py). Those of a directed graph are its in-edges.

Passes after the first (restreaming) cost as much as the first and halve the cut where there are communities. Capacities
stay wide, for tight ones leave a node little choice but the part that has room; the parts are levelled afterwards
(balance.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fastsample_dist import ops
from fastsample_dist.ops.stream_partition import NO_LIMIT, NUM_LIMITS
from fastsample_dist.partition.methods.interrupts import call_beside
from fastsample_dist.partition.methods.request import SPLITS, PartitionRequest, fill_empty_parts

PASSES = 10
SLACK = 0.5  # what a part may hold above its share, as a share of it


def stream_parts(request: PartitionRequest, score: str) -> np.ndarray:
    """Assign by streaming.

    Args:
      request: what to cut; PASSES passes over the edges where it states none.
      score: "ldg" or "fennel".
    Returns:
      int32 [num_nodes]; no part is empty.
    Source: ops.stream_partition. Deterministic: yes.
    """
    graph, num_parts = request.graph, request.num_parts
    num_edges = graph.num_edges / 2 if request.undirected else graph.num_edges
    kinds = torch.from_numpy(request.kinds)
    parts = torch.full((request.num_nodes,), -1, dtype=torch.int32)
    rule = ops.StreamRule(
        score=score,
        num_parts=num_parts,
        capacities=_capacities(request),
        alpha=math.sqrt(num_parts) * num_edges / request.num_nodes**1.5,
        rng_seed=request.seed,
    )
    order = None if request.order is None else torch.from_numpy(request.order)
    with _rows_to_read(request) as (indices, by_turn):
        one_pass = functools.partial(
            ops.stream_partition, graph.indptr, indices, rule=rule, order=order, kinds=kinds, rows_by_turn=by_turn
        )
        passes = PASSES if request.passes is None else request.passes
        request.progress.bytes_total(passes * indices.nbytes)
        for _ in range(passes):
            parts = call_beside(functools.partial(one_pass, parts))
            request.progress.bytes_done(indices.nbytes)
    found = parts.numpy()
    fill_empty_parts(found, num_parts, graph.indptr.numpy())
    return found


@contextmanager
def _rows_to_read(request: PartitionRequest) -> Iterator[tuple[torch.Tensor, bool]]:
    """The neighbour lists, and whether they lie in the order of the turns: a copy where they are mapped from a file."""
    graph = request.graph
    if request.order is None or request.reorder is None:
        yield graph.indices, False
        return
    with request.reorder(graph.indptr.numpy(), graph.indices.numpy(), request.order, "indices") as ordered:
        yield torch.from_numpy(ordered), True


def _capacities(request: PartitionRequest) -> tuple[int, ...]:
    """What a part may hold of each constraint."""
    totals = [request.num_nodes, request.graph.num_edges, *(len(request.splits.get(split, ())) for split in SPLITS)]
    limits = [max(1, math.ceil(total / request.num_parts * (1 + SLACK))) for total in totals]
    return (*limits, *[NO_LIMIT] * (NUM_LIMITS - len(limits)))


assign_ldg = functools.partial(stream_parts, score="ldg")
assign_fennel = functools.partial(stream_parts, score="fennel")
