"""Samplers in plain Python for the tests of check_sampler: the oracle, and a frame for right and wrong draws."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import reference


@dataclass(frozen=True, eq=False)
class PlainMFG:
    """The least that check_sampler asks of an MFG."""

    indptr: torch.Tensor
    indices: torch.Tensor
    src_nodes: torch.Tensor
    num_dst: int
    edge_ids: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class PlainBatch:
    mfgs: list[PlainMFG]


def oracle_sampler(graph: CSCGraph, **draws):
    """What ops/reference samples."""
    spec = ops.SampleSpec(rng_seed=5, **draws)

    def sample(seeds, step):
        hops = reference.sample_mfg(graph, seeds.to(graph.indices.dtype), spec, step)
        mfgs, nodes = [], hops.nodes
        for indptr, indices, edge_ids in reversed(list(zip(*hops[1:], strict=True))):
            mfgs.append(PlainMFG(indptr, indices, nodes, indptr.numel() - 1, edge_ids))
            nodes = nodes[: indptr.numel() - 1]
        return PlainBatch(mfgs)

    return sample


@dataclass(frozen=True)
class Row:
    """What a draw sees of a destination: its key, its edges, and the place of its row in the graph."""

    step: int
    hop: int
    node: int
    place: int
    neighbors: list[int]
    weights: list[float]


def plain_sampler(
    graph: CSCGraph,
    fanouts,
    draw: Callable[[random.Random, Row, int], list[int]],
    *,
    key: Callable[[Row], tuple] = lambda row: (row.step, row.hop, row.node),
    relabel: Callable[[torch.Tensor, torch.Tensor], tuple] = reference.compact,
):
    """Draws positions of each row's edges; may be told a wrong key of the random numbers, or a wrong relabelling."""
    indptr, indices = graph.indptr.tolist(), graph.indices.tolist()
    weights = [1.0] * len(indices) if graph.weights is None else graph.weights.tolist()

    def sample(seeds, step):
        nodes, mfgs = seeds, []
        for hop, fanout in enumerate(fanouts):
            offsets, edge_ids = [0], []
            for place, node in enumerate(nodes.tolist()):
                edges = slice(indptr[node], indptr[node + 1])
                row = Row(step, hop, node, place, indices[edges], weights[edges])
                words = random.Random(hash(key(row)))
                edge_ids += [indptr[node] + position for position in draw(words, row, fanout)]
                offsets.append(len(edge_ids))
            neighbors = torch.tensor([indices[edge] for edge in edge_ids], dtype=torch.int64)
            src_nodes, local = relabel(nodes, neighbors)
            mfgs.insert(
                0, PlainMFG(torch.tensor(offsets), local, src_nodes, nodes.numel(), torch.tensor(edge_ids).long())
            )
            nodes = src_nodes
        return PlainBatch(mfgs)

    return sample


def floyd(words: random.Random, row: Row, fanout: int) -> list[int]:
    """Uniform without replacement (Floyd, in Bentley's column of 1987)."""
    taken: list[int] = []
    for last in range(max(len(row.neighbors) - fanout, 0), len(row.neighbors)):
        drawn = words.randrange(last + 1)
        taken.append(last if drawn in taken else drawn)
    return taken
