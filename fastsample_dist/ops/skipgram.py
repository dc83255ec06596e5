"""skipgram_gradients: the gradient of skip-gram with negative sampling; update_rows: rows moved by their gradients."""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

_REAL_DTYPES = (torch.float32, torch.float64)


@library.DECLARED.mirror("FsSkipGram")
class _SkipGram(Structure):
    """FsSkipGram."""

    _fields_ = (
        ("rows", c_void_p),
        ("centers", c_void_p),
        ("contexts", c_void_p),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("num_pairs", c_int64),
        ("contexts_per_pair", c_int64),
        ("scale", c_double),
        ("type", c_int32),
        ("num_threads", c_int32),
    )


@library.DECLARED.mirror("FsRowUpdate")
class _RowUpdate(Structure):
    """FsRowUpdate."""

    _fields_ = (
        ("table", c_void_p),
        ("first_moments", c_void_p),
        ("second_moments", c_void_p),
        ("rows", c_void_p),
        ("slots", c_void_p),
        ("places", c_void_p),
        ("own", c_void_p),
        ("received", c_void_p),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("num_updated", c_int64),
        ("num_grads", c_int64),
        ("num_own", c_int64),
        ("num_received", c_int64),
        ("step_size", c_double),
        ("first_rate", c_double),
        ("second_rate", c_double),
        ("epsilon", c_double),
        ("type", c_int32),
        ("num_threads", c_int32),
    )


library.DECLARED.functions(
    fs_skipgram_gradients=(POINTER(_SkipGram), c_void_p, c_void_p), fs_update_rows=(POINTER(_RowUpdate),)
)


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """How a row moves by the sum g of its gradients.

    Without moments: row -= step_size * g. With them (torch.optim.SparseAdam on touched rows, in the table's dtype):
    m += (g - m) * first_rate; v += (g * g - v) * second_rate; row -= step_size * m / (sqrt(v) + epsilon).
    """

    step_size: float
    first_rate: float = 0.0
    second_rate: float = 0.0
    epsilon: float = 0.0

    @classmethod
    def adam(cls, lr: float, betas: tuple[float, float], epsilon: float, step: int) -> RowRule:
        """Adam's rule at its update number `step`, counted from 1: the corrections of its bias are in step_size."""
        first, second = (1.0 - beta for beta in betas)
        correction = math.sqrt(1.0 - betas[1] ** step) / (1.0 - betas[0] ** step)
        return cls(step_size=lr * correction, first_rate=first, second_rate=second, epsilon=epsilon)


@dataclass(frozen=True)
class RowGradients:
    """Gradients of rows of a table, several for one row perhaps; they are added in this order.

    Attributes:
      rows: int64 [num_updated]; the rows that have any, each once.
      slots: int32 [num_grads]; which of `rows` each gradient is of.
      places: int64 [num_grads]; where it is: row p >= 0 of own, else row -1 - p of received.
      own: [num_own, width].
      received: [num_received, width] of the same dtype.
    """

    rows: Tensor
    slots: Tensor
    places: Tensor
    own: Tensor
    received: Tensor


