"""Applications that take whole neighbourhoods or induced subgraphs (NextDoor, section 4.2)."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.ops import checks, reference
from fastsample_dist.ops.reference.streams import INITIAL
from fastsample_dist.sampling.sampler import integer_ids
from fastsample_dist.sampling.transit.app import (
    ALL,
    COLLECTIVE,
    NULL,
    ROOT_STAGE,
    App,
    by_original_id,
    needs,
)  # fmt: skip
from fastsample_dist.sampling.transit.laws import History, Law, RootsLaw

if TYPE_CHECKING:
    from fastsample_dist.graph.csc import CSCGraph

MOST_CHOICES = 10_000  # of clusters, whose law is stated


class MVS(App):
    """All neighbours of a batch of roots, in the order of roots and rows: the one-hop neighbourhood that minimal
    variance sampling starts from.

    Source: Cong et al., "Minimal variance sampling with provable guarantees for fast training of graph neural
    networks", KDD'20, as NextDoor, section 4.2 has it.
    """

    needs = needs(weights=False)

    def steps(self) -> int:
        """See App."""
        return 1

    def sample_size(self, step: int) -> int:
        """See App."""
        return ALL

    def next(s, transits, edges, step, draw, par):
        """Every neighbour in its turn."""
        return edges[draw.turn]

    def law(self, graph: CSCGraph, history: History) -> Law:
        """The neighbour whose turn it is; see App."""
        return {int(graph.indices[graph.indptr[history.transit] + history.turn]): 1.0}


class ClusterGCN(App):
    """The subgraph that the nodes of some clusters, chosen without replacement, have among themselves.

    Args:
      clusters: int [num_nodes]; cluster of each node, 0 or more, in ascending order of original id. A number that no
        node has is no cluster.
      num_clusters: clusters per sample; at most as many as there are.
    Source: Chiang et al., "Cluster-GCN", KDD'19, section 3.2.
    """

    sampling_type = COLLECTIVE
    record = "within"
    needs = needs(weights=False)

    def __init__(self, clusters: Tensor, num_clusters: int = 20) -> None:
        numbers = integer_ids(clusters, "clusters", "cluster numbers").to(torch.int64)
        shape = tuple(checks.as_tensor(clusters).shape)
        if len(shape) != 1 or (numbers < 0).any():
            raise ValueError(f"clusters has shape {shape}; expected a number >= 0 per node.")
        self.clusters, self.total = _numbered(numbers)
        self.num_clusters = num_clusters
        if not 1 <= checks.whole("num_clusters", num_clusters, 1) <= max(1, self.total):
            raise ValueError(
                f"num_clusters is {num_clusters}; expected 1 to {self.total}, the clusters that there are."
            )

    def steps(self) -> int:
        """See App."""
        return 1

    def sample_size(self, step: int) -> int:
        """See App."""
        return 0

    def initial_roots(self, graph: CSCGraph, sample_ids: Tensor, rng_seed: int, step: int) -> Tensor:
        """The nodes of the chosen clusters, in ascending order of original id; see App."""
        if self.clusters.numel() != graph.num_nodes:
            raise ValueError(f"clusters has {self.clusters.numel()} entries; expected one per node, {graph.num_nodes}.")
        key, nodes = reference.stage_key(rng_seed, INITIAL, ROOT_STAGE, step), by_original_id(graph)
        chosen = torch.zeros(sample_ids.numel(), max(1, self.total), dtype=torch.bool)
        for i, own in enumerate(sample_ids.tolist()):
            chosen[i, reference.pick(reference.node_words(key, own), self.total, self.num_clusters, False)] = True
        members = [nodes[taken[self.clusters]] for taken in chosen]
        if not members:
            return torch.empty(0, 0, dtype=torch.int64)
        return torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=NULL)

    def roots_law(self, graph: CSCGraph) -> RootsLaw | None:
        """All choices of clusters alike, where there are at most 10,000; see App."""
        number = comb(self.total, self.num_clusters)
        if not 1 <= number <= MOST_CHOICES:
            return None
        nodes, law = by_original_id(graph), dict[tuple[int, ...], float]()
        for chosen in combinations(range(self.total), self.num_clusters):
            members = tuple(nodes[torch.isin(self.clusters, torch.tensor(chosen))].tolist())
            law[members] = law.get(members, 0.0) + 1.0 / number
        return law

    def next(s, transits, edges, step, draw, par):
        """Nothing: the sample is its roots."""
        return NULL


def _numbered(numbers: Tensor) -> tuple[Tensor, int]:
    """(clusters numbered from 0 without gaps, in the order of their numbers, and how many there are)."""
    if numbers.numel() and int(numbers.max()) >= numbers.numel():  # more than there can be clusters
        numbers = numbers.unique(return_inverse=True)[1]
    is_known = torch.bincount(numbers) > 0
    return (is_known.cumsum(0) - 1)[numbers], int(is_known.sum())
