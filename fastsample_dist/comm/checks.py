"""Arguments that cannot be communicated, refused before anything is sent."""

from __future__ import annotations

import operator
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
        raise ValueError(f"send_counts is {counts}; expected world_size = {world_size} counts >= 0, one per rank.")
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


def check_members(ranks: Sequence[int], world_size: int) -> tuple[tuple[int, ...], str]:
    """The members of a sub-group, and why there can be no such group.

    Args:
      ranks: what the caller of `split` passed.
      world_size: of the group that is split.
    Returns:
      (members, ""), or (what could be read of them, the refusal): `split` compares the lists of all ranks first, so
      that all raise the same error.
    """
    expected = f"expected different ranks from 0 to {world_size - 1}"
    try:
        members = tuple(operator.index(rank) for rank in ranks)
    except TypeError:
        return (), f"ranks is {ranks!r}; {expected}."
    outside = [rank for rank in members if not 0 <= rank < world_size]
    twice = sorted({rank for rank in members if members.count(rank) > 1})
    if not members:
        return members, f"ranks is empty; {expected}, at least one."
    if outside:
        return members, f"ranks has {outside[0]}; {expected}."
    if twice:
        return members, f"ranks has {twice[0]} more than once; {expected}."
    return members, ""
