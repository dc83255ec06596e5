"""What a rank of a partition wants in every step: the remote input nodes of its batches, sampled as training samples.

One process stands for the ranks, one part each, one after another. Batches are those of a run: permutations, steps
and draws are the loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.bench.graphs import GraphSource, with_weights
from fastsample_dist.features.policies import Workload
from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.storage import load_part, load_topology, read_manifest
from fastsample_dist.pipeline.epoch_plan import EpochPlan, epoch_permutation
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import Sampler

TRAIN_SHARE = 0.1  # of the connected nodes, where a graph has no train nodes


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """What is measured.

    Attributes:
      source: of the graph.
      num_parts: parts that a graph is cut into; a partition's own number.
      spec: how neighbours are drawn.
      batch_size: seeds per rank and step.
      epochs: epochs of the run, which the oracle knows.
      shares: cached rows as shares of all nodes.
      lookahead: steps that the cache that looks ahead knows.
      train_share: so many of the train nodes, or of the connected nodes where there are none. None: all train nodes,
        or TRAIN_SHARE of the connected nodes.
    """

    source: GraphSource
    num_parts: int
    spec: ops.SampleSpec
    batch_size: int
    epochs: int
    shares: tuple[float, ...]
    lookahead: int
    train_share: float | None = None

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop."""
        return self.spec.fanouts


@dataclass(frozen=True, eq=False)
class Rank:
    """One part of the partition and what its rank trains on.

    Attributes:
      part: its index.
      remote: bool [num_nodes]; which nodes others own.
      workload: see `policies.Workload`.
    """

    part: int
    remote: Tensor
    workload: Workload

    def epoch(self, number: int) -> list[Tensor]:
        """Remote input nodes of every step of an epoch of the run, int64."""
        steps = self.workload.sample(number, number * self.workload.steps_per_epoch)
        return [nodes[self.remote[nodes]] for nodes in steps]


@dataclass(frozen=True, eq=False)
class Run:
    """A partitioned graph as it is measured.

    Attributes:
      graph: its topology, with weights where they are drawn by.
      ranks: one per part.
    """

    graph: CSCGraph
    ranks: tuple[Rank, ...]

    @property
    def steps_per_epoch(self) -> int:
        """The same for all ranks."""
        return self.ranks[0].workload.steps_per_epoch


def load_run(options: CacheOptions, progress: Callable[[str], object]) -> Run:
    """Cut the graph where that is needed, and choose what its ranks train on.

    Raises:
      RuntimeError: the generator or fastsample-partition failed; with its line.
      ValueError: the graph's files do not fit.
    """
    path = options.source.cut(options.num_parts, progress)
    manifest = read_manifest(path)
    graph = load_topology(path, manifest)
    if options.spec.traits.weighted:
        graph = with_weights(graph)
    splits = [load_part(path, manifest, part).splits for part in range(manifest.num_parts)]
    train = torch.cat([split["train"] for split in splits if "train" in split] or [torch.empty(0, dtype=torch.int64)])
    train = choose_train_nodes(graph, train, options)
    ranges = torch.tensor(manifest.part_ranges)
    return make_run(graph, train, ranges, options, undirected=manifest.undirected)


def make_run(
    graph: CSCGraph, train: Tensor, part_ranges: Tensor, options: CacheOptions, *, undirected: bool = False
) -> Run:
    """The ranks of a graph whose parts are runs of nodes.

    Args:
      graph: the whole topology.
      train: int64; train nodes, ascending.
      part_ranges: int64 [num_parts + 1].
      options: what is measured.
      undirected: every edge is stored in both directions.
    """
    bounds = part_ranges.tolist()
    owned = [train[(train >= lo) & (train < hi)] for lo, hi in pairwise(bounds)]
    sizes, sampler = [len(own) for own in owned], NeighborSampler.from_spec(graph, options.spec)
    ranks = []
    for part, own in enumerate(owned):
        remote = torch.ones(graph.num_nodes, dtype=torch.bool)
        remote[bounds[part] : bounds[part + 1]] = False
        plan = EpochPlan(0, 0, sizes, options.batch_size)
        workload = Workload(
            graph=graph, train_nodes=own, batch_size=options.batch_size, rng_seed=options.spec.rng_seed,
            spec=options.spec, steps_per_epoch=plan.num_steps, undirected=undirected,
            sample=EpochBatches(sampler, own, part, plan, options.spec.rng_seed),
        )  # fmt: skip
        ranks.append(Rank(part, remote, workload))
    return Run(graph, tuple(ranks))


def choose_train_nodes(graph: CSCGraph, train: Tensor, options: CacheOptions) -> Tensor:
    """The train nodes, a share of them, or a share of the nodes with an in-neighbour, int64 ascending.

    The choice follows from the seed and the original ids.
    """
    share = options.train_share
    if len(train) and share is None:
        return train.sort().values
    able = graph.in_degrees() > 0
    if len(train):
        able = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill_(0, train, True)
    count = max(1, int(int(able.sum()) * (TRAIN_SHARE if share is None else share)))
    orig_ids = hotness.original_ids(graph)
    return hotness.hottest(hotness.random(orig_ids, options.spec.rng_seed), orig_ids, count, able).sort().values


class EpochBatches:
    """`Workload.sample` of one rank.

    Args:
      sampler: that draws.
      seeds: int64; the rank's.
      part: of the rank.
      plan: of an epoch, whichever.
      rng_seed: of the run.
    """

    def __init__(self, sampler: Sampler, seeds: Tensor, part: int, plan: EpochPlan, rng_seed: int) -> None:
        self._sampler, self._seeds, self._part, self._plan, self._rng_seed = sampler, seeds, part, plan, rng_seed

    def __call__(self, epoch: int, first_step: int) -> Iterator[Tensor]:
        order = epoch_permutation(len(self._seeds), self._rng_seed, epoch, self._part)
        plan = replace(self._plan, epoch=epoch, first_step=first_step)
        for given in plan.step_inputs(self._seeds[order]):
            yield self._sampler.sample(given.seeds, given.step).input_nodes.long()
