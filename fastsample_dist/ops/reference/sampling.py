"""Neighbour sampling by definition: rows, hops, mini-batches; how a row is drawn is its method's (probabilities.py).

A node's picks depend on (rng_seed, step, hop, original id) and on its row alone; LABOR's on the same of its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fastsample_dist.ops.reference.probabilities import oracle
from fastsample_dist.ops.reference.streams import SAMPLING, node_words, stage_key

if TYPE_CHECKING:
    from fastsample_dist.ops.sample_spec import SampleSpec


class CscArrays(Protocol):
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


@dataclass(frozen=True)
class Row:
    """What a draw reads of a destination: its row of the graph, and what keys its random words."""

    graph: CscArrays
    number: int
    spec: SampleSpec
    hop: int
    step: int
    src_orig_ids: Tensor | None

    @cached_property
    def edges(self) -> slice:
        """Positions in graph.indices."""
        return slice(int(self.graph.indptr[self.number]), int(self.graph.indptr[self.number + 1]))

    @property
    def degree(self) -> int:
        """In-edges."""
        return self.edges.stop - self.edges.start

    @property
    def fanout(self) -> int:
        """Of the hop."""
        return self.spec.fanouts[self.hop]

    def words(self) -> Iterator[int]:
        """The destination's own stream."""
        key = stage_key(self.spec.rng_seed, SAMPLING, self.hop, self.step)
        return node_words(key, _orig_id(self.graph.orig_ids, self.number))

    def weights(self) -> list[float]:
        """Of the edges."""
        return self.graph.weights[self.edges].double().tolist()

    def source_orig_ids(self) -> list[int]:
        """Of the edges' sources."""
        return [_orig_id(self.src_orig_ids, source) for source in self.graph.indices[self.edges].tolist()]


def sample_neighbors(
    graph: CscArrays, rows: Tensor, spec: SampleSpec, hop: int, step: int = 0, src_orig_ids: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One hop: (indptr, neighbours, edge ids). src_orig_ids: of the sources, when `graph` is a slice of another."""
    src_orig_ids = graph.orig_ids if src_orig_ids is None else src_orig_ids
    draw = oracle(spec.method).draw
    offsets, edge_ids = [0], []
    for number in rows.tolist():
        row = Row(graph, number, spec, hop, step, src_orig_ids)
        edge_ids += [row.edges.start + position for position in draw(row)]
        offsets.append(len(edge_ids))
    picked = torch.tensor(edge_ids, dtype=torch.int64)
    return torch.tensor(offsets), graph.indices[picked], picked


def compact(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """Local ids in order of first appearance, destinations first."""
    local = {node: i for i, node in enumerate(dst_nodes.tolist())}
    indices = [local.setdefault(node, len(local)) for node in neighbors.tolist()]
    return torch.tensor(list(local), dtype=dst_nodes.dtype), torch.tensor(indices, dtype=neighbors.dtype)


def sample_mfg(graph: CscArrays, seeds: Tensor, spec: SampleSpec, step: int = 0) -> Hops:
    """All hops: sample, then relabel."""
    hops = Hops(seeds, [], [], [])
    for hop in range(len(spec.fanouts)):
        indptr, neighbors, edge_ids = sample_neighbors(graph, hops.nodes, spec, hop, step)
        nodes, indices = compact(hops.nodes, neighbors)
        hops = Hops(nodes, [*hops.indptrs, indptr], [*hops.indices, indices], [*hops.edge_ids, edge_ids])
    return hops


def _orig_id(orig_ids: Tensor | None, node: int) -> int:
    return node if orig_ids is None else int(orig_ids[node])
