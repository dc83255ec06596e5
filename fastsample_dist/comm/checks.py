"""Refusals of arguments that no rank could communicate; each is raised before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.comm.rows import RowPlan

REDUCE_OPS = ("sum", "max", "min")
REDUCE_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip


def check_counts(send_counts: Sequence[int] | Tensor, world_size: int) -> list[int]:
    """`send_counts` as a list of Python integers.

    Raises:
      ValueError: a wrong number of counts, or a negative one.
    """
    given = send_counts.tolist() if isinstance(send_counts, Tensor) else send_counts
    counts = [int(count) for count in given]
    if len(counts) != world_size or min(counts) < 0:
        raise ValueError(
            f"send_counts is {counts}; expected world_size = {world_size} counts of at least 0, one per rank."
        )
    return counts


def check_rows(rows: Tensor, plan: RowPlan, world_size: int) -> None:
    """Refuse rows that do not fit the plan, and a plan that does not fit the group.

    Raises:
      ValueError: with the counts of both.
    """
    if len(plan.send_counts) != world_size:
        raise ValueError(f"the plan is for {len(plan.send_counts)} ranks; expected {world_size}.")
    if rows.dim() < 1 or rows.shape[0] != sum(plan.send_counts):
        raise ValueError(
            f"rows has shape {tuple(rows.shape)} but the plan sends {sum(plan.send_counts)} rows "
            f"(send_counts {plan.send_counts}); pass one row per planned row, grouped by destination."
        )


def check_reduce(tensor: Tensor, op: str) -> None:
    """Refuse what cannot be reduced.

    Raises:
      ValueError: an unknown op, or a dtype without a sum on every backend.
    """
    if op not in REDUCE_OPS:
        raise ValueError(f"op is {op!r}; expected one of {', '.join(REDUCE_OPS)}.")
    if tensor.dtype not in REDUCE_DTYPES:
        raise ValueError(f"all_reduce got a {tensor.dtype} tensor; convert it to a float or integer dtype.")
