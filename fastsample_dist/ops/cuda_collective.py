"""What collective applications ask of a GPU's kernels: members of samples, picks, and edges among members.

Members are numbered by their slots in one table of all samples of a call. An array over slots has an entry more, for
what is no node: slot `num_slots`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library
from fastsample_dist.ops import transit_layouts as layouts

OPEN_SLOT = -2  # of a pick to make

cuda.DECLARED.values(FS_CUDA_OPEN_SLOT=OPEN_SLOT)


@cuda.DECLARED.mirror("FsCudaMembers")
class MemberArrays(Structure):
    """FsCudaMembers."""

    _fields_ = (("keys", c_void_p), ("slots", c_int64), ("num_nodes", c_int64))


@cuda.DECLARED.mirror("FsCudaPicks")
class PickArrays(Structure):
    """FsCudaPicks."""

    _fields_ = (
        ("sample_ids", c_void_p),
        ("begins", c_void_p),
        ("transits", c_void_p),
        ("ends", c_void_p),
        ("filled", c_void_p),
        ("out", c_void_p),
        ("bad", c_void_p),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("num_samples", c_int64),
        ("sample_size", c_int64),
        ("step_index", c_int64),
        ("attempt", c_int64),
    )


@cuda.DECLARED.mirror("FsCudaRecordedRows")
class RowArrays(Structure):
    """FsCudaRecordedRows."""

    _fields_ = (
        ("nodes", c_void_p),
        ("samples", c_void_p),
        ("sources", c_void_p),
        ("counts", c_void_p),
        ("offsets", c_void_p),
        ("out_slots", c_void_p),
        ("out_edge_ids", c_void_p),
        ("out_weights", c_void_p),
        ("row_scale", c_void_p),
        ("column_scale", c_void_p),
        ("columns", c_void_p),
        ("num_rows", c_int64),
        ("num_picks", c_int64),
        ("self_edges", c_int32),
    )


cuda.DECLARED.functions(
    fs_cuda_enter_members=(POINTER(MemberArrays), c_void_p, c_int64, c_int64, c_void_p, c_void_p),
    fs_cuda_row_degrees=(POINTER(library.Graph), c_void_p, c_int64, c_void_p, c_void_p),
    fs_cuda_collective_picks=(
        POINTER(library.Graph), POINTER(layouts.AppArguments), POINTER(PickArrays), c_void_p,
    ),
    fs_cuda_record_rows=(POINTER(library.Graph), POINTER(MemberArrays), POINTER(RowArrays), c_void_p),
)  # fmt: skip


class DeviceRows:
    """A graph's arrays where a device reads them.

    Args:
      indptr, indices: the graph.
      orig_ids: int64 [num_nodes], or None: node i is original node i.
      weights: float32 | float64 [num_edges], or None: every edge counts as 1.
      device: whose kernels read them.
    """

    def __init__(
        self, indptr: Tensor, indices: Tensor, orig_ids: Tensor | None, weights: Tensor | None, device: torch.device
    ) -> None:
        self.device, self.num_nodes, self.dtype, view = device, indptr.numel() - 1, indices.dtype, None
        self.has_orig_ids = orig_ids is not None
        if weights is not None:
            view = ctypes.pointer(library.WeightTables(weights.data_ptr(), None, None, library.type_code(weights)))
        self.arguments = library.Graph(
            indptr.data_ptr(), indices.data_ptr(), library.address(orig_ids), None, view, self.num_nodes, 0,
            indices.numel(), library.type_code(indices),
        )  # fmt: skip
        self._kept = (indptr, indices, orig_ids, weights, view)

    def degrees(self, rows: Tensor) -> Tensor:
        """Neighbours of rows int64 [n], which exist; int64 [n]."""
        found = torch.empty_like(rows)
        cuda.call(
            "fs_cuda_row_degrees", rows, byref(self.arguments), rows.data_ptr(), rows.numel(), found.data_ptr()
        )  # fmt: skip
        return found


class Members:
    """The slots of what samples hold.

    Args:
      rows: the graph.
      count: members that will come, at most.
    """

    def __init__(self, rows: DeviceRows, count: int) -> None:
        self.num_slots = 2 << max(1, count).bit_length()
        self.num_nodes = rows.num_nodes
        self._keys = torch.full((self.num_slots,), -1, dtype=torch.int64, device=rows.device)
        self.arguments = MemberArrays(self._keys.data_ptr(), self.num_slots, self.num_nodes)

    def enter(self, nodes: Tensor) -> Tensor:
        """Slots of nodes int64 [samples, width], sample by sample; int64 [samples * width]."""
        nodes = checks.matrix("nodes", nodes, (torch.int64,))
        slots = torch.empty(nodes.numel(), dtype=torch.int64, device=nodes.device)
        cuda.call(
            "fs_cuda_enter_members", slots,
            byref(self.arguments), nodes.data_ptr(), nodes.numel(), max(1, nodes.shape[1]), slots.data_ptr(),
        )  # fmt: skip
        return slots

    def per_slot(self, value: int) -> Tensor:
        """An array over slots, int64 [num_slots + 1]."""
        return torch.full((self.num_slots + 1,), value, dtype=torch.int64, device=self._keys.device)

    def keys(self, slots: Tensor) -> Tensor:
        """sample * num_nodes + node of members, int64."""
        return self._keys[slots]

    def nodes(self, slots: Tensor, samples: Tensor) -> Tensor:
        """The nodes of members, int64."""
        return self._keys[slots] - samples * self.num_nodes


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The combined neighbourhoods of all samples' distinct transits.

    Attributes:
      begins: int64 [num_samples + 1], where a sample's transits begin.
      transits, ends: int64 [n] and [n + 1], prefix sums of their degrees; None: picks are not made from them.
    """

    begins: Tensor
    transits: Tensor | None = None
    ends: Tensor | None = None


