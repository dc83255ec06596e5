"""Ids with huge gaps: an edge list of a few hundred edges must not quietly become a graph of millions of nodes.

Where the number of nodes is not stated, it is the highest id + 1. Where that is far more than the edges can touch, the
ids are not numbered from 0, and arrays with an entry per node would fill memory and disk. Small graphs are let through;
whoever wants a large one states num_nodes.
"""

from __future__ import annotations

import numpy as np

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.edge_options import nearly_all_gaps

COUNTED_EDGES = 1 << 24  # of longer lists the distinct ids are not counted for the message


def check_gaps(raw: RawGraph) -> None:
    """Refuse a graph whose number of nodes is the highest id + 1 and that has far fewer edges.

    Raises:
      ValueError: the counts, and what to do. Cost: nothing unless it is refused.
    """
    ends = 2 * raw.edge_index.shape[1]
    if not raw.counted_by_ids or not nearly_all_gaps(raw.num_nodes, raw.edge_index.shape[1]):
        return
    distinct = f"at most {ends}" if ends > 2 * COUNTED_EDGES else f"{len(np.unique(raw.edge_index))}"
    raise ValueError(
        f"{raw.name}: {ends // 2} edges name {distinct} distinct ids, but the largest is {raw.num_nodes - 1}, which "
        f"means {raw.num_nodes} nodes, nearly all without an edge; relabel the ids (--relabel for an edge list, "
        "numpy.unique with return_inverse=True for arrays), or state num_nodes (in meta.json, or num_nodes=...) if "
        "nodes without edges are meant."
    )
