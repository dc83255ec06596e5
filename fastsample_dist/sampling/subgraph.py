"""SubgraphSampler: random subgraphs of a graph as training samples, and as mini-batches.

A subgraph has a number, which with rng_seed keys every draw: threads, ranks, parts, the numbering of the nodes and
instruction sets change nothing. Its nodes are drawn first, then all edges between them are taken. A training set is an
endless sequence of subgraphs; an epoch has so many that every loss node is in one of them on average (`num_subgraphs`).

In a batch all layers share one square MFG, whose loss nodes come first: the last layer computes these alone, from the
rows of the same MFG's prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SamplingGraph, checks
from fastsample_dist.sampling import inclusion as laws
from fastsample_dist.sampling.joined_batch import first_rows
from fastsample_dist.sampling.mfg import MFG, DrawKey, MiniBatch
from fastsample_dist.sampling.sampler import ids_within, integer_ids
from fastsample_dist.sampling.subgraph_spec import (
    CLOSED,
    CLUSTER,
    COUNTS,
    EDGE,
    EGO,
    FRONTIER,
    NODE,
    NONE,
    SAINT,
    SubgraphSpec,
)  # fmt: skip

_MOST_AT_ONCE = 2**20
_COUNTED_AT_ONCE = 64  # subgraphs whose nodes are in memory together while they are counted


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A random subgraph: some nodes and all edges of the graph between them.

    Attributes:
      nodes: [num_nodes] ids of the graph, in order of first appearance.
      indptr: int64 [num_nodes + 1]; CSC offsets.
      indices: [num_edges], dtype of the graph's ids; local source ids, 0 .. num_nodes - 1.
      edge_weights: float32 [num_edges] or None, see SubgraphSpec.weights.
      number: of the subgraph.
      num_visits: draws that gave the nodes, with repetitions; fewer than the budget where they ended early, because no
        walker could leave its node.
    """

    nodes: Tensor
    indptr: Tensor
    indices: Tensor
    edge_weights: Tensor | None
    number: int
    num_visits: int

    @property
    def num_nodes(self) -> int:
        """Distinct nodes."""
        return self.nodes.numel()

    @property
    def num_edges(self) -> int:
        """Edges between them."""
        return self.indices.numel()


