"""App: a graph-sampling application, as a user writes it (Jangda et al., EuroSys'21, sections 3 and 4).

A sample starts from roots and grows step by step. In a step its transits are looked at, and `next` is asked for every
pick: individual applications pick sample_size(step) times from the neighbours of each transit, collective ones
sample_size(step) times from the neighbours of all transits together. What `next` may use is in values.py, in plain
Python: that is its definition, which every compiled form of it equals bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks, reference
from fastsample_dist.ops.reference.streams import INITIAL
from fastsample_dist.sampling.transit.params import Params

if TYPE_CHECKING:
    from fastsample_dist.graph.csc import CSCGraph
    from fastsample_dist.sampling.transit.laws import History, Law, RootsLaw
    from fastsample_dist.sampling.transit.recorded_edges import RecordedEdges

NULL = -1  # as a vertex: none
INF = math.inf  # of steps(): until no transit is left
ALL = -1  # of sample_size(): one pick per neighbour of the transit
ROOTS = -1  # as the length of a state: one entry per root
INDIVIDUAL, COLLECTIVE = "individual", "collective"
RACES = (None, "squared")
ROOT_STAGE = 1  # of domain INITIAL: the roots that initial_roots draws; stage 0 is `initial`


@dataclass(frozen=True)
class Needs:
    """What an application reads besides the rows; made by `needs`."""

    weights: bool | str = "auto"
    edge_queries: bool = False
    max_weight: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)
    race: str | None = None

    def __post_init__(self) -> None:
        weights = checks.plain(self.weights)  # read by identity: 0 would not be False
        object.__setattr__(self, "weights", weights)
        if weights != "auto" and not isinstance(weights, bool):
            raise ValueError(f'weights is {self.weights!r}; expected True, False or "auto" (if the graph has some).')
        if self.race not in RACES:
            raise ValueError(f'race is {self.race!r}; expected None or "squared".')


def needs(
    weights: bool | str = "auto",
    edge_queries: bool = False,
    max_weight: bool = False,
    columns: Mapping[str, Any] | None = None,
    race: str | None = None,
) -> Needs:
    """What an application reads besides the rows: the tables to build.

    Args:
      weights: True: edge weights, without which a graph is refused; False: none, so that `pick` is uniform and
        `weight(i)` is 1; "auto": if the graph has weights.
      edge_queries: `has(v)` of rows. Memory: about 6 bytes per edge.
      max_weight: `max_weight` of rows. Memory: 8 bytes per node.
      columns: by name: an integer per node, [num_nodes], in ascending order of original id (on a graph that is not
        relabelled: by node id); read as s.<name>[v].
      race: of collective applications: "squared" gives `edges.ranked(i)`.
    """
    return Needs(weights, edge_queries, max_weight, dict(columns or {}), race)


Answer = TypeVar("Answer", bound=Callable[..., Any])


def same_every_step(answer: Answer) -> Answer:
    """Mark what an application answers about a step as the same for all steps: it is asked until two steps are alike,
    not millions of times.
    """
    answer.is_same_every_step = True  # type: ignore[attr-defined]
    return answer


class App:
    """A sampling application; a subclass defines `next`, `steps` and `sample_size`, and what else differs.

    `next`, `step_transits` and `initial` take no self: they are compiled, and see only their arguments (values.py says
    what these offer). They must not order, hash or compute with node ids, which differ between partitions; equality is
    fine. Integers in them are 64 bits wide. `fsd.testing.check_app` checks an application.

    Attributes:
      sampling_type: INDIVIDUAL or COLLECTIVE.
      needs: tables, by `transit.needs(...)`.
      state: integers kept per sample between steps: {"name": (np.int32 | np.int64, count)}; count may be ROOTS.
        They start at 0. An application with state makes at most one pick per sample and step.
      par: values for `next`, by `transit.params(...)`.
      record: of collective applications: None, "to_new", "to_union" or "within": edges of the graph that are recorded
        as MFGs.
      self_edges: recorded edges are those of A + I: where a destination is among the sources to record, its row begins
        with an edge from itself, which is no edge of the graph. MFGs then have includes_dst, and no edge_ids.
      max_steps: of steps() == INF: more steps are an error.
      max_attempts: of unique(step): draws per pick before it stays NULL.
    """

    sampling_type: str = INDIVIDUAL
    needs: Needs = Needs()
    state: Mapping[str, tuple[Any, int]] = {}
    par: Params = Params({})
    record: str | None = None
    self_edges: bool = False
    max_steps: int = 100_000
    max_attempts: int = 64

    next: Callable[..., int] | None = None  # next(s, transits, edges, step, draw, par) -> vertex or NULL
    step_transits: Callable[..., int] | None = None  # step_transits(step, s, index, draw, par) -> vertex or NULL
    initial: Callable[..., None] | None = None  # initial(s, draw, par): before step 0, for the state

    def steps(self) -> int | float:
        """Number of steps, or INF: a sample ends when all its transits are NULL."""
        raise NotImplementedError(f"{type(self).__name__} has no steps(); return a number of steps, or transit.INF.")

    def sample_size(self, step: int) -> int:
        """Picks per transit (individual) or per sample (collective) in a step; ALL, in the last step alone: one pick
        per neighbour of the transit.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sample_size(step); return the picks of a step.")

    @same_every_step
    def unique(self, step: int) -> bool:
        """Whether the picks of a sample in this step are to be distinct."""
        return False

    @same_every_step
    def num_transits(self, step: int, num_roots: int) -> int | None:
        """Transits of a sample in a step; None: the picks of the step before (at step 0 the roots)."""
        return None

    def initial_roots(self, graph: CSCGraph, sample_ids: Tensor, rng_seed: int, step: int) -> Tensor:
        """Roots of samples for which none are given, int64 [S] or [S, R], NULL behind the last; default: a random node.

        Args:
          sample_ids: int64 [S]; what a sample gets must depend on its own id alone, and on original ids, not node ids.
        """
        if graph.num_nodes == 0 and sample_ids.numel():
            raise ValueError("the graph has no nodes to take roots from; pass a graph with nodes.")
        key, nodes = reference.stage_key(rng_seed, INITIAL, ROOT_STAGE, step), by_original_id(graph)
        drawn = [reference.below(reference.node_words(key, own), graph.num_nodes) for own in sample_ids.tolist()]
        return nodes[torch.tensor(drawn, dtype=torch.int64)]

    def prepare(self, graph: CSCGraph, weighted: bool) -> Params:
        """Parameters that depend on the graph; called once per TransitSampler. Default: `par`.

        Args:
          graph: what is sampled; tables over its nodes are best ordered by original id (`transit.by_original_id`).
          weighted: edge weights are used.
        """
        return self.par

    def edge_weights(self, edges: RecordedEdges) -> Tensor | None:
        """Coefficients of a recorded step's edges, float [num_edges]: MFG.edge_weights; None: none."""
        return None

    def law(self, graph: CSCGraph, history: History) -> Law | None:
        """Probability of each vertex as the next pick, NULL among them; None: not stated. For check_app, which holds
        picks against it.
        """
        return None

    def roots_law(self, graph: CSCGraph) -> RootsLaw | None:
        """Probability of each tuple of roots, without the NULLs behind the last, that initial_roots draws for a sample;
        None: not stated. For check_app.
        """
        if type(self).initial_roots is not App.initial_roots:
            return None
        return {(v,): 1.0 / graph.num_nodes for v in range(graph.num_nodes)}

    def weighted(self, graph: CSCGraph) -> bool:
        """Whether edge weights of this graph are used."""
        return self.needs.weights is not False and graph.weights is not None


def by_original_id(graph: CSCGraph) -> Tensor:
    """All nodes in ascending order of original id, int64 [num_nodes]."""
    if graph.orig_ids is None:
        return torch.arange(graph.num_nodes)
    return torch.argsort(graph.orig_ids)


def sizes_of(given: Sequence[int] | np.ndarray | Tensor) -> tuple[int, ...]:
    """Picks per step as a tuple.

    Raises:
      ValueError: a number in place of a list or one-dimensional array, an entry that is no integer.
    """
    if isinstance(given, np.ndarray | Tensor) and given.ndim == 1:
        given = given.tolist()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"sizes is {given!r}; expected one integer per step, such as (25, 10).")
    return tuple(checks.whole("an entry of sizes", size, -1) for size in given)
