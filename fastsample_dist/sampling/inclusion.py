"""How probable it is that nodes, and the two ends of an edge, are in a random subgraph.

Closed forms, where a law has some, need degrees and one or two passes over the edges:

    frontier  in continuous time, where a walker leaves a node of degree d at rate d, walkers that start at uniform
              nodes of a symmetric graph stay uniform, and every directed edge is crossed at the same rate: (n - m) / D
              times in a subgraph of n visits (m walkers, R roots, D edges). Some walkers that come from w to v were at
              v just before: in its time T a walker that left v for w is back with its next hop with probability
              r_w = (1 - (1 - exp(-d_w T)) / (d_w T)) / d_w on average. The others arrive nearly independently,
              link_w = (n - m) / D (1 - r_w) of them from w:
              P(v not in S) = (1 - 1/R)^m exp(-sum of link_w over the neighbours of v), and of both ends of an edge
              (1 - 2/R)^m exp(-sum of link_w over the edges into the two, those between them left out). Approximate.
    node      n draws of P(v) = q_v = d_v / D: P(u, v both not) = (1 - q_u - q_v)^n. Exact.
    edge      n draws of an edge: q_v = 1/R + sum over neighbours u of 1 / (R d_u), and an edge's ends are both hit by
              q_uv = k (1 / (R d_u) + 1 / (R d_v)): (1 - q_u - q_v + q_uv)^n. Exact on symmetric graphs.
    cluster   a permutation of K clusters is cut into B = ceil(K / c) subgraphs, the last of what is left: 1 / B, and
              for two of them pairs / (B K (K - 1)), pairs counting both orders within subgraphs. Exact over an epoch.

Everything else is counted: `count_subgraphs` subgraphs with numbers of their own (from 2^63 on), one bit per node and
subgraph. How often both ends of an edge were there is the popcount of their words' AND: no array over edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph, row_positions
from fastsample_dist.sampling.sampler import ids_within

COUNTED_FROM = 2**63  # numbers of subgraphs that are counted; below are those that are trained on
WORD_BITS = 64
_SUM_BITS = 36  # probabilities are added up as integers: in any order the same


class Inclusion(ABC):
    """Probabilities of one law on one graph.

    Args:
      graph: in-neighbour lists.
    """

    is_exact = True

    def __init__(self, graph: CSCGraph) -> None:
        self._graph = graph

    @abstractmethod
    def law(self, nodes: Tensor) -> ops.InclusionLaw:
        """The law's numbers of some nodes, int64 [n], in their order."""

    def node_probability(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """Probability of each node to be in a subgraph, float64 [n].

        Args:
          nodes: integer [n], ids of the graph.
        Raises:
          ValueError: they are not.
        """
        return ops.node_inclusion(self.law(ids_within(nodes, self._graph.num_nodes, "nodes")))

    def edge_probability(self, u: Tensor, v: Tensor) -> Tensor:
        """Probability of both ends of each edge u[i] -> v[i] to be in one subgraph, float64 [n].

        Args:
          u, v: integer [n], ids of the graph.
        Raises:
          ValueError: ids that are not the graph's, more of one end than of the other, an edge that there is not.
        """
        u, v = ids_within(u, self._graph.num_nodes, "u"), ids_within(v, self._graph.num_nodes, "v")
        if u.numel() != v.numel():
            raise ValueError(f"u has {u.numel()} nodes and v has {v.numel()}; expected both ends of every edge.")
        copies = self._parallel_edges(u, v)
        count = u.numel()  # a graph of pairs: node i is u[i], node count + i is v[i], whose row holds the edge
        starts = torch.cat([copies.new_zeros(count), copies]).cumsum(0)
        indptr = torch.cat([starts.new_zeros(1), starts])
        indices = torch.arange(count).repeat_interleave(copies)
        chances = ops.subgraph_weights(indptr, indices, self.law(torch.cat([u, v])), "inclusion")[indptr[count:-1]]
        return torch.where(u == v, self.node_probability(v), chances)

    def weights(
        self, indptr: Tensor, indices: Tensor, nodes: Tensor, form: str, num_threads: int | None = None
    ) -> Tensor:
        """Weights of a subgraph's edges, float32 [num_edges].

        Args:
          indptr, indices: of the subgraph, with local ids.
          nodes: integer, its nodes.
          form: "ratio" or "saint", see `ops.subgraph_weights`. "ratio": a row adds up to the in-degree in the graph.
          num_threads: None takes torch's setting. Never changes a result.
        """
        nodes = nodes.long()
        sums = in_degrees(self._graph, nodes).double() if form == "ratio" else None
        return ops.subgraph_weights(indptr, indices, self.law(nodes), form, row_sums=sums, num_threads=num_threads)

    def loss_weights(self, seeds: Tensor, mean: float) -> Tensor:
        """Loss weights of a batch's seeds, mean / P(v), float32 [n]: on average the loss is that of all loss nodes.

        Args:
          seeds: integer [n].
          mean: mean probability of the loss nodes.
        Source: GraphSAINT (ICLR 2020), section 3.2: 1 / lambda_v.
        """
        return (mean / self.node_probability(seeds)).float()

    def expected_members(self, nodes: Tensor | Sequence[int]) -> float:
        """How many of some nodes a subgraph has on average: the sum of their probabilities, the same in any order."""
        units = torch.round(self.node_probability(nodes) * 2.0**_SUM_BITS).long()
        return int(units.sum()) / 2.0**_SUM_BITS

    def _parallel_edges(self, u: Tensor, v: Tensor) -> Tensor:
        """How many edges run from u[i] to v[i], int64 [n]."""
        positions, owner = row_positions(self._graph.indptr.numpy(), v.numpy())
        hits = self._graph.indices[positions] == u[owner]
        copies = torch.from_numpy(np.bincount(owner[hits.numpy()], minlength=v.numel()))
        if bool((copies == 0).any()):
            first = int(torch.nonzero(copies == 0)[0])
            raise ValueError(f"there is no edge from {int(u[first])} to {int(v[first])}; expected edges of the graph.")
        return copies


class FrontierInclusion(Inclusion):
    """Closed form of frontier sampling on a symmetric graph, for many walkers: docs/subgraphs.md has its errors.

    Args:
      graph: in-neighbour lists.
      walkers: of the frontier.
      visits: of a subgraph.
      root_counts: integer [num_nodes], how often every node is among the roots; None: once.
      loops: int32 [num_nodes], edges of each node to itself.
    Memory: 16 bytes per node, 36 while it is made; one pass over the edges.
    Source: the law is that of Zeng et al., IPDPS'19, section 3; continuous time: Ribeiro and Towsley, "Estimating and
    sampling graphs with multidimensional random walks", IMC'10, section 5; the Poisson limit is this package's.
    """

    is_exact = False

    def __init__(self, graph: CSCGraph, walkers: int, visits: int, root_counts: Tensor | None, loops: Tensor) -> None:
        super().__init__(graph)
        self._walkers, self._root_counts = walkers, root_counts
        self._num_roots = graph.num_nodes if root_counts is None else int(root_counts.sum())
        crossings = (visits - walkers) / max(1, graph.num_edges)  # of one directed edge
        leaving = (graph.in_degrees() - loops).double()
        stays = (leaving * (crossings * self._num_roots / walkers)).clamp_(min=1e-300)
        left = ops.node_inclusion(ops.DrawsLaw(torch.zeros_like(stays), 1, arrivals=stays))  # 1 - exp(-stays)
        returns = left.div_(stays).neg_().add_(1)
        del stays  # here and below in place: a column is 8 bytes per node of the graph
        returns.div_(leaving.clamp(min=1)).masked_fill_(leaving == 0, 0.0)
        del leaving
        self._links = returns.neg_().add_(1).mul_(crossings)
        self._arrivals = ops.aggregate(graph.indptr, graph.indices, self._links[:, None])[:, 0]
        self._arrivals.sub_(loops * self._links)

    def law(self, nodes: Tensor) -> ops.DrawsLaw:
        rooted = torch.ones_like(nodes) if self._root_counts is None else self._root_counts[nodes]
        return ops.DrawsLaw(
            rooted.double() / self._num_roots, self._walkers, arrivals=self._arrivals[nodes], links=self._links[nodes]
        )


class NodeInclusion(Inclusion):
    """Closed form of draws of roots in proportion to their degrees; exact on every graph.

    Args:
      graph: in-neighbour lists.
      draws: their number.
      root_counts: as FrontierInclusion's.
    """

    def __init__(self, graph: CSCGraph, draws: int, root_counts: Tensor | None) -> None:
        super().__init__(graph)
        self._draws, self._root_counts = draws, root_counts
        degrees = graph.in_degrees()
        self._total = int((degrees if root_counts is None else degrees * root_counts).sum())

    def law(self, nodes: Tensor) -> ops.DrawsLaw:
        degrees = in_degrees(self._graph, nodes)
        if self._root_counts is not None:
            degrees = degrees * self._root_counts[nodes]
        return ops.DrawsLaw(degrees.double() / max(1, self._total), self._draws)


class EdgeInclusion(Inclusion):
    """Closed form of draws of edges: a uniform root that has neighbours, and one of them; exact on symmetric graphs.

    Args:
      graph: in-neighbour lists.
      draws: their number.
      root_counts, loops: as FrontierInclusion's.
    Memory: 16 bytes per node, 36 while it is made; one pass over the edges.
    """

    def __init__(self, graph: CSCGraph, draws: int, root_counts: Tensor | None, loops: Tensor) -> None:
        super().__init__(graph)
        degrees = graph.in_degrees()
        heads = degrees > 0 if root_counts is None else root_counts * (degrees > 0)
        num_heads = max(1, int(heads.sum()))
        self._draws = draws
        self._shares = heads.double().div_(degrees.clamp_(min=1).mul_(num_heads))
        del degrees
        self._chances = ops.aggregate(graph.indptr, graph.indices, self._shares[:, None])[:, 0]
        self._chances.sub_(loops * self._shares).add_(heads.double().div_(num_heads)).clamp_(0, 1)

    def law(self, nodes: Tensor) -> ops.DrawsLaw:
        return ops.DrawsLaw(self._chances[nodes], self._draws, shares=self._shares[nodes])


class ClusterInclusion(Inclusion):
    """Exact probabilities of subgraphs that are clusters of a permutation, taken in turn.

    Args:
      graph: in-neighbour lists.
      clusters: integer [num_nodes], cluster of each node, below 0 for none.
      num_clusters: their number.
      clusters_per_batch: of every subgraph of an epoch but the last, which has what is left.
    """

    def __init__(self, graph: CSCGraph, clusters: Tensor, num_clusters: int, clusters_per_batch: int) -> None:
        super().__init__(graph)
        self._clusters = clusters
        full, rest = divmod(num_clusters, clusters_per_batch)
        batches = full + (rest > 0)
        self._same = 1 / batches
        pairs = full * clusters_per_batch * (clusters_per_batch - 1) + rest * (rest - 1)
        self._apart = pairs / (batches * num_clusters * (num_clusters - 1)) if num_clusters > 1 else 0.0

    def law(self, nodes: Tensor) -> ops.ClustersLaw:
        return ops.ClustersLaw(self._clusters[nodes].long(), self._same, self._apart)

    def node_probability(self, nodes: Tensor | Sequence[int]) -> Tensor:
        nodes = ids_within(nodes, self._graph.num_nodes, "nodes")
        return torch.where(self._clusters[nodes] < 0, 0.0, super().node_probability(nodes))


class CountedInclusion(Inclusion):
    """Probabilities from counted subgraphs.

    Args:
      graph: in-neighbour lists.
      bits: int64 [num_nodes, words]; bit i of a row says whether the node is in counted subgraph i.
      count: subgraphs.
    """

    is_exact = False

    def __init__(self, graph: CSCGraph, bits: Tensor, count: int) -> None:
        super().__init__(graph)
        self._bits, self._count = bits, count

    def law(self, nodes: Tensor) -> ops.CountsLaw:
        return ops.CountsLaw(self._bits[nodes], self._count)

    def loss_weights(self, seeds: Tensor, mean: float) -> Tensor:
        counts = self.node_probability(seeds) * self._count
        return (mean * (self._count + 1) / (counts + 1)).float()  # as the weights of edges: see fastsample_inclusion.h


def in_degrees(graph: CSCGraph, nodes: Tensor) -> Tensor:
    """In-degree of some nodes, int64 [n]."""
    return graph.indptr[nodes + 1] - graph.indptr[nodes]


def mark(bits: Tensor, number: int, nodes: Tensor) -> None:
    """Note that counted subgraph `number` has some nodes, distinct, in `bits` int64 [num_nodes, words]."""
    word, bit = divmod(number, WORD_BITS)
    bits.numpy().view(np.uint64)[nodes.numpy(), word] |= np.uint64(1 << bit)


def words_of(count: int) -> int:
    """Words that hold a bit for each of `count` subgraphs."""
    return -(-count // WORD_BITS)
