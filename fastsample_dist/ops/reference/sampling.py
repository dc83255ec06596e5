"""Neighbour sampling by definition: what is drawn for a node, from which words, in which order.

A node's picks depend on (rng_seed, step, hop, original id) and on its row alone; LABOR's on the same of its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fastsample_dist.ops.reference.streams import LAYER_SAMPLING, SAMPLING, below, node_words, stage_key

if TYPE_CHECKING:
    from fastsample_dist.ops.sample_spec import SampleSpec

TAKE_ALL = -1
WHOLE_STEP = 2**32 - 1  # the stage of LABOR's variates when all hops of a step share them
ALIAS_DRAWS = 4  # per neighbour wanted: without replacement, the alias draws before the rest is drawn exactly


class Graph(Protocol):
    """What is read of a graph (graph/csc.py): rows in canonical order."""

    indptr: Tensor
    indices: Tensor
    weights: Tensor | None
    orig_ids: Tensor | None


class Hops(NamedTuple):
    """A sampled mini-batch: `nodes` seeds first; per hop (0 at the seeds) offsets, local ids, positions in indices."""

    nodes: Tensor
    indptrs: list[Tensor]
    indices: list[Tensor]
    edge_ids: list[Tensor]


class AliasRow(NamedTuple):
    """One row's alias table: slot i stands for position i where a word is below thresholds[i], else for aliases[i]."""

    thresholds: list[int]
    aliases: list[int]


