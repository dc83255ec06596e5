"""NeighborSampler: neighbour sampling on a graph that this process holds (in memory or mapped)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec
from fastsample_dist.sampling.base import DrawKey, MiniBatch, as_node_ids, assemble


class NeighborSampler:
    """Samples all hops of a mini-batch from one graph, in one call of the compiled core.

    Args:
      graph: in-neighbour lists; their rows in canonical order (graph/csc.py).
      fanouts: neighbours per node and hop, in hop order from the seeds outwards; -1 takes all.
      replace: draw with replacement.
      weighted: refused; edge weights do not take part in sampling in this release.
      rng_seed: 0 .. 2**63 - 1.
      num_threads: None uses torch's intra-op setting; never changes a result.
    Raises:
      ValueError: no fanout, one below -1, weighted=True, an rng_seed out of range.
    Source: FastSample, section 3.2, algorithm 1.
    """

    def __init__(
        self,
        graph: CSCGraph,
        fanouts: Sequence[int],
        replace: bool = False,
        weighted: bool = False,
        rng_seed: int = 0,
        num_threads: int | None = None,
    ) -> None:
        if weighted:
            raise ValueError("weighted is True; this release samples neighbours uniformly only, pass weighted=False.")
        self.graph = graph
        self.spec = make_spec(fanouts, replace=replace, rng_seed=rng_seed, num_threads=num_threads)

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop, hop order from the seeds outwards."""
        return self.spec.fanouts

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`.

        Args:
          seeds: unique node ids, any integer type, [num_seeds]; empty gives an empty batch.
          step: global training step, 0 or more; part of every draw's key.
        Returns:
          MiniBatch without features and labels; mfgs[0] is the input side.
        Raises:
          ValueError: duplicate seeds, an id outside the graph, a negative step.
        """
        graph = self.graph
        ids = as_node_ids(seeds, graph.indices.dtype, graph.num_nodes)
        nodes, indptrs, indices = ops.sample_mfg(
            graph.indptr, graph.indices, ids, self.spec, step=step, orig_ids=graph.orig_ids
        )
        return assemble(nodes, indptrs, indices, graph.orig_ids, DrawKey(self.spec.rng_seed, step))

    def num_payload_exchanges(self) -> int:
        """None: everything is read locally."""
        return 0


def make_spec(fanouts: Sequence[int], *, replace: bool, rng_seed: int, num_threads: int | None) -> SampleSpec:
    """A checked SampleSpec with at least one hop.

    Raises:
      ValueError: no fanout, or a value that SampleSpec refuses.
    """
    if len(fanouts) == 0:
        raise ValueError("fanouts is empty; pass one fanout per model layer, such as [15, 10, 5].")
    return SampleSpec(fanouts=tuple(fanouts), replace=replace, rng_seed=rng_seed, num_threads=num_threads)
