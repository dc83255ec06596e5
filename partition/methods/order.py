"""The order in which a streaming method visits the nodes, found without holding the edges.

    given   ascending ids: rows are read front to back
    bfs     breadth first: a node comes soon after its neighbours, so more of them have a part when it takes its own

The search runs in the neighbour lists that the method's cut is counted in (`Method.links`): those of both directions
for methods that have them, else the stored rows of in-edges. These say which nodes a node's row refers to, which is all
that a method which counts in-neighbours asks of an order; lists of both directions would cost a sort of all edges.

Memory per node: 8 bytes for the order and 4.25 while it is searched for.
"""

from __future__ import annotations

import numpy as np
import torch

from fastsample_dist import ops
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.interrupts import call_beside

ORDER_BYTES, SEARCH_BYTES = 8, 5  # per node: the order; beside it while it is searched for


def bfs_order(links: Adjacency) -> np.ndarray:
    """The nodes breadth first from node 0, then from the first that was not found, neighbours by ascending id.

    Args:
      links: neighbour lists; columns that are mapped are read front to back, once for every level of many nodes.
    Returns:
      int64 [num_nodes].
    Source: ops.bfs_order. Deterministic: yes.
    """
    columns = torch.from_numpy(links.indptr), torch.from_numpy(np.asarray(links.indices))
    return call_beside(lambda: ops.bfs_order(*columns)).numpy()
