"""The subgraphs that are measured: what a method is called here and at the peers, all with as many visits."""

from __future__ import annotations

from dataclasses import dataclass

from fastsample_dist.sampling.subgraph_spec import EDGE, FRONTIER, NODE, WALK, SubgraphSpec

WALK_LENGTH = 2
METHODS = (FRONTIER, NODE, WALK, EDGE)


@dataclass(frozen=True, kw_only=True)
class SubgraphCase:
    """One method.

    Attributes:
      method: "frontier", "node", "walk" or "edge".
      budget: visits of its subgraphs.
      frontier_size: walkers of a frontier.
    """

    method: str
    budget: int
    frontier_size: int

    def spec(self, *, rng_seed: int, num_threads: int = 1, **options: object) -> SubgraphSpec:
        """Ours, without weights; `options` are further fields."""
        budget = self.budget // 2 if self.method == EDGE else self.budget  # an edge is two visits
        return SubgraphSpec(
            self.method, budget, self.frontier_size, walk_length=WALK_LENGTH, rng_seed=rng_seed,
            num_threads=num_threads, **{"weights": "none", **options},
        )  # fmt: skip

    @property
    def peer_budget(self) -> int | tuple[int, int]:
        """What the packages call their budget: draws, or (roots, length) of walks."""
        if self.method == WALK:
            return self.budget // (WALK_LENGTH + 1), WALK_LENGTH
        return self.budget // 2 if self.method == EDGE else self.budget
