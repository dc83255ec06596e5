"""The GPUs of `fastsample-bench roles --device cuda`: who works on which, and what the caches there may hold.

Ranks are dealt to the GPUs in turn, several to one where there are fewer: processes, with memory and streams of their
own. The tables of a rank, its topology and its cache, may take an equal share of what its GPU's memory has for tables,
or less (--gpu-memory), as if it were a smaller one; batches, model and scratch come on top. Features stay in host
memory. A rank that samples has the topology on its GPU where it fits; a cache gets what is left then, so it is larger
where ranks only train.
"""

from __future__ import annotations

import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.placement import RESERVE_SHARE, measured_room
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


def limit_tables(data: DistData, memory_bytes: int | None) -> None:
    """Let this rank's tables take no more of its GPU's memory than that.

    Args:
      data: of a context on a GPU, no table of it placed there yet.
      memory_bytes: that they may take; None: the rank's share of all but the reserve.
    Raises:
      ValueError: more than that share, or less than a row takes.
    """
    count, device, row_bytes = torch.cuda.device_count(), data.ctx.device, data.features.local.row_bytes
    total = torch.cuda.get_device_properties(device).total_memory
    share = int((1 - RESERVE_SHARE) * total) // len(range(device.index, data.ctx.local_world_size, count))
    wanted = share if memory_bytes is None else memory_bytes
    if wanted > share:
        raise ValueError(f"--gpu-memory is {wanted} but a rank's share of {device} is {share}; pass at most that.")
    if wanted < row_bytes:
        raise ValueError(f"--gpu-memory is {wanted} but one row of features takes {row_bytes}; pass at least that.")
    data.table_bytes = wanted


def cache_of(data: DistData, roles: str | Roles) -> FeatureCache | None:
    """As large as there is room on a GPU that trains, the same on all ranks; None where there is none.

    Collective: every rank must call this, after `limit_tables`.
    """
    room = measured_room(data.ctx.device).at_most(data.table_bytes)
    left, topology = room.device_bytes - room.reserve_bytes, topology_bytes(data.graph)
    if roles == ROLES_NONE and topology <= left:  # else it is placed in host memory
        left -= topology
    found = torch.tensor([left], dtype=torch.int64)
    left = int(data.ctx.comm.all_reduce(found, op="min", purpose="benchmark"))
    return FeatureCache(left) if left >= data.features.local.row_bytes else None
