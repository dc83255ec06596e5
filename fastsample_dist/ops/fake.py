"""Fake kernels: shapes and dtypes of every operator's results without running it (torch.compile, opcheck).

A size that depends on the data (how many nodes a batch has) is a fresh symbolic size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _dynamic_size() -> int:
    return torch.library.get_ctx().new_dynamic_size()


def sample_mfg(
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    weights: list[Tensor],
    seeds: Tensor,
    fanouts: Sequence[int],
    flags: Sequence[int],
    *_: object,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """The first hop has one offset more than seeds; every other size is known only after sampling."""
    indptrs = [indptr.new_empty((seeds.shape[0] + 1 if hop == 0 else _dynamic_size(),)) for hop in range(len(fanouts))]
    edges = [indices.new_empty((_dynamic_size(),)) for _ in fanouts]
    edge_ids = [indptr.new_empty(picks.shape) for picks in edges] if flags[3] else []
    return indices.new_empty((_dynamic_size(),)), indptrs, edges, edge_ids


def sample_neighbors(
    indptr: Tensor,
    indices: Tensor,
    orig_ids: Tensor | None,
    rows: Tensor,
    fanout: int,
    flags: Sequence[int],
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """One offset more than rows; as many neighbours, and edge ids where asked for, as were picked."""
    neighbors = indices.new_empty((_dynamic_size(),))
    return indptr.new_empty((rows.shape[0] + 1,)), neighbors, indptr.new_empty(neighbors.shape if flags[3] else (0,))


def alias_tables(indptr: Tensor, weights: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Two words per edge, one count per row."""
    return weights.new_empty((weights.shape[0], 2), dtype=torch.int32), indptr.new_empty((indptr.shape[0] - 1,))


def hashed_rows(indptr: Tensor, indices: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """One record per row; how many buckets depends on the offsets."""
    nodes = indptr.new_empty((indptr.shape[0] - 1, 2))
    return nodes, indices.new_empty((_dynamic_size(), 16 if indices.dtype == torch.int32 else 8))


def has_edges(indices: Tensor, nodes: Tensor, buckets: Tensor, rows: Tensor, vertices: Tensor, *_: object) -> Tensor:
    """One answer per pair."""
    return rows.new_empty(rows.shape, dtype=torch.bool)


def induced_subgraph(
    indptr: Tensor, indices: Tensor, nodes: Tensor, edge_ids: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """One offset more than nodes; as many ids, and positions where asked for, as there are edges between them."""
    sources = indices.new_empty((_dynamic_size(),))
    return indptr.new_empty((nodes.shape[0] + 1,)), sources, indptr.new_empty(sources.shape if edge_ids else (0,))


def compact(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """As many sources as there are distinct nodes."""
    return dst_nodes.new_empty((_dynamic_size(),)), torch.empty_like(neighbors)


def bucket_by_part(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A permutation of ids, one count per part, one place per id."""
    num_parts = part_ranges.shape[0] - 1
    return torch.empty_like(ids), part_ranges.new_empty((num_parts,)), ids.new_empty(ids.shape, dtype=torch.int64)


def stream_partition(indptr: Tensor, indices: Tensor, parts: Tensor, *_: object) -> Tensor:
    """A part per node."""
    return torch.empty_like(parts)


def bfs_order(indptr: Tensor, *_: object) -> Tensor:
    """One entry per node."""
    return indptr.new_empty((indptr.shape[0] - 1,))


def inclusion_probabilities(indptr: Tensor, indices: Tensor, hazards: Tensor, *_: object) -> Tensor:
    """A hazard per node."""
    return torch.empty_like(hazards)


def gather_rows(rows: Tensor, ids: Tensor, *_: object) -> Tensor:
    """One row per id."""
    return ids.new_empty((ids.shape[0], *rows.shape[1:]), dtype=rows.dtype)


def merge_rows(own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype, *_: object) -> Tensor:
    """One row per place; packed ones are as wide as those that were fetched."""
    return places.new_empty((places.shape[0], (fetched if dtype == torch.int8 else own).shape[1]), dtype=dtype)


def locate_rows(
    nodes: Tensor, ranges: list[Tensor], slots: Tensor | None, numbers: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """One place per node, as many missing nodes as there are, one count per rank and three more in host memory."""
    missing = nodes.new_empty((_dynamic_size(),))
    return nodes.new_empty(nodes.shape, dtype=torch.int64), missing, torch.empty(numbers[0] + 3, dtype=torch.int64)


def aggregate(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str, *_: object
) -> tuple[Tensor, Tensor]:
    """One row per destination; the winning edges only for "max"."""
    shape = (indptr.shape[0] - 1, x.shape[1])
    return x.new_empty(shape), indptr.new_empty(shape if reduce == "max" else (0,))


def aggregate_concat(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str, checked: bool = False
) -> tuple[Tensor, Tensor]:
    """As `aggregate`, with the destinations' own rows to the left."""
    out, arg = aggregate(indptr, indices, x, weights, reduce)
    return out.new_empty((out.shape[0], 2 * out.shape[1])), arg


def aggregate_backward(
    grad: Tensor, edges: list[Tensor], x: Tensor, weights: Tensor | None, arg: Tensor, reduce: str, needs: list[bool],
    *_: object,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Shaped like x and weights where needed, else empty."""
    has_weights = needs[1] and weights is not None
    return (
        torch.empty_like(x) if needs[0] else x.new_empty((0,)),
        torch.empty_like(weights) if has_weights else x.new_empty((0,)),
    )


def act_dropout(x: Tensor, *_: object) -> Tensor:
    """Shaped like x."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def act_dropout_backward(grad: Tensor, *_: object) -> Tensor:
    """Shaped like the incoming gradient."""
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def sage_layer(indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """One row per destination; the inputs of the matrix product, padded on the CPU."""
    num_dst = indptr.shape[0] - 1
    is_padded = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    padded = _dynamic_size() if is_padded else num_dst
    return x.new_empty((num_dst, weight.shape[0])), x.new_empty((padded, weight.shape[1]))


def sage_layer_backward(
    grad: Tensor, saved: list[Tensor], node_ids: Tensor | None, draw: list[int], num_src: int, needs: list[bool],
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Shaped like x, weight, bias and the edges' weights where needed, else empty."""
    weight, num_edges = saved[2], saved[4].shape[0]
    shapes = [(num_src, weight.shape[1] // 2), tuple(weight.shape), (weight.shape[0],), (num_edges,)]
    empty = [(0, 0), (0, 0), (0,), (0,)]
    return tuple(
        grad.new_empty(shape if need else none) for shape, none, need in zip(shapes, empty, needs, strict=True)
    )


def alias_draws(table: Tensor, ids: Tensor, numbers: Tensor, draws_per_pair: int, *_: object) -> Tensor:
    """So many positions per pair."""
    return ids.new_empty((ids.shape[0], draws_per_pair))


def random_rows(ids: Tensor, width: int, rng_seed: int, bound: float, dtype: torch.dtype) -> Tensor:
    """One row per id."""
    return ids.new_empty((ids.shape[0], width), dtype=dtype)


def skipgram_gradients(rows: Tensor, *_: object) -> Tensor:
    """One loss; the gradients are written in place."""
    return rows.new_empty((), dtype=torch.float64)


def update_rows(*_: object) -> None:
    """The table and the moments are changed in place."""