@dataclass(frozen=True)
class PickRequest:
    """Which picks are made: rng_seed, step and step_index (k) are their key, attempt the round of distinct ones."""

    rng_seed: int
    step: int
    step_index: int
    attempt: int = 0


def fill_slots(
    rows: DeviceRows,
    app: layouts.AppArguments,
    sample_ids: Tensor,
    found: Neighbourhoods,
    filled: Tensor,
    request: PickRequest,
    out: Tensor,
    bad: Tensor,
) -> None:
    """Make the picks of `out` that are open.

    Args:
      app: of NextKind.LAYER or GLOBAL; arrays in its params are the device's.
      sample_ids: int64 [num_samples].
      filled: int64 [num_samples], vertices before the step.
      out: int64 [num_samples, sample_size], OPEN_SLOT where a pick is to be made.
      bad: int64 [1], becomes 0 or more where the graph holds an id that is no node; -1 before.
    """
    addresses = (sample_ids, found.begins, found.transits, found.ends, filled, out, bad)
    arrays = PickArrays(
        *map(library.address, addresses), request.rng_seed, request.step, *out.shape, request.step_index,
        request.attempt,
    )  # fmt: skip
    cuda.call("fs_cuda_collective_picks", out, byref(rows.arguments), byref(app), byref(arrays))


@dataclass(frozen=True, eq=False)
class MemberEdges:
    """Edges among members, row after row.

    Attributes:
      offsets: int64 [rows + 1].
      slots: int64 [num_edges], of the sources.
      edge_ids: int64 [num_edges], positions in the graph's indices, -1 of a self edge.
      weights: float64 [num_edges], or None.
    """

    offsets: Tensor
    slots: Tensor
    edge_ids: Tensor
    weights: Tensor | None


def record_rows(
    rows: DeviceRows,
    members: Members,
    nodes: Tensor,
    samples: Tensor,
    sources: Tensor,
    *,
    self_edges: bool,
    num_picks: int,
    scales: tuple[Tensor, Tensor] | None,
    columns: Tensor | None = None,
) -> MemberEdges:
    """Edges from sources into nodes of the same sample, in the order of the rows; waits for the kernel that counts.

    Args:
      nodes, samples: int64 [n], the rows and whose they are.
      sources: int64 over slots, how often picked; -1: no source.
      self_edges: begin the row of a source with an edge from itself.
      num_picks: of the step.
      scales: float64 [num_nodes] of rows and of columns, for weights by them.
      columns: float64 over slots, of the sources' columns, for weights by them; edges have no weights without either.
    """
    words = {"dtype": torch.int64, "device": nodes.device}
    offsets, counts = torch.zeros(nodes.numel() + 1, **words), torch.empty(nodes.numel(), **words)
    row_scale, column_scale = scales or (None, None)
    arrays = RowArrays(
        nodes=nodes.data_ptr(), samples=samples.data_ptr(), sources=sources.data_ptr(), counts=counts.data_ptr(),
        row_scale=library.address(row_scale), column_scale=library.address(column_scale),
        columns=library.address(columns), num_rows=nodes.numel(), num_picks=num_picks, self_edges=self_edges,
    )  # fmt: skip
    asked = (byref(rows.arguments), byref(members.arguments), byref(arrays))
    cuda.call("fs_cuda_record_rows", nodes, *asked)
    torch.cumsum(counts, 0, out=offsets[1:])
    total = int(offsets[-1])
    found = MemberEdges(
        offsets, torch.empty(total, **words), torch.empty(total, **words),
        None if scales is columns is None else torch.empty(total, dtype=torch.float64, device=nodes.device),
    )  # fmt: skip
    arrays.offsets, arrays.out_slots, arrays.out_edge_ids = map(
        torch.Tensor.data_ptr, (offsets, found.slots, found.edge_ids)
    )
    arrays.out_weights = library.address(found.weights)
    cuda.call("fs_cuda_record_rows", nodes, *asked)
    return found


def first_places(places: Tensor, size: int) -> Tensor:
    """For every number in 0 .. size - 1 the first place at which it stands in places int64 [n], n where nowhere."""
    order = torch.arange(places.numel(), device=places.device)
    return torch.full((size,), places.numel(), device=places.device).scatter_reduce_(0, places, order, "amin")