def pick(words: Iterator[int], degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions taken out of 0 .. degree - 1, in the order they are drawn (Floyd's selection)."""
    if fanout == TAKE_ALL or (not replace and degree <= fanout):
        return list(range(degree))
    if replace:
        return [below(words, degree) for _ in range(fanout)] if degree else []
    taken: list[int] = []
    for last in range(degree - fanout, degree):
        drawn = below(words, last + 1)
        taken.append(last if drawn in taken else drawn)
    return taken


def alias_row(weights: list[float]) -> AliasRow:
    """Alias table of one row (Vose, 1991). A row without positive weight has thresholds 0 and is never drawn from."""
    degree, total = len(weights), _sum_from_left(weights)
    thresholds, aliases = [0] * degree, list(range(degree))
    if total == 0.0:
        return AliasRow(thresholds, aliases)
    share = [weight * (degree / total) for weight in weights]
    small = [i for i in range(degree) if share[i] < 1.0]
    large = [i for i in range(degree) if not share[i] < 1.0]
    while small and large:
        poor, rich = small.pop(), large[-1]
        thresholds[poor] = min(int(share[poor] * 2.0**32), 2**32 - 1)
        aliases[poor] = rich
        share[rich] = (share[rich] + share[poor]) - 1.0
        if share[rich] < 1.0:
            small.append(large.pop())
    for left in small + large:
        if weights[left] > 0.0:
            thresholds[left] = 2**32 - 1
        else:
            aliases[left] = weights.index(max(weights))
    return AliasRow(thresholds, aliases)


def alias_tables(indptr: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """All rows: int32 [num_edges, 2], the bits of (threshold, alias); int64 [num_rows], positive weights per row."""
    entries: list[tuple[int, int]] = []
    num_positive = []
    for start, end in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True):
        row = weights[start:end].double().tolist()
        table = alias_row(row)
        entries += zip((_as_int32(threshold) for threshold in table.thresholds), table.aliases, strict=True)
        num_positive.append(sum(weight > 0.0 for weight in row))
    table = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).to(torch.int32)
    return table, torch.tensor(num_positive, dtype=torch.int64)


def weighted_pick(words: Iterator[int], weights: list[float], fanout: int, replace: bool) -> list[int]:
    """Positions drawn with probability proportional to weight, in the order they are drawn.

    Without replacement by successive sampling: alias draws while they last, then draws among what is left.
    """
    positive = [position for position, weight in enumerate(weights) if weight > 0.0]
    if fanout == TAKE_ALL or (not replace and len(positive) <= fanout):
        return positive
    if not positive:
        return []
    table = alias_row(weights)
    if replace:
        return [_alias_draw(words, table) for _ in range(fanout)]
    taken: list[int] = []
    draws = 0
    while len(taken) < fanout and draws < ALIAS_DRAWS * fanout:
        position = _alias_draw(words, table)
        draws += 1
        if position not in taken:
            taken.append(position)
    while len(taken) < fanout:
        left = [0.0 if position in taken else weight for position, weight in enumerate(weights)]
        taken.append(_tree_draw(words, left))
    return taken


def layer_pick(variates: list[int], fanout: int) -> list[int]:
    """LABOR-0 (Balin & Catalyurek, 2023): the positions whose source's 32-bit variate is below fanout / degree."""
    degree = len(variates)
    if fanout == TAKE_ALL or degree <= fanout:
        return list(range(degree))
    return [position for position, variate in enumerate(variates) if variate * degree < fanout * 2**32]


def sample_neighbors(
    graph: Graph, rows: Tensor, spec: SampleSpec, hop: int, step: int = 0, src_orig_ids: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One hop: (indptr, neighbours, edge ids). src_orig_ids: of the sources, when `graph` is a slice of another."""
    src_orig_ids = graph.orig_ids if src_orig_ids is None else src_orig_ids
    fanout = spec.fanouts[hop]
    offsets, edge_ids = [0], []
    for row in rows.tolist():
        start, end = int(graph.indptr[row]), int(graph.indptr[row + 1])
        words = node_words(stage_key(spec.rng_seed, SAMPLING, hop, step), _orig_id(graph.orig_ids, row))
        if spec.method == "uniform":
            positions = pick(words, end - start, fanout, spec.replace)
        elif spec.method == "weighted":
            positions = weighted_pick(words, graph.weights[start:end].double().tolist(), fanout, spec.replace)
        else:
            key = stage_key(spec.rng_seed, LAYER_SAMPLING, WHOLE_STEP if spec.layer_dependency else hop, step)
            sources = [_orig_id(src_orig_ids, source) for source in graph.indices[start:end].tolist()]
            positions = layer_pick([next(node_words(key, source)) for source in sources], fanout)
        edge_ids += [start + position for position in positions]
        offsets.append(len(edge_ids))
    picked = torch.tensor(edge_ids, dtype=torch.int64)
    return torch.tensor(offsets), graph.indices[picked], picked


def compact(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """Local ids in order of first appearance, destinations first."""
    local = {node: i for i, node in enumerate(dst_nodes.tolist())}
    indices = [local.setdefault(node, len(local)) for node in neighbors.tolist()]
    return torch.tensor(list(local), dtype=dst_nodes.dtype), torch.tensor(indices, dtype=neighbors.dtype)


def sample_mfg(graph: Graph, seeds: Tensor, spec: SampleSpec, step: int = 0) -> Hops:
    """All hops: sample, then relabel."""
    hops = Hops(seeds, [], [], [])
    for hop in range(len(spec.fanouts)):
        indptr, neighbors, edge_ids = sample_neighbors(graph, hops.nodes, spec, hop, step)
        nodes, indices = compact(hops.nodes, neighbors)
        hops = Hops(nodes, [*hops.indptrs, indptr], [*hops.indices, indices], [*hops.edge_ids, edge_ids])
    return hops


def _alias_draw(words: Iterator[int], table: AliasRow) -> int:
    slot = below(words, len(table.thresholds))
    return slot if next(words) < table.thresholds[slot] else table.aliases[slot]


def _tree_draw(words: Iterator[int], weights: list[float]) -> int:
    """A position with probability proportional to its weight: a descent through a binary tree of sums."""
    size = 1
    while size < len(weights):
        size *= 2
    leaves = weights + [0.0] * (size - len(weights))
    low = next(words)
    variate = low | next(words) << 32
    x = (variate >> 11) * 2.0**-53 * _tree_sum(leaves)
    first = 0
    while size > 1:
        size //= 2
        left, right = _tree_sum(leaves[first : first + size]), _tree_sum(leaves[first + size : first + 2 * size])
        if left > 0.0 and (right == 0.0 or x < left):
            continue
        x -= left
        first += size
    return first


def _tree_sum(leaves: list[float]) -> float:
    half = len(leaves) // 2
    return leaves[0] if half == 0 else _tree_sum(leaves[:half]) + _tree_sum(leaves[half:])


def _sum_from_left(values: list[float]) -> float:
    """Rounded after every term; sum() of newer Pythons compensates the rounding."""
    return list(accumulate(values, initial=0.0))[-1]


def _orig_id(orig_ids: Tensor | None, node: int) -> int:
    return node if orig_ids is None else int(orig_ids[node])


def _as_int32(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
