"""The GPUs of `fastsample-bench roles --device cuda`: who works on which, and what the caches there may hold.

Ranks are dealt to the GPUs in turn, several to one where there are fewer: processes, with memory and streams of their
own. The tables of a rank, its topology and its cache, may take an equal share of its GPU's memory, or less
(--gpu-memory), as if it were a smaller one; batches and model come on top. Features stay in host memory. A rank that
samples has the topology on its GPU; a cache gets what is left then, so it is larger where ranks only train.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.placement import measured_room
from fastsample_dist.features.cache import FeatureCache
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.roles import ROLES_NONE, Roles


def on_gpu(ctx: DistContext) -> DistContext:
    """The rank's place on a GPU, over the same communicator, whose tensors travel through host memory.

    Args:
      ctx: on the CPU.
    """
    device = torch.device("cuda", ctx.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return DistContext(ctx.comm, ctx.local_rank, ctx.local_world_size, device, ctx.launcher)


@contextmanager
def table_memory(ctx: DistContext, memory_bytes: int | None) -> Iterator[None]:
    """In this block a rank's tables find no more room on its GPU than they may take.

    Args:
      ctx: on a GPU.
      memory_bytes: that they may take; None: the rank's share of all.
    Raises:
      ValueError: more than that share.
    """
    count, device = torch.cuda.device_count(), ctx.device
    total = torch.cuda.get_device_properties(device).total_memory
    share = total // len(range(device.index, ctx.local_world_size, count))
    wanted = share if memory_bytes is None else memory_bytes
    if wanted > share:
        raise ValueError(f"--gpu-memory is {wanted} but a rank's share of {device} is {share}; pass at most that.")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(wanted / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def cache_of(data: DistData, roles: str | Roles) -> FeatureCache | None:
    """As large as there is room on a GPU that trains, the same on all ranks; None where there is none.

    Collective: every rank must call this, in the block of `table_memory`.
    """
    room = measured_room(data.ctx.device)
    left = room.device_bytes - room.reserve_bytes
    if roles == ROLES_NONE:
        left -= topology_bytes(data.graph)
    found = torch.tensor([left], dtype=torch.int64)
    left = int(data.ctx.comm.all_reduce(found, op="min", purpose="benchmark"))
    return FeatureCache(left) if left >= data.features.local.row_bytes else None
