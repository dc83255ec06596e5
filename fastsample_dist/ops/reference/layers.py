"""A layer's arithmetic: aggregation, activation with dropout, the SAGE layer."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist.ops.reference.streams import DROPOUT, MASK32, philox, stage_key


def aggregate(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "sum"
) -> Tensor:
    """Edge by edge in stored order; differentiable by autograd. bfloat16 is accumulated in float32."""
    real = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    out = []
    for dst in range(indptr.numel() - 1):
        messages = []
        for edge in range(int(indptr[dst]), int(indptr[dst + 1])):
            row = x[int(indices[edge])].to(real)
            if weights is not None:
                per_head = weights[edge].reshape(-1).to(real)
                row = row * per_head.repeat_interleave(row.numel() // per_head.numel())
            messages.append(row)
        out.append(_reduce_rows(messages, reduce, x.new_zeros(x.shape[1], dtype=real)))
    return torch.stack(out).to(x.dtype) if out else x[:0]


def aggregate_concat(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "mean"
) -> Tensor:
    """Own rows beside the aggregate."""
    aggregated = aggregate(indptr, indices, x, weights, reduce=reduce)
    return torch.cat([x[: aggregated.shape[0]], aggregated], dim=1)


def _reduce_rows(messages: list[Tensor], reduce: str, zeros: Tensor) -> Tensor:
    if not messages:
        return zeros
    if reduce == "max":
        stacked = torch.stack(messages)
        first = stacked.detach().argmax(dim=0)
        for row in range(len(messages) - 1, -1, -1):  # argmax may return any of equals: take the first
            first = torch.where(stacked.detach()[row] == stacked.detach().amax(dim=0), row, first)
        return stacked.gather(0, first.unsqueeze(0)).squeeze(0)
    total = zeros
    for message in messages:
        total = total + message
    return total / len(messages) if reduce == "mean" else total


def dropout_factors(node_ids: Tensor, width: int, p: float, key: tuple[int, int, int]) -> Tensor:
    """float64 [n, width]: 0 where an element drops, else 1 / (1 - p). key: (rng_seed, step, layer).

    Column c of a group of 128 columns, r = c % 128, uses word r // 32, half r // 16 % 2, of block
    16 * (c // 128) + r % 16 of the node's stream.
    """
    rng_seed, step, layer = key
    threshold = round(p * 65536)
    layer_key = stage_key(rng_seed, DROPOUT, layer, step)
    factors = torch.empty(node_ids.numel(), width, dtype=torch.float64)
    for row, node in enumerate(node_ids.tolist()):
        for column in range(width):
            rest = column % 128
            block = 16 * (column // 128) + rest % 16
            counter = (block & MASK32, block >> 32, node & MASK32, node >> 32)
            word = philox(layer_key, counter)[rest // 32]
            variate = word >> 16 if rest // 16 % 2 else word & 0xFFFF
            factors[row, column] = 65536 / (65536 - threshold) if variate >= threshold else 0
    return factors


def act_dropout(
    x: Tensor, node_ids: Tensor, key: tuple[int, int, int], *, p: float, activation: str = "relu"
) -> Tensor:
    """Activation times the factors; differentiable by autograd. bfloat16 is computed in float32."""
    real = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    activated = torch.relu(x.to(real)) if activation == "relu" else x.to(real)
    return (activated * dropout_factors(node_ids, x.shape[1], p, key).to(real)).to(x.dtype)


def row_sums(rows: Tensor) -> Tensor:
    """[width], float64 for float64 rows, else float32: 256 rows are added up one after the other, then these sums."""
    real = torch.promote_types(rows.dtype, torch.float32)
    total = torch.zeros(rows.shape[1], dtype=real)
    for block in rows.to(real).split(256):
        partial = torch.zeros_like(total)
        for row in block:
            partial += row
        total += partial
    return total


def sage_layer(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None,
    edge_weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The layer without activation, in one dtype; differentiable by autograd."""
    own, reduce = x[: indptr.numel() - 1], "mean" if edge_weights is None else "sum"
    y = torch.cat([own, aggregate(indptr, indices, x, edge_weights, reduce=reduce)], dim=1) @ weight.t()
    return y if bias is None else y + bias
