"""The walks that are measured: what an application is called, where its walks start, and what a step of it reads.

They are ThunderRW's runs (VLDB'21, section 6; its programs deepwalk, ppr, node2vec), so that every contestant does the
same work: walks of 80 steps from every node with a neighbour, or, for PPR, as many walks as the graph has nodes, all
from the one node of the largest degree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.bench.walk.own import OwnDeepWalk, OwnNode2Vec, OwnUniform
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling import transit

P, Q = 2.0, 0.5
STOP = 0.2
MAX_WEIGHT = 5.0  # weights are uniform in 1 .. 5, as NextDoor and ThunderRW draw them


@dataclass(frozen=True, kw_only=True)
class WalkCase:
    """One application.

    Attributes:
      name: on the command line.
      weighted: draws edges by weight.
      make: the application for walks of a length.
      one_root: all walks start at the node of the largest degree.
      make_own: the same as a user's application; None: it is not measured so.
    """

    name: str
    weighted: bool
    make: Callable[[int], transit.App]
    one_root: bool = False
    make_own: Callable[[int], transit.App] | None = None

    def roots(self, graph: CSCGraph, most: int) -> Tensor:
        """Where walks start, at most `most` of them, spread evenly over the graph: int64 [num_walks].

        Raises:
          ValueError: the graph has no edges.
        """
        degrees = graph.in_degrees()
        connected = torch.nonzero(degrees > 0).reshape(-1)
        if connected.numel() == 0:
            raise ValueError("the graph has no edges; there is nothing to walk on.")
        if self.one_root:
            return degrees.argmax().expand(min(most, graph.num_nodes)).contiguous()
        count = min(most, connected.numel())
        return connected[torch.arange(count) * connected.numel() // count]


CASES = {
    case.name: case
    for case in (
        WalkCase(
            name="uniform", weighted=False, make=lambda length: transit.DeepWalk(length, weighted=False),
            make_own=OwnUniform,
        ),
        WalkCase(
            name="deepwalk", weighted=True, make=lambda length: transit.DeepWalk(length, weighted=True),
            make_own=OwnDeepWalk,
        ),
        WalkCase(name="ppr", weighted=False, make=lambda length: transit.PPR(STOP, weighted=False), one_root=True),
        WalkCase(
            name="node2vec", weighted=False, make=lambda length: transit.Node2Vec(length, P, Q, weighted=False),
            make_own=lambda length: OwnNode2Vec(length, P, Q, weighted=False),
        ),
    )
}  # fmt: skip


def with_weights(graph: CSCGraph, rng_seed: int) -> CSCGraph:
    """The graph with weights, uniform in 1 .. MAX_WEIGHT unless it has its own."""
    if graph.weights is not None:
        return graph
    generator = torch.Generator().manual_seed(rng_seed)
    drawn = 1 + (MAX_WEIGHT - 1) * torch.rand(graph.num_edges, generator=generator)
    return CSCGraph(graph.indptr, graph.indices, drawn, graph.orig_ids, weights_checked=True)
