"""join_batches: batches of one square MFG each, as one batch: their disjoint union."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fastsample_dist.sampling.mfg import MFG, DrawKey, MiniBatch


def join_batches(batches: Sequence[MiniBatch], draw: DrawKey) -> MiniBatch:
    """The disjoint union of batches of subgraphs, in the layout of each: nodes with a loss first.

    Args:
      batches: one at least, of as many layers and on one device, without edge ids; all layers but the last share a
        square MFG, and the last is its first rows (of a single layer it is alone). Edge weights, sums of rows and seed
        weights are there in all of them or in none.
      draw: of the union.
    Returns:
      MiniBatch without features and labels. First come the seeds of the first batch, of the second, and so on, then the
      other nodes in the same order. A node of several batches is there as often.
    """
    num_seeds = [batch.seeds.numel() for batch in batches]
    squares = [batch.mfgs[0] for batch in batches]
    num_others = [square.num_src - seeds for square, seeds in zip(squares, num_seeds, strict=True)]
    first_other, first_seed, pieces = sum(num_seeds), 0, []
    for square, seeds, others in zip(squares, num_seeds, num_others, strict=True):
        places = torch.arange(square.num_src, dtype=square.indices.dtype, device=square.indices.device)
        places[:seeds] += first_seed
        places[seeds:] += first_other - seeds
        pieces.append(places[square.indices.long()])
        first_seed, first_other = first_seed + seeds, first_other + others
    seed_edges = [int(square.indptr[seeds]) for square, seeds in zip(squares, num_seeds, strict=True)]

    def by_node(parts: Sequence[Tensor | None]) -> Tensor | None:
        return _seeds_first(parts, num_seeds)

    def by_edge(parts: Sequence[Tensor | None]) -> Tensor | None:
        return _seeds_first(parts, seed_edges)

    degrees = by_node([square.indptr.diff() for square in squares])
    assert degrees is not None
    nodes = by_node([square.src_nodes for square in squares])
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    square = replace(
        squares[0], indptr=indptr, indices=by_edge(pieces), src_nodes=nodes, num_dst=degrees.numel(), draw=draw,
        known_orig_ids=None, edge_weights=by_edge([one.edge_weights for one in squares]),
        row_sums=by_node([one.row_sums for one in squares]),
    )  # fmt: skip
    layers, count = len(batches[0].mfgs), sum(num_seeds)
    weights = [batch.seed_weights for batch in batches]
    return MiniBatch(
        seeds=nodes[:count], mfgs=[*[square] * (layers - 1), first_rows(square, count)], input_nodes=nodes, draw=draw,
        seed_weights=None if weights[0] is None else torch.cat(weights),
    )  # fmt: skip


def first_rows(square: MFG, count: int) -> MFG:
    """The MFG of its first `count` destinations, with the sources of all."""
    edges = int(square.indptr[count])

    def first(tensor: Tensor | None, size: int) -> Tensor | None:
        return None if tensor is None else tensor[:size]

    return replace(
        square, indptr=square.indptr[: count + 1], indices=square.indices[:edges], num_dst=count,
        edge_weights=first(square.edge_weights, edges), row_sums=first(square.row_sums, count),
    )  # fmt: skip


def _seeds_first(parts: Sequence[Tensor | None], firsts: Sequence[int]) -> Tensor | None:
    """The first entries of every part, then the others of every part; None where the parts are."""
    if parts[0] is None:
        return None
    return torch.cat([part[:n] for part, n in zip(parts, firsts, strict=True)] + [
        part[n:] for part, n in zip(parts, firsts, strict=True)
    ])  # fmt: skip
