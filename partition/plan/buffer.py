"""How much of a graph a streaming method may hold: what is asked for, else its default or what the memory limit leaves.

The buffer is filled while the nodes are assigned, when nothing of the edges is held beside it.
"""

from __future__ import annotations

from fastsample_dist.memory_sizes import format_size
from fastsample_dist.partition.external.budget import BASE_SPREAD_BYTES, MemoryBudget
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.stream import BUFFER_BYTES, LEAST_PART_BYTES, check_buffer


def buffer_within(method: str, asked: int | None, num_parts: int, budget: MemoryBudget) -> int | None:
    """Bytes that a method may fill; None: it reads no buffer.

    Args:
      method: its name.
      asked: bytes; None: BUFFER_BYTES, or less where the limit leaves less.
      num_parts: of the partition.
      budget: of a graph that is sorted on disk.
    Raises:
      ValueError: too small for so many parts, or more than the memory limit leaves.
    """
    if "buffer" not in METHODS[method].reads:
        return None
    if asked is not None:
        check_buffer(asked, num_parts)
    least = LEAST_PART_BYTES * num_parts if asked is None else asked
    if budget.rest < least:
        enough = format_size(budget.limit - budget.rest + least + BASE_SPREAD_BYTES)
        raise ValueError(
            f"the memory limit is {format_size(budget.limit)} but method {method} takes {enough} for "
            f"{budget.num_nodes} nodes in {num_parts} parts with a buffer of {format_size(least)}; pass --memory-limit "
            f"{enough} or more{'' if asked is None else ', or a smaller --buffer'}."
        )
    return min(BUFFER_BYTES, budget.rest) if asked is None else asked
