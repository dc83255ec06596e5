"""SubgraphConfig: the options of a training run that matter where `--sampler` draws subgraphs; part of TrainConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastsample_dist.pipeline.subgraph_options import OWN_LOCALITY
from fastsample_dist.sampling.subgraph_spec import METHODS, OF_METHOD, STRUCTURES, WEIGHTS, SubgraphSpec

SUBGRAPH_METHODS = METHODS
SUBGRAPH_CHOICES = {"structure": STRUCTURES, "weights": WEIGHTS, "locality": (OWN_LOCALITY,)}
FIELD_OF: Mapping[str, str] = MappingProxyType({"depth": "ego_depth", "fanout": "ego_fanout"})
"""Fields of SubgraphSpec that have another name here, where "depth" alone would not say of what."""
COMMON = ("weights", "subgraphs_per_step", "locality")
"""Fields that every method reads."""


@dataclass(frozen=True, kw_only=True)
class SubgraphConfig:
    """What shapes the subgraphs of a run; None everywhere: what SubgraphSpec takes.

    Attributes:
      budget: visits or draws of a subgraph.
      frontier_size: walkers of "frontier".
      structure: of "frontier": "sums" or "dashboard".
      walk_length: hops of "walk", steps of a walk of "pinsage".
      clusters_per_batch: clusters in a subgraph of "cluster".
      ego_depth, ego_fanout: hops of "ego", and in-neighbours per node.
      weights: of edges: "ratio", "saint" or "none".
      subgraphs_per_step: over all ranks; None: see SubgraphLoader.
      locality: "own": subgraphs begin at nodes of one part.
    """

    budget: int | None = None
    frontier_size: int | None = None
    structure: str | None = None
    walk_length: int | None = None
    clusters_per_batch: int | None = None
    ego_depth: int | None = None
    ego_fanout: int | None = None
    weights: str | None = None
    subgraphs_per_step: int | None = None
    locality: str | None = None

    def fields_of(self, sampler: str) -> tuple[str, ...]:
        """Fields that a sampler reads; none where it draws no subgraphs."""
        if sampler not in SUBGRAPH_METHODS:
            return ()
        return (*COMMON, *(FIELD_OF.get(name, name) for name in OF_METHOD[sampler]))

    def spec_of(self, method: str, rng_seed: int) -> SubgraphSpec:
        """How subgraphs are drawn and weighted.

        Raises:
          ValueError: a value that SubgraphSpec refuses.
        """
        names = ("weights", *OF_METHOD[method])
        given = {name: getattr(self, FIELD_OF.get(name, name), None) for name in names}
        return SubgraphSpec(
            method, rng_seed=rng_seed, **{name: value for name, value in given.items() if value is not None}
        )

    def subgraph_shaping(self, method: str, rng_seed: int) -> dict[str, Any]:
        """What a checkpoint and the run that resumes from it must have in common of subgraphs, as JSON values."""
        facts = self.spec_of(method, rng_seed).facts()
        own = {name: value for name, value in facts.items() if name not in ("method", "rng_seed")}
        return own | {"subgraphs_per_step": self.subgraphs_per_step, "locality": self.locality}
