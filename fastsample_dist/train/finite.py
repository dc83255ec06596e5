"""FiniteGuard: training stops, on all ranks at the same step, at the first loss that is NaN or infinite.

A rank sees only its own share of the loss. Where that is not finite, its gradients are made NaN (`mark`), so the sum
of all ranks' gradients, which every rank has anyway, is not finite on any of them: all reach the same verdict, at
the cost of one pass over the gradients and no further collective. Only after a bad step do they exchange what each
knows. On a GPU the verdict is read with the loss, some steps later, before anything is saved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.names import rank_names
from fastsample_dist.sampling.mfg import MiniBatch, orig_ids_of

logger = logging.getLogger(__name__)

PURPOSE = "metrics"
NO_NODE = -1


class NonFiniteError(ValueError):
    """A loss or the gradients of a step are NaN or infinite; names step, ranks and the likely cause."""


class FiniteGuard:
    """Watches the steps of one trainer.

    Args:
      ctx: the rank's context.
      optimizer: whose learning rate the message names.
      allow: warn once and continue, instead of stopping.
    """

    def __init__(self, ctx: DistContext, optimizer: torch.optim.Optimizer, *, allow: bool) -> None:
        self._ctx, self._optimizer, self._allow = ctx, optimizer, allow
        self._done = False  # warned

    def mark(self, loss: Tensor) -> Tensor:
        """The loss to start backward from: the same, or one that makes gradients NaN where it is not finite."""
        if self._allow:
            return loss
        return loss * (1 + 0 * loss.detach())  # 0 * infinity is NaN

    def culprit(self, batch: MiniBatch, features: Tensor, loss: Tensor) -> Tensor:
        """Original id of an input node with features that are not finite, NO_NODE without one: int64 scalar on the
        loss's device. Waits for nothing; a CPU, which knows already, looks only where the loss is not finite.
        """
        if self._done or (loss.device.type == "cpu" and bool(loss.isfinite())):
            return torch.full((), NO_NODE, device=loss.device)
        return _first_bad_node(batch, features)

    def facts(self, loss: Tensor, culprit: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
        """What `check` needs of a step, float64 [3], on the loss's device. Waits for nothing.

        Args:
          loss: this rank's share.
          culprit: of the step.
          parameters: with their gradients, summed over ranks.
        """
        gradients = [] if self._done else [parameter.grad for parameter in parameters if parameter.grad is not None]
        finite = _all_finite(gradients, loss.device)
        return torch.stack([loss.detach().double(), finite.double(), culprit.double()])

    def check(self, step: int, facts: list[float]) -> None:
        """Stop where the gradients of all ranks together were not finite.

        Collective where they were not, which all ranks find out together: every rank must call this for every step.

        Args:
          step: global step.
          facts: its `facts`, on the host.
        Raises:
          NonFiniteError: the same on all ranks.
        """
        loss, finite, node = facts
        if finite:
            return
        per_rank = self._ctx.comm.all_gather_object((loss, int(node)), purpose=PURPOSE)
        self.judge(step, [loss for loss, _ in per_rank], [node for _, node in per_rank])

    def are_finite(self, gradients: Tensor) -> bool:
        """Whether no entry of the summed gradients is NaN or infinite; True once that was allowed."""
        return self._done or bool(_all_finite([gradients], gradients.device))

    def judge(self, step: int, losses: Sequence[float], nodes: Sequence[int], kind: str = "") -> None:
        """Stop because of a step whose summed gradients were not finite, or warn once where that is allowed.

        Args:
          step: global step.
          losses: the share of every rank.
          nodes: the culprit of every rank.
          kind: of the ranks, such as "virtual ".
        Raises:
          NonFiniteError: it is not allowed.
        """
        message = self._message(step, losses, nodes, kind)
        if not self._allow:
            raise NonFiniteError(f"{message}; allow_nonfinite=True (--allow-nonfinite) continues anyway.")
        self._done = True
        if self._ctx.rank == 0:
            logger.warning("%s; training continues, as requested.", message)

    def _message(self, step: int, losses: Sequence[float], nodes: Sequence[int], kind: str) -> str:
        bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        what = "the gradients are NaN or infinite, while the loss is finite"
        if bad:
            what = f"the loss is {losses[bad[0]]} on {kind}{rank_names(bad)}"
        culprit = next((rank for rank, node in enumerate(nodes) if node != NO_NODE), None)
        if culprit is not None:
            return (
                f"step {step}: {what}; the features of node {nodes[culprit]} (original id) in the batch of "
                f"{kind}rank {culprit} are NaN or infinite: correct the features of the input and partition again"
            )
        rate = self._optimizer.param_groups[0]["lr"]
        return (
            f"step {step}: {what}; the features of the batch are finite: lower the learning rate (it is "
            f"{float(rate):g}), or check the labels and your loss function"
        )


def _all_finite(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """Whether no entry is NaN or infinite: bool scalar on the device."""
    values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    largest = [torch.linalg.vector_norm(value, math.inf) for value in values if value.numel()]
    return torch.stack(largest).isfinite().all() if largest else torch.ones((), dtype=torch.bool, device=device)


def _first_bad_node(batch: MiniBatch, features: Tensor) -> Tensor:
    """Original id of the first input node with features that are not finite, NO_NODE without one: int64 scalar."""
    none = torch.full((), NO_NODE, device=features.device)
    if features.numel() == 0 or features.shape[0] != batch.input_nodes.numel():
        return none
    bad = ~features.isfinite().flatten(1).all(dim=1)
    first = batch.input_nodes.index_select(0, bad.int().argmax().view(1))
    orig_ids = batch.mfgs[0].orig_ids if batch.mfgs else None
    return torch.where(bad.any(), orig_ids_of(first, orig_ids)[0], none)
