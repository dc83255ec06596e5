"""Which rows a cache holds: scores of a policy for one rank, and the replacement rule of a cache that looks ahead.

Pure functions of what a rank trains on. A score is an expected number of visits, so those of the ranks that share a
cache add up; the set follows from the sum (`hotness.hottest`). It is the same for every number of threads, and for
every numbering of the nodes, as long as the ranks train on the same ones.

    vip        steps of an epoch times the probability of a node to be an input of one (graph/hotness.py)
    presample  visits in sampled epochs that are none of the run's, with vip as prior where vip has a model
    degree     out-edges
    random     Philox of (rng_seed, original id)
    oracle     visits in the epochs that will be trained: for reports, since it samples the whole run
    none       nothing
    auto       vip for the library's neighbour samplers, else presample: walks, layers and foreign samplers have no
               model. LABOR's rows share their variates, which vip leaves out; it ranks nodes better all the same than
               two pre-sampled epochs with a prior do (benchmarks/cache-hits.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec

POLICIES = ("auto", "vip", "presample", "degree", "random", "oracle", "none")
PRESAMPLE_EPOCHS = 2
MOST_AHEAD = 100  # steps; those until a node's next use are counted in 8 bits

InputNodes = Iterable[Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """What one rank trains on, as far as it decides which rows the rank will want.

    Attributes:
      graph: the whole topology.
      train_nodes: integer [num_train]; the rank's seeds, ids of the graph.
      batch_size: seeds per step.
      rng_seed: of the run.
      spec: how neighbours are drawn; None: a sampler or an application that the user gave.
      steps_per_epoch: steps of an epoch of the run, the same on all ranks.
      sample: (epoch, first step) -> the input nodes of each of the rank's batches of that epoch, shuffled and drawn as
        training does. Collective where sampling is.
      undirected: every edge of the graph is stored in both directions.
    """

    graph: CSCGraph
    train_nodes: Tensor
    batch_size: int
    rng_seed: int
    spec: SampleSpec | None
    steps_per_epoch: int
    sample: Callable[[int, int], InputNodes]
    undirected: bool = False

    @property
    def num_batches(self) -> int:
        """Batches of an epoch in which the rank has seeds."""
        return -(-len(self.train_nodes) // self.batch_size)


def check_policy(policy: str, spec: SampleSpec | None) -> None:
    """Refuse an unknown policy, and one that the sampler has no model for.

    Args:
      policy: to be checked.
      spec: how neighbours are drawn; None: a sampler or an application that the user gave.
    Raises:
      ValueError: with what is expected.
    """
    if policy not in POLICIES:
        raise ValueError(f"cache policy is {policy!r}; expected one of {', '.join(POLICIES)}.")
    if policy == "vip" and spec is None:
        raise ValueError(
            "cache policy is 'vip', which knows the library's neighbour samplers only, but a sampler or an app is "
            "given; pass 'presample' or 'auto'."
        )


def resolve(policy: str, spec: SampleSpec | None) -> str:
    """The policy that a name stands for: "auto" becomes "vip" or "presample".

    Raises:
      ValueError: as `check_policy`.
    """
    check_policy(policy, spec)
    if policy != "auto":
        return policy
    return "presample" if spec is None else "vip"


def score(
    policy: str,
    workload: Workload,
    *,
    presample_epochs: int = PRESAMPLE_EPOCHS,
    trained: Iterable[tuple[int, int]] = (),
) -> Tensor:
    """How often the rank will want each node's row, int64 [num_nodes]; scores of ranks add up.

    Collective where `workload.sample` is and the policy samples.

    Args:
      policy: one of POLICIES.
      workload: of the rank.
      presample_epochs: of "presample", at least 1.
      trained: of "oracle": (epoch, first step) of every epoch that will be trained.
    Raises:
      ValueError: as `check_policy`; fewer than one pre-sampled epoch.
    """
    policy, graph = resolve(policy, workload.spec), workload.graph
    if policy == "vip":
        return workload.num_batches * _vip(workload)
    if policy == "presample":
        return _presampled(workload, presample_epochs)
    if policy == "degree":
        return hotness.degree(graph, workload.undirected)
    if policy == "random":
        return hotness.random(hotness.original_ids(graph), workload.rng_seed)
    if policy == "oracle":
        batches = (nodes for epoch, first_step in trained for nodes in workload.sample(epoch, first_step))
        return hotness.counts(batches, graph.num_nodes)
    return torch.zeros(graph.num_nodes, dtype=torch.int64)


def presample(workload: Workload, epochs: int) -> Tensor:
    """Visits of every node in pre-sampled epochs, int64 [num_nodes]. Collective where `workload.sample` is.

    Their epochs and steps are numbered from 2^62 on, so that no draw is one of the run's.
    """
    first = hotness.PRESAMPLED_FROM
    batches = (
        nodes
        for number in range(epochs)
        for nodes in workload.sample(first + number, first + number * workload.steps_per_epoch)
    )
    return hotness.counts(batches, workload.graph.num_nodes)


def _presampled(workload: Workload, epochs: int) -> Tensor:
    if epochs < 1:
        raise ValueError(f"presample_epochs is {epochs}; expected 1 or more.")
    visits = presample(workload, epochs)
    if workload.spec is None:
        return visits << hotness.SCORE_BITS
    return hotness.with_prior(visits, _vip(workload), epochs * workload.num_batches)


def _vip(workload: Workload) -> Tensor:
    spec = workload.spec
    assert spec is not None, "check_policy refuses vip without a spec"
    return hotness.vip(
        workload.graph, workload.train_nodes, workload.batch_size, spec.fanouts, method=spec.method,
        replace=spec.replace, num_threads=spec.num_threads,
    )  # fmt: skip


class Lookahead:
    """Which nodes a cache holds whose next batches are sampled already: those that they use, then the hottest.

    After step t the rows at hand are those in the slots and those that step t has fetched. Of these as many as there
    are slots stay: first the ones that step t + 1 uses, then those of t + 2 .. t + window, then by score. A row that
    stays keeps its slot. What is held depends on the batches alone, so bytes stay predictable.

    Args:
      order: int64 [m]; nodes that may be cached, hottest first (`hotness.hottest`); nodes outside it come last.
      orig_ids: int64 [num_nodes]; decide between those.
      slots: rows that the cache holds; the first ones of `order` are in it at the start.
      window: steps looked ahead, 1 to MOST_AHEAD.
    Attributes:
      nodes: int64 [slots]; node in each slot, -1: none yet. Changed in place by `replace`.
    Raises:
      ValueError: another window.
    """

    def __init__(self, order: Tensor, orig_ids: Tensor, slots: int, window: int) -> None:
        if not 1 <= window <= MOST_AHEAD:
            raise ValueError(f"lookahead is {window}; expected 1 to {MOST_AHEAD} steps.")
        self.window, num_nodes = window, len(orig_ids)
        place_type = np.int32 if 2 * num_nodes < 2**31 else np.int64
        self._places = (orig_ids.numpy() + len(order)).astype(place_type)  # of a node in the order of scores
        self._places[order.numpy()] = np.arange(len(order))
        self._used_in = np.full(num_nodes, window + 1, dtype=np.int8)  # steps until a node's next use, kept at rest
        self._unused = np.int64(window + 1)
        self._span = np.int64(int(self._places.max(initial=0)) + 1)
        held = order[:slots].numpy()
        self.nodes = torch.full((slots,), -1, dtype=torch.int64)
        self.nodes[: len(held)] = torch.from_numpy(held)
        self._slot_places = np.full(slots, self._span - 1, dtype=np.int64)
        self._slot_places[: len(held)] = self._places[held]

    def replace(self, fetched: Tensor, upcoming: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What changes after a step.

        Args:
          fetched: int64 [n]; nodes whose rows the step has fetched: none of them is in a slot.
          upcoming: input nodes of the next steps, at most `window` of them, the next one first; other nodes than those
            that may be cached do not matter.
        Returns:
          (slots, rows) int64 [m]: the row of fetched[rows[i]] goes into slots[i].
        Cost: O(slots + fetched + upcoming).
        """
        new, slots = fetched.numpy(), self.nodes.numpy()
        upcoming = [nodes.numpy() for nodes in upcoming[: self.window]]
        for steps, used in reversed([*enumerate(upcoming, start=1)]):
            self._used_in[used] = steps
        # int64 at once: NumPy 1 multiplies by a single number in the array's own type, which would overflow.
        held_steps = np.where(slots < 0, self._unused + 1, self._used_in[slots]).astype(np.int64)
        held_keys = held_steps * self._span + self._slot_places
        new_keys = self._used_in[new].astype(np.int64) * self._span + self._places[new]
        for used in upcoming:
            self._used_in[used] = self._unused
        if len(new) == 0 or len(slots) == 0:
            return self.nodes[:0], self.nodes[:0]
        # As many have to go as have come: the largest keys of both together.
        leaves = np.argpartition(np.concatenate([held_keys, new_keys]), len(slots))[len(slots) :]
        free = np.sort(leaves[leaves < len(slots)])
        stays = np.ones(len(new), dtype=bool)
        stays[leaves[leaves >= len(slots)] - len(slots)] = False
        rows = np.flatnonzero(stays)
        slots[free], self._slot_places[free] = new[rows], self._places[new[rows]]
        return torch.from_numpy(free), torch.from_numpy(rows)
