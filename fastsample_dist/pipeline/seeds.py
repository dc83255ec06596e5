"""Which seeds a loader uses on this rank: a split's, or those that its user gave."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import DistData, check_own

logger = logging.getLogger(__name__)

Seeds = Tensor | np.ndarray | Sequence[int]


def given_seeds(data: DistData, seeds: Seeds) -> Tensor:
    """A rank's seeds as its user gave them, int64 [num_seeds], in that order.

    Args:
      data: the opened partition.
      seeds: node ids of the partitioned graph, any integer type; may be empty.
    Raises:
      ValueError: not a list of integers, an id twice, or a node that is not this rank's own.
    """
    try:
        ids = checks.as_tensor(seeds).cpu()
    except (TypeError, ValueError, RuntimeError):  # text, None in a list, rows of unequal length
        raise ValueError(f"seeds is a {type(seeds).__name__}; expected a tensor or list of integer node ids.") from None
    if ids.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if ids.dim() != 1 or ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise ValueError(
            f"seeds is {ids.dtype} of shape {tuple(ids.shape)}; expected a list of integer node ids; of a mask pass "
            "mask.nonzero().flatten()."
        )
    ids = ids.long()
    check_own(data, "seeds", ids)
    distinct, counts = ids.unique(return_counts=True)
    if distinct.numel() < ids.numel():
        twice = int(distinct[counts.argmax()])
        raise ValueError(f"seeds holds node {twice} {int(counts.max())} times; expected each node once.")
    return ids


def check_counts(source: str, seeds_per_rank: Sequence[int]) -> None:
    """Refuse seeds that leave nothing to do.

    Args:
      source: of the seeds: "train" for its split, or "seeds" for those that were given.
      seeds_per_rank: how many each rank has.
    Raises:
      ValueError: no rank has a seed.
    """
    if any(seeds_per_rank):
        return
    if source == "seeds":
        raise ValueError(f"seeds is empty on all {len(seeds_per_rank)} rank(s); pass own nodes on one rank at least.")
    raise ValueError(
        f"the {source} split is empty on all {len(seeds_per_rank)} rank(s); expected at least one seed: add {source} "
        "nodes, or name another split."
    )


def warn_of_idle_ranks(seeds_per_rank: Sequence[int]) -> None:
    """Log which ranks have no train node: they take part in every step with an empty batch of weight 0."""
    idle = [rank for rank, count in enumerate(seeds_per_rank) if count == 0]
    if idle:
        logger.warning(
            "the train split is empty on rank(s) %s (seeds per rank: %s): they take part with empty batches; partition "
            "into fewer parts, or add train nodes there, to have all ranks train",
            *(", ".join(map(str, idle)), list(seeds_per_rank)),
        )


def check_full_batches(seeds_per_rank: Sequence[int], batch_size: int) -> None:
    """Refuse drop_last where it leaves no step.

    Raises:
      ValueError: one rank has no full batch.
    """
    fewest = min(seeds_per_rank)
    if fewest < batch_size:
        raise ValueError(
            f"drop_last leaves no step: rank {list(seeds_per_rank).index(fewest)} has {fewest} seeds and batch_size is "
            f"{batch_size}; pass a batch_size of at most {fewest}, or drop_last=False."
            if fewest
            else f"drop_last leaves no step: rank {list(seeds_per_rank).index(0)} has no seeds; pass drop_last=False."
        )
