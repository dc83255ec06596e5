"""The order in which a GPU reads rows of host memory: by row, where tables are larger than it reaches without effort.

Rows in any order come at the bus's rate from half a gigabyte. From more, addresses are translated anew for most of
them, and the rate falls to 29 GB/s (2 GB) and 16 (17 GB); sorted it is 51 and 29, for which sorting takes 0.2 ms
(400,000 rows of 512 bytes on an H100). Of 40,000 rows sorting takes about as long as it saves
(benchmarks/gpu-nvidia-h100-second.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

REACH_BYTES = 1 << 29  # of all tables in host memory, from which rows are read in any order
LEAST_ROWS = 1 << 16  # of a call


def by_row(places: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """(places in the order in which they are read, int64 [n] the position of each), or (places, None): as they are.

    Args:
      places: [n] on the GPU that reads, as of `gather_rows` and `merge_rows`.
      tables: that they are of.
    """
    if places.numel() < LEAST_ROWS or host_bytes(tables, places.device) <= REACH_BYTES:
        return places, None
    return places.sort()


def put_back(rows: Tensor, order: Tensor | None) -> Tensor:
    """Rows that were read in an order of `by_row`, in that of the places; where there is one, another tensor."""
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


def host_bytes(tables: Sequence[Tensor], device: torch.device) -> int:
    """Bytes of the tables that the device reads over the bus."""
    return sum(table.nbytes for table in tables if table.device != device)
