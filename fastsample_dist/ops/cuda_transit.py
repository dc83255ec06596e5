"""transit_sample on CUDA: samples of built-in individual applications by kernels that go sample by sample.

Samples of one width are written column by column, so that threads side by side write side by side; what is returned is
the transposed view. Samples that differ in length are written row by row, walks into room for the length drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest, app_arguments
from fastsample_dist.ops.transit_tables import TransitTables

SERVED = frozenset({
    NextKind.UNIFORM, NextKind.WEIGHTED, NextKind.NODE2VEC, NextKind.PPR, NextKind.MULTI_RW, NextKind.ALL,
})  # fmt: skip
SAMPLE_BITS = 40  # of a failure's word, below the step
_NO_FAILURE = -1

cuda.DECLARED.values(FS_CUDA_SAMPLE_BITS=SAMPLE_BITS)


@cuda.DECLARED.mirror("FsCudaSamples")
class SampleArrays(Structure):
    """FsCudaSamples."""

    _fields_ = (
        ("vertices", c_void_p),
        ("offsets", c_void_p),
        ("lengths", c_void_p),
        ("state", c_void_p),
        ("keys", c_void_p),
        ("failure", c_void_p),
        ("workspace", c_void_p),
        ("num_steps", c_int64),
    )


cuda.DECLARED.functions(
    fs_cuda_transit_lengths=(
        POINTER(library.Graph), POINTER(layouts.AppArguments), POINTER(layouts.RequestArguments), c_void_p, c_void_p,
    ),
    fs_cuda_transit_workspace=(
        POINTER(layouts.AppArguments), POINTER(layouts.RequestArguments), c_int64, c_int64, POINTER(c_int64), c_void_p,
    ),
    fs_cuda_transit_sample=(
        POINTER(library.Graph), POINTER(layouts.TableArguments), POINTER(layouts.AppArguments),
        POINTER(layouts.RequestArguments), POINTER(SampleArrays), c_void_p,
    ),
)  # fmt: skip


class DeviceTables:
    """A graph and an application's tables where a device reads them.

    Args:
      tables: made in host memory.
      indptr, indices: the graph of the tables.
      put: gives a tensor in its place: device memory, or pinned host memory.
      device: whose kernels read them.
    """

    def __init__(
        self,
        tables: TransitTables,
        indptr: Tensor,
        indices: Tensor,
        put: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        hashed = tables.hashed
        found = (indptr, indices, tables.slots, *((None, None) if hashed is None else (hashed.nodes, hashed.buckets)))
        self._kept = [None if tensor is None else put(tensor) for tensor in found]
        indptr, indices, slots, nodes, buckets = self._kept
        self.device, self.num_rows = device, tables.num_rows
        self.graph = library.Graph(
            indptr.data_ptr(), indices.data_ptr(), None, None, None, tables.num_rows, 0, indices.numel(),
            library.type_code(indices),
        )  # fmt: skip
        self.arguments = layouts.TableArguments(
            library.address(slots), None, None, library.address(nodes), library.address(buckets), None
        )


def cuda_transit_sample(
    tables: DeviceTables, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest
) -> SampledSteps:
    """As `transit_sample`, on a device; waits for the kernels once, or twice where lengths are drawn.

    Args:
      tables: the graph, and the tables that the application reads.
      app: of a kind in SERVED; of PPR one root, and the address in params is the device's.
      roots: int64 [num_samples, app.num_roots], in host or device memory; nodes, or -1: none.
      sample_ids: int64 [num_samples], 0 or more.
      request: key and schedule, "auto" being "sample"; threads and blocks are not read.
    Returns:
      SampledSteps on the device.
    Raises:
      AppFailedError: the graph holds an id that is no node; the first met by (step, position in the call).
      ValueError: what no kernel makes.
      MemoryError: the samples do not fit.
    """
    roots = checks.matrix("roots", roots.to(tables.device), (torch.int64,))
    sample_ids = checks.vector("sample_ids", sample_ids.to(tables.device), (torch.int64,), roots.shape[0])
    arguments, _arrays = app_arguments(app)
    asked = layouts.RequestArguments(
        roots.data_ptr(), sample_ids.data_ptr(), roots.shape[0], 0, request.rng_seed, request.step, 1,
        layouts.Schedule[request.schedule.upper()],
    )  # fmt: skip
    words = {"dtype": torch.int64, "device": tables.device}
    lengths, offsets, num_steps = None, None, len(app.sample_sizes)
    if app.until_done or app.next_kind == NextKind.ALL:
        lengths, offsets = torch.empty(roots.shape[0], **words), torch.zeros(roots.shape[0] + 1, **words)
        cuda.call(
            "fs_cuda_transit_lengths", roots,
            byref(tables.graph), byref(arguments), byref(asked), lengths.data_ptr(),
        )  # fmt: skip
        torch.cumsum(lengths + app.num_roots, 0, out=offsets[1:])
        if app.until_done:
            num_steps = int(lengths.max()) if lengths.numel() else 0
        vertices = torch.empty(int(offsets[-1]), **words)
    else:
        vertices = torch.empty((app.num_roots + sum(_picks(app)), roots.shape[0]), **words)
    chooses, needed = app.next_kind == NextKind.MULTI_RW, c_int64()
    state = torch.empty((app.num_roots + 2, max(1, roots.shape[0])), **words) if chooses else None
    keys = torch.empty((1 + chooses) * num_steps, **words)
    failure = torch.full((1,), _NO_FAILURE, **words)
    sizes = (byref(arguments), byref(asked), tables.num_rows, num_steps, byref(needed))
    cuda.call("fs_cuda_transit_workspace", roots, *sizes)
    workspace = torch.empty(needed.value, dtype=torch.uint8, device=tables.device)
    out = SampleArrays(
        vertices.data_ptr(), library.address(offsets), library.address(lengths), library.address(state),
        keys.data_ptr(), failure.data_ptr(), workspace.data_ptr(), num_steps,
    )  # fmt: skip
    cuda.call(
        "fs_cuda_transit_sample", roots,
        byref(tables.graph), byref(tables.arguments), byref(arguments), byref(asked), byref(out),
    )  # fmt: skip
    _raise_failure(int(failure), vertices, offsets, app, sample_ids, tables.num_rows)
    if offsets is None or lengths is None:
        return SampledSteps(vertices.t(), None, len(app.sample_sizes))
    return _closed_up(vertices, offsets, lengths) if app.until_done else SampledSteps(vertices, offsets, num_steps)


def _picks(app: IndividualApp) -> list[int]:
    """Picks of a sample, by step."""
    return [int(size) * int(count) for size, count in zip(app.sample_sizes, app.num_transits, strict=True)]


def _closed_up(vertices: Tensor, offsets: Tensor, lengths: Tensor) -> SampledSteps:
    """Walks without the room behind those that came to a dead end."""
    ends = torch.zeros_like(offsets)
    torch.cumsum(lengths + 1, 0, out=ends[1:])
    longest = int(lengths.max()) if lengths.numel() else 0
    if int(ends[-1]) < vertices.numel():
        shift = (offsets - ends)[:-1].repeat_interleave(lengths + 1)
        vertices = vertices[torch.arange(shift.numel(), device=shift.device) + shift]
    return SampledSteps(vertices, ends, longest)


def _raise_failure(
    word: int, vertices: Tensor, offsets: Tensor | None, app: IndividualApp, sample_ids: Tensor, num_rows: int
) -> None:
    """Raise what the core raises of an id that is no node."""
    if word == _NO_FAILURE:
        return
    step, sample = word >> SAMPLE_BITS, word & ((1 << SAMPLE_BITS) - 1)
    if offsets is None:
        picks = _picks(app)
        first = app.num_roots + sum(picks[:step])
        found = vertices[first : first + picks[step], sample]
    else:
        found = vertices[int(offsets[sample]) + app.num_roots + step : int(offsets[sample + 1])]
    node = int(found[(found < layouts.NULL_NODE) | (found >= num_rows)][0])
    failure = layouts.Failure(
        sample, int(sample_ids[sample]), step, node, layouts.AppFault.BAD_NODE, layouts.AppFunction.NEXT
    )
    raise layouts.AppFailedError(
        f"next returned node {node} for sample {failure.sample_id} at step {step}; expected 0 to {num_rows - 1} or "
        f"transit.NULL ({layouts.NULL_NODE})",
        failure,
    )
