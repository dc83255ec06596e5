"""locate_rows: where each node's row can be read, and the missing ones grouped by owner, in one pass over the ids.

A row is looked for in this order: the rank's own tables, tables of its neighbours, cached rows; what is in none of them
is missing and must be asked for. The places are those of `merge_rows`.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.gather_rows import place_in
from fastsample_dist.ops.library import Refusal

_NO_SLOTS, _DENSE, _HASHED32, _HASHED64 = range(4)  # FsSlotKind
_DENSE_SHARE = 4  # a slot per node takes as much memory as pairs do where every fourth node is cached
_EXTRA_COUNTS = 3  # own, near, cached
library.DECLARED.values(
    FS_SLOTS_NONE=_NO_SLOTS, FS_SLOTS_DENSE=_DENSE, FS_SLOTS_HASHED32=_HASHED32, FS_SLOTS_HASHED64=_HASHED64
)


@library.DECLARED.mirror("FsRowIndex")
class _RowIndex(Structure):
    """FsRowIndex."""

    _fields_ = (
        ("ranges", c_void_p),
        ("owners", c_void_p),
        ("tables", c_void_p),
        ("first_rows", c_void_p),
        ("slots", c_void_p),
        ("num_slots", c_int64),
        ("num_ranges", c_int32),
        ("num_owners", c_int32),
        ("num_own_tables", c_int32),
        ("cache_table", c_int32),
        ("slot_kind", c_int32),
    )


library.DECLARED.functions(
    fs_locate_rows=(POINTER(_RowIndex), c_int32, c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_void_p),
    fs_hash_slots=(c_void_p, c_int64, c_int32, c_int64, c_void_p),
)


@dataclass(frozen=True, eq=False)
class CachedSlots:
    """Which slot of a cache holds a node's row. Made by `CachedSlots.of`.

    Attributes:
      table: int32 [num_nodes], the slot of every node or -1; or pairs of node and slot, int32 | int64 [power of two, 2]
        (csrc/core/row_index.h).
      num_cached: nodes that have a slot.
    """

    table: Tensor
    num_cached: int

    @classmethod
    def of(cls, nodes: Tensor, num_nodes: int, device: torch.device | None = None) -> CachedSlots:
        """Slot i holds nodes[i]: a slot per node where more than a quarter of the nodes is cached, else hashed pairs.

        Args:
          nodes: integers [n], each once.
          num_nodes: of the graph.
          device: that looks up, by default the CPU; a GPU always has a slot per node.
        Raises:
          ValueError: a node twice, or outside 0 .. num_nodes - 1.
        """
        nodes = nodes.to(torch.int64).cpu().contiguous()
        count = nodes.numel()
        if count:
            low, high = (int(bound) for bound in torch.aminmax(nodes))
            checks.require(
                low >= 0 and high < num_nodes, f"cached nodes run from {low} to {high}; expected 0 to {num_nodes - 1}."
            )
        checks.require(nodes.unique().numel() == count, "the cached nodes repeat; expected each of them once.")
        on_cpu = device is None or device.type == "cpu"
        if _is_dense(count, num_nodes, device):
            dense = torch.full((num_nodes,), -1, dtype=torch.int32)
            dense[nodes] = torch.arange(count, dtype=torch.int32)
            return cls(dense if on_cpu else dense.to(device), count)
        num_slots = _num_pairs(count)
        pairs = torch.empty((num_slots, 2), dtype=_pair_dtype(num_nodes))
        library.call(
            library.core().fs_hash_slots,
            nodes.data_ptr(), count, library.type_code(pairs), num_slots, pairs.data_ptr(),
        )  # fmt: skip
        return cls(pairs, count)

    @classmethod
    def over(cls, memory: Tensor, num_cached: int, num_nodes: int) -> CachedSlots:
        """Slots for the CPU that are in memory already: uint8 [`slots_bytes`(num_cached, num_nodes)]."""
        if _is_dense(num_cached, num_nodes, None):
            return cls(memory.view(torch.int32), num_cached)
        return cls(memory.view(_pair_dtype(num_nodes)).view(-1, 2), num_cached)

    @property
    def nbytes(self) -> int:
        """Memory of the slots."""
        return self.table.nbytes


def slots_bytes(count: int, num_nodes: int, device: torch.device | None = None) -> int:
    """Memory of the slots of so many cached nodes; the arguments are those of `CachedSlots.of`."""
    if _is_dense(count, num_nodes, device):
        return num_nodes * torch.int32.itemsize
    return 2 * _num_pairs(count) * _pair_dtype(num_nodes).itemsize


def _is_dense(count: int, num_nodes: int, device: torch.device | None) -> bool:
    return (device is not None and device.type != "cpu") or count * _DENSE_SHARE > num_nodes


def _num_pairs(count: int) -> int:
    return 2 << max(count - 1, 0).bit_length()  # at most half of them are taken


def _pair_dtype(num_nodes: int) -> torch.dtype:
    return torch.int32 if num_nodes <= 1 << 31 else torch.int64


@dataclass(frozen=True, eq=False)
class RowIndex:
    """Where the rows of all nodes can be read. Nodes part_ranges[k] .. part_ranges[k + 1] - 1 are range k.

    Attributes:
      part_ranges: int64 [num_ranges + 1]; of the ranks, or finer.
      tables: int32 [num_ranges]; the table of `merge_rows` that holds a range's rows; -1: none in reach.
      first_rows: int64 [num_ranges]; row of the range's first node in its table.
      slots: of the cached rows; None without.
      cache_table: number of the table of cached rows.
      owners: int32 [num_ranges], non-decreasing; rank that owns the nodes. None: range k is rank k's.
      num_own_tables: tables 0 .. num_own_tables - 1 are the rank's own, the others are its neighbours'.
      num_owners: ranks; None: as many as ranges.
    """

    part_ranges: Tensor
    tables: Tensor
    first_rows: Tensor
    slots: CachedSlots | None = None
    cache_table: int = 0
    owners: Tensor | None = None
    num_own_tables: int = 1
    num_owners: int | None = None

    @cached_property
    def arguments(self) -> tuple[list[Tensor], Tensor | None, list[int]]:
        """As the operator takes them: ranges, owners, tables and first rows; slots; what FsRowIndex has in numbers."""
        num_ranges = self.tables.numel()
        device = self.part_ranges.device
        owners = torch.arange(num_ranges, dtype=torch.int32, device=device) if self.owners is None else self.owners
        ranges = [
            checks.vector("part_ranges", self.part_ranges, (torch.int64,), num_ranges + 1),
            checks.vector("owners", owners, (torch.int32,), num_ranges),
            checks.vector("tables", self.tables, (torch.int32,)),
            checks.vector("first_rows", self.first_rows, (torch.int64,), num_ranges),
        ]
        num_owners = num_ranges if self.num_owners is None else self.num_owners
        slots = None if self.slots is None else self.slots.table
        return ranges, slots, [num_owners, self.num_own_tables, self.cache_table]

    def on(self, device: torch.device) -> RowIndex:
        """The same index where kernels of `device` read it."""
        slots = None if self.slots is None else CachedSlots(self.slots.table.to(device), self.slots.num_cached)
        owners = None if self.owners is None else self.owners.to(device)
        return RowIndex(
            self.part_ranges.to(device), self.tables.to(device), self.first_rows.to(device), slots, self.cache_table,
            owners, self.num_own_tables, self.num_owners,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Located:
    """Where the rows of some nodes are.

    Attributes:
      places: int64 [n], for `merge_rows`; that of missing[k] is -1 - k.
      missing: [m] of the nodes' dtype: those that no table holds, grouped by owner, in their order in a group.
      counts: missing nodes of every rank; the rank's own entry is 0.
      num_own, num_near, num_cached: nodes whose rows are in the rank's own tables, in its neighbours', in the cache.
    """

    places: Tensor
    missing: Tensor
    counts: list[int]
    num_own: int
    num_near: int
    num_cached: int


def locate_rows(nodes: Tensor, index: RowIndex) -> Located:
    """Where the rows of nodes are read: own, neighbour, cache, or missing.

    Args:
      nodes: int32 | int64 [n]; node ids, on the device of the index.
      index: of all nodes.
    Returns:
      Located. On a GPU one read-back has the counts and bad ids.
    Raises:
      ValueError: a node outside the ranges.
    Cost: O(n log num_ranges). Deterministic: yes.
    """
    places, missing, counts = torch.ops.fastsample.locate_rows(nodes, *index.arguments)
    *by_owner, num_own, num_near, num_cached = counts.tolist()
    return Located(places, missing, by_owner, num_own, num_near, num_cached)


def _slot_kind(slots: Tensor | None) -> int:
    if slots is None:
        return _NO_SLOTS
    if slots.dim() == 1:
        return _DENSE
    return _HASHED32 if slots.dtype == torch.int32 else _HASHED64


def _locate_rows_cpu(
    nodes: Tensor, ranges: list[Tensor], slots: Tensor | None, numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    nodes = checks.vector("nodes", nodes, checks.ID_DTYPES)
    part_ranges, owners, tables, first_rows = ranges
    num_owners, num_own_tables, cache_table = numbers
    index = _RowIndex(
        part_ranges.data_ptr(), owners.data_ptr(), tables.data_ptr(), first_rows.data_ptr(), library.address(slots),
        0 if slots is None else slots.shape[0], tables.numel(), num_owners, num_own_tables, cache_table,
        _slot_kind(slots),
    )  # fmt: skip
    places, missing = torch.empty(nodes.numel(), dtype=torch.int64), torch.empty_like(nodes)
    counts = torch.empty(num_owners + _EXTRA_COUNTS, dtype=torch.int64)
    library.call(
        library.core().fs_locate_rows,
        byref(index), library.type_code(nodes), nodes.data_ptr(), nodes.numel(), library.num_threads(),
        places.data_ptr(), missing.data_ptr(), counts.data_ptr(),
    )  # fmt: skip
    return places, missing[: int(counts[:num_owners].sum())].clone(), counts


def _locate_rows_cuda(
    nodes: Tensor, ranges: list[Tensor], slots: Tensor | None, numbers: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Composed of torch's operations; the counts are in host memory."""
    nodes = checks.vector("nodes", nodes, checks.ID_DTYPES)
    part_ranges, owners, tables, first_rows = ranges
    num_owners, num_own_tables, cache_table = numbers
    ids = nodes.long()
    is_bad = (ids < part_ranges[0]) | (ids >= part_ranges[-1])
    # the last range that begins at or before the id: empty ones are skipped
    part = (torch.searchsorted(part_ranges, ids, right=True) - 1).clamp(0, tables.numel() - 1)
    table = tables[part].long()
    places = place_in(table, first_rows[part] + ids - part_ranges[part])
    kinds = torch.where(table < num_own_tables, num_owners, num_owners + 1)
    kinds = torch.where(table < 0, owners[part].long(), kinds)
    if slots is not None:
        slot = slots[ids.clamp(0, slots.numel() - 1)].long()
        is_cached = (table < 0) & (slot >= 0)
        kinds = torch.where(is_cached, num_owners + 2, kinds)
        places = torch.where(is_cached, place_in(cache_table, slot), places)
    kinds = torch.where(is_bad, num_owners + _EXTRA_COUNTS, kinds)
    order = torch.sort(kinds, stable=True).indices
    *found, num_bad = torch.bincount(kinds, minlength=num_owners + _EXTRA_COUNTS + 1).tolist()
    if num_bad:
        bad = int(order[-num_bad])
        library.refuse(
            Refusal.OWNER, "locate_rows", int(nodes[bad]), bad, int(part_ranges[0]), int(part_ranges[-1]) - 1
        )
    missing = order[: sum(found[:num_owners])]
    places[missing] = torch.arange(-1, -1 - missing.numel(), -1, device=places.device)
    return places, nodes[missing], torch.tensor(found)


SCHEMAS = {
    "locate_rows": (
        "(Tensor nodes, Tensor[] ranges, Tensor? slots, int[] numbers) -> (Tensor, Tensor, Tensor)",
        _locate_rows_cpu,
    )
}
CUDA_KERNELS = {"locate_rows": _locate_rows_cuda}
