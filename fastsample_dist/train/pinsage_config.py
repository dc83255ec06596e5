"""PinSAGEConfig: the options of a training run that matter where `--sampler pinsage` walks; part of TrainConfig."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import PinSAGERule
from fastsample_dist.sampling.pinsage import PinSAGESampler, exchanges_of_vanilla
from fastsample_dist.train.subgraph_config import SubgraphConfig

PINSAGE = "pinsage"
OF_PINSAGE = ("num_walks", "walk_length", "num_neighbors", "end_probability")
"""Fields that it reads."""


@dataclass(frozen=True, kw_only=True)
class PinSAGEConfig(SubgraphConfig):
    """What shapes PinSAGE's neighbourhoods; None everywhere: what PinSAGERule takes. `walk_length` is a field of
    SubgraphConfig.

    Attributes:
      num_walks: from every node and hop.
      num_neighbors: the most visited nodes that become neighbours.
      end_probability: that a walk ends after a step.
    """

    num_walks: int | None = None
    num_neighbors: int | None = None
    end_probability: float | None = None

    def refuse_ignored(self, sampler: str) -> None:
        """Refuse options of some samplers that this one would ignore.

        Raises:
          ValueError: names the option and the sampler.
        """
        taken = OF_PINSAGE if sampler == PINSAGE else self.fields_of(sampler)
        for field in fields(PinSAGEConfig):
            if getattr(self, field.name) is not None and field.name not in taken:
                shown = field.name.replace("_", "-")
                raise ValueError(
                    f"--{shown} is {getattr(self, field.name)!r} but --sampler {sampler} does not read it; leave it "
                    "out; see --help."
                )

    def refuse_for_walks(self, layers: int, scheme: str, ignored: dict[str, Any]) -> None:
        """Refuse a run with --sampler pinsage that other options contradict.

        Args:
          layers, scheme: of the run.
          ignored: options that PinSAGE does not read and that were given, by their names.
        Raises:
          ValueError: names the option.
        """
        for name, value in ignored.items():
            raise ValueError(
                f"{name} is {value!r} but --sampler {PINSAGE} does not read it: walks are shaped by --num-walks, "
                "--walk-length, --num-neighbors, --end-probability and --layers; leave it out; see --help."
            )
        rule = self.pinsage_rule(layers, 0)
        if scheme == "vanilla":
            raise ValueError(
                f"--scheme is {scheme} but --sampler {PINSAGE} walks over the whole topology: a batch would cost "
                f"{exchanges_of_vanilla(rule)} exchanges, 2 * {rule.walk_length} for each of {layers} hops; pass "
                "--scheme hybrid."
            )

    def pinsage_rule(self, layers: int, rng_seed: int) -> PinSAGERule:
        """What a neighbourhood is.

        Raises:
          ValueError: a value that PinSAGERule refuses.
        """
        given = {name: getattr(self, name) for name in OF_PINSAGE if getattr(self, name) is not None}
        return PinSAGERule(num_layers=layers, rng_seed=rng_seed, **given)

    def pinsage_sampler(self, graph: CSCGraph, layers: int, rng_seed: int) -> PinSAGESampler:
        """The sampler of a run."""
        return PinSAGESampler.from_rule(graph, self.pinsage_rule(layers, rng_seed))

    def pinsage_shaping(self) -> dict[str, Any]:
        """What a checkpoint and the run that resumes from it must have in common of neighbourhoods, as JSON values."""
        rule = self.pinsage_rule(1, 0)
        return {name: getattr(rule, name) for name in OF_PINSAGE}
