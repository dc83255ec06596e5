"""HotRows: features in host memory behind a device's copies of the rows that batches want most.

A fetch has three steps, on two sides (GNNLab, sections 5.2 and 6):

    look up   the slot of every node: on the host, by the rank that samples the batch
    gather    on the host the rows that the device does not hold, each where it lies; they cross the bus
    merge     both on the device, and convert the dtype

Slots are numbered by hotness and a device holds the first ones, as many as it has room for. So a slot says of every
device whether it has the row, and a batch that is handed to another rank is looked up once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.streams import to_device
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.tally import FetchTally

NO_SLOT = -1


class HotRows:
    """Rows of any nodes on a device, some of them from its memory.

    Args:
      host: all features, in reach of this process, in host memory.
      rows: [num_held, columns of a row that travels] on the device; row k is that of the node with slot k.
      slots: int32 [num_nodes] in host memory, the slot of every node, whoever holds its row, NO_SLOT: none; None: no
        node has one.
    Attributes:
      host, rows: the same.
    """

    def __init__(self, host: DistFeatures, rows: Tensor, slots: Tensor | None = None) -> None:
        self.host, self.rows, self._slots = host, rows, slots
        self._table = ops.RowTable.packed(rows) if host.local.is_scaled else rows

    def in_front_of(self, host: DistFeatures) -> HotRows:
        """The same rows in front of other features of the same graph, such as those over another communicator."""
        return HotRows(host, self.rows, self._slots)

    @property
    def device(self) -> torch.device:
        """Where rows are returned."""
        return self.rows.device

    @property
    def dtype(self) -> torch.dtype:
        """As DistFeatures'."""
        return self.host.dtype

    def look_up(self, nodes: Tensor) -> Tensor:
        """Slots of nodes, int32 [n] in host memory.

        Args:
          nodes: int32 | int64 [n]; ids of the graph on any device.
        """
        if self._slots is None:
            return torch.full((nodes.numel(),), NO_SLOT, dtype=torch.int32)
        return self._slots.index_select(0, nodes.cpu())

    def without_further(self, nodes: Tensor) -> Tensor:
        """The nodes but those whose rows a device would hold that had room for all slots, and this one does not.

        Fetching the others takes as long as fetching all of them would there, but for reading so many rows on it.

        Args:
          nodes: as in `look_up`.
        """
        slots = self.look_up(nodes)
        return nodes.cpu()[(slots < self.rows.shape[0]) | (slots < 0)]

    def fetch(
        self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True, slots: Tensor | None = None
    ) -> Tensor:
        """Feature rows of nodes. Not collective.

        Args:
          nodes: int32 | int64 [n]; unique ids of the graph on any device.
          dtype: of the result, see DistFeatures.fetch.
          checked: as there; the host checks ids anyway.
          slots: of `look_up`; None: looked up now.
        Returns:
          [n, dim] on `device`, row i is that of nodes[i].
        Raises:
          ValueError, IndexError: an id outside the graph.
        """
        host, nodes = self.host, nodes.cpu()
        places = (self.look_up(nodes) if slots is None else slots).long()
        missing = ((places < 0) | (places >= self.rows.shape[0])).nonzero().squeeze(1)
        located = host.locate(nodes[missing])
        came = host.read_in_reach(located, dtype)
        places[missing] = torch.arange(-1, -1 - missing.numel(), -1)
        host.tally.add(FetchTally.of(located))
        host.tally.cached += nodes.numel() - missing.numel()
        # both sides are in range by construction
        return ops.merge_rows(
            self._table, to_device(came, self.device), to_device(places, self.device), dtype or host.dtype,
            checked=False,
        )  # fmt: skip
