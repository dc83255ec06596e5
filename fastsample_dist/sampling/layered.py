"""Sampling hop by hop: one loop over a `HopSource`, which says what is picked for the nodes of one hop.

The loop is the definition of a mini-batch: the seeds are the first destinations; a hop picks neighbours for all of its
destinations; these and the new neighbours, in order of first appearance, are the destinations of the next hop.
Sources are `LocalHops` (rows that this process holds), `OwnerHops` of vanilla.py (any rows, asking their owners), and
whatever a user writes (examples/own_sampler.py). A local graph is sampled faster by NeighborSampler, whose kernel runs
all hops in one call and returns the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampledHops, SampleSpec
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from fastsample_dist.sampling.sampler import includes_dst, integer_ids


@dataclass(frozen=True, eq=False)
class Picks:
    """What one hop picked.

    Attributes:
      indptr: int64 [num_nodes + 1]; CSC offsets: row i is the picks of nodes[i].
      neighbors: [num_picks]; node ids, any integer dtype that holds them.
      edge_ids: int64 [num_picks]; position of every picked edge in the graph's `indices`, or None.
      edge_values: [num_picks]; what the graph stores for every picked edge, or None.
      edge_weights: float [num_picks]; coefficients by which models multiply the edges' messages, or None.
    """

    indptr: Tensor
    neighbors: Tensor
    edge_ids: Tensor | None = None
    edge_values: Tensor | None = None
    edge_weights: Tensor | None = None


class HopSource(Protocol):
    """Where the neighbours come from. Rows that already hold their destination: see sampler.includes_dst."""

    def neighbors(self, nodes: Tensor, hop: int, step: int) -> Picks:
        """Pick neighbours of every node.

        Args:
          nodes: [num_nodes]; unique node ids: the seeds, then what the hops before have reached.
          hop: 0 at the seeds.
          step: global training step; with the source's own seed, the hop and the node it keys every random choice.
        Returns:
          Picks, with or without edge ids, values and weights in every hop alike.
        """
        ...


class LayeredSampler:
    """Samples hop by hop from a source.

    Args:
      source: picks the neighbours.
      num_hops: one per model layer.
      rng_seed: 0 .. 2**63 - 1; key of the dropout masks behind the layers.
      orig_ids: int64 [num_nodes of the graph]; original id of every node; None: ids are original.
    Raises:
      ValueError: num_hops below 1.
    """

    _trusts_source = False  # True: offsets are right, and operators need not look at them (MFG.checked)

    def __init__(self, source: HopSource, num_hops: int, *, rng_seed: int = 0, orig_ids: Tensor | None = None) -> None:
        if num_hops < 1:
            raise ValueError(f"num_hops is {num_hops}; expected an integer >= 1, one hop per model layer.")
        self.source, self.num_hops, self.rng_seed, self.orig_ids = source, num_hops, rng_seed, orig_ids
        self.includes_dst = includes_dst(source)

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`.

        Args:
          seeds: unique node ids, any integer type, [num_seeds]; empty returns an empty batch.
          step: global training step, 0 or more; part of every draw's key.
        Returns:
          MiniBatch without features and labels; mfgs[0] is the input side.
        Raises:
          ValueError: duplicate seeds, what the source refuses.
        """
        nodes = self._node_ids(seeds)
        hops, values, weights = SampledHops(nodes, [], [], []), [], []
        for hop in range(self.num_hops):
            picks = self.source.neighbors(nodes, hop, step)
            nodes, local = ops.compact(nodes, picks.neighbors.to(nodes.dtype))
            hops.indptrs.append(picks.indptr)
            hops.indices.append(local)
            hops.edge_ids.extend([] if picks.edge_ids is None else [picks.edge_ids])
            values.extend([] if picks.edge_values is None else [picks.edge_values])
            weights.append(picks.edge_weights)
        draw, looks_up = DrawKey(self.rng_seed, step), arrays.runs_kernels(nodes.device)
        batch = assemble(replace(hops, nodes=nodes), self.orig_ids, draw, look_up=looks_up, edge_values=values or None)
        if not self._trusts_source:
            batch.mfgs = [
                replace(mfg, edge_weights=of_hop, includes_dst=self.includes_dst, checked=False)
                for mfg, of_hop in zip(batch.mfgs, reversed(weights), strict=True)
            ]
        return batch

    def _node_ids(self, seeds: Tensor | Sequence[int]) -> Tensor:
        """Seeds as the source takes them."""
        return integer_ids(seeds)


class LocalHops:
    """Picks from rows that this process holds: a whole graph, or a slice of one.

    Args:
      graph: in-neighbour lists, placed for its device; row i is node first_node + i.
      spec: method, fanouts, generator key, threads.
      kernel: of a GPU, see NeighborSampler.
      edge_values: return the stored weights of the picks too; needs spec.edge_ids.
      first_node, first_edge: id of the slice's first node, position of its first edge in the whole graph's `indices`.
      src_orig_ids: int64, original id of every node of the whole graph, for a slice.
    Attributes:
      arrays: what the core samples.
      edge_values: as given.
    Raises:
      ValueError: a spec that asks for weights that the graph lacks; edge_values without weights or edge ids; a kernel
        that the device does not have.
    """

    def __init__(
        self, graph: CSCGraph, spec: SampleSpec, *, kernel: str = "auto", edge_values: bool = False,
        first_node: int = 0, first_edge: int = 0, src_orig_ids: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.spec, self.first_node, self.first_edge = graph, spec, first_node, first_edge
        self.arrays = arrays.sampling_arrays(graph, spec, kernel, src_orig_ids)
        self.edge_values = edge_values
        if edge_values:
            arrays.check_edge_values(graph, spec)

    def neighbors(self, nodes: Tensor, hop: int, step: int) -> Picks:
        """See HopSource."""
        rows = nodes - self.first_node if self.first_node else nodes
        indptr, neighbors, positions = self.arrays.neighbors(rows, self.spec, hop, step)
        values = self.values(positions) if self.edge_values and positions is not None else None
        if positions is not None and self.first_edge:
            positions = positions + self.first_edge
        return Picks(indptr, neighbors, positions, values)

    def values(self, positions: Tensor) -> Tensor:
        """Stored weights of the edges at these positions in graph.indices."""
        return arrays.stored_weights(self.graph, positions)
