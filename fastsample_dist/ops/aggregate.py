"""aggregate: sum, mean or max over the in-edges of an MFG, with optional edge weights; differentiable.
aggregate_concat: the same, written beside the destinations' own rows, as one matrix product wants them.

The gradient groups edges by source first, so sums keep the edges' order and results do not depend on the
number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library


def aggregate(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "sum"
) -> Tensor:
    """Combine the rows of the in-neighbours of every destination.

    Args:
      indptr: int64 [num_dst + 1]; CSC offsets of the MFG.
      indices: int32 | int64 [num_edges]; local source ids.
      x: float32 | float64 | bfloat16 [num_src, width]; source rows (bfloat16 is accumulated in float32).
      weights: same dtype as x, [num_edges] or [num_edges, num_heads], or None for ones; with heads, column c
        belongs to head c * num_heads // width.
      reduce: "sum", "mean" (by in-degree) or "max" (the first edge of equals receives the gradient).
    Returns:
      [num_dst, width] of x's dtype; zeros where a destination has no in-edge.
    Raises:
      ValueError: a source id outside x, a dtype mismatch, an unknown reduction, a width that heads do not divide.
    Source: FastSample, section 3.1, equation 2. Cost: O(num_edges * width). Deterministic: yes.
    Differentiable in x and weights.
    """
    return torch.ops.fastsample.aggregate(indptr, indices, x, weights, reduce)[0]


def aggregate_concat(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "mean"
) -> Tensor:
    """Every destination's own row and, to the right of it, the aggregate of its in-neighbours.

    Equals torch.cat([x[:num_dst], aggregate(...)], dim=1) bit for bit, but writes both halves in place: neither the
    aggregate nor, on the way back, its gradient is copied.

    Args:
      indptr, indices, x, weights, reduce: as for `aggregate`; x[:num_dst] are the destinations' rows.
    Returns:
      [num_dst, 2 * width] of x's dtype; the right half is zero where a destination has no in-edge.
    Raises:
      ValueError: as `aggregate`; x has fewer rows than there are destinations.
    Source: GraphSAGE, NeurIPS'17, algorithm 1, line 5. Cost: O((num_dst + num_edges) * width). Deterministic: yes.
    Differentiable in x and weights.
    """
    return torch.ops.fastsample.aggregate_concat(indptr, indices, x, weights, reduce)[0]


def _arguments(indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str) -> library.Aggregation:
    checks.require(reduce in library.REDUCE_CODES, f"reduce is {reduce!r}; expected 'sum', 'mean' or 'max'.")
    checks.require(indptr.numel() >= 1, "indptr is empty; expected num_dst + 1 offsets.")
    num_heads = 1
    if weights is not None:
        checks.require(weights.dtype == x.dtype, f"weights is {weights.dtype} but x is {x.dtype}; they must agree.")
        checks.require(
            weights.dim() in (1, 2) and weights.shape[0] == indices.numel(),
            f"weights has shape {tuple(weights.shape)}; expected {indices.numel()} rows, one per edge.",
        )
        num_heads = 1 if weights.dim() == 1 else weights.shape[1]
    return library.Aggregation(
        library.address(indptr), library.address(indices), indptr.numel() - 1, x.shape[0], indices.numel(),
        library.type_code(indices), library.REDUCE_CODES[reduce], library.address(weights), num_heads, x.shape[1],
        library.type_code(x), library.num_threads(),
    )  # fmt: skip


def _aggregate_cpu(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """(out, arg): arg int64 [num_dst, width] is the winning edge for "max", empty otherwise."""
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    out = torch.empty((max(indptr.numel() - 1, 0), x.shape[1]), dtype=x.dtype)
    return out, _aggregate_into(out, indptr, indices, x, weights, reduce)


def _aggregate_concat_cpu(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """(out, arg) as `_aggregate_cpu`, out [num_dst, 2 * width]."""
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    out = torch.empty((max(indptr.numel() - 1, 0), 2 * x.shape[1]), dtype=x.dtype)
    return out, concat_into(out, indptr, indices, x, weights, reduce)


def concat_into(out: Tensor, indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str) -> Tensor:
    """Fill `out` [num_dst, 2 * width] with own rows and aggregates; returns arg."""
    num_dst, width = out.shape[0], x.shape[1]
    checks.require(
        x.shape[0] >= num_dst, f"x has {x.shape[0]} rows; expected one for each of the {num_dst} destinations, or more."
    )
    out[:, :width] = x[:num_dst]
    return _aggregate_into(out[:, width:], indptr, indices, x, weights, reduce)


def concat_backward(grad: Tensor, edges: list[Tensor], num_src: int, reduce: str) -> Tensor:
    """grad_x [num_src, width] of `concat_into` without weights ("sum" or "mean") from grad [num_dst, 2 * width]."""
    indptr, indices = (tensor.contiguous() for tensor in edges)
    num_dst, width = grad.shape[0], grad.shape[1] // 2
    grad_x, right = grad.new_empty((num_src, width)), grad[:, width:]
    spec = _arguments(indptr, indices, grad_x, None, reduce)
    library.call(
        library.core().fs_aggregate_backward,
        spec, None, None, right.data_ptr(), right.stride(0), grad_x.data_ptr(), None,
    )  # fmt: skip
    grad_x[:num_dst] += grad[:, :width]
    return grad_x


def _aggregate_into(
    out: Tensor, indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str
) -> Tensor:
    """Fill `out` [num_dst, width], whose rows may be apart; returns arg."""
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce)
    arg = torch.empty(out.shape if reduce == "max" else (0, 0), dtype=torch.int64)
    library.call(library.core().fs_aggregate, spec, x.data_ptr(), out.data_ptr(), out.stride(0), arg.data_ptr())
    return arg


def _aggregate_backward_cpu(
    grad: Tensor, edges: list[Tensor], x: Tensor, weights: Tensor | None, arg: Tensor, reduce: str, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    """(grad_x, grad_weights); one that is not needed comes back empty. `edges` is [indptr, indices]."""
    indptr, indices = (tensor.contiguous() for tensor in edges)
    x, arg = x.contiguous(), arg.contiguous()
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce)
    expected = (indptr.numel() - 1, x.shape[1])
    checks.require(
        grad.dtype == x.dtype and grad.shape == expected,
        f"grad is {grad.dtype} of shape {tuple(grad.shape)}; expected {x.dtype} of shape {expected}.",
    )
    if grad.stride(1) != 1 or grad.stride(0) < grad.shape[1]:  # rows may be apart, their columns not
        grad = grad.contiguous()
    grad_x = torch.empty_like(x) if needs[0] else x.new_empty((0,))
    grad_weights = torch.empty_like(weights) if needs[1] and weights is not None else x.new_empty((0,))
    library.call(
        library.core().fs_aggregate_backward,
        spec, x.data_ptr(), arg.data_ptr(), grad.data_ptr(), grad.stride(0),
        grad_x.data_ptr() if needs[0] else None,
        grad_weights.data_ptr() if needs[1] and weights is not None else None,
    )  # fmt: skip
    return grad_x, grad_weights


def _save_for_backward(ctx: object, inputs: tuple, output: tuple) -> None:
    indptr, indices, x, weights, reduce = inputs
    ctx.reduce, ctx.has_weights = reduce, weights is not None
    ctx.save_for_backward(indptr, indices, x, output[1], *([] if weights is None else [weights]))
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: object, grad: Tensor, _: Tensor) -> tuple:
    indptr, indices, x, arg, *rest = ctx.saved_tensors
    weights = rest[0] if ctx.has_weights else None
    needs = [ctx.needs_input_grad[2], ctx.needs_input_grad[3]]
    grad_x, grad_weights = torch.ops.fastsample.aggregate_backward(
        grad, [indptr, indices], x, weights, arg, ctx.reduce, needs
    )
    return None, None, grad_x if needs[0] else None, grad_weights if needs[1] else None, None


def _concat_backward(ctx: object, grad: Tensor, grad_arg: Tensor) -> tuple:
    """The right half goes back along the edges, the left half to the destinations' own rows."""
    width = grad.shape[1] // 2
    *ends, grad_x, grad_weights, rest = _backward(ctx, grad[:, width:], grad_arg)
    if grad_x is not None:
        grad_x[: grad.shape[0]] += grad[:, :width]
    return (*ends, grad_x, grad_weights, rest)


SCHEMAS = {
    "aggregate": (
        "(Tensor indptr, Tensor indices, Tensor x, Tensor? weights, str reduce) -> (Tensor, Tensor)",
        _aggregate_cpu,
    ),
    "aggregate_concat": (
        "(Tensor indptr, Tensor indices, Tensor x, Tensor? weights, str reduce) -> (Tensor, Tensor)",
        _aggregate_concat_cpu,
    ),
    "aggregate_backward": (
        "(Tensor grad, Tensor[] edges, Tensor x, Tensor? weights, Tensor arg, str reduce, bool[] needs) "
        "-> (Tensor, Tensor)",
        _aggregate_backward_cpu,
    ),
}
AUTOGRAD = {
    "aggregate": (_backward, _save_for_backward),
    "aggregate_concat": (_concat_backward, _save_for_backward),
}
