"""collective_sample: samples of a collective application, and the edges that they record, by the compiled core.

The application comes as numbers and addresses (`CollectiveApp`); sampling/transit says what they mean. What the core
returns is its own memory: tensors are views of it, and the last of them to go gives it back.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_void_p
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.alias_tables import WEIGHT_DTYPES
from fastsample_dist.ops.owned_memory import OwnedMemory
from fastsample_dist.ops.transit_tables import TransitTables


class Record(enum.IntEnum):
    """FsRecord: which edges of the graph a sample records."""

    NONE = 0
    TO_NEW = 1
    TO_UNION = 2
    WITHIN = 3


class EdgeScale(enum.IntEnum):
    """FsEdgeScale: what becomes a recorded edge's weight."""

    UNWEIGHTED = 0
    BY_COLUMN = 1
    SCALED = 2
    COLUMNS = 3


library.DECLARED.values(
    **{f"FS_RECORD_{record.name}": record.value for record in Record},
    **{f"FS_EDGES_{scale.name}": scale.value for scale in EdgeScale},
)


@library.DECLARED.mirror("FsCollectiveSpec")
class SpecArguments(Structure):
    """FsCollectiveSpec."""

    _fields_ = (
        ("row_scale", c_void_p),
        ("column_scale", c_void_p),
        ("record", c_int32),
        ("self_edges", c_int32),
        ("edge_scale", c_int32),
        ("ranked", c_int32),
    )


@library.DECLARED.mirror("FsRecordedHop")
class HopMemory(Structure):
    """FsRecordedHop. Read as words of 8 bytes."""

    _fields_ = (("num_dst", c_int64), ("num_src", c_int64), ("num_edges", c_int64))


@library.DECLARED.mirror("FsRecordedEdges")
class RecordedMemory(Structure):
    """FsRecordedEdges. Read as words of 8 bytes, all fields at once."""

    _fields_ = (
        ("num_hops", c_int64),
        ("num_nodes", c_int64),
        ("num_edges", c_int64),
        ("num_weights", c_int64),
        ("hops", c_void_p),
        ("nodes", c_void_p),
        ("indices", c_void_p),
        ("offsets", c_void_p),
        ("edge_ids", c_void_p),
        ("edge_weights", c_void_p),
    )


_EDGES_BYTES = ctypes.sizeof(RecordedMemory)
_EdgesWords = c_int64 * len(RecordedMemory._fields_)
_AnyWords = c_int64 * 2**37
assert ctypes.sizeof(_EdgesWords) == _EDGES_BYTES


@library.DECLARED.mirror("FsCollectiveResult")
class ResultMemory(Structure):
    """FsCollectiveResult."""

    _fields_ = (("samples", layouts.ResultMemory), ("edges", POINTER(RecordedMemory)))


_Result = POINTER(ResultMemory)

