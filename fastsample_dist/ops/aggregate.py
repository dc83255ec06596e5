"""aggregate: sum, mean or max over the in-edges of an MFG, with optional edge weights; differentiable once.
aggregate_concat: the same, written beside the destinations' own rows, as one matrix product needs them.

The gradient groups edges by source first, so sums keep the edges' order and results do not depend on the
number of threads, nor on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.column_tiles import theorem_columns
from fastsample_dist.ops.layer_cores import CPU, CUDA, LayerCore

WIDEST = (0, 0)  # tile and tiles_outer: as many columns as registers hold, row by row
THEOREM = ()  # in their place: tiles of `theorem_columns`, which the kernel counts: tracing cannot ask for threads


def aggregate(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "sum",
    checked: bool = False, tile: int | Literal["theorem"] = 0, tiles_outer: bool = False,
) -> Tensor:  # fmt: skip
    """Combine the rows of the in-neighbours of every destination.

    Args:
      indptr: int64 [num_dst + 1]; CSC offsets of the MFG.
      indices: int32 | int64 [num_edges]; local source ids.
      x: float32 | float64 | bfloat16 [num_src, width]; source rows (bfloat16 is accumulated in float32).
      weights: same dtype as x, [num_edges] or [num_edges, num_heads], or None for ones; with heads, column c
        belongs to head c * num_heads // width.
      reduce: "sum", "mean" (by in-degree) or "max" (the first edge of equals receives the gradient).
      checked: the edges are known to be right, as a sampler's are. On a GPU the call then returns without waiting for
        a check; wrong ones would be skipped. The CPU checks them in any case.
      tile: columns that the CPU adds up at a time: at most so many, 0: as many as registers hold, which is fastest
        (benchmarks/propagation.md); "theorem": `theorem_columns` of them, tile by tile. No value changes a bit.
      tiles_outer: the CPU handles all rows of a tile before the next tile, and threads share tiles, as the paper's
        algorithm 6 does; else all tiles of a row before the next row, and threads share rows. "theorem" implies it.
    Returns:
      [num_dst, width] of x's dtype; zeros where a destination has no in-edge.
    Raises:
      ValueError: a source id outside x, a dtype mismatch, an unknown reduction, a width that heads do not divide, a
        negative tile.
    Source: FastSample, section 3.1, equation 2; tiles: Zeng et al., IPDPS'19, section V. Cost: O(num_edges * width).
    Deterministic: yes.
    Differentiable once in x and weights.
    """
    tiles = THEOREM if tile == "theorem" else (tile, int(tiles_outer))
    return torch.ops.fastsample.aggregate(indptr, indices, x, weights, reduce, checked, tiles)[0]


def aggregate_concat(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "mean",
    checked: bool = False,
) -> Tensor:  # fmt: skip
    """Every destination's own row and, to the right of it, the aggregate of its in-neighbours.

    Equals torch.cat([x[:num_dst], aggregate(...)], dim=1) bit for bit, but writes both halves in place: neither the
    aggregate nor, on the way back, its gradient is copied.

    Args:
      indptr, indices, x, weights, reduce, checked: as for `aggregate`; x[:num_dst] are the destinations' rows.
    Returns:
      [num_dst, 2 * width] of x's dtype; the right half is zero where a destination has no in-edge.
    Raises:
      ValueError: as `aggregate`; x has fewer rows than there are destinations.
    Source: GraphSAGE, NeurIPS'17, algorithm 1, line 5. Cost: O((num_dst + num_edges) * width). Deterministic: yes.
    Differentiable once in x and weights.
    """
    return torch.ops.fastsample.aggregate_concat(indptr, indices, x, weights, reduce, checked)[0]


def _arguments(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str,
    tiles: Sequence[int] = WIDEST,
) -> library.Aggregation:  # fmt: skip
    if reduce not in library.REDUCE_CODES:
        raise ValueError(f"reduce is {reduce!r}; expected 'sum', 'mean' or 'max'.")
    checks.require(indptr.numel() >= 1, "indptr is empty; expected num_dst + 1 offsets.")
    checks.one_device(x=x, indptr=indptr, indices=indices, weights=weights)
    num_heads = 1
    if weights is not None:
        if weights.dtype != x.dtype:
            raise ValueError(f"weights is {weights.dtype} but x is {x.dtype}; they must agree.")
        if weights.dim() not in (1, 2) or weights.shape[0] != indices.numel():
            raise ValueError(
                f"weights has shape {tuple(weights.shape)}; expected {indices.numel()} rows, one per edge."
            )
        num_heads = 1 if weights.dim() == 1 else weights.shape[1]
    if len(tiles) == len(THEOREM):
        tiles = theorem_columns(x.shape[0], x.shape[1], x.element_size(), library.num_threads()), 1
    return library.Aggregation(
        library.address(indptr), library.address(indices), indptr.numel() - 1, x.shape[0], indices.numel(),
        library.type_code(indices), library.REDUCE_CODES[reduce], library.address(weights), num_heads, x.shape[1],
        library.type_code(x), library.num_threads(), *tiles,
    )  # fmt: skip


def _aggregate(
    core: LayerCore, indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str,
    checked: bool = False, tiles: Sequence[int] = WIDEST,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, arg): arg int64 [num_dst, width] is the winning edge for "max", empty otherwise."""
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    out = x.new_empty((max(indptr.numel() - 1, 0), x.shape[1]))
    return out, _aggregate_into(core, core.aggregate, out, (indptr, indices), x, weights, reduce, checked, tiles)


