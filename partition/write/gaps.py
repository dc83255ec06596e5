"""Ids with huge gaps: an edge list of a few hundred edges must not quietly become a graph of millions of nodes.

Where the number of nodes is not stated, it is the highest id + 1. E edges touch at most 2 E nodes, so a graph with
more than WIDEST times as many is nearly all gaps, whatever its edges are: its ids are not numbered from 0, and arrays
with an entry per node would fill memory and disk. Small graphs are let through; whoever wants a large one states
num_nodes.
"""

from __future__ import annotations

import numpy as np

from fastsample_dist.graph.datasets import RawGraph

WIDEST = 10  # nodes per end of an edge
FREE_NODES = 1 << 20  # this many cost nothing
COUNTED_EDGES = 1 << 24  # of longer lists the distinct ids are not counted for the message


def check_gaps(raw: RawGraph) -> None:
    """Refuse a graph whose number of nodes is the highest id + 1 and that has far fewer edges.

    Raises:
      ValueError: the counts, and what to do. Cost: nothing unless it is refused.
    """
    ends = 2 * raw.edge_index.shape[1]
    if not raw.counted_by_ids or raw.num_nodes <= max(FREE_NODES, WIDEST * ends):
        return
    distinct = f"at most {ends}" if ends > 2 * COUNTED_EDGES else f"{len(np.unique(raw.edge_index))}"
    raise ValueError(
        f"{raw.name}: {ends // 2} edges name {distinct} distinct ids, but the largest is {raw.num_nodes - 1}, which "
        f"means {raw.num_nodes} nodes, nearly all without an edge; relabel the ids (--relabel for an edge list, "
        "numpy.unique with return_inverse=True for arrays), or state num_nodes (in meta.json, or num_nodes=...) if "
        "nodes without edges are meant."
    )
