"""NeighborSampler: neighbour sampling on a graph that this process holds (in memory or mapped).

All hops are drawn in one call of the compiled core: the fast path of layered.py's loop over `LocalHops`. LaborSampler
is its layer-neighbour sibling. Both are a graph and a SampleSpec; `from_spec` takes the spec itself.

It is also the sampler of the hybrid scheme, where every machine maps the whole topology: sampling needs no
communication at all, and only the features of the sampled nodes travel afterwards, in 2 payload exchanges a step,
whatever the number of hops (FastSample, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampledHops, SampleSpec, checks
from fastsample_dist.ops.kernel_choice import KernelReport
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.layered import LocalHops
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from fastsample_dist.sampling.sampler import as_node_ids


class NeighborSampler:
    """Samples all hops of a mini-batch from one graph, in one call of the compiled core.

    Args:
      graph: in-neighbour lists; their rows in canonical order (graph/csc.py).
      fanouts: neighbours per node and hop, in hop order from the seeds outwards; -1 takes all.
      replace: draw with replacement.
      weighted: draw edges in proportion to graph.weights. Builds alias tables once per graph: 8 bytes per edge.
      rng_seed: 0 .. 2**63 - 1.
      num_threads: None uses torch's intra-op setting; never changes a result.
      device: that samples and holds the batches; None: the graph's. For a GPU a graph in host memory is copied to the
        device, or into pinned host memory where it does not fit (device/placement.py).
      kernel: of a GPU: "per_hop", "persistent", "cooperative", or "auto". Never changes a result.
    Raises:
      ValueError: no fanout, one below -1, an rng_seed out of range, weighted=True on a graph without weights, an
        unknown kernel or one for the CPU.
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
        *,
        device: torch.device | str | None = None,
        kernel: str = "auto",
    ) -> None:
        checks.flag("weighted", weighted)
        method = "weighted" if weighted else "uniform"
        spec = SampleSpec(fanouts=fanouts, replace=replace, rng_seed=rng_seed, num_threads=num_threads, method=method)
        self._take(graph, spec, device, kernel)

    @classmethod
    def from_spec(
        cls, graph: CSCGraph, spec: SampleSpec, *, device: torch.device | str | None = None, kernel: str = "auto",
        edge_values: bool = False,
    ) -> NeighborSampler:  # fmt: skip
        """A sampler that draws as the spec says: every method, edge ids.

        Args:
          graph, device, kernel: as for the class.
          spec: method, fanouts, generator key, threads.
          edge_values: return the stored weights of the sampled edges too; needs spec.edge_ids.
        Raises:
          ValueError: no fanout, a method that draws by weight on a graph without weights, an unknown kernel or one for
            the CPU, edge_values without weights or edge ids.
        """
        sampler = cls.__new__(cls)
        sampler._take(graph, spec, device, kernel, edge_values=edge_values)
        return sampler

    def _take(
        self,
        graph: CSCGraph,
        spec: SampleSpec,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        *,
        edge_values: bool = False,
    ) -> None:
        if len(spec.fanouts) == 0:
            raise ValueError("fanouts is empty; pass one fanout per model layer, such as [15, 10, 5].")
        self.graph, self.spec = arrays.placed(graph, device, weighted=spec.traits.weighted), spec
        self._hops = LocalHops(self.graph, spec, kernel=kernel, edge_values=edge_values)
        self._arrays, self._looks_up = self._hops.arrays, arrays.runs_kernels(self.device)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self.graph.device

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop, hop order from the seeds outwards."""
        return self.spec.fanouts

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`.

        Args:
          seeds: unique node ids, any integer type, [num_seeds]; empty returns an empty batch.
          step: global training step, 0 or more; part of every draw's key.
        Returns:
          MiniBatch without features and labels; mfgs[0] is the input side.
        Raises:
          ValueError: duplicate seeds, an id outside the graph, a negative step.
        """
        graph = self.graph
        ids = as_node_ids(seeds, graph.indices.dtype, graph.num_nodes)
        return self._assemble(self._arrays.sample(ids, self.spec, step), step)

    def sample_many(self, seeds: Sequence[Tensor | Sequence[int]], first_step: int = 0) -> list[MiniBatch]:
        """Sample many mini-batches at once, each in one thread.

        The batches are those of `sample`, but a thread that has a batch to itself waits for no other: the way to use
        many cores.

        Args:
          seeds: per batch, as for `sample`.
          first_step: step of the first batch; batch i has step first_step + i.
        Returns:
          One MiniBatch per element, in their order.
        Raises:
          ValueError: as `sample`, for the first batch that is refused.
        """
        graph = self.graph
        ids = [as_node_ids(own, graph.indices.dtype, graph.num_nodes) for own in seeds]
        many = self._arrays.sample_many(ids, self.spec, first_step)
        return [self._assemble(hops, first_step + i) for i, hops in enumerate(many)]

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
        return arrays.kernel_report(self._arrays)

    def _assemble(self, hops: SampledHops, step: int) -> MiniBatch:
        values = [self._hops.values(ids) for ids in hops.edge_ids] if self._hops.edge_values else None
        draw = DrawKey(self.spec.rng_seed, step)
        return assemble(hops, self.graph.orig_ids, draw, look_up=self._looks_up, edge_values=values)


class LaborSampler(NeighborSampler):
    """Layer-neighbour sampling, LABOR-0: destinations that share neighbours tend to pick the same ones.

    Every source has one variate per hop and step, uniform in 0 .. 1; a destination of degree d takes the neighbours
    whose variate is below fanout / d. So a fanout is the mean number of picks, each neighbour is taken with the same
    probability as by NeighborSampler, and the batch has fewer nodes. The picks of a row are its own neighbours with
    equal probability, so their mean estimates the mean over all neighbours as before.

    Args:
      graph: in-neighbour lists.
      fanouts: mean number of neighbours per node and hop, in hop order from the seeds outwards; -1 takes all.
      rng_seed: 0 .. 2**63 - 1.
      num_threads: None uses torch's intra-op setting; never changes a result.
      layer_dependency: one variate per source for all hops of a step: fewer nodes still, dependent layers.
      device: as NeighborSampler's.
    Raises:
      ValueError: no fanout, one below -1, an rng_seed out of range.
    Source: Balin and Catalyurek, "Layer-neighbor sampling - defusing neighborhood explosion in GNNs", NeurIPS 2023,
    section 3.2. Cost: O(sum of the destinations' degrees).
    """

    def __init__(
        self,
        graph: CSCGraph,
        fanouts: Sequence[int],
        rng_seed: int = 0,
        num_threads: int | None = None,
        layer_dependency: bool = False,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        spec = SampleSpec(
            fanouts=fanouts, rng_seed=rng_seed, num_threads=num_threads, method="labor",
            layer_dependency=layer_dependency,
        )  # fmt: skip
        self._take(graph, spec, device)
