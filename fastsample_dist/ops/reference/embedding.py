"""Embedding training by definition: negatives, first rows, the loss of skip-gram, rows moved one gradient at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastsample_dist.ops.reference.streams import EMBEDDING, NEGATIVES, below, node_words, stage_key
from fastsample_dist.ops.skipgram import RowGradients, RowRule


def alias_draws(
    table: Tensor, ids: Tensor, numbers: Tensor, draws_per_pair: int, *, rng_seed: int, step: int
) -> Tensor:
    """Oracle of ops.alias_draws."""
    key, slots = stage_key(rng_seed, NEGATIVES, 0, step), table.tolist()
    drawn = torch.empty(ids.numel(), draws_per_pair, dtype=torch.int64)
    for pair, (sample, number) in enumerate(zip(ids.tolist(), numbers.tolist(), strict=True)):
        words = node_words(key, sample, number << 32)
        for k in range(draws_per_pair):
            slot = below(words, len(slots))
            threshold, alias = slots[slot]
            drawn[pair, k] = slot if next(words) < threshold % 2**32 else alias
    return drawn


def random_rows(
    ids: Tensor, width: int, *, rng_seed: int, bound: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Oracle of ops.random_rows."""
    key, rows = stage_key(rng_seed, EMBEDDING, 0, 0), []
    for node in ids.tolist():
        words = node_words(key, node)
        rows.append([((next(words) >> 8) / 2**24 - 0.5) * (2 * bound) for _ in range(width)])
    return torch.tensor(rows, dtype=torch.float64).reshape(ids.numel(), width).to(dtype)


def skipgram_loss(rows: Tensor, centers: Tensor, contexts: Tensor) -> Tensor:
    """Sum of the losses of all pairs, dense and differentiable; the oracle of ops.skipgram_gradients by autograd."""
    products = (rows[centers.long()].unsqueeze(1) * rows[contexts.long()]).sum(-1)
    return softplus(-products[:, 0]).sum() + softplus(products[:, 1:]).sum()


def update_rows(table: Tensor, moments: tuple[Tensor, Tensor] | None, gradients: RowGradients, rule: RowRule) -> None:
    """Oracle of ops.update_rows."""
    real = table.numpy().dtype.type
    sums: dict[int, np.ndarray] = {}
    for slot, place in zip(gradients.slots.tolist(), gradients.places.tolist(), strict=True):
        source = gradients.own[place] if place >= 0 else gradients.received[-1 - place]
        gradient = source.numpy()
        sums[slot] = sums[slot] + gradient if slot in sums else gradient.copy()
    for slot, total in sums.items():
        row = table[int(gradients.rows[slot])].numpy()
        if moments is None:
            row -= real(rule.step_size) * total
            continue
        first, second = (moment[int(gradients.rows[slot])].numpy() for moment in moments)
        first += (total - first) * real(rule.first_rate)
        second += (total * total - second) * real(rule.second_rate)
        row -= real(rule.step_size) * first / (np.sqrt(second) + real(rule.epsilon))
