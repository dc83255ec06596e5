"""SubgraphOptions: all that a SubgraphLoader can be asked for besides its data and roots, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from fastsample_dist.ops import checks
from fastsample_dist.pipeline.batch_options import BatchOptions
from fastsample_dist.pipeline.schemes import HYBRID
from fastsample_dist.sampling.subgraph_spec import EGO, SubgraphSpec

OWN_LOCALITY = "own"
EGOS_PER_STEP = 1000
MOST_NUMBERS = 1 << 24
"""Of subgraphs in a step and of steps in an epoch: both are listed before the first of them is made."""


@dataclass(frozen=True, kw_only=True)
class SubgraphOptions(BatchOptions):
    """What a SubgraphLoader can be asked for besides its data and roots: these, and those of BatchOptions.

    Attributes:
      spec: how subgraphs are drawn and weighted.
      num_layers: of the model, at least 1.
      subgraphs_per_step: subgraphs of a step over all ranks; None: one for every part of the partition, and 1000 for
        ego networks.
      steps_per_epoch: None: as many as it takes until a node with a label has been in one subgraph on average.
      split: whose nodes have a loss: "train", "val" or "test".
      locality: None: the nodes of all parts are roots of every subgraph; "own": each part has subgraphs of its own,
        with its nodes for roots (or its clusters), made by the rank that owns it.
      scheme: "hybrid".
    Raises:
      ValueError: a value out of range, an unknown name, scheme "vanilla".
    """

    spec: SubgraphSpec
    num_layers: int = 3
    subgraphs_per_step: int | None = None
    steps_per_epoch: int | None = None
    split: str = "train"
    locality: str | None = None
    scheme: str = HYBRID

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.spec, SubgraphSpec):
            raise ValueError(f"spec is a {type(self.spec).__qualname__}; expected a fsd.SubgraphSpec.")
        checks.whole("num_layers", self.num_layers, 1, checks.MOST_LAYERS)
        for name in ("subgraphs_per_step", "steps_per_epoch"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), 1, MOST_NUMBERS)
        if self.locality not in (None, OWN_LOCALITY):
            raise ValueError(f"locality is {self.locality!r}; expected None or {OWN_LOCALITY!r}.")
        _check_scheme(self.scheme)

    def facts(self) -> dict[str, object]:
        """See BatchOptions."""
        return {name: value for name, value in super().facts().items() if name != "spec"} | self.spec.facts()

    def per_step(self, num_parts: int) -> int:
        """Subgraphs of a step over all ranks, on a partition with so many parts."""
        usual = EGOS_PER_STEP if self.spec.method == EGO else num_parts
        return self.subgraphs_per_step or usual


def _check_scheme(scheme: str) -> None:
    if scheme == "vanilla":
        raise ValueError(
            "scheme is 'vanilla', under which every visit of a subgraph would cost 2 exchanges (ask the owner of the "
            "node reached, hear its neighbours); pass scheme='hybrid': topology is on every rank and sampling costs "
            "none."
        )
    if scheme != HYBRID:
        raise ValueError(f"scheme is {scheme!r}; expected {HYBRID!r}.")
