"""sage_layer: one GraphSAGE layer, from source rows to the next layer's rows; neighbours are averaged, or summed with
coefficients.

What the separate operators would write and read again stays in place: own row and mean lie side by side for one
matrix product, and bias, ReLU and dropout are applied to the product where it lies.

Rows of bfloat16 are padded with zero rows for the CPU's matrix products: oneDNN compiles a kernel per shape,
and without padding every batch of an epoch has shapes of its own.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from fastsample_dist.ops import act_dropout as act_dropout_ops
from fastsample_dist.ops import aggregate as aggregate_ops
from fastsample_dist.ops import checks, library
from fastsample_dist.ops.act_dropout import DropoutKey
from fastsample_dist.ops.layer_cores import CPU, CUDA, LayerCore, on_matrix_units

# Rows of one run on the way back, a multiple of FS_SUM_ROWS, so that runs do not show in sums: with 256 float32 columns
# 1 MiB, half of a core's second-level cache.
RUN_ROWS = 1024
PADDING_SHARE = 5  # padded to a multiple of 2**(bits - 5): at most 1/16 more rows, at most 16 sizes per octave


def sage_layer(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    node_ids: Tensor | None = None,
    key: DropoutKey | None = None,
    p: float = 0.0,
    checked: bool = False,
    edge_weights: Tensor | None = None,
) -> Tensor:
    """y = [own row | mean of in-neighbours] W^T + b; with `node_ids` and `key` then ReLU and dropout.

    Args:
      indptr: int64 [num_dst + 1]; CSC offsets of the MFG.
      indices: int32 | int64 [num_edges]; local source ids.
      x: float32 | float64 | bfloat16 [num_src, width]; source rows, the destinations first.
      weight: x's dtype, [out_width, 2 * width]; own half first.
      bias: x's dtype, [out_width], or None.
      node_ids: int64 [num_dst]; original ids of the destinations, which key the mask. None: no activation.
      key: rng_seed, step and layer of the mask; given together with node_ids.
      p: drop probability, as for `act_dropout`.
      checked: as for `aggregate`.
      edge_weights: x's dtype, [num_edges]; in place of the mean, the sum of the in-neighbours' rows times these. None:
        the mean.
    Returns:
      [num_dst, out_width] of x's dtype.
    Raises:
      ValueError: shapes or dtypes that do not fit, a source id outside x, p out of range, one of node_ids and key.
    Source: GraphSAGE, NeurIPS'17, algorithm 1, lines 4 and 5; FastSample, section 4 (dropout between layers).
    Cost: O(num_edges * width + num_dst * width * out_width). Deterministic: as torch.mm on the same machine.
    Differentiable once in x, weight, bias and edge_weights.
    """
    checks.require((node_ids is None) == (key is None), "node_ids and key belong together; give both or neither.")
    draw = [0, 0, 0, 0] if key is None else [key.rng_seed, key.step, key.layer, act_dropout_ops.drop_threshold(p)]
    return torch.ops.fastsample.sage_layer(indptr, indices, x, weight, bias, node_ids, draw, checked, edge_weights)[0]


def padded_size(num_rows: int, dtype: torch.dtype) -> int:
    """Rows of the CPU's matrix products for `num_rows` rows."""
    if dtype != torch.bfloat16:
        return num_rows
    step = 1 << max(num_rows.bit_length() - PADDING_SHARE, 0)
    return -(-num_rows // step) * step


def _padded(num_rows: int, width: int, like: Tensor) -> Tensor:
    """Uninitialised rows of like's dtype on its device, and zeros in the padding."""
    rows = like.new_empty((padded_size(num_rows, like.dtype) if like.device.type == "cpu" else num_rows, width))
    rows[num_rows:] = 0
    return rows


def _description(
    rows: Tensor, node_ids: Tensor | None, draw: list[int], bias: Tensor | None = None
) -> library.ActDropout:
    """How the product's rows are transformed; `draw` is [rng_seed, step, layer, threshold]."""
    activation = "identity" if node_ids is None else "relu"
    return act_dropout_ops.arguments(rows, node_ids, draw[3], activation, draw[:3], bias)


def _sage_layer(
    core: LayerCore, indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None,
    node_ids: Tensor | None, draw: list[int], checked: bool = False, edge_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y, halves): halves [padded rows, 2 * width] is [own row | neighbours], kept for the gradient of the weight."""
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    num_dst, width = max(indptr.numel() - 1, 0), x.shape[1]
    _check_parameters(x, weight, bias)
    halves = _padded(num_dst, 2 * width, x)
    reduce = _reduction(edge_weights)
    aggregate_ops.concat_into(core, halves[:num_dst], (indptr, indices), x, edge_weights, reduce, checked)
    y = torch.mm(halves, weight.t())[:num_dst]
    if bias is not None or node_ids is not None:
        ids = None if node_ids is None else checks.vector("node_ids", node_ids, (torch.int64,), num_dst)
        bias = None if bias is None else bias.contiguous()
        core.act_dropout(_description(y, ids, draw, bias), y, y)
    return y, halves


def _reduction(edge_weights: Tensor | None) -> str:
    """Refuses weights of several heads, which the layer does not have."""
    checks.require(
        edge_weights is None or edge_weights.dim() == 1,
        "edge_weights has more than one dimension; expected one coefficient per edge.",
    )
    return "mean" if edge_weights is None else "sum"


def _check_parameters(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    out_width = weight.shape[0]
    if weight.dtype != x.dtype or weight.shape != (out_width, 2 * x.shape[1]):
        raise ValueError(
            f"weight is {weight.dtype} of shape {tuple(weight.shape)}; expected {x.dtype} with {2 * x.shape[1]} "
            "columns."
        )
    if bias is not None and (bias.dtype != x.dtype or bias.shape != (out_width,)):
        raise ValueError(f"bias does not fit; expected {x.dtype} of shape {(out_width,)}.")
    checks.one_device(x=x, weight=weight, bias=bias)


def _sage_layer_backward(
    core: LayerCore, grad: Tensor, saved: list[Tensor], node_ids: Tensor | None, draw: list[int], num_src: int,
    needs: list[bool], edge_weights: Tensor | None = None, x: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of (x, weight, bias, edge_weights), empty where not needed. `saved` is [y, halves, weight, indptr,
    indices], whose edges the forward call has seen; x is there for the gradient of edge_weights.

    bfloat16 takes all rows at once: its sums over runs would be rounded once per run.
    """
    y, halves, weight, *edges = saved
    y, grad = y.contiguous(), checks.matrix("grad", grad, (y.dtype,), y.shape[0])
    products = _at_once if y.dtype == torch.bfloat16 or y.device.type != "cpu" else _by_runs
    # The gradient of the bias: of bfloat16 rows too it is summed in float32.
    sums = y.new_zeros(y.shape[1], dtype=torch.promote_types(y.dtype, torch.float32)) if needs[2] else None
    grad_weight = y.new_zeros(weight.shape if needs[1] else (0, 0))
    needs_halves = needs[0] or needs[3]
    grad_halves = y.new_empty((halves.shape[0], weight.shape[1]) if needs_halves else (0, 0))
    products(
        core, (y, grad, halves, weight), (node_ids, draw), sums, grad_weight if needs[1] else None,
        grad_halves if needs_halves else None,
    )  # fmt: skip
    reduce, grad_halves = _reduction(edge_weights), grad_halves[: y.shape[0]]
    grad_x, grad_edge_weights = y.new_empty((0, 0)), y.new_empty((0,))
    if needs[0]:
        grad_x = aggregate_ops.concat_backward(core, grad_halves, edges, num_src, edge_weights, reduce)
    if needs[3]:
        grad_edge_weights = aggregate_ops.concat_grad_weights(core, grad_halves, edges, x, edge_weights, reduce)
    grad_bias = y.new_empty((0,)) if sums is None else sums.to(y.dtype)
    return grad_x, grad_weight, grad_bias, grad_edge_weights


def _by_runs(
    core: LayerCore, operands: tuple[Tensor, ...], mask: tuple[Tensor | None, list[int]], sums: Tensor | None,
    grad_weight: Tensor | None, grad_halves: Tensor | None,
) -> None:  # fmt: skip
    """Fill what is not None: `sums` and `grad_weight`, zeros at first, and `grad_halves`. Runs of rows go through
    activation, dropout and the products while they are in the cache.
    """
    y, grad, halves, weight = operands
    inner = y.new_empty((min(RUN_ROWS, y.shape[0]), y.shape[1]))  # the gradient before activation and dropout
    runs = zip(
        y.split(RUN_ROWS), grad.split(RUN_ROWS), halves[: y.shape[0]].split(RUN_ROWS),
        repeat(None) if grad_halves is None else grad_halves.split(RUN_ROWS), strict=False,
    )  # fmt: skip
    description, lo = _description(y, *mask), 0
    for run_y, run_grad, run_halves, run_out in runs:
        rows = inner[: run_y.shape[0]]
        act_dropout_ops.take_rows(description, lo, rows.shape[0])
        core.act_dropout_backward(description, run_y, run_grad, rows, sums)
        if grad_weight is not None:
            grad_weight.addmm_(rows.t(), run_halves)
        if run_out is not None:
            torch.mm(rows, weight, out=run_out)
        lo += rows.shape[0]


def _at_once(
    core: LayerCore, operands: tuple[Tensor, ...], mask: tuple[Tensor | None, list[int]], sums: Tensor | None,
    grad_weight: Tensor | None, grad_halves: Tensor | None,
) -> None:  # fmt: skip
    """As `_by_runs`, all rows in one go; on matrix units rows that nothing else reads are not written."""
    y, grad, halves, weight = operands
    description, rows = _description(y, *mask), None
    if grad_weight is None or grad_halves is not None or not on_matrix_units(y):
        rows = _padded(*y.shape, y)
    if grad_weight is not None:
        core.weight_gradient(description, y, grad, rows, sums, halves, grad_weight)
    else:
        core.act_dropout_backward(description, y, grad, rows, sums)
    if grad_halves is not None:
        torch.mm(rows, weight, out=grad_halves)


def _save_for_backward(ctx: object, inputs: tuple, output: tuple) -> None:
    indptr, indices, x, weight, bias, node_ids, ctx.draw, _, edge_weights = inputs
    y, halves = output
    ctx.num_src, ctx.has_bias = x.shape[0], bias is not None
    of_x = x if edge_weights is not None and ctx.needs_input_grad[8] else None
    ctx.save_for_backward(y, halves, weight, indptr, indices, node_ids, edge_weights, of_x)
    ctx.mark_non_differentiable(halves)
    ctx.set_materialize_grads(False)  # else a zero gradient as large as halves is made


def _backward(ctx: object, grad: Tensor | None, _: None) -> tuple:
    if grad is None:
        return (None,) * 9
    *saved, node_ids, edge_weights, x = ctx.saved_tensors
    asked = ctx.needs_input_grad
    needs = [asked[2], asked[3], ctx.has_bias and asked[4], edge_weights is not None and asked[8]]
    grads = torch.ops.fastsample.sage_layer_backward(
        grad, saved, node_ids, ctx.draw, ctx.num_src, needs, edge_weights, x
    )
    grad_x, grad_weight, grad_bias, grad_edges = (g if need else None for g, need in zip(grads, needs, strict=True))
    return None, None, grad_x, grad_weight, grad_bias, None, None, None, grad_edges


_OPERATORS = {
    "sage_layer": (
        "(Tensor indptr, Tensor indices, Tensor x, Tensor weight, Tensor? bias, Tensor? node_ids, int[] draw, "
        "bool checked=False, Tensor? edge_weights=None) -> (Tensor, Tensor)",
        _sage_layer,
    ),
    "sage_layer_backward": (
        "(Tensor grad, Tensor[] saved, Tensor? node_ids, int[] draw, int num_src, bool[] needs, "
        "Tensor? edge_weights=None, Tensor? x=None) -> (Tensor, Tensor, Tensor, Tensor)",
        _sage_layer_backward,
    ),
}
SCHEMAS = {name: (schema, partial(operator, CPU)) for name, (schema, operator) in _OPERATORS.items()}
CUDA_KERNELS = {name: partial(operator, CUDA) for name, (_, operator) in _OPERATORS.items()}
AUTOGRAD = {"sage_layer": (_backward, _save_for_backward)}
