"""The workloads of GNNLab's evaluation (EuroSys'22, section 7.1), of which each is a model and how it is sampled.

Its numbers of neighbours count from a training vertex outwards, as our fanouts do: GraphSAGE takes 10 neighbours of a
seed and 25 of each of those (GraphSAGE's own paper takes 25, then 10). PinSAGE's three layers select 5 neighbours each
from 4 walks of 3 steps. Hidden rows have 256 columns there and a batch 8,000 seeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import PinSAGERule, SampleSpec
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.pinsage import PinSAGESampler
from fastsample_dist.sampling.sampler import Sampler
from fastsample_dist.train.models import LayeredModel
from fastsample_dist.train.saved import build_model

LR = 0.006


@dataclass(frozen=True, kw_only=True)
class ModelCase(ABC):
    """One workload; str() is a few words about it.

    Attributes:
      name: on the command line.
      model: as `fastsample-train --model` names it.
    """

    name: str
    model: str
    is_weighted = False  # draws by edge weights

    @abstractmethod
    def spec(self, rng_seed: int) -> SampleSpec | None:
        """How neighbours are drawn; None where walks are made instead."""

    @abstractmethod
    def sampler(self, graph: CSCGraph, rng_seed: int) -> Sampler:
        """Makes the batches of one process."""

    @abstractmethod
    def loader(self, data: DistData, split: str, batch_size: int, rng_seed: int, **options: object) -> DistLoader:
        """The batches of a split. Collective: every rank must call this; `options` are further ones of DistLoader."""

    def build(self, data: DistData, hidden: int, dropout: float, rng_seed: int) -> LayeredModel:
        """Its model, the same on every rank."""
        torch.manual_seed(rng_seed)
        return build_model(
            model=self.model, feature_dim=data.feature_dim, hidden=hidden, num_outputs=data.num_classes,
            layers=self.num_layers, dropout=dropout, heads=1,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NeighbourCase(ModelCase):
    """Neighbours are sampled hop by hop.

    Attributes:
      fanouts: neighbours per node and hop, from the seeds outwards.
      method: how they are drawn.
    """

    fanouts: tuple[int, ...]
    method: str = "uniform"

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.fanouts)

    @property
    def is_weighted(self) -> bool:
        """Whether it draws by edge weights."""
        return METHODS[self.method].weighted

    def spec(self, rng_seed: int) -> SampleSpec:
        """How neighbours are drawn."""
        return SampleSpec(fanouts=self.fanouts, method=self.method, rng_seed=rng_seed)

    def sampler(self, graph: CSCGraph, rng_seed: int) -> NeighborSampler:
        """Makes the batches of one process."""
        return NeighborSampler.from_spec(graph, self.spec(rng_seed))

    def loader(self, data: DistData, split: str, batch_size: int, rng_seed: int, **options: object) -> DistLoader:
        """See ModelCase."""
        return DistLoader(data, self.fanouts, batch_size, split=split, method=self.method, rng_seed=rng_seed, **options)

    def __str__(self) -> str:
        drawn = "by weight " if self.is_weighted else ""
        return f"{self.name}: {self.num_layers} hops, {drawn}{','.join(map(str, self.fanouts))}"


@dataclass(frozen=True, kw_only=True)
class WalkCase(ModelCase):
    """Neighbours are those that random walks visit most often.

    Attributes:
      num_walks, walk_length, num_neighbors, end_probability: see PinSAGESampler.
      num_layers: hops.
    """

    num_walks: int
    walk_length: int
    num_neighbors: int
    num_layers: int
    end_probability: float = 0.5

    def spec(self, rng_seed: int) -> None:
        """None: walks have no fanouts."""

    def rule(self, rng_seed: int) -> PinSAGERule:
        """How walks are made."""
        return PinSAGERule(
            num_walks=self.num_walks, walk_length=self.walk_length, num_neighbors=self.num_neighbors,
            num_layers=self.num_layers, end_probability=self.end_probability, rng_seed=rng_seed,
        )  # fmt: skip

    def sampler(self, graph: CSCGraph, rng_seed: int) -> PinSAGESampler:
        """Makes the batches of one process."""
        return PinSAGESampler.from_rule(graph, self.rule(rng_seed))

    def loader(self, data: DistData, split: str, batch_size: int, rng_seed: int, **options: object) -> DistLoader:
        """See ModelCase."""
        sampler = self.sampler(data.graph, rng_seed)
        return DistLoader(data, sampler=sampler, batch_size=batch_size, split=split, rng_seed=rng_seed, **options)

    def __str__(self) -> str:
        walks = f"{self.num_walks} walks of at most {self.walk_length} steps (end {self.end_probability:g})"
        return f"{self.name}: {self.num_layers} hops, the {self.num_neighbors} nodes that {walks} visit most"


CASES: dict[str, NeighbourCase | WalkCase] = {
    case.name: case
    for case in (
        NeighbourCase(name="gcn", model="gcn", fanouts=(15, 10, 5)),
        NeighbourCase(name="graphsage", model="sage", fanouts=(10, 25)),
        WalkCase(name="pinsage", model="pinsage", num_walks=4, walk_length=3, num_neighbors=5, num_layers=3),
        NeighbourCase(name="gcn-weighted", model="gcn", fanouts=(15, 10, 5), method="weighted"),
    )
}
