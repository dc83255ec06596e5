"""act_dropout: ReLU or identity fused with dropout whose mask belongs to the node, not to the batch.

The mask of a row is drawn from the stream keyed by (rng_seed, step, layer, original node id), so k ranks drop
what one process drops. It is never stored: the gradient reads it off the output (ReLU) or draws it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.layer_cores import CPU, CUDA, LayerCore

VARIATES = 65536  # a drop decision compares a 16-bit variate
library.DECLARED.values(FS_DROP_VARIATES=VARIATES)


@dataclass(frozen=True, kw_only=True)
class DropoutKey:
    """What a mask depends on besides the node and the column.

    Attributes:
      rng_seed: 0 .. 2**63 - 1.
      step: global training step, 0 or more.
      layer: 0 .. 2**32 - 1, distinct for every dropout of the model.
    """

    rng_seed: int
    step: int
    layer: int

    def __post_init__(self) -> None:
        if not 0 <= self.rng_seed < 2**63:
            raise ValueError(f"rng_seed is {self.rng_seed}; expected 0 to 2**63 - 1.")
        if self.step < 0:
            raise ValueError(f"step is {self.step}; expected 0 or more.")
        if not 0 <= self.layer < 2**32:
            raise ValueError(f"layer is {self.layer}; expected 0 to 2**32 - 1.")


def drop_threshold(p: float) -> int:
    """The drop probability in units of 1/65536, to which it is rounded (the scale uses the rounded value).

    Raises:
      ValueError: p outside 0 <= p < 1 (after rounding).
    """
    threshold = round(p * VARIATES) if 0 <= p < 1 else VARIATES
    if threshold >= VARIATES:
        raise ValueError(f"p is {p}; expected a dropout probability of at least 0 and below 1.")
    return threshold


def act_dropout(x: Tensor, node_ids: Tensor, key: DropoutKey, *, p: float, activation: str = "relu") -> Tensor:
    """Activation, then dropout: y = keep * activation(x) / (1 - p).

    Args:
      x: float32 | float64 | bfloat16 [n, width].
      node_ids: int64 [n]; original id of each row's node.
      key: rng_seed, step and layer.
      p: drop probability, 0 <= p < 1, rounded to a multiple of 1/65536; 0 draws nothing.
      activation: "relu" or "identity".
    Returns:
      [n, width] of x's dtype.
    Raises:
      ValueError: p out of range, a dtype or length mismatch, an unknown activation.
    Source: FastSample, section 4 (dropout between layers); Philox4x32-10, SC'11. Cost: O(n * width).
    Deterministic: yes. Differentiable once in x.
    """
    threshold = drop_threshold(p)
    return torch.ops.fastsample.act_dropout(x, node_ids, threshold, activation, [key.rng_seed, key.step, key.layer])


def arguments(
    x: Tensor, node_ids: Tensor | None, threshold: int, activation: str, key: list[int], bias: Tensor | None = None
) -> library.ActDropout:
    """The core's description of one call; it keeps node_ids and bias, whose addresses it holds."""
    if activation not in library.ACTIVATION_CODES:
        raise ValueError(f"activation is {activation!r}; expected 'relu' or 'identity'.")
    checks.one_device(x=x, node_ids=node_ids, bias=bias)
    spec = library.ActDropout(
        library.address(node_ids), x.shape[0], x.shape[1], library.type_code(x), library.ACTIVATION_CODES[activation],
        threshold, library.num_threads(), key[0], key[1], key[2], library.address(bias),
    )  # fmt: skip
    spec.tensors = (node_ids, bias)
    return spec


def take_rows(spec: library.ActDropout, lo: int, num_rows: int) -> None:
    """Make a description returned by `arguments` that of its rows lo .. lo + num_rows - 1."""
    node_ids, _ = spec.tensors
    if node_ids is not None:
        spec.node_ids = node_ids.data_ptr() + lo * node_ids.element_size()
    spec.num_rows = num_rows


def _act_dropout(
    core: LayerCore, x: Tensor, node_ids: Tensor, threshold: int, activation: str, key: list[int]
) -> Tensor:
    x = checks.matrix("x", x, checks.REAL_DTYPES)
    node_ids = checks.vector("node_ids", node_ids, (torch.int64,), x.shape[0])
    y = torch.empty_like(x)
    core.act_dropout(arguments(x, node_ids, threshold, activation, key), x, y)
    return y


def _act_dropout_backward(
    core: LayerCore, grad: Tensor, y: Tensor, node_ids: Tensor, threshold: int, activation: str, key: list[int]
) -> Tensor:
    grad, y, node_ids = grad.contiguous(), y.contiguous(), node_ids.contiguous()
    checks.matrix("grad", grad, (y.dtype,), y.shape[0])
    checks.one_device(y=y, grad=grad)
    grad_x = torch.empty_like(grad)
    core.act_dropout_backward(arguments(grad, node_ids, threshold, activation, key), y, grad, grad_x)
    return grad_x


def _save_for_backward(ctx: object, inputs: tuple, output: Tensor) -> None:
    _, node_ids, ctx.threshold, ctx.activation, ctx.key = inputs
    ctx.save_for_backward(output, node_ids)


def _backward(ctx: object, grad: Tensor) -> tuple:
    y, node_ids = ctx.saved_tensors
    grad_x = torch.ops.fastsample.act_dropout_backward(grad, y, node_ids, ctx.threshold, ctx.activation, ctx.key)
    return grad_x, None, None, None, None


_OPERATORS = {
    "act_dropout": (
        "(Tensor x, Tensor node_ids, int threshold, str activation, int[] key) -> Tensor",
        _act_dropout,
    ),
    "act_dropout_backward": (
        "(Tensor grad, Tensor y, Tensor node_ids, int threshold, str activation, int[] key) -> Tensor",
        _act_dropout_backward,
    ),
}
SCHEMAS = {name: (schema, partial(operator, CPU)) for name, (schema, operator) in _OPERATORS.items()}
CUDA_KERNELS = {name: partial(operator, CUDA) for name, (_, operator) in _OPERATORS.items()}
AUTOGRAD = {"act_dropout": (_backward, _save_for_backward)}
