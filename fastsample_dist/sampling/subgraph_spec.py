"""SubgraphSpec: how subgraphs are drawn and weighted, as one value."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property

from fastsample_dist.ops import FRONTIER_STRUCTURES, SUBGRAPH_METHODS, SubgraphRule, checks

FRONTIER, NODE, EDGE, WALK, CLUSTER, EGO = METHODS = tuple(SUBGRAPH_METHODS)
SUMS, DASHBOARD = STRUCTURES = tuple(FRONTIER_STRUCTURES)
RATIO, SAINT, NONE = WEIGHTS = ("ratio", "saint", "none")
AUTO, CLOSED, COUNTS = INCLUSIONS = ("auto", "closed", "counts")

# What shapes the subgraphs of a method, besides rng_seed.
OF_METHOD = {
    FRONTIER: ("budget", "frontier_size", "structure", "eta", "max_degree"),
    NODE: ("budget",),
    EDGE: ("budget",),
    WALK: ("budget", "walk_length"),
    CLUSTER: ("clusters_per_batch",),
    EGO: ("depth", "fanout"),
}
_OF_WEIGHTS = ("weights", "inclusion", "count_subgraphs")
_MOST = 2**31 - 1
_WHOLE = {  # least and most
    "budget": (1, _MOST),
    "frontier_size": (1, _MOST),
    "walk_length": (1, _MOST),
    "clusters_per_batch": (1, _MOST),
    "depth": (1, 64),
    "fanout": (-1, _MOST),
    "count_subgraphs": (1, 2**20),
    "rng_seed": (0, checks.LARGEST),
}


@dataclass(frozen=True)
class SubgraphSpec:
    """How subgraphs are drawn and weighted.

    Attributes:
      method: "frontier" (frontier sampling, GraphSAINT's MRW), "node", "edge", "walk" (GraphSAINT), "cluster"
        (ClusterGCN), "ego" (shaDow). All of them move from a node to its in-neighbours.
      budget: visits of frontier and walk, draws of node and edge; cluster and ego have none.
      frontier_size: walkers of frontier sampling, at most `budget`; the other methods do not read it.
      walk_length: hops of a walk; there are `num_walks` = budget // (walk_length + 1) of them.
      clusters_per_batch: clusters that a subgraph of "cluster" is made of.
      depth: hops of an ego network.
      fanout: in-neighbours that an ego network takes of every node, -1: all.
      structure: of frontier sampling: "sums" (two-level prefix sums) or "dashboard" (the paper's table, section 4). One
        law, other draws.
      eta: of the dashboard: its entries per live one, above 1.
      max_degree: of frontier sampling: degrees count as at most so many when a walker is chosen, which changes the law
        (the paper's clip, section 4.2); None: no clip.
      weights: of edges. "ratio": 1 / P(both ends in a subgraph), scaled so that a row adds up to the node's in-degree
        in the whole graph; "saint": GraphSAINT's unnormalised aggregation and loss weights; "none". None: "ratio", and
        "none" for ego networks, which are complete around their roots as they are.
      inclusion: where probabilities come from: "closed" (closed forms), "counts" (`count_subgraphs` subgraphs, counted
        at the first use of a weight) or "auto": closed forms where there are some.
      count_subgraphs: subgraphs that are counted.
      rng_seed: 0 .. 2**63 - 1; with the number of a subgraph it keys every draw.
      num_threads: threads per call, None for torch's intra-op setting. Never changes a result.
    Raises:
      ValueError: an unknown name, a number out of range, more walkers than visits, a walk longer than the budget, a
        clip or a dashboard without frontier sampling, closed forms for a law that has none, weights for ego networks.
    Source: Zeng et al., "Accurate, efficient and scalable graph embedding" (IPDPS'19), sections 3 and 4; Zeng et al.,
    "GraphSAINT" (ICLR'20), section 3.4; Chiang et al., "Cluster-GCN" (KDD'19); Zeng et al., "shaDow" (NeurIPS'21).
    """

    method: str = FRONTIER
    budget: int = 8000
    frontier_size: int = 1000
    _: KW_ONLY
    walk_length: int = 2
    clusters_per_batch: int = 10
    depth: int = 2
    fanout: int = 10
    structure: str = SUMS
    eta: float = 2.0
    max_degree: int | None = None
    weights: str | None = None
    inclusion: str = AUTO
    count_subgraphs: int = 200
    rng_seed: int = 0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, METHODS)
        if self.weights is None:
            object.__setattr__(self, "weights", NONE if self.method == EGO else RATIO)
        checks.one_of("structure", self.structure, STRUCTURES)
        checks.one_of("weights", self.weights, WEIGHTS)
        checks.one_of("inclusion", self.inclusion, INCLUSIONS)
        for name, (least, most) in _WHOLE.items():
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), least, most))
        for name, most in (("max_degree", _MOST), ("num_threads", checks.MOST_THREADS)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checks.whole(name, getattr(self, name), 1, most))
        self._check_sizes()
        self._check_law()
        _ = self.rule  # refuses what the core alone knows

    @property
    def num_walks(self) -> int:
        """Walks of method "walk"."""
        return self.budget // (self.walk_length + 1)

    @property
    def has_closed_form(self) -> bool:
        """Whether the law has a closed form: on symmetric graphs for frontier, node and edge, on all for cluster."""
        return self.method in (FRONTIER, NODE, EDGE, CLUSTER) and self.max_degree is None

    @cached_property
    def rule(self) -> SubgraphRule:
        """How the nodes are drawn, as the operators take it."""
        return SubgraphRule(**{field.name: getattr(self, field.name) for field in fields(SubgraphRule)})

    def facts(self) -> dict[str, object]:
        """What shapes a batch, by name: what all ranks must have alike."""
        names = ("method", *OF_METHOD[self.method], "rng_seed", *_OF_WEIGHTS)
        return {name: getattr(self, name) for name in names}

    def _check_sizes(self) -> None:
        if self.method == FRONTIER and self.frontier_size > self.budget:
            raise ValueError(
                f"frontier_size is {self.frontier_size} but budget is {self.budget}; the walkers' first nodes are "
                "visits too, so pass a frontier_size of at most the budget."
            )
        if self.method == WALK and self.num_walks == 0:
            raise ValueError(
                f"budget is {self.budget} but a walk of walk_length {self.walk_length} makes {self.walk_length + 1} "
                "visits; pass a budget of at least that."
            )
        if self.fanout == 0:
            raise ValueError("fanout is 0; expected 1 or more in-neighbours per node, or -1 for all.")
        if not (isinstance(self.eta, int | float) and 1 < self.eta < math.inf):
            raise ValueError(f"eta is {self.eta!r}; expected a finite number above 1, such as 2.0.")

    def _check_law(self) -> None:
        if self.method != FRONTIER and (self.structure == DASHBOARD or self.max_degree is not None):
            given = f"structure is {DASHBOARD!r}" if self.structure == DASHBOARD else f"max_degree is {self.max_degree}"
            raise ValueError(f"{given} but method is {self.method!r}; only method {FRONTIER!r} reads it: leave it out.")
        if self.method == EGO and self.weights != NONE:
            raise ValueError(
                f"weights is {self.weights!r} but method is {EGO!r}, whose subgraphs are the neighbourhoods of their "
                f"roots and need none; pass weights={NONE!r}."
            )
        if self.inclusion == CLOSED and not self.has_closed_form:
            law = "max_degree changes the law" if self.max_degree is not None else f"method is {self.method!r}"
            raise ValueError(
                f"inclusion is {CLOSED!r} but {law}, and there is no closed form for it; pass inclusion={COUNTS!r} or "
                f"{AUTO!r}."
            )
