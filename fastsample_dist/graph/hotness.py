"""Scores of nodes: how often each one's features will be wanted by a rank that trains. Pure functions.

    vip      probability of a node to be an input of a step, by the recurrence of SALIENT++, section 3.2, without
             sampling: hop by hop from the rank's train nodes (`ops.inclusion_probabilities`)
    counts   how often it was an input of sampled batches (GNNLab, section 6.3: PreSC, pre-sampling)
    with_prior   counts, and what vip says where there are few of them
    degree   out-edges (PaGraph)
    random   an order that depends on nothing but (rng_seed, original id)

Scores are int64, so they add up to the same in any order, and depend on no number of threads, parts or ranks: the same
set of nodes is cached everywhere. Probabilities and visits are in units of 2^-32.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.ops.sample_methods import METHODS

SCORE_BITS = 32  # a probability of 1, or one visit, is 2^32
PRESAMPLED_FROM = 2**62  # epochs and steps of pre-sampled batches: no draw of theirs is one of the run's
_EDGES_AT_ONCE = 1 << 25  # counted together; every such chunk costs a pass over an array of all nodes too
_NODES_AT_ONCE = 1 << 20  # scored together: what is made in between stays small beside the scores themselves


def vip(
    graph: CSCGraph,
    train_nodes: Tensor,
    batch_size: int,
    fanouts: Iterable[int],
    *,
    method: str = "uniform",
    replace: bool = False,
    num_threads: int | None = None,
) -> Tensor:
    """Probability of every node to be an input of a step beyond the seeds, int64 [num_nodes] in units of 2^-32.

    Every train node is a seed with probability min(1, batch_size / number of train nodes); a hop's destinations are
    the nodes that the hop before picked; a node is wanted unless every hop misses it. Seeds alone have no score of
    their own: they are a rank's own nodes. The last, smaller batch of an epoch is left out of account.

    Args:
      graph: in-neighbour lists, with weights where they are drawn by.
      train_nodes: integer [num_train]; seeds of the rank.
      batch_size: seeds per step.
      fanouts: hop order from the seeds outwards; -1 takes all.
      method: one of ops.sample_methods.METHODS; a method without weights takes every edge with the probability that
        uniform draws do.
      replace: draw with replacement.
      num_threads: None takes torch's setting. Never changes a result.
    Raises:
      ValueError: an unknown method, one by weights on a graph without any, a fanout that the method refuses, an id
        outside the graph.
    Source: SALIENT++ (MLSys 2023), section 3.2. Cost: O(len(fanouts) * num_edges); 24 bytes per node.
    Deterministic: yes.
    """
    checks.one_of("method", method, METHODS)
    low, high = (int(train_nodes.min()), int(train_nodes.max())) if len(train_nodes) else (0, 0)
    if low < 0 or high >= graph.num_nodes:
        last = graph.num_nodes - 1
        raise ValueError(f"train_nodes run from {low} to {high}; expected nodes of the graph, 0 to {last}.")
    is_weighted = METHODS[method].weighted
    if is_weighted and graph.weights is None:
        raise ValueError(f"method is {method!r} but the graph has no weights; build it with weights, one per edge.")
    total = torch.zeros(graph.num_nodes, dtype=torch.int64)
    hazards = torch.zeros_like(total)
    if len(train_nodes):
        hazards[train_nodes.long()] = _hazard(min(1.0, batch_size / len(train_nodes)))
    for fanout in fanouts:
        hazards = ops.inclusion_probabilities(
            graph.indptr,
            graph.indices,
            hazards,
            fanout,
            weights=graph.weights if is_weighted else None,
            replace=replace,
            num_threads=num_threads,
        )
        total.add_(hazards).clamp_(max=ops.MOST_HAZARD)
    for nodes in total.split(_NODES_AT_ONCE):
        nodes.copy_(_probability(nodes))
    return total


def counts(batches: Iterable[Tensor], num_nodes: int) -> Tensor:
    """How many of the batches every node is an input of, int64 [num_nodes].

    Args:
      batches: input nodes of each batch, distinct, any integer type.
      num_nodes: of the graph.
    """
    visits = np.zeros(num_nodes, dtype=np.int64)
    for nodes in batches:
        visits[nodes.cpu().numpy()] += 1  # distinct; torch's indexing takes ten times as long
    return torch.from_numpy(visits)


def with_prior(visits: Tensor, probabilities: Tensor, num_steps: int) -> Tensor:
    """Pre-sampled visits with as many expected ones added, int64 [num_nodes] in units of 2^-32.

    Alone, counts rank nodes of no or one visit by chance; the prior ranks these by probability.

    Args:
      visits: of `counts`, over `num_steps` batches.
      probabilities: of `vip`.
      num_steps: batches that were counted, fewer than 2^30.
    """
    return (visits << SCORE_BITS).add_(probabilities, alpha=num_steps)


def degree(graph: CSCGraph, undirected: bool = False) -> Tensor:
    """Out-edges of every node, int64 [num_nodes].

    Args:
      graph: in-neighbour lists of the whole graph.
      undirected: every edge is stored in both directions, so that in-edges tell it without a pass over the edges.
    """
    if undirected:
        return graph.in_degrees()
    indices, degrees = graph.indices.numpy(), np.zeros(graph.num_nodes, dtype=np.int64)
    for lo in range(0, len(indices), _EDGES_AT_ONCE):
        degrees += np.bincount(indices[lo : lo + _EDGES_AT_ONCE], minlength=len(degrees))
    return torch.from_numpy(degrees)


def random(orig_ids: Tensor, rng_seed: int) -> Tensor:
    """Scores drawn uniformly from 1 .. 2^32, int64 [num_nodes]; each a function of (rng_seed, its original id).

    Args:
      orig_ids: int64 [num_nodes]; see `original_ids`.
      rng_seed: 0 .. 2**63 - 1.
    """
    drawn = ops.random_rows(orig_ids, 1, rng_seed=rng_seed, dtype=torch.float64).reshape(-1)  # -1 .. 1
    return ((drawn + 1) * 2.0 ** (SCORE_BITS - 1)).long() + 1


def original_ids(graph: CSCGraph) -> Tensor:
    """Original id of every node, int64 [num_nodes]."""
    return torch.arange(graph.num_nodes) if graph.orig_ids is None else graph.orig_ids


def hottest(scores: Tensor, orig_ids: Tensor, count: int, candidates: Tensor | None = None) -> Tensor:
    """The `count` nodes of highest score, hottest first; of equal scores those of the smallest original ids.

    Args:
      scores: int64 [num_nodes]; a node of score 0 is never taken.
      orig_ids: int64 [num_nodes].
      count: at most so many.
      candidates: bool [num_nodes]; which nodes may be taken. None: all.
    Returns:
      int64 [at most count]. Cost: O(num_nodes + count * log(count)). Deterministic: yes.
    """
    able = scores > 0 if candidates is None else (scores > 0) & candidates
    nodes = torch.nonzero(able).reshape(-1).numpy()
    values, ids = scores.numpy()[nodes], orig_ids.numpy()
    if count < len(nodes):
        least = np.partition(values, len(nodes) - count)[len(nodes) - count] if count else 0
        above, level = nodes[values > least], nodes[values == least]
        room = count - len(above)
        if room < len(level):
            level = level[np.argpartition(ids[level], room)[:room]]
        nodes = np.concatenate([above, level]) if count else nodes[:0]
        values = scores.numpy()[nodes]
    return torch.from_numpy(nodes[np.lexsort((ids[nodes], -values))])


def places(scores: Tensor, orig_ids: Tensor, nodes: Tensor, candidates: Tensor | None = None) -> Tensor:
    """Where nodes stand in the list of all of a graph's nodes that `hottest` makes, without making it.

    Args:
      scores, orig_ids, candidates: see `hottest`.
      nodes: int64 [n], distinct.
    Returns:
      int64 [n], from 0; -1 where a node is not in the list. Cost: O(num_nodes * log(n)), and memory for n nodes only.
    Deterministic: yes.
    """
    listed = (scores[nodes] > 0) if candidates is None else (scores[nodes] > 0) & candidates[nodes]
    values, ids = scores[nodes[listed]].numpy(), orig_ids[nodes[listed]].numpy()
    levels, level_of = np.unique(-values, return_inverse=True)
    # the list's order as one number: the level of a node's score, then its original id
    stride = int(orig_ids.max()) + 1 if len(orig_ids) else 1
    keys = level_of * stride + ids
    order = np.argsort(keys)
    ordered, first_of_level = keys[order], np.searchsorted(np.sort(level_of), np.arange(len(levels) + 1))
    ahead = np.zeros(len(keys) + 1, dtype=np.int64)  # nodes of the list that come before ordered[i] and no earlier one
    for lo in range(0, len(scores), _NODES_AT_ONCE):
        chunk = slice(lo, lo + _NODES_AT_ONCE)
        able = scores[chunk] > 0 if candidates is None else (scores[chunk] > 0) & candidates[chunk]
        able = able.numpy()
        negative = -scores[chunk].numpy()[able]
        level = np.searchsorted(levels, negative)
        ties = level < len(levels)
        ties[ties] = levels[level[ties]] == negative[ties]
        ahead += np.bincount(first_of_level[level[~ties]], minlength=len(ahead))
        own = level[ties] * stride + orig_ids[chunk].numpy()[able][ties]
        ahead += np.bincount(np.searchsorted(ordered, own, side="right"), minlength=len(ahead))
    found = np.full(len(nodes), -1, dtype=np.int64)
    found[np.flatnonzero(listed.numpy())[order]] = np.cumsum(ahead)[:-1]
    return torch.from_numpy(found)


def _hazard(probability: float) -> int:
    """-ln(1 - probability) in the units of `ops.inclusion_probabilities`, at most 32 nats."""
    nats = 32.0 if probability >= 1 else min(32.0, float(-np.log1p(-probability)))
    return round(nats * 2**ops.HAZARD_BITS)


def _probability(hazards: Tensor) -> Tensor:
    """1 - exp(-hazard), int64 [n] in units of 2^-32; exact to the last one or two, and of basic operations only, which
    round alike wherever a node stands and whatever the processor."""
    nats = np.minimum(hazards.numpy() * 2.0**-ops.HAZARD_BITS, 32.0)
    halvings = np.floor(nats * (1 / np.log(2)))
    rest = halvings * np.log(2) - nats  # -ln 2 .. 0
    series = np.ones_like(rest)
    for term in range(18, 0, -1):
        series = 1 + series * (rest / term)
    return torch.from_numpy(
        ((1 - np.ldexp(series, -halvings.astype(np.int32))) * 2.0**SCORE_BITS + 0.5).astype(np.int64)
    )
