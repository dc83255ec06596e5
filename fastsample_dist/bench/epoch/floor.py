"""The floor of an epoch: its matrix products alone, and the sums of its gradients alone.

What GraphSAGE cannot do without, in the shapes of the run's own batches (destinations per layer, rows padded as
ops.sage_layer pads them for the precision), on the run's own threads:

    y = halves w^T      of every layer                     halves [rows, 2 * width in], w [width out, 2 * width in]
    dw = dy^T halves    of every layer
    dhalves = dy w      of every layer but the first, whose rows are features and need no gradient

Operands are written once before the time is taken and results go to memory that exists, so nothing else is in it:
no aggregation, no activation, no allocation. The sum of gradients is one all_reduce of a vector as long as the model's
parameters in a step, without any computation beside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops.layer_cores import weight_product
from fastsample_dist.ops.sage_layer import padded_size

PURPOSE = "benchmark"


@dataclass(frozen=True, kw_only=True)
class FloorTime:
    """Of one epoch on one rank.

    Attributes:
      floor_s: wall clock of the products.
      floor_cpu_s: processor time of them.
      all_reduce_s: wall clock of the sums of gradients.
    """

    floor_s: float
    floor_cpu_s: float
    all_reduce_s: float


class EpochFloor:
    """Measures floors of epochs of one model.

    Args:
      widths: (columns in, columns out) of every layer, those of a row.
      dtype: of the products: torch.float32 or torch.bfloat16.
      num_parameters: of the model, summed in float32.
    """

    def __init__(self, widths: Sequence[tuple[int, int]], dtype: torch.dtype, num_parameters: int) -> None:
        self._dtype = dtype
        self._weights = [_filled(out, 2 * width, dtype) for width, out in widths]
        self._halves = [_filled(1, 2 * width, dtype) for width, _ in widths]
        self._rows = [_filled(1, out, dtype) for _, out in widths]
        self._gradient = torch.zeros(num_parameters)

    def measure(self, steps: Sequence[Sequence[int]], comm: Communicator) -> FloorTime:
        """Time one epoch's products and sums.

        Collective: every rank must call this, with equally many steps.

        Args:
          steps: of every step the destinations per layer, the input side first.
          comm: sums vectors; purpose "benchmark".
        """
        padded = [[padded_size(rows, self._dtype) for rows in layers] for layers in steps]
        for layer, most in enumerate(map(max, zip(*padded, strict=True))):
            self._grow(layer, most)
        self._products(padded[0])  # the largest buffers exist, but results and a kernel's code are new
        comm.barrier(purpose=PURPOSE)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        for layers in padded:
            self._products(layers)
        floor_s, floor_cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        comm.barrier(purpose=PURPOSE)
        begin_s = time.perf_counter()
        for _ in steps:
            comm.all_reduce(self._gradient, purpose=PURPOSE)
        return FloorTime(floor_s=floor_s, floor_cpu_s=floor_cpu_s, all_reduce_s=time.perf_counter() - begin_s)

    def _grow(self, layer: int, rows: int) -> None:
        if self._halves[layer].shape[0] < rows:
            for buffers in (self._halves, self._rows):
                buffers[layer] = _filled(rows, buffers[layer].shape[1], self._dtype)

    def _products(self, layers: Sequence[int]) -> None:
        for number, rows in enumerate(layers):
            forward_product(self._halves[number][:rows], self._weights[number], self._rows[number][:rows])
        for number in reversed(range(len(layers))):
            halves, dy = self._halves[number][: layers[number]], self._rows[number][: layers[number]]
            weight_gradient(dy, halves)
            if number > 0:
                input_product(dy, self._weights[number])


def num_products(widths: Sequence[tuple[int, int]], layers: Sequence[int]) -> int:
    """Multiplications of a step's products.

    Args:
      widths: as of EpochFloor.
      layers: destinations per layer, the input side first.
    """
    return sum(
        rows * 2 * width * out * (3 if number > 0 else 2)
        for number, (rows, (width, out)) in enumerate(zip(layers, widths, strict=True))
    )


def forward_product(halves: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """out = halves weight^T."""
    return torch.mm(halves, weight.t(), out=out)


def weight_gradient(dy: Tensor, halves: Tensor) -> Tensor:
    """The gradient of the weight, as ops.sage_layer makes it."""
    out = dy.new_empty((dy.shape[1], halves.shape[1]))
    weight_product(dy, halves, out)
    return out


def input_product(dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the layer's input."""
    return torch.mm(dy, weight)


def _filled(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Numbers of which products neither grow nor become subnormal."""
    return torch.full((rows, columns), 2.0**-5, dtype=dtype)
