"""PinSAGESampler: mini-batches whose neighbours are the nodes that random walks visit most often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import PinSAGERule, SampledHops, SamplingGraph, sample_pinsage
from fastsample_dist.sampling.arrays import check_graph
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from fastsample_dist.sampling.sampler import as_node_ids


class PinSAGESampler:
    """Samples PinSAGE's neighbourhoods on a graph that this process holds. CSC means in-neighbours: walks go against
    edges; for directed ones use g.transposed().

    From every destination of every hop num_walks walks of at most walk_length steps are made. A step goes to a uniform
    in-neighbour; after it the walk ends with end_probability, and where there is none it ends. The num_neighbors nodes
    that the walks visit most often are the destination's neighbours, itself left out, ties by the smaller original id;
    `MFG.edge_weights` are their visits / those of all that are kept. A destination without visits has no edges.

    Walks are those of transit.PPR under the sample ids original id + num_nodes * (walk + num_walks * hop), so they
    depend on (rng_seed, step, hop, original id) alone: the same on any number of threads, ranks and parts. They need
    the whole topology, so ranks use the hybrid scheme: `DistLoader(data, sampler=PinSAGESampler(data.graph))`.

    Args:
      graph: in-neighbour lists, in host memory; their rows in canonical order (graph/csc.py).
      num_walks: walks per destination and hop.
      walk_length: steps of a walk at most; num_walks * walk_length is 2**24 at most.
      num_neighbors: neighbours per destination at most.
      num_layers: hops, one per model layer.
      end_probability: 0 to 1.
      rng_seed: 0 .. 2**63 - 1.
      num_threads: None uses torch's intra-op setting; never changes a result.
    Attributes:
      graph, rule: as given.
    Raises:
      ValueError: a number that is not an integer or out of range, a graph that is not in host memory, offsets that
        decrease.
    Source: Ying et al., "Graph convolutional neural networks for web-scale recommender systems", KDD 2018, section
    3.1; the defaults are those of GNNLab (EuroSys'22), section 7.
    """

    def __init__(
        self,
        graph: CSCGraph,
        num_walks: int = 4,
        walk_length: int = 3,
        num_neighbors: int = 5,
        num_layers: int = 3,
        end_probability: float = 0.5,
        rng_seed: int = 0,
        num_threads: int | None = None,
    ) -> None:
        rule = PinSAGERule(
            num_walks=num_walks, walk_length=walk_length, num_neighbors=num_neighbors, num_layers=num_layers,
            end_probability=end_probability, rng_seed=rng_seed, num_threads=num_threads,
        )  # fmt: skip
        self._take(graph, rule)

    @classmethod
    def from_rule(cls, graph: CSCGraph, rule: PinSAGERule) -> PinSAGESampler:
        """A sampler of these neighbourhoods.

        Raises:
          ValueError: a graph that is not in host memory, offsets that decrease.
        """
        sampler = cls.__new__(cls)
        sampler._take(graph, rule)
        return sampler

    def _take(self, graph: CSCGraph, rule: PinSAGERule) -> None:
        check_graph(graph)
        if graph.device.type != "cpu":
            raise ValueError(f"the graph is on {graph.device}; walks are made on the CPU: pass a graph in host memory.")
        graph.check_offsets()  # walks follow them as they are
        self.graph, self.rule = graph, rule
        self._arrays = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)

    @property
    def num_layers(self) -> int:
        """Hops of a mini-batch."""
        return self.rule.num_layers

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`.

        Args:
          seeds: unique node ids, any integer type, [num_seeds]; empty returns an empty batch.
          step: global training step, 0 or more; part of every draw's key.
        Returns:
          MiniBatch without features and labels; mfgs[0] is the input side, and every MFG has edge_weights.
        Raises:
          ValueError: duplicate seeds, an id outside the graph, a negative step.
        """
        return self.sample_many([seeds], step)[0]

    def sample_many(self, seeds: Sequence[Tensor | Sequence[int]], first_step: int = 0) -> list[MiniBatch]:
        """Sample many mini-batches at once, each in one thread: batch i is that of `sample` at step first_step + i.

        Args:
          seeds: per batch, as for `sample`.
          first_step: step of the first batch.
        Raises:
          ValueError: as `sample`, for the first batch that is refused.
        """
        graph = self.graph
        ids = [as_node_ids(own, graph.indices.dtype, graph.num_nodes) for own in seeds]
        many = sample_pinsage(self._arrays, self.rule, ids, first_step)
        return [self._assemble(hops, first_step + i) for i, hops in enumerate(many)]

    def hop(self, number: int) -> PinSAGESampler:
        """A sampler of one hop alone: its batches have the MFG that those of this one have at that hop.

        Args:
          number: 0 at the seeds.
        """
        first = self.rule.first_hop + number
        return PinSAGESampler.from_rule(self.graph, replace(self.rule, num_layers=1, first_hop=first))

    def facts(self) -> str:
        """See sampler.py: everything but the threads."""
        return str(replace(self.rule, num_threads=None))

    def _assemble(self, hops: SampledHops, step: int) -> MiniBatch:
        return assemble(hops, self.graph.orig_ids, DrawKey(self.rule.rng_seed, step))


def exchanges_of_vanilla(rule: PinSAGERule) -> int:
    """Payload exchanges that a batch would cost if ranks had their own rows alone: ids to the owners and neighbours
    back, for every step of a hop's walks.
    """
    return 2 * rule.walk_length * rule.num_layers
