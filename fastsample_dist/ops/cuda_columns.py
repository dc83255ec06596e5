"""The race of applications that rank what leads to their transits, on a GPU: columns of samples' rows, and the first.

A column is known by its key, sample * num_nodes + node. The entries of a step's new rows are listed in the order of the
rows, sorted by key, stably, and merged behind the sums so far; so a sum is made from the left, as the CPU's engine
makes it.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int64, c_uint64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops.cuda_collective import DeviceRows, PickRequest
from fastsample_dist.ops.transit_layouts import NULL_NODE

NO_ENTRY = NEVER = 2**63 - 1  # above every key, and above the bits of every time

cuda.DECLARED.values(FS_CUDA_NO_ENTRY=NO_ENTRY, FS_CUDA_NEVER=NEVER)


@cuda.DECLARED.mirror("FsCudaEntries")
class EntryArrays(Structure):
    """FsCudaEntries."""

    _fields_ = (
        ("nodes", c_void_p),
        ("samples", c_void_p),
        ("offsets", c_void_p),
        ("totals", c_void_p),
        ("own", c_void_p),
        ("out_keys", c_void_p),
        ("out_squares", c_void_p),
        ("bad", c_void_p),
        ("num_rows", c_int64),
        ("num_entries", c_int64),
    )


@cuda.DECLARED.mirror("FsCudaColumns")
class ColumnArrays(Structure):
    """FsCudaColumns."""

    _fields_ = (
        ("keys", c_void_p),
        ("begins", c_void_p),
        ("order", c_void_p),
        ("squares", c_void_p),
        ("sample_ids", c_void_p),
        ("out_sums", c_void_p),
        ("out_times", c_void_p),
        ("out_orig_ids", c_void_p),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("num_columns", c_int64),
        ("step_index", c_int64),
    )


cuda.DECLARED.functions(
    fs_cuda_row_totals=(POINTER(library.Graph), c_void_p, c_void_p, c_void_p),
    fs_cuda_column_entries=(POINTER(library.Graph), POINTER(EntryArrays), c_void_p),
    fs_cuda_rank_columns=(POINTER(library.Graph), POINTER(ColumnArrays), c_void_p),
)


def row_totals(rows: DeviceRows) -> tuple[Tensor, Tensor]:
    """Sums of the rows of A + I, and their entries of the row itself; float64 [num_nodes] each."""
    totals, own = (torch.empty(rows.num_nodes, dtype=torch.float64, device=rows.device) for _ in range(2))
    cuda.call("fs_cuda_row_totals", totals, byref(rows.arguments), totals.data_ptr(), own.data_ptr())
    return totals, own


class Columns:
    """The columns of the rows that samples have added so far.

    Args:
      rows: the graph.
      totals: of row_totals, where its device reads them.
    Attributes:
      keys: int64 [columns], ascending.
      sums: float64 [columns], their weights in the race.
    """

    def __init__(self, rows: DeviceRows, totals: tuple[Tensor, Tensor]) -> None:
        self._rows, self._totals = rows, totals
        self.keys = torch.empty(0, dtype=torch.int64, device=rows.device)
        self.sums = torch.empty(0, dtype=torch.float64, device=rows.device)

    def race(
        self, nodes: Tensor, samples: Tensor, sample_ids: Tensor, wanted: int, request: PickRequest, bad: Tensor
    ) -> Tensor:
        """Add rows, then have all columns race.

        Args:
          nodes, samples: int64 [n], the rows, those of a sample in its order.
          sample_ids: int64 [num_samples].
          wanted: columns of a sample.
          request: whose key it is.
          bad: int64 [1], becomes 0 or more where the graph holds an id that is no node; -1 before.
        Returns:
          int64 [num_samples, wanted]: the nodes that arrive first, in order of (time, original id), NULL_NODE behind
          the last.
        """
        listed, squares = self._entries(nodes, samples, bad)
        listed, order = self._merged(listed)
        squares = torch.cat([self.sums, squares])
        is_first = listed != NO_ENTRY
        is_first[1:] &= listed[1:] != listed[:-1]
        begins = torch.nonzero(is_first).squeeze(1)
        self.keys = listed[begins]
        begins = torch.cat([begins, torch.searchsorted(listed, NO_ENTRY).view(1)])
        self.sums, times = torch.empty_like(self.keys, dtype=torch.float64), torch.empty_like(self.keys)
        orig_ids = torch.empty_like(self.keys)
        arrays = ColumnArrays(
            *map(torch.Tensor.data_ptr, (self.keys, begins, order, squares, sample_ids, self.sums, times, orig_ids)),
            request.rng_seed, request.step, self.keys.numel(), request.step_index,
        )  # fmt: skip
        cuda.call("fs_cuda_rank_columns", times, byref(self._rows.arguments), byref(arrays))
        return self._first(times, orig_ids, len(sample_ids), wanted)

    def _merged(self, listed: Tensor) -> tuple[Tensor, Tensor]:
        """What a stable sort of the columns' keys and those listed behind them gives: keys, and their places before."""
        known, (new, order) = self.keys, torch.sort(listed, stable=True)
        places = torch.arange(known.numel() + new.numel(), device=new.device)
        known_at = places[: known.numel()] + torch.searchsorted(new, known)
        new_at = places[: new.numel()] + torch.searchsorted(known, new, right=True)
        keys, origins = torch.empty_like(places), torch.empty_like(places)
        keys[known_at], keys[new_at] = known, new
        origins[known_at], origins[new_at] = places[: known.numel()], order + known.numel()
        return keys, origins

    def _entries(self, nodes: Tensor, samples: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        """Keys int64 [n] and squares float64 [n] of rows, in their order."""
        offsets = torch.zeros(nodes.numel() + 1, dtype=torch.int64, device=nodes.device)
        torch.cumsum(self._rows.degrees(nodes) + 1, 0, out=offsets[1:])
        keys = torch.empty(int(offsets[-1]), dtype=torch.int64, device=nodes.device)
        squares = torch.empty_like(keys, dtype=torch.float64)
        arrays = EntryArrays(
            *map(torch.Tensor.data_ptr, (nodes, samples, offsets, *self._totals, keys, squares, bad)),
            nodes.numel(), keys.numel(),
        )  # fmt: skip
        cuda.call("fs_cuda_column_entries", keys, byref(self._rows.arguments), byref(arrays))
        return keys, squares

    def _first(self, times: Tensor, orig_ids: Tensor, num_samples: int, wanted: int) -> Tensor:
        """The first of every sample, by the columns' times and original ids."""
        found = torch.full((num_samples, wanted), NULL_NODE, device=times.device)
        if self.keys.numel() == 0:
            return found
        samples = self.keys // self._rows.num_nodes
        nodes = self.keys - samples * self._rows.num_nodes
        order = _sorted_by(times, samples)
        if self._rows.has_orig_ids and bool(_are_equal(times[order], samples[order]).any()):  # hardly ever
            order = _sorted_by(orig_ids, times, samples)
        begins = torch.zeros(num_samples + 1, dtype=torch.int64, device=times.device)
        torch.cumsum(torch.bincount(samples, minlength=num_samples), 0, out=begins[1:])
        places = begins[:-1, None] + torch.arange(wanted, device=times.device)
        winners = order[places.clamp(max=order.numel() - 1)]
        arrives = (places < begins[1:, None]) & (times[winners] != NEVER)
        return torch.where(arrives, nodes[winners], found)

    def weights(self, keys: Tensor) -> Tensor:
        """Weights of columns, float64 [n], 0 where there is none; keys int64 [n]."""
        places = torch.searchsorted(self.keys, keys).clamp(max=self.keys.numel() - 1)
        return torch.where(self.keys[places] == keys, self.sums[places], 0.0)


def _sorted_by(*columns: Tensor) -> Tensor:
    """Places in the order of the last column, where that is equal of the one before it, and so on."""
    order = torch.arange(columns[0].numel(), device=columns[0].device)
    for column in columns:
        order = order[torch.argsort(column[order], stable=True)]
    return order


def _are_equal(times: Tensor, samples: Tensor) -> Tensor:
    """Whether a column arrives together with the next one of its sample; both are in the order of arrival."""
    return (times[1:] == times[:-1]) & (samples[1:] == samples[:-1]) & (times[1:] != NEVER)