library.DECLARED.functions(
    fs_collective_sample=(
        POINTER(library.Graph), POINTER(layouts.TableArguments), POINTER(layouts.AppArguments), POINTER(SpecArguments),
        POINTER(layouts.RequestArguments), POINTER(layouts.Failure), POINTER(_Result),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CollectiveApp:
    """A collective application as the core takes it.

    Attributes:
      sample_sizes: picks of a sample per step.
      num_transits: transits of a sample per step.
      unique: per step, whether picks are to be distinct.
      num_roots, state_words, max_attempts: see FsTransitApp.
      params: int64 words.
      next_kind: who makes the picks.
      next, step_transits, initial: addresses of compiled functions; 0: none.
      until_done: a sample ends when it has no transit left; then there are at most len(sample_sizes) steps.
      record, self_edges, edge_scale, ranked: see FsCollectiveSpec.
      scales: float64 [num_nodes] each, of rows and columns, for EdgeScale.SCALED.
      kept: what params and addresses lead to, kept alive.
    """

    sample_sizes: Sequence[int]
    num_transits: Sequence[int]
    unique: Sequence[bool]
    num_roots: int
    params: np.ndarray
    next_kind: layouts.NextKind
    max_attempts: int
    state_words: int = 0
    next: int = 0
    step_transits: int = 0
    initial: int = 0
    until_done: bool = False
    record: Record = Record.NONE
    self_edges: bool = False
    edge_scale: EdgeScale = EdgeScale.UNWEIGHTED
    ranked: bool = False
    scales: tuple[np.ndarray, np.ndarray] | None = None
    kept: tuple = ()


@dataclass(frozen=True, eq=False)
class RecordedHops:
    """Edges of one sample, hop 0 at its roots.

    Attributes:
      num_dst, num_edges: per hop.
      src_nodes: per hop, [num_src] of the graph's id dtype; the first num_dst are the destinations.
      indptrs: per hop, int64 [num_dst + 1].
      indices: per hop, [num_edges] of the graph's id dtype; local source ids.
      edge_weights: per hop, [num_edges]: float32, the columns' weights of EdgeScale.COLUMNS float64; None where edges
        are unweighted.
      memory, edge_id_array: the core's memory, and where in it the edges' positions begin.
    """

    num_dst: Sequence[int]
    num_edges: Sequence[int]
    src_nodes: Sequence[Tensor]
    indptrs: Sequence[Tensor]
    indices: Sequence[Tensor]
    edge_weights: Sequence[Tensor] | None
    memory: OwnedMemory
    edge_id_array: int

    @cached_property
    def edge_ids(self) -> Sequence[Tensor]:
        """Per hop, int64 [num_edges]; positions in the graph's indices, -1 for a self edge that was added. Many
        applications make nothing of them.
        """
        positions = self.memory.tensor(self.edge_id_array, sum(self.num_edges), torch.int64)
        return positions.split_with_sizes(self.num_edges)


@dataclass(frozen=True, eq=False)
class CollectiveSamples:
    """Samples of one call.

    Attributes:
      vertices: int64 [num_samples, width], roots and picks; of an application that runs until done one-dimensional,
        sample after sample, each without the steps behind its last one that has a pick.
      offsets: int64 [num_samples + 1], where a sample's vertices begin; None: all have the same width.
      num_steps: of the sample with the most.
      hops: recorded edges per sample; empty where nothing is recorded.
    """

    vertices: Tensor
    offsets: Tensor | None
    num_steps: int
    hops: list[RecordedHops]


class CollectiveSampler:
    """A graph and an application, checked once, sampled from again and again.

    Args:
      indptr: int64 [num_nodes + 1].
      indices: int32 | int64 [num_edges]; rows in canonical order.
      orig_ids: int64 [num_nodes], or None: ids are original.
      weights: float32 | float64 [num_edges], or None: every edge counts as 1.
      app: the application.
      tables: what callbacks read besides; None: nothing.
    Raises:
      ValueError: a wrong dtype or shape, a tensor that is not contiguous.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        orig_ids: Tensor | None,
        weights: Tensor | None,
        app: CollectiveApp,
        tables: TransitTables | None = None,
    ) -> None:
        indptr = checks.vector("indptr", indptr, (torch.int64,))
        indices = checks.vector("indices", indices, checks.ID_DTYPES)
        num_rows, self._dtype = indptr.numel() - 1, indices.dtype
        weight_view = None
        if orig_ids is not None:
            orig_ids = checks.vector("orig_ids", orig_ids, (torch.int64,), num_rows)
        if weights is not None:
            weights = checks.vector("weights", weights, WEIGHT_DTYPES, indices.numel())
            weight_view = ctypes.pointer(
                library.WeightTables(weights.data_ptr(), None, None, library.type_code(weights))
            )
        self._graph = library.Graph(
            indptr.data_ptr(), indices.data_ptr(), library.address(orig_ids), None, weight_view, num_rows, 0,
            indices.numel(), library.type_code(indices),
        )  # fmt: skip
        self._tables = layouts.TableArguments() if tables is None else tables.arguments
        self.num_roots = app.num_roots
        self._app, arrays = _app_arguments(app)
        row_scale, column_scale = app.scales or (None, None)
        self._spec = SpecArguments(
            None if row_scale is None else row_scale.ctypes.data,
            None if column_scale is None else column_scale.ctypes.data,
            app.record, app.self_edges, app.edge_scale, app.ranked,
        )  # fmt: skip
        self._kept = (indptr, indices, orig_ids, weights, weight_view, tables, app, arrays)

    def sample(
        self, roots: Tensor, sample_ids: Tensor, rng_seed: int, step: int, num_threads: int
    ) -> CollectiveSamples:
        """Samples of these roots.

        Args:
          roots: int64 [num_samples, num_roots], -1: none.
          sample_ids: int64 [num_samples], 0 or more.
          rng_seed, step: key of every draw.
          num_threads: threads of the call; never changes a result.
        Raises:
          AppFailedError: the application did what it must not.
          ValueError: a root outside the graph, a graph that holds ids outside of it.
        """
        roots = checks.matrix("roots", roots, (torch.int64,))
        if roots.shape[1] != self.num_roots:
            raise ValueError(f"roots has {roots.shape[1]} columns; expected {self.num_roots}.")
        sample_ids = checks.vector("sample_ids", sample_ids, (torch.int64,), roots.shape[0])
        request = layouts.RequestArguments(
            roots.data_ptr(), sample_ids.data_ptr(), roots.shape[0], 0, rng_seed, step, num_threads, 0
        )
        failure, result, core = layouts.Failure(), _Result(), library.core()
        status = core.fs_collective_sample(
            self._graph, self._tables, self._app, self._spec, request, failure, ctypes.byref(result)
        )
        if status == library.APP_ERROR:
            raise layouts.AppFailedError(core.fs_last_error().decode(errors="replace"), failure)
        library.raise_for_status(status, core.fs_last_error)
        return self._views(OwnedMemory(result, core.fs_collective_free), result.contents)

    def _views(self, owner: OwnedMemory, result: ResultMemory) -> CollectiveSamples:
        samples = result.samples
        vertices = owner.tensor(samples.vertices, samples.num_vertices, torch.int64)
        offsets = None
        if samples.width >= 0:
            vertices = vertices.view(samples.num_samples, samples.width)
        else:
            offsets = owner.tensor(samples.offsets, samples.num_samples + 1, torch.int64)
        hops = []
        if self._spec.record != Record.NONE and samples.num_samples > 0:
            first = ctypes.addressof(result.edges.contents)
            hops = [self._hops(owner, first + s * _EDGES_BYTES) for s in range(samples.num_samples)]
        return CollectiveSamples(vertices, offsets, samples.num_steps, hops)

    def _hops(self, owner: OwnedMemory, address: int) -> RecordedHops:
        """What is recorded in the FsRecordedEdges at an address."""
        num_hops, num_nodes, edges, num_weights, *arrays = _EdgesWords.from_address(address)[:]
        hop_array, node_array, _, offset_array, id_array, weight_array = arrays
        counts = _AnyWords.from_address(hop_array)[: 3 * num_hops]
        num_dst, num_src, num_edges = counts[0::3], counts[1::3], counts[2::3]
        tensor, scale, weights = owner.tensor, self._spec.edge_scale, None
        if scale != EdgeScale.UNWEIGHTED:
            dtype = torch.float64 if scale == EdgeScale.COLUMNS else torch.float32
            weights = tensor(weight_array, num_weights, dtype).split_with_sizes(num_edges)
        offsets = tensor(offset_array, sum(num_dst) + num_hops, torch.int64)
        ids = tensor(node_array, num_nodes + edges, self._dtype).split_with_sizes((*num_src, *num_edges))
        return RecordedHops(
            num_dst, num_edges, ids[:num_hops], offsets.split_with_sizes([n + 1 for n in num_dst]), ids[num_hops:],
            weights, owner, id_array,
        )  # fmt: skip


def _app_arguments(app: CollectiveApp) -> tuple[layouts.AppArguments, list]:
    """(FsTransitApp, the arrays that it points to)."""
    steps = len(app.sample_sizes)
    sizes, transits = ((c_int64 * max(1, steps))(*values) for values in (app.sample_sizes, app.num_transits))
    unique = (c_uint8 * max(1, steps))(*app.unique)
    arguments = layouts.AppArguments(
        ctypes.addressof(sizes), ctypes.addressof(transits), ctypes.addressof(unique), app.params.ctypes.data,
        app.next or None, app.step_transits or None, app.initial or None, steps, app.num_roots, app.state_words,
        app.max_attempts, app.next_kind, layouts.COLLECTIVE, app.until_done,
    )  # fmt: skip
    return arguments, [sizes, transits, unique]