class SubgraphSampler:
    """Draws subgraphs of one graph.

    Args:
      graph: in-neighbour lists in host memory, with a row for every source; rows in canonical order (graph/csc.py).
      spec: how subgraphs are drawn and weighted.
      roots: integer [num_roots], nodes that frontiers, walks and ego networks begin at and that draws of nodes and
        edges take; in any order, a node counts as often as it stands there. None: all nodes, each once.
      clusters: integer [num_nodes], cluster of every node, below 0 for none; of method "cluster" alone, where
        clusters without nodes do not count.
    Raises:
      ValueError: an argument of another type; the graph is on a GPU; a root outside it, no roots; clusters that are
        missing or fewer than a subgraph takes; roots or clusters that the method does not read.
    Source: see SubgraphSpec.
    """

    def __init__(
        self, graph: CSCGraph, spec: SubgraphSpec, roots: Tensor | Sequence[int] | None = None, *,
        clusters: Tensor | None = None,
    ) -> None:  # fmt: skip
        for name, value, kind in (("graph", graph, CSCGraph), ("spec", spec, SubgraphSpec)):
            if not isinstance(value, kind):
                raise ValueError(f"{name} is a {type(value).__name__}; expected a fsd.{kind.__name__}.")
        if graph.device.type != "cpu":
            raise ValueError(f"the graph is on {graph.device}; subgraphs are drawn on the CPU: pass it in host memory.")
        if (clusters is None) == (spec.method == CLUSTER):
            given = "no clusters were" if clusters is None else "clusters were"
            raise ValueError(
                f"method is {spec.method!r} but {given} given; pass clusters, one per node, with method 'cluster' "
                "alone."
            )
        if roots is not None and spec.method == CLUSTER:
            raise ValueError("roots is given but method is 'cluster', whose subgraphs begin nowhere; leave roots out.")
        self.graph, self.spec = graph, spec
        self._clusters = None if clusters is None else _numbered(clusters, graph.num_nodes, graph.indices.dtype)
        self._arrays = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
        self._tables = self._make_tables(roots)
        if spec.method == CLUSTER and spec.clusters_per_batch > self._num_clusters:
            raise ValueError(
                f"clusters_per_batch is {spec.clusters_per_batch} but there are {self._num_clusters} clusters; pass at "
                "most so many."
            )
        self._inclusion: laws.Inclusion | None = None
        self._loops: Tensor | None = None  # of every node, from when they are found until a closed form is made of them
        self._loss: _LossNodes | None = None

    def sample(self, number: int) -> Subgraph:
        """One subgraph.

        Args:
          number: 0 or more, below 2**63: numbers from there on are those of counted subgraphs.
        """
        return self.sample_many(number, 1)[0]

    def sample_many(self, first: int, count: int) -> list[Subgraph]:
        """The subgraphs first .. first + count - 1, one per thread (the paper's pool, section 4.3).

        Args:
          first: number of the first one.
          count: 0 to 2**20; all of them are in memory together.
        Raises:
          ValueError: a number below 0 or from 2**63 on, another count.
        """
        first, count = _number(first), checks.whole("count", count, 0, _MOST_AT_ONCE)
        numbers = range(first, first + count)
        _number(first + max(count, 1) - 1)
        drawn = ops.sample_subgraphs(self._arrays, self.spec.rule, self._tables, numbers)
        return [
            Subgraph(own.nodes, own.indptr, own.indices, self._weights(own), number, own.num_visits)
            for number, own in zip(numbers, drawn.graphs, strict=True)
        ]

    def batch(
        self,
        numbers: int | Sequence[int],
        num_layers: int = 3,
        loss_nodes: Tensor | Sequence[int] | None = None,
        step: int | None = None,
    ) -> MiniBatch:
        """One or several subgraphs as a mini-batch: their disjoint union.

        Args:
          numbers: of the subgraphs; none gives an empty batch.
          num_layers: of the model, 1 or more.
          loss_nodes: integer, nodes that have a label to learn; the batch's seeds are those of them that are in the
            subgraphs. None: all nodes. Of an ego network the root is the only one that is asked for. Pass the same
            tensor every time: what is made of it (a byte per node of the graph) is kept.
          step: global step, key of the dropout masks; None: the first number.
        Returns:
          MiniBatch without features and labels. Its mfgs are one square MFG over all nodes, num_layers - 1 times, and
          the prefix of it whose destinations are the seeds. With weights the MFGs have row_sums, the in-degrees in
          the whole graph (ratio: 0 where a row is empty); with "saint" the batch has seed_weights, mean P / P(v).
        Raises:
          ValueError: a number below 0 or from 2**63 on, no layer, a step below 0, a loss node outside the graph.
        """
        num_layers = checks.whole("num_layers", num_layers, 1, checks.MOST_LAYERS)
        if step is not None:
            step = checks.whole("step", step, 0, checks.LARGEST)
        numbers = _checked(numbers)
        loss = self._loss_nodes(loss_nodes)
        tables = (self._arrays, self.spec.rule, self._tables)
        [union] = ops.sample_subgraphs(*tables, numbers, loss_flags=loss.flags, union=True).graphs
        draw = DrawKey(self.spec.rng_seed, step if step is not None else numbers[0] if numbers else 0)
        is_saint = self.spec.weights == SAINT
        square = MFG(
            union.indptr, union.indices, union.nodes, union.nodes.numel(), self.graph.orig_ids, draw, checked=True,
            edge_weights=self._weights(union),
            row_sums=None if self.spec.weights == NONE else self._row_sums(union.indptr, union.nodes.long()),
        )  # fmt: skip
        seeds = union.nodes[: union.num_loss]
        return MiniBatch(
            seeds, [square] * (num_layers - 1) + [first_rows(square, union.num_loss)], union.nodes, draw,
            seed_weights=self.inclusion.loss_weights(seeds, loss.mean) if is_saint else None,
        )  # fmt: skip

    def num_subgraphs(self, loss_nodes: Tensor | Sequence[int] | None = None) -> int:
        """Subgraphs of an epoch: as many as it takes for every loss node to be in one of them on average.

        Of clusters those that a permutation has, of ego networks one per root.

        Args:
          loss_nodes: integer, None: all nodes.
        Raises:
          ValueError: no subgraph can hold a loss node.
        """
        if self.spec.method == EGO:
            return self._tables.roots.numel()
        if self.spec.method == CLUSTER:
            return -(-self._num_clusters // self.spec.clusters_per_batch)
        loss = self._loss_nodes(loss_nodes)
        if loss.count == 0:
            return 0
        if loss.mean == 0:
            raise ValueError(
                f"no subgraph can hold any of the {loss.count} loss_nodes; expected roots with in-neighbours, from "
                "which they can be reached."
            )
        return max(1, int(np.ceil(1 / loss.mean)))

    @property
    def inclusion(self) -> laws.Inclusion:
        """Probabilities of nodes and edges to be in a subgraph; counts them first where they have to be counted.

        Raises:
          ValueError: spec.inclusion is "closed" and this graph or these roots have no closed form.
        """
        if self._inclusion is None:
            if self.needs_counts:
                self.use_counts(self.count())
            else:
                self._inclusion = self._closed_form()
        return self._inclusion

    @cached_property
    def needs_counts(self) -> bool:
        """Whether probabilities are counted. Reads all edges once where that depends on the graph's symmetry.

        Raises:
          ValueError: as `inclusion`.
        """
        spec = self.spec
        if spec.inclusion == COUNTS:
            return True
        reason = self._no_closed_form()
        if reason is not None and spec.inclusion == CLOSED:
            raise ValueError(
                f"inclusion is 'closed' but {reason}, which method {spec.method!r} has no closed form for; pass "
                "inclusion='counts' or 'auto', which count subgraphs, or weights='none'."
            )
        return reason is not None

    def count(self, share: tuple[int, int] = (0, 1)) -> Tensor:
        """Which of the counted subgraphs every node is in, int64 [num_nodes, words]: bit i % 64 of word i // 64.

        Args:
          share: (rank, world_size) counts this rank's share of the subgraphs; the sum over ranks has all bits.
        """
        rank, world_size = share
        total = self.spec.count_subgraphs
        bits = torch.zeros(self.graph.num_nodes, laws.words_of(total), dtype=torch.int64)
        begin, end = total * rank // world_size, total * (rank + 1) // world_size
        for lo in range(begin, end, _COUNTED_AT_ONCE):
            size = min(_COUNTED_AT_ONCE, end - lo)
            drawn = ops.subgraph_nodes(self._arrays, self.spec.rule, self._tables, laws.COUNTED_FROM + lo, size)
            for i, nodes in enumerate(drawn.nodes):
                laws.mark(bits, lo + i, nodes)
        return bits

    def use_counts(self, bits: Tensor) -> None:
        """Take probabilities from counted subgraphs.

        Args:
          bits: int64 [num_nodes, words] of `count`, or the sum of all shares.
        Raises:
          ValueError: another shape.
        """
        expected = (self.graph.num_nodes, laws.words_of(self.spec.count_subgraphs))
        if tuple(bits.shape) != expected or bits.dtype != torch.int64:
            raise ValueError(
                f"bits is {bits.dtype} of shape {tuple(bits.shape)}; expected torch.int64 {expected}, as count() "
                "returns them."
            )
        self._inclusion = laws.CountedInclusion(self.graph, bits, self.spec.count_subgraphs)
        self._loss = None

    def _weights(self, graph: ops.InducedNodes) -> Tensor | None:
        if self.spec.weights == NONE:
            return None
        form, threads = self.spec.weights, self.spec.num_threads
        return self.inclusion.weights(graph.indptr, graph.indices, graph.nodes, form, threads)

    def _row_sums(self, indptr: Tensor, nodes: Tensor) -> Tensor:
        """What the rows' weights add up to when no edge is left out: the in-degrees in the graph, float32.

        Ratio weights make up for the edges that a row lacks only where it has any: 0 for rows without.
        """
        degrees = laws.in_degrees(self.graph, nodes)
        return (degrees if self.spec.weights == SAINT else torch.where(indptr.diff() > 0, degrees, 0)).float()

    def _no_closed_form(self) -> str | None:
        """What stands in the way of a closed form; None where there is one."""
        spec = self.spec
        if not spec.has_closed_form:
            return "the law has none"
        if spec.method == FRONTIER and not self._starts_uniform():
            return "the roots are not all nodes that have in-neighbours, each once"
        if spec.method in (FRONTIER, EDGE):
            found = ops.edge_fingerprint(self.graph.indptr, self.graph.indices, spec.num_threads)
            if not found.is_symmetric:
                return "the graph is directed (some edge lacks its reverse)"
            self._loops = found.loops
        return None

    def _starts_uniform(self) -> bool:
        counts = self._root_counts()
        return counts is None or bool((counts[self.graph.in_degrees() > 0] == 1).all())

    def _root_counts(self) -> Tensor | None:
        """How often every node is among the roots, uint8 where that fits, else int64; None: once."""
        counts = torch.bincount(self._tables.roots, minlength=self.graph.num_nodes)
        low, high = (int(bound) for bound in torch.aminmax(counts))
        if low == high == 1:
            return None
        return counts.byte() if high <= torch.iinfo(torch.uint8).max else counts

    def _closed_form(self) -> laws.Inclusion:
        graph, spec, counts = self.graph, self.spec, None if self.spec.method == CLUSTER else self._root_counts()
        loops, self._loops = self._loops, None
        if spec.method == FRONTIER:
            return laws.FrontierInclusion(graph, spec.frontier_size, spec.budget, counts, loops)
        if spec.method == NODE:
            return laws.NodeInclusion(graph, spec.budget, counts)
        if spec.method == EDGE:
            return laws.EdgeInclusion(graph, spec.budget, counts, loops)
        return laws.ClusterInclusion(graph, self._clusters, self._num_clusters, spec.clusters_per_batch)

    @property
    def _num_clusters(self) -> int:
        return self._tables.cluster_offsets.numel() - 1

    def _make_tables(self, roots: Tensor | Sequence[int] | None) -> ops.SubgraphTables:
        graph = self.graph
        if self._clusters is None:
            roots = torch.arange(graph.num_nodes) if roots is None else integer_ids(roots, "roots")
            return ops.SubgraphTables.of(self.spec.rule, graph.indptr, graph.orig_ids, roots, graph.indices.dtype)
        count = int(self._clusters.max()) + 1
        shifted = torch.where(self._clusters < 0, count, self._clusters)  # those of no cluster are in one never drawn
        chosen = torch.arange(count)
        return ops.SubgraphTables.of_clusters(shifted, graph.orig_ids, graph.indices.dtype, chosen)

    def _loss_nodes(self, nodes: Tensor | Sequence[int] | None) -> _LossNodes:
        if self._loss is None or self._loss.source is not nodes:
            self._loss = _LossNodes(self, nodes)
        return self._loss


class _LossNodes:
    """What is made of the nodes that have a loss, once: a flag per node of the graph, and their mean inclusion."""

    def __init__(self, sampler: SubgraphSampler, source: Tensor | Sequence[int] | None) -> None:
        self.source, self._sampler = source, sampler
        num_nodes = sampler.graph.num_nodes
        self.count, self.flags = num_nodes, None
        if source is not None:
            nodes = ids_within(source, num_nodes, "loss_nodes")
            self.count, self.flags = nodes.numel(), torch.zeros(num_nodes, dtype=torch.uint8)
            self.flags[nodes] = 1

    @cached_property
    def mean(self) -> float:
        """Mean probability of these nodes to be in a subgraph; 0 of none."""
        nodes = torch.arange(self.count) if self.source is None else self.source
        return self._sampler.inclusion.expected_members(nodes) / max(1, self.count)


def _numbered(clusters: Tensor, num_nodes: int, dtype: torch.dtype) -> Tensor:
    """Clusters numbered without gaps, of a graph's ids' dtype [num_nodes], below 0 for none."""
    clusters = integer_ids(clusters, "clusters", of="cluster numbers")
    if clusters.numel() != num_nodes:
        raise ValueError(f"clusters has {clusters.numel()} entries; expected {num_nodes}, one per node.")
    present, numbers = torch.unique(clusters, return_inverse=True)
    none = int((present < 0).sum())
    if none == present.numel():
        raise ValueError("no node is in a cluster; expected at least one entry of clusters that is 0 or more.")
    return numbers.sub_(none).to(dtype)


def _checked(numbers: int | Sequence[int] | Tensor) -> list[int]:
    """One or several numbers of subgraphs to train on, as Python integers."""
    if isinstance(numbers, Tensor):
        numbers = numbers.reshape(-1).tolist()
    elif not isinstance(numbers, Sequence | np.ndarray):
        numbers = [numbers]
    return [_number(number) for number in numbers]


def _number(number: int) -> int:
    """The number of a subgraph to train on, as a Python integer."""
    return checks.whole("a subgraph's number", number, 0, laws.COUNTED_FROM - 1)
