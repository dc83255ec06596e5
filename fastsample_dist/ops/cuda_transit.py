"""transit_sample on CUDA: samples of built-in individual applications, sample by sample or grouped by transit.

Samples of one width are written column by column, so that threads side by side write side by side; what is returned is
the transposed view. Samples that differ in length are written row by row, walks into room for the length drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.cuda_run import (
    GROUPED,
    NO_FAILURE,
    DeviceRun,
    differ_in_length,
    first_failure,
    offsets_of,
    total_and_longest,
)  # fmt: skip
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest
from fastsample_dist.ops.transit_tables import TransitTables


@cuda.DECLARED.mirror("FsCudaSamples")
class SampleArrays(Structure):
    """FsCudaSamples."""

    _fields_ = (
        ("vertices", c_void_p),
        ("offsets", c_void_p),
        ("lengths", c_void_p),
        ("by_length", c_void_p),
        ("live", c_void_p),
        ("state", c_void_p),
        ("keys", c_void_p),
        ("failure", c_void_p),
        ("workspace", c_void_p),
        ("draw", c_void_p),
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


class SampleRun(DeviceRun):
    """A call of `transit_sample` on a device. It fails by a graph that holds an id which is no node.

    Args:
      tables: the graph, and the tables that the application reads.
      app: of a kind that fs_cuda_transit_sample has; of PPR one root, and the address in params is the device's.
      roots, sample_ids, request: see DeviceRun.
      draw: int64 [2] on the device, rng_seed and step that kernels read in place of the request's; of samples of one
        width.
    Raises:
      ValueError: what no kernel makes.
      MemoryError: the samples do not fit.
    """

    def __init__(
        self,
        tables: DeviceTables,
        app: IndividualApp,
        roots: Tensor,
        sample_ids: Tensor,
        request: TransitRequest,
        draw: Tensor | None = None,
    ) -> None:
        super().__init__(app, roots, sample_ids, request, tables.device)
        self._tables, self._draw, words = tables, draw, self._words
        self._lengths = self._offsets = self._by_length = self._live = None
        self._num_steps = len(app.sample_sizes)
        if differ_in_length(app):
            self._vertices = self._room_for_lengths(request.schedule in GROUPED)
        else:
            self._longest = app.num_roots + sum(app.picks)
            self._vertices = torch.empty((self._longest, roots.shape[0]), **words)
        chooses = app.next_kind == NextKind.MULTI_RW
        self._state = torch.empty((app.num_roots + 2, max(1, roots.shape[0])), **words) if chooses else None
        self._keys = torch.empty((1 + chooses) * self._num_steps, **words)
        needed = c_int64()
        sizes = (byref(app.arguments), byref(self._asked), tables.num_rows, self._num_steps, byref(needed))
        cuda.call("fs_cuda_transit_workspace", self.roots, *sizes)
        self._workspace = torch.empty(needed.value, dtype=torch.uint8, device=tables.device)

    def _room_for_lengths(self, is_grouped: bool) -> Tensor:
        """Draws the samples' lengths, waits for them, and makes room for the vertices."""
        app, roots = self._app, self.roots
        lengths = self._lengths = torch.empty(roots.shape[0], **self._words)
        cuda.call(
            "fs_cuda_transit_lengths", roots,
            byref(self._tables.graph), byref(app.arguments), byref(self._asked), lengths.data_ptr(),
        )  # fmt: skip
        with_roots = lengths + app.num_roots
        self._offsets = offsets_of(with_roots)
        num_vertices, self._longest = total_and_longest(with_roots)
        if app.until_done:
            self._num_steps = max(0, self._longest - app.num_roots)  # after the longest walk nobody is left
            self._by_length = torch.argsort(lengths.int(), descending=True, stable=True)
            if is_grouped:
                self._live = roots.shape[0] - torch.bincount(lengths).cumsum(0).cpu()
        return torch.empty(num_vertices, **self._words)

    def enqueue(self) -> None:
        """See DeviceRun; the kernels of all steps."""
        self._failure.fill_(NO_FAILURE)
        out = SampleArrays(
            *map(library.address, (self._vertices, self._offsets, self._lengths, self._by_length, self._live)),
            *map(library.address, (self._state, self._keys, self._failure, self._workspace, self._draw)),
            self._num_steps,
        )  # fmt: skip
        cuda.call(
            "fs_cuda_transit_sample", self.roots,
            byref(self._tables.graph), byref(self._tables.arguments), byref(self._app.arguments), byref(self._asked),
            byref(out),
        )  # fmt: skip

    def finish(self) -> SampledSteps:
        """See DeviceRun."""
        if not self._app.until_done:
            return self._finished(self._vertices, int(self._failure))
        word, num_picks = torch.cat((self._failure, self._lengths.sum(0, keepdim=True))).tolist()
        return self._closed_up(self._finished(self._vertices, word), num_picks)

    def _copied(self) -> Tensor:
        return self._vertices.clone()

    def _finished(self, vertices: Tensor, word: int) -> SampledSteps:
        """The samples, each in the room that was made for it."""
        _raise_failure(word, vertices, self._offsets, self._app, self.sample_ids, self._tables.num_rows)
        found = vertices.t() if self._offsets is None else vertices
        return SampledSteps(found, self._offsets, self._num_steps, self._longest)

    def _closed_up(self, walks: SampledSteps, num_picks: int) -> SampledSteps:
        """Walks without the room behind those that came to a dead end."""
        lengths, num_vertices = self._lengths, self.roots.shape[0] + num_picks
        if num_vertices == walks.vertices.numel():
            return walks
        ends = offsets_of(lengths + 1)
        shift = (walks.offsets - ends)[:-1].repeat_interleave(lengths + 1, output_size=num_vertices)
        closed = walks.vertices[torch.arange(num_vertices, device=shift.device) + shift]
        longest = int(lengths.max())
        return SampledSteps(closed, ends, longest, longest + 1)


def _raise_failure(
    word: int, vertices: Tensor, offsets: Tensor | None, app: IndividualApp, sample_ids: Tensor, num_rows: int
) -> None:
    """Raise what the core raises of an id that is no node."""
    if word == NO_FAILURE:
        return
    step, sample = first_failure(word)
    if offsets is None:
        first = app.num_roots + sum(app.picks[:step])
        found = vertices[first : first + app.picks[step], sample]
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