def _aggregate_concat(
    core: LayerCore, indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None, reduce: str,
    checked: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, arg) as `_aggregate`, out [num_dst, 2 * width]."""
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    out = x.new_empty((max(indptr.numel() - 1, 0), 2 * x.shape[1]))
    return out, concat_into(core, out, (indptr, indices), x, weights, reduce, checked)


def concat_into(
    core: LayerCore, out: Tensor, edges: tuple[Tensor, Tensor], x: Tensor, weights: Tensor | None, reduce: str,
    checked: bool,
) -> Tensor:  # fmt: skip
    """Fill `out` [num_dst, 2 * width] with own rows and aggregates over `edges`, (indptr, indices); returns arg."""
    num_dst = out.shape[0]
    if x.shape[0] < num_dst:
        raise ValueError(f"x has {x.shape[0]} rows; expected one for each of the {num_dst} destinations, or more.")
    return _aggregate_into(core, core.aggregate_concat, out, edges, x, weights, reduce, checked)


def concat_backward(
    core: LayerCore, grad: Tensor, edges: list[Tensor], num_src: int, weights: Tensor | None, reduce: str
) -> Tensor:  # fmt: skip
    """grad_x [num_src, width] of `concat_into`, "sum" or "mean", from grad [num_dst, 2 * width]."""
    indptr, indices = (tensor.contiguous() for tensor in edges)
    weights = None if weights is None else weights.contiguous()
    grad_x = grad.new_empty((num_src, grad.shape[1] // 2))
    spec = _arguments(indptr, indices, grad_x, weights, reduce)
    core.aggregate_concat_backward(spec, grad, grad_x)
    return grad_x


def concat_grad_weights(
    core: LayerCore, grad: Tensor, edges: list[Tensor], x: Tensor, weights: Tensor, reduce: str
) -> Tensor:  # fmt: skip
    """Gradient of the weights of `concat_into`, "sum" or "mean", from grad [num_dst, 2 * width]."""
    of_aggregates, no_arg = grad[:, grad.shape[1] // 2 :], edges[0].new_empty(0)
    return _aggregate_backward(core, of_aggregates, edges, x, weights, no_arg, reduce, [False, True], True)[1]


def _aggregate_into(
    core: LayerCore, call: Callable[..., None], out: Tensor, edges: tuple[Tensor, Tensor], x: Tensor,
    weights: Tensor | None, reduce: str, checked: bool, tiles: Sequence[int] = WIDEST,
) -> Tensor:  # fmt: skip
    """Fill `out` by the core's `call`, `aggregate` or `aggregate_concat`; returns arg."""
    indptr = checks.vector("indptr", edges[0], (torch.int64,))
    indices = checks.vector("indices", edges[1], checks.ID_DTYPES)
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce, tiles)
    arg = indptr.new_empty((spec.num_dst, spec.width)) if reduce == "max" else indptr.new_empty(0)
    if not checked:
        core.check_edges(spec, indptr, indices)
    call(spec, x, out, arg)
    return arg


