"""Making the rows that GPUs hold of features in host memory: the hottest ones, in one order on all ranks.

Ranks with roles do it on GPUs, and time sharing with transport "shared". Whose GPU has no topology in its memory has
room for more rows: that is what roles win by (GNNLab, sections 3 and 4). Ranks that train hold as many as the cache's
capacity says; a sampler that may switch holds what its topology leaves of that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree
from fastsample_dist.device.placement import Room, measured_room
from fastsample_dist.features.cache import FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.hot_rows import NO_SLOT, HotRows
from fastsample_dist.features.policies import resolve
from fastsample_dist.features.sharers import Sharers
from fastsample_dist.graph import hotness
from fastsample_dist.memory_sizes import format_size
from fastsample_dist.pipeline.caching import SLICE_BYTES, CacheTask, cache_scores, shared_cache

NEVER, IN_FULL, WHAT_FITS = "never", "in full", "what fits"


@dataclass(frozen=True)
class HotUse:
    """What a rank needs of the rows on its device.

    Attributes:
      device: that reads them.
      holds: IN_FULL: all that the capacity says, or it is refused; WHAT_FITS: fewer where its memory lacks the room;
        NEVER: none, the rank does not train.
    """

    device: torch.device
    holds: str = IN_FULL


def make_hot_rows(
    given: FeatureCache | MadeCache | None, task: CacheTask, use: HotUse
) -> tuple[HotRows, MadeCache | None]:
    """(features on the device, the cache as reported). Collective: every rank must call this. Purpose "setup".

    Args:
      given: a description, or the cache of another loader; None, or one that is off or in host memory: no row is on the
        device.
      task: its features are in host memory and read all rows in place.
      use: of this rank.
    Raises:
      ValueError: on all ranks: no room for one row, less memory than the capacity, a cache that looks ahead, a policy
        that does not fit; another loader's that is not on the device.
    """
    host, ctx = task.features, task.data.ctx
    if isinstance(given, MadeCache):
        made = shared_cache(given, task)
        agree(ctx, lambda: _check_front(made, use))
        return made.front, made
    bare = HotRows(host, host.local.no_rows().to(use.device))
    if given is None:
        return bare, None
    description, sharers = given, Sharers(ctx, task.machines)
    nodes = torch.empty(0, dtype=torch.int64)
    made = MadeCache(features=host, description=description, nodes=nodes, sharers=sharers, front=bare)
    if not description.is_on or description.device is not None:
        why = "all rows are in host memory" if description.is_on else "it is off"
        return bare, replace(made, why_empty=why)
    room = measured_room(use.device, ranks_on_host=ctx.local_world_size)
    room = room.at_most(task.data.table_bytes_left(use.device))
    count, held = agree(ctx, lambda: _rows(description, host, use, room))
    begin_s = time.perf_counter()
    scores = sharers.sum(agree(ctx, lambda: cache_scores(description, task)))
    order = hotness.hottest(scores, hotness.original_ids(task.data.graph), count)
    nodes, scored_s = order[:held], time.perf_counter()
    rows = agree(ctx, lambda: _load(host, nodes, use.device))
    front = HotRows(host, rows, _slots(order, host.book.num_nodes))
    made = replace(
        made, front=front, nodes=nodes.sort().values, policy=resolve(description.policy, task.workload.spec),
        num_bytes=front.rows.nbytes, score_s=scored_s - begin_s, load_s=time.perf_counter() - scored_s,
    )  # fmt: skip
    return front, made


def _check_front(made: MadeCache, use: HotUse) -> None:
    if made.front is None or made.front.device != use.device:
        raise ValueError(
            f"the cache given is not on {use.device}, where rows are read; pass a FeatureCache, or the cache of a "
            "loader that reads them there."
        )


def _rows(description: FeatureCache, host: DistFeatures, use: HotUse, room: Room) -> tuple[int, int]:
    """(rows of the capacity, those that this rank holds).

    Raises:
      ValueError: there is not one; less device memory than the capacity.
    """
    row_bytes = host.local.row_bytes
    if description.lookahead:
        raise ValueError(f"the cache's lookahead is {description.lookahead} on {use.device}; expected 0 on a GPU.")
    count = min(description.capacity_bytes // row_bytes, host.book.num_nodes)
    if count < 1:
        raise ValueError(
            f"the cache's capacity_bytes is {description.capacity_bytes} but one row takes {row_bytes}; choose at "
            "least that."
        )
    if use.holds == NEVER:
        return count, 0
    if room.device.type != "cuda":
        return count, count
    if use.holds == WHAT_FITS:
        return count, min(count, max(0, room.device_bytes - room.reserve_bytes) // row_bytes)
    if count * row_bytes > room.device_bytes:
        raise ValueError(
            f"the cache's rows take {format_size(count * row_bytes)} but {format_size(room.device_bytes)} are free on "
            f"{use.device}; choose a smaller capacity."
        )
    return count, count


def _load(host: DistFeatures, nodes: Tensor, device: torch.device) -> Tensor:
    """Rows of nodes, as they travel, on the device: each slice is copied to where it stays, so that no memory of the
    device is needed besides.

    Raises:
      ValueError: the device does not have enough memory.
    """
    none = host.local.no_rows()
    size = nodes.numel() * host.local.row_bytes
    try:
        rows = torch.empty((nodes.numel(), none.shape[1]), dtype=none.dtype, device=device)
    except torch.cuda.OutOfMemoryError as error:  # something else has taken it since it was measured
        raise ValueError(
            f"the cache's rows take {format_size(size)}, which are not free on {device} in one piece; choose a smaller "
            "capacity, or end what else uses the memory."
        ) from error
    at_once = max(1, SLICE_BYTES // max(1, host.local.row_bytes))
    for begin in range(0, nodes.numel(), at_once):
        some = nodes[begin : begin + at_once]
        rows[begin : begin + some.numel()].copy_(host.read_in_reach(host.locate(some), None))
    return rows


def _slots(order: Tensor, num_nodes: int) -> Tensor:
    slots = torch.full((num_nodes,), NO_SLOT, dtype=torch.int32)
    slots[order] = torch.arange(order.numel(), dtype=torch.int32)
    return slots
