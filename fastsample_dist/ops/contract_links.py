"""contract_links: the links between clusters, summed in a table of given size."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p

import numpy as np

from fastsample_dist.ops import library
from fastsample_dist.ops.neighbours import Neighbours, _Neighbours, address, array

EMPTY = np.uint64(2**64 - 1)


@library.DECLARED.mirror("FsPairTable")
class _PairTable(Structure):
    """FsPairTable."""

    _fields_ = (
        ("keys", c_void_p),
        ("weights", c_void_p),
        ("num_slots", c_int64),
        ("num_used", c_int64),
        ("left_out", c_int32),
    )


library.DECLARED.prototypes["fs_contract_links"] = (
    POINTER(_Neighbours), c_int64, c_int64, c_int32, c_void_p, POINTER(_PairTable),
)  # fmt: skip


class PairTable:
    """Pairs of labels with the weight of the links between them.

    Attributes:
      num_used: pairs in the table.
      left_out: what the heaviest pair that was left out weighed, because 3/4 of the slots were full; 0: none was.
    """

    def __init__(self, num_slots: int) -> None:
        self._keys = np.full(max(8, num_slots), EMPTY)
        self._weights = np.zeros(len(self._keys), dtype=np.int32)
        self._table = _PairTable(address(self._keys), address(self._weights), len(self._keys), 0, 0)

    @property
    def num_used(self) -> int:
        """See the class."""
        return self._table.num_used

    @property
    def left_out(self) -> int:
        """See the class."""
        return self._table.left_out

    def add(
        self,
        graph: Neighbours,
        labels: np.ndarray,
        turns: tuple[int, int] | None = None,
        *,
        num_threads: int | None = None,
    ) -> None:
        """Add the links between nodes of different labels, each once: `fs_contract_links`.

        Args:
          graph: neighbour lists.
          labels: int32 [num_nodes], >= 0.
          turns: first and end; None: all.
          num_threads: that read rows; the result is the same with any number.
        Raises:
          ValueError: an id, label or offset out of range, a shape or dtype mismatch.
        Source: Manku and Motwani, VLDB 2002 (what is left out). Cost: O(entries). Deterministic: yes.
        """
        array("labels", labels, (np.int32,), graph.num_nodes)
        first, last = turns or (0, graph.num_nodes)
        library.call(
            library.core().fs_contract_links, byref(graph.argument()), first, last, library.num_threads(num_threads),
            address(labels), byref(self._table),
        )  # fmt: skip

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(smaller labels int32 [num_used], larger labels int32, weights int32), in the order of the slots."""
        used = np.flatnonzero(self._keys != EMPTY)
        keys = self._keys[used]
        return (keys >> np.uint64(32)).astype(np.int32), keys.astype(np.uint32).view(np.int32), self._weights[used]
