"""sample_mfg: all hops of a mini-batch in one call; sample_neighbors: one hop without relabelling.

Both draw for a node from the stream keyed by (rng_seed, step, hop, original id) and nothing else, so
`sample_mfg` equals `compact(sample_neighbors(...))` hop by hop, on every thread count, rank and partition.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.alias_tables import AliasTables
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.ops.sample_spec import TAKE_ALL, SampleSpec
from fastsample_dist.ops.sampling_graph import EdgeWeights, SampledHops, SamplingGraph

library.DECLARED.values(FS_TAKE_ALL=TAKE_ALL, **{f"FS_{name.upper()}": method.code for name, method in METHODS.items()})


def sample_mfg(
    indptr: Tensor,
    indices: Tensor,
    seeds: Tensor,
    spec: SampleSpec,
    *,
    step: int = 0,
    orig_ids: Tensor | None = None,
    weights: EdgeWeights | None = None,
) -> SampledHops:
    """Sample all hops of one mini-batch and relabel each to a message flow graph.

    Args:
      indptr: int64 [num_nodes + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; source node ids, each row in canonical order.
      seeds: same dtype as indices, [num_seeds]; unique node ids.
      spec: method, fanouts, generator key, threads.
      step: 0 .. 2**63 - 1; global training step, part of the generator's key.
      orig_ids: int64 [num_nodes] original ids, None when row r is original node r.
      weights: for a method that draws by weight.
    Returns:
      SampledHops: the nodes of the batch, and per hop offsets, local ids and, if asked for, edge ids.
    Raises:
      ValueError: duplicate seeds, an id outside the graph, a dtype mismatch, damaged offsets, missing weights.
    Source: FastSample, section 3.2, algorithm 1. Cost: O(sum of picks); method "labor" O(sum of degrees).
    Deterministic: yes.
    """
    checks.tensors(indptr=indptr, indices=indices, seeds=seeds)
    nodes, indptrs, edges, edge_ids = torch.ops.fastsample.sample_mfg(
        indptr, indices, orig_ids, _tensors(weights), seeds, list(spec.fanouts), spec.flags, [spec.rng_seed, step],
        spec.num_threads,
    )  # fmt: skip
    return SampledHops(nodes, indptrs, edges, edge_ids)


def sample_neighbors(
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    spec: SampleSpec,
    *,
    hop: int,
    step: int = 0,
    orig_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample `spec.fanouts[hop]` in-neighbours of each row, without relabelling.

    For edge weights, or method "labor" on a slice of a graph, make a `SamplingGraph` and call its `neighbors`.

    Args:
      indptr: int64 [num_rows + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; source ids, may exceed num_rows (a slice of a larger graph).
      rows: same dtype as indices, [n]; row numbers, repeats allowed.
      spec: method, fanouts, generator key, threads.
      hop: which fanout, 0 .. len(spec.fanouts) - 1, and part of the generator's key.
      step: global training step, part of the generator's key.
      orig_ids: int64 [num_rows] original ids of the rows, None when row r is original node r.
    Returns:
      (indptr int64 [n + 1], neighbours [indptr[-1]] of the dtype of `indices`, edge ids int64 [indptr[-1]] or None).
    Raises:
      ValueError: a row outside 0 .. num_rows - 1, a hop without a fanout, a dtype mismatch, damaged offsets.
    Source: FastSample, section 3.3. Cost: O(n + picks). Deterministic: yes.
    """
    checks.tensors(indptr=indptr, indices=indices, rows=rows)
    hop = checks.whole("hop", hop, 0, len(spec.fanouts) - 1)
    picks, neighbors, edge_ids = torch.ops.fastsample.sample_neighbors(
        indptr, indices, orig_ids, rows, spec.fanouts[hop], spec.flags, [spec.rng_seed, step, hop], spec.num_threads
    )
    return picks, neighbors, edge_ids if spec.edge_ids else None


def _tensors(weights: EdgeWeights | None) -> list[Tensor]:
    """Weights, table and (where some weight is 0) the rows' numbers of positive weights."""
    if weights is None:
        return []
    counts = weights.tables.num_positive
    return [weights.weights, weights.tables.table, *([] if counts is None else [counts])]


def _edge_weights(tensors: list[Tensor]) -> EdgeWeights | None:
    if not tensors:
        return None
    return EdgeWeights(tensors[0], AliasTables(tensors[1], tensors[2] if len(tensors) > 2 else None))


def _spec(fanouts: list[int], flags: list[int], rng_seed: int, num_threads: int | None) -> SampleSpec:
    code, replace, layer_dependency, edge_ids = flags
    method = next(method.name for method in METHODS.values() if method.code == code)
    return SampleSpec(
        fanouts=tuple(fanouts), replace=bool(replace), rng_seed=rng_seed, num_threads=num_threads,
        method=method, layer_dependency=bool(layer_dependency), edge_ids=bool(edge_ids),
    )  # fmt: skip


def _sample_mfg(
    graph_type: type[SamplingGraph],
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    weights: list[Tensor],
    seeds: Tensor,
    fanouts: list[int],
    flags: list[int],
    key: list[int],
    num_threads: int | None,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    graph = graph_type(indptr, indices, orig_ids, weights=_edge_weights(weights))
    hops = graph.sample(seeds, _spec(fanouts, flags, key[0], num_threads), key[1])
    return hops.nodes, hops.indptrs, hops.indices, hops.edge_ids


def _sample_neighbors(
    graph_type: type[SamplingGraph],
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    rows: Tensor,
    fanout: int,
    flags: list[int],
    key: list[int],
    num_threads: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    rng_seed, step, hop = key
    spec = _spec([fanout] * (hop + 1), flags, rng_seed, num_threads)
    picks, neighbors, edge_ids = graph_type(indptr, indices, orig_ids).neighbors(rows, spec, hop, step)
    return picks, neighbors, picks.new_empty(0) if edge_ids is None else edge_ids


SCHEMAS = {
    "sample_mfg": (
        "(Tensor indptr, Tensor indices, Tensor? orig_ids, Tensor[] weights, Tensor seeds, int[] fanouts, int[] flags, "
        "int[] key, int? num_threads) -> (Tensor, Tensor[], Tensor[], Tensor[])",
        partial(_sample_mfg, SamplingGraph),
    ),
    "sample_neighbors": (
        "(Tensor indptr, Tensor indices, Tensor? orig_ids, Tensor rows, int fanout, int[] flags, int[] key, "
        "int? num_threads) -> (Tensor, Tensor, Tensor)",
        partial(_sample_neighbors, SamplingGraph),
    ),
}
CUDA_KERNELS = {
    "sample_mfg": partial(_sample_mfg, CudaSamplingGraph),
    "sample_neighbors": partial(_sample_neighbors, CudaSamplingGraph),
}
