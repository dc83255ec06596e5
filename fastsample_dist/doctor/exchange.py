"""The smallest run there is: every rank sends every other rank rows with its number, and checks what it receives."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from fastsample_dist.comm.context import DistContext

NUM_ROWS, ROW_VALUES = 2048, 64  # 512 KiB to every rank
ROUNDS = 5


def exchange(ctx: DistContext, settings: dict, folder: Path) -> dict:
    """Exchange rows and sum a tensor. Collective: every rank must call this.

    Returns:
      {"interface", "exchange_s": fastest of some exchanges, "mb_per_s": sent by this rank in it}.
    Raises:
      RuntimeError: what was received is not what was sent.
    """
    rows = torch.full((NUM_ROWS * ctx.world_size, ROW_VALUES), float(ctx.rank))
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        received, counts = ctx.comm.all_to_all_rows(rows, [NUM_ROWS] * ctx.world_size, purpose="rows")
        seconds.append(time.perf_counter() - started)
        expected = torch.arange(ctx.world_size).repeat_interleave(NUM_ROWS)
        if counts != [NUM_ROWS] * ctx.world_size or not torch.equal(received[:, 0].long(), expected):
            raise RuntimeError(f"rank {ctx.rank}: all_to_all delivered other rows than those sent.")
    total = ctx.comm.all_reduce(torch.tensor([ctx.rank + 1]), purpose="metrics").item()
    if total != ctx.world_size * (ctx.world_size + 1) // 2:
        raise RuntimeError(f"rank {ctx.rank}: all_reduce of 1 to {ctx.world_size} gave {total}.")
    sent_bytes = NUM_ROWS * ROW_VALUES * 4 * (ctx.world_size - 1)
    return {
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "exchange_s": min(seconds),
        "mb_per_s": sent_bytes / min(seconds) / 1e6,
    }