def _aggregate_backward(
    core: LayerCore, grad: Tensor, edges: list[Tensor], x: Tensor, weights: Tensor | None, arg: Tensor, reduce: str,
    needs: list[bool], checked: bool = False, tiles: Sequence[int] = WIDEST,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(grad_x, grad_weights); one that is not needed comes back empty. `edges` is [indptr, indices]."""
    indptr, indices = (tensor.contiguous() for tensor in edges)
    x, arg = x.contiguous(), arg.contiguous()
    weights = None if weights is None else weights.contiguous()
    spec = _arguments(indptr, indices, x, weights, reduce, tiles)
    expected = (indptr.numel() - 1, x.shape[1])
    if grad.dtype != x.dtype or grad.shape != expected:
        raise ValueError(f"grad is {grad.dtype} of shape {tuple(grad.shape)}; expected {x.dtype} of shape {expected}.")
    checks.one_device(x=x, grad=grad, arg=arg)
    if grad.stride(1) != 1 or grad.stride(0) < grad.shape[1]:  # rows may be apart, their columns not
        grad = grad.contiguous()
    grad_x = torch.empty_like(x) if needs[0] else None
    grad_weights = torch.empty_like(weights) if needs[1] and weights is not None else None
    if not checked:
        core.check_edges(spec, indptr, indices)
    core.aggregate_backward(spec, x, arg, grad, (grad_x, grad_weights))
    return tuple(x.new_empty(0) if found is None else found for found in (grad_x, grad_weights))


def _save_for_backward(ctx: object, inputs: tuple, output: tuple) -> None:
    indptr, indices, x, weights, reduce, _, *tiles = inputs
    ctx.reduce, ctx.has_weights, ctx.tiles = reduce, weights is not None, tiles[0] if tiles else WIDEST
    ctx.save_for_backward(indptr, indices, x, output[1], *([] if weights is None else [weights]))
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: object, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Of x and of the weights, None where not needed."""
    indptr, indices, x, arg, *rest = ctx.saved_tensors
    weights = rest[0] if ctx.has_weights else None
    needs = [ctx.needs_input_grad[2], ctx.needs_input_grad[3]]
    grad_x, grad_weights = torch.ops.fastsample.aggregate_backward(
        grad, [indptr, indices], x, weights, arg, ctx.reduce, needs, True, ctx.tiles
    )  # the forward call has seen these edges
    return grad_x if needs[0] else None, grad_weights if needs[1] else None


def _backward(ctx: object, grad: Tensor, _: Tensor) -> tuple:
    return None, None, *_gradients(ctx, grad), None, None, None


def _concat_backward(ctx: object, grad: Tensor, _: Tensor) -> tuple:
    """The right half goes back along the edges, the left half to the destinations' own rows."""
    width = grad.shape[1] // 2
    grad_x, grad_weights = _gradients(ctx, grad[:, width:])
    if grad_x is not None:
        grad_x[: grad.shape[0]] += grad[:, :width]
    return None, None, grad_x, grad_weights, None, None


_FORWARD = "Tensor indptr, Tensor indices, Tensor x, Tensor? weights, str reduce, bool checked=False"
_BACKWARD = (
    "(Tensor grad, Tensor[] edges, Tensor x, Tensor? weights, Tensor arg, str reduce, bool[] needs, "
    "bool checked=False, int[] tiles=[0, 0]) -> (Tensor, Tensor)"
)
_OPERATORS = {
    "aggregate": (f"({_FORWARD}, int[] tiles=[0, 0]) -> (Tensor, Tensor)", _aggregate),
    "aggregate_concat": (f"({_FORWARD}) -> (Tensor, Tensor)", _aggregate_concat),
    "aggregate_backward": (_BACKWARD, _aggregate_backward),
}
SCHEMAS = {name: (schema, partial(operator, CPU)) for name, (schema, operator) in _OPERATORS.items()}
CUDA_KERNELS = {name: partial(operator, CUDA) for name, (_, operator) in _OPERATORS.items()}
AUTOGRAD = {
    "aggregate": (_backward, _save_for_backward),
    "aggregate_concat": (_concat_backward, _save_for_backward),
}