def skipgram_gradients(
    rows: Tensor,
    centers: Tensor,
    contexts: Tensor,
    scale: float = 1.0,
    num_threads: int | None = None,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient and loss of skip-gram with negative sampling on a batch's rows.

    With x = <rows[centers[p]], rows[contexts[p, k]]> the loss of pair p is softplus(-x) for k = 0, the context that was
    seen, plus softplus(x) for every k > 0, a negative. A row may be centre and context. A row's terms are added one by
    one: as centre by (p, k), then as context by (p, k); so threads and instruction sets change no bit.

    Args:
      rows: float32 | float64 [num_rows, width].
      centers: int32 [num_pairs].
      contexts: int32 [num_pairs, 1 + negatives].
      scale: of the gradients; 1 / num_pairs makes them those of the mean.
      num_threads: None takes torch's setting.
      out: contiguous, as rows: the gradients' memory, to be used again with every batch; None: new.
    Returns:
      (grads [num_rows, width] of rows' dtype, 0 for a row in no pair, which is `out` if that is given; loss float64 [],
      the sum over all pairs, not scaled).
    Raises:
      ValueError: an id outside the rows, no context, a shape or dtype mismatch.
    Source: Mikolov et al., NIPS 2013, equation 4. Cost: O(num_pairs * (1 + negatives) * width). Deterministic: yes.
    """
    num_threads = library.num_threads(num_threads)
    grads = torch.empty_like(rows) if out is None else out
    return grads, torch.ops.fastsample.skipgram_gradients(rows, centers, contexts, scale, num_threads, grads)


def update_rows(table: Tensor, moments: tuple[Tensor, Tensor] | None, gradients: RowGradients, rule: RowRule) -> None:
    """Move rows of a table, in place, by the sums of their gradients.

    Args:
      table: float32 | float64 [num_rows, width], contiguous.
      moments: Adam's, each as the table, changed in place; None: plain steps.
      gradients: of the rows.
      rule: how a row moves.
    Raises:
      ValueError: a row or a place that is not there, a shape or dtype mismatch.
    Cost: O(num_grads * width), each gradient read once. Deterministic: yes.
    """
    torch.ops.fastsample.update_rows(
        table, *(moments or (None, None)), gradients.rows, gradients.slots, gradients.places, gradients.own,
        gradients.received, [rule.step_size, rule.first_rate, rule.second_rate, rule.epsilon],
    )  # fmt: skip


def _skipgram_gradients_cpu(
    rows: Tensor, centers: Tensor, contexts: Tensor, scale: float, num_threads: int, grads: Tensor
) -> Tensor:
    rows = checks.matrix("rows", rows, _REAL_DTYPES)
    centers = checks.vector("centers", centers, (torch.int32,))
    contexts = checks.matrix("contexts", contexts, (torch.int32,), centers.numel())
    checks.require(
        grads.shape == rows.shape and grads.dtype == rows.dtype and grads.is_contiguous(),
        f"out is {grads.dtype} of shape {tuple(grads.shape)}; expected {rows.dtype} of shape {tuple(rows.shape)}, "
        "contiguous.",
    )
    loss = torch.empty((), dtype=torch.float64)
    pairs = _SkipGram(
        rows.data_ptr(), centers.data_ptr(), contexts.data_ptr(), *rows.shape, *contexts.shape, scale,
        library.type_code(rows), num_threads,
    )  # fmt: skip
    library.call(library.core().fs_skipgram_gradients, ctypes.byref(pairs), grads.data_ptr(), loss.data_ptr())
    return loss


def _update_rows_cpu(
    table: Tensor, first: Tensor | None, second: Tensor | None, rows: Tensor, slots: Tensor, places: Tensor,
    own: Tensor, received: Tensor, rule: list[float],
) -> None:  # fmt: skip
    checks.require(table.is_contiguous(), "table must be contiguous; it is changed in place.")
    checks.matrix("table", table, _REAL_DTYPES)
    for name, moments in (("first moments", first), ("second moments", second)):
        checks.require(
            moments is None
            or (moments.shape == table.shape and moments.dtype == table.dtype and moments.is_contiguous()),
            f"the {name} do not fit the table, {table.dtype} of shape {tuple(table.shape)}; expected the same.",
        )
    checks.require((first is None) == (second is None), "one of the moments is missing; pass both or none.")
    own, received = (checks.matrix(*given, (table.dtype,)) for given in (("own", own), ("received", received)))
    checks.require(
        own.shape[1] == received.shape[1] == table.shape[1],
        f"own has {own.shape[1]} columns, received {received.shape[1]}, the table {table.shape[1]}; expected the same.",
    )
    rows = checks.vector("rows", rows, (torch.int64,))
    slots = checks.vector("slots", slots, (torch.int32,))
    places = checks.vector("places", places, (torch.int64,), slots.numel())
    update = _RowUpdate(
        table.data_ptr(), library.address(first), library.address(second), rows.data_ptr(), slots.data_ptr(),
        places.data_ptr(), own.data_ptr(), received.data_ptr(), *table.shape, rows.numel(), slots.numel(),
        own.shape[0], received.shape[0], *rule, library.type_code(table), library.num_threads(),
    )  # fmt: skip
    library.call(library.core().fs_update_rows, ctypes.byref(update))


SCHEMAS = {
    "skipgram_gradients": (
        "(Tensor rows, Tensor centers, Tensor contexts, float scale, int num_threads, Tensor(a!) grads) -> Tensor",
        _skipgram_gradients_cpu,
    ),
    "update_rows": (
        "(Tensor(a!) table, Tensor(b!)? first, Tensor(c!)? second, Tensor rows, Tensor slots, Tensor places, "
        "Tensor own, Tensor received, float[] rule) -> ()",
        _update_rows_cpu,
    ),
}
