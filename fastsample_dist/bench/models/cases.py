"""The workloads of GNNLab's evaluation (EuroSys'22, section 7.1), of which each is a model and how it is sampled.

Its numbers of neighbours count from a training vertex outwards, as our fanouts do: GraphSAGE takes 10 neighbours of a
seed and 25 of each of those (GraphSAGE's own paper takes 25, then 10). Hidden rows have 256 columns there and a batch
8,000 seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import Sampler
from fastsample_dist.train.models import LayeredModel
from fastsample_dist.train.saved import build_model

LR = 0.006


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One workload.

    Attributes:
      name: on the command line.
      model: as `fastsample-train --model` names it.
      fanouts: neighbours per node and hop, from the seeds outwards.
      method: how they are drawn.
    """

    name: str
    model: str
    fanouts: tuple[int, ...]
    method: str = "uniform"

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.fanouts)

    @property
    def is_weighted(self) -> bool:
        """Whether it needs edge weights."""
        return self.method == "weighted"

    def spec(self, rng_seed: int) -> SampleSpec:
        """How neighbours are drawn."""
        return SampleSpec(fanouts=self.fanouts, method=self.method, rng_seed=rng_seed)

    def sampler(self, graph: CSCGraph, rng_seed: int) -> Sampler:
        """Makes its batches of one process."""
        return NeighborSampler.from_spec(graph, self.spec(rng_seed))

    def loader(self, data: DistData, split: str, batch_size: int, rng_seed: int, **options: object) -> DistLoader:
        """Its batches of a split. Collective: every rank must call this; `options` are further ones of DistLoader."""
        return DistLoader(
            data, self.fanouts, batch_size, split=split, method=self.method, rng_seed=rng_seed, edge_values=False,
            **options,
        )  # fmt: skip

    def build(self, data: DistData, hidden: int, dropout: float, rng_seed: int) -> LayeredModel:
        """Its model, the same on every rank."""
        torch.manual_seed(rng_seed)
        return build_model(
            model=self.model, feature_dim=data.feature_dim, hidden=hidden, num_outputs=data.num_classes,
            layers=self.num_layers, dropout=dropout, heads=1,
        )  # fmt: skip

    def __str__(self) -> str:
        drawn = "by weight " if self.is_weighted else ""
        return f"{self.name}: {self.num_layers} hops, {drawn}{','.join(map(str, self.fanouts))}"


CASES = {
    case.name: case
    for case in (
        ModelCase(name="gcn", model="gcn", fanouts=(15, 10, 5)),
        ModelCase(name="graphsage", model="sage", fanouts=(10, 25)),
        ModelCase(name="gcn-weighted", model="gcn", fanouts=(15, 10, 5), method="weighted"),
    )
}
