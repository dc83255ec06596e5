"""aggregate: sum, mean or max over the in-edges of an MFG, with optional edge weights; differentiable.

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
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce)
    out = torch.empty((indptr.numel() - 1, x.shape[1]), dtype=x.dtype)
    arg = torch.empty(out.shape if reduce == "max" else (0, 0), dtype=torch.int64)
    library.call(library.core().fs_aggregate, spec, x.data_ptr(), out.data_ptr(), x.shape[1], arg.data_ptr())
    return out, arg


def _aggregate_backward_cpu(
    grad: Tensor, edges: list[Tensor], x: Tensor, weights: Tensor | None, arg: Tensor, reduce: str, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    """(grad_x, grad_weights); one that is not needed comes back empty. `edges` is [indptr, indices]."""
    indptr, indices = (tensor.contiguous() for tensor in edges)
    x, grad, arg = x.contiguous(), grad.contiguous(), arg.contiguous()
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce)
    checks.matrix("grad", grad, (x.dtype,), indptr.numel() - 1)
    grad_x = torch.empty_like(x) if needs[0] else x.new_empty((0,))
    grad_weights = torch.empty_like(weights) if needs[1] and weights is not None else x.new_empty((0,))
    library.call(
        library.core().fs_aggregate_backward,
        spec, x.data_ptr(), arg.data_ptr(), grad.data_ptr(), x.shape[1],
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


SCHEMAS = {
    "aggregate": (
        "(Tensor indptr, Tensor indices, Tensor x, Tensor? weights, str reduce) -> (Tensor, Tensor)",
        _aggregate_cpu,
    ),
    "aggregate_backward": (
        "(Tensor grad, Tensor[] edges, Tensor x, Tensor? weights, Tensor arg, str reduce, bool[] needs) "
        "-> (Tensor, Tensor)",
        _aggregate_backward_cpu,
    ),
}
AUTOGRAD = {"aggregate": (_backward, _save_for_backward)}
